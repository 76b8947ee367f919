//! How claims end: settlements go in batches, and those that nobody waits for are repeated until their end is known.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    ClaimKind, Fate, Inner, Lease, Reply, Store, StoreError, Value,
    batch::{Batch, MAX_BYTES},
    form,
    notes::{self, Note},
    run_row, script,
};
use crate::{
    domain::{
        id::QueueName,
        round::{Progress, Verdict},
        time::UnixMs,
    },
    telemetry::chain,
};

/// A settlement is sent again after these pauses, growing from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// One that a client waits for is sent again for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// One that Redis refuses as a fault of ours is given up after so many tries.
const BUG_TRIES: u32 = 3;

/// Plain acks of one call at most: the script reads their records whole.
const MAX_READ: usize = 64;

/// How a claim ends.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Which claim.
    pub lease: Lease,
    /// The end.
    pub verdict: Verdict,
    /// Webhooks that still want the task (retry), or gave up (dead).
    pub about: Vec<String>,
    /// Webhooks that answered 2xx.
    pub won: Vec<String>,
    /// Calls that failed.
    pub failed: u32,
    /// What to keep; `None` leaves it as it is.
    pub progress: Option<Progress>,
    /// What the calls told of their webhooks.
    pub notes: Vec<Note>,
}

impl Settlement {
    /// An end that is about no webhook and leaves the rest as it is.
    #[must_use]
    pub fn new(lease: Lease, verdict: Verdict) -> Self {
        Self { lease, verdict, about: Vec::new(), won: Vec::new(), failed: 0, progress: None, notes: Vec::new() }
    }

    /// The same, with something to keep.
    pub(super) fn with_progress(lease: Lease, verdict: Verdict, progress: Progress) -> Self {
        Self { progress: Some(progress), ..Self::new(lease, verdict) }
    }
}

/// What the script made of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Delivered.
    Completed,
    /// Waits for its next attempt.
    Scheduled,
    /// Given up.
    Dead,
    /// No longer wanted.
    Expired,
    /// It was cancelled while under way.
    Cancelled,
    /// The lease had ended; no effect, except that successes are remembered.
    LeaseLost,
    /// Its content was replaced, or its record removed; no effect.
    Gone,
    /// It had ended otherwise; no effect.
    Late,
    /// It had ended so.
    Already,
    /// More has happened to it than the claim that is acked; no effect.
    Unlike,
}

/// What came of a settlement.
pub struct End {
    pub settled: Settled,
    /// Redis's clock.
    pub now: UnixMs,
    /// Of an ack that went by its claim: the task's record without the payload.
    pub head: Vec<u8>,
}

impl Settled {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "completed" => Self::Completed,
            "scheduled" => Self::Scheduled,
            "dead" => Self::Dead,
            "expired" => Self::Expired,
            "cancelled" => Self::Cancelled,
            "lease_lost" => Self::LeaseLost,
            "gone" => Self::Gone,
            "late" => Self::Late,
            "already" => Self::Already,
            "unlike" => Self::Unlike,
            _ => return None,
        })
    }
}

/// What a plain end takes beside the row as it ends, mostly.
const PLAIN_BYTES: usize = 64;

/// Settles in batches.
pub struct Settles {
    inner: Arc<Inner>,
    /// Somebody is told: it must be as durable as that says.
    told: bool,
}

impl Settles {
    /// Outcomes of deliveries. What is lost is delivered again.
    pub(super) fn of_workers(inner: &Arc<Inner>) -> Self {
        Self { inner: Arc::clone(inner), told: false }
    }

    /// What consumers say.
    pub(super) fn of_consumers(inner: &Arc<Inner>) -> Self {
        Self { inner: Arc::clone(inner), told: true }
    }
}

/// A plain end as the script takes it: a first claim that is done, or acked by its consumer. Answers the row as it ends.
fn pack(job: &Settlement, packed: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (kind, _) = job.lease.first?;
    let done = if kind == ClaimKind::Pull { Verdict::Ack } else { Verdict::Done };
    if job.verdict != done || job.failed > 0 {
        return None;
    }
    let (id, first) = (&job.lease.member, run_row::first_row(&job.lease)?);
    let progress = job.progress.as_ref().map(form::encode_progress).unwrap_or_default();
    let end = run_row::ended_row(&first, &job.won, &progress)?;
    packed.push(u8::try_from(id.len()).ok()?);
    packed.extend_from_slice(id);
    packed.extend_from_slice(&first);
    Some(end)
}

impl Batch for Settles {
    /// Shared with whoever may have to give it in again.
    type Job = Arc<Settlement>;
    type Answer = End;
    const LETS_OTHERS_IN: bool = true;

    fn queue(job: &Arc<Settlement>) -> &QueueName {
        &job.lease.queue
    }

    fn bytes(job: &Arc<Settlement>) -> usize {
        let read = if job.verdict == Verdict::Ack && job.lease.first.is_some() { MAX_BYTES / MAX_READ } else { 0 };
        job.progress.as_ref().map_or(read, |p| read + p.attempts.len() * 256)
    }

    async fn run(&self, queue: QueueName, jobs: Vec<Arc<Settlement>>) -> Vec<Result<Self::Answer, StoreError>> {
        let notes = notes::merge(jobs.iter().flat_map(|job| &job.notes));
        // whether each is a plain end, and they
        let (mut plain, mut packed) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len() * PLAIN_BYTES));
        let mut ends = Vec::with_capacity(jobs.len());
        for job in &jobs {
            let end = pack(job, &mut packed);
            plain.push(end.is_some());
            ends.extend(end);
        }
        let is_full = [u8::from(self.inner.pressure.is_high())];
        let count = u16::try_from(notes.len()).unwrap_or(u16::MAX);
        let mut call = self.inner.call_with(&script::SETTLE, &queue, 0, &[&is_full, &count.to_be_bytes()]);
        call.arg(packed);
        for end in ends {
            call.arg(end);
        }
        for note in &notes {
            note.put_into(&mut call);
        }
        for (job, _) in jobs.iter().zip(&plain).filter(|(_, plain)| !*plain) {
            let (verb, at) = match job.verdict {
                Verdict::Done => ("done", 0),
                Verdict::Ack => ("ack", 0),
                Verdict::Retry(at) => ("retry", at.0),
                Verdict::Release(at) => ("release", at.0),
                Verdict::Dead(_) => ("dead", 0),
                Verdict::Expired => ("expired", 0),
            };
            call.arg(&job.lease.member).arg(job.lease.uid.0.as_bytes()).arg(job.lease.fence).arg(verb).arg(at);
            call.arg(job.about.join(",")).arg(job.won.join(",")).arg(job.failed);
            call.arg(job.progress.as_ref().map(form::encode_progress).unwrap_or_default());
        }
        let read = |value| {
            let ends = |words: Vec<Settled>, now| -> Vec<End> {
                words.into_iter().map(|settled| End { settled, now, head: Vec::new() }).collect()
            };
            if let Value::Int(now) = value {
                return Ok(ends(vec![Settled::Completed; jobs.len()], UnixMs(now)));
            }
            let mut reply = Reply::new("settle", value)?;
            let at_once = reply.int()? > 0;
            let mut word = || Settled::parse(&reply.text()?).map_or_else(|| reply.unexpected(), Ok);
            let mut words = vec![Settled::Completed; jobs.len()];
            for wanted in [true, false] {
                for (i, _) in plain.iter().enumerate().filter(|(_, plain)| **plain == wanted && !(at_once && wanted)) {
                    words[i] = word()?;
                }
            }
            let mut ends = ends(words, UnixMs(reply.int()?));
            if reply.left() > 0 {
                for (end, _) in ends.iter_mut().zip(&plain).filter(|(_, plain)| **plain) {
                    end.head = reply.bytes()?;
                }
            }
            Ok(ends)
        };
        let sent = if self.told { self.inner.commit(&call).await } else { self.inner.work.send(&call).await };
        match sent.and_then(read) {
            Ok(ends) => ends.into_iter().map(Ok).collect(),
            Err(error) => jobs.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

impl Store {
    /// Ends claims, together with others that are there. Safe to repeat until it is known.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn settle(&self, settlement: impl Into<Arc<Settlement>>) -> Result<Settled, StoreError> {
        self.settles.submit(settlement.into()).await.map(|end| end.settled)
    }

    /// Settles for a client that waits; what may have happened is said again only where that is safe.
    pub(super) async fn tell(&self, settlement: Settlement, safe: bool) -> Result<End, StoreError> {
        self.inner.must_stand()?;
        let settlement = Arc::new(settlement);
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            let error = match self.told.submit(Arc::clone(&settlement)).await {
                Ok(end) => return Ok(end),
                Err(error) => error,
            };
            let again = if safe { error.may_repeat() } else { error.fate() == Fate::NotDone };
            if !again || began.elapsed() + pause > PATIENCE {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Settles until it is known what became of it, or `until` is over (the lease has ended then).
    pub async fn settle_until_known(&self, settlement: Settlement, until: Option<Instant>) -> Option<Settled> {
        let settlement = Arc::new(settlement);
        let (mut pause, mut tries, mut bugs) = (PAUSES.0, 0, 0);
        loop {
            let error = match self.settle(Arc::clone(&settlement)).await {
                Ok(settled) => return Some(settled),
                Err(error) => error,
            };
            let lease = &settlement.lease;
            (tries, bugs) = (tries + 1, bugs + u32::from(error.fate() == Fate::Bug));
            if bugs >= BUG_TRIES {
                tracing::error!(queue = %lease.queue, uid = %lease.uid, %error, "an outcome is lost; its lease will end");
                return None;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                tracing::warn!(queue = %lease.queue, uid = %lease.uid, %error, "a claim is left to the end of its lease");
                return None;
            }
            if let Some(left_out) = self.inner.unsettled.turn() {
                tracing::warn!(queue = %lease.queue, uid = %lease.uid, error = chain(&error), tries, left_out, "an outcome is not settled yet");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Ends a claimed task that is not handed out.
    pub(super) fn end_unseen(&self, settlement: Settlement, until: Instant) {
        let store = self.clone();
        self.returns.spawn(async move {
            let (lease, verdict) = (settlement.lease.clone(), settlement.verdict);
            let settled = store.settle_until_known(settlement, Some(until)).await;
            if let (Verdict::Dead(reason), Some(Settled::Dead)) = (verdict, settled) {
                store.count_dead(&lease.queue, lease.uid, reason);
            }
        });
    }
}
