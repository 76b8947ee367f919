//! Many tasks in one call.

use serde_json::{Value, json};

use crate::support::{
    Answer, Service, World, secs,
    world::{assert_balanced, figure},
};

const BATCH: &str = "/queues/q/batch";

fn statuses(answer: &Value) -> Vec<u64> {
    answer["results"].as_array().expect("results").iter().map(|r| r["status"].as_u64().expect("a status")).collect()
}

/// Payloads stay byte for byte, and each item is answered as a POST of its own.
#[tokio::test]
async fn each_task_of_a_batch_is_answered_as_a_post_of_its_own() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.when(|r| r.task() == "dead", Answer::status(400).header("duepost-retry", "false"));
    it.schedule("q", json!({"id": "dead", "payload": 1})).await;
    it.in_state("q", "dead", "dead").await;
    it.schedule("q", json!({"id": "there", "payload": 1, "delay": "1h"})).await;
    let payload = r#"{"b": 1.0, "a":[ ] ,"b":12345678901234567890, "s":"\u00e9"}"#;
    let big = format!("\"{}\"", "x".repeat(256 << 10));
    let body = format!(
        r#"{{"tasks": [ {{"id":"a","payload":{payload}}}, {{"id":"there","payload":1,"delay":"1h"}},
           {{"id":"there","payload":2}}, {{"id":"dead","payload":1}}, {{"payload":1,"dealy":"1h"}}, 7, {{"payload":{big}}},
           {{"payload":2,"delay":"3660d"}}, {{"id":"a","payload":{payload}}}, {{"id":"a","payload":3}}, {{"payload":null}} ]}}"#
    );
    let answer = it.api.post(BATCH, body).await.expect(200);
    let all = answer.json();
    assert_eq!(statuses(&all), [201, 200, 409, 409, 400, 400, 413, 400, 200, 409, 201]);
    let results = all["results"].as_array().unwrap();
    for result in results {
        let ok = result["status"].as_u64().unwrap() < 300;
        assert_eq!((result["task"].is_object(), result["problem"].is_object()), (ok, !ok), "{result}");
        if !ok {
            let problem = &result["problem"];
            assert_eq!(problem["status"], result["status"]);
            assert_eq!(problem["request_id"].as_str(), answer.header("x-request-id"));
        }
    }
    assert_eq!(results[0]["task"].get("payload"), None);
    assert_eq!(results[2]["problem"]["type"], "/problems/task-exists");
    assert_eq!(results[2]["problem"]["task"]["id"], "there");
    assert_eq!(results[3]["problem"]["state"], "dead");
    assert_eq!(results[4]["problem"]["errors"][0]["field"], "dealy");
    assert_eq!(results[6]["problem"]["type"], "/problems/too-large");
    assert_eq!(results[7]["problem"]["errors"][0]["field"], "delay");
    it.in_state("q", "a", "completed").await;
    assert_eq!(it.receiver.of_task("a")[0].text(), payload);
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    assert_eq!(figure(&stats, "enqueued_total"), 4);
}

#[tokio::test]
async fn an_atomic_batch_is_all_or_none() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "there", "payload": 1, "delay": "1h"})).await;
    let before = it.stats("q").await;
    let ok = |id: &str| json!({"id": id, "payload": 1, "delay": "1h"});
    for (bad, field) in [
        (json!({"payload": 1, "delay": "3660d"}), "tasks[1].delay"),
        (json!({"payload": 1, "retry": {"max_attempts": 0}}), "tasks[1].retry.max_attempts"),
        (json!({"payload": "x".repeat(256 << 10)}), "tasks[1]"),
        (json!([]), "tasks[1]"),
        (json!({"id": "there", "payload": 2}), "tasks[1].id"),
        (json!({"id": "a", "payload": 2}), "tasks[1].id"),
    ] {
        let batch = json!({"tasks": [ok("a"), bad, ok("b")], "atomic": true});
        let refused = it.api.post(BATCH, batch).await.problem(409, "batch-refused");
        assert_eq!(refused["errors"].as_array().unwrap().len(), 1, "{refused}");
        assert_eq!(refused["errors"][0]["field"], field);
    }
    assert_eq!(it.stats("q").await["enqueued_total"], before["enqueued_total"], "nothing was written");
    it.api.get("/queues/q/tasks/a").await.problem(404, "task-not-found");

    let all = json!({"tasks": [ok("a"), ok("there"), ok("b"), ok("a")], "atomic": true});
    assert_eq!(statuses(&it.api.post(BATCH, all).await.expect(200).json()), [201, 200, 201, 200]);
    it.api.patch("/queues/q", json!({"max_size": 4})).await.expect(200);
    let two = json!({"tasks": [ok("c"), ok("d")], "atomic": true});
    let full = it.api.post(BATCH, &two).await.problem(409, "batch-refused");
    assert_eq!(full["errors"][0]["field"], "tasks[1]");
    let each = json!({"tasks": [ok("c"), ok("d")]});
    assert_eq!(statuses(&it.api.post(BATCH, &each).await.expect(200).json()), [201, 429]);
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let it = World::start().await;
    let of = |n: usize| json!({"tasks": (0..n).map(|n| json!({"payload": n, "delay": "1h"})).collect::<Vec<_>>()});
    for (body, field) in [
        (json!({}), "tasks"),
        (of(0), "tasks"),
        (of(1001), "tasks"),
        (json!({"tasks": {}}), "tasks"),
        (json!({"tasks": [{"payload": 1}], "atomic": null}), "atomic"),
        (json!({"tasks": [{"payload": 1}], "queue": "q"}), "queue"),
    ] {
        it.api.post(BATCH, body).await.refuses(field);
    }
    let most = it.api.post(BATCH, of(1000)).await.expect(200).json();
    assert_eq!(statuses(&most), vec![201; 1000]);
    let mut atomic = of(1000);
    atomic["atomic"] = true.into();
    assert_eq!(statuses(&it.api.post(BATCH, atomic).await.expect(200).json()), vec![201; 1000]);
    assert_eq!(figure(&it.stats("q").await, "scheduled"), 2000);

    // at the limit of the body, and one byte beyond
    let fill = |n: usize| {
        let (open, close) = (r#"{"tasks":[{"delay":"1h","payload":1}"#, "]}");
        format!("{open}{}{close}", " ".repeat(n - open.len() - close.len()))
    };
    assert_eq!(statuses(&it.api.post(BATCH, fill(4 << 20)).await.expect(200).json()), [201]);
    it.api.post(BATCH, fill((4 << 20) + 1)).await.problem(413, "too-large");
    let untyped = it.api.request(axum::http::Method::POST, BATCH, &[], Some(of(1).into())).await.unwrap();
    untyped.problem(415, "unsupported-media-type");

    let wide = Service::builder(&it.redis).flag("--max-batch", "8MiB").switch("--no-auto-create").start().await;
    let (api, payload) = (wide.client(), "x".repeat(200 << 10));
    let large = |atomic| json!({"tasks": vec![json!({"payload": payload, "delay": "1h"}); 21], "atomic": atomic});
    api.post(BATCH, large(true)).await.problem(413, "too-large");
    assert_eq!(statuses(&api.post(BATCH, large(false)).await.expect(200).json()), vec![201; 21]);
    for atomic in [true, false] {
        let batch = json!({"tasks": [{"payload": 1}], "atomic": atomic});
        api.post("/queues/none/batch", batch).await.problem(404, "queue-not-found");
    }
}

#[tokio::test]
async fn without_redis_a_batch_says_so() {
    let mut it = World::start().await;
    it.api.post(BATCH, json!({"tasks": [{"payload": 1, "delay": "1h"}]})).await.expect(200);
    it.redis.kill9();
    let each = it.api.post(BATCH, json!({"tasks": [{"id": "a", "payload": 1}, {"payload": 1, "x": 1}]})).await;
    let each = each.expect(200).json();
    assert_eq!(statuses(&each), [503, 400]);
    let atomic = it.api.post(BATCH, json!({"tasks": [{"payload": 1}], "atomic": true})).await;
    assert_eq!(atomic.status, 503, "{}", atomic.text());
    assert!(atomic.header("retry-after").is_some());
    for answer in [
        it.api.put("/queues/q/tasks/a", json!({"payload": 1})).await,
        it.api.patch("/queues/q/tasks/a", json!({"delay": "1h"})).await,
        it.api.post("/queues/q/tasks/a/run", json!({})).await,
        it.api.post("/queues/q/pause", json!({})).await,
        it.api.post("/queues/q/resume", json!({})).await,
        it.api.post("/queues/q/purge", json!({"states": ["dead"]})).await,
        it.api.post("/queues/q/replay", json!({})).await,
        it.api.delete("/queues/q").await,
    ] {
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    it.redis.restart().await;
    crate::support::eventually(secs(10), async || it.api.get("/queues/q").await.status == 200).await;
}

#[tokio::test]
async fn c038_an_id_is_one_task_through_every_call() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let task = json!({"id": "x", "payload": 1, "delay": "500ms"});
    it.schedule("q", &task).await;
    for atomic in [false, true] {
        let batch = json!({"tasks": [task, task], "atomic": atomic});
        assert_eq!(statuses(&it.api.post(BATCH, batch).await.expect(200).json()), [200, 200]);
    }
    it.api.post("/queues/q/tasks", &task).await.expect(200);
    let now = json!({"tasks": [{"id": "x", "payload": 1}]});
    assert_eq!(statuses(&it.api.post(BATCH, now).await.expect(200).json()), [409]);
    let headers = [("content-type", "application/json"), ("if-none-match", "*")];
    let put = Some(json!({"payload": 1}).into());
    let put = it.api.request(axum::http::Method::PUT, "/queues/q/tasks/x", &headers, put).await.unwrap();
    put.problem(412, "precondition-failed");
    it.in_state("q", "x", "completed").await;
    assert_eq!((it.receiver.count(), figure(&it.at_rest("q").await, "enqueued_total")), (1, 1));
}
