//! Real cases, group B: payloads reach the receiver byte for byte.

use serde_json::{Value, json};

use crate::support::{Answer, World, secs};

/// A retry that comes soon, so that a second attempt can be compared with the first.
const SOON: &str = r#"{"max_attempts":3,"backoff":{"kind":"fixed","delay":"50ms","jitter":0}}"#;

/// Sends each payload through POST, a failed attempt, a retry, GET and the full list, and compares the bytes.
async fn assert_unchanged(payloads: &[&str]) {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.when(|request| request.attempt() == 1, Answer::status(500));
    for (n, payload) in payloads.iter().enumerate() {
        let body = format!(r#"{{"id":"t{n}","payload":{payload},"retry":{SOON}}}"#);
        it.schedule("q", body).await;
    }

    it.receiver.wait_for(2 * payloads.len(), secs(10)).await;
    for (n, payload) in payloads.iter().enumerate() {
        let id = format!("t{n}");
        it.in_state("q", &id, "completed").await;
        let bodies: Vec<String> = it.receiver.of_task(&id).iter().map(|request| request.text()).collect();
        assert_eq!(bodies, [*payload, *payload], "attempt 1 and its retry");
        let read = it.api.get(&format!("/queues/q/tasks/{id}")).await.expect(200);
        assert_eq!(read.raw_field("payload").as_deref(), Some(*payload), "GET");
    }
    let list = it.api.get("/queues/q/tasks?state=completed&full=true").await.expect(200).text();
    for payload in payloads {
        assert!(list.contains(payload), "{payload} is not in the list: {list}");
    }
}

#[tokio::test]
async fn c026_empty_arrays_stay_arrays() {
    assert_unchanged(&[r#"{"a":[],"b":{},"c":[[]],"d":[{}]}"#, "[]", "{}", "[[],{}]"]).await;
}

#[tokio::test]
async fn c029_numbers_keep_their_text() {
    assert_unchanged(&[
        "[1.0, 1e2, 1E+2, -0.0, 0.10, 5e-324, 1.7976931348623157e308, 9007199254740991.0]",
        "[9007199254740993, 123456789012345678901234567890, 1e400, -1E-400]",
        "-0",
    ])
    .await;
}

#[tokio::test]
async fn c030_the_order_of_keys_stays() {
    assert_unchanged(&[r#"{"z":1,"a":{"y":1,"b":2},"B":3,"10":4,"9":5}"#, "{ \"b\" : 1 ,\n\t\"a\" : [ 1 , 2 ] }"])
        .await;
}

#[tokio::test]
async fn c031_duplicate_keys_pass_inside_and_are_refused_outside() {
    assert_unchanged(&[r#"{"a":1,"a":2}"#, r#"{"o":{"k":[],"k":{}}}"#]).await;

    let it = World::start().await;
    it.webhook("q", "/hook").await;
    for (body, field) in [
        (r#"{"payload":1,"delay":"1s","delay":"1h"}"#, "delay"),
        (r#"{"payload":1,"id":"a","id":"b"}"#, "id"),
        (r#"{"payload":1,"payload":2}"#, "payload"),
        (r#"{"payload":1,"retry":{"max_attempts":1,"max_attempts":2}}"#, "retry.max_attempts"),
    ] {
        it.api.post("/queues/q/tasks", body).await.refuses(field);
    }
    it.sentinel("q", "sentinel").await;
    assert_eq!(it.receiver.count(), 1);
}

#[tokio::test]
async fn c032_deep_nesting_is_delivered_or_refused() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let arrays = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let mixed = |depth: usize| {
        let open: String = (0..depth).map(|n| if n % 2 == 0 { "[" } else { r#"{"a":"# }).collect();
        let close: String = (0..depth).rev().map(|n| if n % 2 == 0 { "]" } else { "}" }).collect();
        format!("{open}1{close}")
    };
    let forms: [&dyn Fn(usize) -> String; 3] = [&arrays, &objects, &mixed];

    let mut accepted = 0;
    for form in forms {
        for depth in [100, 127, 128] {
            let id = format!("t{accepted}");
            it.schedule("q", format!(r#"{{"id":"{id}","payload":{}}}"#, form(depth))).await;
            let request = it.receiver.wait_for_task(&id, secs(5)).await;
            assert_eq!(request.text(), form(depth));
            let read = it.api.get(&format!("/queues/q/tasks/{id}")).await.expect(200);
            assert_eq!(read.raw_field("payload"), Some(form(depth)));
            accepted += 1;
        }
        for depth in [129, 1000] {
            let body = format!(r#"{{"payload":{}}}"#, form(depth));
            it.api.post("/queues/q/tasks", body).await.refuses("payload");
        }
        let huge = it.api.post("/queues/q/tasks", format!(r#"{{"payload":{}}}"#, form(200_000))).await;
        match huge.status {
            413 => huge.problem(413, "too-large"),
            _ => huge.problem(400, "invalid-request"),
        };
        for depth in [129, 20_000] {
            let body = format!(r#"{{"url":{}}}"#, form(depth));
            it.api.post("/queues/q/webhooks", body).await.problem(400, "invalid-request");
        }
    }

    it.api.get("/livez").await.expect(200);
    it.sentinel("q", "sentinel").await;
    assert_eq!(it.receiver.count(), accepted + 1);
}

#[tokio::test]
async fn c033_lone_surrogates_are_json_and_pass() {
    // Any text that the grammar of JSON allows is a payload; only a reader that builds strings would mind.
    assert_unchanged(&[
        r#"{"s":"\ud83d"}"#,
        r#"{"s":"\ude00\ud83d"}"#,
        r#"{"\ud800":1}"#,
        r#"{"s":"\ud83d\ude00","t":"😀"}"#,
    ])
    .await;
}

#[tokio::test]
async fn c034_nul_passes_as_an_escape_and_only_there() {
    let thousand = format!(r#""{}""#, r"\u0000".repeat(1000));
    assert_unchanged(&[r#"{"v":"a\u0000b"}"#, r#"{"k\u0000k":1}"#, r#""\u0000""#, &thousand]).await;

    let it = World::start().await;
    it.api.post("/queues/q/tasks", r#"{"id":"a\u0000b","payload":1}"#).await.refuses("id");
    for body in [&b"{\"payload\":\"a\x00b\"}"[..], b"{\"payload\":1}\x00", b"\x00{\"payload\":1}"] {
        it.api.post("/queues/q/tasks", body.to_vec()).await.problem(400, "invalid-request");
    }
}

#[tokio::test]
async fn payloads_of_every_kind_and_up_to_the_limit_are_delivered() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let limit = 256 * 1024;
    let largest = format!(r#""{}""#, "x".repeat(limit - 2));
    let kinds = ["null", "true", "0", r#""""#, r#""é\u00e9\/""#, &largest];

    for (n, payload) in kinds.iter().enumerate() {
        it.schedule("q", format!(r#"{{"id":"t{n}","payload": {payload} }}"#)).await;
        let request = it.receiver.wait_for_task(&format!("t{n}"), secs(5)).await;
        assert!(request.body == payload.as_bytes(), "t{n}: {} bytes came", request.body.len());
    }

    let too_large = format!(r#"{{"payload":"{}"}}"#, "x".repeat(limit - 1));
    it.api.post("/queues/q/tasks", too_large).await.problem(413, "too-large");
}

#[tokio::test]
async fn a_delivery_carries_the_headers_of_the_contract() {
    let it = World::start().await;
    let secret =
        it.webhook_with("q", "/hook?a=1", json!({"headers": {"x-from": "webhook", "x-both": "webhook"}})).await;
    let body = json!({"id": "t", "payload": {"a": 1}, "delay_ms": 100, "headers": {"x-both": "task"}});
    let task = it.schedule("q", body).await;

    let request = it.receiver.wait_for_task("t", secs(5)).await;

    let header = |name: &str| request.header(name).unwrap_or_else(|| panic!("no {name} in {}", request.head));
    assert_eq!((request.method(), request.path()), ("POST", "/hook?a=1"));
    assert_eq!(header("content-type"), "application/json");
    assert!(header("user-agent").starts_with("duepost/"));
    assert_eq!(Value::from(header("webhook-id")), task["uid"]);
    assert_eq!((header("duepost-queue"), header("duepost-attempt")), ("q", "1"));
    assert_eq!(Value::from(header("duepost-run-at")), task["run_at"]);
    assert_eq!((header("x-from"), header("x-both")), ("webhook", "task"));
    let stamp: i64 = header("webhook-timestamp").parse().expect("unix seconds");
    assert!((request.at_ms / 1000 - stamp).abs() <= 1, "{stamp} at {}", request.at_ms);
    assert!(request.signature_ok(&secret));
    it.in_state("q", "t", "completed").await;
}
