//! `retry-after`: how long a receiver asks to be left alone.

use std::time::{Duration, UNIX_EPOCH};

use super::time::UnixMs;

/// The longest wait that a receiver can ask for; more is taken as this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// What an answer with this status asks for by its `retry-after` headers: only 429 and 503 can.
///
/// Seconds or any of the three HTTP dates. Nothing is heard (`None`) if the value is malformed, negative or empty, or
/// if there are several that differ: then nobody knows which one is meant. A date past asks for no wait.
#[must_use]
pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>, status: u16, now: UnixMs) -> Option<Duration> {
    if !matches!(status, 429 | 503) {
        return None;
    }
    let mut values = values.into_iter();
    let first = values.next()?;
    if values.any(|other| other != first) {
        return None;
    }
    let value = first.trim_matches([' ', '\t']);
    let wait = if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) {
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(value).ok()?;
        let since_1970 = date.duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMs(0).plus(since_1970).since(now)
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T17:25:00Z, a Monday.
    const NOW: UnixMs = UnixMs(1_796_059_500_000);

    fn wait(value: &str) -> Option<u64> {
        parse([value], 503, NOW).map(|d| d.as_secs())
    }

    #[test]
    fn c080_seconds_and_the_three_dates() {
        for (value, secs) in [
            ("4", Some(4)),
            (" 4\t", Some(4)),
            ("0", Some(0)),
            ("000004", Some(4)),
            ("3600", Some(3600)),
            ("3601", Some(3600)),
            ("99999999999999999999", Some(3600)),
            ("Mon, 30 Nov 2026 17:25:04 GMT", Some(4)),
            ("Monday, 30-Nov-26 17:25:04 GMT", Some(4)),
            ("Mon Nov 30 17:25:04 2026", Some(4)),
            ("Mon, 30 Nov 2026 17:24:04 GMT", Some(0)),
            ("Tue, 30 Nov 2027 17:24:04 GMT", Some(3600)),
            ("", None),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("1e18", None),
            ("5 s", None),
            ("5, 5", None),
            ("Wed, 99 Foo", None),
            ("2026-11-30T17:25:04Z", None),
        ] {
            assert_eq!(wait(value), secs, "{value:?}");
        }
    }

    #[test]
    fn c080_only_429_and_503_and_only_one_voice() {
        for (status, heard) in [(429, true), (503, true), (500, false), (302, false), (200, false), (504, false)] {
            assert_eq!(parse(["4"], status, NOW).is_some(), heard, "{status}");
        }
        assert_eq!(parse(["4", "4"], 429, NOW), Some(Duration::from_secs(4)));
        assert_eq!(parse(["4", "5"], 429, NOW), None);
        assert_eq!(parse([], 429, NOW), None);
    }

    proptest::proptest! {
        #[test]
        fn no_value_panics_or_asks_for_more_than_the_cap(value in "\\PC{0,40}", now: i64) {
            proptest::prop_assert!(parse([value.as_str()], 429, UnixMs(now)).is_none_or(|d| d <= RETRY_AFTER_MAX));
        }
        #[test]
        fn no_date_panics(y in 0..10_000_u32, d in 0..99_u32, h in 0..99_u32, now: i64) {
            let date = format!("Mon, {d:02} Nov {y:04} {h:02}:25:04 GMT");
            let _ = parse([date.as_str()], 429, UnixMs(now));
        }
    }
}
