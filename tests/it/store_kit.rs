//! A store on a redis-server of its own, with a clock that the test moves, and a look behind it by plain commands.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use deadpool_redis::redis::{self, FromRedisValue, aio::MultiplexedConnection};
use duepost::{
    domain::{
        id::{QueueName, TaskId, Uid, WebhookId},
        payload::Payload,
        queue::Settings,
        round::Verdict,
        secret::Secret,
        task::{NewTask, Task, TaskOptions, When},
        time::UnixMs,
        webhook::Webhook,
    },
    store::{
        Cancel, Change, Claim, ClaimKind, Clock, Decision, Enqueued, Found, HookChange, Promise, Seal, Settled,
        Settlement, Store, StoreConfig, Visit, Visited,
        keys::{Keys, raw_id},
    },
    telemetry::Metrics,
};
use uuid::Uuid;

use crate::support::{RedisServer, ms};

/// How long claims of these tests hold.
pub const LEASE: Duration = ms(1000);

pub struct Kit {
    pub redis: RedisServer,
    pub store: Store,
    pub clock: Arc<Clock>,
    pub queue: QueueName,
    pub con: MultiplexedConnection,
}

impl Kit {
    /// An empty queue `q`, and a process that has seen Redis's clock and may end leases at once.
    pub async fn start() -> Self {
        Self::start_with(Settings::default()).await
    }

    pub async fn start_with(settings: Settings) -> Self {
        let kit = Self::bare().await;
        assert!(kit.store.create_queue(&kit.queue, &settings).await.expect("the queue is made"));
        kit
    }

    /// No queue yet.
    pub async fn bare() -> Self {
        let redis = RedisServer::start_with(&["--appendonly", "no"]).await;
        let (store, clock) = store_on(&redis, ms(0)).await;
        let con = connect(&redis).await;
        Self { redis, store, clock, queue: QueueName::parse("q").expect("a name"), con }
    }

    /// Another connection.
    pub async fn connect(&self) -> MultiplexedConnection {
        connect(&self.redis).await
    }

    pub fn key(&self, part: &str) -> String {
        let keys = Keys::new("dp").of_queue(&self.queue);
        keys.iter().find(|k| k.ends_with(&format!(":{part}"))).unwrap_or_else(|| panic!("no key {part}")).clone()
    }

    /// One plain command.
    pub async fn ask<T: FromRedisValue>(&self, command: &str, args: &[&[u8]]) -> T {
        let mut cmd = redis::cmd(command);
        for arg in args {
            cmd.arg(arg);
        }
        cmd.query_async(&mut self.con.clone()).await.unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    /// A plain command on one of the queue's keys.
    pub async fn on<T: FromRedisValue>(&self, command: &str, part: &str, args: &[&[u8]]) -> T {
        let key = self.key(part);
        let mut all = vec![key.as_bytes()];
        all.extend_from_slice(args);
        self.ask(command, &all).await
    }

    pub async fn score(&self, part: &str, id: &TaskId) -> Option<i64> {
        let score: Option<f64> = self.on("ZSCORE", part, &[&raw_id(id)]).await;
        #[allow(clippy::cast_possible_truncation)]
        score.map(|s| s as i64)
    }

    pub async fn size(&self, part: &str) -> i64 {
        self.on("ZCARD", part, &[]).await
    }

    /// The instant in the agenda.
    pub async fn agenda(&self) -> Option<i64> {
        let score: Option<f64> = self.on("ZSCORE", "agenda", &[self.queue.as_str().as_bytes()]).await;
        #[allow(clippy::cast_possible_truncation)]
        score.map(|s| s as i64)
    }

    pub async fn has_run_row(&self, id: &TaskId) -> bool {
        self.on("HEXISTS", "runs", &[&raw_id(id)]).await
    }

    pub async fn total(&self, counter: &str) -> i64 {
        let n: Option<i64> = self.on("HGET", "totals", &[counter.as_bytes()]).await;
        n.unwrap_or(0)
    }

    /// Redis's clock with the test's offset.
    pub async fn now(&self) -> i64 {
        let (s, us): (i64, i64) = self.ask("TIME", &[]).await;
        s * 1000 + us / 1000 + self.clock.offset_ms()
    }

    pub fn advance(&self, millis: u64) {
        self.clock.advance(ms(millis));
    }

    /// Enqueues; the task must be taken.
    pub async fn given(&self, task: NewTask) -> Task {
        match self.store.enqueue(task).await.expect("Redis answers") {
            Enqueued::Created(task) => task,
            other => panic!("not created: {other:?}"),
        }
    }

    /// A task that is due (a delay counts from the next whole millisecond).
    pub async fn given_due(&self, id: &str) -> Task {
        let task = self.given(task(id)).await;
        self.advance(2);
        task
    }

    /// A task under way, pushed.
    pub async fn given_claimed(&self, id: &str) -> (Task, Claim) {
        let task = self.given_due(id).await;
        (task, self.claim_one().await)
    }

    pub async fn visit(&self, tasks: usize, kind: ClaimKind) -> Visited {
        let visit = Visit { tasks, bytes: 1 << 20, lease: LEASE, kind };
        self.store.visit(&self.queue, visit).await.expect("Redis answers")
    }

    pub async fn push(&self, tasks: usize) -> Vec<Claim> {
        self.visit(tasks, ClaimKind::Push).await.claims
    }

    pub async fn claim_one(&self) -> Claim {
        let mut claims = self.push(1).await;
        assert_eq!(claims.len(), 1, "one task was due");
        claims.remove(0)
    }

    /// The lease of a claim ends, and a visit takes note of it.
    pub async fn lapse(&self) -> Visited {
        self.advance(1001);
        self.visit(0, ClaimKind::Push).await
    }

    pub async fn settle(&self, settlement: Settlement) -> Settled {
        self.store.settle(settlement).await.expect("Redis answers")
    }

    pub async fn end(&self, claim: &Claim, verdict: Verdict) -> Settled {
        self.settle(settlement(claim, verdict)).await
    }

    pub async fn cancel(&self, id: &TaskId) -> Cancel {
        self.store.cancel(&self.queue, id).await.expect("Redis answers")
    }

    pub async fn get(&self, id: &TaskId) -> Option<Task> {
        match self.store.get(&self.queue, id).await.expect("Redis answers") {
            Found::Here(task) => Some(task),
            _ => None,
        }
    }

    pub async fn change(&self, change: Change) {
        let done = self.store.change::<()>(&self.queue, false, |_| Ok(change.clone())).await.expect("Redis answers");
        assert!(matches!(done, Decision::Changed { .. }), "{done:?}");
    }

    pub async fn settings(&self, settings: Settings) {
        self.change(Change { settings: Some(settings), ..Change::default() }).await;
    }

    pub async fn open(&self, webhook: &str) {
        self.change(Change { hooks: vec![HookChange::Set(Box::new(hook(webhook, true)))], ..Change::default() }).await;
    }

    pub async fn close(&self, webhook: &str) {
        self.change(Change { hooks: vec![HookChange::Set(Box::new(hook(webhook, false)))], ..Change::default() }).await;
    }

    /// Every set's members, hash's fields and counter, for "nothing changed".
    pub async fn dump(&self) -> BTreeMap<String, Vec<Vec<u8>>> {
        let mut all = BTreeMap::new();
        for part in ["agenda", "due", "active", "dead", "completed", "cancelled", "expired", "expiry"] {
            let members: Vec<Vec<u8>> = self.on("ZRANGE", part, &[b"0", b"-1", b"WITHSCORES"]).await;
            all.insert(part.to_owned(), members);
        }
        for part in ["queues", "gate", "holds", "tasks", "runs", "hooks", "totals"] {
            let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = self.on("HGETALL", part, &[]).await;
            pairs.retain(|(field, _)| part != "totals" || field != b"replays"); // a repeat may count itself
            pairs.sort();
            all.insert(part.to_owned(), pairs.into_iter().flat_map(|(k, v)| [k, v]).collect());
        }
        all
    }

    /// What must hold at any time: each record in exactly one set, no orphan, no ghost, and books that balance.
    pub async fn assert_sound(&self) {
        let mut places: BTreeMap<Vec<u8>, Vec<&str>> = BTreeMap::new();
        for part in ["due", "active", "dead", "completed", "cancelled", "expired"] {
            for id in self.on::<Vec<Vec<u8>>>("ZRANGE", part, &[b"0", b"-1"]).await {
                places.entry(id).or_default().push(part);
            }
        }
        let records: Vec<Vec<u8>> = self.on("HKEYS", "tasks", &[]).await;
        for (id, parts) in &places {
            assert_eq!(parts.len(), 1, "{id:?} is in {parts:?}");
            assert!(records.contains(id), "{id:?} in {parts:?} has no record");
        }
        for id in &records {
            assert!(places.contains_key(id), "the record of {id:?} is in no set");
        }
        for id in self.on::<Vec<Vec<u8>>>("HKEYS", "runs", &[]).await {
            assert!(places.contains_key(&id), "the run row of {id:?} is an orphan");
        }
        for id in self.on::<Vec<Vec<u8>>>("ZRANGE", "expiry", &[b"0", b"-1"]).await {
            let parts = places.get(&id).unwrap_or_else(|| panic!("{id:?} in the index of expiries is an orphan"));
            assert!(["due", "active"].contains(&parts[0]), "{id:?} in {parts:?} still has an expiry");
        }
        let mut retrying = 0;
        for id in self.on::<Vec<Vec<u8>>>("ZRANGE", "due", &[b"0", b"-1"]).await {
            let run: Option<Vec<u8>> = self.on("HGET", "runs", &[&id]).await;
            retrying += i64::from(run.is_some_and(|r| r.get(12).is_some_and(|marks| marks & 4 != 0)));
        }
        assert_eq!(self.total("retrying").await, retrying, "the gauge of retrying tasks");
        let mut ended = 0;
        for counter in ["delivered", "dead", "cancelled", "expired", "purged", "ghosts"] {
            ended += self.total(counter).await;
        }
        let living = self.size("due").await + self.size("active").await;
        let (enqueued, revived) = (self.total("enqueued").await, self.total("revived").await);
        assert_eq!(enqueued + revived, ended + living, "the books");
    }
}

/// The library's own half a second is too short for a machine that stalls.
async fn connect(redis: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(redis.url()).expect("a valid URL");
    let patient = Some(Duration::from_secs(30));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patient).set_response_timeout(patient);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("Redis answers")
}

/// Another process on the same Redis.
pub async fn store_on(redis: &RedisServer, lease_grace: Duration) -> (Store, Arc<Clock>) {
    let (store, clock) = store_at(&redis.url(), lease_grace);
    store.ping().await.expect("Redis answers");
    (store, clock)
}

/// One that has not asked yet.
pub fn store_at(url: &str, lease_grace: Duration) -> (Store, Arc<Clock>) {
    let clock = Arc::new(Clock::default());
    let config = StoreConfig {
        servers: url.to_owned().into(),
        prefix: "dp".to_owned(),
        auto_create: false,
        lease_grace,
        promise: Promise::default(),
        seal: Seal::default(),
    };
    let store = Store::new(config, Arc::clone(&clock), Arc::new(Metrics::new(10))).expect("a valid URL");
    (store, clock)
}

pub fn uid() -> Uid {
    Uid(Uuid::now_v7())
}

pub fn id(text: &str) -> TaskId {
    TaskId::parse(text).expect("an id")
}

/// A task with an id of the client's, due now.
pub fn task(text: &str) -> NewTask {
    NewTask { id: Some(id(text)), ..anonymous() }
}

/// A task whose id the service makes, due now.
pub fn anonymous() -> NewTask {
    NewTask {
        queue: QueueName::parse("q").expect("a name"),
        id: None,
        uid: uid(),
        when: When::After(ms(0)),
        expires: None,
        options: TaskOptions::default(),
        payload: payload("1"),
    }
}

pub fn delayed(text: &str, delay: u64) -> NewTask {
    NewTask { when: When::After(ms(delay)), ..task(text) }
}

pub fn payload(json: &str) -> Payload {
    Payload::stored(Bytes::from(json.to_owned()))
}

pub fn at(instant: i64) -> When {
    When::At(UnixMs(instant))
}

pub fn hook(text: &str, enabled: bool) -> Webhook {
    Webhook {
        id: WebhookId::parse(text).expect("an id"),
        url: "https://example.com/".parse().expect("a URL"),
        enabled,
        description: None,
        headers: Vec::new(),
        timeout: None,
        max_in_flight: None,
        created_at: UnixMs(0),
        secret: Secret::from_bytes(&[7; 32]).expect("a secret"),
        previous_secret: None,
        disabled_reason: None,
    }
}

/// An end of a claim that is about no webhook.
pub fn settlement(claim: &Claim, verdict: Verdict) -> Settlement {
    Settlement::new(claim.lease.clone(), verdict)
}

pub fn retry_at(instant: i64) -> Verdict {
    Verdict::Retry(UnixMs(instant))
}
