//! What the head of an answer means, by the table of the contract.

use std::time::Duration;

use hyper::{
    StatusCode,
    header::{CONTENT_LENGTH, HeaderMap, RETRY_AFTER, TRANSFER_ENCODING},
};

use super::fault::one_line;
use crate::domain::{
    attempt::{Advice, Outcome, RESPONSE_KEPT},
    retry_after,
    time::{UnixMs, format_duration},
};

/// A receiver's way to say "never again".
const DUEPOST_RETRY: &str = "duepost-retry";

/// Bytes of a body that [`excerpt`] needs to see: one more than it keeps, to tell a cut character from a broken one.
pub const EXCERPT_READ: usize = RESPONSE_KEPT + 1;

/// The meaning of a head.
pub struct Verdict {
    pub outcome: Outcome,
    pub error: Option<String>,
    pub advice: Advice,
}

/// Judges a head that came at `now`.
pub fn judge(status: StatusCode, headers: &HeaderMap, now: UnixMs) -> Verdict {
    if status.is_success() {
        return Verdict { outcome: Outcome::Delivered, error: None, advice: Advice::None };
    }
    let texts = |name| headers.get_all(name).iter().map(|v| v.to_str().unwrap_or_default());
    let says_no = headers.get_all(DUEPOST_RETRY).iter().any(|v| v.as_bytes().eq_ignore_ascii_case(b"false"));
    let advice = match retry_after::parse(texts(RETRY_AFTER), status.as_u16(), now) {
        _ if status == StatusCode::GONE => Advice::Gone,
        _ if says_no => Advice::Refused,
        Some(wait) => Advice::RetryAfter(wait),
        None => Advice::None,
    };
    let said = status.canonical_reason().map_or_else(|| status.as_str().to_owned(), |_| status.to_string());
    let error = match advice {
        Advice::Refused => format!("{said}: the receiver wants no retry"),
        Advice::RetryAfter(wait) => format!("{said}: not before {} from then", in_seconds(wait)),
        _ if status.is_redirection() => format!("{said}: redirects are not followed"),
        _ => said,
    };
    Verdict { outcome: Outcome::Rejected, error: Some(one_line(&error)), advice }
}

/// A wait as it is told to people; the part of a second that is left of an HTTP date counts as one.
fn in_seconds(wait: Duration) -> String {
    format_duration(Duration::from_secs(wait.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)))
}

/// Whether the length of the body is said in two ways, so that nobody knows where the next answer begins.
pub fn has_doubtful_length(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    lengths > 1 || (lengths == 1 && headers.contains_key(TRANSFER_ENCODING))
}

/// The text that is kept of a body: its first KiB, nothing of a character that was cut.
pub fn excerpt(body: &[u8]) -> Option<String> {
    let mut kept = &body[..body.len().min(RESPONSE_KEPT)];
    if kept.len() < body.len()
        && let Err(cut) = std::str::from_utf8(kept)
        && cut.error_len().is_none()
    {
        kept = &kept[..cut.valid_up_to()];
    }
    let mut text = String::from_utf8_lossy(kept).into_owned();
    while text.len() > RESPONSE_KEPT {
        text.pop(); // each byte that is no UTF-8 became three
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, headers: &[(&'static str, &'static str)]) -> (Outcome, Advice, Option<String>) {
        let headers = headers.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
        let verdict = judge(StatusCode::from_u16(status).unwrap(), &headers, UnixMs(1_796_059_500_000));
        (verdict.outcome, verdict.advice, verdict.error)
    }

    #[test]
    fn each_row_of_the_table_of_answers() {
        use Outcome::{Delivered, Rejected};
        let wait = |secs| Advice::RetryAfter(Duration::from_secs(secs));
        let (no, later) = (("duepost-retry", "false"), ("retry-after", "4"));
        for (status, headers, outcome, advice, error) in [
            (200, &[][..], Delivered, Advice::None, None),
            (204, &[no, later], Delivered, Advice::None, None),
            (299, &[], Delivered, Advice::None, None),
            (429, &[], Rejected, Advice::None, Some("429 Too Many Requests")),
            (429, &[later], Rejected, wait(4), Some("429 Too Many Requests: not before 4s from then")),
            (
                503,
                &[("retry-after", "99999")],
                Rejected,
                wait(3600),
                Some("503 Service Unavailable: not before 1h from then"),
            ),
            (503, &[("retry-after", "-5")], Rejected, Advice::None, Some("503 Service Unavailable")),
            (503, &[later, ("retry-after", "9")], Rejected, Advice::None, Some("503 Service Unavailable")),
            (500, &[later], Rejected, Advice::None, Some("500 Internal Server Error")),
            (410, &[], Rejected, Advice::Gone, Some("410 Gone")),
            (410, &[no], Rejected, Advice::Gone, Some("410 Gone")),
            (400, &[no], Rejected, Advice::Refused, Some("400 Bad Request: the receiver wants no retry")),
            (
                503,
                &[no, later],
                Rejected,
                Advice::Refused,
                Some("503 Service Unavailable: the receiver wants no retry"),
            ),
            (
                500,
                &[("duepost-retry", "False")],
                Rejected,
                Advice::Refused,
                Some("500 Internal Server Error: the receiver wants no retry"),
            ),
            (500, &[("duepost-retry", "true")], Rejected, Advice::None, Some("500 Internal Server Error")),
            (302, &[], Rejected, Advice::None, Some("302 Found: redirects are not followed")),
            (304, &[no], Rejected, Advice::Refused, Some("304 Not Modified: the receiver wants no retry")),
            (101, &[], Rejected, Advice::None, Some("101 Switching Protocols")),
            (599, &[], Rejected, Advice::None, Some("599")),
            (999, &[], Rejected, Advice::None, Some("999")),
        ] {
            assert_eq!(judged(status, headers), (outcome, advice, error.map(str::to_owned)), "{status} {headers:?}");
        }
    }

    #[test]
    fn the_first_kib_is_kept_as_text_of_at_most_a_kib() {
        assert_eq!(excerpt(b""), None);
        assert_eq!(excerpt("grün".as_bytes()).as_deref(), Some("grün"));
        assert_eq!(excerpt(b"a\xffb").as_deref(), Some("a\u{fffd}b"));
        assert_eq!(excerpt(&[b'x'; 5000]).unwrap().len(), RESPONSE_KEPT);
        assert_eq!(excerpt(&[0xff; 5000]).unwrap().len(), RESPONSE_KEPT / 3 * 3);
        let cut = format!("x{}", "ü".repeat(600));
        assert_eq!(excerpt(cut.as_bytes()).unwrap(), format!("x{}", "ü".repeat(511)));
    }
}
