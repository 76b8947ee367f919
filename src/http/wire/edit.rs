//! A PATCH of a task: what is there is changed, `null` puts a field back to its default, the rest stays.

use std::time::Duration;

use super::{
    Horizon, read_retry,
    task::{read_expiry, read_when},
};
use crate::{
    domain::{retry::RetryPatch, task::When},
    http::{
        fields::{self, timeout},
        object::{Given, Object},
    },
};

/// What to change.
#[derive(Debug)]
pub struct EditWanted<'a> {
    /// Another time.
    pub when: Option<When>,
    /// Other content: JSON text, a slice of the body.
    pub payload: Option<&'a str>,
    /// Another policy, or none of its own.
    pub retry: Option<Option<RetryPatch>>,
    /// Another deadline, or none of its own.
    pub timeout: Option<Option<Duration>>,
    /// Other headers.
    pub headers: Option<Vec<(String, String)>>,
    /// Another end, or none.
    pub expires: Option<Option<When>>,
    /// A field that is there, one about time first, to name in a refusal; a change without any is none.
    pub named: Option<&'static str>,
}

/// Reads a PATCH. A time has no default to go back to, and `null` must not come to mean "now"; the payload's `null` is
/// the JSON value.
pub fn read_edit<'a>(o: &mut Object<'a>, horizon: Horizon) -> Option<EditWanted<'a>> {
    const FIELDS: [&str; 9] =
        ["expires_at", "expires_after", "run_at", "delay", "delay_ms", "payload", "retry", "timeout", "headers"];
    let named = FIELDS.into_iter().find(|field| o.has(field));
    let payload = o.raw("payload");
    let when = read_when(o, horizon);
    const ENDS: [&str; 2] = ["expires_at", "expires_after"];
    let expires = if ENDS.into_iter().any(|field| o.is_null(field)) {
        let both = ENDS.into_iter().all(|field| o.has(field));
        for field in ENDS {
            if both {
                o.fault(field, "give at most one of expires_at, expires_after");
            }
            o.raw(field);
        }
        Some(None)
    } else {
        read_expiry(o, horizon, when).map(Some)
    };
    let retry = over(read_retry(o, true));
    let timeout = over(o.given("timeout", true, timeout));
    let headers = over(fields::headers(o, true)).map(Option::unwrap_or_default);
    Some(EditWanted { when, payload, retry, timeout, headers, expires, named })
}

/// Nothing said, the default, or a value.
fn over<T>(given: Given<T>) -> Option<Option<T>> {
    match given {
        Given::Absent => None,
        Given::Null => Some(None),
        Given::Value(value) => Some(Some(value)),
    }
}
