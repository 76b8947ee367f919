//! Headers that a task or a webhook adds to its deliveries.

/// Headers of a task or webhook, at most.
pub const HEADERS_MAX: usize = 32;
/// Bytes of all their names and values together, at most.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// Names that HTTP or the service owns.
const OWNED: [&str; 11] = [
    "host",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "user-agent",
    "traceparent",
    "tracestate",
];
/// Families of such names.
const OWNED_PREFIXES: [&str; 4] = ["content-", "proxy-", "webhook-", "duepost-"];

/// Why headers are not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct HeaderRefused {
    /// The header it is about; empty if it is about all of them.
    pub name: String,
    /// The rule that it breaks.
    pub why: &'static str,
}

/// Whether HTTP or the service owns this header, so that nobody else may set it.
#[must_use]
pub fn is_owned(name: &str) -> bool {
    let starts = |prefix: &&str| name.get(..prefix.len()).is_some_and(|s| s.eq_ignore_ascii_case(prefix));
    OWNED.iter().any(|owned| name.eq_ignore_ascii_case(owned)) || OWNED_PREFIXES.iter().any(starts)
}

/// Checks the headers of a task or webhook and returns them as they were given, in their order.
///
/// # Errors
/// Too many or too long, a name that is no token, owned or there twice (in any case), a value that could not be sent.
pub fn check<N, V>(headers: impl IntoIterator<Item = (N, V)>) -> Result<Vec<(String, String)>, HeaderRefused>
where
    N: AsRef<str>,
    V: AsRef<str>,
{
    let (mut taken, mut bytes) = (Vec::<(String, String)>::new(), 0);
    for (name, value) in headers {
        let (name, value) = (name.as_ref(), value.as_ref());
        let refuse = |why| Err(HeaderRefused { name: name.chars().take(128).collect(), why });
        bytes += name.len() + value.len();
        if taken.len() == HEADERS_MAX {
            return Err(HeaderRefused { name: String::new(), why: "more than 32 headers" });
        }
        if bytes > HEADERS_BYTES_MAX {
            return Err(HeaderRefused { name: String::new(), why: "names and values are more than 8 KiB together" });
        }
        if name.is_empty() || !name.bytes().all(is_token) {
            return refuse("a name is letters, digits and !#$%&'*+-.^_`|~ only");
        }
        if is_owned(name) {
            return refuse("this header belongs to HTTP or to the service");
        }
        if taken.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return refuse("this name is there twice");
        }
        if !value.bytes().all(|c| matches!(c, b' '..=b'~' | b'\t')) {
            return refuse("a value is visible ASCII, spaces and tabs only");
        }
        taken.push((name.to_owned(), value.to_owned()));
    }
    Ok(taken)
}

/// The headers of a delivery: the webhook's and the task's, of which the task's win.
#[must_use]
pub fn merge(of_webhook: &[(String, String)], of_task: &[(String, String)]) -> Vec<(String, String)> {
    let overruled = |name: &str| of_task.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    let mut all: Vec<_> = of_webhook.iter().filter(|(name, _)| !overruled(name)).cloned().collect();
    all.extend_from_slice(of_task);
    all
}

/// A character of an HTTP token (RFC 9110, section 5.6.2).
fn is_token(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(name: &str, value: &str) -> &'static str {
        check([(name, value)]).map_or_else(|refused| refused.why, |_| "taken")
    }

    #[test]
    fn c106_values_that_could_inject_or_could_not_be_sent_are_refused() {
        for value in ["a\r\nx-evil: 1", "a\n", "a\r", "\0", "\u{7f}", "é", "مرحبا", "\u{1b}[0m"] {
            assert_eq!(why("x-a", value), "a value is visible ASCII, spaces and tabs only", "{value:?}");
        }
        for value in ["", " ", "a\tb", "Bearer x", "~!\"#"] {
            assert_eq!(why("x-a", value), "taken", "{value:?}");
        }
    }

    #[test]
    fn c106_names_are_tokens_that_nobody_else_owns() {
        for name in ["", "x a", "x:a", "é", "x\r\n", "x/a", "(x)", "x\0"] {
            assert_eq!(why(name, "v"), "a name is letters, digits and !#$%&'*+-.^_`|~ only", "{name:?}");
        }
        for name in [
            "Host",
            "content-length",
            "Content-Type",
            "content-encoding",
            "TRANSFER-ENCODING",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "upgrade",
            "expect",
            "proxy-authorization",
            "Proxy-Connection",
            "user-agent",
            "traceparent",
            "tracestate",
            "webhook-id",
            "Webhook-Signature",
            "duepost-attempt",
            "DuePost-Anything",
        ] {
            assert_eq!(why(name, "v"), "this header belongs to HTTP or to the service", "{name}");
        }
        for name in ["authorization", "X-Tenant", "cookie", "hosts", "contents", "webhook", "x-webhook-id", "tea"] {
            assert_eq!(why(name, "v"), "taken", "{name}");
        }
    }

    #[test]
    fn c106_a_name_twice_in_any_case_is_refused() {
        let refused = check([("X-A", "1"), ("x-a", "2")]).unwrap_err();
        assert_eq!((refused.name.as_str(), refused.why), ("x-a", "this name is there twice"));
    }

    #[test]
    fn s7_at_most_32_headers_of_8_kib() {
        let many = |n: usize| check((0..n).map(|i| (format!("x-{i}"), "v")));
        assert!(many(32).is_ok());
        assert_eq!(many(33).unwrap_err().why, "more than 32 headers");
        let long = |n: usize| check([("x", "v".repeat(n))]);
        assert!(long(HEADERS_BYTES_MAX - 1).is_ok());
        assert_eq!(long(HEADERS_BYTES_MAX).unwrap_err().why, "names and values are more than 8 KiB together");
    }

    #[test]
    fn a_tasks_header_wins_over_its_webhooks_in_any_case() {
        let pair = |n: &str, v: &str| (n.to_owned(), v.to_owned());
        let merged = merge(&[pair("X-A", "webhook"), pair("x-b", "webhook")], &[pair("x-a", "task")]);
        assert_eq!(merged, [pair("x-b", "webhook"), pair("x-a", "task")]);
    }
}
