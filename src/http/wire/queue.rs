//! A queue on the wire: its settings, its figures, its row in the list.

use serde::Serialize;
use utoipa::ToSchema;

use super::{At, RetryOut, Span, read_retry};
use crate::{
    domain::{
        queue::{
            MAX_IN_FLIGHT, MAX_RATE, MAX_RETAIN, MAX_RETAIN_COUNT, MAX_SIZE, Pause, Queue, RATE_PER, Rate, Settings,
            Stats,
        },
        retry::Retry,
        time::UnixMs,
    },
    http::{
        fields::{duration_in, timeout, whole, whole_u32},
        object::{Given, Object},
    },
    telemetry::window::Percentiles,
};

/// A queue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Queue)]
pub struct QueueOut {
    /// Its name.
    name: String,
    /// When it came to life.
    #[schema(value_type = String, format = DateTime)]
    created_at: At,
    /// Whether attempts are stopped.
    paused: bool,
    /// Until when, if that was said.
    #[schema(value_type = Option<String>, format = DateTime)]
    paused_until: Option<At>,
    /// What it is set to.
    settings: SettingsOut,
    /// Its figures.
    stats: StatsOut,
}

impl QueueOut {
    /// A queue with its figures.
    #[must_use]
    pub fn new(queue: &Queue, stats: StatsOut, now: UnixMs) -> Self {
        let paused = queue.pause.holds_at(now);
        let paused_until = match queue.pause {
            Pause::Until(until) if paused => Some(At(until)),
            _ => None,
        };
        let (name, created_at) = (queue.name.to_string(), At(queue.created_at));
        Self { name, created_at, paused, paused_until, settings: (&queue.settings).into(), stats }
    }
}

/// What a queue is set to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueSettings)]
pub struct SettingsOut {
    /// For tasks that do not say otherwise.
    retry: RetryOut,
    /// Deadline of one attempt.
    #[schema(value_type = String)]
    timeout: Span,
    /// Attempts under way at once.
    max_in_flight: Option<u32>,
    /// Attempts begun in a span.
    rate: Option<RateOut>,
    /// Most tasks scheduled, active and dead together.
    max_size: Option<u64>,
    /// How long completed, cancelled and expired records are kept.
    #[schema(value_type = String)]
    retain_completed: Span,
    /// How many of each are kept at most.
    retain_completed_max: u64,
    /// How long dead tasks are kept.
    #[schema(value_type = String)]
    retain_dead: Span,
}

/// A token bucket.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Rate)]
pub struct RateOut {
    /// Attempts in each `per`.
    limit: u32,
    /// The span that `limit` is about.
    #[schema(value_type = String)]
    per: Span,
    /// Attempts at once after a rest.
    burst: u32,
}

impl From<&Settings> for SettingsOut {
    fn from(s: &Settings) -> Self {
        Self {
            retry: (&s.retry).into(),
            timeout: Span(s.timeout),
            max_in_flight: s.max_in_flight,
            rate: s.rate.as_ref().map(|r| RateOut { limit: r.limit, per: Span(r.per), burst: r.burst }),
            max_size: s.max_size,
            retain_completed: Span(s.retain_completed),
            retain_completed_max: s.retain_completed_max,
            retain_dead: Span(s.retain_dead),
        }
    }
}

/// Lays the settings of a body over `base`. In a PATCH `null` puts any field back to its default; elsewhere it stands
/// only where it is the default itself.
pub fn read_settings(o: &mut Object<'_>, base: &Settings, patch: bool) -> Settings {
    let (mut s, default) = (base.clone(), Settings::default());
    let retry = match read_retry(o, patch) {
        Given::Value(given) => Given::Value(given.over(&Retry::default())),
        Given::Null => Given::Null,
        Given::Absent => Given::Absent,
    };
    retry.over(&mut s.retry, default.retry);
    o.given("timeout", patch, timeout).over(&mut s.timeout, default.timeout);
    o.given("max_in_flight", true, |raw| whole_u32(1..=MAX_IN_FLIGHT)(raw).map(Some)).over(&mut s.max_in_flight, None);
    match o.object("rate", true, read_rate) {
        Given::Value(rate) => s.rate = Some(rate),
        Given::Null => s.rate = None,
        Given::Absent => {}
    }
    o.given("max_size", true, |raw| whole(1..=MAX_SIZE)(raw).map(Some)).over(&mut s.max_size, None);
    let retain = || duration_in(std::time::Duration::ZERO..=MAX_RETAIN);
    o.given("retain_completed", patch, retain()).over(&mut s.retain_completed, default.retain_completed);
    o.given("retain_completed_max", patch, whole(0..=MAX_RETAIN_COUNT))
        .over(&mut s.retain_completed_max, default.retain_completed_max);
    o.given("retain_dead", patch, retain()).over(&mut s.retain_dead, default.retain_dead);
    s
}

fn read_rate(o: &mut Object<'_>) -> Option<Rate> {
    let limit = o.required("limit", whole_u32(1..=MAX_RATE));
    let per = o.optional("per", duration_in(RATE_PER)).unwrap_or(std::time::Duration::from_secs(1));
    let burst = o.optional("burst", whole_u32(1..=MAX_RATE));
    let limit = limit?;
    Some(Rate { limit, per, burst: burst.unwrap_or(limit) })
}

/// A queue in the list. A queue whose figures cannot be read has its name alone.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueSummary)]
pub struct QueueItem {
    /// Its name.
    pub name: String,
    /// Whether attempts are stopped.
    paused: Option<bool>,
    /// How many webhooks are enabled.
    webhooks: Option<u64>,
    /// Waiting tasks.
    scheduled: Option<u64>,
    /// Waiting tasks whose time has come.
    due: Option<u64>,
    /// Attempts under way.
    active: Option<u64>,
    /// Dead tasks.
    dead: Option<u64>,
    /// How late the head is, 0 if nothing is due.
    oldest_due_ms: Option<u64>,
}

impl QueueItem {
    /// A row.
    #[must_use]
    pub fn new(name: String, stats: Option<&Stats>) -> Self {
        Self {
            name,
            paused: stats.map(|s| s.pause.holds_at(s.now)),
            webhooks: stats.map(|s| s.webhooks),
            scheduled: stats.map(|s| s.scheduled),
            due: stats.map(|s| s.due),
            active: stats.map(|s| s.active),
            dead: stats.map(|s| s.dead),
            oldest_due_ms: stats.map(oldest_due_ms),
        }
    }
}

/// How late the head of a queue is.
#[must_use]
pub fn oldest_due_ms(stats: &Stats) -> u64 {
    let late = stats.next_attempt_at.map_or(0, |head| stats.now.since(head).as_millis());
    u64::try_from(late).unwrap_or(u64::MAX)
}

/// The figures of a queue, of one instant.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = QueueStats)]
#[allow(missing_docs)]
pub struct StatsOut {
    /// Waiting tasks, the overdue ones included.
    scheduled: u64,
    /// Waiting tasks whose time has come.
    due: u64,
    /// Waiting tasks that had an attempt.
    retrying: u64,
    /// Attempts under way.
    active: u64,
    /// Dead tasks.
    dead: u64,
    /// Kept records of delivered tasks.
    completed: u64,
    /// Kept records of cancelled tasks.
    cancelled: u64,
    /// Kept records of expired tasks.
    expired: u64,
    /// Tasks accepted since the queue came to life, as all totals.
    enqueued_total: u64,
    /// Lives begun anew by `run` and replay.
    revived_total: u64,
    /// Lives that ended with a 2xx or an ack.
    delivered_total: u64,
    /// Lives that ended dead.
    dead_total: u64,
    /// Lives that ended cancelled.
    cancelled_total: u64,
    /// Lives that ended expired.
    expired_total: u64,
    /// Tasks removed while scheduled.
    purged_total: u64,
    /// Attempts that failed.
    failed_attempts_total: u64,
    /// How late the head is, 0 if nothing is due.
    oldest_due_ms: u64,
    /// Instant of the head.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<At>,
    /// How late attempts began in the last five minutes of the process that answers.
    lateness_ms: Option<PercentilesOut>,
    /// How long they took.
    duration_ms: Option<PercentilesOut>,
}

/// Percentiles in milliseconds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Percentiles)]
#[allow(missing_docs)]
pub struct PercentilesOut {
    p50: u64,
    p95: u64,
    p99: u64,
    max: u64,
}

impl From<Percentiles> for PercentilesOut {
    fn from(p: Percentiles) -> Self {
        Self { p50: p.p50, p95: p.p95, p99: p.p99, max: p.max }
    }
}

impl StatsOut {
    /// The figures of Redis and of this process.
    #[must_use]
    pub fn new(s: &Stats, lateness: Option<Percentiles>, duration: Option<Percentiles>) -> Self {
        Self {
            scheduled: s.scheduled,
            due: s.due,
            retrying: s.retrying,
            active: s.active,
            dead: s.dead,
            completed: s.completed,
            cancelled: s.cancelled,
            expired: s.expired,
            enqueued_total: s.totals.enqueued,
            revived_total: s.totals.revived,
            delivered_total: s.totals.delivered,
            dead_total: s.totals.dead,
            cancelled_total: s.totals.cancelled,
            expired_total: s.totals.expired,
            purged_total: s.totals.purged,
            failed_attempts_total: s.totals.failed_attempts,
            oldest_due_ms: oldest_due_ms(s),
            next_attempt_at: s.next_attempt_at.map(At),
            lateness_ms: lateness.map(PercentilesOut::from),
            duration_ms: duration.map(PercentilesOut::from),
        }
    }
}
