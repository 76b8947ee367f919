//! One visit to a queue: take room, claim, plan each task, start its attempt.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Shop, attempt,
    attempt::{Attempting, Target},
    slots::{NoRoom, Slot},
};
use crate::{
    domain::{
        id::QueueName,
        round::{self, Candidate, Claimed, Limits, Plan, Verdict},
        task::DeadReason,
        time::UnixMs,
        webhook::Webhook,
    },
    store::{Claim, ClaimKind, Damaged, Holds, QueueView, Settlement, Stopwatch, StoreError, Visit, Visited},
    telemetry::QueueMetrics,
};

/// Most tasks of one visit.
const MAX_TASKS: usize = 100;
/// Most payload of one visit.
const MAX_BYTES: usize = 1 << 20;
/// An attempt that would begin so late in its lease is not begun: somebody else may have the task by the time that
/// the POST arrives.
const LEASE_MARGIN: f64 = 0.2;
/// Tasks of a webhook that cannot be read are looked at this often.
const UNREADABLE_WAIT: Duration = Duration::from_secs(10);

/// A queue's set-up as attempts use it; made anew when its rev changes.
pub struct Known {
    pub view: QueueView,
    pub targets: Vec<Arc<Target>>,
    /// Ids of enabled webhooks that cannot be read; counted after the targets. Their tasks wait for them.
    pub unreadable: Vec<String>,
    pub metrics: Arc<QueueMetrics>,
}

impl Known {
    pub fn new(view: QueueView, shop: &Shop) -> Self {
        let enabled = view.webhooks.iter().filter(|w| w.enabled);
        let targets = enabled.map(|w: &Webhook| Arc::new(Target::new(w.clone()))).collect();
        let unreadable = view.unreadable.iter().filter(|u| u.enabled).map(|u| u.id.clone()).collect();
        Self { targets, unreadable, metrics: shop.metrics.queue(view.queue.name.as_str()), view }
    }

    /// How many webhooks count.
    pub fn enabled(&self) -> usize {
        self.targets.len() + self.unreadable.len()
    }

    /// The id of one of them.
    pub fn id(&self, i: usize) -> &str {
        self.targets.get(i).map_or_else(
            || self.unreadable.get(i - self.targets.len()).map_or("", String::as_str),
            |target| target.id(),
        )
    }
}

/// What a visit came to.
pub struct Outcome {
    pub queue: QueueName,
    pub known: Option<Arc<Known>>,
    pub result: Result<Seen, StoreError>,
}

/// What the dispatcher goes on with.
pub struct Seen {
    /// When the queue wants its next visit.
    pub agenda: Option<UnixMs>,
    /// The first instant at which a push could take something.
    pub push: Option<UnixMs>,
    pub now: UnixMs,
    /// Whether tasks were taken.
    pub moved: bool,
    /// Why nothing could be taken, if so.
    pub no_room: Option<NoRoom>,
    /// Whether all that was due was looked at.
    pub whole: bool,
}

/// Visits a queue once; what comes due in it besides its tasks may wait until an instant.
pub async fn visit(shop: Arc<Shop>, queue: QueueName, known: Option<Arc<Known>>, rest_until: UnixMs) -> Outcome {
    let mut known = known;
    let result = try_visit(&shop, &queue, &mut known, rest_until).await;
    Outcome { queue, known, result }
}

async fn try_visit(
    shop: &Arc<Shop>,
    queue: &QueueName,
    known: &mut Option<Arc<Known>>,
    rest_until: UnixMs,
) -> Result<Seen, StoreError> {
    if known.is_none() {
        *known = shop.store.describe(queue).await?.map(|view| Arc::new(Known::new(view, shop)));
    }
    let stopping = shop.stop.is_cancelled();
    let clock_now = shop.store.clock().now();
    let room = |k: &Arc<Known>| shop.slots.room(&k.view, MAX_TASKS, clock_now);
    let (room, no_room) = match known.as_ref().filter(|_| !stopping).map(room) {
        Some(Ok(room)) => (Some(room), None),
        Some(Err(no_room)) => (None, Some(no_room)),
        None => (None, None),
    };
    let tasks = room.as_ref().map_or(0, |r| r.tasks);
    let watch = Stopwatch::start();
    let visit = Visit { tasks, bytes: MAX_BYTES, lease: shop.config.lease, kind: ClaimKind::Push };
    let Visited { now, trusted, push, agenda, rev, claims, damaged, mut holds, .. } =
        shop.store.visit_briefly(queue, visit, rest_until).await?;
    if known.as_ref().is_none_or(|k| k.view.rev != rev) {
        // settings or webhooks changed since: nothing is delivered by the old ones
        *known = describe_until_known(shop, queue).await.map(|view| Arc::new(Known::new(view, shop)));
        if let Some(known) = known {
            shop.slots.refresh(&known.view);
            holds = known.view.holds.clone();
        }
    }
    let moved = !claims.is_empty();
    if let (Some(known), Some(mut room)) = (known.as_ref(), room) {
        shop.slots.join(&known.view, &holds);
        let places = shop.slots.places(&known.view);
        for claim in claims {
            let (seat, slots) = shop.slots.seat(&mut room, &places);
            begin(shop, known, &holds, claim, seat, slots, &watch, trusted);
        }
    } else {
        for claim in claims {
            shop.attempts.spawn(attempt::settle(Arc::clone(shop), give_back(claim), None));
        }
    }
    for damaged in damaged {
        tracing::error!(%queue, error = %damaged.error, "a task's record cannot be read; it is dead");
        shop.attempts.spawn(attempt::settle(Arc::clone(shop), dead(damaged), None));
    }
    Ok(Seen { agenda, push, now, moved, no_room, whole: now >= rest_until })
}

/// A claim is in hand already, so a passing trouble is waited out for a moment; then the tasks are released.
async fn describe_until_known(shop: &Shop, queue: &QueueName) -> Option<QueueView> {
    for _ in 0..5 {
        match shop.store.describe(queue).await {
            Ok(view) => return view,
            Err(error) => tracing::warn!(%queue, %error, "the queue's set-up could not be read"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

fn give_back(claim: Claim) -> Settlement {
    Settlement::new(claim.lease, Verdict::Release(claim.due))
}

fn dead(damaged: Damaged) -> Settlement {
    Settlement::new(damaged.lease, Verdict::Dead(DeadReason::Lost))
}

/// Plans one claimed task and starts what the plan says.
#[allow(clippy::too_many_arguments)] // what one claim found, where it was found
fn begin(
    shop: &Arc<Shop>,
    known: &Arc<Known>,
    holds: &Holds,
    mut claim: Claim,
    seat: Option<super::slots::Seat>,
    slots: Vec<Option<Slot>>,
    watch: &Stopwatch,
    now: UnixMs,
) {
    let retry = claim.options.retry_over(&known.view.queue.settings.retry);
    let limits = Limits { max_attempts: retry.max_attempts, max_reclaims: shop.config.max_reclaims };
    let held = |id: &str, slot: &Option<Slot>| holds.until(id).max(slot.as_ref().and_then(Slot::held_until));
    let mut candidates: Vec<Candidate<'_>> = known
        .targets
        .iter()
        .zip(&slots)
        .map(|(t, slot)| Candidate { id: t.id(), held_until: held(t.id(), slot), slot: slot.is_some() })
        .collect();
    let later = Some(now.plus(UNREADABLE_WAIT));
    candidates.extend(known.unreadable.iter().map(|id| Candidate { id, held_until: later, slot: false }));
    let held: Vec<(String, UnixMs)> =
        candidates.iter().filter_map(|c| Some((c.id.to_owned(), c.held_until?))).collect();
    let found = Claimed {
        progress: &claim.progress,
        reclaims: claim.reclaims,
        lapses: claim.lapses,
        has: &claim.has,
        due: claim.due,
        expires_at: claim.expires_at,
    };
    let too_late = watch.elapsed() > shop.config.lease.mul_f64(1.0 - LEASE_MARGIN);
    let (plan, moved) = (round::plan(&found, &candidates, limits, now), found.was_moved());
    attempt::note_lost(&mut claim, &known.metrics); // after the plan, which asks what was lost since the last verdict
    match plan {
        Plan::Call { .. } if too_late => {
            shop.attempts.spawn(attempt::settle(Arc::clone(shop), give_back(claim), seat));
        }
        Plan::Call { open, call } => {
            let claimed = Instant::now();
            let mut slots = slots;
            let calls = call.into_iter().filter_map(|i| Some((i, slots.get_mut(i)?.take()?))).collect();
            let attempting = Attempting { claim, known: Arc::clone(known), open, held, calls, retry, claimed, seat };
            // boxed: the runtime moves what it is given several times
            shop.attempts.spawn(Box::pin(attempt::run(Arc::clone(shop), attempting)));
        }
        Plan::End(verdict) => {
            let slotless = slots.iter().any(Option::is_none);
            let settlement = attempt::without_call(claim, known, verdict, moved, slotless);
            shop.attempts.spawn(attempt::settle(Arc::clone(shop), settlement, seat));
        }
    }
}
