//! The header that says what a change survives.

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};

use super::{Shared, request::Operation};
use crate::domain::durability::Durability;

/// Its name.
pub const HEADER: &str = "duepost-durability";

/// Whether the answer of an operation carries it: those that change something kept.
pub fn is_told(method: &str, operation: &str) -> bool {
    !["GET", "HEAD"].contains(&method) && operation != "test_webhook"
}

/// Says so with each success.
pub(super) async fn tell(State(api): State<Shared>, request: Request, next: Next) -> Response {
    let operation = request.extensions().get::<Operation>().map_or("none", |operation| operation.0);
    let told = is_told(request.method().as_str(), operation);
    let mut response = next.run(request).await;
    if told && response.status().is_success() {
        let level = match operation {
            // nobody is waited for: a claim that is lost with its Redis is made anew
            "claim_tasks" => api.store.durability().min(Durability::Disk),
            _ => api.store.durability(),
        };
        let name = HeaderName::from_static(HEADER);
        response.headers_mut().insert(name, HeaderValue::from_static(level.as_str()));
    }
    response
}
