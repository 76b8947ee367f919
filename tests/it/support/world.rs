//! One Redis, one service and one receiver: what most tests start from.

use serde_json::{Value, json};

use super::{
    client::{Answer, Client, Json},
    receiver::Receiver,
    redis::RedisServer,
    secs,
    service::{self, Builder, Service},
    wait::{eventually, until},
};

/// How late a delivery may be on a shared machine with nothing broken.
pub const TOLERANCE_MS: i64 = 2_000;

/// Fields are dropped in this order: the service ends before what it stands on.
pub struct World {
    pub api: Client,
    pub service: Service,
    pub receiver: Receiver,
    pub redis: RedisServer,
}

impl World {
    pub async fn start() -> Self {
        Self::on(RedisServer::start().await).await
    }

    /// On this Redis.
    pub async fn on(redis: RedisServer) -> Self {
        Self::with(redis, |service| service).await
    }

    /// On this Redis, with more flags.
    pub async fn with(redis: RedisServer, flags: impl FnOnce(Builder) -> Builder) -> Self {
        let service = flags(Service::builder(&redis)).start().await;
        Self { api: service.client(), service, receiver: Receiver::start().await, redis }
    }

    /// From now on this service, beside or after the other.
    pub fn turn_to(&mut self, service: Service) {
        self.api = service.client();
        self.service = service;
    }

    /// Registers the receiver's `path` for the queue, with a secret of its own; gives the secret.
    #[track_caller]
    pub fn webhook(&self, queue: &str, path: &str) -> impl Future<Output = String> {
        self.webhook_with(queue, path, json!({}))
    }

    /// The same with more fields.
    #[track_caller]
    pub fn webhook_with(&self, queue: &str, path: &str, mut fields: Value) -> impl Future<Output = String> {
        let from = std::panic::Location::caller();
        fields["url"] = self.receiver.url(path).into();
        async move {
            let answer = self.api.post(&format!("/queues/{queue}/webhooks"), fields).await;
            assert_eq!(answer.status, 201, "{from}: {}", answer.text());
            answer.json()["secret"].as_str().expect("the secret is shown once").to_owned()
        }
    }

    /// Schedules a task (201) and gives it as answered.
    #[track_caller]
    pub fn schedule(&self, queue: &str, task: impl Into<Json>) -> impl Future<Output = Value> {
        let (from, task) = (std::panic::Location::caller(), task.into());
        async move {
            let answer = self.api.post(&format!("/queues/{queue}/tasks"), task).await;
            assert_eq!(answer.status, 201, "{from}: {}", answer.text());
            answer.json()
        }
    }

    /// A call without a body whose target goes out exactly as written.
    pub async fn api_raw(&self, method: &str, target: &str) -> Answer {
        self.api.raw_call(method, target, "").await
    }

    /// The task as it stands, but for its payload: see [`Answer::raw_field`].
    pub async fn task(&self, queue: &str, id: &str) -> Value {
        self.api.get(&format!("/queues/{queue}/tasks/{id}")).await.expect(200).json_without("payload")
    }

    pub async fn stats(&self, queue: &str) -> Value {
        self.api.get(&format!("/queues/{queue}/stats")).await.expect(200).json()
    }

    /// Waits until the task is in this state.
    #[track_caller]
    pub fn in_state(&self, queue: &str, id: &str, state: &str) -> impl Future<Output = ()> {
        eventually(secs(10), async move || self.task(queue, id).await["state"] == state)
    }

    /// Waits until a task posted now has arrived: whatever was due before and could be taken has arrived too.
    #[track_caller]
    pub fn sentinel(&self, queue: &str, id: &str) -> impl Future<Output = ()> {
        let scheduled = self.schedule(queue, json!({"id": id, "payload": "sentinel"}));
        let arrived = self.receiver.wait_for_task(id, secs(10));
        let done = self.in_state(queue, id, "completed");
        async move {
            scheduled.await;
            arrived.await;
            done.await;
        }
    }

    /// What `duepost fsck` says; its exit code.
    pub fn fsck(&self, more: &[&str]) -> (Option<i32>, Value) {
        let url = self.redis.url();
        let out = service::run(&[&["fsck", "--json", "--redis", &url], more].concat());
        let told = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code(), serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}")))
    }

    /// Waits until no task of the queue lives, then asserts that Redis holds only what retention says; gives the stats.
    #[track_caller]
    pub fn at_rest(&self, queue: &str) -> impl Future<Output = Value> {
        at_rest(&self.redis, &self.api, queue)
    }
}

/// The figure of this name.
#[track_caller]
pub fn figure(stats: &Value, name: &str) -> i64 {
    stats[name].as_i64().unwrap_or_else(|| panic!("no figure {name} in {stats}"))
}

/// The equation of the books: every task that began a life has ended it in one way, or lives.
#[track_caller]
pub fn assert_balanced(stats: &Value) {
    let sum = |names: &[&str]| names.iter().map(|name| figure(stats, name)).sum::<i64>();
    let begun = sum(&["enqueued_total", "revived_total"]);
    let ended = sum(&["delivered_total", "dead_total", "cancelled_total", "expired_total", "purged_total"]);
    assert_eq!(begun, ended + sum(&["scheduled", "active"]), "the books do not balance: {stats}");
    for (name, value) in stats.as_object().expect("an object") {
        assert!(value.as_i64().is_none_or(|n| n >= 0), "{name} is negative: {stats}");
    }
}

/// As [`World::at_rest`].
#[track_caller]
pub fn at_rest(redis: &RedisServer, api: &Client, queue: &str) -> impl Future<Output = Value> {
    let stats = until(secs(20), async move || {
        let stats = api.get(&format!("/queues/{queue}/stats")).await.expect(200).json();
        (figure(&stats, "scheduled") + figure(&stats, "active") == 0).then_some(stats)
    });
    async move {
        let stats = stats.await;
        assert_balanced(&stats);
        assert_only_records(redis, queue, &stats).await;
        stats
    }
}

/// Asserts that Redis holds no living task of the queue, and a record only for those that the stats still count.
async fn assert_only_records(redis: &RedisServer, queue: &str, stats: &Value) {
    let keys: Vec<String> = redis.command(&["KEYS", &format!("*:{queue}:*")]).await;
    let key = |part: &str| keys.iter().find(|key| key.ends_with(&format!(":{queue}:{part}")));
    for living in ["due", "active", "expiry"] {
        assert_eq!(key(living), None, "{keys:?}");
    }
    let mut kept = 0;
    for ended in ["completed", "cancelled", "expired", "dead"] {
        let members: i64 = match key(ended) {
            Some(key) => redis.command(&["ZCARD", key]).await,
            None => 0,
        };
        assert_eq!(members, figure(stats, ended), "{ended}: {stats}");
        kept += members;
    }
    let records: i64 = match key("tasks") {
        Some(key) => redis.command(&["HLEN", key]).await,
        None => 0,
    };
    let runs: i64 = match key("runs") {
        Some(key) => redis.command(&["HLEN", key]).await,
        None => 0,
    };
    assert_eq!(records, kept, "records and ended tasks: {stats}");
    assert!(runs <= kept, "{runs} runs of {kept} tasks");
}
