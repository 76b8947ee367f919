//! The bounds of the contract, at, below and above.

use serde_json::{Value, json};

use crate::support::World;

/// `{"a.b": x}` as `{"a": {"b": x}}`, around it `base`.
fn set(mut base: Value, path: &str, value: Value) -> Value {
    let mut place = &mut base;
    for part in path.split('.') {
        place = &mut place[part];
    }
    *place = value;
    base
}

/// A field with what is let in and what is not.
type Bound<'a> = (&'a str, Vec<Value>, Vec<Value>);

fn texts(values: &[&str]) -> Vec<Value> {
    values.iter().map(|text| (*text).into()).collect()
}

fn retry_bounds() -> Vec<Bound<'static>> {
    let delays = |n: usize| json!(vec!["1s"; n]);
    vec![
        ("timeout", texts(&["100ms", "1h"]), texts(&["99ms", "3600001ms"])),
        ("retry.max_attempts", vec![json!(1), json!(10_000)], vec![json!(0), json!(10_001), json!(-1), json!(1.5)]),
        (
            "retry.backoff",
            vec![
                json!({"kind": "fixed", "delay": "1ms"}),
                json!({"kind": "fixed", "delay": "30d"}),
                json!({"kind": "exponential", "factor": 1}),
                json!({"kind": "exponential", "factor": 100}),
                json!({"kind": "exponential", "jitter": 0}),
                json!({"kind": "exponential", "jitter": 1}),
                json!({"kind": "exponential", "base": "30d", "max": "30d"}),
                json!({"kind": "schedule", "delays": delays(1)}),
                json!({"kind": "schedule", "delays": delays(100)}),
            ],
            vec![
                json!({"kind": "fixed", "delay": "0ms"}),
                json!({"kind": "fixed", "delay": "2592000001ms"}),
                json!({"kind": "exponential", "factor": 0.99}),
                json!({"kind": "exponential", "factor": 100.01}),
                json!({"kind": "exponential", "jitter": -0.01}),
                json!({"kind": "exponential", "jitter": 1.01}),
                json!({"kind": "exponential", "max": "2592000001ms"}),
                json!({"kind": "schedule", "delays": delays(0)}),
                json!({"kind": "schedule", "delays": delays(101)}),
            ],
        ),
    ]
}

#[tokio::test]
async fn fields_of_a_task() {
    let it = World::start().await;
    let mut bounds = retry_bounds();
    let headers = |n: usize| Value::from_iter((0..n).map(|i| (format!("x-{i}"), json!("v"))));
    let heavy = |n: usize| json!({"x-a": "v".repeat(n - 3)});
    bounds.push(("headers", vec![headers(32), heavy(8192)], vec![headers(33), heavy(8193)]));
    bounds.push(("id", texts(&["a", &"a".repeat(128)]), texts(&["", &"a".repeat(129)])));
    let mut count = 0;
    for (field, fine, wrong) in bounds {
        for value in fine {
            count += 1;
            let path = format!("/queues/q{count}/tasks");
            it.api.post(&path, set(json!({"payload": 1, "delay": "1h"}), field, value)).await.expect(201);
        }
        for value in wrong {
            let body = set(json!({"payload": 1, "delay": "1h"}), field, value.clone());
            let problem = it.api.post("/queues/q/tasks", body).await.problem(400, "invalid-request");
            let named = problem["errors"][0]["field"].as_str().unwrap_or_default();
            assert!(named.starts_with(field), "{field} = {value}: {problem}");
        }
    }
}

#[tokio::test]
async fn settings_of_a_queue() {
    let it = World::start().await;
    let mut bounds = retry_bounds();
    let rate = |limit: u64, per: &str, burst: u64| json!({"limit": limit, "per": per, "burst": burst});
    bounds.extend([
        ("max_in_flight", vec![json!(1), json!(100_000)], vec![json!(0), json!(100_001)]),
        ("max_size", vec![json!(1), json!(1_000_000_000)], vec![json!(0), json!(1_000_000_001)]),
        ("retain_completed", texts(&["0s", "3650d"]), texts(&["315360000001ms"])),
        ("retain_dead", texts(&["0s", "3650d"]), texts(&["315360000001ms"])),
        ("retain_completed_max", vec![json!(0), json!(10_000_000)], vec![json!(10_000_001), json!(-1)]),
        (
            "rate",
            vec![rate(1, "100ms", 1), rate(1_000_000, "1d", 1_000_000)],
            vec![
                rate(0, "1s", 1),
                rate(1_000_001, "1s", 1),
                rate(1, "99ms", 1),
                rate(1, "86400001ms", 1),
                rate(1, "1s", 0),
            ],
        ),
    ]);
    for (field, fine, wrong) in bounds {
        for value in fine {
            let answer = it.api.put("/queues/q", set(json!({}), field, value.clone())).await;
            assert!([200, 201].contains(&answer.status), "{field} = {value}: {}", answer.text());
        }
        for value in wrong {
            let problem =
                it.api.put("/queues/q", set(json!({}), field, value.clone())).await.problem(400, "invalid-request");
            let named = problem["errors"][0]["field"].as_str().unwrap_or_default();
            assert!(named.starts_with(field), "{field} = {value}: {problem}");
        }
    }
}

#[tokio::test]
async fn sizes_of_bodies_and_payloads() {
    let it = World::start().await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let send = async |payload: &str, rest: usize| {
        let body = format!("{{\"delay\":\"1h\",\"payload\":{payload}{}}}", " ".repeat(rest));
        it.api.post("/queues/q/tasks", body).await
    };
    let (payload, surplus) = (256 << 10, 64 << 10);
    send(&text(payload), 0).await.expect(201);
    send(&text(payload + 1), 0).await.problem(413, "too-large");
    let around = "{\"delay\":\"1h\",\"payload\":}".len();
    send(&text(payload), surplus - around).await.expect(201);
    send(&text(payload), surplus - around + 1).await.problem(413, "too-large");
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    send(&nested(128), 0).await.expect(201);
    send(&nested(129), 0).await.refuses("payload");
}

#[tokio::test]
async fn webhooks_of_a_queue() {
    let it = World::start().await;
    let secret = |bytes: usize| {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        format!("whsec_{}", STANDARD.encode(vec![7; bytes]))
    };
    let url = |length: usize| {
        let start = "http://127.0.0.1:9/";
        format!("{start}{}", "x".repeat(length - start.len()))
    };
    let mut count = 0;
    for (field, fine, wrong) in [
        ("secret", vec![secret(24).into(), secret(64).into()], vec![secret(23).into(), secret(65).into()]),
        ("url", vec![url(2048).into()], vec![url(2049).into()]),
        ("timeout", texts(&["100ms", "1h"]), texts(&["99ms", "3600001ms"])),
        ("max_in_flight", vec![json!(1), json!(100_000)], vec![json!(0), json!(100_001)]),
    ] {
        let mut body = |value: &Value| {
            count += 1;
            set(json!({"url": format!("http://127.0.0.1:9/{count}")}), field, value.clone())
        };
        for value in fine {
            it.api.post("/queues/q/webhooks", body(&value)).await.expect(201);
        }
        for value in wrong {
            it.api.post("/queues/q/webhooks", body(&value)).await.refuses(field);
        }
    }
    for n in 0..100 {
        it.api.post("/queues/full/webhooks", json!({"url": format!("http://127.0.0.1:9/{n}")})).await.expect(201);
    }
    it.api
        .post("/queues/full/webhooks", json!({"url": "http://127.0.0.1:9/more"}))
        .await
        .problem(400, "invalid-request");
}
