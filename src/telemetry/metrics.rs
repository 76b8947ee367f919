//! The figures of `GET /metrics`; names and labels are those of `docs/api.md`.
//!
//! What this process did is counted here. How deep queues are is read from Redis at each scrape and comes in as
//! [`QueueDepth`]s, so that every replica answers the same. No task id and no URL is ever a label, and only so many queues
//! have labels of their own: the rest is counted under [`OTHER`], which no queue can be called.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::{Duration, Instant},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text},
    metrics::{counter::Counter, family::Family, histogram::Histogram, info::Info},
    registry::Registry,
};

use super::{
    alarms::Alarms,
    depth::{QueueDepth, depth_gauges},
    window::{Percentiles, Window},
};
use crate::domain::attempt::Outcome;

/// The content type of what [`Metrics::encode`] gives: the form that every Prometheus and its kin reads.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// The `queue` label of those beyond the cap.
pub const OTHER: &str = "_other";

/// Why tasks die; the words of the API.
pub const DEATHS: [&str; 5] = ["max_attempts", "refused", "gone", "nack", "lost"];

const OUTCOMES: [Outcome; 7] = [
    Outcome::Delivered,
    Outcome::Rejected,
    Outcome::Timeout,
    Outcome::Unreachable,
    Outcome::Blocked,
    Outcome::Lost,
    Outcome::Nacked,
];

/// Seconds. From one millisecond, the finest that is promised, to half an hour of backlog.
const LATENESS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Seconds. Up to the longest time-out of an attempt.
const ATTEMPT: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 300.0, 3600.0];
/// Seconds.
const REDIS: [f64; 13] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfQueue {
    pub queue: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    queue: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfReason {
    queue: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCall {
    call: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    operation: &'static str,
    status: u16,
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All figures of one process. Cheap to share behind an `Arc`; no global registry, so tests run side by side.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// What should wake somebody.
    pub alarms: Alarms,
    enqueued: Family<OfQueue, Counter>,
    attempts: Family<OfOutcome, Counter>,
    dead: Family<OfReason, Counter>,
    lateness: Histograms<OfQueue>,
    attempt: Histograms<OfQueue>,
    redis: Histograms<OfCall>,
    http: Family<OfRequest, Counter>,
    queues: RwLock<HashMap<String, Arc<QueueMetrics>>>,
    /// Made when it is first needed, so that the label does not show up without a reason.
    other: Mutex<Option<Arc<QueueMetrics>>>,
    label_cap: usize,
}

/// The figures of one queue, without a look-up: keep the handle, its methods are a few atomic operations.
#[derive(Debug)]
pub struct QueueMetrics {
    enqueued: Counter,
    attempts: [Counter; OUTCOMES.len()],
    dead: [Counter; DEATHS.len()],
    lateness: Histogram,
    attempt: Histogram,
    /// `None` for the queues beyond the cap: theirs would be a mixture.
    windows: Option<Mutex<Windows>>,
}

#[derive(Debug, Default)]
struct Windows {
    lateness: Window,
    duration: Window,
}

impl QueueMetrics {
    /// Tasks were accepted.
    pub fn enqueued(&self, tasks: u64) {
        self.enqueued.inc_by(tasks);
    }

    /// An attempt ended at `now`: how late it began and how long it took.
    pub fn attempt(&self, outcome: Outcome, lateness: Duration, took: Duration, now: Instant) {
        self.attempts[outcome as usize].inc();
        self.lateness.observe(lateness.as_secs_f64());
        self.attempt.observe(took.as_secs_f64());
        if let Some(mut windows) = self.windows() {
            windows.lateness.record(lateness, now);
            windows.duration.record(took, now);
        }
    }

    /// An attempt ended of which no time is known, as that of a worker that vanished.
    pub fn attempt_untimed(&self, outcome: Outcome) {
        self.attempts[outcome as usize].inc();
    }

    /// A task died. A reason that is not one of [`DEATHS`] is not counted.
    pub fn dead(&self, reason: &str) {
        if let Some(at) = DEATHS.iter().position(|r| *r == reason) {
            self.dead[at].inc();
        }
    }

    /// Lateness over the last five minutes of this process; `None` without attempts, and for queues beyond the cap.
    pub fn lateness_window(&self, now: Instant) -> Option<Percentiles> {
        self.windows()?.lateness.percentiles(now)
    }

    /// Durations of attempts over the last five minutes; as [`Self::lateness_window`].
    pub fn duration_window(&self, now: Instant) -> Option<Percentiles> {
        self.windows()?.duration.percentiles(now)
    }

    fn windows(&self) -> Option<MutexGuard<'_, Windows>> {
        self.windows.as_ref().map(|w| w.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Metrics {
    /// Figures at zero. `label_cap` is how many queues get labels of their own.
    #[must_use]
    pub fn new(label_cap: usize) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("duepost"),
            alarms: Alarms::default(),
            enqueued: Family::default(),
            attempts: Family::default(),
            dead: Family::default(),
            lateness: Family::new_with_constructor(|| Histogram::new(LATENESS)),
            attempt: Family::new_with_constructor(|| Histogram::new(ATTEMPT)),
            redis: Family::new_with_constructor(|| Histogram::new(REDIS)),
            http: Family::default(),
            queues: RwLock::default(),
            other: Mutex::default(),
            label_cap,
        };
        // the encoder adds `_total` to counters and `_info` to infos
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        let to = &mut metrics.registry;
        to.register("enqueued", "Tasks accepted by this process", metrics.enqueued.clone());
        to.register("attempts", "Attempts of this process that ended", metrics.attempts.clone());
        to.register("dead", "Tasks that died in this process", metrics.dead.clone());
        to.register("lateness_seconds", "Start of an attempt minus its due instant", metrics.lateness.clone());
        to.register("attempt_seconds", "Duration of an attempt", metrics.attempt.clone());
        to.register("redis_call_seconds", "Duration of a call of Redis", metrics.redis.clone());
        to.register("http_requests", "Requests answered", metrics.http.clone());
        metrics.alarms.register(to);
        to.register("build", "The build that runs", build);
        metrics
    }

    /// The handle of a queue: its own, or beyond the cap the common one.
    pub fn queue(&self, name: &str) -> Arc<QueueMetrics> {
        if let Some(found) = self.queues.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return found.clone();
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = queues.get(name) {
            return found.clone();
        }
        if queues.len() >= self.label_cap {
            let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
            return other.get_or_insert_with(|| Arc::new(self.handle(OTHER, None))).clone();
        }
        let new = Arc::new(self.handle(name, Some(Mutex::default())));
        queues.insert(name.to_owned(), new.clone());
        new
    }

    /// Takes a deleted queue's labels out and makes room for another. Handles still held count into nothing.
    pub fn remove_queue(&self, name: &str) {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.remove(name).is_none() {
            return;
        }
        let queue = name.to_owned();
        for outcome in OUTCOMES {
            self.attempts.remove(&OfOutcome { queue: queue.clone(), outcome: outcome.as_str() });
        }
        for reason in DEATHS {
            self.dead.remove(&OfReason { queue: queue.clone(), reason });
        }
        let of = OfQueue { queue };
        self.enqueued.remove(&of);
        self.lateness.remove(&of);
        self.attempt.remove(&of);
    }

    /// A call of Redis ended; `call` is the name of the script or command.
    pub fn redis_call(&self, call: &'static str, took: Duration) {
        self.redis.get_or_create(&OfCall { call }).observe(took.as_secs_f64());
    }

    /// A request was answered; `operation` is the `operationId`.
    pub fn http_request(&self, operation: &'static str, status: u16) {
        self.http.get_or_create(&OfRequest { operation, status }).inc();
    }

    /// Everything as text, see [`CONTENT_TYPE`].
    #[must_use]
    pub fn encode(&self, depths: &[QueueDepth]) -> String {
        let gauges = depth_gauges(depths, self.label_cap);
        let mut text = String::new();
        for registry in [&self.registry, &gauges] {
            if prometheus_text::encode(&mut text, registry).is_err() {
                // a String takes whatever is written; should that change, a scrape shows it
                let _ = writeln!(text, "# incomplete");
            }
        }
        text
    }

    fn handle(&self, name: &str, windows: Option<Mutex<Windows>>) -> QueueMetrics {
        let queue = || name.to_owned();
        let of = OfQueue { queue: queue() };
        QueueMetrics {
            enqueued: self.enqueued.get_or_create_owned(&of),
            attempts: OUTCOMES
                .map(|o| self.attempts.get_or_create_owned(&OfOutcome { queue: queue(), outcome: o.as_str() })),
            dead: DEATHS.map(|reason| self.dead.get_or_create_owned(&OfReason { queue: queue(), reason })),
            lateness: self.lateness.get_or_create_owned(&of),
            attempt: self.attempt.get_or_create_owned(&of),
            windows,
        }
    }
}

#[cfg(test)]
mod tests;
