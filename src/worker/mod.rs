//! The loops that move tasks: the [`dispatcher`](self) wakes at the instants that queues ask for and claims what is due,
//! an attempt calls the webhooks of one task and settles it, the leases of long attempts are renewed.
//!
//! Neighbours: `store` holds the tasks, `delivery` makes one call. This room never meets `http`: what both need of each
//! other goes through Redis and the bell.

use std::{sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod attempt;
mod dispatcher;
mod hook;
mod leases;
mod slots;
mod visit;

use self::{
    leases::Leases,
    slots::{NoRoom, Slots},
    visit::Known,
};
use crate::{
    delivery::Delivery,
    domain::id::QueueName,
    health::Health,
    store::{Store, StoreError},
    telemetry::{Metrics, Seldom, Traces, chain},
};

/// Even random numbers in [0, 1), for jitter; they come in from outside.
pub type Dice = Arc<dyn Fn() -> f64 + Send + Sync>;

/// How a worker works.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// How long a claim holds without being renewed.
    pub lease: Duration,
    /// Calls of one webhook at once, unless the webhook says otherwise.
    pub slots_per_webhook: usize,
    /// Calls at once in all; also the bound of outcomes that are not settled yet.
    pub slots: usize,
    /// Workers that may vanish with a task before it is dead.
    pub max_reclaims: u32,
}

/// What every part of the room works with.
pub(crate) struct Shop {
    config: WorkerConfig,
    store: Store,
    delivery: Delivery,
    metrics: Arc<Metrics>,
    traces: Traces,
    health: Arc<Health>,
    dice: Dice,
    slots: Slots,
    leases: Leases,
    told: Told,
    /// Attempts under way.
    attempts: TaskTracker,
    /// No new claims.
    stop: CancellationToken,
    /// What is under way is given back at once.
    release: CancellationToken,
}

impl Shop {
    /// For how many tasks of a queue there is room now.
    fn room_for(&self, known: &Known) -> Result<usize, NoRoom> {
        self.slots.room_for(&known.view, self.store.clock().now())
    }
}

/// Lines about trouble that lasts, as while Redis is away.
#[derive(Default)]
struct Told {
    looks: Seldom,
    visits: Seldom,
    renewals: Seldom,
    foreign: Seldom,
}

impl Told {
    fn look(&self, what: &str, error: &StoreError) {
        if let Some(left_out) = self.looks.turn() {
            tracing::warn!(error = chain(error), left_out, "{what}");
        }
    }

    fn foreign(&self, name: &str) {
        if let Some(left_out) = self.foreign.turn() {
            tracing::warn!(name, left_out, "something in an agenda is no queue; somebody else's hands are on the data");
        }
    }

    fn visit(&self, queue: &QueueName, error: &StoreError) {
        if let Some(left_out) = self.visits.turn() {
            tracing::warn!(%queue, error = chain(error), left_out, "a visit failed");
        }
    }

    fn renewal(&self, queue: &QueueName, error: &StoreError) {
        if let Some(left_out) = self.renewals.turn() {
            tracing::warn!(%queue, error = chain(error), left_out, "leases could not be renewed");
        }
    }
}

/// A running worker.
pub struct Worker {
    shop: Arc<Shop>,
    loops: TaskTracker,
}

impl Worker {
    /// Starts the loops.
    #[must_use]
    pub fn start(
        config: WorkerConfig,
        store: Store,
        delivery: Delivery,
        metrics: Arc<Metrics>,
        traces: Traces,
        health: Arc<Health>,
        dice: Dice,
    ) -> Self {
        let shop = Arc::new(Shop {
            slots: Slots::new(config.slots, config.slots_per_webhook),
            leases: Leases::default(),
            told: Told::default(),
            attempts: TaskTracker::new(),
            stop: CancellationToken::new(),
            release: CancellationToken::new(),
            config,
            store,
            delivery,
            metrics,
            traces,
            health,
            dice,
        });
        let loops = TaskTracker::new();
        loops.spawn(dispatcher::run(Arc::clone(&shop)));
        loops.spawn(leases::run(Arc::clone(&shop)));
        loops.close();
        Self { shop, loops }
    }

    /// Stops: no new claims at once; attempts under way finish within `grace`, the rest is given back; every outcome is
    /// settled before this returns, or Redis is out of reach.
    pub async fn stop(self, grace: Duration) {
        self.shop.stop.cancel();
        self.loops.wait().await;
        self.shop.attempts.close();
        if tokio::time::timeout(grace, self.shop.attempts.wait()).await.is_ok() {
            return;
        }
        tracing::warn!(attempts = self.shop.attempts.len(), "the grace is over; attempts under way are given back");
        self.shop.release.cancel();
        if tokio::time::timeout(attempt::SETTLE_AT_STOP, self.shop.attempts.wait()).await.is_err() {
            tracing::warn!(attempts = self.shop.attempts.len(), "not settled; these come back when their leases end");
        }
    }
}
