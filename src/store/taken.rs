//! Tasks on their way to a pull consumer, and the token that names a claim.
//!
//! A token is the task's uid and fence, and what only the claim knew. What a client forges in it can spoil no more than the
//! times of its own attempt: the scripts go by uid and fence.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Claim, ClaimKind, Lease, Settlement, Store, keys::raw_id};
use crate::domain::{
    id::{QueueName, TaskId, Uid},
    payload::Payload,
    round::Verdict,
    task::{Task, TaskState},
    time::UnixMs,
};

/// What a claim asks for.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Most tasks.
    pub max: usize,
    /// How long they are held.
    pub lease: Duration,
    /// How long to wait for one.
    pub wait: Duration,
}

/// What a consumer names its claim by: opaque text outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub(super) uid: Uid,
    pub(super) fence: u32,
    /// The score under which the task was due.
    pub(super) due: UnixMs,
    /// When a first claim was made, or else the claim before this one.
    pub(super) claimed: UnixMs,
}

impl Token {
    /// Uid, fence, due, claimed.
    const LENGTH: usize = 16 + 4 + 8 + 8;

    fn of(claim: &Claim) -> Self {
        let Lease { uid, fence, first, .. } = claim.lease;
        Self { uid, fence, due: claim.due, claimed: first.map_or(claim.claimed_before, |(_, at)| at) }
    }

    pub(super) fn lease(self, queue: &QueueName, id: &TaskId) -> Lease {
        Lease { queue: queue.clone(), member: raw_id(id), uid: self.uid, fence: self.fence, first: None }
    }

    /// The same of a first claim, which ends without a look as long as the claim is all that happened to the task.
    pub(super) fn first_lease(self, queue: &QueueName, id: &TaskId) -> Option<Lease> {
        let first = Some((ClaimKind::Pull, self.claimed));
        (self.fence == 1).then(|| Lease { first, ..self.lease(queue, id) })
    }

    /// The text that [`Self::parse`] reads.
    #[must_use]
    pub fn to_text(self) -> String {
        let mut bytes = [0; Self::LENGTH];
        bytes[..16].copy_from_slice(self.uid.0.as_bytes());
        bytes[16..20].copy_from_slice(&self.fence.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.due.0.to_be_bytes());
        bytes[28..].copy_from_slice(&self.claimed.0.to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token; `None` for a text that no claim gave.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; Self::LENGTH] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
        let (uid, rest) = bytes.split_first_chunk::<16>()?;
        let (fence, rest) = rest.split_first_chunk::<4>()?;
        let (due, rest) = rest.split_first_chunk::<8>()?;
        let (claimed, _) = rest.split_first_chunk::<8>()?;
        let instant = |bytes: &[u8; 8]| UnixMs(i64::from_be_bytes(*bytes));
        let (uid, fence) = (Uid(Uuid::from_bytes(*uid)), u32::from_be_bytes(*fence));
        Some(Self { uid, fence, due: instant(due), claimed: instant(claimed) })
    }
}

/// A task in a consumer's hands.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// As it stands under the claim; its score is the end of the lease.
    pub task: Task,
    /// Names the claim.
    pub token: Token,
}

impl Pulled {
    pub(super) fn of(claim: Claim, until: UnixMs) -> (Lease, Self) {
        let token = Token::of(&claim);
        let task = Task {
            id: claim.id,
            uid: claim.lease.uid,
            queue: claim.lease.queue.clone(),
            state: TaskState::Active,
            created_at: claim.created_at,
            run_at: claim.run_at,
            score: until,
            expires_at: claim.expires_at,
            cancelling: false,
            options: claim.options,
            lost: claim.reclaims.saturating_add(claim.lapses),
            delivered_to: claim.has,
            progress: claim.progress,
            payload: Some(Payload::stored(claim.payload)),
        };
        (claim.lease, Self { task, token })
    }
}

/// Tasks on their way to a consumer. Whoever drops this before [`Self::handed_over`] gives them back as they were.
pub struct Taken {
    tasks: Vec<Pulled>,
    back: Option<(Arc<Store>, Back)>,
}

/// What is to be given back: claims, the scores under which they were due, and when their leases end.
struct Back {
    leases: Vec<(Lease, UnixMs)>,
    until: Instant,
}

impl Taken {
    pub(super) fn nothing() -> Self {
        Self { tasks: Vec::new(), back: None }
    }

    /// `store` gives them back if it comes to that, until their leases have ended by themselves.
    pub(super) fn new(claims: Vec<(Lease, Pulled)>, store: &Arc<Store>, until: Instant) -> Self {
        if claims.is_empty() {
            return Self::nothing();
        }
        let back = |(lease, pulled): (Lease, Pulled)| ((lease, pulled.token.due), pulled);
        let (leases, tasks) = claims.into_iter().map(back).unzip();
        Self { tasks, back: Some((Arc::clone(store), Back { leases, until })) }
    }

    /// The tasks; they are given back all the same until [`Self::handed_over`].
    pub fn tasks(&mut self) -> Vec<Pulled> {
        std::mem::take(&mut self.tasks)
    }

    /// Whether there are any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.back.is_none()
    }

    /// They are the consumer's now.
    pub fn handed_over(mut self) {
        self.back = None;
    }

    /// For another consumer: this one has gone.
    pub(super) fn take_back(mut self) -> Vec<(Lease, Pulled)> {
        let leases = self.back.take().map(|(_, back)| back.leases).unwrap_or_default();
        leases.into_iter().map(|(lease, _)| lease).zip(std::mem::take(&mut self.tasks)).collect()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some((store, back)) = self.back.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let tracker = store.returns.clone();
        tracker.spawn_on(
            async move {
                let ends = back.leases.into_iter().map(|(lease, due)| {
                    let settlement = Settlement::new(lease, Verdict::Release(due));
                    store.settle_until_known(settlement, Some(back.until))
                });
                futures_util::future::join_all(ends).await;
            },
            &runtime,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_nothing_else_is_one() {
        for bad in ["", "x", "===", &"A".repeat(47), &"A".repeat(49), &"A".repeat(4000), "é", "+/+/"] {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
        let text = "A".repeat(48);
        assert_eq!(Token::parse(&text).unwrap().to_text(), text);
    }
}
