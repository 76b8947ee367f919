//! `retry` and its backoff: part of a queue's settings and of a task.

use serde::Serialize;
use utoipa::ToSchema;

use super::Span;
use crate::{
    domain::retry::{BACKOFF_TIMES, Backoff, BackoffKind, MAX_ATTEMPTS, MAX_DELAYS, MAX_FACTOR, Retry, RetryPatch},
    http::{
        fields::{duration_in, number, whole_u32},
        object::{Given, Object, list, text},
    },
};

/// How often and when is tried again.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Retry)]
pub struct RetryOut {
    /// How many attempts may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// The pauses between them.
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<BackoffOut>,
}

/// The pauses between attempts.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Backoff)]
pub enum BackoffOut {
    /// Growing.
    Exponential(ExponentialOut),
    /// All the same.
    Fixed(FixedOut),
    /// As listed.
    Schedule(ScheduleOut),
}

/// base × factor^(n−1), at most max.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ExponentialBackoff)]
pub struct ExponentialOut {
    /// `exponential`
    kind: &'static str,
    /// After the first failure.
    #[schema(value_type = String)]
    base: Span,
    /// How much longer each next pause is.
    factor: f64,
    /// The longest pause, before jitter.
    #[schema(value_type = String)]
    max: Span,
    /// j spreads each pause evenly over [1−j, 1+j].
    jitter: f64,
}

/// The same pause each time.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = FixedBackoff)]
pub struct FixedOut {
    /// `fixed`
    kind: &'static str,
    /// The pause.
    #[schema(value_type = String)]
    delay: Span,
    /// j spreads each pause evenly over [1−j, 1+j].
    jitter: f64,
}

/// A list of pauses; the last one repeats.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = ScheduleBackoff)]
pub struct ScheduleOut {
    /// `schedule`
    kind: &'static str,
    /// The pauses.
    #[schema(value_type = Vec<String>)]
    delays: Vec<Span>,
    /// j spreads each pause evenly over [1−j, 1+j].
    jitter: f64,
}

impl From<&Backoff> for BackoffOut {
    fn from(backoff: &Backoff) -> Self {
        let jitter = backoff.jitter;
        match &backoff.kind {
            BackoffKind::Exponential { base, factor, max } => Self::Exponential(ExponentialOut {
                kind: "exponential",
                base: Span(*base),
                factor: *factor,
                max: Span(*max),
                jitter,
            }),
            BackoffKind::Fixed { delay } => Self::Fixed(FixedOut { kind: "fixed", delay: Span(*delay), jitter }),
            BackoffKind::Schedule { delays } => Self::Schedule(ScheduleOut {
                kind: "schedule",
                delays: delays.iter().copied().map(Span).collect(),
                jitter,
            }),
        }
    }
}

impl From<&Retry> for RetryOut {
    fn from(retry: &Retry) -> Self {
        Self { max_attempts: Some(retry.max_attempts), backoff: Some((&retry.backoff).into()) }
    }
}

impl From<&RetryPatch> for RetryOut {
    fn from(retry: &RetryPatch) -> Self {
        Self { max_attempts: retry.max_attempts, backoff: retry.backoff.as_ref().map(BackoffOut::from) }
    }
}

/// Reads a `retry` field.
pub fn read_retry(object: &mut Object<'_>, null: bool) -> Given<RetryPatch> {
    object.object("retry", null, |retry| {
        let max_attempts = retry.optional("max_attempts", whole_u32(1..=MAX_ATTEMPTS));
        let backoff = match retry.object("backoff", false, read_backoff) {
            Given::Value(backoff) => Some(backoff),
            Given::Absent | Given::Null => None,
        };
        Some(RetryPatch { max_attempts, backoff })
    })
}

fn read_backoff(o: &mut Object<'_>) -> Option<Backoff> {
    const KINDS: &str = "must be exponential, fixed or schedule";
    let kind = o.required("kind", |raw| match &*text(raw)? {
        "exponential" => Ok(0),
        "fixed" => Ok(1),
        "schedule" => Ok(2),
        _ => Err(KINDS.to_owned()),
    });
    let jitter = o.optional("jitter", number(0.0..=1.0)).unwrap_or(Backoff::DEFAULT_JITTER);
    let pause = || duration_in(BACKOFF_TIMES);
    let kind = match kind {
        Some(0) => {
            let BackoffKind::Exponential { mut base, mut factor, mut max } = Backoff::default().kind else {
                return None;
            };
            base = o.optional("base", pause()).unwrap_or(base);
            factor = o.optional("factor", number(1.0..=MAX_FACTOR)).unwrap_or(factor);
            max = o.optional("max", pause()).unwrap_or(max);
            if max < base {
                o.fault("max", "must not be below base (6h unless it is given)");
            }
            BackoffKind::Exponential { base, factor, max }
        }
        Some(1) => BackoffKind::Fixed { delay: o.required("delay", pause())? },
        Some(_) => {
            let delays = o.required("delays", |raw| {
                let items = list(raw, MAX_DELAYS)?;
                let delays: Result<Vec<_>, _> = items.into_iter().map(pause()).collect();
                delays.and_then(|d| if d.is_empty() { Err("must have at least one item".to_owned()) } else { Ok(d) })
            });
            BackoffKind::Schedule { delays: delays? }
        }
        None => {
            // which fields belong here is not known without the kind
            for name in ["base", "factor", "max", "delay", "delays"] {
                o.raw(name);
            }
            return None;
        }
    };
    Some(Backoff { kind, jitter })
}
