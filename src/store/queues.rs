//! Queues and webhooks: read together, changed together, each change under the rev that it was read at.

use std::collections::HashMap;

use super::{
    Reply, Store, StoreError,
    form::{self, QueueForm},
    hook_form,
    notes::{self, Holds},
    script,
};
use crate::domain::{
    id::{QueueName, WebhookId},
    queue::{Pause, Queue, Settings, Stats, Totals},
    time::UnixMs,
    webhook::{HookHealth, Webhook},
};

/// The instant that stands for "until somebody resumes".
const NEVER_MS: i64 = 9_000_000_000_000_000;
/// A change that others keep overtaking is tried so often.
const CHANGE_TRIES: usize = 20;

/// Nothing secret is written openly for want of a seal.
const NOT_SEALED: StoreError = StoreError::Answer { call: "gate", what: "a webhook that could be sealed" };

/// A queue's set-up as it stood at one rev.
#[derive(Debug, Clone)]
pub struct QueueView {
    /// Redis's clock when it was read.
    pub now: UnixMs,
    /// Grows with each change.
    pub rev: u64,
    /// Settings and pause.
    pub queue: Queue,
    /// By id.
    pub webhooks: Vec<Webhook>,
    /// Which webhooks are held; may hold instants that are past.
    pub holds: Holds,
    /// By the id of the webhook.
    pub health: HashMap<String, HookHealth>,
    /// Webhooks that are there but cannot be read: another key sealed them, or they are damaged. Never overwritten.
    pub unreadable: Vec<Unreadable>,
}

/// A webhook that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its id.
    pub id: String,
    /// Whether it is enabled: then its tasks wait for it.
    pub enabled: bool,
    /// Why.
    pub why: super::record::RecordError,
}

impl QueueView {
    /// The webhook of this id.
    #[must_use]
    pub fn webhook(&self, id: &WebhookId) -> Option<&Webhook> {
        self.webhooks.iter().find(|w| w.id == *id)
    }
}

/// What to change about one webhook.
#[derive(Debug, Clone)]
pub enum HookChange {
    /// Register or replace.
    Set(Box<Webhook>),
    /// Unregister.
    Remove(WebhookId),
    /// Clear its hold and its health.
    Free(WebhookId),
}

/// What to change about a queue.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// New settings.
    pub settings: Option<Settings>,
    /// New pause.
    pub pause: Option<Pause>,
    /// Webhooks.
    pub hooks: Vec<HookChange>,
}

/// What came of [`Store::change`].
#[derive(Debug, Clone)]
pub enum Decision<R> {
    /// Changed; the queue as it stands now, and whether this made it.
    Changed {
        /// As it stands now.
        view: Box<QueueView>,
        /// The queue is new.
        created: bool,
    },
    /// The caller's own refusal.
    Refused(R),
    /// No such queue.
    NoQueue,
}

impl Store {
    /// Reads a queue's set-up.
    ///
    /// # Errors
    /// Redis is out of reach, or the settings cannot be read.
    pub async fn describe(&self, queue: &QueueName) -> Result<Option<QueueView>, StoreError> {
        let call = self.inner.call(&script::DESCRIBE, queue, 0);
        let mut reply = Reply::new("describe", self.inner.read(&call).await?)?;
        if reply.left() == 0 {
            return Ok(None);
        }
        let now = UnixMs(reply.int()?);
        let (created_at, settings) = QueueForm::decode(&reply.bytes()?)?;
        let gate: HashMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
        let number = |field: &str| gate.get(field).and_then(|n| super::reply::parse_number(n));
        let mut webhooks = Vec::new();
        let mut unreadable = Vec::new();
        let open = gate.get("open").map_or("", String::as_str);
        for (id, json) in reply.list()?.pairs()? {
            match hook_form::decode(queue, &id, &json, &self.inner.config.seal) {
                Ok(webhook) => webhooks.push(webhook),
                Err(why) => {
                    tracing::error!(%queue, webhook = id, "a webhook cannot be read, and its tasks wait for it: {why}");
                    let enabled = open.split_whitespace().any(|open| open == id);
                    unreadable.push(Unreadable { id, enabled, why });
                }
            }
        }
        webhooks.sort_by(|a, b| a.id.cmp(&b.id));
        let holds = Holds::read(reply.list()?.pairs()?);
        let health = notes::read_health(reply.list()?.pairs()?);
        let queue = Queue { name: queue.clone(), created_at, settings, pause: pause_of(number("paused")) };
        let rev = number("rev").map_or(0, i64::unsigned_abs);
        Ok(Some(QueueView { now, rev, queue, webhooks, holds, health, unreadable }))
    }

    /// Makes a queue unless it is there. Answers whether it is new.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn create_queue(&self, queue: &QueueName, settings: &Settings) -> Result<bool, StoreError> {
        // Under a rev that no queue ever has, the script changes nothing about one that is there.
        let gated = self.gate(queue, "x", Some(settings), &Change::default(), &[]).await?;
        Ok(matches!(gated, Gated::Changed { created: true, .. }))
    }

    /// Changes a queue and its webhooks: reads, asks `decide`, writes if nobody else did meanwhile, else again.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn change<R>(
        &self,
        queue: &QueueName,
        create: bool,
        mut decide: impl FnMut(&QueueView) -> Result<Change, R>,
    ) -> Result<Decision<R>, StoreError> {
        let mut created = false;
        for _ in 0..CHANGE_TRIES {
            let Some(view) = self.describe(queue).await? else {
                if !create {
                    return Ok(Decision::NoQueue);
                }
                created |= self.create_queue(queue, &Settings::default()).await?;
                continue;
            };
            let change = match decide(&view) {
                Ok(change) => change,
                Err(refusal) => return Ok(Decision::Refused(refusal)),
            };
            let webhooks = apply(view.webhooks.clone(), &change.hooks);
            let removed =
                |id: &str| change.hooks.iter().any(|c| matches!(c, HookChange::Remove(r) if r.as_str() == id));
            let mut open: Vec<&str> = webhooks.iter().filter(|w| w.enabled).map(|w| w.id.as_str()).collect();
            open.extend(view.unreadable.iter().filter(|u| u.enabled && !removed(&u.id)).map(|u| u.id.as_str()));
            let rev = view.rev.to_string();
            match self.gate(queue, &rev, None, &change, &open).await? {
                Gated::Conflict => {}
                Gated::NoQueue if !create => return Ok(Decision::NoQueue),
                Gated::NoQueue => {}
                Gated::Changed { rev, .. } => {
                    let mut view = QueueView { rev, webhooks, ..view };
                    for change in &change.hooks {
                        if let HookChange::Free(id) | HookChange::Remove(id) = change {
                            view.holds.free(id.as_str());
                            view.health.remove(id.as_str());
                        }
                    }
                    view.queue.settings = change.settings.unwrap_or(view.queue.settings);
                    view.queue.pause = change.pause.unwrap_or(view.queue.pause);
                    return Ok(Decision::Changed { view: Box::new(view), created });
                }
            }
        }
        Err(StoreError::Answer { call: "gate", what: "a change that nobody overtakes" })
    }

    async fn gate(
        &self,
        queue: &QueueName,
        rev: &str,
        create: Option<&Settings>,
        change: &Change,
        open: &[&str],
    ) -> Result<Gated, StoreError> {
        let mut call = self.inner.call(&script::GATE, queue, 0);
        let json = |s: Option<&Settings>| s.map(form::encode_settings).unwrap_or_default();
        call.arg(rev).arg(json(create)).arg(json(change.settings.as_ref()));
        let mut fields: Vec<(&str, String)> = Vec::new();
        if let Some(settings) = create.or(change.settings.as_ref()) {
            fields.extend(form::gate_fields(settings));
        }
        if let Some(pause) = change.pause {
            fields.push(("paused", pause_field(pause)));
        }
        if !change.hooks.is_empty() {
            fields.push(("open", open.join(" ")));
        }
        call.arg(fields.len());
        for (field, value) in fields {
            call.arg(field).arg(value);
        }
        for hook in &change.hooks {
            match hook {
                HookChange::Set(w) => {
                    let json = hook_form::encode(queue, w, &self.inner.config.seal);
                    call.arg("set").arg(w.id.as_str()).arg(json.ok_or(NOT_SEALED)?)
                }
                HookChange::Remove(id) => call.arg("del").arg(id.as_str()).arg(""),
                HookChange::Free(id) => call.arg("free").arg(id.as_str()).arg(""),
            };
        }
        let mut reply = Reply::new("gate", self.inner.persist(&call).await?)?;
        match reply.text()?.as_str() {
            "no_queue" => Ok(Gated::NoQueue),
            "conflict" => Ok(Gated::Conflict),
            "ok" => {
                let rev = reply.int()?.unsigned_abs();
                Ok(Gated::Changed { rev, created: reply.int()? == 1 })
            }
            _ => reply.unexpected(),
        }
    }

    /// Reads a queue's figures.
    ///
    /// # Errors
    /// Redis is out of reach.
    pub async fn stats(&self, queue: &QueueName) -> Result<Option<Stats>, StoreError> {
        let call = self.inner.call(&script::STATS, queue, 0);
        let mut reply = Reply::new("stats", self.inner.read(&call).await?)?;
        if reply.left() == 0 {
            return Ok(None);
        }
        let now = UnixMs(reply.int()?);
        let head = super::reply::parse_number(&reply.text()?).map(UnixMs);
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        let due = count(reply.int()?);
        let mut cards = reply.list()?;
        let mut card = || cards.int().map(count);
        let (scheduled, active, completed, dead, cancelled, expired) =
            (card()?, card()?, card()?, card()?, card()?, card()?);
        let open = reply.text()?;
        let pause = pause_of(super::reply::parse_number(&reply.text()?));
        let totals: HashMap<String, String> = reply.list()?.pairs()?.into_iter().collect();
        let total = |name: &str| totals.get(name).and_then(|n| super::reply::parse_number(n)).map_or(0, count);
        let hooks = count(reply.int()?);
        let open: Vec<&str> = open.split_whitespace().collect();
        let holds = reply.list()?.pairs()?;
        let held = holds.iter().filter(|(w, at)| {
            open.contains(&w.as_str()) && super::reply::parse_number(at).is_some_and(|at| at > now.0)
        });
        Ok(Some(Stats {
            now,
            webhooks: open.len() as u64,
            pause,
            webhooks_held: held.count() as u64,
            webhooks_disabled: hooks.saturating_sub(open.len() as u64),
            scheduled,
            due,
            retrying: total("retrying"),
            active,
            dead,
            completed,
            cancelled,
            expired,
            next_attempt_at: head,
            totals: Totals {
                enqueued: total("enqueued"),
                revived: total("revived"),
                delivered: total("delivered"),
                dead: total("dead"),
                cancelled: total("cancelled"),
                expired: total("expired"),
                purged: total("purged") + total("ghosts"), // ghosts: their records vanished while they lived
                failed_attempts: total("failed"),
            },
        }))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Gated {
    Changed { rev: u64, created: bool },
    Conflict,
    NoQueue,
}

fn pause_of(until_ms: Option<i64>) -> Pause {
    match until_ms {
        None => Pause::No,
        Some(ms) if ms >= NEVER_MS => Pause::Open,
        Some(ms) => Pause::Until(UnixMs(ms)),
    }
}

fn pause_field(pause: Pause) -> String {
    match pause {
        Pause::No => String::new(),
        Pause::Until(at) => at.0.to_string(),
        Pause::Open => NEVER_MS.to_string(),
    }
}

fn apply(mut webhooks: Vec<Webhook>, changes: &[HookChange]) -> Vec<Webhook> {
    for change in changes {
        match change {
            HookChange::Set(new) => {
                webhooks.retain(|w| w.id != new.id);
                webhooks.push(*new.clone());
            }
            HookChange::Remove(id) => webhooks.retain(|w| w.id != *id),
            HookChange::Free(_) => {}
        }
    }
    webhooks.sort_by(|a, b| a.id.cmp(&b.id));
    webhooks
}
