//! The JSON forms that are kept in Redis: settings for people and Rust, a task's options and progress for
//! Rust alone. Not the wire's forms: those may change with the API, these with the version of the record.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize, Serializer};

use super::record::RecordError;
use crate::domain::{
    attempt::{Attempt, Outcome},
    queue::{Rate, Settings},
    retry::{Backoff, BackoffKind, Retry, RetryPatch},
    round::{Progress, Pulls, Tries},
    task::{DeadReason, TaskOptions},
    time::UnixMs,
};

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum BackoffForm {
    Exponential { base_ms: u64, factor: f64, max_ms: u64, jitter: f64 },
    Fixed { delay_ms: u64, jitter: f64 },
    Schedule { delays_ms: Vec<u64>, jitter: f64 },
}

impl From<&Backoff> for BackoffForm {
    fn from(backoff: &Backoff) -> Self {
        let jitter = backoff.jitter;
        match &backoff.kind {
            BackoffKind::Exponential { base, factor, max } => {
                Self::Exponential { base_ms: ms(*base), factor: *factor, max_ms: ms(*max), jitter }
            }
            BackoffKind::Fixed { delay } => Self::Fixed { delay_ms: ms(*delay), jitter },
            BackoffKind::Schedule { delays } => {
                Self::Schedule { delays_ms: delays.iter().map(|d| ms(*d)).collect(), jitter }
            }
        }
    }
}

impl From<BackoffForm> for Backoff {
    fn from(form: BackoffForm) -> Self {
        let d = Duration::from_millis;
        match form {
            BackoffForm::Exponential { base_ms, factor, max_ms, jitter } => {
                Self { kind: BackoffKind::Exponential { base: d(base_ms), factor, max: d(max_ms) }, jitter }
            }
            BackoffForm::Fixed { delay_ms, jitter } => Self { kind: BackoffKind::Fixed { delay: d(delay_ms) }, jitter },
            BackoffForm::Schedule { delays_ms, jitter } => {
                Self { kind: BackoffKind::Schedule { delays: delays_ms.into_iter().map(d).collect() }, jitter }
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RateForm {
    limit: u32,
    per_ms: u64,
    burst: u32,
}

#[derive(Serialize, Deserialize)]
struct SettingsForm {
    max_attempts: u32,
    backoff: BackoffForm,
    timeout_ms: u64,
    #[serde(default)]
    max_in_flight: Option<u32>,
    #[serde(default)]
    rate: Option<RateForm>,
    #[serde(default)]
    max_size: Option<u64>,
    retain_completed_ms: u64,
    retain_completed_max: u64,
    retain_dead_ms: u64,
}

/// A queue's row in `queues`.
#[derive(Deserialize)]
pub struct QueueForm {
    /// When it came to life, in ms.
    pub created_at: i64,
    settings: SettingsForm,
}

impl QueueForm {
    /// Reads a row.
    ///
    /// # Errors
    /// Damaged.
    pub fn decode(json: &[u8]) -> Result<(UnixMs, Settings), RecordError> {
        let row: Self = serde_json::from_slice(json).map_err(|_| RecordError::Damaged("settings"))?;
        let s = row.settings;
        let settings = Settings {
            retry: Retry { max_attempts: s.max_attempts, backoff: s.backoff.into() },
            timeout: Duration::from_millis(s.timeout_ms),
            max_in_flight: s.max_in_flight,
            rate: s.rate.map(|r| Rate { limit: r.limit, per: Duration::from_millis(r.per_ms), burst: r.burst }),
            max_size: s.max_size,
            retain_completed: Duration::from_millis(s.retain_completed_ms),
            retain_completed_max: s.retain_completed_max,
            retain_dead: Duration::from_millis(s.retain_dead_ms),
        };
        Ok((UnixMs(row.created_at), settings))
    }
}

/// Settings as the `gate` script stores them.
#[must_use]
pub fn encode_settings(settings: &Settings) -> String {
    let form = SettingsForm {
        max_attempts: settings.retry.max_attempts,
        backoff: (&settings.retry.backoff).into(),
        timeout_ms: ms(settings.timeout),
        max_in_flight: settings.max_in_flight,
        rate: settings.rate.as_ref().map(|r| RateForm { limit: r.limit, per_ms: ms(r.per), burst: r.burst }),
        max_size: settings.max_size,
        retain_completed_ms: ms(settings.retain_completed),
        retain_completed_max: settings.retain_completed_max,
        retain_dead_ms: ms(settings.retain_dead),
    };
    serde_json::to_string(&form).unwrap_or_default()
}

/// The plain numbers of the settings that scripts read, as fields of `gate`; an empty value takes the field away.
#[must_use]
pub fn gate_fields(settings: &Settings) -> Vec<(&'static str, String)> {
    let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
    // GCRA in µs: one attempt costs `rate_us`; `tol_us` is how far ahead of time `burst` may run.
    let each_us = settings.rate.as_ref().map(|r| ms(r.per).saturating_mul(1000).div_ceil(u64::from(r.limit.max(1))));
    let tolerance = settings.rate.as_ref().zip(each_us).map(|(r, us)| us.saturating_mul(u64::from(r.burst) - 1));
    vec![
        ("mif", number(settings.max_in_flight.map(u64::from))),
        ("rate_us", number(each_us)),
        ("tol_us", number(tolerance)),
        ("max_size", number(settings.max_size)),
        ("keep", ms(settings.retain_completed).to_string()),
        ("keep_max", settings.retain_completed_max.to_string()),
        ("keep_dead", ms(settings.retain_dead).to_string()),
    ]
}

#[derive(Serialize, Deserialize, Default)]
struct OptionsForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffForm>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Whether the client gave `retry` at all (it may be empty).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    retry: bool,
}

/// A task's own options; `None` where it has none.
#[must_use]
pub fn encode_options(options: &TaskOptions) -> Option<Vec<u8>> {
    if *options == TaskOptions::default() {
        return None;
    }
    let form = OptionsForm {
        max_attempts: options.retry.as_ref().and_then(|r| r.max_attempts),
        backoff: options.retry.as_ref().and_then(|r| r.backoff.as_ref().map(BackoffForm::from)),
        timeout_ms: options.timeout.map(ms),
        headers: options.headers.clone(),
        traceparent: options.traceparent.clone(),
        retry: options.retry.is_some(),
    };
    serde_json::to_vec(&form).ok()
}

/// Reads a task's options back.
///
/// # Errors
/// Damaged.
pub fn decode_options(json: &[u8]) -> Result<TaskOptions, RecordError> {
    if json.is_empty() {
        return Ok(TaskOptions::default());
    }
    let form: OptionsForm = serde_json::from_slice(json).map_err(|_| RecordError::Damaged("options"))?;
    Ok(TaskOptions {
        retry: form
            .retry
            .then(|| RetryPatch { max_attempts: form.max_attempts, backoff: form.backoff.map(Backoff::from) }),
        timeout: form.timeout_ms.map(Duration::from_millis),
        headers: form.headers,
        traceparent: form.traceparent,
    })
}

/// Short names: this is written once an attempt.
#[derive(Serialize, Deserialize)]
struct AttemptForm<'a> {
    n: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    w: Option<Cow<'a, str>>,
    t: i64,
    l: u64,
    d: u64,
    o: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    r: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
struct ProgressForm<'a> {
    /// webhook → failed, begun, next ms, gave up
    #[serde(default)]
    h: BTreeMap<Cow<'a, str>, (u32, u32, i64, bool)>,
    /// by pull: failed, begun
    #[serde(default)]
    p: (u32, u32),
    #[serde(default)]
    due: Option<i64>,
    #[serde(default)]
    slots: u32,
    #[serde(default)]
    lost: u32,
    #[serde(default)]
    a: Vec<AttemptForm<'a>>,
    #[serde(default)]
    why: Option<Cow<'a, str>>,
}

/// The same as it is written: straight from what it shows.
#[derive(Serialize)]
struct ProgressOut<'a> {
    #[serde(skip_serializing_if = "BTreeMap::is_empty", serialize_with = "hooks")]
    h: &'a BTreeMap<String, Tries>,
    #[serde(skip_serializing_if = "is_none_pulled")]
    p: (u32, u32),
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<i64>,
    #[serde(skip_serializing_if = "is_zero")]
    slots: u32,
    #[serde(skip_serializing_if = "is_zero")]
    lost: u32,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "attempts")]
    a: &'a [Attempt],
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

fn hooks<S: Serializer>(hooks: &BTreeMap<String, Tries>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(hooks.iter().map(|(webhook, t)| (webhook, (t.failed, t.begun, t.next.0, t.gave_up))))
}

fn attempts<S: Serializer>(attempts: &[Attempt], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(attempts.iter().map(|a| AttemptForm {
        n: a.number,
        w: a.webhook.as_deref().map(Cow::from),
        t: a.started_at.0,
        l: a.lateness_ms,
        d: a.duration_ms,
        o: a.outcome.as_str().into(),
        s: a.status,
        e: a.error.as_deref().map(Cow::from),
        r: a.response.as_deref().map(Cow::from),
    }))
}

/// Mostly it is one attempt.
const PROGRESS_BYTES: usize = 256;

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_none_pulled(pulls: &(u32, u32)) -> bool {
    *pulls == (0, 0)
}

/// The bytes of a run row that scripts never read.
#[must_use]
pub fn encode_progress(progress: &Progress) -> Vec<u8> {
    let form = ProgressOut {
        h: &progress.hooks,
        p: (progress.pulls.failed, progress.pulls.begun),
        due: progress.due.map(|d| d.0),
        slots: progress.slot_waits,
        lost: progress.lost_noted,
        a: &progress.attempts,
        why: progress.reason.map(DeadReason::as_str),
    };
    let mut json = Vec::with_capacity(PROGRESS_BYTES);
    match serde_json::to_writer(&mut json, &form) {
        Ok(()) => json,
        Err(_) => Vec::new(),
    }
}

/// Reads progress back. A late success appends its own view to the row's, so several may stand in a row: attempts are
/// joined, the rest is the first one's. What cannot be read is left out: a damaged row must not stop a task.
#[must_use]
pub fn decode_progress(json: &[u8]) -> Progress {
    let mut whole: Option<Progress> = None;
    for form in serde_json::Deserializer::from_slice(json).into_iter::<ProgressForm<'_>>().map_while(Result::ok) {
        let attempts = form.a.into_iter().filter_map(|a| {
            Some(Attempt {
                number: a.n,
                webhook: a.w.map(Cow::into_owned),
                started_at: UnixMs(a.t),
                lateness_ms: a.l,
                duration_ms: a.d,
                outcome: Outcome::parse(&a.o)?,
                status: a.s,
                error: a.e.map(Cow::into_owned),
                response: a.r.map(Cow::into_owned),
            })
        });
        if let Some(progress) = &mut whole {
            for attempt in attempts {
                let same = |a: &Attempt| (a.started_at, &a.webhook) == (attempt.started_at, &attempt.webhook);
                if !progress.attempts.iter().any(same) {
                    progress.note(attempt);
                }
            }
        } else {
            let tries = |(failed, begun, next, gave_up)| Tries { failed, begun, next: UnixMs(next), gave_up };
            whole = Some(Progress {
                hooks: form.h.into_iter().map(|(w, t)| (w.into_owned(), tries(t))).collect(),
                pulls: Pulls { failed: form.p.0, begun: form.p.1 },
                due: form.due.map(UnixMs),
                slot_waits: form.slots,
                lost_noted: form.lost,
                attempts: attempts.collect(),
                reason: form.why.as_deref().and_then(DeadReason::parse),
            });
        }
    }
    whole.unwrap_or_default()
}
