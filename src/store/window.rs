//! One look for waiting claims: visit the queue, judge what was taken, end what is not to be handed out.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Claim, ClaimKind, Lease, Pulled, QueueView, Renewal, Renewed, Settlement, Store, StoreError, Visit};
use crate::domain::{
    attempt::Outcome as Tried,
    id::QueueName,
    pull,
    round::{Claimed, Limits, MAX_RECLAIMS, Verdict},
    task::DeadReason,
    time::UnixMs,
};

/// Most tasks of one look; a script handles no more.
const MAX_TASKS: usize = 500;
/// Most payload of one look, and so of one claim.
const MAX_BYTES: usize = 4 << 20;
/// The longest lease of a claim whose answer is still to come. If that is lost, nobody knows of the tasks until it ends;
/// who asked for longer has them held for so long once they are in hand.
const FIRST_LEASE: Duration = Duration::from_secs(30);
/// Tries of what has to be done while claims are in hand, and the pause between them.
const TRIES: (u32, Duration) = (5, Duration::from_millis(100));

/// A queue's set-up as claims are judged by; read anew when its rev changes.
pub type Known = QueueView;

/// What to look for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Most tasks.
    pub tasks: usize,
    /// How long they are held.
    pub lease: Duration,
}

/// What a look came to.
pub struct Outcome {
    pub queue: QueueName,
    pub known: Option<Known>,
    pub visit: Wanted,
    pub result: Result<Seen, StoreError>,
}

/// What a look saw.
pub struct Seen {
    /// To be handed out, the one due longest first.
    pub taken: Vec<(Lease, Pulled)>,
    /// The first instant at which a pull could take something.
    pub pull: Option<UnixMs>,
    /// Redis's clock.
    pub now: UnixMs,
    /// Whether anything was taken at all.
    pub moved: bool,
    /// Whether all that comes due in a queue by itself was looked at too.
    pub whole: bool,
}

/// Looks once; what comes due in the queue besides its tasks may wait until an instant.
pub async fn look(
    store: Arc<Store>,
    queue: QueueName,
    visit: Wanted,
    mut known: Option<Known>,
    rest_until: UnixMs,
) -> Outcome {
    let result = try_look(&store, &queue, visit, &mut known, rest_until).await;
    Outcome { queue, known, visit, result }
}

async fn try_look(
    store: &Store,
    queue: &QueueName,
    Wanted { tasks, lease }: Wanted,
    known: &mut Option<Known>,
    rest_until: UnixMs,
) -> Result<Seen, StoreError> {
    let until = Instant::now() + lease;
    let first = lease.min(FIRST_LEASE);
    let visit = Visit { tasks: tasks.min(MAX_TASKS), bytes: MAX_BYTES, lease: first, kind: ClaimKind::Pull };
    let visited = store.visit_briefly(queue, visit, rest_until).await?;
    let whole = visited.now >= rest_until;
    let moved = !visited.claims.is_empty() || !visited.damaged.is_empty();
    for damaged in visited.damaged {
        tracing::error!(%queue, error = %damaged.error, "a task's record cannot be read; it is dead");
        store.end_unseen(Settlement::new(damaged.lease, Verdict::Dead(DeadReason::Lost)), until);
    }
    if !visited.claims.is_empty() && known.as_ref().is_none_or(|k| k.rev != visited.rev) {
        *known = match Box::pin(describe(store, queue)).await {
            Ok(view) => view,
            Err(error) => {
                give_back(store, visited.claims, until);
                return Err(error);
            }
        };
    }
    let Some(view) = known else {
        give_back(store, visited.claims, until); // the queue was deleted meanwhile
        return Ok(Seen { taken: Vec::new(), pull: visited.pull, now: visited.now, moved, whole });
    };
    let ends = visited.now.plus(first);
    let mut taken = Vec::with_capacity(visited.claims.len());
    for mut claim in visited.claims {
        note_lost(store, &mut claim);
        match admit(&claim, view, visited.trusted) {
            None => taken.push(Pulled::of(claim, ends)),
            Some(verdict) => store.end_unseen(unseen(claim, view, verdict), until),
        }
    }
    if lease > first && !taken.is_empty() {
        taken = Box::pin(hold_on(store, queue, lease, taken, until)).await?; // rare, as above: looks stay small
    }
    Ok(Seen { taken, pull: visited.pull, now: visited.now, moved, whole })
}

/// Claims are in hand already, so a passing trouble is waited out for a moment.
async fn describe(store: &Store, queue: &QueueName) -> Result<Option<Known>, StoreError> {
    let mut tries = 1;
    loop {
        match store.describe(queue).await {
            Err(_) if tries < TRIES.0 => tries += 1,
            answer => return answer,
        }
        tokio::time::sleep(TRIES.1).await;
    }
}

fn give_back(store: &Store, claims: Vec<Claim>, until: Instant) {
    for claim in claims {
        store.end_unseen(Settlement::new(claim.lease, Verdict::Release(claim.due)), until);
    }
}

/// Has what was taken held for as long as was asked for. What cannot be held, or was cancelled meanwhile, goes back: it has
/// been in nobody's hands.
async fn hold_on(
    store: &Store,
    queue: &QueueName,
    lease: Duration,
    taken: Vec<(Lease, Pulled)>,
    until: Instant,
) -> Result<Vec<(Lease, Pulled)>, StoreError> {
    let renewals: Vec<Renewal> =
        taken.iter().map(|(claim, _)| Renewal { lease: claim.clone(), won: Vec::new() }).collect();
    let back = |(claim, pulled): (Lease, Pulled)| {
        store.end_unseen(Settlement::new(claim, Verdict::Release(pulled.token.due)), until);
    };
    let mut tries = 1;
    let (renewed, now) = loop {
        match store.renew_at(queue, lease, &renewals).await {
            Ok(renewed) => break renewed,
            Err(error) if tries < TRIES.0 && error.may_repeat() => tries += 1,
            Err(error) => {
                taken.into_iter().for_each(back);
                return Err(error);
            }
        }
        tokio::time::sleep(TRIES.1).await;
    };
    let mut held = Vec::with_capacity(taken.len());
    for ((claim, mut pulled), renewed) in taken.into_iter().zip(renewed) {
        match renewed {
            Renewed::Held => {
                pulled.task.score = now.plus(lease);
                held.push((claim, pulled));
            }
            Renewed::Cancelling => back((claim, pulled)),
            Renewed::LeaseLost => {}
        }
    }
    Ok(held)
}

fn note_lost(store: &Store, claim: &mut Claim) {
    let lost = claim.reclaims.saturating_add(claim.lapses);
    if claim.progress.note_lost(lost, claim.claimed_before) > 0 {
        // each loss is followed by one claim; those before were counted by theirs
        store.metrics().queue(claim.lease.queue.as_str()).attempt_untimed(Tried::Lost);
    }
}

fn admit(claim: &Claim, view: &Known, now: UnixMs) -> Option<Verdict> {
    let retry = claim.options.retry_over(&view.queue.settings.retry);
    let limits = Limits { max_attempts: retry.max_attempts, max_reclaims: MAX_RECLAIMS };
    let found = Claimed {
        progress: &claim.progress,
        reclaims: claim.reclaims,
        lapses: claim.lapses,
        has: &claim.has,
        due: claim.due,
        expires_at: claim.expires_at,
    };
    pull::admit(&found, limits, now)
}

/// A death is about the webhooks that do not have the task: if all of them have reported it by now, it is completed.
fn unseen(mut claim: Claim, view: &Known, verdict: Verdict) -> Settlement {
    let mut about = Vec::new();
    if let Verdict::Dead(reason) = verdict {
        claim.progress.reason = Some(reason);
        let enabled = view.webhooks.iter().filter(|w| w.enabled).map(|w| w.id.as_str().to_owned());
        about = enabled.filter(|id| !claim.has.contains(id)).collect();
    }
    Settlement { about, ..Settlement::with_progress(claim.lease, verdict, claim.progress) }
}
