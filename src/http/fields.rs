//! Readers of single values: JSON text in, domain value or the rule it breaks out. The limits are those of the contract.

use std::{fmt::Display, ops::RangeInclusive, time::Duration};

use super::object::{self, map, text, wrong};
use crate::domain::{
    headers::{self, HEADERS_MAX},
    id::NameError,
    queue::TIMEOUTS,
    time::{UnixMs, format_duration, parse_duration},
};

/// A text that a parser takes.
pub fn parsed<'a, T, E: Display>(parse: impl Fn(&str) -> Result<T, E>) -> impl Fn(&'a str) -> Result<T, String> {
    move |raw| parse(&text(raw)?).map_err(|e| e.to_string())
}

/// A name or id.
pub fn name<'a, T>(parse: impl Fn(&str) -> Result<T, NameError>) -> impl Fn(&'a str) -> Result<T, String> {
    parsed(parse)
}

/// An instant.
pub fn instant(raw: &str) -> Result<UnixMs, String> {
    parsed(UnixMs::parse_rfc3339)(raw)
}

/// A duration of any length.
pub fn duration(raw: &str) -> Result<Duration, String> {
    parsed(parse_duration)(raw)
}

/// A duration within limits.
pub fn duration_in<'a>(range: RangeInclusive<Duration>) -> impl Fn(&'a str) -> Result<Duration, String> {
    move |raw| {
        let found = duration(raw)?;
        if range.contains(&found) {
            return Ok(found);
        }
        Err(format!("must be {} to {}", format_duration(*range.start()), format_duration(*range.end())))
    }
}

/// Deadline of an attempt.
pub fn timeout(raw: &str) -> Result<Duration, String> {
    duration_in(TIMEOUTS)(raw)
}

/// A whole number within limits, written without fraction or exponent.
pub fn whole<'a>(range: RangeInclusive<u64>) -> impl Fn(&'a str) -> Result<u64, String> {
    move |raw| {
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            let fraction = digits.starts_with(|c: char| c.is_ascii_digit());
            return Err(if fraction { "must be a whole number".to_owned() } else { wrong(raw, "a whole number") });
        }
        match raw.parse::<u64>() {
            Ok(n) if range.contains(&n) => Ok(n),
            _ => Err(format!("must be {} to {}", range.start(), range.end())),
        }
    }
}

/// The same, narrower.
pub fn whole_u32<'a>(range: RangeInclusive<u32>) -> impl Fn(&'a str) -> Result<u32, String> {
    let wide = whole(u64::from(*range.start())..=u64::from(*range.end()));
    move |raw| wide(raw).and_then(|n| u32::try_from(n).map_err(|e| e.to_string()))
}

/// A number within limits.
pub fn number<'a>(range: RangeInclusive<f64>) -> impl Fn(&'a str) -> Result<f64, String> {
    move |raw| {
        if !raw.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            return Err(wrong(raw, "a number"));
        }
        match raw.parse::<f64>() {
            Ok(n) if range.contains(&n) => Ok(n.abs()), // -0 is 0
            _ => Err(format!("must be {} to {}", range.start(), range.end())),
        }
    }
}

/// `true` or `false`.
pub fn boolean(raw: &str) -> Result<bool, String> {
    raw.parse().map_err(|_| wrong(raw, "true or false"))
}

/// A text of at most so many bytes.
pub fn text_of<'a>(max: usize) -> impl Fn(&'a str) -> Result<String, String> {
    move |raw| {
        let text = text(raw)?;
        if text.len() > max { Err(format!("must be at most {max} bytes long")) } else { Ok(text.into_owned()) }
    }
}

/// A field with headers; a fault names the header.
pub fn headers(object: &mut object::Object<'_>, null: bool) -> object::Given<Vec<(String, String)>> {
    let mut about = None;
    let given = object.given("headers", null, |raw| {
        let mut pairs = Vec::new();
        for (name, value) in map(raw, HEADERS_MAX + 1)? {
            match text(value) {
                Ok(value) => pairs.push((name, value)),
                Err(message) => {
                    about = Some((format!("headers.{name}"), message));
                    return Ok(Vec::new());
                }
            }
        }
        headers::check(pairs).or_else(|refused| {
            if refused.name.is_empty() {
                return Err(refused.to_string());
            }
            about = Some((format!("headers.{}", refused.name), refused.to_string()));
            Ok(Vec::new())
        })
    });
    if let Some((field, message)) = about {
        object.fault(&field, message);
    }
    given
}
