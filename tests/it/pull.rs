//! Pull consumers as they see the service: each call, and each answer that the contract names.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::{
    World, eventually, ms, now_ms, parse_ms, secs,
    wait::until,
    world::{assert_balanced, figure},
};

impl World {
    async fn claim(&self, queue: &str, body: Value) -> Vec<Value> {
        let answer = self.api.post(&format!("/queues/{queue}/claim"), body).await.expect(200).json();
        answer["tasks"].as_array().expect("tasks").clone()
    }

    async fn claim_one(&self, queue: &str) -> Value {
        let mut tasks = self.claim(queue, json!({"wait": "5s", "lease": "1m"})).await;
        assert_eq!(tasks.len(), 1);
        tasks.remove(0)
    }
}

fn path(task: &Value, call: &str) -> String {
    format!("/queues/{}/tasks/{}/{call}", task["queue"].as_str().expect("queue"), task["id"].as_str().expect("id"))
}

fn token(task: &Value) -> Value {
    json!({"token": task["lease"]["token"]})
}

fn with(task: &Value, more: Value) -> Value {
    let mut body = token(task);
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

#[tokio::test]
async fn a_task_is_claimed_whole_and_acked() {
    let it = World::start().await;
    let payload = r#"{"b" : 1.0, "a":[ ] }"#;
    it.schedule("q", format!(r#"{{"id":"t","payload":{payload},"headers":{{"x-a":"1"}}}}"#)).await;
    let answer = it.api.post("/queues/q/claim", json!({"max": 5, "lease": "30s", "wait": "2s"})).await.expect(200);
    assert!(answer.text().contains(&format!(r#""payload":{payload}"#)), "byte for byte: {}", answer.text());
    let task = answer.json()["tasks"][0].clone();
    assert_eq!(
        (&task["state"], &task["attempt"], &task["headers"]),
        (&json!("active"), &json!(1), &json!({"x-a": "1"}))
    );
    let left = parse_ms(task["lease"]["expires_at"].as_str().expect("an instant")) - now_ms();
    assert!((25_000..=30_000).contains(&left), "{left}");
    assert_eq!(it.task("q", "t").await["state"], "active");

    let acked = it.api.post(&path(&task, "ack"), token(&task)).await.expect(200).json();
    assert_eq!((&acked["state"], acked.get("payload"), acked.get("lease")), (&json!("completed"), None, None));
    let again = it.api.post(&path(&task, "ack"), token(&task)).await.expect(200).json();
    assert_eq!(again, acked);
    let stands = it.task("q", "t").await;
    let attempt = &stands["attempts"][0];
    assert_eq!(
        (&attempt["outcome"], &attempt["webhook"], &attempt["number"]),
        (&json!("delivered"), &Value::Null, &json!(1))
    );
    for call in ["nack", "extend"] {
        let problem = it.api.post(&path(&task, call), token(&task)).await.problem(409, "lease-lost");
        assert_eq!(problem["state"], "completed");
    }
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    assert_eq!(figure(&stats, "delivered_total"), 1);
    let metrics = it.api.get("/metrics").await.text();
    for line in [
        r#"duepost_attempts_total{queue="q",outcome="delivered"} 1"#,
        r#"duepost_lateness_seconds_count{queue="q"} 1"#,
        r#"duepost_http_requests_total{operation="claim_tasks",status="200"} 1"#,
        r#"duepost_http_requests_total{operation="ack_task",status="200"} 2"#,
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} in {metrics}");
    }
}

#[tokio::test]
async fn a_nack_says_when_or_whether_it_is_tried_again() {
    let it = World::start().await;
    it.api
        .put("/queues/q", json!({"retry": {"backoff": {"kind": "fixed", "delay": "1h", "jitter": 0}}}))
        .await
        .expect(201);
    for (id, body, state, wait_ms) in [
        ("policy", json!({"error": "no luck"}), "scheduled", 3_600_000),
        ("delay", json!({"delay": "10m"}), "scheduled", 600_000),
        ("back", json!({"failed": false}), "scheduled", 0),
        ("back-later", json!({"failed": false, "delay": "10m"}), "scheduled", 600_000),
        ("dead", json!({"dead": true, "error": "never"}), "dead", 0),
    ] {
        it.schedule("q", json!({"id": id, "payload": 1})).await;
        let task = it.claim_one("q").await;
        assert_eq!(task["id"], id);
        let told = it.api.post(&path(&task, "nack"), with(&task, body)).await.expect(200).json();
        assert_eq!(told["state"], state, "{id}");
        let failed = !id.starts_with("back");
        assert_eq!(told["attempt"], i32::from(failed), "{id}");
        if state == "scheduled" {
            let wait = parse_ms(told["next_attempt_at"].as_str().expect("an instant")) - now_ms();
            assert!((wait_ms - 5_000..=wait_ms).contains(&wait), "{id}: {wait}");
        } else {
            assert_eq!(told["reason"], "nack");
        }
        let stands = it.task("q", id).await;
        assert_eq!(stands["attempts"].as_array().expect("attempts").len(), usize::from(failed), "{id}");
        if id == "back" {
            let again = it.claim_one("q").await;
            assert_eq!((&again["id"], &again["attempt"]), (&json!("back"), &json!(1)));
            it.api.post(&path(&again, "ack"), token(&again)).await.expect(200);
        }
        it.api.post(&path(&task, "nack"), token(&task)).await.problem(409, "lease-lost");
    }
    assert_eq!(it.task("q", "policy").await["attempts"][0]["error"], "no luck");
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    assert_eq!((figure(&stats, "failed_attempts_total"), figure(&stats, "dead_total")), (3, 1));
}

#[tokio::test]
async fn a_lease_can_be_extended_and_a_cancelled_one_says_so() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "t", "payload": 1})).await;
    let task = it.claim_one("q").await;
    let held = it.api.post(&path(&task, "extend"), with(&task, json!({"lease": "10m"}))).await.expect(200).json();
    let left = parse_ms(held["lease"]["expires_at"].as_str().expect("an instant")) - now_ms();
    assert!((590_000..=600_000).contains(&left), "{left}");
    assert_eq!((&held["lease"]["token"], &held["cancelling"]), (&task["lease"]["token"], &json!(false)));

    it.api.delete("/queues/q/tasks/t").await.expect(202);
    let held = it.api.post(&path(&task, "extend"), token(&task)).await.expect(200).json();
    assert_eq!(held["cancelling"], true);
    let told = it.api.post(&path(&task, "nack"), token(&task)).await.expect(200).json();
    assert_eq!(told["state"], "cancelled");
    it.api.post(&path(&task, "ack"), token(&task)).await.problem(409, "lease-lost");
    it.api.post(&path(&task, "extend"), token(&task)).await.problem(409, "lease-lost");
}

#[tokio::test]
async fn what_is_not_there_or_not_allowed_is_refused_by_name() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "t", "payload": 1})).await;
    let task = it.claim_one("q").await;
    for call in ["ack", "nack", "extend"] {
        it.api.post(&format!("/queues/none/tasks/t/{call}"), token(&task)).await.problem(404, "queue-not-found");
        it.api.post(&format!("/queues/q/tasks/none/{call}"), token(&task)).await.problem(404, "task-not-found");
        let url = format!("/queues/q/tasks/t/{call}");
        it.api.post(&url, "{}").await.refuses("token");
        it.api.post(&url, json!({"token": "x"})).await.refuses("token");
        it.api.post(&url, json!({"token": null})).await.refuses("token");
        it.api.post(&url, with(&task, json!({"tokn": 1}))).await.refuses("tokn");
        it.api.post(&format!("{url}?x=1"), token(&task)).await.refuses("x");
        it.api.post(&url, "x".repeat(1 << 20)).await.problem(413, "too-large");
        let typed = it.api.request(Method::POST, &url, &[("content-type", "text/plain")], Some("{}".into())).await;
        typed.expect("an answer").problem(415, "unsupported-media-type");
        it.api.get(&url).await.problem(405, "method-not-allowed");
        it.api.post(&format!("/queues/q/tasks/a%2Fb/{call}"), token(&task)).await.refuses("id");
    }
    for (body, field) in [
        (json!({"delay": "4000d"}), "delay"),
        (json!({"delay": 5}), "delay"),
        (json!({"error": "x".repeat(1025)}), "error"),
        (json!({"dead": "yes"}), "dead"),
        (json!({"dead": true, "delay": "1s"}), "delay"),
        (json!({"dead": true, "failed": false}), "failed"),
    ] {
        it.api.post("/queues/q/tasks/t/nack", with(&task, body)).await.refuses(field);
    }
    for (body, field) in [
        (json!({"max": 0}), "max"),
        (json!({"max": 101}), "max"),
        (json!({"max": "1"}), "max"),
        (json!({"lease": "999ms"}), "lease"),
        (json!({"lease": "12h1s"}), "lease"),
        (json!({"wait": "61s"}), "wait"),
        (json!({"wait": 5}), "wait"),
        (json!({"waiting": "5s"}), "waiting"),
    ] {
        it.api.post("/queues/q/claim", body).await.refuses(field);
    }
    it.api.post("/queues/q/tasks/t/extend", with(&task, json!({"lease": "13h"}))).await.refuses("lease");
    it.api.post("/queues/_q/claim", "{}").await.refuses("queue");
    it.api.post("/queues/q/claim?wait=1s", "{}").await.refuses("wait");
    it.api.get("/queues/q/claim").await.problem(405, "method-not-allowed");
    // at the bounds, and without a body
    it.api.post("/queues/q/tasks/t/extend", with(&task, json!({"lease": "12h"}))).await.expect(200);
    it.api.post("/queues/q/claim", json!({"max": 100, "lease": "1s", "wait": "0s"})).await.expect(200);
    assert_eq!(
        it.api.request(Method::POST, "/queues/none/claim", &[], None).await.expect("an answer").json(),
        json!({"tasks": []})
    );
    it.api.get("/queues/none").await.problem(404, "queue-not-found");
    it.api.post("/queues/q/tasks/t/nack", with(&task, json!({"error": "x".repeat(1024)}))).await.expect(200);
}

#[tokio::test]
async fn a_lease_that_runs_out_is_counted_and_the_task_taken_up_again() {
    let it = World::start().await;
    it.api.put("/queues/q", json!({"retry": {"max_attempts": 2}})).await.expect(201);
    tokio::time::sleep(secs(3)).await; // a fresh process ends no lease before
    it.schedule("q", json!({"id": "t", "payload": 1})).await;
    let first = it.claim("q", json!({"wait": "5s", "lease": "1s"})).await.remove(0);
    let from = Instant::now();
    let second = it.claim("q", json!({"wait": "20s", "lease": "1s"})).await.remove(0);
    assert!((ms(800)..secs(5)).contains(&from.elapsed()), "{:?}", from.elapsed());
    assert_eq!((&second["id"], &second["attempt"]), (&json!("t"), &json!(2)));
    it.api.post(&path(&first, "ack"), token(&first)).await.problem(409, "lease-lost");
    eventually(secs(10), async || figure(&it.stats("q").await, "failed_attempts_total") == 2).await;
    assert_eq!(it.claim("q", json!({"wait": "500ms"})).await, [Value::Null; 0]);
    it.in_state("q", "t", "dead").await;
    let task = it.task("q", "t").await;
    assert_eq!((&task["reason"], &task["attempts"][1]["outcome"]), (&json!("max_attempts"), &json!("lost")));
    assert_balanced(&it.stats("q").await);
}

#[tokio::test]
async fn a_claim_takes_4_mib_at_most_and_one_task_at_least() {
    let it = World::start().await;
    let payload = "x".repeat(200 << 10);
    for n in 0..25 {
        it.schedule("q", json!({"id": format!("t{n:02}"), "payload": payload})).await;
    }
    let first = it.claim("q", json!({"max": 100})).await;
    assert_eq!(first.len(), 20, "of 200 KiB each");
    assert_eq!(it.claim("q", json!({"max": 100})).await.len(), 5);
}

/// Consumers that pull and ack until nothing is left; who held what, and how often.
async fn drain(it: &World, consumers: usize, tasks: usize) -> HashMap<String, usize> {
    let held: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let loops = (0..consumers).map(|n| {
        let (api, held) = (it.service.client(), Arc::clone(&held));
        tokio::spawn(async move {
            loop {
                let body = json!({"max": 1 + n % 7, "lease": "5m", "wait": "300ms"});
                let answer = api.post("/queues/q/claim", body).await.expect(200).json();
                for task in answer["tasks"].as_array().expect("tasks") {
                    *held.lock().expect("lock").entry(task["id"].as_str().expect("id").to_owned()).or_insert(0) += 1;
                    api.post(&path(task, "ack"), token(task)).await.expect(200);
                }
                if held.lock().expect("lock").len() == tasks {
                    return;
                }
            }
        })
    });
    for done in futures_util::future::join_all(loops).await {
        done.expect("a consumer ends");
    }
    Arc::into_inner(held).expect("the loops have ended").into_inner().expect("lock")
}

#[tokio::test]
async fn two_consumers_never_hold_the_same_task() {
    let tasks: usize = std::env::var("DUEPOST_TEST_TASKS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let it = World::start().await;
    let posts = (0..8).map(|n| {
        let api = it.service.client();
        tokio::spawn(async move {
            for i in (n..tasks).step_by(8) {
                api.post("/queues/q/tasks", json!({"id": format!("t{i}"), "payload": i})).await.expect(201);
            }
        })
    });
    let posts = futures_util::future::join_all(posts);
    let from = Instant::now();
    let (_, held) = tokio::join!(posts, drain(&it, 8, tasks));
    println!("{tasks} tasks through 8 consumers in {:?}", from.elapsed());
    assert!(held.values().all(|n| *n == 1));
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    assert_eq!(figure(&stats, "delivered_total"), i64::try_from(tasks).expect("fits"));
    assert_eq!(figure(&stats, "failed_attempts_total"), 0);
}

#[tokio::test]
async fn push_and_pull_share_a_queue_first_come_first_served() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let consumer = async {
        let mut pulled = 0;
        loop {
            let tasks = it.claim("q", json!({"max": 3, "wait": "500ms", "lease": "5m"})).await;
            if tasks.is_empty() && figure(&it.stats("q").await, "delivered_total") == 200 {
                return pulled;
            }
            for task in tasks {
                pulled += 1;
                it.api.post(&path(&task, "ack"), token(&task)).await.expect(200);
            }
        }
    };
    let producer = async {
        for n in 0..200 {
            it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
        }
    };
    let (pulled, ()) = tokio::join!(consumer, producer);
    let pushed = it.receiver.count();
    println!("{pushed} pushed, {pulled} pulled");
    assert_eq!(pushed + pulled, 200, "each of them once");
    let stats = until(secs(5), async || Some(it.stats("q").await).filter(|s| figure(s, "active") == 0)).await;
    assert_balanced(&stats);
}
