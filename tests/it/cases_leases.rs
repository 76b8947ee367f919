//! Real cases, group E: leases, crash recovery, duplicates. Leases are as short as the settings allow.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Gate, Receiver, RedisServer, Service, World, eventually,
    link::Link,
    now_ms, secs,
    service::Builder,
    size, until,
    wait::parse_ms,
    world::{TOLERANCE_MS, assert_balanced, at_rest, figure},
};

/// The shortest lease that `--lease` takes.
const LEASE: Duration = secs(3);
/// What may pass between the death of a process and the next attempt: the lease, the calm of 3 s before others end
/// leases, a look, and the tolerance of a busy machine.
const TAKE_OVER: Duration = secs(9);

fn short_lease(redis: &RedisServer) -> Builder {
    Service::builder(redis).flag("--lease", format!("{}s", LEASE.as_secs()))
}

async fn register(api: &Client, receiver: &Receiver) {
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
}

async fn given(api: &Client, id: &str, more: Value) -> Value {
    let mut task = json!({"id": id, "payload": 1});
    task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    api.post("/queues/q/tasks", task).await.expect(201).json()
}

/// How often each task arrived.
fn arrivals(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in receiver.journal() {
        *counts.entry(request.task().to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn c062_a_wait_longer_than_the_lease_is_one_attempt() {
    const TASKS: usize = 20;
    let redis = RedisServer::start().await;
    let services = join_all((0..3).map(|_| short_lease(&redis).start())).await;
    let (api, receiver) = (services[0].client(), Receiver::start().await);
    register(&api, &receiver).await;
    receiver.when(|r| r.attempt() == 1, Answer::status(500));
    let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "4s", "jitter": 0}});
    let mut due = Vec::new();
    for n in 0..TASKS {
        let task = given(&api, &format!("t{n}"), json!({"delay": "4s", "retry": retry})).await;
        due.push(parse_ms(task["run_at"].as_str().expect("an instant")));
    }

    receiver.wait_for(2 * TASKS, secs(20)).await;
    let stats = at_rest(&redis, &api, "q").await;
    for (n, due) in due.iter().enumerate() {
        let came = receiver.of_task(&format!("t{n}"));
        assert_eq!(came.iter().map(|r| r.attempt()).collect::<Vec<_>>(), [1, 2], "one attempt an instant");
        let (first, second) = (came[0].at_ms - due, came[1].at_ms - came[0].at_ms - 4000);
        assert!(
            (0..TOLERANCE_MS).contains(&first) && (0..TOLERANCE_MS).contains(&second),
            "{first} and {second} ms late"
        );
    }
    assert_eq!((figure(&stats, "delivered_total"), figure(&stats, "failed_attempts_total")), (20, 20), "{stats}");
}

#[tokio::test]
async fn c063_a_slow_attempt_keeps_its_lease() {
    const TASKS: usize = 50;
    let redis = RedisServer::start().await;
    let services = join_all((0..2).map(|_| short_lease(&redis).start())).await;
    let (api, receiver) = (services[0].client(), Receiver::start().await);
    register(&api, &receiver).await;
    receiver.on("/hook", Answer::status(200).after(size(3 * LEASE, secs(20))));
    for n in 0..TASKS {
        given(&api, &format!("t{n}"), json!({})).await;
    }
    let completed = async || figure(&api.get("/queues/q/stats").await.expect(200).json(), "delivered_total");
    eventually(secs(40), async || completed().await == TASKS as i64).await;
    at_rest(&redis, &api, "q").await;
    assert_eq!(receiver.count(), TASKS, "nobody else began one of them");
}

#[tokio::test]
async fn c066_a_process_that_comes_back_under_its_name_holds_nothing_of_the_dead_one() {
    const EACH: usize = 10;
    let redis = RedisServer::start().await;
    let mut dies = short_lease(&redis).start().await;
    let (receiver, gate) = (Receiver::start().await, Gate::new());
    receiver.when(|r| r.attempt() == 1, Answer::status(200).held_by(&gate));
    let hook = json!({"url": receiver.url("/hook"), "max_in_flight": EACH});
    dies.client().post("/queues/q/webhooks", hook).await.expect(201);
    for n in 0..EACH {
        given(&dies.client(), &format!("dead{n}"), json!({})).await;
    }
    receiver.wait_for(EACH, secs(10)).await;
    // that is all it may call at once, so the next ones are the other's
    let lives = short_lease(&redis).start().await;
    let api = lives.client();
    for n in 0..EACH {
        given(&api, &format!("live{n}"), json!({})).await;
    }
    receiver.wait_for(2 * EACH, secs(10)).await;

    dies.kill9();
    let killed = now_ms();
    let _again = short_lease(&redis).start().await;
    let came_again = |journal: &[std::sync::Arc<crate::support::Request>]| {
        journal.iter().filter(|r| r.task().starts_with("dead") && r.attempt() == 2).count()
    };
    let journal = receiver.wait_until(TAKE_OVER, |journal| came_again(journal) == EACH).await;
    let last = journal.iter().map(|r| r.at_ms).max().expect("some");
    println!("taken up again {} ms after the kill", last - killed);
    gate.open();

    let stats = at_rest(&redis, &api, "q").await;
    assert_eq!(figure(&stats, "delivered_total"), 2 * EACH as i64);
    for (id, count) in arrivals(&receiver) {
        assert_eq!(count, if id.starts_with("dead") { 2 } else { 1 }, "{id}");
    }
}

#[tokio::test]
async fn c069_many_workers_share_many_tasks_without_a_duplicate() {
    const PIECE: usize = 500;
    let (tasks, workers) = size((2_000, 4), (20_000, 20));
    let redis = RedisServer::start().await;
    let services = join_all((0..workers).map(|_| Service::serve(&redis))).await;
    let (api, receiver) = (services[0].client(), Receiver::start().await);
    register(&api, &receiver).await;
    for piece in 0..tasks / PIECE {
        let tasks: Vec<Value> = (0..PIECE).map(|n| json!({"id": format!("t{piece}-{n}"), "payload": n})).collect();
        api.post("/queues/q/batch", json!({"tasks": tasks})).await.expect(200);
    }
    receiver.wait_for(tasks, secs(120)).await;
    let stats = at_rest(&redis, &api, "q").await;
    let arrivals = arrivals(&receiver);
    assert_eq!((arrivals.len(), receiver.count()), (tasks, tasks), "each of them, and none twice");
    let figures = ["delivered_total", "failed_attempts_total"].map(|name| figure(&stats, name));
    assert_eq!(figures, [tasks as i64, 0], "{stats}");
}

#[tokio::test]
async fn c073_a_crash_is_no_end_and_no_failed_attempt() {
    let redis = RedisServer::start().await;
    let mut dies = short_lease(&redis).start().await;
    let receiver = Receiver::start().await;
    receiver.when(|r| r.attempt() == 1, Answer::hang());
    register(&dies.client(), &receiver).await;
    given(&dies.client(), "t", json!({"retry": {"max_attempts": 5}})).await;
    let first = receiver.wait_for_task("t", secs(10)).await;
    dies.kill9();
    let next = short_lease(&redis).start().await;
    let api = next.client();
    receiver.wait_for(2, TAKE_OVER).await;

    let stats = at_rest(&redis, &api, "q").await;
    let task = api.get("/queues/q/tasks/t").await.expect(200).json();
    assert_eq!((&task["state"], &task["attempt"]), (&json!("completed"), &json!(2)), "{task}");
    let outcomes: Vec<&Value> = task["attempts"].as_array().expect("attempts").iter().map(|a| &a["outcome"]).collect();
    assert_eq!(outcomes, ["lost", "delivered"], "{task}");
    assert_eq!((figure(&stats, "failed_attempts_total"), figure(&stats, "dead_total")), (0, 0), "{stats}");
    let second = &receiver.of_task("t")[1];
    assert_eq!(second.header("webhook-id"), first.header("webhook-id"), "C075: the same after a crash");
}

#[tokio::test]
async fn c074_a_settlement_that_comes_too_late_stops_nobody() {
    const TASKS: usize = 50;
    let redis = RedisServer::start().await;
    let link = Link::to(&redis).await;
    let cut_off = Service::builder_at(&link.url()).flag("--lease", "3s").start().await;
    let (api, receiver, gate) = (cut_off.client(), Receiver::start().await, Gate::new());
    register(&api, &receiver).await;
    receiver.when(|r| r.attempt() == 1 && r.task().starts_with("even"), Answer::status(200).held_by(&gate));
    receiver.when(|r| r.attempt() == 1 && r.task().starts_with("odd"), Answer::status(500).held_by(&gate));
    for n in 0..TASKS {
        let id = format!("{}{n}", if n % 2 == 0 { "even" } else { "odd" });
        given(&api, &id, json!({"retry": {"backoff": {"kind": "fixed", "delay": "1h"}}})).await;
    }
    receiver.wait_for(TASKS, secs(10)).await;

    link.silence(true);
    let other = short_lease(&redis).start().await;
    receiver.wait_for(2 * TASKS, secs(15)).await;
    let delivered = async || {
        figure(&other.client().get("/queues/q/stats").await.expect(200).json(), "delivered_total") == TASKS as i64
    };
    eventually(secs(10), delivered).await;
    let logged = cut_off.stderr().lines().count();
    gate.open();
    drop(other);
    link.silence(false);

    // it alone is left: it goes on with what is new
    let posted = until(secs(10), async || {
        let task = Some(json!({"id": "new", "payload": 1}).into());
        let answer = api.try_call(axum::http::Method::POST, "/queues/q/tasks", task).await.ok()?;
        [200, 201].contains(&answer.status).then(now_ms)
    });
    let posted = posted.await;
    let late = receiver.wait_for_task("new", secs(10)).await.at_ms - posted;
    assert!(late < 3 * TOLERANCE_MS, "{late} ms late");
    let stats = at_rest(&redis, &api, "q").await;
    let figures = ["delivered_total", "failed_attempts_total", "dead_total"].map(|name| figure(&stats, name));
    assert_eq!(figures, [TASKS as i64 + 1, 0, 0], "{stats}");
    assert_eq!(receiver.count(), 2 * TASKS + 1, "once by each process, and the new one");
    let logged = cut_off.stderr().lines().count() - logged;
    assert!(logged <= 2 * TASKS, "{logged} lines for {TASKS} late settlements");
}

#[tokio::test]
async fn c074_a_queue_that_goes_under_its_deliveries_stops_nobody() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let gate = Gate::new();
    it.receiver.when(|r| r.task().starts_with("old"), Answer::status(500).held_by(&gate));
    for n in 0..20 {
        it.schedule("q", json!({"id": format!("old{n}"), "payload": n})).await;
    }
    it.receiver.wait_for(20, secs(10)).await;
    it.api.delete("/queues/q").await.problem(409, "queue-not-empty");
    it.api.delete("/queues/q?force=true").await.expect(204);
    it.webhook("q", "/hook").await;
    gate.open();
    it.sentinel("q", "new").await;
    let stats = it.at_rest("q").await;
    let figures = ["enqueued_total", "delivered_total", "failed_attempts_total"].map(|name| figure(&stats, name));
    assert_eq!(figures, [1, 1, 0], "a queue of the same name starts anew: {stats}");
    assert_eq!(it.receiver.count(), 21);
}

#[tokio::test]
async fn c075_the_id_of_a_delivery_stays_and_nobody_replaces_it() {
    let it = World::start().await;
    let hook = |headers: Value| json!({"url": it.receiver.url("/hook"), "headers": headers});
    for name in ["webhook-id", "Webhook-Id", "webhook-signature", "duepost-attempt", "duepost-task-id"] {
        let field = format!("headers.{name}");
        it.api.post("/queues/q/webhooks", hook(json!({name: "mine"}))).await.refuses(&field);
        let task = json!({"payload": 1, "headers": {name: "mine"}});
        it.api.post("/queues/q/tasks", task).await.refuses(&field);
    }
    it.api.post("/queues/q/webhooks", hook(json!({"idempotency-key": "theirs"}))).await.expect(201);
    it.receiver.on_in_turn("/hook", vec![Answer::status(500).into(), Answer::hang(), Answer::status(200).into()]);
    let retry = json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "50ms"}});
    let task = it.schedule("q", json!({"id": "t", "payload": 1, "timeout": "300ms", "retry": retry})).await;
    it.in_state("q", "t", "completed").await;

    let came = it.receiver.of_task("t");
    assert_eq!(came.iter().map(|r| r.attempt()).collect::<Vec<_>>(), [1, 2, 3]);
    for request in &came {
        let ids: Vec<_> = request.headers().filter(|(name, _)| name.eq_ignore_ascii_case("webhook-id")).collect();
        assert_eq!(ids.len(), 1, "{}", request.head);
        assert_eq!(request.header("webhook-id"), task["uid"].as_str());
        assert_eq!(request.header("idempotency-key"), Some("theirs"));
    }
    assert_balanced(&it.stats("q").await);
}
