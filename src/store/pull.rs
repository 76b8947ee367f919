//! What pull consumers do: claim (in [`waiting`](super::waiting)), ack, nack, extend.
//!
//! Each looks at the task first, decides, and lets a script do it under uid and fence; the answer is the task as that left it.
//! An ack of a first claim needs no look: what it would see, the token tells, and the script checks.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Found, Renewal, Renewed, Settled, Settlement, Store, StoreError, Taken, Token, Want, record::Record, run_row::Run,
    settling::End,
};
use crate::domain::{
    attempt::{Attempt, Outcome},
    id::{QueueName, TaskId, Uid},
    pull::{self, No, Refused},
    round::{Progress, Verdict},
    task::{DeadReason, Task, TaskState},
    time::UnixMs,
};

/// At a stop, what is given back is waited for so long.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What came of a consumer's word.
#[derive(Debug, Clone)]
pub enum Told {
    /// It holds, or held already.
    Done(Box<Task>),
    /// The claim is no longer the task's last one, or the task has ended otherwise; no effect.
    LeaseLost(TaskState),
    /// No such task.
    Unknown,
    /// No such queue.
    NoQueue,
}

/// A task as its consumer finds it.
struct Seen {
    task: Task,
    run: Run,
}

impl Seen {
    fn is_claim(&self, token: Token) -> bool {
        (self.task.uid, self.run.fence) == (token.uid, token.fence)
    }

    /// Puts an attempt on the record, and before it those that were lost.
    fn note(&mut self, token: Token, lost: u32, attempt: Attempt) {
        let before = token.claimed.clamp(self.task.created_at, attempt.started_at.max(self.task.created_at));
        self.task.progress.note_lost(lost, before);
        self.task.progress.note(attempt);
    }

    /// The attempt that its consumer tells of: its number, when it began, when it was due.
    fn tried(&self, token: Token) -> (u32, UnixMs, UnixMs) {
        (self.task.attempt().max(1), self.run.claimed_at, token.due.max(self.task.created_at))
    }

    /// As the script has left it.
    fn ended(mut self, state: TaskState, score: UnixMs) -> Task {
        (self.task.state, self.task.score, self.task.cancelling) = (state, score, false);
        self.task
    }
}

impl Store {
    /// Takes due tasks, or waits for one. A queue that is not there is waited for too.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn pull(&self, queue: &QueueName, want: Want) -> Result<Taken, StoreError> {
        self.inner.must_stand()?;
        self.waiting.join(queue, want).await
    }

    /// Ends waiting claims empty, and lets none begin.
    pub fn end_waiting(&self) {
        self.waiting.end();
    }

    /// Waits until what consumers did not get is given back, or Redis is out of reach.
    pub async fn given_back(&self) {
        self.returns.close();
        if tokio::time::timeout(STOP_PATIENCE, self.returns.wait()).await.is_err() {
            tracing::warn!(claims = self.returns.len(), "not given back; these come back when their leases end");
        }
    }

    /// Done. Counts until the task is claimed anew, also when repeated.
    ///
    /// # Errors
    /// With [`Fate::Unknown`] it may have been taken.
    pub async fn ack(&self, queue: &QueueName, id: &TaskId, token: Token) -> Result<Told, StoreError> {
        if let Some(task) = self.ack_unseen(queue, id, token).await? {
            return Ok(Told::Done(Box::new(task)));
        }
        Box::pin(self.ack_seen(queue, id, token)).await // rare: it must not make all acks bigger
    }

    async fn ack_seen(&self, queue: &QueueName, id: &TaskId, token: Token) -> Result<Told, StoreError> {
        let mut seen = match self.seen(queue, id).await? {
            Found::Here(seen) => seen,
            Found::Unknown => return Ok(Told::Unknown),
            Found::NoQueue => return Ok(Told::NoQueue),
        };
        if !seen.is_claim(token) {
            return Ok(Told::LeaseLost(seen.task.state));
        }
        let under_way = seen.task.state == TaskState::Active;
        // a lease that ran out was counted as an attempt: it is this one
        let lost = seen.task.lost.saturating_sub(u32::from(!under_way && seen.task.lost > 0));
        let attempt = self.attempt(seen.tried(token), Outcome::Delivered, None);
        seen.note(token, lost, attempt.clone());
        if under_way {
            seen.task.progress.pulls.begun = seen.task.progress.pulls.begun.saturating_add(1);
        }
        let settlement = Settlement::with_progress(token.lease(queue, id), Verdict::Ack, seen.task.progress.clone());
        let End { settled, now, .. } = self.tell(settlement, true).await?;
        match settled {
            Settled::Completed => {
                self.count(queue, Outcome::Delivered, &attempt);
                Ok(Told::Done(Box::new(seen.ended(TaskState::Completed, now))))
            }
            Settled::Already if seen.task.state == TaskState::Completed => Ok(Told::Done(Box::new(seen.task))),
            Settled::Already => self.as_it_stands(queue, id, TaskState::Completed).await,
            _ => self.lost_lease(queue, id).await,
        }
    }

    /// Nearly all acks: of a first claim, with nothing come between. Its token tells all that a look would; `None` if it does
    /// not hold, and then nothing has happened.
    async fn ack_unseen(&self, queue: &QueueName, id: &TaskId, token: Token) -> Result<Option<Task>, StoreError> {
        let Some(lease) = token.first_lease(queue, id) else { return Ok(None) };
        let attempt = self.attempt((1, token.claimed, token.due), Outcome::Delivered, None);
        let mut progress = Progress::default();
        progress.pulls.begun = 1;
        progress.note(attempt.clone());
        let end = self.tell(Settlement::with_progress(lease, Verdict::Ack, progress.clone()), true).await?;
        if end.settled != Settled::Completed {
            return Ok(None);
        }
        self.count(queue, Outcome::Delivered, &attempt);
        let record = Record::decode(id, end.head.into())?;
        Ok(Some(Task {
            id: id.clone(),
            uid: record.uid,
            queue: queue.clone(),
            state: TaskState::Completed,
            created_at: record.created_at,
            run_at: record.run_at,
            score: end.now,
            expires_at: record.expires_at,
            cancelling: false,
            options: record.options,
            lost: 0,
            delivered_to: Vec::new(),
            progress,
            payload: None,
        }))
    }

    /// Not done. `dice` is an even random number in [0, 1).
    ///
    /// # Errors
    /// With [`Fate::Unknown`] it may have been taken; said again, it is a lost lease then.
    pub async fn nack(
        &self,
        queue: &QueueName,
        id: &TaskId,
        token: Token,
        no: No,
        error: Option<String>,
        dice: f64,
    ) -> Result<Told, StoreError> {
        let (seen, view) = tokio::try_join!(self.seen(queue, id), self.describe(queue))?;
        let mut seen = match seen {
            Found::Here(seen) => seen,
            Found::Unknown => return Ok(Told::Unknown),
            Found::NoQueue => return Ok(Told::NoQueue),
        };
        let Some(view) = view else { return Ok(Told::NoQueue) };
        if !seen.is_claim(token) || seen.task.state != TaskState::Active {
            return Ok(Told::LeaseLost(seen.task.state));
        }
        let retry = seen.task.options.retry_over(&view.queue.settings.retry);
        let refused =
            Refused { lapses: seen.run.lapses, due: token.due, expires_at: seen.task.expires_at, retry: &retry, dice };
        let counts = !matches!(no, No::GivenBack(_));
        let attempt = self.attempt(seen.tried(token), Outcome::Nacked, error);
        let lost = seen.task.lost;
        if counts {
            seen.note(token, lost, attempt.clone());
        }
        let verdict = pull::refuse(&mut seen.task.progress, no, &refused, self.clock().now());
        let settlement = Settlement {
            failed: u32::from(counts),
            ..Settlement::with_progress(token.lease(queue, id), verdict, seen.task.progress.clone())
        };
        let End { settled, now, .. } = self.tell(settlement, false).await?;
        let at = match verdict {
            Verdict::Retry(at) | Verdict::Release(at) => at,
            _ => now,
        };
        let state = match settled {
            Settled::Scheduled => TaskState::Scheduled,
            Settled::Dead => TaskState::Dead,
            Settled::Expired => TaskState::Expired,
            Settled::Cancelled => TaskState::Cancelled,
            _ => return self.lost_lease(queue, id).await,
        };
        if counts {
            self.count(queue, Outcome::Nacked, &attempt);
        }
        if let (TaskState::Dead, Verdict::Dead(reason)) = (state, verdict) {
            self.count_dead(queue, token.uid, reason);
        }
        Ok(Told::Done(Box::new(seen.ended(state, if state == TaskState::Scheduled { at } else { now }))))
    }

    /// Keeps a claim for longer, counted from now.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn extend(
        &self,
        queue: &QueueName,
        id: &TaskId,
        token: Token,
        lease: Duration,
    ) -> Result<Told, StoreError> {
        let mut seen = match self.seen(queue, id).await? {
            Found::Here(seen) => seen,
            Found::Unknown => return Ok(Told::Unknown),
            Found::NoQueue => return Ok(Told::NoQueue),
        };
        let renewal = Renewal { lease: token.lease(queue, id), won: Vec::new() };
        let (renewed, now) = self.extend_leases(queue, lease, &[renewal]).await?;
        match renewed.first() {
            Some(Renewed::Held | Renewed::Cancelling) => {
                seen.task.cancelling = renewed.first() == Some(&Renewed::Cancelling);
                (seen.task.state, seen.task.score) = (TaskState::Active, now.plus(lease));
                Ok(Told::Done(Box::new(seen.task)))
            }
            _ => self.lost_lease(queue, id).await,
        }
    }

    async fn seen(&self, queue: &QueueName, id: &TaskId) -> Result<Found<Seen>, StoreError> {
        self.look_up_lean(queue, id).await?.and_then(|view| {
            let run = Run::decode(view.run.clone().into())?;
            Ok(Seen { task: view.into_task(queue)?, run })
        })
    }

    async fn as_it_stands(&self, queue: &QueueName, id: &TaskId, wanted: TaskState) -> Result<Told, StoreError> {
        Ok(match self.get_lean(queue, id).await? {
            Found::Here(task) if task.state == wanted => Told::Done(Box::new(task)),
            Found::Here(task) => Told::LeaseLost(task.state),
            Found::Unknown => Told::Unknown,
            Found::NoQueue => Told::NoQueue,
        })
    }

    async fn lost_lease(&self, queue: &QueueName, id: &TaskId) -> Result<Told, StoreError> {
        Ok(match self.get_lean(queue, id).await? {
            Found::Here(task) => Told::LeaseLost(task.state),
            Found::Unknown => Told::Unknown,
            Found::NoQueue => Told::NoQueue,
        })
    }

    fn attempt(
        &self,
        (number, started_at, due): (u32, UnixMs, UnixMs),
        outcome: Outcome,
        error: Option<String>,
    ) -> Attempt {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Attempt {
            number,
            webhook: None,
            started_at,
            lateness_ms: ms(started_at.since(due)),
            duration_ms: ms(self.clock().now().since(started_at)),
            outcome,
            status: None,
            error,
            response: None,
        }
    }

    fn count(&self, queue: &QueueName, outcome: Outcome, attempt: &Attempt) {
        let ms = Duration::from_millis;
        let (late, took) = (ms(attempt.lateness_ms), ms(attempt.duration_ms));
        self.metrics().queue(queue.as_str()).attempt(outcome, late, took, Instant::now().into_std());
    }

    pub(super) fn count_dead(&self, queue: &QueueName, uid: Uid, reason: DeadReason) {
        self.metrics().queue(queue.as_str()).dead(reason.as_str());
        tracing::info!(%queue, %uid, reason = reason.as_str(), "a task is dead");
    }
}
