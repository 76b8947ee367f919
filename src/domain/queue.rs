//! A queue: its settings and its figures.

use std::time::Duration;

use super::{id::QueueName, retry::Retry, time::UnixMs};

/// Shortest and longest `timeout` of an attempt.
pub const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// Longest retention.
pub const MAX_RETAIN: Duration = Duration::from_secs(3_650 * 86_400);
/// Most completed records a queue may keep.
pub const MAX_RETAIN_COUNT: u64 = 10_000_000;
/// Largest `max_size`.
pub const MAX_SIZE: u64 = 1_000_000_000;
/// Largest `max_in_flight`.
pub const MAX_IN_FLIGHT: u32 = 100_000;
/// Largest `rate.limit` and `rate.burst`.
pub const MAX_RATE: u32 = 1_000_000;
/// Shortest and longest `rate.per`.
pub const RATE_PER: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// A token bucket: `burst` attempts at once, then one each `per`/`limit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// Attempts in each `per`.
    pub limit: u32,
    /// The span that `limit` is about.
    pub per: Duration,
    /// Attempts at once after a rest.
    pub burst: u32,
}

/// What a queue is set to.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How its tasks are tried again, unless they say otherwise.
    pub retry: Retry,
    /// Deadline of one attempt, unless the task or the webhook says otherwise.
    pub timeout: Duration,
    /// Attempts under way at once, pushed and pulled, over all replicas.
    pub max_in_flight: Option<u32>,
    /// Attempts begun in a span, over all replicas.
    pub rate: Option<Rate>,
    /// Most tasks scheduled, active and dead together.
    pub max_size: Option<u64>,
    /// How long completed, cancelled and expired records are kept.
    pub retain_completed: Duration,
    /// How many of each of them are kept at most.
    pub retain_completed_max: u64,
    /// How long dead tasks are kept.
    pub retain_dead: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            timeout: Duration::from_secs(30),
            max_in_flight: None,
            rate: None,
            max_size: None,
            retain_completed: Duration::from_secs(3600),
            retain_completed_max: 10_000,
            retain_dead: Duration::from_secs(30 * 86_400),
        }
    }
}

/// Whether attempts are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// They are not.
    No,
    /// Until this instant.
    Until(UnixMs),
    /// Until somebody resumes.
    Open,
}

impl Pause {
    /// Whether attempts are stopped at this instant.
    #[must_use]
    pub fn holds_at(self, now: UnixMs) -> bool {
        match self {
            Self::No => false,
            Self::Until(until) => now < until,
            Self::Open => true,
        }
    }
}

/// A queue as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// When it came to life.
    pub created_at: UnixMs,
    /// What it is set to.
    pub settings: Settings,
    /// Whether attempts are stopped.
    pub pause: Pause,
}

/// The figures of a queue, read in one call so that they fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Redis's clock when they were read.
    pub now: UnixMs,
    /// Enabled webhooks.
    pub webhooks: u64,
    /// Whether attempts are stopped.
    pub pause: Pause,
    /// Webhooks that are held now.
    pub webhooks_held: u64,
    /// Registered webhooks that are not enabled.
    pub webhooks_disabled: u64,
    /// Waiting tasks, the overdue ones included.
    pub scheduled: u64,
    /// Waiting tasks whose time has come.
    pub due: u64,
    /// Waiting tasks that had an attempt.
    pub retrying: u64,
    /// Attempts under way.
    pub active: u64,
    /// Kept dead tasks.
    pub dead: u64,
    /// Kept records of delivered tasks.
    pub completed: u64,
    /// Kept records of cancelled tasks.
    pub cancelled: u64,
    /// Kept records of expired tasks.
    pub expired: u64,
    /// Instant of the head, if any task waits.
    pub next_attempt_at: Option<UnixMs>,
    /// Counters since the queue came to life.
    pub totals: Totals,
}

/// Counters that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Tasks accepted.
    pub enqueued: u64,
    /// Lives begun anew by `run` and replay.
    pub revived: u64,
    /// Lives that ended with a 2xx or an ack.
    pub delivered: u64,
    /// Lives that ended dead.
    pub dead: u64,
    /// Lives that ended cancelled.
    pub cancelled: u64,
    /// Lives that ended expired.
    pub expired: u64,
    /// Tasks removed while scheduled.
    pub purged: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
}
