//! `/docs`: one static page that draws the specification; no network but this service's own.
//!
//! A page of our own because the usual one would add more bytes than the service itself has.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use super::extract::NoQuery;

const PAGE: &str = include_str!("docs.html");
/// The only page with script; it may talk to this service and nobody else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// This specification, for people
#[utoipa::path(get, path = "/docs", operation_id = "get_docs", tag = "service", security(()),
    responses((status = 200, description = "A page that needs no network", body = String, content_type = "text/html")))]
pub async fn get_docs(_: NoQuery) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, PAGE).into_response()
}
