//! Real cases, group F: many retries at once, and retries that are noted when Redis's answers are lost.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    Answer, Client, Gate, Receiver, RedisServer, Service, World, eventually,
    link::Link,
    ms, parse_ms, secs, size, until,
    world::{at_rest, figure},
};

/// Schedules `t0`, `t1`, … in one call after the other.
async fn given(api: &Client, tasks: usize, retry: &Value) {
    const PIECE: usize = 200;
    let task = |n: usize| json!({"id": format!("t{n}"), "payload": n, "retry": retry});
    for from in (0..tasks).step_by(PIECE) {
        let tasks: Vec<Value> = (from..tasks.min(from + PIECE)).map(task).collect();
        api.post("/queues/q/batch", json!({"tasks": tasks})).await.expect(200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c083_no_retry_is_forgotten_through_an_outage_and_rolling_restarts() {
    let (tasks, outage, restart_every) =
        size((200, secs(6), ms(1500)), (1000, Duration::from_mins(3), Duration::from_mins(1)));
    let (base, max) = size(("100ms", "1s"), ("1s", "20s"));
    let redis = RedisServer::start().await;
    let mut services = [Service::serve(&redis).await, Service::serve(&redis).await];
    let receiver = Receiver::start().await;
    let hook = json!({"url": receiver.url("/hook")});
    services[0].client().post("/queues/q/webhooks", hook).await.expect(201);
    receiver.on("/hook", Answer::status(500));
    let backoff = json!({"kind": "exponential", "base": base, "factor": 2.0, "max": max});
    given(&services[0].client(), tasks, &json!({"max_attempts": 10_000, "backoff": backoff})).await;

    let (end, mut worst) = (Instant::now() + outage, 0);
    while Instant::now() < end {
        let look_until = Instant::now() + restart_every;
        while Instant::now() < look_until {
            let stats = services[0].client().get("/queues/q/stats").await.expect(200).json();
            worst = worst.max(figure(&stats, "oldest_due_ms"));
            assert!(figure(&stats, "oldest_due_ms") < 5_000, "a task is due and nobody takes it: {stats}");
            tokio::time::sleep(ms(50)).await;
        }
        services[1].sigterm();
        services[1].wait_exit(secs(30)).await;
        services[1] = Service::serve(&redis).await;
        services.swap(0, 1);
    }
    receiver.forget_rules();
    let stats = at_rest(&redis, &services[0].client(), "q").await;
    println!("{} failures of {tasks} tasks, the latest head {worst} ms late", figure(&stats, "failed_attempts_total"));
    assert_eq!(figure(&stats, "delivered_total"), tasks as i64, "{stats}");
    assert!(figure(&stats, "failed_attempts_total") >= 2 * tasks as i64, "{stats}");
}

#[tokio::test]
async fn c085_what_failed_together_is_not_tried_again_together() {
    const FLOOR_MS: i64 = 1_000;
    const BUCKET_MS: i64 = 250;
    const BUCKETS: usize = 8; // those of the two seconds of jitter
    let tasks = size(400, 1000);
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.when(|r| r.attempt() == 1, Answer::status(500));
    // pauses of 1 s to 3 s
    given(&it.api, tasks, &json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "2s", "jitter": 0.5}}))
        .await;
    it.receiver.wait_for(2 * tasks, secs(30)).await;
    let stats = it.at_rest("q").await;
    assert_eq!(figure(&stats, "failed_attempts_total"), tasks as i64, "{stats}");

    let (mut due, mut pauses) = (Vec::new(), Vec::new());
    for n in 0..tasks {
        let task = it.task("q", &format!("t{n}")).await;
        let attempts = task["attempts"].as_array().expect("attempts");
        let start = |n: usize| parse_ms(attempts[n]["started_at"].as_str().expect("an instant"));
        let number = |n: usize, name: &str| attempts[n][name].as_i64().expect("a number");
        due.push(start(1) - number(1, "lateness_ms"));
        let pause = due[n] - start(0) - number(0, "duration_ms");
        assert!(pause >= FLOOR_MS, "{pause} ms: {task}");
        pauses.push(pause);
    }
    // a busy machine makes pauses longer, never shorter
    let (shortest, longest) = (pauses.iter().min().expect("some"), pauses.iter().max().expect("some"));
    assert!(*shortest < FLOOR_MS + 300 && longest - shortest > 1_500, "pauses of {shortest} to {longest} ms");
    let first = *due.iter().min().expect("some");
    let mut buckets = BTreeMap::<_, usize>::new();
    for due in due {
        *buckets.entry((due - first) / BUCKET_MS).or_default() += 1;
    }
    println!("second attempts by {BUCKET_MS} ms: {buckets:?}");
    let most = 3 * tasks / BUCKETS;
    assert!(buckets.values().all(|n| *n <= most), "no more than {most} in one: {buckets:?}");
}

#[tokio::test]
async fn c086_a_failure_whose_note_goes_unanswered_is_noted_once() {
    const TASKS: usize = 100;
    let redis = RedisServer::start().await;
    let link = Link::to(&redis).await;
    let service = Service::builder_at(&link.url()).flag("--slots-per-webhook", "100").start().await;
    let (api, receiver, gate) = (service.client(), Receiver::start().await, Gate::new());
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    // once, so that Redis knows the script: otherwise it is the answer "unknown script" that is lost
    api.post("/queues/q/tasks", json!({"id": "first", "payload": 1})).await.expect(201);
    eventually(secs(10), async || api.get("/queues/q/tasks/first").await.json()["state"] == "completed").await;
    receiver.when(|r| r.attempt() == 1, Answer::status(500).held_by(&gate));
    given(&api, TASKS, &json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "3s", "jitter": 0}})).await;
    receiver.wait_for(1 + TASKS, secs(10)).await;
    link.eat_answers_to(b"\r\nretry\r\n"); // only a settlement says so
    gate.open();
    let failed = async || {
        let totals: Vec<String> = redis.command(&["KEYS", "*:q:totals"]).await;
        let failed: Option<i64> = redis.command(&["HGET", &totals[0], "failed"]).await;
        failed.unwrap_or(0)
    };
    eventually(secs(15), async || failed().await == TASKS as i64 && link.eaten() > 1).await;
    link.eat_nothing();

    let stats = until(secs(20), async || {
        let stats = api.get("/queues/q/stats").await;
        (stats.status == 200).then(|| stats.json()).filter(|s| figure(s, "delivered_total") == 1 + TASKS as i64)
    })
    .await;
    println!("{} answers lost on the way", link.eaten());
    assert_eq!(figure(&stats, "failed_attempts_total"), TASKS as i64, "counted once: {stats}");
    at_rest(&redis, &api, "q").await;
    let mut came = BTreeMap::<String, Vec<_>>::new();
    for request in receiver.journal().iter().skip(1) {
        came.entry(request.task().to_owned()).or_default().push((request.attempt(), request.at_ms));
    }
    assert_eq!(came.len(), TASKS);
    for (id, came) in came {
        let ones = came.iter().filter(|(attempt, _)| *attempt == 1).count();
        assert_eq!((ones, came.len()), (1, 2), "{id}: one attempt an instant: {came:?}");
        assert!(came[1].1 - came[0].1 >= 2900, "{id}: {came:?}"); // to the precision of the process's idea of the time
    }
    let tasks = join_all((0..TASKS).map(|n| {
        let (api, path) = (api.clone(), format!("/queues/q/tasks/t{n}"));
        async move { api.get(&path).await.expect(200).json() }
    }));
    for task in tasks.await {
        let outcomes: Vec<&Value> = task["attempts"].as_array().expect("some").iter().map(|a| &a["outcome"]).collect();
        let rejected = outcomes.iter().filter(|o| **o == "rejected").count();
        let delivered = outcomes.iter().filter(|o| **o == "delivered").count();
        assert_eq!((rejected, delivered), (1, 1), "{task}");
    }
}
