//! Real cases, group H: a Redis that lost, dropped or never took what it should hold, or holds what is not ours.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{
    Answer, ApiAnswer, Gate, RedisServer, Service, World, eventually, ms, secs, size, until, vitals, world::figure,
};

impl World {
    /// The queue's key with that ending.
    async fn key(&self, queue: &str, part: &str) -> String {
        let keys: Vec<String> = self.redis.command(&["KEYS", &format!("dp:*:{queue}:{part}")]).await;
        keys.first().cloned().unwrap_or_else(|| panic!("{queue} has no {part}"))
    }

    /// Its shard's key.
    async fn shard_key(&self, queue: &str, part: &str) -> String {
        let key = self.key(queue, "gate").await;
        format!("{}:{part}", &key[..=key.find('}').expect("a tag")])
    }

    /// Repeats a call until Redis is back.
    async fn patiently(&self, call: impl AsyncFn() -> ApiAnswer) -> ApiAnswer {
        until(secs(20), async || Some(call().await).filter(|answer| answer.status != 503)).await
    }

    /// Lines of trouble in the log.
    fn troubles(&self) -> usize {
        self.service.stderr().lines().filter(|line| line.contains(" WARN ") || line.contains(" ERROR ")).count()
    }

    /// A queue that was lost with its webhook works as soon as it is set up again, and by the new webhook only.
    async fn works_again(&self, troubles: usize) {
        let was = self.receiver.count();
        let task = json!({"id": "waits", "payload": 1, "delay": "1s"});
        self.patiently(async || self.api.post("/queues/q/tasks", &task).await).await.expect(201);
        let hooks = self.api.get("/queues/q/webhooks").await.expect(200).json();
        assert_eq!(hooks["items"], json!([]), "lost, and told so: {hooks}");
        self.webhook("q", "/new").await;
        self.receiver.wait_for_task("waits", secs(20)).await;
        self.sentinel("q", "after").await;
        let came: Vec<String> = self.receiver.journal()[was..].iter().map(|r| r.path().to_owned()).collect();
        assert_eq!(came, ["/new", "/new"], "the old webhook is not known any more");
        assert!(self.troubles() <= troubles + 5, "an error loop:\n{}", self.service.stderr());
    }

    /// Has the queue visited now, by a line in the agenda.
    async fn visit(&self, queue: &str) {
        let agenda = self.shard_key(queue, "agenda").await;
        self.redis.command::<i64>(&["ZADD", &agenda, "0", queue]).await;
    }

    /// Waits until the service is ready and says this.
    #[track_caller]
    fn ready_says(&self, words: &str) -> impl Future<Output = ()> {
        eventually(secs(20), async move || {
            let ready = self.api.get("/readyz").await;
            ready.status == 200 && ready.text().contains(words)
        })
    }
}

#[tokio::test]
async fn c116_a_redis_that_comes_back_empty_is_worked_with() {
    for way in ["flushed", "restarted without its data"] {
        let mut it = World::on(RedisServer::start_with(&[]).await).await;
        it.webhook("q", "/old").await;
        it.sentinel("q", "before").await;
        for n in 0..3 {
            it.schedule("q", json!({"id": format!("lost{n}"), "payload": n, "delay": "1h"})).await;
        }
        let troubles = it.troubles();
        if way == "flushed" {
            it.redis.command::<()>(&["FLUSHALL"]).await;
        } else {
            it.redis.restart().await;
        }
        it.works_again(troubles).await;
        it.ready_says("accepted tasks (flushed").await;
        eventually(secs(5), async || it.service.stderr().contains("lost writes that it had acknowledged")).await;
    }
}

/// The queue goes through as many changes after the snapshot as it had before the loss: nobody may take the one for the other.
#[tokio::test]
async fn c116_after_an_old_snapshot_webhooks_are_those_of_now() {
    let mut it = World::start().await;
    it.api.post("/queues/q/webhooks", json!({"id": "h", "url": it.receiver.url("/first")})).await.expect(201);
    it.redis.shutdown().await;
    let snapshot = it.redis.copy_data();
    it.redis.restart().await;
    let moved = async |to: &str| {
        let url = json!({"url": it.receiver.url(to)});
        it.patiently(async || it.api.patch("/queues/q/webhooks/h", &url).await).await.expect(200)
    };
    moved("/lost").await;
    it.sentinel("q", "before").await;
    assert_eq!(it.receiver.journal()[0].path(), "/lost");

    it.redis.kill9();
    it.redis.restore(&snapshot);
    it.redis.restart().await;
    let moved = async |to: &str| {
        let url = json!({"url": it.receiver.url(to)});
        it.patiently(async || it.api.patch("/queues/q/webhooks/h", &url).await).await.expect(200)
    };
    moved("/now").await;
    it.schedule("q", json!({"id": "after", "payload": 1, "delay": "1s"})).await;
    let arrived = it.receiver.wait_for_task("after", secs(20)).await;
    assert_eq!(arrived.path(), "/now", "sent to where the webhook was in what is lost");
}

/// Redis's memory in use, in bytes.
async fn used_memory(redis: &RedisServer) -> usize {
    let info: String = redis.command(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|n| n.trim().parse().ok()).expect("INFO has the figure")
}

/// Draining, with the receivers at work all along: `f12_a_full_redis_is_worked_off_until_it_is_empty`.
#[tokio::test]
async fn c128_a_full_redis_keeps_nobody_busy_and_takes_all_again_when_it_has_room() {
    const ROOM: usize = 512 * 1024;
    let (tasks, span) = size((300, secs(2)), (1000, secs(10)));
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.api.post("/queues/q/pause", "").await.expect(200);
    let due: Vec<Value> = (0..tasks).map(|n| json!({"id": format!("due{n}"), "payload": n})).collect();
    for piece in due.chunks(100) {
        it.api.post("/queues/q/batch", json!({"tasks": piece})).await.expect(200);
    }
    let limit = used_memory(&it.redis).await + ROOM;
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).await;
    let mut taken = 0;
    let refused = loop {
        let task = json!({"id": format!("late{taken}"), "payload": "x".repeat(4096), "delay": "1h"});
        let answer = it.api.post("/queues/late/tasks", task).await;
        if answer.status != 201 {
            break answer;
        }
        taken += 1;
    };
    refused.problem(503, "storage-full");

    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await; // as full as can be
    it.api.get("/readyz").await.problem(503, "unavailable");
    it.api.post("/queues/q/resume", "").await.expect(200);
    it.receiver.wait_for(tasks, secs(30)).await;
    let drained = async || {
        let stats = it.stats("q").await;
        figure(&stats, "scheduled") + figure(&stats, "active") == 0
    };
    eventually(secs(30), drained).await;
    let before = vitals::cpu(it.service.pid());
    tokio::time::sleep(span).await;
    let busy = vitals::cpu(it.service.pid()) - before;
    println!("{taken} tasks until Redis was full; then {busy:?} of a core in {span:?}");
    assert!(busy < span / 10, "{busy:?} in {span:?}");

    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually(secs(10), async || it.api.get("/readyz").await.status == 200).await;
    let again = json!({"id": format!("late{taken}"), "payload": "x".repeat(4096), "delay": "1h"});
    it.api.post("/queues/late/tasks", again).await.expect(201); // what was refused was not there
    let stats = it.stats("late").await;
    assert_eq!(figure(&stats, "scheduled"), taken + 1, "{stats}");
    it.schedule("q", json!({"id": "after", "payload": 1})).await;
    it.receiver.wait_for_task("after", secs(10)).await;
    let (code, told) = it.fsck(&[]);
    assert_eq!(code, Some(0), "partly written: {told}");
}

#[tokio::test]
async fn c129_an_eviction_policy_is_told_and_what_it_drops_holds_up_nobody() {
    for policy in ["volatile-ttl", "allkeys-lru"] {
        let it = World::on(RedisServer::start_with(&["--appendonly", "yes", "--maxmemory-policy", policy]).await).await;
        let told = it.service.stderr();
        assert!(told.contains("MAY DROP TASKS") && told.contains(policy), "{told}");
        it.ready_says(&format!("maxmemory-policy is {policy}")).await;
    }
    let mut it = World::start().await;
    for queue in ["q", "pulled"] {
        it.schedule(queue, json!({"id": "later", "payload": 1, "delay": "1h"})).await;
    }
    it.webhook("q", "/hook").await;
    let dropped = async |key: &str, field: &str| {
        let command: &[&str] = if field.is_empty() { &["DEL", key] } else { &["HDEL", key, field] };
        let gone: i64 = it.redis.command(command).await;
        assert_eq!(gone, 1, "{key} {field} was not there");
    };

    // a body: the task is dropped and counted, and nothing is delivered in its place
    it.schedule("q", json!({"id": "bodiless", "payload": 1, "delay": "1h"})).await;
    dropped(&it.key("q", "tasks").await, "bodiless").await;
    it.redis.command::<i64>(&["ZADD", &it.key("q", "due").await, "XX", "CH", "0", "bodiless"]).await;
    it.visit("q").await;
    eventually(secs(10), async || figure(&it.stats("q").await, "purged_total") == 1).await;
    it.api.get("/queues/q/tasks/bodiless").await.problem(404, "task-not-found");

    // the index of what is due when: whoever rings it makes it anew
    it.schedule("q", json!({"id": "unlisted", "payload": 1, "delay": "1h"})).await;
    let agenda = it.shard_key("q", "agenda").await;
    dropped(&agenda, "").await;
    it.sentinel("q", "rings").await;
    let listed = async || it.redis.command::<Option<f64>>(&["ZSCORE", &agenda, "q"]).await.is_some();
    eventually(secs(10), listed).await;
    it.api.post("/queues/q/tasks/unlisted/run", "").await.expect(200);
    it.receiver.wait_for_task("unlisted", secs(10)).await;

    // the leases: an outcome finds no task under way, and that is the end of it
    let gate = Gate::new();
    it.receiver.when(|r| r.task() == "leaseless", Answer::status(200).held_by(&gate));
    let attempts = async || {
        let text = it.api.get("/metrics").await.expect(200).text();
        let line =
            text.lines().find_map(|l| l.strip_prefix(r#"duepost_attempts_total{queue="q",outcome="delivered"} "#));
        line.and_then(|n| n.parse::<u32>().ok()).expect("some were made")
    };
    it.schedule("q", json!({"id": "leaseless", "payload": 1})).await;
    it.receiver.wait_for_task("leaseless", secs(10)).await;
    dropped(&it.key("q", "active").await, "").await;
    it.sentinel("q", "unleased").await;
    let before = attempts().await;
    gate.open();
    eventually(secs(10), async || attempts().await > before).await;
    let (_, told) = it.fsck(&["--repair"]);
    println!("without leases: {}", told["findings"]);

    // a webhook: its queue waits, and is not looked at again and again
    let hooks: Vec<String> = it.redis.command(&["HKEYS", &it.key("q", "hooks").await]).await;
    dropped(&it.key("q", "hooks").await, &hooks[0]).await;
    it.turn_to(Service::serve(&it.redis).await);
    let came = it.receiver.count();
    it.schedule("q", json!({"id": "hookless", "payload": 1})).await;
    tokio::time::sleep(secs(1)).await;
    let calls = it.redis.calls_during(secs(3)).await;
    println!("{calls} calls in 3 s with a webhook gone");
    assert!(calls < 60, "{calls} calls in 3 s: a loop");
    assert_eq!(it.receiver.count(), came, "to whom?");
    it.webhook("q", "/hook").await;
    it.receiver.wait_for_task("hookless", secs(20)).await;
    for id in ["bodiless", "hookless", "unlisted", "leaseless"] {
        let of = it.receiver.of_task(id);
        assert_eq!(of.len(), usize::from(id != "bodiless"), "{id}");
        assert!(of.iter().all(|r| !r.body.is_empty()), "{id}: an empty delivery");
    }
    assert!(it.troubles() < 10, "{}", it.service.stderr());
}

#[tokio::test]
async fn c133_the_dispatcher_goes_on_after_everything_that_it_cannot_read() {
    let (away, wrong) = size((secs(2), secs(2)), (secs(30), secs(20)));
    let mut it = World::start().await;
    for queue in ["q", "other"] {
        it.webhook(queue, "/hook").await;
        it.sentinel(queue, &format!("{queue}-first")).await;
    }
    it.schedule("q", json!({"id": "refused", "payload": 1, "delay": "500ms"})).await;
    it.redis.kill9();
    tokio::time::sleep(away).await;
    it.redis.restart().await;
    it.receiver.wait_for_task("refused", secs(20)).await;

    // one queue's schedule has a wrong type: health says so, and the others go on
    it.schedule("q", json!({"id": "wrong-type", "payload": 1, "delay": "1h"})).await;
    let due = it.key("q", "due").await;
    it.redis.command::<()>(&["RENAME", &due, "away"]).await;
    it.redis.command::<()>(&["SET", &due, "wrong type"]).await;
    it.visit("q").await;
    it.ready_says("1 queues cannot be visited").await;
    let end = Instant::now() + wrong;
    for n in 0.. {
        it.sentinel("other", &format!("meanwhile{n}")).await;
        if Instant::now() > end {
            break;
        }
        tokio::time::sleep(ms(200)).await;
    }
    eventually(secs(10), async || it.service.stderr().contains("WRONGTYPE")).await;
    it.redis.command::<()>(&["RENAME", "away", &due]).await;
    it.ready_says("\"warnings\":[]").await;
    it.api.post("/queues/q/tasks/wrong-type/run", "").await.expect(200);
    it.receiver.wait_for_task("wrong-type", secs(20)).await;

    // members that are nothing of ours, in the agenda and in a schedule, before all others
    for queue in ["q", "other"] {
        let script = "redis.call('ZADD', KEYS[1], 0, '\\255\\254') return redis.call('ZADD', KEYS[1], 1, '{}')";
        it.redis.command::<i64>(&["EVAL", script, "1", &it.shard_key(queue, "agenda").await]).await;
    }
    it.schedule("q", json!({"id": "behind", "payload": 1, "delay": "1500ms"})).await;
    let (due, tasks) = (it.key("q", "due").await, it.key("q", "tasks").await);
    it.redis.command::<i64>(&["ZADD", &due, "0", "no record"]).await;
    it.redis.command::<i64>(&["ZADD", &due, "1", "no id"]).await;
    it.redis.command::<i64>(&["HSET", &tasks, "no id", "no record either"]).await;
    it.receiver.wait_for_task("behind", secs(20)).await;
    it.sentinel("q", "q-last").await;
    it.sentinel("other", "other-last").await;
    eventually(secs(10), async || it.service.stderr().contains("something in an agenda is no queue")).await;
    assert!(it.service.stderr().contains("record cannot be read"), "{}", it.service.stderr());
    it.ready_says("\"warnings\":[]").await;
}
