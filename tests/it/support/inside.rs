//! Store, worker and delivery in this process, on a real Redis, with a clock that the test moves. For what the binary
//! cannot show in a short time: leases, backoff, retention.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use duepost::{
    delivery::{Delivery, DeliveryConfig},
    domain::{
        address::AddressPolicy,
        id::{QueueName, TaskId, Uid, WebhookId},
        payload::Payload,
        queue::Settings,
        secret::Secret,
        task::{NewTask, Task, TaskOptions, TaskState, When},
        time::UnixMs,
        webhook::Webhook,
    },
    health::Health,
    store::{
        Change, ClaimKind, Clock, Decision, Enqueued, Found, HookChange, Promise, Seal, Store, StoreConfig, Visit,
        Visited,
    },
    telemetry::{Metrics, Traces},
    worker::{Worker, WorkerConfig},
};
use tokio_util::sync::CancellationToken;

use super::{receiver::Receiver, redis::RedisServer, secs, wait::until};

/// Dropped in this order.
pub struct Inside {
    pub store: Store,
    pub queue: QueueName,
    pub receiver: Receiver,
    pub redis: RedisServer,
}

impl Inside {
    /// Without a worker: call [`Self::worker`].
    pub async fn start() -> Self {
        Self::on(RedisServer::start().await).await
    }

    /// The same on this Redis.
    pub async fn on(redis: RedisServer) -> Self {
        let store = store(&redis).await;
        Self { store, queue: QueueName::parse("orders").unwrap(), receiver: Receiver::start().await, redis }
    }

    pub fn worker(&self) -> Worker {
        self.worker_with(|_| {})
    }

    /// One with other settings than the defaults.
    pub fn worker_with(&self, change: impl FnOnce(&mut WorkerConfig)) -> Worker {
        Self::worker_on(&self.store, change)
    }

    /// One on the store of another process.
    pub fn worker_on(store: &Store, change: impl FnOnce(&mut WorkerConfig)) -> Worker {
        let mut config = WorkerConfig { lease: secs(10), slots_per_webhook: 64, slots: 1024, max_reclaims: 10 };
        change(&mut config);
        let delivery = Delivery::new(DeliveryConfig {
            policy: AddressPolicy { allow_private: true, allow_loopback: true, allowed: Vec::new() },
            extra_roots: None,
            user_agent: "duepost/test".to_owned(),
        });
        let health = Arc::new(Health::default());
        Worker::start(config, store.clone(), delivery.unwrap(), metrics(), Traces::default(), health, Arc::new(|| 0.5))
    }

    pub fn advance(&self, by: Duration) {
        self.store.clock().advance(by);
    }

    /// Registers the receiver's path of that name.
    pub async fn webhook(&self, id: &str) {
        self.webhook_with(id, |_| {}).await;
    }

    /// The same with other fields.
    pub async fn webhook_with(&self, id: &str, change: impl FnOnce(&mut Webhook)) {
        let url = self.receiver.url(&format!("/{id}")).parse().unwrap();
        let mut hook = Webhook {
            id: WebhookId::parse(id).unwrap(),
            url,
            enabled: true,
            description: None,
            headers: Vec::new(),
            timeout: None,
            max_in_flight: None,
            created_at: UnixMs(0),
            secret: Secret::from_bytes(&[7; 32]).unwrap(),
            previous_secret: None,
            disabled_reason: None,
        };
        change(&mut hook);
        self.change(Change { hooks: vec![HookChange::Set(Box::new(hook))], ..Change::default() }).await;
    }

    pub async fn settings(&self, set: impl FnOnce(&mut Settings)) {
        let mut settings = Settings::default();
        set(&mut settings);
        self.change(Change { settings: Some(settings), ..Change::default() }).await;
    }

    pub async fn change(&self, change: Change) {
        let done = self.store.change(&self.queue, true, |_| Ok::<_, ()>(change.clone())).await.unwrap();
        assert!(matches!(done, Decision::Changed { .. }));
    }

    pub fn new_task(&self, id: &str) -> NewTask {
        NewTask {
            queue: self.queue.clone(),
            id: Some(TaskId::parse(id).unwrap()),
            uid: uid(),
            when: When::After(Duration::ZERO),
            expires: None,
            options: TaskOptions::default(),
            payload: Payload::new(Bytes::from_static(b"{\"a\": 1.0}"), 1000).unwrap(),
        }
    }

    /// Schedules a task that is due now.
    pub async fn given_due(&self, id: &str) -> Task {
        self.given(self.new_task(id)).await
    }

    pub async fn given(&self, task: NewTask) -> Task {
        match self.store.enqueue(task).await.unwrap() {
            Enqueued::Created(task) => task,
            other => panic!("not created: {other:?}"),
        }
    }

    pub async fn task(&self, id: &str) -> Task {
        match self.store.get(&self.queue, &TaskId::parse(id).unwrap()).await.unwrap() {
            Found::Here(task) => task,
            other => panic!("not there: {other:?}"),
        }
    }

    pub async fn in_state(&self, id: &str, state: TaskState) -> Task {
        until(secs(10), async || Some(self.task(id).await).filter(|t| t.state == state)).await
    }

    /// Claims what is due, as a worker would that then does nothing.
    pub async fn claim(&self, most: usize) -> Visited {
        let visit = Visit { tasks: most, bytes: 1 << 20, lease: secs(10), kind: ClaimKind::Push };
        self.store.visit(&self.queue, visit).await.unwrap()
    }
}

/// A store whose bell rings and which knows Redis's clock; it ends leases without waiting for calm.
pub async fn store(redis: &RedisServer) -> Store {
    store_with(redis, Promise::default()).await
}

/// One that promises this.
pub async fn store_with(redis: &RedisServer, promise: Promise) -> Store {
    store_at(&redis.url(), promise).await
}

/// The same, wherever its Redis is.
pub async fn store_at(url: &str, promise: Promise) -> Store {
    let config = StoreConfig {
        servers: url.to_owned().into(),
        prefix: "dp".to_owned(),
        auto_create: true,
        lease_grace: Duration::ZERO,
        promise,
        seal: Seal::default(),
    };
    let store = Store::new(config, Arc::new(Clock::default()), metrics()).unwrap();
    store.ping().await.unwrap();
    let bell = store.clone();
    tokio::spawn(async move { bell.keep_bell(CancellationToken::new()).await });
    let promise = store.clone();
    tokio::spawn(async move { promise.keep_promise(CancellationToken::new()).await });
    store
}

pub fn uid() -> Uid {
    Uid(uuid::Uuid::now_v7())
}

fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new(10))
}
