//! The header that says what a change survives.

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};

use super::Shared;
use crate::domain::durability::Durability;

/// Its name.
pub const HEADER: HeaderName = HeaderName::from_static("duepost-durability");

/// Whether the answer of an operation carries it: those that change something kept.
pub fn is_told(method: &str, operation: &str) -> bool {
    !["GET", "HEAD"].contains(&method) && operation != "test_webhook"
}

/// Says so with a success.
pub(super) fn tell(api: &Shared, operation: &str, response: &mut Response) {
    let level = match operation {
        // nobody is waited for: a claim that is lost with its Redis is made anew
        "claim_tasks" => api.store.durability().min(Durability::Disk),
        _ => api.store.durability(),
    };
    response.headers_mut().insert(HEADER, HeaderValue::from_static(level.as_str()));
}
