//! The only room that knows Redis. [`Store`] has one method per transition; refusals come back as enums, and
//! [`StoreError`] is trouble below.
//!
//! Neighbours: [`domain`](crate::domain) gives the nouns; `http` and `worker` call in here and never meet each other
//! but through the [`Bell`].

use std::{sync::Arc, time::Duration};

use deadpool_redis::redis::{RedisError, Value};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

mod agenda;
mod audit;
pub mod batch;
pub mod bell;
mod brake;
mod calm;
pub mod clock;
mod cluster;
mod edits;
pub mod embedded;
mod enqueuing;
pub mod error;
mod findings;
mod form;
mod hook_form;
mod info;
pub mod keys;
mod looks;
mod node;
mod notes;
pub mod pool;
mod pressure;
mod promise;
mod pull;
mod queues;
mod record;
mod reply;
mod rollback;
mod room;
mod run_row;
mod script;
mod seal;
mod sentinels;
mod settling;
mod table;
mod taken;
mod tasks;
mod topology;
mod waiting;
mod waits;
mod window;
mod work;

pub use self::{
    agenda::Agenda,
    bell::{Bell, Ring},
    clock::{Clock, Stopwatch},
    edits::{Batch, Dropped, Edited, Put, Replay, Revived},
    error::{Fate, StoreError},
    findings::{Audit, Fault, Finding},
    info::RedisInfo,
    notes::{Holds, Note, Stamp},
    promise::{Promise, Standing},
    pull::Told,
    queues::{Change, Decision, HookChange, QueueView, Unreadable},
    seal::Seal,
    settling::{Settled, Settlement},
    taken::{Pulled, Taken, Token, Want},
    tasks::{Cancel, Enqueued, Found, Page, PageRequest},
    topology::Servers,
    work::{Claim, ClaimKind, Damaged, Lease, Renewal, Renewed, Visit, Visited},
};
use self::{
    batch::Batcher,
    keys::Keys,
    pool::Lane,
    pressure::Pressure,
    promise::{Standings, Wait},
    reply::Reply,
    rollback::Seqs,
    script::{Call, Script},
    topology::Topology,
    waiting::Waiting,
    waits::Waits,
};
use crate::{
    domain::id::QueueName,
    telemetry::{Metrics, Seldom},
};

/// What the store needs to know.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Where Redis is.
    pub servers: Servers,
    /// First part of every key; no `{` or `}`.
    pub prefix: String,
    /// Whether a queue comes to life with its first task or webhook.
    pub auto_create: bool,
    /// Undisturbed time with Redis before this process ends anybody's lease.
    pub lease_grace: Duration,
    /// What acknowledgements stand for.
    pub promise: Promise,
    /// What secrets are sealed with at rest.
    pub seal: Seal,
}

/// The longest that a call of a client is tried again before it is told.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between those tries: from, to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

struct Inner {
    config: StoreConfig,
    keys: Keys,
    clock: Arc<Clock>,
    seqs: Seqs,
    pressure: Pressure,
    standings: Standings,
    /// Lines about outcomes that are not settled.
    unsettled: Seldom,
    bell: Bell,
    topology: Arc<Topology>,
    /// Calls of clients that change something.
    writes: Lane,
    /// The same where replicas are waited for.
    waits: Waits,
    /// The work of delivery.
    work: Lane,
    /// Everything that only reads.
    reads: Lane,
}

/// Everything that Duepost keeps.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    enqueues: Arc<Batcher<enqueuing::Enqueues>>,
    settles: Arc<Batcher<settling::Settles>>,
    /// The same for consumers, who are told what it stands for.
    told: Arc<Batcher<settling::Settles>>,
    /// What consumers speak of.
    looks: Arc<Batcher<looks::Looks>>,
    waiting: Waiting,
    /// What consumers did not get, on its way back.
    returns: TaskTracker,
}

impl Store {
    /// Prepares the store; connects with the first call. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A URL is not one of Redis.
    pub fn new(config: StoreConfig, clock: Arc<Clock>, metrics: Arc<Metrics>) -> Result<Self, RedisError> {
        let topology = Topology::start(&config.servers, metrics)?;
        let lane = || Lane::new(Arc::clone(&topology));
        // a primary that does not answer must not hold up what is for the others
        let batchers = if topology.is_cluster() { keys::SHARDS } else { 1 };
        let inner = Arc::new(Inner {
            keys: Keys::new(&config.prefix),
            clock,
            seqs: Seqs::default(),
            pressure: Pressure::default(),
            standings: Standings::default(),
            unsettled: Seldom::default(),
            bell: Bell::default(),
            writes: lane(),
            waits: Waits::start(lane()),
            work: lane(),
            reads: lane(),
            topology,
            config,
        });
        let store = Self {
            enqueues: Arc::new(Batcher::start(enqueuing::Enqueues(Arc::clone(&inner)), batchers)),
            settles: Arc::new(Batcher::start(settling::Settles::of_workers(&inner), batchers)),
            told: Arc::new(Batcher::start(settling::Settles::of_consumers(&inner), batchers)),
            looks: Arc::new(Batcher::start(looks::Looks(Arc::clone(&inner)), batchers)),
            waiting: Waiting::closed(),
            returns: TaskTracker::new(),
            inner,
        };
        // the hall's own store has a closed door: nothing keeps it alive but those who may come in
        Ok(Self { waiting: Waiting::start(store.clone()), ..store })
    }

    /// The clock that all instants are on.
    #[must_use]
    pub fn clock(&self) -> &Arc<Clock> {
        &self.inner.clock
    }

    fn metrics(&self) -> &Metrics {
        &self.inner.topology.metrics
    }

    /// What wakes sleepers.
    #[must_use]
    pub fn bell(&self) -> &Bell {
        &self.inner.bell
    }

    /// Keeps the bell's subscription until `stop`.
    pub async fn keep_bell(&self, stop: CancellationToken) {
        let inner = &self.inner;
        inner.bell.clone().run(Arc::clone(&inner.topology), inner.keys.bell(), stop).await;
    }

    /// Accepted tasks that Redis lost again, as this process saw it.
    #[must_use]
    pub fn rolled_back(&self) -> u64 {
        self.inner.seqs.rolled_back()
    }
}

impl Inner {
    /// Starts a call on a queue.
    fn call<'s>(&self, script: &'s Script, queue: &QueueName, bound_ms: i64) -> Call<'s> {
        self.call_with(script, queue, bound_ms, &[])
    }

    /// The same with numbers of the script's own, packed as it reads them: one argument costs Redis as much as many numbers in one.
    fn call_with<'s>(&self, script: &'s Script, queue: &QueueName, bound_ms: i64, numbers: &[&[u8]]) -> Call<'s> {
        let shard = keys::shard_of(queue);
        let keys = self.keys.of_queue_in(shard, queue);
        let mut call = if self.topology.is_cluster() {
            script.call(shard, &[keys.as_slice(), &[self.keys.of_shard(shard, keys::NEVER)]].concat())
        } else {
            script.call(shard, &keys)
        };
        let mut packed = Vec::with_capacity(64);
        packed.extend_from_slice(&self.clock.offset_ms().to_be_bytes());
        packed.extend_from_slice(&bound_ms.to_be_bytes());
        numbers.iter().for_each(|number| packed.extend_from_slice(number));
        call.arg(packed).arg(queue.as_str());
        call
    }

    /// Sends a client's change once, and waits until it is as durable as it must be.
    async fn commit(&self, call: &Call<'_>) -> Result<Value, StoreError> {
        let wait = self.standings.last().wait;
        if wait == Wait::No {
            return self.writes.send(call).await;
        }
        let answer = self.waits.send(call, wait, self.config.promise.wait).await;
        if matches!(answer, Err(StoreError::NotCovered { .. })) {
            self.standings.doubt.notify_one();
        }
        answer
    }

    /// Sends a call that changes something on a client's behalf; every script may run twice, so it is repeated for
    /// a moment where that may help. If any try may have taken effect, the error says so.
    async fn persist(&self, call: &Call<'_>) -> Result<Value, StoreError> {
        self.must_stand()?;
        self.patiently(call, true).await
    }

    /// Sends a call that only reads.
    async fn read(&self, call: &Call<'_>) -> Result<Value, StoreError> {
        self.patiently(call, false).await
    }

    async fn patiently(&self, call: &Call<'_>, changes: bool) -> Result<Value, StoreError> {
        let (began, mut pause, mut maybe_done) = (Instant::now(), PAUSE.0, false);
        loop {
            let answer = if changes { self.commit(call).await } else { self.reads.send(call).await };
            match answer {
                Ok(value) => return Ok(value),
                Err(error) => {
                    maybe_done |= error.fate() == Fate::Unknown;
                    if error.fate() == Fate::Full {
                        self.note_full();
                    }
                    if !error.may_repeat() || began.elapsed() + pause > PATIENCE {
                        return Err(match error {
                            StoreError::Call { call, cause, .. } => {
                                StoreError::Call { call, cause, unknown: maybe_done }
                            }
                            StoreError::Connect(_) | StoreError::NoPrimary { .. } if maybe_done => StoreError::Call {
                                call: call.name(),
                                cause: std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
                                unknown: true,
                            },
                            other => other,
                        });
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}
