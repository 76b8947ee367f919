//! What pull consumers send and get.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    At, TaskOut,
    written::{Fields, Written, room_of},
};
use crate::{
    domain::{
        pull::{ERROR_MAX, LEASE_DEFAULT, LEASES, MAX_TASKS, No, WAIT_MAX},
        time::{UnixMs, format_duration},
    },
    http::{
        fields::{boolean, duration, duration_in, parsed, text_of, whole},
        object::Object,
    },
    store::{Token, Want},
};

/// What a claim took.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ClaimedTasks)]
pub struct ClaimedOut {
    /// The one due longest first; none if nothing was due.
    pub tasks: Vec<LeasedOut>,
}

/// A task in a consumer's hands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LeasedTask)]
pub struct LeasedOut {
    #[serde(flatten)]
    task: TaskOut,
    /// What it is held by.
    lease: LeaseOut,
}

/// A claim.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lease)]
struct LeaseOut {
    /// Names the claim in `ack`, `nack` and `extend`; opaque.
    token: String,
    /// The task becomes due again at this instant unless it is acked, nacked or extended.
    #[schema(value_type = String, format = DateTime)]
    expires_at: At,
}

impl LeasedOut {
    /// A task and the claim on it.
    #[must_use]
    pub fn new(task: TaskOut, token: Token, expires_at: UnixMs) -> Self {
        Self { task, lease: LeaseOut { token: token.to_text(), expires_at: At(expires_at) } }
    }
}

impl Written for LeasedOut {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        self.task.write_fields(out)?;
        let mut fields = Fields::new(out);
        fields.plain(r#","lease":{"token":"#, &self.lease.token);
        fields.at(r#","expires_at":"#, Some(self.lease.expires_at))?;
        fields.put("}}");
        Ok(())
    }

    fn room(&self) -> usize {
        self.task.room()
    }
}

impl Written for ClaimedOut {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let mut fields = Fields::new(out);
        fields.list(r#"{"tasks":"#, &self.tasks)?;
        fields.put("}");
        Ok(())
    }

    fn room(&self) -> usize {
        room_of(&self.tasks)
    }
}

/// Reads a claim.
pub fn read_claim(o: &mut Object<'_>) -> Option<Want> {
    let max = o.optional("max", whole(1..=MAX_TASKS as u64));
    let lease = o.optional("lease", duration_in(LEASES));
    let wait = o.optional("wait", duration_in(Duration::ZERO..=WAIT_MAX));
    Some(Want {
        max: usize::try_from(max.unwrap_or(1)).unwrap_or(1),
        lease: lease.unwrap_or(LEASE_DEFAULT),
        wait: wait.unwrap_or_default(),
    })
}

fn token(o: &mut Object<'_>) -> Option<Token> {
    o.required("token", parsed(|text| Token::parse(text).ok_or("is not a token that a claim gave")))
}

/// Reads an ack.
pub fn read_ack(o: &mut Object<'_>) -> Option<Token> {
    token(o)
}

/// Reads an extension.
pub fn read_extend(o: &mut Object<'_>) -> Option<(Token, Duration)> {
    let token = token(o);
    let lease = o.optional("lease", duration_in(LEASES));
    Some((token?, lease.unwrap_or(LEASE_DEFAULT)))
}

/// A consumer's no.
#[derive(Debug)]
pub struct NackWanted {
    /// Of which claim.
    pub token: Token,
    /// What it means.
    pub no: No,
    /// Why.
    pub error: Option<String>,
}

/// Reads a nack. A delay goes no further than a task's.
pub fn read_nack(o: &mut Object<'_>, max_delay: Duration) -> Option<NackWanted> {
    let token = token(o);
    let delay = o.optional("delay", duration);
    if delay.is_some_and(|delay| delay > max_delay) {
        let furthest = format_duration(max_delay);
        o.fault("delay", format!("is longer than {furthest}, the longest that is taken (--max-delay)"));
    }
    let error = o.optional("error", text_of(ERROR_MAX));
    let dead = o.optional("dead", boolean).unwrap_or(false);
    let failed = o.optional("failed", boolean).unwrap_or(true);
    if dead && delay.is_some() {
        o.fault("delay", "a dead task is not tried again");
    }
    if dead && !failed {
        o.fault("failed", "a dead task is not given back");
    }
    let no = match (dead, failed) {
        (true, _) => No::Dead,
        (false, true) => No::Failed(delay),
        (false, false) => No::GivenBack(delay),
    };
    Some(NackWanted { token: token?, no, error })
}
