//! A task on the wire.

use std::{collections::BTreeMap, time::Duration};

use serde::{Serialize, ser::SerializeMap};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    At, RetryOut, Span, read_retry, shown,
    written::{Fields, Written},
};
use crate::{
    domain::{
        attempt::Attempt,
        id::{QueueName, TaskId, Uid},
        payload::Payload,
        retry::RetryPatch,
        task::{Task, When},
        time::{UnixMs, format_duration},
    },
    http::{
        fields::{self, duration, instant, name, timeout},
        object::{Given, Object},
    },
    store::QueueView,
};

/// A task. Lists and answers to calls that change a task leave out `payload`, `headers`, `attempts` and `webhooks`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Task)]
pub struct TaskOut {
    /// Unique in its queue.
    #[serde(serialize_with = "shown")]
    #[schema(value_type = String)]
    id: TaskId,
    /// Names its content; sent as `webhook-id`.
    #[serde(serialize_with = "shown")]
    #[schema(value_type = String)]
    uid: Uid,
    /// Its queue.
    #[serde(serialize_with = "shown")]
    #[schema(value_type = String)]
    queue: QueueName,
    /// `scheduled`, `active`, `completed`, `dead`, `cancelled` or `expired`.
    state: &'static str,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    created_at: At,
    /// The time asked for.
    #[schema(value_type = String, format = DateTime)]
    run_at: At,
    /// The earliest instant of the next attempt.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<At>,
    /// Attempts begun.
    attempt: u32,
    /// How many may fail.
    max_attempts: u32,
    /// Cancelled while an attempt is under way.
    cancelling: bool,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<At>,
    /// Why it is dead: `max_attempts`, `refused`, `gone`, `nack` or `lost`.
    reason: Option<&'static str>,
    /// Its own.
    retry: Option<RetryOut>,
    /// Its own.
    #[schema(value_type = Option<String>)]
    timeout: Option<Span>,
    /// When it is no longer wanted.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<At>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    full: Option<FullOut>,
}

/// What only whole answers show.
#[derive(Debug, Serialize, ToSchema)]
pub struct FullOut {
    /// Added to the delivery.
    #[schema(value_type = BTreeMap<String, String>)]
    headers: HeadersOut,
    /// As sent, byte for byte: any JSON value.
    #[schema(value_type = Value)]
    payload: PayloadOut,
    /// The last 20.
    attempts: Vec<AttemptOut>,
    /// With several enabled webhooks, how far each is: `delivered`, `waiting` or `gave-up`. Not in lists.
    #[serde(skip_serializing_if = "Progress::is_unknown")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    webhooks: Progress,
}

/// How far each webhook is with a task.
#[derive(Debug, Default, Serialize)]
#[serde(untagged)]
pub enum Progress {
    /// Not looked up.
    #[default]
    Unknown,
    /// There are fewer than two.
    Single,
    /// By webhook.
    Each(BTreeMap<String, &'static str>),
}

impl Progress {
    fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// As the queue's enabled webhooks stand now.
    #[must_use]
    pub fn of(task: &Task, queue: &QueueView) -> Self {
        let state_of = |id: &str| match task.progress.hooks.get(id) {
            _ if task.delivered_to.iter().any(|has| has == id) => "delivered",
            Some(tries) if tries.gave_up => "gave-up",
            _ => "waiting",
        };
        let enabled = queue.webhooks.iter().filter(|w| w.enabled);
        let each: BTreeMap<_, _> = enabled.map(|w| (w.id.to_string(), state_of(w.id.as_str()))).collect();
        if each.len() < 2 { Self::Single } else { Self::Each(each) }
    }
}

#[derive(Debug)]
struct HeadersOut(Vec<(String, String)>);

impl Serialize for HeadersOut {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[derive(Debug)]
struct PayloadOut(Option<Payload>);

impl PayloadOut {
    /// What was stored is looked at once more: damaged, it must not spoil the whole answer.
    fn text(&self) -> Option<&RawValue> {
        self.0.as_ref().and_then(|payload| serde_json::from_slice(payload.bytes()).ok())
    }
}

impl Serialize for PayloadOut {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text().serialize(serializer)
    }
}

/// One attempt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub struct AttemptOut {
    /// Counts from 1 for its webhook.
    number: u32,
    /// The webhook called; `null` for a pulled task.
    webhook: Option<String>,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    started_at: At,
    /// Start minus due instant.
    lateness_ms: u64,
    /// How long it took.
    duration_ms: u64,
    /// `delivered`, `rejected`, `timeout`, `unreachable`, `blocked`, `lost`, `nacked`; more may come.
    outcome: &'static str,
    /// The HTTP status, if an answer came.
    status: Option<u16>,
    /// Why it failed.
    error: Option<String>,
    /// The first KiB of the answer.
    response: Option<String>,
}

impl From<Attempt> for AttemptOut {
    fn from(a: Attempt) -> Self {
        Self {
            number: a.number,
            webhook: a.webhook,
            started_at: At(a.started_at),
            lateness_ms: a.lateness_ms,
            duration_ms: a.duration_ms,
            outcome: a.outcome.as_str(),
            status: a.status,
            error: a.error,
            response: a.response,
        }
    }
}

impl TaskOut {
    /// As in a list.
    #[must_use]
    pub fn lean(task: &Task, queue_max_attempts: u32) -> Self {
        Self {
            id: task.id.clone(),
            uid: task.uid,
            queue: task.queue.clone(),
            state: task.state.as_str(),
            created_at: At(task.created_at),
            run_at: At(task.run_at),
            next_attempt_at: task.next_attempt_at().map(At),
            attempt: task.attempt(),
            max_attempts: own_max_attempts(task).unwrap_or(queue_max_attempts),
            cancelling: task.cancelling,
            ended_at: task.ended_at().map(At),
            reason: task
                .progress
                .reason
                .filter(|_| task.state == crate::domain::task::TaskState::Dead)
                .map(|r| r.as_str()),
            retry: task.options.retry.as_ref().map(RetryOut::from),
            timeout: task.options.timeout.map(Span),
            expires_at: task.expires_at.map(At),
            full: None,
        }
    }

    /// With payload, headers and attempts.
    #[must_use]
    pub fn whole(task: Task, queue_max_attempts: u32, webhooks: Progress) -> Self {
        let mut out = Self::lean(&task, queue_max_attempts);
        out.full = Some(FullOut {
            headers: HeadersOut(task.options.headers),
            payload: PayloadOut(task.payload),
            attempts: task.progress.attempts.into_iter().map(AttemptOut::from).collect(),
            webhooks,
        });
        out
    }

    /// Writes all but the end of the object.
    pub(super) fn write_fields(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let mut fields = Fields::new(out);
        fields.plain(r#"{"id":"#, self.id.as_str());
        let uid = &mut uuid::Uuid::encode_buffer();
        fields.plain(r#","uid":"#, self.uid.0.hyphenated().encode_lower(uid));
        fields.plain(r#","queue":"#, self.queue.as_str());
        fields.plain(r#","state":"#, self.state);
        fields.at(r#","created_at":"#, Some(self.created_at))?;
        fields.at(r#","run_at":"#, Some(self.run_at))?;
        fields.at(r#","next_attempt_at":"#, self.next_attempt_at)?;
        fields.json(r#","attempt":"#, &self.attempt)?;
        fields.json(r#","max_attempts":"#, &self.max_attempts)?;
        fields.switch(r#","cancelling":"#, self.cancelling);
        fields.at(r#","ended_at":"#, self.ended_at)?;
        fields.plain_or_null(r#","reason":"#, self.reason);
        fields.json_or_null(r#","retry":"#, self.retry.as_ref())?;
        fields.json_or_null(r#","timeout":"#, self.timeout.as_ref())?;
        fields.at(r#","expires_at":"#, self.expires_at)?;
        let Some(full) = &self.full else { return Ok(()) };
        fields.json(r#","headers":"#, &full.headers)?;
        fields.put(r#","payload":"#);
        fields.put(full.payload.text().map_or("null", RawValue::get));
        fields.json(r#","attempts":"#, &full.attempts)?;
        if !full.webhooks.is_unknown() {
            fields.json(r#","webhooks":"#, &full.webhooks)?;
        }
        Ok(())
    }
}

impl Written for TaskOut {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.write_fields(out)?;
        out.push(b'}');
        Ok(())
    }

    fn room(&self) -> usize {
        let payload = self.full.as_ref().and_then(|full| full.payload.0.as_ref());
        super::ROOM + payload.map_or(0, |payload| payload.bytes().len())
    }
}

/// The task's own limit, which needs no look at its queue.
#[must_use]
pub fn own_max_attempts(task: &Task) -> Option<u32> {
    task.options.retry.as_ref().and_then(|r| r.max_attempts)
}

/// A task that a request asks for.
#[derive(Debug)]
pub struct TaskWanted<'a> {
    /// The client's own id.
    pub id: Option<TaskId>,
    /// When it is due.
    pub when: When,
    /// When it is no longer wanted.
    pub expires: Option<When>,
    /// Over the queue's.
    pub retry: Option<RetryPatch>,
    /// Over the webhook's and the queue's.
    pub timeout: Option<Duration>,
    /// Added to the delivery.
    pub headers: Vec<(String, String)>,
    /// The payload's JSON text, a slice of the body.
    pub payload: &'a str,
}

/// The furthest time that a task may name.
#[derive(Debug, Clone, Copy)]
pub struct Horizon {
    /// Redis's clock.
    pub now: UnixMs,
    /// The longest delay.
    pub max_delay: Duration,
}

impl Horizon {
    fn holds(self, when: When) -> bool {
        match when {
            When::After(delay) => delay <= self.max_delay,
            When::At(at) => at <= self.now.plus(self.max_delay),
        }
    }

    fn refusal(self) -> String {
        format!("is further away than {}, the furthest that is taken (--max-delay)", format_duration(self.max_delay))
    }

    /// An instant to compare by; what is relative counts from now.
    fn at(self, when: When) -> UnixMs {
        match when {
            When::After(delay) => self.now.plus(delay),
            When::At(at) => at,
        }
    }
}

/// The one of these fields that is given; `there` says which of them the request has.
fn one_of<const N: usize>(
    o: &mut Object<'_>,
    given: [(&'static str, Option<When>); N],
    there: [bool; N],
) -> Option<When> {
    if there.into_iter().filter(|there| *there).count() > 1 {
        let names: Vec<&str> =
            given.iter().zip(there).filter(|(_, there)| *there).map(|((name, _), _)| *name).collect();
        for name in &names[..2] {
            o.fault(name, format!("give at most one of {}", names.join(", ")));
        }
    }
    given.into_iter().find_map(|(_, when)| when)
}

/// Reads a task to schedule.
pub fn read_task<'a>(o: &mut Object<'a>, horizon: Horizon) -> Option<TaskWanted<'a>> {
    let id = o.optional("id", name(TaskId::parse));
    read_new_content(o, horizon).map(|wanted| TaskWanted { id, ..wanted })
}

/// Reads all of it but the id, which a PUT has in its path.
pub fn read_new_content<'a>(o: &mut Object<'a>, horizon: Horizon) -> Option<TaskWanted<'a>> {
    let payload = o.raw("payload");
    if payload.is_none() {
        o.fault("payload", "is required");
    }
    let when = read_when(o, horizon).unwrap_or(When::After(Duration::ZERO));
    let expires = read_expiry(o, horizon, Some(when));
    let retry = match read_retry(o, false) {
        Given::Value(retry) => Some(retry),
        Given::Absent | Given::Null => None,
    };
    let timeout = o.optional("timeout", timeout);
    let headers = match fields::headers(o, false) {
        Given::Value(headers) => headers,
        Given::Absent | Given::Null => Vec::new(),
    };
    Some(TaskWanted { id: None, when, expires, retry, timeout, headers, payload: payload? })
}

/// Reads the time asked for, if one is.
pub(super) fn read_when(o: &mut Object<'_>, horizon: Horizon) -> Option<When> {
    let there = ["delay", "delay_ms", "run_at"].map(|name| o.has(name));
    let given = [
        ("delay", o.optional("delay", duration).map(When::After)),
        ("delay_ms", o.optional("delay_ms", delay_ms).map(|ms| When::After(Duration::from_millis(ms)))),
        ("run_at", o.optional("run_at", instant).map(When::At)),
    ];
    for (name, when) in given {
        if when.is_some_and(|when| !horizon.holds(when)) {
            o.fault(name, horizon.refusal());
        }
    }
    one_of(o, given, there)
}

fn delay_ms(raw: &str) -> Result<u64, String> {
    fields::whole(0..=i64::MAX.unsigned_abs())(raw)
}

/// Reads when it is no longer wanted; not before `when`, where that is known.
pub(super) fn read_expiry(o: &mut Object<'_>, horizon: Horizon, when: Option<When>) -> Option<When> {
    let there = ["expires_at", "expires_after"].map(|name| o.has(name));
    let given = [
        ("expires_at", o.optional("expires_at", instant).map(When::At)),
        ("expires_after", o.optional("expires_after", duration).map(When::After)),
    ];
    for (name, expires) in given {
        let Some(expires) = expires else { continue };
        if !horizon.holds(expires) {
            o.fault(name, horizon.refusal());
        } else if when.is_some_and(|when| horizon.at(expires) <= horizon.at(when)) {
            o.fault(name, "must be later than the task's own time");
        }
    }
    one_of(o, given, there)
}
