//! A webhook's secrets: rotated without a gap, tested, sealed at rest.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::support::{
    Answer, RedisServer, World, secs,
    service::{Builder, Service},
};

/// A service on the Redis behind this URL, with a key.
async fn given_key(redis: &str, key: &str) -> Service {
    let args = ["serve", "--listen", "127.0.0.1:0", "--redis", redis, "--allow-private-targets"];
    Builder::bare(&args).env("DUEPOST_SECRET_KEY", key).start().await
}

/// What every hash of this Redis holds.
async fn all_values(redis: &RedisServer) -> String {
    let keys: Vec<String> = redis.command(&["KEYS", "*"]).await;
    let mut all = String::new();
    for key in &keys {
        let kind: String = redis.command(&["TYPE", key]).await;
        if kind == "hash" {
            let values: Vec<Vec<u8>> = redis.command(&["HVALS", key]).await;
            all.extend(values.iter().map(|v| String::from_utf8_lossy(v).into_owned() + "\n"));
        }
    }
    all
}

#[tokio::test]
async fn c193_what_waits_is_signed_with_a_secret_that_its_receiver_holds() {
    let it = World::start().await;
    let first = it.webhook_with("q", "/hook", json!({"id": "main"})).await;
    it.receiver.on_in_turn("/hook", vec![Answer::status(500).into(), Answer::status(200).into()]);
    it.schedule("q", json!({"id": "retried", "payload": 1})).await; // again after about a second
    it.receiver.wait_for(1, secs(5)).await;
    it.schedule("q", json!({"id": "waits", "payload": 2, "delay": "1s"})).await;
    let rotate = async |body: Value| {
        let answer = it.api.post("/queues/q/webhooks/main/rotate-secret", body).await.expect(200).json();
        (answer["secret"].as_str().unwrap().to_owned(), answer["previous_secret_until"].clone())
    };
    let (second, until) = rotate(json!({"grace": "1h"})).await;
    assert!(until.is_string() && second != first);
    for id in ["retried", "waits"] {
        it.in_state("q", id, "completed").await;
        let last = it.receiver.of_task(id).pop().unwrap();
        assert!(last.signature_ok(&first) && last.signature_ok(&second), "{}", last.head);
    }
    // the newest two at most; without grace only the new one
    let (third, _) = rotate(json!({})).await;
    it.sentinel("q", "two").await;
    let two = it.receiver.of_task("two").pop().unwrap();
    assert!(two.signature_ok(&third) && two.signature_ok(&second) && !two.signature_ok(&first));
    let (fourth, until) = rotate(json!({"grace": "0s"})).await;
    assert_eq!(until, Value::Null);
    it.sentinel("q", "one").await;
    let one = it.receiver.of_task("one").pop().unwrap();
    assert!(one.signature_ok(&fourth) && !one.signature_ok(&third));
    assert_eq!(one.header("webhook-signature").unwrap().split(' ').count(), 1);

    // another url and other headers reach what waits, too; without a webhook it waits
    it.schedule("q", json!({"id": "moved", "payload": 3, "delay": "700ms"})).await;
    let patch = json!({"url": it.receiver.url("/new"), "headers": {"x-new": "1"}});
    it.api.patch("/queues/q/webhooks/main", patch).await.expect(200);
    it.in_state("q", "moved", "completed").await;
    let moved = it.receiver.of_task("moved").pop().unwrap();
    assert_eq!((moved.path(), moved.header("x-new"), moved.signature_ok(&fourth)), ("/new", Some("1"), true));
    it.schedule("q", json!({"id": "left", "payload": 4, "delay": "100ms"})).await;
    it.api.delete("/queues/q/webhooks/main").await.expect(204);
    let fifth = it.webhook_with("other", "/other", json!({})).await;
    it.sentinel("other", "sentinel").await;
    assert_eq!(it.task("q", "left").await["state"], "scheduled");
    assert!(it.receiver.of_task("sentinel")[0].signature_ok(&fifth));
}

#[tokio::test]
async fn a_test_delivery_goes_out_now_whatever_the_state_of_its_webhook() {
    let it = World::start().await;
    let fields = json!({"id": "main", "enabled": false, "headers": {"x-a": "b"}});
    let secret = it.webhook_with("q", "/hook", fields).await;
    it.receiver.on("/hook", Answer::status(418).body("teapot"));
    let path = "/queues/q/webhooks/main/test";
    let attempt = it.api.post(path, json!({"payload": {"n": 1.0}})).await.expect(200).json();
    let got = &it.receiver.journal()[0];
    assert_eq!((got.task(), got.attempt(), got.text().as_str()), ("test", 0, r#"{"n":1.0}"#));
    assert!(got.signature_ok(&secret) && got.header("x-a") == Some("b"));
    assert_eq!((&attempt["number"], &attempt["webhook"]), (&json!(0), &json!("main")));
    assert_eq!((&attempt["outcome"], &attempt["status"]), (&json!("rejected"), &json!(418)));
    assert_eq!((&attempt["response"], &attempt["lateness_ms"]), (&json!("teapot"), &json!(0)));
    it.api.post(path, json!({})).await.expect(200);
    assert_eq!(it.receiver.journal()[1].text(), "{}");
    let webhook = it.api.get("/queues/q/webhooks/main").await.expect(200).json();
    assert_eq!((&webhook["last_failure_at"], &webhook["consecutive_failures"]), (&Value::Null, &json!(0)));
}

#[tokio::test]
async fn s14_secrets_are_sealed_at_rest_and_a_wrong_key_loses_nothing() {
    const CANARY: &str = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5";
    let mut it = World::start().await; // without a key
    let hook = json!({"id": "main", "secret": CANARY, "headers": {"authorization": "Bearer canary-in-a-header"}});
    it.webhook_with("q", "/hook", hook).await;
    let open = all_values(&it.redis).await;
    assert!(open.contains(CANARY) && open.contains("canary-in-a-header"), "the control");

    let key = |n: u8| STANDARD.encode([n; 32]);
    let url = RedisServer::url(&it.redis);
    let with = async |n| given_key(&url, &key(n)).await;
    let sealing = with(1).await;
    let path = "/queues/q/webhooks/main";
    assert_eq!(sealing.client().get(path).await.expect(200).json()["header_names"], json!(["authorization"]));
    sealing.client().patch(path, json!({"description": "written anew"})).await.expect(200);
    it.service.kill9(); // it has no key any more
    let fields = json!({"url": it.receiver.url("/b"), "secret": CANARY, "enabled": false});
    sealing.client().put("/queues/q/webhooks/b", fields).await.expect(201);
    let sealed = all_values(&it.redis).await;
    assert!(!sealed.contains(&CANARY[6..]) && !sealed.contains("canary-in-a-header"), "{sealed}");
    let task = |id: &str| json!({"id": id, "payload": id});
    sealing.client().post("/queues/q/tasks", task("t")).await.expect(201);
    it.receiver.wait_for_task("t", secs(10)).await;
    let got = it.receiver.of_task("t").pop().unwrap();
    assert!(got.signature_ok(CANARY) && got.header("authorization") == Some("Bearer canary-in-a-header"));
    drop(sealing);

    let wrong = with(2).await;
    wrong.client().get(path).await.expect(500);
    wrong.client().put(path, json!({"url": it.receiver.url("/hook")})).await.expect(500);
    wrong.client().post("/queues/q/tasks", task("waits")).await.expect(201);
    wrong.client().post("/queues/q/webhooks", json!({"url": it.receiver.url("/other")})).await.expect(201);
    it.receiver.wait_for_task("waits", secs(10)).await; // the other one gets it
    let waits = wrong.client().get("/queues/q/tasks/waits").await.expect(200).json();
    assert_ne!(waits["state"], "completed", "the one that cannot be read does not have it");
    assert!(wrong.stderr().contains("secrets are sealed with key"), "{}", wrong.stderr());
    assert!(!wrong.stderr().contains(&key(2)));
    drop(wrong);

    let right = with(1).await;
    right.client().get(path).await.expect(200);
    let done = async || right.client().get("/queues/q/tasks/waits").await.expect(200).json()["state"] == "completed";
    crate::support::eventually(secs(20), done).await;
}
