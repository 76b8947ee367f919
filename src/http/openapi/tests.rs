use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::*;
use crate::{
    domain::{address::AddressPolicy, queue::Settings, time::UnixMs},
    http::{
        batch::read_batch,
        object::{Object, decode},
        problem::Problem,
        upkeep::{read_pause, read_purge, read_replay},
        wire::{
            Horizon, read_ack, read_claim, read_edit, read_extend, read_nack, read_new_content, read_rotation,
            read_settings, read_task, read_webhook, read_webhook_patch, read_webhook_put,
        },
    },
};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");

#[test]
fn the_committed_file_is_the_specification() {
    let committed = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        committed == openapi_json(),
        "openapi/openapi.json is old: cargo test write_the_specification -- --ignored"
    );
}

#[test]
#[ignore = "writes openapi/openapi.json"]
fn write_the_specification() {
    std::fs::write(FILE, openapi_json()).unwrap();
}

fn operations() -> Vec<(String, String, Value)> {
    let document = document();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

#[test]
fn the_table_of_operations_is_that_of_the_routes() {
    let routes: BTreeSet<_> =
        operations().into_iter().map(|(m, p, o)| (m, p, o["operationId"].as_str().unwrap().to_owned())).collect();
    let table = OPERATIONS.iter().map(|(m, p, o)| ((*m).to_owned(), (*p).to_owned(), (*o).to_owned())).collect();
    assert_eq!(routes, table);
}

#[test]
fn every_operation_is_fit_for_generators() {
    for (method, path, operation) in operations() {
        let place = format!("{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|s| !s.is_empty()), "{place}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|s| s.starts_with('2')), "{place}");
        for (status, response) in responses {
            assert!(response["headers"]["x-request-id"].is_object(), "{place} {status}");
            if status.as_str() >= "400" {
                assert!(response["content"]["application/problem+json"].is_object(), "{place} {status}");
                assert!(!response["description"].as_str().unwrap().is_empty(), "{place} {status}");
            }
        }
    }
}

/// Schemas that are reachable from here.
fn reachable(from: &Value, schemas: &Value, seen: &mut BTreeSet<String>) {
    match from {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let ("$ref", Some(target)) = (name.as_str(), value.as_str()) {
                    if let Some(schema) = target.strip_prefix("#/components/schemas/") {
                        assert!(schemas[schema].is_object(), "{target} leads nowhere");
                        if seen.insert(schema.to_owned()) {
                            reachable(&schemas[schema], schemas, seen);
                        }
                    }
                } else {
                    reachable(value, schemas, seen);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| reachable(item, schemas, seen)),
        _ => {}
    }
}

#[test]
fn requests_are_closed_and_answers_open() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    let (mut requests, mut answers) = (BTreeSet::new(), BTreeSet::new());
    for (_, _, operation) in operations() {
        reachable(&operation["requestBody"], schemas, &mut requests);
        reachable(&operation["responses"], schemas, &mut answers);
    }
    assert_eq!(requests.intersection(&answers).collect::<Vec<_>>(), [""; 0], "a request is not an answer");
    let all: BTreeSet<_> = schemas.as_object().unwrap().keys().cloned().collect();
    let used: BTreeSet<_> = requests.union(&answers).cloned().collect();
    assert_eq!(all, used, "a schema that nobody uses");
    for (name, schema) in schemas.as_object().unwrap() {
        assert!(!name.starts_with("New"), "{name} collides with Go's constructors");
        assert!(schema.get("allOf").is_none(), "{name}");
        if schema.get("oneOf").is_some() {
            assert!(schema["discriminator"]["mapping"].is_object(), "{name}");
        } else {
            assert_eq!(schema["additionalProperties"], Value::Bool(answers.contains(name)), "{name}");
        }
    }
    let task = &schemas["Task"];
    for field in ["id", "next_attempt_at", "payload", "attempts", "webhooks", "headers"] {
        assert!(task["properties"][field].is_object(), "{field} in {task}");
    }
    assert!(!task["required"].as_array().unwrap().contains(&"payload".into()));
    assert!(task["required"].as_array().unwrap().contains(&"ended_at".into()));
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
}

/// The service knows the defaults. A client that is told sends them unasked, or asks for a field that may be left out.
#[test]
fn no_request_has_defaults_to_be_sent() {
    let requests: Value = serde_json::from_str(REQUESTS).unwrap();
    for (name, schema) in requests.as_object().unwrap() {
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            assert!(schema.get("default").is_none(), "{name}.{field}");
        }
    }
}

/// The fields that a reader names when it meets one that it does not know.
fn known_fields(read: impl FnOnce(&mut Object<'_>), body: &str) -> BTreeSet<String> {
    let refused = decode(body, |o| {
        read(o);
        Some(())
    });
    let problem: Problem = refused.unwrap_err();
    let body: Value = serde_json::from_slice(&problem.body("x")).unwrap();
    let message = body["errors"].as_array().unwrap().iter().find_map(|e| {
        let is_it = e["field"].as_str().unwrap().ends_with("no-such-field");
        is_it.then(|| e["message"].as_str().unwrap().split_once("known are ").unwrap().1.to_owned())
    });
    message.unwrap().split(", ").map(str::to_owned).collect()
}

#[test]
fn requests_are_drawn_as_they_are_read() {
    let requests: Value = serde_json::from_str(REQUESTS).unwrap();
    let policy = AddressPolicy::default();
    let horizon = Horizon { now: UnixMs(0), max_delay: Duration::from_secs(1) };
    let settings = |o: &mut Object<'_>| _ = read_settings(o, &Settings::default(), true);
    let outer = r#"{"no-such-field":1}"#;
    let inner = |at: &str, more: &str| {
        let (open, close) = (
            at.split('.').map(|f| format!(r#"{{"{f}":"#)).collect::<String>(),
            "}".repeat(at.matches('.').count() + 1),
        );
        format!(r#"{open}{{"no-such-field":1{more}}}{close}"#)
    };
    for (schema, known) in [
        ("TaskCreate", known_fields(|o| _ = read_task(o, horizon), outer)),
        ("TaskPut", known_fields(|o| _ = read_new_content(o, horizon), outer)),
        ("TaskPatch", known_fields(|o| _ = read_edit(o, horizon), outer)),
        ("TaskBatch", known_fields(|o| _ = read_batch(o), outer)),
        ("QueuePause", known_fields(|o| _ = read_pause(o, UnixMs(0)), outer)),
        ("QueuePurge", known_fields(|o| _ = read_purge(o), outer)),
        ("QueueReplay", known_fields(|o| _ = read_replay(o), outer)),
        ("TaskClaim", known_fields(|o| _ = read_claim(o), outer)),
        ("TaskAck", known_fields(|o| _ = read_ack(o), outer)),
        ("TaskNack", known_fields(|o| _ = read_nack(o, Duration::from_secs(1)), outer)),
        ("TaskExtend", known_fields(|o| _ = read_extend(o), outer)),
        ("QueuePut", known_fields(settings, outer)),
        ("QueuePatch", known_fields(settings, outer)),
        ("WebhookCreate", known_fields(|o| _ = read_webhook(o, &policy), outer)),
        ("WebhookPut", known_fields(|o| _ = read_webhook_put(o, &policy), outer)),
        ("SecretRotation", known_fields(|o| _ = read_rotation(o), outer)),
        ("WebhookTest", known_fields(|o| _ = o.raw("payload"), outer)),
        ("WebhookPatch", known_fields(|o| _ = read_webhook_patch(o, &policy), outer)),
        ("RetryInput", known_fields(settings, &inner("retry", ""))),
        ("RateInput", known_fields(settings, &inner("rate", ""))),
        ("ExponentialBackoffInput", known_fields(settings, &inner("retry.backoff", r#","kind":"exponential""#))),
        ("FixedBackoffInput", known_fields(settings, &inner("retry.backoff", r#","kind":"fixed","delay":"1s""#))),
        (
            "ScheduleBackoffInput",
            known_fields(settings, &inner("retry.backoff", r#","kind":"schedule","delays":["1s"]"#)),
        ),
    ] {
        let drawn: BTreeSet<_> = requests[schema]["properties"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(drawn, known, "{schema}");
    }
}
