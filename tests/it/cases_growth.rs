//! Real cases, group J: what must not grow. Small in CI; with `DUEPOST_TEST_SIZE=full` as large as they were told.

use std::collections::BTreeMap;

use duepost::domain::{
    retry::{Backoff, BackoffKind, RetryPatch},
    task::{NewTask, TaskState},
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    Answer, RedisServer, World, eventually,
    inside::Inside,
    ms, now_ms, secs, size, until, vitals,
    world::{TOLERANCE_MS, figure},
};

/// The key of the queue `orders` with that ending.
async fn key(redis: &RedisServer, part: &str) -> String {
    let keys: Vec<String> = redis.command(&["KEYS", &format!("dp:*:orders:{part}")]).await;
    keys.first().cloned().unwrap_or_else(|| format!("no {part}"))
}

async fn records(it: &Inside) -> (i64, i64) {
    let (tasks, runs) = (key(&it.redis, "tasks").await, key(&it.redis, "runs").await);
    (it.redis.command(&["HLEN", &tasks]).await, it.redis.command(&["HLEN", &runs]).await)
}

/// All keys by their type.
async fn types(redis: &RedisServer) -> BTreeMap<String, usize> {
    let mut types = BTreeMap::new();
    for key in redis.command::<Vec<String>>(&["KEYS", "*"]).await {
        *types.entry(redis.command::<String>(&["TYPE", &key]).await).or_default() += 1;
    }
    types
}

fn at_once(max_attempts: u32) -> RetryPatch {
    let backoff = Backoff { kind: BackoffKind::Fixed { delay: ms(1) }, jitter: 0.0 };
    RetryPatch { max_attempts: Some(max_attempts), backoff: Some(backoff) }
}

#[tokio::test]
async fn c150_what_retention_forgets_leaves_nothing_behind() {
    const ROUNDS: usize = 4;
    const KEPT: usize = 100;
    let (dead, done) = size((240, 400), (2000, 2000));
    let it = Inside::start().await;
    it.settings(|s| {
        s.retain_dead = secs(60);
        s.retain_completed_max = KEPT as u64;
    })
    .await;
    it.webhook("main").await;
    it.receiver.when(|r| r.task().starts_with("bad"), Answer::status(500));
    let worker = it.worker_with(|c| c.slots_per_webhook = 256);
    let mut keys = Vec::new();
    for round in 0..ROUNDS {
        for n in 0..dead / ROUNDS {
            let mut bad = it.new_task(&format!("bad{n}")); // the same ids in each round: those forgotten are free again
            bad.options.retry = Some(at_once(1));
            it.given(bad).await;
        }
        for n in 0..done / ROUNDS {
            it.given(NewTask { id: None, ..it.new_task(&format!("good{n}")) }).await;
        }
        let (all_dead, all_done) = ((round + 1) * dead / ROUNDS, (round + 1) * done / ROUNDS);
        let stats = async || it.store.stats(&it.queue).await.unwrap().unwrap();
        eventually(secs(30), async || {
            let totals = stats().await.totals;
            (totals.dead, totals.delivered) == (all_dead as u64, all_done as u64)
        })
        .await;
        it.advance(secs(80)); // longer than retention and its step of 10 s
        eventually(secs(10), async || {
            let stats = stats().await;
            stats.dead == 0 && stats.completed <= KEPT as u64
        })
        .await;
        let (records, runs) = records(&it).await;
        assert!(records <= KEPT as i64 && runs <= records, "{records} records and {runs} runs after {all_dead} dead");
        keys.push(it.redis.command::<i64>(&["DBSIZE"]).await);
    }
    assert!(keys.iter().all(|n| *n <= keys[0]), "keys: {keys:?}");
    assert_eq!(types(&it.redis).await.keys().collect::<Vec<_>>(), ["hash", "string", "zset"], "no list, no stream");
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn c152_the_history_of_a_task_is_bounded() {
    let attempts = size(100, 2000);
    let it = Inside::start().await;
    it.webhook("main").await;
    it.receiver.on("/main", Answer::status(500).body("x".repeat(4096)));
    let mut task = it.new_task("one");
    task.options.retry = Some(at_once(attempts));
    it.given(task).await;
    let worker = it.worker();
    let row = async || {
        let runs = key(&it.redis, "runs").await;
        it.redis.command::<i64>(&["HSTRLEN", &runs, "one"]).await
    };
    eventually(secs(60), async || it.task("one").await.attempt() >= 30).await;
    let early = row().await;
    let before = types(&it.redis).await;
    let task = until(secs(120), async || Some(it.task("one").await).filter(|t| t.state == TaskState::Dead)).await;
    let late = row().await;
    println!("the row of a task has {early} bytes after 30 attempts, {late} after {attempts}");
    assert_eq!((task.progress.attempts.len(), task.attempt()), (20, attempts));
    for attempt in &task.progress.attempts {
        let kept = attempt.response.as_deref().unwrap_or_default().len();
        assert!((1000..=1024).contains(&kept), "{kept} bytes of an answer of 4 KiB");
    }
    assert!(late < early + 1024, "{early} bytes, then {late}");
    assert!(late < 20 * (1024 + 300), "{late} bytes for 20 attempts");
    let after = types(&it.redis).await;
    assert!(after.values().sum::<usize>() <= before.values().sum::<usize>() + 1, "{before:?}, then {after:?}");
    worker.stop(secs(1)).await;
}

/// A port on which nobody listens.
async fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("an address").port()
}

/// Deliveries of every kind that ends, one of six each; gives how many ended.
async fn all_kinds(it: &World, round: usize, each: usize) {
    /// A webhook that gives no answer ten times in a row is held; so each of these gets fewer tasks.
    const PER_SILENT: usize = 9;
    let queues = [format!("ok{round}"), format!("slow{round}"), format!("reset{round}"), format!("huge{round}")];
    for queue in &queues {
        let path = format!("/{}", queue.trim_end_matches(char::is_numeric));
        it.webhook(queue, &path).await;
    }
    let silent = each.div_ceil(PER_SILENT);
    let refused = closed_port().await;
    for n in 0..silent {
        for (name, url) in [
            ("refused", format!("http://127.0.0.1:{refused}/")),
            ("tls", format!("https://{}/", it.receiver.addr())), // it waits for the rest of a request
        ] {
            it.api.post(&format!("/queues/{name}{round}-{n}/webhooks"), json!({"url": url})).await.expect(201);
        }
    }
    let retry = json!({"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "1ms"}});
    // only what hangs is given little time: on a busy machine anything may take a moment
    let batch = |queue: &str, n: usize| {
        let hangs = queue.starts_with("slow") || queue.starts_with("tls");
        let timeout = if hangs { "600ms" } else { "10s" };
        let task = json!({"payload": "x", "timeout": timeout, "retry": retry});
        json!({"tasks": vec![task; n]})
    };
    for queue in &queues {
        it.api.post(&format!("/queues/{queue}/batch"), batch(queue, each)).await.expect(200);
    }
    let mut all: Vec<String> = queues.to_vec();
    for n in 0..silent {
        for name in ["refused", "tls"] {
            let queue = format!("{name}{round}-{n}");
            it.api.post(&format!("/queues/{queue}/batch"), batch(&queue, PER_SILENT / 2)).await.expect(200);
            all.push(queue);
        }
    }
    for queue in all {
        let ended = async || {
            let stats = it.stats(&queue).await;
            figure(&stats, "scheduled") + figure(&stats, "active") == 0
        };
        eventually(secs(120), ended).await;
        it.api.delete(&format!("/queues/{queue}?force=true")).await.expect(204);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c156_deliveries_of_every_kind_leave_no_descriptor_and_no_memory() {
    let (rounds, each) = size((6, 36), (20, 200));
    let it = World::start().await;
    let pid = it.service.pid();
    // so few that none is held for its silence
    let now_and_then = |n: usize| n.is_multiple_of(6);
    let turn = [const { std::sync::atomic::AtomicUsize::new(0) }; 2];
    it.receiver.by(move |r| {
        let turn = turn[usize::from(r.path() == "/slow")].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match r.path() {
            "/slow" if now_and_then(turn) => Some(Answer::hang()),
            "/reset" if now_and_then(turn) => Some(Answer::reset()),
            "/huge" => Some(Answer::status(200).body("x".repeat(300 << 10)).into()),
            _ => None,
        }
    });
    it.stats_of_nothing().await;
    let mut seen = Vec::new();
    for round in 0..rounds {
        all_kinds(&it, round, each).await;
        seen.push((vitals::descriptors(pid), vitals::memory_kib(pid)));
    }
    let calls = it.receiver.count();
    println!("descriptors and KiB after each of {rounds} rounds, {calls} calls that arrived: {seen:?}");
    assert!(seen[rounds - 1].1 <= seen[1].1 + 16 * 1024, "{seen:?}");
    // idle connections are kept for 4 s
    eventually(secs(20), async || vitals::descriptors(pid) < 80).await;
}

impl World {
    /// Makes every connection that a first call makes.
    async fn stats_of_nothing(&self) {
        self.schedule("first", json!({"payload": 1, "delay": "1h"})).await;
        self.stats("first").await;
    }

    /// A claim on a connection of its own.
    async fn waiting_claim(&self, queue: &str) -> TcpStream {
        let body = r#"{"wait":"60s"}"#;
        let mut stream = TcpStream::connect(self.service.address()).await.expect("the service listens");
        let head = format!(
            "POST /queues/{queue}/claim HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.expect("the service reads");
        stream
    }
}

#[tokio::test]
async fn c157_waiters_end_and_those_that_left_hold_nothing() {
    let (rounds, waiters) = size((12, 200), (20, 1000));
    let it = World::start().await;
    let pid = it.service.pid();
    it.stats_of_nothing().await;
    let mut seen = Vec::new();
    for round in 0..rounds {
        let before = vitals::descriptors(pid);
        let waiting = join_all((0..waiters).map(|_| it.waiting_claim("q"))).await;
        eventually(secs(10), async || vitals::descriptors(pid) >= before + waiters).await;
        // what they might wait for goes in every way
        for (id, more) in
            [("cancelled", json!({})), ("expired", json!({"expires_after": "11m"})), ("purged", json!({}))]
        {
            let mut task = json!({"id": format!("{id}{round}"), "payload": 1, "delay": "10m"});
            task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            it.schedule("q", task).await;
        }
        it.api.delete(&format!("/queues/q/tasks/cancelled{round}")).await.expect(200);
        it.api.post("/queues/q/purge", json!({"states": ["scheduled"]})).await.expect(200);
        drop(waiting);
        eventually(secs(10), async || vitals::descriptors(pid) <= before + 2).await;
        seen.push(vitals::memory_kib(pid));
        // nobody who left takes what comes now
        let posted = now_ms();
        it.schedule("q", json!({"id": format!("t{round}"), "payload": 1})).await;
        let claimed = until(secs(20), async || {
            let answer = it.api.post("/queues/q/claim", json!({"wait": "1s"})).await.expect(200).json();
            answer["tasks"].as_array().and_then(|tasks| tasks.first().cloned())
        });
        let claimed: Value = claimed.await;
        assert_eq!((&claimed["id"], &claimed["attempt"]), (&json!(format!("t{round}")), &json!(1)), "{claimed}");
        assert!(now_ms() - posted < 3 * TOLERANCE_MS, "{} ms", now_ms() - posted);
        let token = json!({"token": claimed["lease"]["token"]});
        it.api.post(&format!("/queues/q/tasks/t{round}/ack"), token).await.expect(200);
    }
    println!("KiB after each of {rounds} rounds of {waiters} waiters that left: {seen:?}");
    // An allocator warms up for a few rounds. A connection kept would cost some 20 KiB with its buffers: 40 MiB in small.
    assert!(seen[rounds - 1] <= seen[1] + 16 * 1024, "{seen:?}");

    // and one that stays until its wait is over
    let mut last = it.waiting_claim("deleted").await;
    it.schedule("deleted", json!({"id": "gone", "payload": 1, "delay": "10m"})).await;
    it.api.delete("/queues/deleted?force=true").await.expect(204);
    it.schedule("deleted", json!({"id": "new", "payload": 1})).await;
    let mut answer = vec![0; 4096];
    let n = tokio::time::timeout(secs(10), last.read(&mut answer)).await.expect("an answer").expect("a connection");
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""id":"new""#), "{answer}");
}
