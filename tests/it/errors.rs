//! Every refusal has one form: `application/problem+json` with a stable type, and it names what was wrong.

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::{World, secs};

/// Goes on only with a 400 that names this field or one below it.
#[track_caller]
fn refuses_below(problem: &Value, field: &str) {
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("no errors in {problem}"));
    let named = errors.iter().filter_map(|e| e["field"].as_str()).any(|f| f.starts_with(field));
    assert!(named, "{field} is not named in {problem}");
}

#[tokio::test]
async fn an_unknown_route_is_not_found() {
    let it = World::start().await;
    it.schedule("q", json!({"payload": 1, "delay": "1h"})).await;
    for path in ["/", "/nowhere", "/queue/q", "/queues/q/nothing", "/queues/q/tasks/a/b/c", "/v1/queues"] {
        it.api.get(path).await.problem(404, "not-found");
        it.api.post(path, "{}").await.problem(404, "not-found");
    }
}

#[tokio::test]
async fn what_is_not_there_is_named_by_its_type() {
    let it = World::start().await;
    it.schedule("q", json!({"payload": 1, "delay": "1h"})).await;
    for path in
        ["/queues/none", "/queues/none/stats", "/queues/none/tasks", "/queues/none/tasks/t", "/queues/none/webhooks"]
    {
        it.api.get(path).await.problem(404, "queue-not-found");
    }
    it.api.delete("/queues/none/tasks/t").await.problem(404, "queue-not-found");
    it.api.patch("/queues/none", json!({"timeout": "5s"})).await.problem(404, "queue-not-found");
    it.api.get("/queues/q/tasks/none").await.problem(404, "task-not-found");
    it.api.delete("/queues/q/tasks/none").await.problem(404, "task-not-found");
    it.api.get("/queues/q/webhooks/none").await.problem(404, "webhook-not-found");
    it.api.patch("/queues/q/webhooks/none", json!({"enabled": true})).await.problem(404, "webhook-not-found");
    it.api.delete("/queues/q/webhooks/none").await.problem(404, "webhook-not-found");
    assert_eq!(it.api.get("/queues").await.json()["items"].as_array().map(Vec::len), Some(1), "asking creates nothing");
}

#[tokio::test]
async fn a_wrong_method_says_which_are_allowed() {
    let it = World::start().await;
    for (method, path, allowed) in [
        ("DELETE", "/queues", &["GET"][..]),
        ("POST", "/queues/q/stats", &["GET"]),
        ("PUT", "/queues/q/tasks", &["GET", "POST"]),
        ("POST", "/queues/q/tasks/t", &["GET", "DELETE"]),
        ("PATCH", "/queues/q/webhooks", &["GET", "POST"]),
        ("POST", "/queues/q/webhooks/w", &["GET", "PATCH", "DELETE"]),
        ("POST", "/livez", &["GET"]),
        ("TRACE", "/queues/q/tasks", &["GET", "POST"]),
        ("BREW", "/queues/q/tasks", &["GET", "POST"]),
    ] {
        let answer = it.api.raw_call(method, path, "{}").await;
        answer.problem(405, "method-not-allowed");
        let allow = answer.header("allow").unwrap_or_else(|| panic!("{method} {path}: no allow"));
        let names: Vec<&str> = allow.split(',').map(str::trim).collect();
        assert!(allowed.iter().all(|name| names.contains(name)), "{method} {path}: {allow}");
        assert!(!names.contains(&method), "{method} {path}: {allow}");
    }
}

#[tokio::test]
async fn only_plain_json_is_taken() {
    let it = World::start().await;
    let send = async |headers: &[(&str, &str)]| {
        let body = Some(r#"{"payload":1,"delay":"1h"}"#.into());
        it.api.request(Method::POST, "/queues/q/tasks", headers, body).await.expect("an answer")
    };
    for headers in [
        &[][..],
        &[("content-type", "text/plain")],
        &[("content-type", "application/x-www-form-urlencoded")],
        &[("content-type", "application/json"), ("content-encoding", "gzip")],
        &[("content-type", "application/json"), ("content-encoding", "br")],
        &[("content-type", "application/json"), ("content-encoding", "identity, deflate")],
    ] {
        send(headers).await.problem(415, "unsupported-media-type");
    }
    for media_type in ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"] {
        send(&[("content-type", media_type)]).await.expect(201);
    }
    // Where every field is optional the body may be left out, or be empty.
    it.api.request(Method::PUT, "/queues/a", &[], None).await.expect("an answer").expect(201);
    it.api.put("/queues/b", "").await.expect(201);
    it.api.post("/queues/q/tasks", "").await.problem(400, "invalid-request");
    let nothing = it.api.request(Method::POST, "/queues/q/tasks", &[], None).await.expect("an answer");
    assert!([400, 415].contains(&nothing.status), "{}", nothing.text());
}

#[tokio::test]
async fn a_large_body_gets_an_answer() {
    let it = World::start().await;
    for size in [400 * 1024, 8 * 1024 * 1024] {
        let body = format!(r#"{{"payload":"{}"}}"#, "x".repeat(size));
        it.api.raw_call("POST", "/queues/q/tasks", &body).await.problem(413, "too-large");
        it.api.raw_call("PUT", "/queues/q", &body).await.problem(413, "too-large");

        let head = "POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let chunked = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let answer = it.api.raw(chunked.as_bytes()).await;
        crate::support::ApiAnswer::parse(&answer).problem(413, "too-large");
    }
    it.api.get("/queues/q").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn every_bad_field_of_a_task_is_named() {
    let it = World::start().await;
    let retry = |retry: Value| json!({"payload": 1, "retry": retry});
    let backoff = |backoff: Value| retry(json!({"backoff": backoff}));
    let many: serde_json::Map<String, Value> = (0..33).map(|n| (format!("x-{n}"), "v".into())).collect();
    let refused = [
        (json!({"payload": 1, "priority": 5}), "priority"),
        (json!({"payload": 1, "Payload": 1}), "Payload"),
        (json!({"payload": 1, "id": null}), "id"),
        (json!({"payload": 1, "id": 7}), "id"),
        (json!({"payload": 1, "id": ".hidden"}), "id"),
        (json!({"payload": 1, "timeout": 30}), "timeout"),
        (json!({"payload": 1, "timeout": "50ms"}), "timeout"),
        (json!({"payload": 1, "timeout": "2h"}), "timeout"),
        (json!({"payload": 1, "timeout": null}), "timeout"),
        (json!({"payload": 1, "retry": null}), "retry"),
        (json!({"payload": 1, "retry": 3}), "retry"),
        (retry(json!({"max_atempts": 3})), "retry.max_atempts"),
        (retry(json!({"max_attempts": 10_001})), "retry.max_attempts"),
        (backoff(json!({"delay": "1s"})), "retry.backoff.kind"),
        (backoff(json!({"kind": "fixed"})), "retry.backoff.delay"),
        (backoff(json!({"kind": "fixed", "delay": "0s"})), "retry.backoff.delay"),
        (backoff(json!({"kind": "fixed", "delay": "1s", "base": "1s"})), "retry.backoff.base"),
        (backoff(json!({"kind": "linear"})), "retry.backoff.kind"),
        (backoff(json!({"kind": "schedule"})), "retry.backoff.delays"),
        (backoff(json!({"kind": "schedule", "delays": []})), "retry.backoff.delays"),
        (backoff(json!({"kind": "exponential", "jitter": 1.5})), "retry.backoff.jitter"),
        (backoff(json!({"kind": "exponential", "factor": 0.5})), "retry.backoff.factor"),
        (backoff(json!({"kind": "exponential", "base": "31d"})), "retry.backoff.base"),
        (backoff(json!({"kind": "exponential", "base": "10s", "max": "1s"})), "retry.backoff.max"),
        (json!({"payload": 1, "headers": null}), "headers"),
        (json!({"payload": 1, "headers": []}), "headers"),
        (json!({"payload": 1, "headers": many}), "headers"),
        (json!({"payload": 1, "expires_at": "2000-01-01T00:00:00Z"}), "expires_at"),
        (json!({"payload": 1, "delay": "1h", "expires_after": "1h"}), "expires_after"),
    ];
    for (body, field) in refused {
        it.api.post("/queues/q/tasks", body).await.refuses(field);
    }
    for name in
        ["host", "Content-Type", "transfer-encoding", "connection", "proxy-x", "user-agent", "webhook-id", "duepost-a"]
    {
        let answer = it.api.post("/queues/q/tasks", json!({"payload": 1, "headers": {name: "v"}})).await;
        refuses_below(&answer.problem(400, "invalid-request"), "headers");
    }
    for headers in [
        json!({"x-a": "1", "X-A": "2"}),
        json!({"x-a": "é"}),
        json!({"x-a": "a\nb"}),
        json!({"x a": "1"}),
        json!({"": "1"}),
    ] {
        let answer = it.api.post("/queues/q/tasks", json!({"payload": 1, "headers": headers})).await;
        refuses_below(&answer.problem(400, "invalid-request"), "headers");
    }
    it.api.get("/queues/q").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn every_bad_setting_and_webhook_field_is_named() {
    let it = World::start().await;
    for (settings, field) in [
        (json!({"max_sise": 1}), "max_sise"),
        (json!({"max_size": 0}), "max_size"),
        (json!({"timeout": null}), "timeout"),
        (json!({"timeout": "0s"}), "timeout"),
        (json!({"retain_completed": "3651d"}), "retain_completed"),
        (json!({"retain_completed": 3600}), "retain_completed"),
        (json!({"retain_completed_max": -1}), "retain_completed_max"),
        (json!({"retain_dead": "1w"}), "retain_dead"),
        (json!({"retry": {"backoff": {"kind": "fixed"}}}), "retry.backoff.delay"),
    ] {
        it.api.put("/queues/q", settings).await.refuses(field);
    }

    for url in [
        "",
        "/hook",
        "ftp://a.example/",
        "http://",
        "http://u:p@a.example/",
        "http://@a.example/",
        "http://a.example/#x",
        "http://a.example/ x",
    ] {
        it.api.post("/queues/q/webhooks", json!({"url": url})).await.refuses("url");
    }
    let long = format!("http://a.example/{}", "x".repeat(2048));
    it.api.post("/queues/q/webhooks", json!({"url": long})).await.refuses("url");
    let url = it.receiver.url("/");
    for (mut fields, field) in [
        (json!({"id": "a/b"}), "id"),
        (json!({"secret": "whsec_c2hvcnQ="}), "secret"),
        (json!({"secret": "whsec_***"}), "secret"),
        (json!({"enabled": "yes"}), "enabled"),
        (json!({"timeout": "1ms"}), "timeout"),
        (json!({"max_in_flight": 0}), "max_in_flight"),
        (json!({"uri": "x"}), "uri"),
    ] {
        fields["url"] = url.clone().into();
        let answer = it.api.post("/queues/q/webhooks", fields).await;
        answer.refuses(field);
        assert!(!answer.text().contains("c2hvcnQ"), "no secret in a refusal");
    }
    it.api.post("/queues/q/webhooks", json!({})).await.refuses("url");
    it.api.get("/queues/q").await.problem(404, "queue-not-found");

    it.webhook_with("q", "/", json!({"id": "main"})).await;
    for other in [json!({"url": it.receiver.url("/"), "id": "b"}), json!({"url": it.receiver.url("/2"), "id": "main"})]
    {
        let answer = it.api.post("/queues/q/webhooks", other).await;
        answer.problem(409, "webhook-exists");
        assert_eq!(answer.header("location"), Some("/queues/q/webhooks/main"));
    }
    it.api.patch("/queues/q/webhooks/main", json!({"enabld": false})).await.refuses("enabld");
}

#[tokio::test]
async fn query_parameters_are_known_and_given_once() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "t", "payload": 1, "delay": "1h"})).await;
    for (path, field) in [
        ("/queues/q/tasks?stat=dead", "stat"),
        ("/queues/q/tasks?state=lost", "state"),
        ("/queues/q/tasks?state=", "state"),
        ("/queues/q/tasks?limit=0", "limit"),
        ("/queues/q/tasks?limit=1001", "limit"),
        ("/queues/q/tasks?limit=ten", "limit"),
        ("/queues/q/tasks?limit=1&limit=2", "limit"),
        ("/queues/q/tasks?state=dead&state=dead", "state"),
        ("/queues/q/tasks?cursor=%00nonsense", "cursor"),
        ("/queues/q/tasks?full=maybe", "full"),
        ("/queues/q/tasks/t?full=true", "full"),
        ("/queues/q/stats?x=1", "x"),
        ("/queues?limit=-1", "limit"),
    ] {
        it.api.get(path).await.refuses(field);
    }
    it.api.post("/queues/q/tasks?delay=1h", json!({"payload": 1})).await.refuses("delay");
    it.api.delete("/queues/q/tasks/t?force=true").await.refuses("force");
    assert_eq!(it.task("q", "t").await["state"], "scheduled");
    it.api.get("/queues/q/tasks?state=scheduled&limit=1000&full=false").await.expect(200);
}

#[tokio::test]
async fn bad_names_are_refused_with_the_rule() {
    let it = World::start().await;
    let long = "q".repeat(129);
    for queue in ["-q", "_q", ".q", "~q", "q:1", "q%20q", "%C3%A9", "q%7Bx%7D", "q%00", &long] {
        it.api.post(&format!("/queues/{queue}/tasks"), json!({"payload": 1})).await.problem(400, "invalid-request");
        it.api.put(&format!("/queues/{queue}"), json!({})).await.problem(400, "invalid-request");
    }
    for queue in ["q", "Q", "0", "a.b_c-d", &long[..128]] {
        it.schedule(queue, json!({"payload": 1, "delay": "1h"})).await;
    }
    let names = it.api.get("/queues").await.expect(200).json();
    let names: Vec<&str> =
        names["items"].as_array().expect("items").iter().filter_map(|q| q["name"].as_str()).collect();
    assert_eq!(names, ["0", "Q", "a.b_c-d", "q", &long[..128]]);
}

#[tokio::test]
async fn every_answer_carries_a_request_id() {
    let it = World::start().await;
    let long = "i".repeat(129);
    let ask = async |path: &str, id: &str| {
        it.api.request(Method::GET, path, &[("x-request-id", id)], None).await.expect("an answer")
    };
    for path in ["/livez", "/queues", "/nowhere"] {
        for sane in ["a", "Req-1.2_3", &long[..128]] {
            assert_eq!(ask(path, sane).await.header("x-request-id"), Some(sane), "{path}");
        }
        for odd in ["", "a b", "a/b", "<x>", &long] {
            let answer = ask(path, odd).await;
            let id = answer.header("x-request-id").expect("an id of its own");
            assert!(!id.is_empty() && id != odd, "{path}: {id}");
        }
        let (one, two) = (it.api.get(path).await, it.api.get(path).await);
        assert_ne!(one.header("x-request-id").expect("an id"), two.header("x-request-id").expect("an id"));
    }
    let problem = ask("/nowhere", "mine").await.problem(404, "not-found");
    assert_eq!(problem["request_id"], "mine");
}

#[tokio::test]
async fn what_is_not_json_is_refused_in_the_same_form() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let malformed: [&[u8]; 18] = [
        b"{\"payload\":1",
        b"{\"payload\":1,}",
        b"{'payload':1}",
        b"{payload:1}",
        b"{\"payload\":1} x",
        b"{\"payload\":1}{\"payload\":1}",
        b"\xef\xbb\xbf{\"payload\":1}",
        b"{\"payload\":\"\xff\"}",
        b"{\"payload\":01}",
        b"{\"payload\":1.}",
        b"{\"payload\":NaN}",
        b"{\"payload\":nul}",
        b"{\"payload\":\"\x01\"}",
        b"{\"payload\":\"\\x\"}",
        b"{\"payload\":\"\\ud8zz\"}",
        b"[]",
        b"\"text\"",
        b"null",
    ];
    for body in malformed {
        let problem = it.api.post("/queues/q/tasks", body.to_vec()).await.problem(400, "invalid-request");
        let text = problem.to_string();
        for inner in ["serde", "struct ", "src/", ".rs", "RawValue", "panicked"] {
            assert!(!text.contains(inner), "{inner} shows in {text}");
        }
    }
    it.sentinel("q", "sentinel").await;
    assert_eq!(it.receiver.count(), 1);
}

#[tokio::test]
async fn what_is_not_http_gets_a_bare_answer() {
    let it = World::start().await;
    let many: String = (0..2000).map(|n| format!("x-{n}: 1\r\n")).collect();
    for bytes in [
        "GARBAGE\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\nhost: x\r\n\r\n".to_owned(),
        format!("GET /livez HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
    ] {
        let answer = tokio::time::timeout(secs(10), it.api.raw(bytes.as_bytes())).await.expect("an answer and a close");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "414", "431"].contains(&status), "{answer:?}");
    }
    it.api.get("/livez").await.expect(200);
}
