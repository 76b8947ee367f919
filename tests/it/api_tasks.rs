//! PUT, PATCH, `run` and batches, with each status that the contract gives them.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Gate, Service, World,
    client::Json,
    ms, now_ms, parse_ms, secs,
    wait::format_ms,
    world::{assert_balanced, figure},
};

const TASKS: &str = "/queues/q/tasks";

fn path(id: &str) -> String {
    format!("{TASKS}/{id}")
}

impl World {
    async fn put_new(&self, id: &str, body: impl Into<Json>) -> crate::support::ApiAnswer {
        let headers = [("content-type", "application/json"), ("if-none-match", "*")];
        self.api.request(axum::http::Method::PUT, &path(id), &headers, Some(body.into())).await.expect("an answer")
    }

    async fn run(&self, id: &str) -> crate::support::ApiAnswer {
        self.api.request(axum::http::Method::POST, &format!("{}/run", path(id)), &[], None).await.expect("an answer")
    }

    /// Tasks named after the states they are in: active (under way until the gate opens), completed, dead, cancelled.
    async fn one_of_each(&self) -> Gate {
        self.webhook("q", "/hook").await;
        let gate = Gate::new();
        self.receiver.when(|r| r.task() == "active", Answer::status(200).held_by(&gate));
        self.receiver.when(|r| r.task() == "dead", Answer::status(400).header("duepost-retry", "false"));
        for id in ["active", "completed", "dead"] {
            self.schedule("q", json!({"id": id, "payload": 1})).await;
            self.in_state("q", id, id).await;
        }
        self.receiver.wait_for_task("active", secs(5)).await;
        self.schedule("q", json!({"id": "cancelled", "payload": 1, "delay": "1h"})).await;
        self.api.delete(&path("cancelled")).await.expect(200);
        gate
    }
}

#[tokio::test]
async fn put_creates_and_replaces() {
    let it = World::start().await;
    let gate = it.one_of_each().await;
    let made = it.api.put(&path("new"), json!({"payload": {"n": 1}, "delay": "1h"})).await.expect(201);
    assert_eq!(made.header("location"), Some("/queues/q/tasks/new"));
    let first = made.json();
    assert_eq!((&first["id"], &first["state"], first.get("payload")), (&json!("new"), &json!("scheduled"), None));

    let second = it.api.put(&path("new"), r#"{"payload": {"n" : 2.0}, "delay_ms": 7200000}"#).await.expect(200).json();
    assert_ne!(second["uid"], first["uid"]);
    assert_eq!(it.api.get(&path("new")).await.raw_field("payload").unwrap(), r#"{"n" : 2.0}"#);

    for id in ["completed", "dead", "cancelled", "active", "new"] {
        it.put_new(id, json!({"payload": 3})).await.problem(412, "precondition-failed");
    }
    assert_eq!(it.put_new("fresh", json!({"payload": 3, "delay": "1h"})).await.expect(201).json()["attempt"], 0);
    for id in ["completed", "dead", "cancelled"] {
        it.api.put(&path(id), json!({"payload": 4, "delay": "1h"})).await.expect(201);
    }
    let task = it.api.put(&path("active"), json!({"payload": 5})).await.expect(200).json();
    assert_eq!(task["attempt"], 0);
    it.receiver.wait_until(secs(5), |all| all.iter().filter(|r| r.task() == "active").count() == 2).await;
    gate.open();
    it.in_state("q", "active", "completed").await;
    let uids: Vec<String> =
        it.receiver.of_task("active").iter().map(|r| r.header("webhook-id").unwrap().to_owned()).collect();
    assert!(uids[0] != uids[1] && task["uid"] == uids[1].as_str(), "{uids:?}");
    assert_balanced(&it.stats("q").await);
}

#[tokio::test]
async fn put_refuses_what_a_post_would_and_an_id() {
    let it = World::start().await;
    it.api.put("/queues/q", json!({"max_size": 1})).await.expect(201);
    for (body, field) in [
        (r#"{"id": "a", "payload": 1}"#, "id"),
        (r#"{"delay": "1h"}"#, "payload"),
        (r#"{"payload": 1, "delay": null}"#, "delay"),
        (r#"{"payload": 1, "delay": "1h", "run_at": "2026-12-01T00:00:00Z"}"#, "run_at"),
        (r#"{"payload": 1, "delay": "3660d"}"#, "delay"),
        (r#"{"payload": 1, "expires_after": "0s"}"#, "expires_after"),
    ] {
        it.api.put(&path("a"), body).await.refuses(field);
    }
    let big = format!(r#"{{"payload": "{}"}}"#, "x".repeat(256 << 10));
    it.api.put(&path("a"), big).await.problem(413, "too-large");
    for value in ["\"abc\"", ""] {
        let headers = [("content-type", "application/json"), ("if-none-match", value)];
        let body = Some(Json::from(json!({"payload": 1})));
        let put = axum::http::Method::PUT;
        it.api.request(put, &path("a"), &headers, body).await.unwrap().refuses("if-none-match");
    }
    let plain = it.api.request(axum::http::Method::PUT, &path("a"), &[], Some(json!({"payload": 1}).into())).await;
    plain.unwrap().problem(415, "unsupported-media-type");
    it.api.put(&path("a"), json!({"payload": 1, "delay": "1h"})).await.expect(201);
    it.api.put(&path("b"), json!({"payload": 1})).await.problem(429, "queue-full");
    it.api.put("/queues/q/tasks/a%20b", json!({"payload": 1})).await.refuses("id");
    let strict = Service::builder(&it.redis).switch("--no-auto-create").start().await;
    strict.client().put("/queues/none/tasks/a", json!({"payload": 1})).await.problem(404, "queue-not-found");
}

/// C061: replacing a task again and again while it comes due (debounce): the last one wins.
#[tokio::test]
async fn c061_of_many_puts_the_last_one_wins() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    for n in 0..50 {
        let put = it.api.put(&path("a"), json!({"payload": n, "delay": "300ms"})).await;
        assert!([200, 201].contains(&put.status), "{}", put.text());
    }
    it.in_state("q", "a", "completed").await;
    let came = it.receiver.of_task("a");
    assert_eq!((came.len(), came[0].text().as_str()), (1, "49"));
    assert_eq!(figure(&it.at_rest("q").await, "enqueued_total"), 1);
}

#[tokio::test]
async fn patch_moves_and_edits() {
    let it = World::start().await;
    let made = it.schedule("q", json!({"id": "a", "payload": 1, "delay": "1h", "timeout": "5s"})).await;
    let read = async || it.api.get(&path("a")).await.expect(200).json();
    let patch = async |body: Value| it.api.patch(&path("a"), body).await.expect(200).json();
    let at = now_ms() + 7_000_000;
    let moved = patch(json!({"run_at": format_ms(at)})).await;
    assert_eq!((&moved["uid"], parse_ms(moved["run_at"].as_str().unwrap())), (&made["uid"], at));
    assert_eq!((&moved["next_attempt_at"], &moved["created_at"]), (&moved["run_at"], &made["created_at"]));
    for body in [json!({"delay": "2h"}), json!({"delay_ms": 7_200_000})] {
        let before = now_ms();
        let at = parse_ms(patch(body).await["run_at"].as_str().unwrap());
        assert!((before + 7_200_000..=now_ms() + 7_200_001).contains(&at));
    }
    let kept = patch(json!({"retry": {"max_attempts": 3}, "timeout": "9s", "expires_after": "5h"})).await;
    assert_eq!((&kept["uid"], &kept["max_attempts"], &kept["timeout"]), (&made["uid"], &json!(3), &json!("9s")));
    assert!(kept["expires_at"].is_string());
    let back = patch(json!({"retry": null, "timeout": null, "expires_at": null})).await;
    assert_eq!((&back["retry"], &back["timeout"], &back["expires_at"]), (&Value::Null, &Value::Null, &Value::Null));
    let new = patch(json!({"headers": {"x-a": "1"}})).await;
    assert_ne!(new["uid"], made["uid"]);
    assert_eq!(read().await["headers"], json!({"x-a": "1"}));
    patch(json!({"headers": null})).await;
    assert_eq!(read().await["headers"], json!({}));
    it.api.patch(&path("a"), r#"{"payload": {"b":1.0, "a" : 1}}"#).await.expect(200);
    assert_eq!(it.api.get(&path("a")).await.raw_field("payload").unwrap(), r#"{"b":1.0, "a" : 1}"#);
    patch(json!({"payload": null})).await;
    assert_eq!(it.api.get(&path("a")).await.raw_field("payload").unwrap(), "null");
    it.webhook("q", "/hook").await;
    let last = patch(json!({"delay": "0s"})).await;
    let came = it.receiver.wait_for_task("a", secs(5)).await;
    assert_eq!((came.text().as_str(), came.header("webhook-id")), ("null", last["uid"].as_str()));
    it.at_rest("q").await;
}

#[tokio::test]
async fn patch_refuses_with_each_of_its_statuses() {
    let it = World::start().await;
    let gate = it.one_of_each().await;
    it.schedule("q", json!({"id": "a", "payload": 1, "delay": "1h", "expires_after": "2h"})).await;
    for (body, field) in [
        (r#"{"delay": null}"#, "delay"),
        (r#"{"run_at": null}"#, "run_at"),
        (r#"{"delay": "1h", "delay_ms": 1}"#, "delay"),
        (r#"{"delay": "3660d"}"#, "delay"),
        (r#"{"run_at": "2099-01-01T00:00:00Z"}"#, "run_at"),
        (r#"{"expires_at": null, "expires_after": "1h"}"#, "expires_after"),
        (r#"{"expires_at": null, "expires_after": null}"#, "expires_at"),
        (r#"{"expires_after": "3660d"}"#, "expires_after"),
        (r#"{"delay": "2h", "expires_after": "1h"}"#, "expires_after"),
        (r#"{"delay": "2h"}"#, "delay"),
        (r#"{"expires_after": "10m"}"#, "expires_after"),
        (r#"{"timeout": "1ms"}"#, "timeout"),
        (r#"{"retry": {"max_attempts": 0}}"#, "retry.max_attempts"),
        (r#"{"headers": {"host": "a"}}"#, "headers.host"),
        (r#"{"id": "b"}"#, "id"),
    ] {
        it.api.patch(&path("a"), body).await.refuses(field);
    }
    it.api.patch(&path("a"), "{}").await.problem(400, "invalid-request");
    let deep = format!(r#"{{"payload": {}{}}}"#, "[".repeat(129), "]".repeat(129));
    it.api.patch(&path("a"), deep).await.refuses("payload");
    let big = format!(r#"{{"payload": "{}"}}"#, "x".repeat(256 << 10));
    it.api.patch(&path("a"), big).await.problem(413, "too-large");
    let untyped =
        it.api.request(axum::http::Method::PATCH, "/queues/q/tasks/a", &[], Some(json!({"delay": "1s"}).into()));
    untyped.await.unwrap().problem(415, "unsupported-media-type");
    let active = it.api.patch(&path("active"), json!({"delay": "1h"})).await.problem(409, "task-active");
    assert_eq!(active["state"], "active");
    for id in ["completed", "dead", "cancelled"] {
        let ended = it.api.patch(&path(id), json!({"payload": 1})).await.problem(409, "task-finished");
        assert_eq!(ended["state"], id);
    }
    it.api.patch(&path("none"), json!({"delay": "1h"})).await.problem(404, "task-not-found");
    it.api.patch("/queues/none/tasks/a", json!({"delay": "1h"})).await.problem(404, "queue-not-found");
    gate.open();
}

#[tokio::test]
async fn run_brings_forward_and_back() {
    let it = World::start().await;
    let gate = it.one_of_each().await;
    let waits = it.schedule("q", json!({"id": "waits", "payload": 1, "delay": "1h"})).await;
    let ran = it.run("waits").await.expect(200).json();
    assert_eq!((&ran["run_at"], &ran["uid"]), (&waits["run_at"], &waits["uid"]));
    it.in_state("q", "waits", "completed").await;
    let lateness = it.task("q", "waits").await["attempts"][0]["lateness_ms"].as_i64().expect("a number");
    assert!((0..1000).contains(&lateness), "{lateness}");

    let dead = it.task("q", "dead").await;
    it.receiver.when(|r| r.task() == "dead", Answer::status(200));
    for (id, uid) in [("dead", Some(&dead["uid"])), ("cancelled", None)] {
        let back = it.run(id).await.expect(200).json();
        assert_eq!((&back["state"], &back["attempt"]), (&json!("scheduled"), &json!(0)));
        assert!(uid.is_none_or(|uid| back["uid"] == *uid), "the uid stays");
        it.in_state("q", id, "completed").await;
    }
    assert_eq!(it.run("active").await.problem(409, "task-active")["state"], "active");
    assert_eq!(it.run("completed").await.problem(409, "task-finished")["state"], "completed");
    it.run("none").await.problem(404, "task-not-found");
    let elsewhere = it.api.request(axum::http::Method::POST, "/queues/none/tasks/a/run", &[], None).await.unwrap();
    elsewhere.problem(404, "queue-not-found");
    gate.open();
    let stats = it.at_rest("q").await;
    assert_eq!((figure(&stats, "revived_total"), figure(&stats, "dead_total")), (2, 1));

    it.schedule("q", json!({"id": "gone", "payload": 1, "delay": "1h"})).await;
    it.api.delete(&path("gone")).await.expect(200);
    it.api.patch("/queues/q", json!({"max_size": 1})).await.expect(200);
    it.schedule("q", json!({"id": "one", "payload": 1, "delay": "1h"})).await;
    it.run("gone").await.problem(429, "queue-full");
}

#[tokio::test]
async fn an_expired_task_runs_without_its_expiry() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "a", "payload": 1, "expires_after": "50ms"})).await;
    it.in_state("q", "a", "expired").await;
    assert_eq!(it.run("a").await.expect(200).json()["expires_at"], Value::Null);
    it.webhook("q", "/hook").await;
    it.in_state("q", "a", "completed").await;
    it.at_rest("q").await;
}

/// 1,000 tasks PATCHed back and forth by 8 clients while due times pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_moved_under_fire_arrive_once_and_not_early() {
    const TASKS: usize = 1000;
    const CLIENTS: usize = 8;
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let soon = |rng: &mut fastrand::Rng| ms(rng.u64(1500..4500));
    let tasks: Vec<Value> = (0..TASKS).map(|n| json!({"id": format!("t{n}"), "payload": n, "delay": "3s"})).collect();
    let made = it.api.post("/queues/q/batch", json!({"tasks": tasks})).await.expect(200).json();
    let mut acknowledged = std::collections::HashMap::new();
    for result in made["results"].as_array().unwrap() {
        let task = &result["task"];
        acknowledged.insert(task["id"].as_str().unwrap().to_owned(), parse_ms(task["run_at"].as_str().unwrap()));
    }
    let end = now_ms() + 5000;
    let client = async |c: usize| {
        let mut rng = fastrand::Rng::with_seed(c as u64);
        // each client has tasks of its own, so that what was acknowledged last is known
        let (mut last, mut moves, mut refused) = (std::collections::HashMap::new(), 0, 0);
        while now_ms() < end {
            let id = format!("t{}", c + CLIENTS * rng.usize(0..TASKS / CLIENTS));
            let body = match rng.u8(0..9) {
                0..4 => json!({"delay_ms": soon(&mut rng).as_millis() as u64}),
                4..8 => json!({"run_at": format_ms(now_ms() + soon(&mut rng).as_millis() as i64)}),
                _ => json!({"delay_ms": rng.u64(0..50)}),
            };
            let answer = it.api.patch(&path(&id), body).await;
            match answer.status {
                200 => {
                    moves += 1;
                    last.insert(id, parse_ms(answer.json()["run_at"].as_str().unwrap()));
                }
                409 => refused += 1,
                _ => panic!("{}", answer.text()),
            }
        }
        (last, moves, refused)
    };
    let (mut moves, mut refused) = (0, 0);
    for (last, moved, late) in join_all((0..CLIENTS).map(client)).await {
        acknowledged.extend(last);
        (moves, refused) = (moves + moved, refused + late);
    }
    let stats = it.at_rest("q").await;
    assert_eq!(figure(&stats, "delivered_total"), TASKS as i64, "{stats}");
    for (id, at) in &acknowledged {
        let came = it.receiver.of_task(id);
        assert_eq!(came.len(), 1, "{id}");
        assert!(came[0].at_ms >= *at, "{id} came {} ms early", at - came[0].at_ms);
    }
    assert!(moves > 100, "only {moves} moves");
    println!("{moves} moves, {refused} too late");
}
