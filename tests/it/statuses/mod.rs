//! Every operation gives each answer that openapi/openapi.json names for it: each status, and of an error each type.
//!
//! The specification is the list. Each test takes the cases of some statuses out of it and provokes them on the running
//! service; what nobody knows how to provoke fails the test, so an answer that is documented later cannot be forgotten.
//! `spec` reads the list and judges answers; `common` has what any call may meet at the door, `trouble` what it meets
//! when Redis or the service is in trouble, `outcomes` what is the operation's own.

mod common;
mod outcomes;
mod spec;
mod trouble;

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::{ApiAnswer, Client};
use spec::{Case, Operation, cases};

/// Statuses that any operation may give, whatever it is about.
const COMMON: [u16; 6] = [400, 401, 403, 408, 413, 415];
/// Statuses for which something must be broken.
const TROUBLE: [u16; 2] = [500, 503];

/// The cases of these statuses; never none.
fn cases_of(statuses: &[u16]) -> Vec<Case> {
    let cases: Vec<Case> = cases().into_iter().filter(|case| statuses.contains(&case.status)).collect();
    assert!(!cases.is_empty(), "the specification names none of {statuses:?}");
    cases
}

/// A lawful body for the operation, if it takes one. `token` is that of a claim, for those that ask for one.
fn body_for(operation: &Operation, token: &str) -> Option<Value> {
    operation.takes_a_body().then(|| match operation.id.as_str() {
        "create_task" | "put_task" => json!({"payload": 1, "delay": "1h"}),
        "create_tasks" => json!({"tasks": [{"payload": 1, "delay": "1h"}], "atomic": true}),
        "patch_task" => json!({"delay": "2h"}),
        "purge_queue" => json!({"states": ["scheduled"]}),
        "ack_task" | "nack_task" | "extend_task" => json!({"token": token}),
        "create_webhook" | "put_webhook" => json!({"url": "http://127.0.0.1:9/"}),
        "put_queue"
        | "patch_queue"
        | "pause_queue"
        | "replay_queue"
        | "claim_tasks"
        | "patch_webhook"
        | "rotate_webhook_secret"
        | "test_webhook" => json!({}),
        other => panic!("no lawful body is known for {other}"),
    })
}

/// Calls the operation at this target with exactly these headers.
async fn call(
    api: &Client,
    operation: &Operation,
    target: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> ApiAnswer {
    let method: Method = operation.method.parse().expect("a method");
    let answer = api.request(method, target, headers, body.map(Into::into)).await;
    answer.unwrap_or_else(|e| panic!("{} {target}: {e}", operation.id))
}

/// The same with a lawful body.
async fn call_lawfully(api: &Client, operation: &Operation, target: &str, token: &str) -> ApiAnswer {
    let body = body_for(operation, token).map(|body| body.to_string());
    let json = body.is_some().then_some(("content-type", "application/json"));
    call(api, operation, target, json.as_slice(), body).await
}
