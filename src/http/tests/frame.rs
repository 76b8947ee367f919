//! What surrounds handlers: ids, keys, unknown routes, panics, metrics, the pages of the service.

use std::sync::Arc;

use axum::{Router, body::Body, http::Request, routing};
use serde_json::{Value, json};

use super::{Answer, It};
use crate::http::{Auth, State, framed, openapi_json};

#[tokio::test]
async fn every_response_has_a_request_id() {
    let it = It::start().await;
    let longest = "x".repeat(128);
    for (path, method) in [("/livez", "GET"), ("/nowhere", "GET"), ("/livez", "POST")] {
        for id in ["a-B_9.", &longest] {
            let request = Request::builder().method(method).uri(path).header("x-request-id", id);
            assert_eq!(it.send(request.body(Body::empty()).unwrap()).await.header("x-request-id"), id);
        }
        for id in ["", "a b", "a/b", "ä", &format!("{longest}x")] {
            let request = Request::builder().method(method).uri(path).header("x-request-id", id);
            let made = it.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!((made.header("x-request-id").len(), &made.header("x-request-id")[14..15]), (36, "7"), "{id}");
        }
    }
}

#[tokio::test]
async fn what_no_route_answers_is_a_problem_too() {
    let it = It::start().await;
    for path in ["/", "/nowhere", "/queues/", "/queues/q/", "/queues/q/tasks/", "/queues/q/tasks/x/y", "/%zz"] {
        it.get(path).await.problem(404, "not-found");
    }
    for (method, path, allow) in [
        ("PUT", "/queues/q/tasks", "GET,HEAD,POST"),
        ("POST", "/queues/q", "DELETE,GET,HEAD,PATCH,PUT"),
        ("OPTIONS", "/livez", "GET,HEAD"),
    ] {
        let answer = it.call(method, path, "").await;
        answer.problem(405, "method-not-allowed");
        let mut allowed: Vec<&str> = answer.header("allow").split(',').map(str::trim).collect();
        allowed.sort_unstable();
        assert_eq!(allowed.join(","), allow, "{method} {path}");
    }
    let head = it.call("HEAD", "/queues/q", "").await.expect(404);
    assert_eq!(head.body.len(), 0);
}

#[tokio::test]
async fn a_panic_is_an_answer() {
    let it = It::start().await;
    let api = crate::http::Api {
        store: it.store.clone(),
        metrics: Arc::clone(&it.metrics),
        traces: crate::telemetry::Traces::default(),
        health: Arc::clone(&it.health),
        auth: Auth::open(),
        limits: crate::http::Limits {
            max_payload: 1,
            max_batch: 1,
            max_delay: std::time::Duration::ZERO,
            max_requests: 1,
            max_claims: 1,
        },
        policy: crate::domain::address::AddressPolicy::default(),
        auto_create: true,
        ids: super::ids(),
        request_log: false,
        probe: crate::http::Prober::for_tests(),
        dev: None,
    };
    let state = Arc::new(State::new(api));
    async fn fails() {
        panic!("s3cret");
    }
    let router = framed(Router::new().route("/fails", routing::get(fails)), state);
    let answer = Answer::of(router, Request::get("/fails").body(Body::empty()).unwrap()).await;
    let problem = answer.problem(500, "internal");
    assert!(!problem.to_string().contains("s3cret"));
}

#[tokio::test]
async fn requests_are_counted_by_operation() {
    let it = It::start().await;
    it.post("/queues/q/tasks", r#"{"payload":1}"#).await.expect(201);
    it.post("/queues/q/tasks", "{}").await.expect(400);
    it.get("/nowhere").await.expect(404);
    let scrape = it.get("/metrics").await.expect(200);
    assert!(scrape.header("content-type").starts_with("text/plain"));
    for line in [
        r#"duepost_http_requests_total{operation="create_task",status="201"} 1"#,
        r#"duepost_http_requests_total{operation="create_task",status="400"} 1"#,
        r#"duepost_http_requests_total{operation="none",status="404"} 1"#,
        r#"duepost_enqueued_total{queue="q"} 1"#,
        r#"duepost_tasks{queue="q",state="scheduled"} 1"#,
    ] {
        assert!(scrape.text().lines().any(|l| l == line), "{line}\n{}", scrape.text());
    }
}

#[tokio::test]
async fn readiness_has_reasons() {
    let it = It::start().await;
    let ready = it.get("/readyz").await.expect(200).json();
    assert_eq!(
        (&ready["status"], &ready["append_only"], &ready["warnings"]),
        (&json!("ready"), &json!(true), &json!([]))
    );
    assert!(ready["redis"].as_str().unwrap().contains(' '));
    assert_eq!(it.get("/livez").await.expect(200).json()["status"], "ok");
    assert_eq!(it.get("/version").await.expect(200).json()["version"], env!("CARGO_PKG_VERSION"));
    let mut redis = deadpool_redis::redis::Client::open(it.redis.url()).unwrap().get_connection().unwrap();
    deadpool_redis::redis::cmd("CONFIG").arg(&["SET", "maxmemory-policy", "allkeys-lru"]).exec(&mut redis).unwrap();
    let warned = it.get("/readyz").await.expect(200).json();
    assert!(warned["warnings"][0].as_str().unwrap().contains("allkeys-lru"), "{warned}");
    it.health.stop();
    assert_eq!(it.get("/readyz").await.problem(503, "unavailable")["detail"], "the service is stopping");
}

#[tokio::test]
async fn the_pages_need_nothing_from_elsewhere() {
    let it = It::start().await;
    let spec = it.get("/openapi.json").await.expect(200);
    assert_eq!(spec.text(), openapi_json());
    let docs = it.get("/docs").await.expect(200);
    assert!(docs.header("content-security-policy").contains("default-src 'none'"));
    assert!(!docs.text().contains("://") && docs.text().contains("/openapi.json"));
}

#[tokio::test]
async fn the_receiver_of_dev_shows_what_it_got() {
    let it = It::start().await;
    let request =
        Request::post("/dev/receiver/orders").header("webhook-id", "u1").body(Body::from("{ \"a\":1}")).unwrap();
    it.send(request).await.expect(204);
    it.send(Request::post("/dev/receiver").body(Body::from("not json")).unwrap()).await.expect(204);
    let got = it.get("/dev/receiver").await.expect(200);
    assert!(got.text().contains("\"body\":{ \"a\":1}"), "{}", got.text());
    let items = got.json()["items"].clone();
    assert_eq!((&items[0]["path"], &items[1]["body"]), (&json!("/dev/receiver/orders"), &json!("not json")));
    assert_eq!(items[0]["headers"][0], json!(["webhook-id", "u1"]));
    let off = It::with(|api| api.dev = None).await;
    off.get("/dev/receiver").await.problem(404, "not-found");
    let _: Value = items;
}
