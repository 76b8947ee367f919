//! Traces by OTLP: what a collector gets, and that one which is away costs nothing.
#![cfg(feature = "otlp")]

use axum::http::Method;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value as Any},
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use serde_json::json;

use crate::support::{Answer, Receiver, RedisServer, Service, eventually, now_ms, secs, service::Builder, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn traced(redis: &RedisServer, collector: &str) -> Builder {
    Service::builder(redis).env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
}

/// Everything that came, as spans with the names of their services.
fn spans(collector: &Receiver) -> Vec<(String, Span)> {
    let mut all = Vec::new();
    for request in collector.journal() {
        assert_eq!((request.path(), request.header("content-type")), ("/v1/traces", Some("application/x-protobuf")));
        let message = ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap();
        for resource in message.resource_spans {
            let of = resource.resource.unwrap_or_default();
            let name = text_of(&of.attributes, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            all.extend(spans.map(|span| (name.clone(), span)));
        }
    }
    all
}

fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|a| a.key == key)?;
    match &found.value {
        Some(AnyValue { value: Some(Any::StringValue(text)) }) => Some(text.clone()),
        Some(AnyValue { value: Some(Any::IntValue(n)) }) => Some(n.to_string()),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

async fn post(service: &Service, traceparent: Option<&str>, id: &str) {
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(traceparent.map(|t| ("traceparent", t)));
    let body = json!({"id": id, "payload": "canary", "headers": {"x-secret": "canary"}}).into();
    service.client().request(Method::POST, "/queues/q/tasks", &headers, Some(body)).await.unwrap().expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_the_enqueue_and_its_delivery_linked() {
    let (redis, receiver, collector) = (RedisServer::start().await, Receiver::start().await, Receiver::start().await);
    let mut service = traced(&redis, &collector.url(""))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=open%20sesame")
        .env("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop-queue")
        .start()
        .await;
    let api = service.client();
    receiver.on_in_turn("/hook", vec![Answer::status(503).body("canary").into(), Answer::status(200).into()]);
    let hook = json!({"id": "main", "url": receiver.url("/hook?token=canary"), "headers": {"authorization": "canary"}});
    api.post("/queues/q/webhooks", hook).await.expect(201);
    api.put("/queues/q", json!({"retry": {"backoff": {"kind": "fixed", "delay": "1ms"}}})).await.expect(200);
    post(&service, Some(PARENT), "t").await;
    let calls = until(secs(10), async || Some(receiver.of_task("t")).filter(|calls| calls.len() == 2)).await;
    assert!(calls.iter().all(|call| call.header("traceparent") == Some(PARENT)), "passed on as it came");
    // one without a trace begins one, and its delivery finds it
    post(&service, None, "root").await;
    let call = receiver.wait_for_task("root", secs(10)).await;
    let begun = call.header("traceparent").expect("a trace was begun").to_owned();
    eventually(secs(10), async || api.get("/queues/q/tasks/root").await.json()["state"] == "completed").await;

    service.sigterm();
    assert!(service.wait_exit(secs(20)).await.success());
    let spans = spans(&collector);
    assert!(spans.iter().all(|(name, _)| name == "shop-queue"));
    let enqueues: Vec<&Span> = spans.iter().map(|(_, s)| s).filter(|s| s.name == "create_task").collect();
    let deliveries: Vec<&Span> = spans.iter().map(|(_, s)| s).filter(|s| s.name == "deliver").collect();
    assert_eq!((enqueues.len(), deliveries.len(), spans.len()), (2, 3, 5), "{spans:#?}");

    let child = enqueues.iter().find(|s| hex(&s.trace_id) == TRACE).expect("the client's trace goes on");
    assert_eq!((hex(&child.parent_span_id).as_str(), child.kind()), ("b7ad6b7169203331", SpanKind::Server));
    assert_eq!(text_of(&child.attributes, "http.response.status_code").as_deref(), Some("201"));
    let root = enqueues.iter().find(|s| hex(&s.trace_id) != TRACE).unwrap();
    assert_eq!(begun, format!("00-{}-{}-01", hex(&root.trace_id), hex(&root.span_id)));

    let of = |task: &str| -> Vec<&&Span> {
        let is = |s: &&&Span| text_of(&s.attributes, "duepost.task.id").as_deref() == Some(task);
        deliveries.iter().filter(is).collect()
    };
    for (n, span) in of("t").into_iter().enumerate() {
        assert_ne!(hex(&span.trace_id), TRACE, "a trace of its own");
        let links: Vec<_> = span.links.iter().map(|l| (hex(&l.trace_id), hex(&l.span_id))).collect();
        assert_eq!(links, [(TRACE.to_owned(), "b7ad6b7169203331".to_owned())]);
        let text = |key| text_of(&span.attributes, key).unwrap_or_default();
        let (status, outcome, failed) = if n == 0 { ("503", "rejected", true) } else { ("200", "delivered", false) };
        assert_eq!((text("http.response.status_code").as_str(), text("duepost.outcome").as_str()), (status, outcome));
        assert_eq!(span.status.as_ref().is_some_and(|s| s.code() == StatusCode::Error), failed);
        assert_eq!((text("messaging.destination.name").as_str(), text("duepost.webhook.id").as_str()), ("q", "main"));
        assert_eq!(text("duepost.attempt"), (n + 1).to_string());
        assert_eq!(text("messaging.message.id"), calls[n].header("webhook-id").unwrap());
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    }
    assert_eq!(of("root")[0].links[0].trace_id, root.trace_id);

    for request in collector.journal() {
        assert_eq!(request.header("x-api-key"), Some("open sesame"));
        assert!(!request.text().contains("canary"), "a payload, a header, a query or an answer went to the collector");
    }
    assert!(!service.stderr().contains("sesame"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_collector_slows_nothing_and_is_told_of_once() {
    let (redis, receiver, collector) = (RedisServer::start().await, Receiver::start().await, Receiver::start().await);
    // it takes the connection and never answers: worse than one that refuses
    let gate = crate::support::Gate::new();
    collector.on("/v1/traces", Answer::status(200).held_by(&gate));
    let mut service = traced(&redis, &collector.url(""))
        .env("OTEL_BSP_SCHEDULE_DELAY", "10")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "8")
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
        .start()
        .await;
    let api = service.client();
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    for n in 0..100 {
        post(&service, Some(PARENT), &format!("t{n}")).await;
    }
    receiver.wait_for(100, secs(20)).await;
    eventually(secs(10), async || service.stderr().contains("traces are lost")).await;
    // more calls fail, and no more is said
    let calls = collector.count();
    for n in 0..4 {
        post(&service, Some(PARENT), &format!("more{n}")).await;
        collector.wait_for(calls + n, secs(20)).await;
    }
    receiver.wait_for_task("more3", secs(10)).await;
    assert!(spans(&collector).len() < 150, "of 208 spans those that did not fit were dropped");

    let before = now_ms();
    service.sigterm();
    assert!(service.wait_exit(secs(20)).await.success());
    assert!(now_ms() - before < 15_000, "the stop waited for the collector: {} ms", now_ms() - before);
    assert_eq!(service.stderr().matches("traces are lost").count(), 1, "{}", service.stderr());
    gate.open();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_unless_the_standard_variables_ask_for_it() {
    let (redis, collector) = (RedisServer::start().await, Receiver::start().await);
    for (name, text) in
        [("OTEL_SDK_DISABLED", "true"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_TRACES_SAMPLER", "always_off")]
    {
        let mut service = traced(&redis, &collector.url("")).env(name, text).start().await;
        post(&service, None, &format!("{name}-{}", now_ms())).await;
        service.sigterm();
        assert!(service.wait_exit(secs(20)).await.success());
        assert_eq!(collector.count(), 0, "{name}={text}");
        assert_eq!(service.stderr().contains("no traces"), name.ends_with("PROTOCOL"), "{}", service.stderr());
    }
}
