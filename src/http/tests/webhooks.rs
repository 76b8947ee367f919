//! Webhooks: what is registered, shown and hidden.

use serde_json::{Value, json};

use super::It;

const HOOKS: &str = "/queues/q/webhooks";

#[tokio::test]
async fn a_webhook_is_registered_with_a_secret_shown_once() {
    let it = It::start().await;
    let body = json!({"id": "main", "url": "https://shop.example/hook", "headers": {"authorization": "Bearer canary"}});
    let made = it.post(HOOKS, body).await.expect(201);
    assert_eq!(made.header("location"), "/queues/q/webhooks/main");
    let mut webhook = made.json();
    assert!(webhook["secret"].as_str().unwrap().starts_with("whsec_"));
    webhook.as_object_mut().unwrap().remove("secret");
    let mut want = json!({
        "id": "main", "queue": "q", "url": "https://shop.example/hook", "enabled": true, "description": null,
        "header_names": ["authorization"], "timeout": null, "max_in_flight": null, "previous_secret_until": null,
        "last_success_at": null, "last_failure_at": null, "consecutive_failures": 0, "held_until": null,
        "disabled_reason": null,
    });
    want["created_at"] = webhook["created_at"].clone();
    assert_eq!(webhook, want);

    assert_eq!(it.get(&format!("{HOOKS}/main")).await.expect(200).json(), want);
    let list = it.get(HOOKS).await.expect(200);
    assert!(!list.text().contains("canary") && !list.text().contains("whsec_"), "{}", list.text());
    assert_eq!(list.json(), json!({"items": [want], "next_cursor": null}));

    for (again, by) in [
        (json!({"id": "main", "url": "https://other.example/"}), "id"),
        (json!({"url": "HTTPS://shop.example:443/hook"}), "url"),
    ] {
        let refused = it.post(HOOKS, &again).await;
        let problem = refused.problem(409, "webhook-exists");
        assert!(problem["detail"].as_str().unwrap().contains(by), "{problem}");
        assert_eq!(refused.header("location"), "/queues/q/webhooks/main");
    }
    it.post("/queues/r/webhooks", json!({"id": "main", "url": "https://shop.example/hook"})).await.expect(201);
}

#[tokio::test]
async fn bad_webhooks_are_refused_by_field() {
    let it = It::start().await;
    for (body, field) in [
        (r#"{}"#, "url"),
        (r#"{"url":null}"#, "url"),
        (r#"{"url":7}"#, "url"),
        (r#"{"url":"shop.example"}"#, "url"),
        (r#"{"url":"ftp://shop.example"}"#, "url"),
        (r#"{"url":"https://a:b@shop.example"}"#, "url"),
        (r#"{"url":"https://shop.example/#x"}"#, "url"),
        (r#"{"url":"http://127.0.0.1/"}"#, "url"),
        (r#"{"url":"http://localhost:1/"}"#, "url"),
        (r#"{"url":"http://169.254.169.254/"}"#, "url"),
        (r#"{"url":"http://[::ffff:10.0.0.1]/"}"#, "url"),
        (r#"{"url":"https://shop.example","id":"a/b"}"#, "id"),
        (r#"{"url":"https://shop.example","secret":"whsec_c2hvcnQ="}"#, "secret"),
        (r#"{"url":"https://shop.example","secret":null}"#, "secret"),
        (r#"{"url":"https://shop.example","timeout":"2h"}"#, "timeout"),
        (r#"{"url":"https://shop.example","enabled":"yes"}"#, "enabled"),
        (r#"{"url":"https://shop.example","enabled":null}"#, "enabled"),
        (r#"{"url":"https://shop.example","max_in_flight":0}"#, "max_in_flight"),
        (r#"{"url":"https://shop.example","headers":{"webhook-id":"x"}}"#, "headers.webhook-id"),
        (r#"{"url":"https://shop.example","headers":null}"#, "headers"),
        (r#"{"url":"https://shop.example","retry":{}}"#, "retry"),
    ] {
        it.post(HOOKS, body).await.refuses(field);
    }
    it.get("/queues/q").await.problem(404, "queue-not-found");
    it.post(HOOKS, format!(r#"{{"url":"https://shop.example","description":"{}"}}"#, "x".repeat(1025)))
        .await
        .refuses("description");
    it.post(HOOKS, r#"{"url":"https://shop.example","description":null,"timeout":null,"max_in_flight":null}"#)
        .await
        .expect(201);
}

#[tokio::test]
async fn patch_sets_what_it_names() {
    let it = It::start().await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let body = json!({"id": "a", "url": "https://a.example/", "enabled": false, "secret": secret, "timeout": "5s",
        "headers": {"x-a": "1"}, "description": "first", "max_in_flight": 3});
    assert_eq!(it.post(HOOKS, body).await.expect(201).json()["secret"], secret);
    it.post(HOOKS, json!({"id": "b", "url": "https://b.example/"})).await.expect(201);
    let path = format!("{HOOKS}/a");
    let patch = async |body: &str| it.call("PATCH", &path, body.to_owned()).await;

    let same = patch("").await.expect(200).json();
    assert_eq!((&same["timeout"], &same["enabled"], same.get("secret")), (&json!("5s"), &json!(false), None));
    let set = patch(r#"{"enabled":true,"timeout":null,"headers":null,"description":null,"max_in_flight":null}"#).await;
    let set = set.expect(200).json();
    assert_eq!((&set["enabled"], &set["timeout"], &set["header_names"]), (&json!(true), &Value::Null, &json!([])));
    assert_eq!(patch(&format!(r#"{{"secret":"{secret}"}}"#)).await.expect(200).json()["secret"], secret);
    assert_eq!(patch(r#"{"url":"https://c.example/x"}"#).await.expect(200).json()["url"], "https://c.example/x");

    let taken = patch(r#"{"url":"https://b.example"}"#).await;
    taken.problem(409, "webhook-exists");
    assert_eq!(taken.header("location"), "/queues/q/webhooks/b");
    for (body, field) in
        [(r#"{"id":"c"}"#, "id"), (r#"{"url":null}"#, "url"), (r#"{"secret":null}"#, "secret"), (r#"{"x":1}"#, "x")]
    {
        patch(body).await.refuses(field);
    }
    it.call("PATCH", "/queues/q/webhooks/z", "{}").await.problem(404, "webhook-not-found");
    it.call("PATCH", "/queues/z/webhooks/a", "{}").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn a_hold_and_a_reason_go_when_it_is_enabled_again() {
    let it = It::start().await;
    it.post(HOOKS, json!({"id": "a", "url": "https://a.example/"})).await.expect(201);
    let queue = crate::domain::id::QueueName::parse("q").unwrap();
    let gone = it.store.change(&queue, false, |view| {
        let mut webhook = view.webhooks[0].clone();
        (webhook.enabled, webhook.disabled_reason) = (false, Some("gone".to_owned()));
        let hooks = vec![crate::store::HookChange::Set(Box::new(webhook))];
        Ok::<_, ()>(crate::store::Change { hooks, ..crate::store::Change::default() })
    });
    gone.await.unwrap();
    let path = format!("{HOOKS}/a");
    assert_eq!(it.get(&path).await.json()["disabled_reason"], "gone");
    let kept = it.call("PATCH", &path, r#"{"description":"x"}"#).await.expect(200).json();
    assert_eq!(kept["disabled_reason"], "gone");
    let back = it.call("PATCH", &path, r#"{"enabled":true}"#).await.expect(200).json();
    assert_eq!((&back["enabled"], &back["disabled_reason"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn webhooks_are_listed_removed_and_bounded() {
    let it = It::start().await;
    for n in 0..100 {
        it.post(HOOKS, json!({"id": format!("w{n:02}"), "url": format!("https://a.example/{n}")})).await.expect(201);
    }
    it.post(HOOKS, json!({"url": "https://a.example/x"})).await.problem(400, "invalid-request");
    let page = it.get(&format!("{HOOKS}?limit=60")).await.expect(200).json();
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = it.get(&format!("{HOOKS}?limit=60&cursor={cursor}")).await.expect(200).json();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next_cursor"]), (40, &Value::Null));
    assert_eq!(rest["items"][0]["id"], "w60");

    assert_eq!(it.call("DELETE", "/queues/q/webhooks/w60", "").await.expect(204).body.len(), 0);
    it.call("DELETE", "/queues/q/webhooks/w60", "").await.problem(404, "webhook-not-found");
    it.get("/queues/q/webhooks/w60").await.problem(404, "webhook-not-found");
    it.get("/queues/z/webhooks").await.problem(404, "queue-not-found");
    it.get("/queues/z/webhooks/a").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn with_several_webhooks_a_task_shows_how_far_each_is() {
    let it = It::start().await;
    for (id, enabled) in [("audit", true), ("main", true), ("off", false)] {
        it.post(HOOKS, json!({"id": id, "url": format!("https://{id}.example/"), "enabled": enabled}))
            .await
            .expect(201);
    }
    it.post("/queues/q/tasks", json!({"id": "x", "payload": 1, "delay": "1h"})).await.expect(201);
    let task = it.get("/queues/q/tasks/x").await.expect(200).json();
    assert_eq!(task["webhooks"], json!({"audit": "waiting", "main": "waiting"}));
}

#[tokio::test]
async fn put_creates_or_sets_all_and_the_secret_stays() {
    let it = It::start().await;
    let path = format!("{HOOKS}/main");
    let put = async |body: Value| it.call("PUT", &path, body.to_string()).await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let made = put(json!({"url": "https://a.example/", "secret": secret, "timeout": "5s", "enabled": false})).await;
    let made = made.expect(201);
    assert_eq!(made.header("location"), "/queues/q/webhooks/main");
    let made = made.json();
    assert_eq!(made["secret"], secret);

    let set = put(json!({"url": "https://a.example/"})).await.expect(200).json();
    assert_eq!((&set["timeout"], &set["enabled"], set.get("secret")), (&Value::Null, &json!(true), None));
    assert_eq!(set["created_at"], made["created_at"]);
    let kept = it.store.describe(&crate::domain::id::QueueName::parse("q").unwrap()).await.unwrap().unwrap();
    assert_eq!(kept.webhooks[0].secret.to_text(), secret);
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    assert_eq!(put(json!({"url": "https://a.example/", "secret": other})).await.expect(200).json()["secret"], other);

    it.post(HOOKS, json!({"id": "b", "url": "https://b.example/"})).await.expect(201);
    let taken = put(json!({"url": "https://b.example/"})).await;
    taken.problem(409, "webhook-exists");
    assert_eq!(taken.header("location"), "/queues/q/webhooks/b");
    put(json!({})).await.refuses("url");
    put(json!({"url": "https://a.example/", "id": "main"})).await.refuses("id");
    put(json!({"url": "http://127.0.0.1/"})).await.refuses("url");
    it.call("PUT", &path, "").await.problem(415, "unsupported-media-type");
    let made = it.call("PUT", &format!("{HOOKS}/c"), json!({"url": "https://c.example/"}).to_string()).await;
    assert!(made.expect(201).json()["secret"].as_str().unwrap().starts_with("whsec_"));
    let strict = It::with(|api| api.auto_create = false).await;
    let refused = strict.call("PUT", "/queues/z/webhooks/a", r#"{"url":"https://a.example"}"#).await;
    refused.problem(404, "queue-not-found");
}

#[tokio::test]
async fn a_secret_is_rotated_with_grace() {
    let it = It::start().await;
    let first = it.post(HOOKS, json!({"id": "a", "url": "https://a.example/"})).await.expect(201).json();
    let path = format!("{HOOKS}/a/rotate-secret");
    let given = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let rotated = it.post(&path, json!({"secret": given})).await.expect(200).json();
    assert_eq!(rotated["secret"], given);
    let until = rotated["previous_secret_until"].as_str().unwrap().to_owned();
    let again = it.post(&path, json!({"secret": given, "grace": "1s"})).await.expect(200).json();
    assert_eq!(again["previous_secret_until"], until, "a repeated call does not end the grace of the true one before");
    assert_ne!(first["secret"], given);
    let none = it.call("POST", &path, "").await.expect(200).json();
    assert!(none["secret"].as_str().unwrap().starts_with("whsec_") && none["previous_secret_until"].is_string());
    let now = it.post(&path, json!({"grace": "0s", "secret": given})).await.expect(200).json();
    assert_eq!(now["previous_secret_until"], Value::Null);
    for (body, field) in [
        (r#"{"grace":"8d"}"#, "grace"),
        (r#"{"grace":5}"#, "grace"),
        (r#"{"secret":"x"}"#, "secret"),
        (r#"{"secret":null}"#, "secret"),
        (r#"{"x":1}"#, "x"),
    ] {
        it.post(&path, body).await.refuses(field);
    }
    it.post(&format!("{HOOKS}/z/rotate-secret"), "{}").await.problem(404, "webhook-not-found");
    it.post("/queues/z/webhooks/a/rotate-secret", "{}").await.problem(404, "queue-not-found");
    it.call("GET", &path, "").await.problem(405, "method-not-allowed");
}

#[tokio::test]
async fn a_test_answers_with_an_attempt_whatever_came_of_it() {
    let it = It::with(|api| {
        (api.policy.allow_private, api.policy.allow_loopback) = (true, true);
        api.limits.max_payload = 1024;
    })
    .await;
    // nobody listens on port 1
    it.post(HOOKS, json!({"id": "a", "url": "http://127.0.0.1:1/", "enabled": false})).await.expect(201);
    let path = format!("{HOOKS}/a/test");
    let attempt = it.call("POST", &path, "").await.expect(200).json();
    assert_eq!((&attempt["outcome"], &attempt["status"]), (&json!("unreachable"), &Value::Null));
    assert_eq!((&attempt["number"], &attempt["webhook"]), (&json!(0), &json!("a")));
    it.post(&path, json!({"payload": "x".repeat(2000)})).await.problem(413, "too-large");
    it.post(&path, format!(r#"{{"payload":{}1{}}}"#, "[".repeat(200), "]".repeat(200))).await.refuses("payload");
    it.post(&path, r#"{"x":1}"#).await.refuses("x");
    it.post(&format!("{HOOKS}/z/test"), "{}").await.problem(404, "webhook-not-found");
    it.post("/queues/z/webhooks/a/test", "{}").await.problem(404, "queue-not-found");
}
