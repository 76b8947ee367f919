//! Instants and durations as Duepost uses them: whole milliseconds.
//!
//! The wire forms are those of RFC 3339 and of `docs/api.md`: an instant needs an offset and is rounded up to the next
//! millisecond, so that nothing comes early; a duration needs units, because a bare number would be a guess.

use std::{fmt, time::Duration};

/// An instant on Redis's clock: milliseconds since 1970-01-01T00:00:00Z. May be negative (a `run_at` long past).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixMs(pub i64);

/// Why a text is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 instant with an offset, as 2026-11-30T17:25:00.000Z")]
pub struct InstantError;

impl UnixMs {
    /// Parses RFC 3339 with any offset, `Z` included; finer than a millisecond is rounded up.
    ///
    /// # Errors
    /// No offset, a zone name in brackets, a leap second, an offset beyond ±23:59, or no such day.
    pub fn parse_rfc3339(text: &str) -> Result<Self, InstantError> {
        if !has_rfc3339_shape(text.as_bytes()) {
            return Err(InstantError);
        }
        let instant: jiff::Timestamp = text.to_ascii_uppercase().parse().map_err(|_| InstantError)?;
        let ms = instant.as_nanosecond().div_euclid(1_000_000);
        let up = i128::from(instant.as_nanosecond().rem_euclid(1_000_000) > 0);
        i64::try_from(ms + up).map(Self).map_err(|_| InstantError)
    }

    /// This instant plus a duration; never past the last representable one.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }

    /// What is shown of it, if its year has four digits. Written digit by digit: an answer shows three instants, and the
    /// general way costs several times as much.
    #[must_use]
    pub fn digits(self) -> Option<[u8; 24]> {
        let at = jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_millisecond(self.0).ok()?);
        let year = u16::try_from(at.year()).ok().filter(|year| *year <= 9999)?;
        let mut text = *b"0000-00-00T00:00:00.000Z";
        put(&mut text[0..4], year);
        let two = [(5, at.month()), (8, at.day()), (11, at.hour()), (14, at.minute()), (17, at.second())];
        two.into_iter().for_each(|(from, number)| put(&mut text[from..from + 2], number.unsigned_abs().into()));
        put(&mut text[20..23], at.millisecond().unsigned_abs());
        Some(text)
    }

    /// How long after `earlier` this is; zero if it is not.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// `2026-11-30T17:25:00.000Z`: UTC with milliseconds.
impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.digits(), jiff::Timestamp::from_millisecond(self.0)) {
            (Some(text), _) => f.write_str(std::str::from_utf8(&text).unwrap_or_default()),
            (None, Ok(t)) => write!(f, "{t:.3}"),
            (None, Err(_)) => write!(f, "{}ms", self.0),
        }
    }
}

/// Writes a number's digits, as many as there is place for.
fn put(text: &mut [u8], mut number: u16) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// `YYYY-MM-DDTHH:MM:SS[.digits](Z|±HH:MM)`, either case. jiff alone would take more (a space, basic format, leap
/// seconds folded into :59, offsets past a day).
fn has_rfc3339_shape(t: &[u8]) -> bool {
    let digits = |from: usize, to: usize| t.get(from..to).is_some_and(|s| s.iter().all(u8::is_ascii_digit));
    let is = |at: usize, one_of: &[u8]| t.get(at).is_some_and(|c| one_of.contains(c));
    let two = |at: usize| u32::from(t[at] - b'0') * 10 + u32::from(t[at + 1] - b'0');
    let front = digits(0, 4) && is(4, b"-") && digits(5, 7) && is(7, b"-") && digits(8, 10);
    let clock = is(10, b"Tt") && digits(11, 13) && is(13, b":") && digits(14, 16) && is(16, b":") && digits(17, 19);
    if !(front && clock) || two(11) > 23 || two(17) > 59 {
        return false;
    }
    let mut at = 19;
    if is(at, b".") {
        let fraction = t[20..].iter().take_while(|c| c.is_ascii_digit()).count();
        if !(1..=9).contains(&fraction) {
            return false;
        }
        at = 20 + fraction;
    }
    match t.len() - at {
        1 => is(at, b"Zz"),
        6 => {
            is(at, b"+-")
                && digits(at + 1, at + 3)
                && is(at + 3, b":")
                && digits(at + 4, at + 6)
                && two(at + 1) <= 23
                && two(at + 4) <= 59
        }
        _ => false,
    }
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a duration: whole numbers with units, largest first, as 250ms, 30s, 5m, 1h30m, 7d, or ISO 8601 as PT30M")]
pub struct DurationError;

/// Units of the plain form, largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses `250ms`, `1h30m`, `7d`, or ISO 8601 (`PT30M`, `P1DT12H`). A day is 24 hours.
///
/// # Errors
/// Weeks, months, years, blanks, signs, fractions, bare numbers, units out of order, or more than 2^63 ms.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let ms = match text.strip_prefix('P') {
        None => parse_units(text, &UNITS).ok_or(DurationError)?,
        Some(iso) => {
            let (days, clock) = iso.split_once('T').map_or((iso, None), |(d, c)| (d, Some(c)));
            let mut total = 0;
            if !days.is_empty() || clock.is_none() {
                total = parse_units(days, &[("D", UNITS[0].1)]).ok_or(DurationError)?;
            }
            if let Some(clock) = clock {
                let of_day = parse_units(clock, &[("H", UNITS[1].1), ("M", UNITS[2].1), ("S", UNITS[3].1)]);
                total = of_day.and_then(|ms| ms.checked_add(total)).ok_or(DurationError)?;
            }
            total
        }
    };
    if i64::try_from(ms).is_err() {
        return Err(DurationError);
    }
    Ok(Duration::from_millis(ms))
}

/// A run of `<digits><unit>`, each unit at most once and smaller than the one before.
fn parse_units(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (mut rest, mut next_unit, mut total) = (text, 0, 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let (number, unit) = (rest[..digits].parse::<u64>().ok()?, &rest[digits..digits + letters]);
        let at = next_unit + units[next_unit..].iter().position(|(name, _)| *name == unit)?;
        total = number.checked_mul(units[at].1)?.checked_add(total)?;
        (rest, next_unit) = (&rest[digits + letters..], at + 1);
    }
    Some(total)
}

/// The form that answers use: `1h30m`, `250ms`, `0s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in UNITS {
        if ms >= size {
            text.push_str(&format!("{}{unit}", ms / size));
            ms %= size;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_round_up_and_keep_their_offset_honest() {
        let at = |t: &str| UnixMs::parse_rfc3339(t).map(|t| t.to_string());
        assert_eq!(at("2026-11-30T17:25:00Z").unwrap(), "2026-11-30T17:25:00.000Z");
        assert_eq!(at("2026-11-30t17:25:00.000000001z").unwrap(), "2026-11-30T17:25:00.001Z");
        assert_eq!(at("2026-11-30T17:25:00+05:30").unwrap(), "2026-11-30T11:55:00.000Z");
        assert_eq!(at("2026-11-30T17:25:00-00:00").unwrap(), "2026-11-30T17:25:00.000Z");
        assert_eq!(at("1970-01-01T00:00:00Z").unwrap(), "1970-01-01T00:00:00.000Z");
        assert_eq!(at("9999-12-30T00:00:00.999Z").unwrap(), "9999-12-30T00:00:00.999Z");
    }

    #[test]
    fn c018_calendar_edges_are_refused() {
        for bad in [
            "2026-12-31T23:59:60Z",
            "2026-11-30T10:00:60Z",
            "2026-11-30T24:00:00Z",
            "2031-02-29T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-30T10:00:00+24:00",
            "2026-11-30T10:00:00-12:60",
            "10000-01-01T00:00:00Z",
            " 2026-11-30T10:00:00Z",
            "2026-11-30T10:00:00Z ",
            "2026-11-30T10:00:00",
            "2026-11-30 10:00:00Z",
            "2026-11-30T10:00:00Z[UTC]",
            "2026-11-30T10:00:00.Z",
            "2026-11-30T10:00Z",
            "20261130T100000Z",
            "",
            "now",
            "2026-11-30T10:00:00.1234567891Z",
            "2026-11-30T10:00:00é",
        ] {
            assert!(UnixMs::parse_rfc3339(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_have_units_largest_first() {
        let ms = |t: &str| parse_duration(t).map(|d| d.as_millis());
        for (text, want) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("PT30M", 1_800_000),
            ("P1DT12H", 129_600_000),
            ("P2D", 172_800_000),
            ("90m", 5_400_000),
        ] {
            assert_eq!(ms(text), Ok(want), "{text}");
        }
        for bad in [
            "",
            "90",
            "1w",
            "1y",
            "-5m",
            "+5m",
            "5 m",
            "1m1h",
            "1m1m",
            "1.5s",
            "P",
            "PT",
            "P1W",
            "P1M",
            "PT0.5S",
            "PT1S1M",
            "1H",
            "ms",
            "99999999999999999999s",
            "9223372036854775808ms",
            "5µs",
            "p1d",
            "P1DT",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_formatted_parses_back(ms in 0..=i64::MAX as u64) {
            let d = Duration::from_millis(ms);
            proptest::prop_assert_eq!(parse_duration(&format_duration(d)), Ok(d));
        }
        #[test]
        fn instants_are_shown_as_jiff_shows_them(ms in -100_000_000_000_000..300_000_000_000_000_i64) {
            let jiff = jiff::Timestamp::from_millisecond(ms).map_or(format!("{ms}ms"), |t| format!("{t:.3}"));
            proptest::prop_assert_eq!(UnixMs(ms).to_string(), jiff);
        }
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (parse_duration(&text), UnixMs::parse_rfc3339(&text));
        }
    }
}
