//! Real cases about what is stored: records of other versions (C009), and sets that lost a member (C067).

use serde_json::{Value, json};

use crate::support::{
    Answer, Receiver, RedisServer, Service, World, eventually, secs,
    service::run,
    world::{assert_balanced, at_rest, figure},
};

/// The queue's key with that ending.
async fn key(redis: &RedisServer, part: &str) -> String {
    let keys: Vec<String> = redis.command(&["KEYS", &format!("dp:*:q:{part}")]).await;
    keys.into_iter().next().unwrap_or_else(|| panic!("no {part}"))
}

/// Puts another version before what is kept of a task.
async fn reversion(redis: &RedisServer, part: &str, id: &str, version: u8) {
    const SCRIPT: &str = "local old = redis.call('HGET', KEYS[1], ARGV[1]) \
        return redis.call('HSET', KEYS[1], ARGV[1], string.char(ARGV[2]) .. string.sub(old, 2))";
    let (key, version) = (key(redis, part).await, version.to_string());
    let _: i64 = redis.command(&["EVAL", SCRIPT, "1", &key, id, &version]).await;
}

#[tokio::test]
async fn c009_records_of_another_version_never_fire_early_and_hold_nobody_up() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    for (id, version) in [("newer", 2), ("older", 0)] {
        for (when, delay) in [("soon", "500ms"), ("far", "1h")] {
            let id = format!("{id}-{when}");
            it.schedule("q", json!({"id": id, "payload": 1, "delay": delay})).await;
            reversion(&it.redis, "tasks", &id, version).await;
        }
    }
    it.schedule("q", json!({"id": "fine", "payload": 1, "delay": "1s"})).await;
    it.receiver.wait_for_task("fine", secs(10)).await;
    it.sentinel("q", "last").await;

    eventually(secs(5), async || figure(&it.stats("q").await, "dead") == 2).await;
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    let figures = ["scheduled", "due", "active", "dead", "delivered_total"].map(|name| figure(&stats, name));
    assert_eq!(figures, [2, 0, 0, 2, 2], "those due are dead, those of the future wait: {stats}");
    assert_eq!(it.receiver.count(), 2, "no burst");
    let unread = it.service.stderr().matches("is not known to this release").count();
    assert_eq!(unread, 2, "one line each: {}", it.service.stderr());

    // a release that knows them finds them as they were
    for id in ["newer-far", "older-far"] {
        reversion(&it.redis, "tasks", id, 1).await;
        it.api.post(&format!("/queues/q/tasks/{id}/run"), "").await.expect(200);
        it.in_state("q", id, "completed").await;
    }
    for id in ["newer-soon", "older-soon"] {
        reversion(&it.redis, "tasks", id, 1).await;
        let task = it.task("q", id).await;
        assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &Value::Null), "{task}");
        it.api.post(&format!("/queues/q/tasks/{id}/run"), "").await.expect(200);
        it.in_state("q", id, "completed").await;
    }
}

#[tokio::test]
async fn c009_a_task_of_another_version_says_so_and_can_be_cancelled() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    for part in ["tasks", "runs"] {
        it.schedule("q", json!({"id": part, "payload": 1, "delay": if part == "tasks" { "1h" } else { "0s" }})).await;
    }
    it.in_state("q", "runs", "completed").await;
    reversion(&it.redis, "tasks", "tasks", 2).await;
    reversion(&it.redis, "runs", "runs", 2).await;
    let path = |id| format!("/queues/q/tasks/{id}");
    for id in ["tasks", "runs"] {
        let shown = it.api.get(&path(id)).await.expect(500).json();
        assert_eq!(shown["type"], "/problems/unreadable", "{shown}");
        assert!(shown["detail"].as_str().unwrap().contains("version 2 is not known to this release"), "{shown}");
    }

    for _ in 0..2 {
        let cancelled = it.api.delete(&path("tasks")).await.expect(500).json();
        assert_eq!((&cancelled["type"], &cancelled["state"]), (&json!("/problems/unreadable"), &json!("cancelled")));
        let detail = cancelled["detail"].as_str().unwrap();
        assert!(detail.starts_with("no attempt of task tasks will start"), "{detail}");
    }
    assert_eq!(it.api.delete(&path("runs")).await.expect(409).json()["type"], "/problems/task-finished");
    let stats = it.stats("q").await;
    assert_balanced(&stats);
    assert_eq!(["scheduled", "cancelled", "completed"].map(|name| figure(&stats, name)), [0, 1, 1], "{stats}");

    // a release that knows it finds it cancelled
    reversion(&it.redis, "tasks", "tasks", 1).await;
    assert_eq!(it.task("q", "tasks").await["state"], "cancelled");
    assert_eq!(it.receiver.count(), 1);
}

#[tokio::test]
async fn c067_tasks_whose_records_were_removed_leave_and_do_not_loop() {
    const EACH: usize = 20;
    let redis = RedisServer::start().await;
    let mut dies = Service::builder(&redis).flag("--lease", "3s").start().await;
    let (api, receiver) = (dies.client(), Receiver::start().await);
    receiver.when(|r| r.task().starts_with("held"), Answer::hang());
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    for n in 0..EACH {
        for (id, delay) in [("held", "0s"), ("waits", "8s")] {
            let task = json!({"id": format!("{id}{n}"), "payload": n, "delay": delay});
            api.post("/queues/q/tasks", task).await.expect(201);
        }
    }
    receiver.wait_for(EACH, secs(10)).await;
    let _: i64 = redis.command(&["DEL", &key(&redis, "tasks").await]).await;
    dies.kill9();

    let next = Service::builder(&redis).flag("--lease", "3s").start().await;
    let api = next.client();
    let stats = async || api.get("/queues/q/stats").await.expect(200).json();
    eventually(secs(30), async || {
        let stats = stats().await;
        figure(&stats, "active") + figure(&stats, "scheduled") == 0
    })
    .await;
    let ghosts: i64 = redis.command(&["HGET", &key(&redis, "totals").await, "ghosts"]).await;
    assert_eq!(ghosts, 2 * EACH as i64, "each is counted as it goes");
    assert_eq!(receiver.count(), EACH, "nothing is delivered without its payload");
    // nothing is left to do, and nothing is done
    eventually(secs(30), async || redis.calls_during(secs(2)).await <= 12).await;

    // their ids are free, and new tasks are delivered
    api.post("/queues/q/tasks", json!({"id": "waits0", "payload": "new"})).await.expect(201);
    let came = receiver.wait_for_task("waits0", secs(10)).await;
    assert_eq!((came.text().as_str(), came.attempt()), (r#""new""#, 1));
}

#[tokio::test]
async fn c067_tasks_whose_leases_or_times_were_removed_end_dead_once_they_are_looked_for() {
    const EACH: usize = 20;
    let redis = RedisServer::start().await;
    let mut dies = Service::serve(&redis).await;
    let (api, receiver) = (dies.client(), Receiver::start().await);
    receiver.when(|r| r.task().starts_with("held"), Answer::hang());
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    for n in 0..EACH {
        for (id, delay) in [("held", "0s"), ("waits", "1h")] {
            let task = json!({"id": format!("{id}{n}"), "payload": n, "delay": delay});
            api.post("/queues/q/tasks", task).await.expect(201);
        }
    }
    receiver.wait_for(EACH, secs(10)).await;
    dies.kill9();
    for part in ["active", "due"] {
        let _: i64 = redis.command(&["DEL", &key(&redis, part).await]).await;
    }

    let repaired = run(&["fsck", "--repair", "--redis", &redis.url()]);
    assert_eq!(repaired.status.code(), Some(0), "{}", String::from_utf8_lossy(&repaired.stdout));
    receiver.forget_rules();
    let next = Service::serve(&redis).await;
    let api = next.client();
    let stats = api.get("/queues/q/stats").await.expect(200).json();
    assert_balanced(&stats);
    let figures = ["active", "scheduled", "dead"].map(|name| figure(&stats, name));
    assert_eq!(figures, [0, 0, 2 * EACH as i64], "{stats}");
    let replayed = api.post("/queues/q/replay", "{}").await.expect(200).json();
    assert_eq!(replayed["replayed"], 2 * EACH);
    let stats = at_rest(&redis, &api, "q").await;
    assert_eq!(figure(&stats, "delivered_total"), 2 * EACH as i64, "{stats}");
}
