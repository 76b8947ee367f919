//! Tasks: what is taken, what is refused, and by which words.

use axum::{body::Body, http::Request};
use serde_json::{Value, json};

use super::{Answer, It};

const TASKS: &str = "/queues/q/tasks";

#[tokio::test]
async fn a_task_is_answered_as_the_contract_shows_it() {
    let it = It::start().await;
    let body = r#"{ "id": "order-1042", "payload": {"b" : 1.0, "a":[ ] , "b":2}, "delay": "PT30M",
        "retry": {"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "1m30s"}}, "timeout": "10s",
        "expires_after": "1h", "headers": {"X-Tenant": "acme"} }"#;

    let made = it.post(TASKS, body).await.expect(201);

    assert_eq!(made.header("location"), "/queues/q/tasks/order-1042");
    let task = made.json();
    assert_eq!(task["next_attempt_at"], task["run_at"]);
    let mut fields: Vec<&String> = task.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(
        fields,
        [
            "attempt",
            "cancelling",
            "created_at",
            "ended_at",
            "expires_at",
            "id",
            "max_attempts",
            "next_attempt_at",
            "queue",
            "reason",
            "retry",
            "run_at",
            "state",
            "timeout",
            "uid"
        ]
    );
    assert_eq!((&task["state"], &task["attempt"], &task["max_attempts"]), (&json!("scheduled"), &json!(0), &json!(5)));
    assert_eq!((&task["ended_at"], &task["reason"]), (&Value::Null, &Value::Null));
    let backoff = json!({"kind": "fixed", "delay": "1m30s", "jitter": 0.2});
    assert_eq!((&task["retry"], &task["timeout"]), (&json!({"max_attempts": 5, "backoff": backoff}), &json!("10s")));
    let text = made.text();
    assert!(text.starts_with(r#"{"id":"order-1042","uid":"0"#), "the order is that of the contract: {text}");

    let read = it.get("/queues/q/tasks/order-1042").await.expect(200);
    assert!(read.text().contains(r#""payload":{"b" : 1.0, "a":[ ] , "b":2}"#), "{}", read.text());
    assert_eq!(read.json()["headers"], json!({"X-Tenant": "acme"}));
    assert_eq!((&read.json()["attempts"], &read.json()["webhooks"]), (&json!([]), &Value::Null));

    let again = it.post(TASKS, body).await.expect(200);
    assert_eq!((again.header("duepost-replayed"), again.text()), ("true", text));
    let other = it.post(TASKS, r#"{"id":"order-1042","payload":1}"#).await.problem(409, "task-exists");
    assert_eq!((&other["state"], &other["task"]), (&json!("scheduled"), &task));
}

#[tokio::test]
async fn every_bad_field_is_named() {
    let it = It::start().await;
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let headers = |h: &str| format!(r#""headers":{h}"#);
    for (fields, named) in [
        (r#""dealy":"1h""#, "dealy"),
        (r#""Delay":"1h""#, "Delay"),
        (r#""delay":null"#, "delay"),
        (r#""delay":3600"#, "delay"),
        (r#""delay":"3600""#, "delay"),
        (r#""delay":"1h","delay":"1h""#, "delay"),
        (r#""delay":"3651d""#, "delay"),
        (r#""delay_ms":"1""#, "delay_ms"),
        (r#""delay_ms":-1"#, "delay_ms"),
        (r#""delay_ms":2000.5"#, "delay_ms"),
        (r#""delay_ms":1e3"#, "delay_ms"),
        (r#""delay_ms":99999999999999999999"#, "delay_ms"),
        (r#""run_at":12"#, "run_at"),
        (r#""run_at":"9999-12-31T23:59:59Z""#, "run_at"),
        (r#""run_at":"2030-01-01T00:00:00Z","delay":"1h""#, "run_at"),
        (r#""delay_ms":1,"delay":"x""#, "delay_ms"),
        (r#""id":"""#, "id"),
        (r#""id":"a\u0000b""#, "id"),
        (r#""id":"\ud800""#, "id"),
        (r#""id":7"#, "id"),
        (r#""timeout":"1ms""#, "timeout"),
        (r#""timeout":"2h""#, "timeout"),
        (r#""expires_after":"0s""#, "expires_after"),
        (r#""delay":"1h","expires_after":"1h""#, "expires_after"),
        (r#""run_at":"2030-01-01T00:00:00Z","expires_at":"2030-01-01T00:00:00Z""#, "expires_at"),
        (r#""expires_at":"2020-01-01T00:00:00Z""#, "expires_at"),
        (r#""expires_after":"9999d""#, "expires_after"),
        (r#""expires_after":"1h","expires_at":"2030-01-01T00:00:00Z""#, "expires_at"),
        (r#""retry":{"max_attempts":0}"#, "retry.max_attempts"),
        (r#""retry":{"max_attempts":10001}"#, "retry.max_attempts"),
        (r#""retry":{"max_attempts":1,"max_attempts":2}"#, "retry.max_attempts"),
        (r#""retry":{"max_attempts":null}"#, "retry.max_attempts"),
        (r#""retry":{"maxAttempts":1}"#, "retry.maxAttempts"),
        (r#""retry":null"#, "retry"),
        (r#""retry":[]"#, "retry"),
        (r#""retry":{"backoff":{}}"#, "retry.backoff.kind"),
        (r#""retry":{"backoff":{"kind":"linear"}}"#, "retry.backoff.kind"),
        (r#""retry":{"backoff":{"kind":"fixed"}}"#, "retry.backoff.delay"),
        (r#""retry":{"backoff":{"kind":"fixed","delay":"1s","base":"1s"}}"#, "retry.backoff.base"),
        (r#""retry":{"backoff":{"kind":"fixed","delay":"31d"}}"#, "retry.backoff.delay"),
        (r#""retry":{"backoff":{"kind":"schedule"}}"#, "retry.backoff.delays"),
        (r#""retry":{"backoff":{"kind":"schedule","delays":[]}}"#, "retry.backoff.delays"),
        (r#""retry":{"backoff":{"kind":"schedule","delays":["1s",1]}}"#, "retry.backoff.delays"),
        (r#""retry":{"backoff":{"kind":"exponential","base":"1m","max":"1s"}}"#, "retry.backoff.max"),
        (r#""retry":{"backoff":{"kind":"exponential","factor":0.5}}"#, "retry.backoff.factor"),
        (r#""retry":{"backoff":{"kind":"exponential","factor":"2"}}"#, "retry.backoff.factor"),
        (r#""retry":{"backoff":{"kind":"exponential","jitter":1.1}}"#, "retry.backoff.jitter"),
        (&headers(r#"{"Host":"x"}"#), "headers.Host"),
        (&headers(r#"{"a":"1","A":"2"}"#), "headers.A"),
        (&headers(r#"{"a":1}"#), "headers.a"),
        (&headers(r#"{"a":"\n"}"#), "headers.a"),
        (&headers("[]"), "headers"),
    ] {
        it.post(TASKS, format!(r#"{{"payload":1,{fields}}}"#)).await.refuses(named);
    }
    it.post(TASKS, "{}").await.refuses("payload");
    for n in [129, 20_000] {
        it.post(TASKS, format!(r#"{{"payload":{}}}"#, deep(n))).await.refuses("payload");
    }
    it.post(TASKS, format!(r#"{{"payload":{}}}"#, deep(200_000))).await.problem(413, "too-large");
    it.post(TASKS, format!(r#"{{"payload":1,"delay":{}}}"#, deep(20_000))).await.refuses("delay");
    it.post(TASKS, format!(r#"{{"payload":1,"retry":{}}}"#, deep(20_000))).await.refuses("retry");

    let all = it.post(TASKS, r#"{"x":1,"delay":1,"retry":{"y":2}}"#).await.problem(400, "invalid-request");
    let fields: Vec<&str> = all["errors"].as_array().unwrap().iter().map(|e| e["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["payload", "delay", "retry.y", "x"]);
    it.get("/queues/q").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn what_is_not_a_json_object_is_refused_with_its_place() {
    let it = It::start().await;
    for (body, told) in [
        ("{\"payload\":1", "line 1 column 12"),
        ("{\"payload\":1} x", "line 1 column 15"),
        ("\u{feff}{}", "line 1"),
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{\"payload\":NaN}", "line 1"),
        ("{\"payload\":\"a\0b\"}", "line 1"),
    ] {
        let problem = it.post(TASKS, body).await.problem(400, "invalid-request");
        assert!(problem["detail"].as_str().unwrap().contains(told), "{body}: {problem}");
    }
    let typed = |body: &'static [u8]| {
        Request::post(TASKS).header("content-type", "application/json").body(Body::from(body)).unwrap()
    };
    it.send(typed(b"")).await.problem(400, "invalid-request");
    it.send(typed(b"{\"payload\":\"\xff\"}")).await.problem(400, "invalid-request");
}

#[tokio::test]
async fn a_body_is_plain_json_in_utf8() {
    let it = It::start().await;
    let send = |headers: &[(&str, &str)]| {
        let mut request = Request::post(TASKS);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        it.send(request.body(Body::from(r#"{"payload":1}"#)).unwrap())
    };
    let json = ("content-type", "application/json");
    for fine in ["application/json", "Application/JSON; charset=\"UTF-8\"", "application/json;x=y; charset=utf-8"] {
        send(&[("content-type", fine)]).await.expect(201);
    }
    send(&[json, ("content-encoding", "identity")]).await.expect(201);
    for bad in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", ""] {
        send(&[("content-type", bad)]).await.problem(415, "unsupported-media-type");
    }
    send(&[]).await.problem(415, "unsupported-media-type");
    send(&[json, json]).await.problem(415, "unsupported-media-type");
    send(&[json, ("content-encoding", "gzip")]).await.problem(415, "unsupported-media-type");
}

#[tokio::test]
async fn sizes_are_413() {
    let it = It::start().await;
    let of = |bytes: usize| format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes - 2));
    it.post(TASKS, of(256 << 10)).await.expect(201);
    it.post(TASKS, of((256 << 10) + 1)).await.problem(413, "too-large");
    let huge = it.post(TASKS, of(1 << 20)).await;
    huge.problem(413, "too-large");
    assert_eq!(huge.header("connection"), "close");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let it = It::start().await;
    let never = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let request = Request::post(TASKS).header("content-type", "application/json");
    tokio::time::pause();
    let answer = it.send(request.body(Body::from_stream(never)).unwrap()).await;
    answer.problem(408, "request-timeout");
    assert_eq!(answer.header("connection"), "close");
}

#[tokio::test]
async fn the_trace_of_the_request_is_kept_if_it_is_one() {
    let it = It::start().await;
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (id, value, kept) in [
        ("a", good, true),
        ("b", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
        ("c", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", false),
        ("d", "nonsense", false),
    ] {
        let request = Request::post(TASKS).header("content-type", "application/json").header("traceparent", value);
        it.send(request.body(Body::from(format!(r#"{{"id":"{id}","payload":1}}"#))).unwrap()).await.expect(201);
        let queue = crate::domain::id::QueueName::parse("q").unwrap();
        let found = it.store.get(&queue, &crate::domain::id::TaskId::parse(id).unwrap()).await.unwrap();
        let crate::store::Found::Here(task) = found else { panic!("{id} is not there") };
        assert_eq!(task.options.traceparent.as_deref(), kept.then_some(value));
    }
}

#[tokio::test]
async fn names_in_paths_are_decoded_once_and_checked() {
    let it = It::start().await;
    it.post("/queues/%71/tasks", r#"{"id":"a:b","payload":1}"#).await.expect(201);
    for path in ["/queues/q/tasks/a:b", "/queues/q/tasks/a%3Ab", "/queues/q/tasks/%61%3ab"] {
        assert_eq!(it.get(path).await.expect(200).json()["id"], "a:b");
    }
    for id in ["a%2Fb", "a%252Fb", "%2E%2E", "a%20b", "%zz", "%", "%FF", "%C3%A9", "%00", ".", "..", &"x".repeat(129)] {
        for method in ["GET", "DELETE"] {
            it.call(method, &format!("/queues/q/tasks/{id}"), "").await.problem(400, "invalid-request");
        }
        it.get(&format!("/queues/{id}/stats")).await.problem(400, "invalid-request");
    }
    it.get("/queues/_q/stats").await.refuses("queue");
    it.get("/queues/q/tasks/c").await.problem(404, "task-not-found");
    it.get("/queues/r/tasks/c").await.problem(404, "queue-not-found");
    it.call("DELETE", "/queues/r/tasks/c", "").await.problem(404, "queue-not-found");
    assert_eq!(it.get("/queues").await.expect(200).json()["items"].as_array().unwrap().len(), 1);
}

async fn walk(it: &It, path: &str) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = it.get(&format!("{path}{cursor}")).await.expect(200).json();
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}

#[tokio::test]
async fn lists_walk_by_time_then_id_and_refuse_what_they_do_not_know() {
    let it = It::start().await;
    for n in 0..25 {
        let body = json!({"id": format!("t{n:02}"), "payload": n, "run_at": format!("2031-01-01T00:00:{:02}Z", n / 5)});
        it.post(TASKS, body).await.expect(201);
    }
    let ids = |items: Vec<Value>| items.iter().map(|t| t["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let all: Vec<String> = (0..25).map(|n| format!("t{n:02}")).collect();
    for limit in [1, 7, 25, 1000] {
        assert_eq!(ids(walk(&it, &format!("{TASKS}?limit={limit}")).await), all, "{limit}");
    }
    let full = walk(&it, &format!("{TASKS}?limit=2&full=true")).await;
    assert_eq!((&full[3]["payload"], &full[3]["attempts"]), (&json!(3), &json!([])));
    assert!(
        full[3].get("webhooks").is_none() && walk(&it, &format!("{TASKS}?limit=2")).await[3].get("payload").is_none()
    );
    assert_eq!(ids(walk(&it, &format!("{TASKS}?state=dead")).await), [""; 0]);

    let cursor = it.get(&format!("{TASKS}?limit=1")).await.json()["next_cursor"].as_str().unwrap().to_owned();
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=%2B1", "limit"),
        ("limit=1&limit=1", "limit"),
        ("state=waiting", "state"),
        ("full=1", "full"),
        ("cursor=x", "cursor"),
        ("Limit=1", "Limit"),
        (&format!("state=dead&cursor={cursor}"), "cursor"),
    ] {
        it.get(&format!("{TASKS}?{query}")).await.refuses(field);
    }
    it.get("/queues/q/tasks/t01?full=true").await.refuses("full");
    it.get("/queues/nowhere/tasks").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn a_cancelled_task_stays_cancelled_and_frees_its_id() {
    let it = It::start().await;
    let body = r#"{"id":"x","payload":1,"delay":"1h"}"#;
    it.post(TASKS, body).await.expect(201);
    let path = "/queues/q/tasks/x";
    let done = it.call("DELETE", path, "").await.expect(200).json();
    assert_eq!(
        (&done["state"], &done["next_attempt_at"], &done["cancelling"]),
        (&json!("cancelled"), &Value::Null, &json!(false))
    );
    assert!(done["ended_at"].is_string());
    assert_eq!(it.call("DELETE", path, "").await.expect(200).json(), done);
    it.post(TASKS, body).await.expect(201);
    it.call("DELETE", "/queues/q/tasks/y", "").await.problem(404, "task-not-found");
}

#[tokio::test]
async fn an_attempt_under_way_makes_a_cancel_a_promise() {
    let it = It::start().await;
    it.post("/queues/q/webhooks", r#"{"url":"https://shop.example/hook"}"#).await.expect(201);
    it.post(TASKS, r#"{"id":"x","payload":1}"#).await.expect(201);
    let queue = crate::domain::id::QueueName::parse("q").unwrap();
    let lease = std::time::Duration::from_secs(30);
    let visit = crate::store::Visit { tasks: 1, bytes: 1 << 20, lease, kind: crate::store::ClaimKind::Push };
    assert_eq!(it.store.visit(&queue, visit).await.unwrap().claims.len(), 1);

    let answer = it.call("DELETE", "/queues/q/tasks/x", "").await.expect(202).json();

    assert_eq!(
        (&answer["state"], &answer["cancelling"], &answer["attempt"]),
        (&json!("active"), &json!(true), &json!(1))
    );
    assert_eq!(it.post(TASKS, r#"{"id":"x","payload":2}"#).await.problem(409, "task-active")["state"], "active");
}

#[tokio::test]
async fn a_full_queue_and_a_lost_redis_have_their_own_words() {
    let mut it = It::start().await;
    it.call("PUT", "/queues/q", r#"{"max_size":1}"#).await.expect(201);
    it.post(TASKS, r#"{"id":"x","payload":1,"delay":"1h"}"#).await.expect(201);
    it.post(TASKS, r#"{"payload":1}"#).await.problem(429, "queue-full");
    it.post(TASKS, r#"{"id":"x","payload":1,"delay":"1h"}"#).await.expect(200);

    it.redis.kill();
    let lost: Answer = it.post(TASKS, r#"{"id":"y","payload":1}"#).await;
    if lost.json()["type"] == "/problems/outcome-unknown" {
        assert_eq!(lost.problem(503, "outcome-unknown")["task_id"], "y");
    } else {
        lost.problem(503, "unavailable");
    }
    it.get("/queues/q/tasks").await.problem(503, "unavailable");
    it.get("/queues").await.problem(503, "unavailable");
    it.get("/readyz").await.problem(503, "unavailable");
    it.get("/livez").await.expect(200);
    it.get("/metrics").await.expect(200);
}
