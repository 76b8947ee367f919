//! Queues, webhooks, lists and the service's own pages, as the contract says.

use serde_json::{Value, json};

use crate::support::{Client, World, client::encoded, eventually, secs, world::figure};

fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    list["items"].as_array().expect("items").iter().map(|item| item[field].as_str().expect("a text")).collect()
}

/// Every item of a list, page by page.
async fn walk(api: &Client, path: &str) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = api.get(&format!("{path}{cursor}")).await.expect(200).json();
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={}", encoded(next, true)),
            None => return items,
        }
    }
}

#[tokio::test]
async fn a_task_is_answered_as_the_contract_shows() {
    let it = World::start().await;
    let body = r#"{"id":"t","payload":{"a":1.0},"delay":"1h","retry":{"max_attempts":5},"timeout":"10s","headers":{"x-a":"b"}}"#;
    let answer = it.api.post("/queues/q/tasks", body).await.expect(201);
    let task = answer.json();

    assert_eq!(answer.header("location"), Some("/queues/q/tasks/t"));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    for (field, value) in [
        ("id", json!("t")),
        ("queue", json!("q")),
        ("state", json!("scheduled")),
        ("attempt", json!(0)),
        ("max_attempts", json!(5)),
        ("cancelling", json!(false)),
        ("ended_at", Value::Null),
        ("reason", Value::Null),
        ("expires_at", Value::Null),
        ("timeout", json!("10s")),
        ("next_attempt_at", task["run_at"].clone()),
    ] {
        assert_eq!(task.get(field), Some(&value), "{field} of {task}");
    }
    for field in ["payload", "headers", "attempts"] {
        assert!(task.get(field).is_none(), "{field} is left out: {task}");
    }
    let read = it.api.get("/queues/q/tasks/t").await.expect(200);
    assert_eq!(read.raw_field("payload").as_deref(), Some(r#"{"a":1.0}"#));
    assert_eq!((&read.json()["headers"], &read.json()["attempts"]), (&json!({"x-a": "b"}), &json!([])));
}

#[tokio::test]
async fn a_list_is_walked_by_its_cursor() {
    let it = World::start().await;
    // Posted in an order of their own; equal instants among them.
    for n in 0..50 {
        let n = n * 7 % 50;
        let body = json!({"id": format!("t{n:02}"), "payload": n, "run_at": format!("2035-01-01T00:00:{:02}Z", n / 3)});
        it.schedule("q", body).await;
    }

    let items = walk(&it.api, "/queues/q/tasks?state=scheduled&limit=7").await;

    let ids: Vec<&str> = items.iter().map(|task| task["id"].as_str().expect("id")).collect();
    assert_eq!(ids, (0..50).map(|n| format!("t{n:02}")).collect::<Vec<_>>());
    assert!(items.iter().all(|task| task.get("payload").is_none()));
    let full = walk(&it.api, "/queues/q/tasks?full=true&limit=1000").await;
    assert!(full.iter().all(|task| task["payload"].is_i64() && task["attempts"] == json!([])), "{full:?}");
    for state in ["active", "completed", "dead", "cancelled", "expired"] {
        assert_eq!(walk(&it.api, &format!("/queues/q/tasks?state={state}")).await.len(), 0);
    }
}

#[tokio::test]
async fn queues_have_settings_with_defaults() {
    let it = World::start().await;
    let defaults = json!({
        "retry": {"max_attempts": 20,
                  "backoff": {"kind": "exponential", "base": "1s", "factor": 4.0, "max": "6h", "jitter": 0.2}},
        "timeout": "30s", "max_in_flight": null, "rate": null, "max_size": null,
        "retain_completed": "1h", "retain_completed_max": 10000, "retain_dead": "30d"
    });
    it.schedule("used", json!({"payload": 1, "delay": "1h"})).await;
    assert_eq!(it.api.get("/queues/used").await.expect(200).json()["settings"], defaults);

    let made = it.api.put("/queues/q", json!({"timeout": "5s", "max_size": 2})).await.expect(201).json();
    assert_eq!(
        (&made["name"], &made["settings"]["timeout"], &made["settings"]["max_size"]),
        (&json!("q"), &json!("5s"), &json!(2))
    );
    let backoff = json!({"kind": "schedule", "delays": ["1s", "1m"]});
    let patch = json!({"retry": {"backoff": backoff}, "timeout": null});
    let patched = it.api.patch("/queues/q", patch).await.expect(200).json();
    let settings = &patched["settings"];
    assert_eq!(settings["retry"]["backoff"], json!({"kind": "schedule", "delays": ["1s", "1m"], "jitter": 0.2}));
    assert_eq!((&settings["timeout"], &settings["max_size"]), (&json!("30s"), &json!(2)));

    for _ in 0..2 {
        it.schedule("q", json!({"payload": 1, "delay": "1h"})).await;
    }
    it.api.post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await.problem(429, "queue-full");
    let reset = it.api.put("/queues/q", "{}").await.expect(200).json();
    assert_eq!(reset["settings"], defaults);
    it.schedule("q", json!({"payload": 1, "delay": "1h"})).await;

    let list = it.api.get("/queues").await.expect(200).json();
    assert_eq!(names(&list, "name"), ["q", "used"]);
    assert_eq!((&list["items"][0]["scheduled"], &list["items"][0]["webhooks"]), (&json!(3), &json!(0)));
}

#[tokio::test]
async fn a_changed_setting_reaches_tasks_that_wait() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", crate::support::Answer::status(500));
    let task = it.schedule("q", json!({"id": "t", "payload": 1, "delay": "500ms"})).await;
    assert_eq!(task["max_attempts"], 20);

    it.api.patch("/queues/q", json!({"retry": {"max_attempts": 1}})).await.expect(200);

    it.in_state("q", "t", "dead").await;
    assert_eq!(it.receiver.count(), 1);
}

#[tokio::test]
async fn webhooks_are_registered_read_changed_and_removed() {
    let it = World::start().await;
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    let body = json!({"id": "main", "url": it.receiver.url("/a"), "secret": secret, "description": "shop",
                      "headers": {"authorization": "Bearer top-secret"}});
    let made = it.api.post("/queues/q/webhooks", body).await.expect(201);
    assert_eq!(made.header("location"), Some("/queues/q/webhooks/main"));
    assert_eq!(made.json()["secret"], secret);

    let read = it.api.get("/queues/q/webhooks/main").await.expect(200);
    for (field, value) in [
        ("id", json!("main")),
        ("queue", json!("q")),
        ("enabled", json!(true)),
        ("description", json!("shop")),
        ("header_names", json!(["authorization"])),
        ("consecutive_failures", json!(0)),
        ("held_until", Value::Null),
        ("last_success_at", Value::Null),
    ] {
        assert_eq!(read.json().get(field), Some(&value), "{field} of {}", read.text());
    }
    assert!(!read.text().contains("top-secret") && read.json().get("secret").is_none(), "{}", read.text());

    it.schedule("q", json!({"id": "t1", "payload": 1})).await;
    let request = it.receiver.wait_for_task("t1", secs(5)).await;
    assert!(request.signature_ok(secret));
    assert_eq!((request.path(), request.header("authorization")), ("/a", Some("Bearer top-secret")));

    let patch = json!({"url": it.receiver.url("/b"), "headers": null, "description": null});
    let patched = it.api.patch("/queues/q/webhooks/main", patch).await.expect(200).json();
    assert_eq!((&patched["header_names"], &patched["description"]), (&json!([]), &Value::Null));
    it.schedule("q", json!({"id": "t2", "payload": 2, "delay": "1s"})).await; // a change holds within a second
    let request = it.receiver.wait_for_task("t2", secs(5)).await;
    assert_eq!((request.path(), request.header("authorization")), ("/b", None));
    it.in_state("q", "t2", "completed").await;

    it.api.delete("/queues/q/webhooks/main").await.expect(204);
    it.api.get("/queues/q/webhooks/main").await.problem(404, "webhook-not-found");
    assert_eq!(it.api.get("/queues/q/webhooks").await.expect(200).json()["items"], json!([]));
    it.schedule("q", json!({"id": "t3", "payload": 3})).await;
    eventually(secs(5), async || figure(&it.stats("q").await, "due") == 1).await;
    it.webhook("q", "/c").await;
    assert_eq!(it.receiver.wait_for_task("t3", secs(5)).await.path(), "/c");
}

#[tokio::test]
async fn the_service_shows_itself() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.sentinel("q", "sentinel").await;
    for path in ["/livez", "/readyz", "/version", "/openapi.json", "/docs", "/metrics"] {
        let answer = it.api.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert!(it.api.get("/openapi.json").await.json()["openapi"].as_str().is_some_and(|v| v.starts_with("3.1")));
    let metrics = it.api.get("/metrics").await.text();
    for name in [
        "duepost_tasks",
        "duepost_enqueued_total",
        "duepost_attempts_total",
        "duepost_lateness_seconds",
        "duepost_build_info",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    assert!(!metrics.contains("sentinel") && !metrics.contains("/hook"), "no task ids or URLs as labels");
}
