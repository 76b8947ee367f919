//! One round of one task: call the webhooks that the plan chose, judge what they answered, settle until it is known.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use hyper::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use super::{
    Shop,
    leases::Holding,
    slots::{Seat, Slot},
    visit::Known,
};
use crate::{
    delivery::{Call, Destination, Signers},
    domain::{
        attempt::{Advice, Attempt, Outcome, Report},
        headers,
        retry::Retry,
        round::{self, Answered, Round, Verdict},
        time::UnixMs,
        webhook::Webhook,
    },
    store::{Change, Claim, Decision, HookChange, Note, Settled, Settlement},
    telemetry::{QueueMetrics, traces::Delivering},
};

/// Readings of the clock are whole milliseconds, rounded down.
const CLOCK_GRAIN: Duration = Duration::from_millis(1);

/// At a stop, outcomes are settled for so long after the grace.
pub const SETTLE_AT_STOP: Duration = Duration::from_secs(5);

/// A webhook made ready for calls.
pub struct Target {
    webhook: Webhook,
    to: Destination,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Its secret, while that signs alone.
    signers: Signers,
}

impl Target {
    pub fn new(webhook: Webhook) -> Self {
        let signers = Signers::new(std::slice::from_ref(&webhook.secret));
        Self { to: Destination::new(&webhook.url), headers: wire(&webhook.headers), signers, webhook }
    }

    /// Who signs at this instant.
    fn signers(&self, now: UnixMs) -> Signers {
        match self.webhook.previous_secret {
            None => self.signers.clone(),
            Some(_) => Signers::new(&self.webhook.signing_secrets(now)),
        }
    }

    pub fn id(&self) -> &str {
        self.webhook.id.as_str()
    }
}

/// Headers were checked when they came in; one that does not parse all the same is left out.
fn wire(headers: &[(String, String)]) -> Vec<(HeaderName, HeaderValue)> {
    let parse = |(name, value): &(String, String)| Some((name.parse().ok()?, value.parse().ok()?));
    headers.iter().filter_map(parse).collect()
}

/// A planned round.
pub struct Attempting {
    pub claim: Claim,
    pub known: Arc<Known>,
    /// Targets that still want the task.
    pub open: Vec<usize>,
    /// Webhooks that are held, and until when.
    pub held: Vec<(String, UnixMs)>,
    /// Those to call, with their slots.
    pub calls: Vec<(usize, Slot)>,
    pub retry: Retry,
    /// When the claim was in hand.
    pub claimed: Instant,
    pub seat: Option<Seat>,
}

/// Attempts that vanished since the last report are put on the record.
pub fn note_lost(claim: &mut Claim, metrics: &QueueMetrics) {
    let lost = claim.reclaims.saturating_add(claim.lapses);
    for _ in 0..claim.progress.note_lost(lost, claim.claimed_before) {
        metrics.attempt_untimed(Outcome::Lost);
    }
}

/// A settlement for a claim that calls nobody. `moved`: PATCH or `run` set its time, which stays so as long as the task is
/// put back where it was; `slotless`: some webhook had no slot.
pub fn without_call(mut claim: Claim, known: &Known, verdict: Verdict, moved: bool, slotless: bool) -> Settlement {
    let mut about = Vec::new();
    match verdict {
        Verdict::Release(at) => {
            claim.progress.slot_waits = claim.progress.slot_waits.saturating_add(u32::from(slotless));
            if !moved || at != claim.due {
                claim.progress.due = Some(at);
            }
        }
        Verdict::Dead(reason) => {
            claim.progress.reason = Some(reason);
            let has = |id: &str| claim.has.iter().any(|h| h == id);
            about = (0..known.enabled()).map(|i| known.id(i).to_owned()).filter(|id| !has(id)).collect();
        }
        _ => {}
    }
    Settlement { about, progress: Some(claim.progress), ..Settlement::new(claim.lease, verdict) }
}

/// Calls, judges, settles.
pub async fn run(shop: Arc<Shop>, attempting: Attempting) {
    let Attempting { claim, known, open, held, calls, retry, claimed, seat } = attempting;
    let holding = shop.leases.hold(claim.lease.clone(), claimed);
    let made = tokio::select! {
        biased;
        made = make_calls(&shop, &claim, &known, calls, &holding) => Some(made),
        () = shop.release.cancelled() => None,
    };
    shop.slots.free(&claim.lease.queue);
    let settlement = match made {
        Some(made) => conclude(&shop, claim, &known, (&open, &held), made, &retry).await,
        None => Settlement::new(claim.lease, Verdict::Release(claim.due)),
    };
    let (queue, uid, verdict) = (settlement.lease.queue.clone(), settlement.lease.uid, settlement.verdict);
    let settled = settle(Arc::clone(&shop), settlement, seat).await;
    drop(holding);
    if let (Verdict::Dead(reason), Some(Settled::Dead)) = (verdict, settled) {
        known.metrics.dead(reason.as_str());
        tracing::info!(%queue, %uid, reason = reason.as_str(), "a task is dead");
    }
}

/// One call that came back.
struct Made {
    target: usize,
    number: u32,
    started_at: UnixMs,
    report: Report,
    /// What it tells of its webhook, if anything.
    note: Option<Note>,
}

async fn make_calls(
    shop: &Shop,
    claim: &Claim,
    known: &Known,
    calls: Vec<(usize, Slot)>,
    holding: &Holding<'_>,
) -> Vec<Made> {
    let calls = match <[(usize, Slot); 1]>::try_from(calls) {
        Ok([(i, slot)]) => return vec![call(shop, claim, known, i, slot).await], // the usual case
        Err(calls) => calls,
    };
    let mut under_way: FuturesUnordered<_> =
        calls.into_iter().map(|(i, slot)| call(shop, claim, known, i, slot)).collect();
    let mut made = Vec::with_capacity(under_way.len());
    while let Some(one) = under_way.next().await {
        if one.report.outcome == Outcome::Delivered && !under_way.is_empty() {
            holding.won(known.targets[one.target].id());
        }
        made.push(one);
    }
    made
}

/// Calls one webhook; a panic on the way is a failed try, not the end of the process.
async fn call(shop: &Shop, claim: &Claim, known: &Known, i: usize, slot: Slot) -> Made {
    let target = &known.targets[i];
    let webhook = &target.webhook;
    let begun = claim.progress.hooks.get(webhook.id.as_str()).map_or(0, |t| t.begun);
    let others = claim.reclaims.saturating_add(claim.lapses).saturating_add(claim.progress.pulls.begun);
    let number = begun.saturating_add(others).saturating_add(1);
    let started_at = shop.store.clock().now().max(claim.due);
    let own = &claim.options;
    let headers = if own.headers.is_empty() {
        target.headers.clone()
    } else {
        wire(&headers::merge(&webhook.headers, &own.headers))
    };
    let request = Call {
        to: target.to.clone(),
        body: claim.payload.clone(),
        headers,
        signers: target.signers(started_at),
        timeout: own.timeout.or(webhook.timeout).unwrap_or(known.view.queue.settings.timeout),
        webhook_id: claim.lease.uid.0,
        started_at,
        queue: claim.lease.queue.as_str(),
        task_id: claim.id.as_str(),
        attempt: number,
        run_at: claim.run_at,
        traceparent: own.traceparent.as_deref().and_then(|t| t.parse().ok()),
    };
    let span = shop.traces.attempt(&Delivering {
        queue: claim.lease.queue.as_str(),
        task: claim.id.as_str(),
        uid: claim.lease.uid.0,
        webhook: webhook.id.as_str(),
        host: webhook.url.host_str(),
        number,
        lateness: started_at.since(claim.due),
        link: own.traceparent.as_deref(),
    });
    let began = Instant::now();
    let report = AssertUnwindSafe(shop.delivery.call(request)).catch_unwind().await.unwrap_or_else(|_| Report {
        outcome: Outcome::Unreachable,
        status: None,
        error: Some("the attempt broke inside the service".to_owned()),
        response: None,
        advice: Advice::None,
        duration: began.elapsed(),
    });
    if let Some(span) = span {
        span.end(&report);
    }
    let note = slot.hear(&report, shop.store.clock().now());
    let note = Some(note).filter(|note| !note.is_silent());
    let note = note.map(|note| Note { webhook: webhook.id.as_str().to_owned(), rev: known.view.rev, ..note });
    note.iter().for_each(|note| tell(known, note));
    known.metrics.attempt(report.outcome, started_at.since(claim.due), report.duration, began.into_std());
    Made { target: i, number, started_at, report, note }
}

/// The log hears of a breaker, and of a receiver that asks to be left alone.
fn tell(known: &Known, note: &Note) {
    let (queue, webhook) = (&known.view.queue.name, note.webhook.as_str());
    match (note.breaker, note.held_until) {
        (Some(0), _) => tracing::info!(%queue, webhook, "a webhook answers again"),
        (Some(holds), Some(until)) => tracing::warn!(%queue, webhook, %until, holds, "a webhook gives no answer; held"),
        (None, Some(until)) => tracing::info!(%queue, webhook, %until, "a webhook asks to be left alone; held"),
        _ => {}
    }
}

/// Judges the answers and puts the settlement together; a webhook that is gone is disabled first.
async fn conclude(
    shop: &Shop,
    mut claim: Claim,
    known: &Known,
    (open, held): (&[usize], &[(String, UnixMs)]),
    made: Vec<Made>,
    retry: &Retry,
) -> Settlement {
    let id = |i: usize| known.id(i);
    let has = |i: usize| claim.has.iter().any(|h| h == id(i));
    let round = Round {
        open: open.iter().map(|i| id(*i)).collect(),
        gave_up_before: (0..known.enabled()).filter(|i| !open.contains(i) && !has(*i)).map(id).collect(),
        had_one: (0..known.enabled()).any(has),
        held: held.iter().map(|(id, until)| (id.as_str(), *until)).collect(),
        lapses: claim.lapses,
        expires_at: claim.expires_at,
    };
    let answers: Vec<Answered<'_>> =
        made.iter().map(|m| Answered { id: id(m.target), report: &m.report, dice: (shop.dice)() }).collect();
    // a pause counts from the end of the attempt: readings of the clock are rounded down, and may be put back a little
    let ends = made.iter().map(|m| m.started_at.plus(m.report.duration));
    let now = ends.fold(shop.store.clock().now(), Ord::max).plus(CLOCK_GRAIN);
    let judgement = round::judge(&mut claim.progress, &round, &answers, retry, now);
    for one in &made {
        claim.progress.note(Attempt {
            number: one.number,
            webhook: Some(id(one.target).to_owned()),
            started_at: one.started_at,
            lateness_ms: u64::try_from(one.started_at.since(claim.due).as_millis()).unwrap_or(u64::MAX),
            duration_ms: u64::try_from(one.report.duration.as_millis()).unwrap_or(u64::MAX),
            outcome: one.report.outcome,
            status: one.report.status,
            error: one.report.error.clone(),
            response: one.report.response.clone(),
        });
    }
    let mut notes: Vec<Note> = made.into_iter().filter_map(|one| one.note).collect();
    for gone in &judgement.gone {
        if let Some(rev) = Box::pin(disable(shop, known, gone)).await {
            notes.iter_mut().filter(|note| note.webhook == *gone).for_each(|note| note.rev = rev);
        }
    }
    Settlement {
        lease: claim.lease,
        verdict: judgement.verdict,
        about: judgement.about,
        won: judgement.won,
        failed: judgement.failed,
        progress: Some(claim.progress),
        notes,
    }
}

/// A 410 disables its webhook, if that still has the URL which answered so. Gives the rev that this made.
async fn disable(shop: &Shop, known: &Known, gone: &str) -> Option<u64> {
    let queue = &known.view.queue.name;
    let target = known.targets.iter().find(|t| t.id() == gone)?;
    let answer = shop
        .store
        .change(queue, false, |view| match view.webhook(&target.webhook.id) {
            Some(webhook) if webhook.enabled && webhook.url == target.webhook.url => {
                let reason = Some("gone".to_owned());
                let off = Webhook { enabled: false, disabled_reason: reason, ..webhook.clone() };
                Ok(Change { hooks: vec![HookChange::Set(Box::new(off))], ..Change::default() })
            }
            _ => Err(()),
        })
        .await;
    match answer {
        Ok(Decision::Changed { view, .. }) => {
            tracing::warn!(%queue, webhook = gone, "a webhook answered 410 and is disabled");
            return Some(view.rev);
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%queue, webhook = gone, %error, "a webhook answered 410 but is not disabled yet"),
    }
    None
}

/// Settles until it is known what became of it, or the service has stopped; then gives the seat back.
pub async fn settle(shop: Arc<Shop>, settlement: Settlement, seat: Option<Seat>) -> Option<Settled> {
    let queue = settlement.lease.queue.clone();
    let settled = shop.store.settle_until_known(settlement, None).await;
    drop(seat);
    shop.slots.free(&queue);
    settled
}
