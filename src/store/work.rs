//! What workers do: visit, renew. How claims end is in [`settling`](super::settling).

use std::time::Duration;

use bytes::Bytes;

use super::{
    Call, Reply, Store, StoreError, Value,
    keys::{parse_raw_id, shard_of},
    notes::Holds,
    record::{self, Record},
    run_row::{self, Run},
    script,
};
use crate::domain::{
    id::{QueueName, TaskId, Uid},
    round::Progress,
    task::TaskOptions,
    time::UnixMs,
};

/// A visit's answer may end leases no later than this after it was sent.
const VISIT_GOOD_FOR: Duration = Duration::from_secs(1);
/// After a step of Redis's clock no lease is ended for as long as a worker's lasts, and at most this long.
const LONGEST_STEADY: Duration = Duration::from_secs(60);

/// Who takes tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimKind {
    /// A worker that POSTs.
    Push,
    /// A consumer that called `claim`.
    Pull,
}

/// How much a visit may take.
#[derive(Debug, Clone, Copy)]
pub struct Visit {
    /// Most tasks; 0 only ends leases and retention.
    pub tasks: usize,
    /// Most bytes of payload (one task always fits).
    pub bytes: usize,
    /// How long the claims hold.
    pub lease: Duration,
    /// Who takes them.
    pub kind: ClaimKind,
}

/// What a visit found.
#[derive(Debug)]
pub struct Visited {
    /// Redis's clock.
    pub now: UnixMs,
    /// The same as far as this process trusts it: expiry goes by it.
    pub trusted: UnixMs,
    /// The first instant at which a push could take something.
    pub push: Option<UnixMs>,
    /// The first instant at which a pull could.
    pub pull: Option<UnixMs>,
    /// When the queue wants its next visit for any reason.
    pub agenda: Option<UnixMs>,
    /// Grows with each change of settings, pause and webhooks.
    pub rev: u64,
    /// What was taken.
    pub claims: Vec<Claim>,
    /// Taken, but not understood; to be settled as dead.
    pub damaged: Vec<Damaged>,
    /// The holds that stand, if something was taken.
    pub holds: Holds,
}

/// Names a claim towards the scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The queue.
    pub queue: QueueName,
    /// The task's id as a member of the sets.
    pub member: Vec<u8>,
    /// The content that was claimed.
    pub uid: Uid,
    /// The claim.
    pub fence: u32,
    /// By whom and when, if it is the first claim of the content: then its run row is known.
    pub first: Option<(ClaimKind, UnixMs)>,
}

/// A claimed task.
#[derive(Debug)]
pub struct Claim {
    /// What settle and renew need.
    pub lease: Lease,
    /// The task's id.
    pub id: TaskId,
    /// The score under which it was due.
    pub due: UnixMs,
    /// When it was accepted.
    pub created_at: UnixMs,
    /// The time asked for.
    pub run_at: UnixMs,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
    /// Its own options.
    pub options: TaskOptions,
    /// What is delivered.
    pub payload: Bytes,
    /// Push attempts whose worker vanished.
    pub reclaims: u32,
    /// Pull leases that ran out.
    pub lapses: u32,
    /// When the claim before this one was made.
    pub claimed_before: UnixMs,
    /// Webhooks that have it.
    pub has: Vec<String>,
    /// What earlier rounds left.
    pub progress: Progress,
}

/// A claimed record that cannot be read.
#[derive(Debug)]
pub struct Damaged {
    /// What settle needs.
    pub lease: Lease,
    /// Why it cannot be read.
    pub error: super::record::RecordError,
}

/// A claim to be held longer.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// Which claim.
    pub lease: Lease,
    /// Webhooks that answered 2xx so far.
    pub won: Vec<String>,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// Held on.
    Held,
    /// Held on; the task was cancelled meanwhile.
    Cancelling,
    /// Somebody else may have it.
    LeaseLost,
}

/// What a visit answers beside the claims.
struct Facts {
    now: UnixMs,
    pull: Option<UnixMs>,
    push: Option<UnixMs>,
    agenda: Option<UnixMs>,
    claims: usize,
    all_are_first: bool,
}

impl Facts {
    fn read(packed: &[u8]) -> Result<Self, StoreError> {
        let wrong = StoreError::Answer { call: "visit", what: "facts" };
        let [instants @ .., a, b, c, d, all_are_first] = packed else { return Err(wrong) };
        let (instants, []) = instants.as_chunks() else { return Err(wrong) };
        let [now, pull, push, agenda] = instants else { return Err(wrong) };
        let instant = |ms: &[u8; 8]| Some(UnixMs(i64::from_be_bytes(*ms))).filter(|at| at.0 >= 0);
        Ok(Self {
            now: UnixMs(i64::from_be_bytes(*now)),
            pull: instant(pull),
            push: instant(push),
            agenda: instant(agenda),
            claims: usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX),
            all_are_first: *all_are_first == 1,
        })
    }
}

impl Store {
    /// Visits a queue. Sent once: a repeat would claim more. What a lost answer claimed comes back when its lease ends.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn visit(&self, queue: &QueueName, visit: Visit) -> Result<Visited, StoreError> {
        self.visit_briefly(queue, visit, UnixMs(0)).await
    }

    /// The same; leases that ended, expiry and retention may wait `until` an instant that is near, when the queue wants a
    /// visit for them. Limits need them looked at always.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn visit_briefly(&self, queue: &QueueName, visit: Visit, until: UnixMs) -> Result<Visited, StoreError> {
        let inner = &self.inner;
        let (sent, cap_ms) = (inner.now_sent(), inner.cap_ms());
        let shard = shard_of(queue);
        let calm = inner.topology.calm.lasting(shard) >= inner.config.lease_grace;
        // after a step every worker renews first: a lease later, those that still end are nobody's
        let steady = inner.clock.is_steady(visit.lease.min(LONGEST_STEADY));
        let may_end_until = if calm && steady { inner.clock.shown().plus(VISIT_GOOD_FOR).0 } else { 0 };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
        let lease_ms = i64::try_from(visit.lease.as_millis()).unwrap_or(i64::MAX);
        let marks = [u8::from(visit.kind == ClaimKind::Pull), u8::from(inner.pressure.is_high())];
        let call = inner.call_with(
            &script::VISIT,
            queue,
            cap_ms,
            &[
                &number(visit.tasks),
                &number(visit.bytes),
                &lease_ms.to_be_bytes(),
                &may_end_until.to_be_bytes(),
                &until.0.to_be_bytes(),
                &marks,
            ],
        );
        let mut reply = Reply::new("visit", inner.work.send(&call).await?)?;
        let Facts { now, pull, push, agenda, claims, all_are_first } = Facts::read(&reply.bytes()?)?;
        inner.observe(now, sent, shard);
        let trusted = now.min(UnixMs(cap_ms));
        let rev = u64::try_from(reply.int()?).unwrap_or(0);
        let mut raw = Vec::with_capacity(claims.min(reply.left()));
        for _ in 0..claims {
            raw.push((reply.bytes()?, reply.bytes()?));
        }
        let mut others = Vec::new(); // due and run row of each, if some are no first claims
        if !all_are_first {
            for _ in 0..claims {
                others.push((UnixMs(reply.int()?), Vec::new()));
            }
            for (_, row) in &mut others {
                *row = reply.bytes()?;
            }
        }
        let mut others = others.into_iter();
        let (claims, holds) = (Vec::with_capacity(raw.len()), Holds::default());
        let mut visited = Visited { now, trusted, push, pull, agenda, rev, claims, damaged: Vec::new(), holds };
        for (member, record) in raw {
            let (due, run) = others.next().map_or((None, Vec::new()), |(due, run)| (Some(due), run));
            let first = run.is_empty().then_some((visit.kind, now));
            let (uid, fence) = (record::uid_of(&member, &record), run_row::fence_after(&run));
            let run = Run::decode(run.into()).unwrap_or_default();
            let lease = Lease { queue: queue.clone(), member, uid, fence, first };
            match read_record(&lease.member, record) {
                Ok((id, record)) => {
                    let due = due.unwrap_or_else(|| record.run_at.max(record.created_at));
                    visited.claims.push(claim(lease, id, record, run, due));
                }
                Err(error) => visited.damaged.push(Damaged { lease, error }),
            }
        }
        visited.holds = Holds::read(reply.pairs()?);
        Ok(visited)
    }

    /// Holds claims of one queue for longer; answers in their order.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn renew(
        &self,
        queue: &QueueName,
        lease: Duration,
        claims: &[Renewal],
    ) -> Result<Vec<Renewed>, StoreError> {
        self.renew_at(queue, lease, claims).await.map(|(renewed, _)| renewed)
    }

    /// The same, and when by Redis's clock.
    pub(super) async fn renew_at(
        &self,
        queue: &QueueName,
        lease: Duration,
        claims: &[Renewal],
    ) -> Result<(Vec<Renewed>, UnixMs), StoreError> {
        let call = self.renewal(queue, lease, claims);
        read_renewed(self.inner.work.send(&call).await?, claims.len())
    }

    /// The same for a consumer, and when by Redis's clock.
    pub(super) async fn extend_leases(
        &self,
        queue: &QueueName,
        lease: Duration,
        claims: &[Renewal],
    ) -> Result<(Vec<Renewed>, UnixMs), StoreError> {
        let call = self.renewal(queue, lease, claims);
        read_renewed(self.inner.persist(&call).await?, claims.len())
    }

    fn renewal(&self, queue: &QueueName, lease: Duration, claims: &[Renewal]) -> Call<'static> {
        let mut call = self.inner.call(&script::RENEW, queue, 0);
        call.arg(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        for claim in claims {
            call.arg(&claim.lease.member).arg(claim.lease.uid.0.as_bytes()).arg(claim.lease.fence);
            call.arg(claim.won.join(","));
        }
        call
    }
}

fn read_renewed(answer: Value, claims: usize) -> Result<(Vec<Renewed>, UnixMs), StoreError> {
    let mut reply = Reply::new("renew", answer)?;
    let words = (0..claims).map(|_| match reply.text()?.as_str() {
        "ok" => Ok(Renewed::Held),
        "cancelling" => Ok(Renewed::Cancelling),
        "lease_lost" => Ok(Renewed::LeaseLost),
        _ => reply.unexpected(),
    });
    let words = words.collect::<Result<_, _>>()?;
    Ok((words, UnixMs(reply.int()?)))
}

fn read_record(member: &[u8], record: Vec<u8>) -> Result<(TaskId, Record), super::record::RecordError> {
    let id = parse_raw_id(member).ok_or(super::record::RecordError::Damaged("id"))?;
    let record = Record::decode(&id, record.into())?;
    Ok((id, record))
}

fn claim(lease: Lease, id: TaskId, record: Record, run: Run, due: UnixMs) -> Claim {
    Claim {
        lease,
        id,
        due,
        created_at: record.created_at,
        run_at: record.run_at,
        expires_at: if run.waived { None } else { record.expires_at },
        options: record.options,
        payload: record.payload,
        reclaims: run.reclaims,
        lapses: run.lapses,
        claimed_before: run.claimed_at,
        has: run.done,
        progress: run.progress,
    }
}
