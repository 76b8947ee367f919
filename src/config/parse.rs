//! The forms of values. Each parser says what would be right; who calls adds the setting and where the value came from.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use ipnet::IpNet;

use crate::domain::time::{format_duration, parse_duration};

/// What is wrong with a value, as the end of a sentence.
pub type Wrong = String;

/// `127.0.0.1:8710`, `[::1]:8710`.
pub fn socket(text: &str) -> Result<SocketAddr, Wrong> {
    text.parse().map_err(|_| "is not an address with a port, as 127.0.0.1:8710 or [::]:8710".to_owned())
}

/// `true` or `false`, nothing else: what `yes`, `1` or `on` mean differs from tool to tool.
pub fn switch(text: &str) -> Result<bool, Wrong> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("is neither `true` nor `false`".to_owned()),
    }
}

/// A whole number within a range; digits only.
pub fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, Wrong> {
    let wrong = || format!("is not a whole number from {} to {}", range.start(), range.end());
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(wrong)
}

/// A duration within a range.
pub fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let found = parse_duration(text).map_err(|e| format!("is {e}"))?;
    if !range.contains(&found) {
        let (least, most) = (format_duration(*range.start()), format_duration(*range.end()));
        return Err(format!("is not between {least} and {most}"));
    }
    Ok(found)
}

/// Units of sizes. The decimal ones are left out: half of the world means 1024 by `KB`.
const SIZES: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("", 1)];

/// Bytes within a range: `262144`, `256KiB`, `4MiB`.
pub fn size(text: &str, range: RangeInclusive<u64>) -> Result<usize, Wrong> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let found = SIZES
        .iter()
        .find(|(name, _)| *name == unit)
        .and_then(|(_, factor)| number.parse::<u64>().ok().map(|n| n.saturating_mul(*factor)))
        .ok_or("is not a size: bytes, or whole KiB, MiB, GiB, as 256KiB")?;
    if !range.contains(&found) {
        return Err(format!("is not between {} and {} bytes", range.start(), range.end()));
    }
    usize::try_from(found).map_err(|_| "is more than this machine can address".to_owned())
}

/// `dp`: what keys in Redis begin with. No `{` or `}`: they would move keys to other nodes of a cluster.
pub fn prefix(text: &str) -> Result<String, Wrong> {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if !(1..=32).contains(&text.len()) || !text.bytes().all(fine) {
        return Err("is not 1 to 32 of A-Z a-z 0-9 _ . -".to_owned());
    }
    Ok(text.to_owned())
}

/// `10.1.0.0/16,fd00::/8`; an address alone is the network of that one address.
pub fn networks(text: &str) -> Result<Vec<IpNet>, Wrong> {
    let one = |item: &str| -> Result<IpNet, Wrong> {
        let net = item
            .parse::<IpNet>()
            .or_else(|_| item.parse::<std::net::IpAddr>().map(IpNet::from))
            .map_err(|_| "is not a list of networks, as 10.1.0.0/16,fd00::/8".to_owned())?;
        if net.trunc() != net {
            return Err(format!("has an address in place of a network: did you mean {}?", net.trunc()));
        }
        Ok(net)
    };
    text.split(',').map(|item| one(item.trim())).collect()
}

/// 32 bytes in base64, with or without padding.
pub fn key_of_32_bytes(text: &str) -> Result<[u8; 32], Wrong> {
    let text = text.trim().trim_end_matches('=');
    let bytes = STANDARD_NO_PAD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).unwrap_or_default();
    bytes.try_into().map_err(|_| "is not 32 bytes in base64 (make some with `openssl rand -base64 32`)".to_owned())
}

/// The directives of `tracing_subscriber::EnvFilter`.
pub fn log_filter(text: &str) -> Result<String, Wrong> {
    // EnvFilter takes any word for the name of a module, so `inof` would silence everything
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let lonely = text.split(',').map(str::trim).filter(|d| !d.contains(['=', ':', '[']));
    for word in lonely {
        if !levels.contains(&word.to_ascii_lowercase().as_str()) {
            return Err("is not a filter: error, warn, info, debug, trace, off, or module=level, by commas".to_owned());
        }
    }
    tracing_subscriber::EnvFilter::builder()
        .parse(text)
        .map(|_| text.to_owned())
        .map_err(|_| "is not a filter, as info,duepost::store=debug".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        let all = 0..=u64::MAX;
        for (text, want) in [("0", 0), ("1", 1), ("262144", 262_144), ("256KiB", 262_144), ("4MiB", 4_194_304)] {
            assert_eq!(size(text, all.clone()), Ok(want), "{text}");
        }
        for bad in
            ["", "KiB", "1kb", "1KB", "1K", "1.5MiB", "-1", "+1", "1 MiB", "abc", "100000000000000000000", "1kib"]
        {
            assert!(size(bad, all.clone()).is_err(), "{bad}");
        }
        assert!(size("99999999999GiB", 0..=1024).is_err(), "no overflow");
    }

    #[test]
    fn a_key_is_32_bytes_in_either_alphabet() {
        let standard = "+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/8=";
        for text in [
            standard,
            &standard.replace('+', "-").replace('/', "_"),
            standard.trim_end_matches('='),
            &format!("{standard}\n"),
        ] {
            assert_eq!(key_of_32_bytes(text).map(|k| k[0]), Ok(0xfb), "{text}");
        }
        for bad in
            ["", "short", &standard[4..], &format!("{standard}AAAA"), "not base64 at all, and long enough for it!!"]
        {
            assert!(key_of_32_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_are_networks() {
        let nets = networks("10.1.0.0/16, fd00::/8,127.0.0.1").unwrap();
        assert_eq!(
            nets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.1.0.0/16", "fd00::/8", "127.0.0.1/32"]
        );
        for bad in ["10.1.2.3/16", "localhost", "10.0.0.0/33", "10.0.0.0/8,", ",", "10/8"] {
            assert!(networks(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_mistyped_level_is_not_taken_for_a_module() {
        for good in ["info", "INFO", "info,duepost::store=debug", "off", "warn,duepost[span]=trace"] {
            assert!(log_filter(good).is_ok(), "{good}");
        }
        for bad in ["inof", "verbose", "info,", "duepost=loud", "1.5"] {
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }
}
