//! What clients change about tasks and queues beside POST and DELETE: PUT, PATCH, `run`, batches, replay, purge, deletion.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{
    Enqueued, Found, PageRequest, Reply, Store, StoreError,
    enqueuing::{EnqueueAnswer, Word, enqueue_call, read_answers},
    keys::raw_id,
    record::Record,
    script,
    tasks::{push_task, read_view, task_member, when_args},
};
use crate::domain::{
    id::{QueueName, TaskId},
    queue::Settings,
    task::{Edit, NewTask, Task, TaskState},
    time::UnixMs,
};

/// An edit that others keep overtaking is tried so often.
const EDIT_TRIES: usize = 20;
/// An atomic batch is sent so often: its queue may be missing, and part of it may be there already.
const ATOMIC_TRIES: usize = 4;
/// Ids in one call of `revive`.
const REVIVE_PIECE: usize = 500;
/// Dead tasks that a replay reads at a time.
const REPLAY_PAGE: usize = 500;

/// What came of a PUT.
#[derive(Debug, Clone)]
pub enum Put {
    /// A new life: there was none of this id, or it had ended.
    Created(Task),
    /// In place of a task that lived.
    Replaced(Task),
    /// There is a record of this id, and only a new one was wanted.
    Exists,
    /// The queue has its `max_size`.
    Full,
    /// There is no such queue, and none is made by itself.
    NoQueue,
}

/// What came of a PATCH.
#[derive(Debug, Clone)]
pub enum Edited {
    /// Changed.
    Done(Task),
    /// An attempt is under way.
    Active(Task),
    /// It has ended.
    Finished(Task),
    /// It would expire before its own time.
    ExpiresFirst,
    /// No such task.
    Unknown,
    /// No such queue.
    NoQueue,
}

/// What came of a `run`.
#[derive(Debug, Clone)]
pub enum Revived {
    /// Due now.
    Done(Task),
    /// An attempt is under way.
    Active(Task),
    /// It was delivered.
    Finished(Task),
    /// The queue has its `max_size`.
    Full,
    /// No such task.
    Unknown,
    /// No such queue.
    NoQueue,
}

/// What came of a batch.
#[derive(Debug, Clone)]
pub enum Batch {
    /// Each was decided on its own, in order.
    Done(Vec<Result<Enqueued, StoreError>>),
    /// All or none was wanted, and this is why it is none.
    Refused(Vec<Result<Enqueued, StoreError>>),
}

/// What came of a queue's deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// Gone.
    Done,
    /// It has tasks that live or are dead.
    NotEmpty,
    /// No such queue.
    NoQueue,
}

/// Which dead tasks to replay.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Those that this webhook gave up.
    pub webhook: Option<String>,
    /// Those that ended after this instant.
    pub ended_after: Option<UnixMs>,
    /// Those that ended before this instant.
    pub ended_before: Option<UnixMs>,
    /// The first so many.
    pub limit: Option<u64>,
    /// Only count.
    pub dry_run: bool,
}

impl Store {
    /// Creates or replaces a task by its id (`task.id` is set).
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] it may have been taken.
    pub async fn put(&self, task: &NewTask, only_create: bool) -> Result<Put, StoreError> {
        let queue = &task.queue;
        let member = task_member(task);
        let mut call = self.inner.call(&script::REPLACE, queue, self.inner.floor_ms());
        call.arg(u8::from(only_create));
        push_task(&mut call, task);
        for _ in 0..2 {
            let mut reply = Reply::new("replace", self.inner.persist(&call).await?)?;
            return match reply.text()?.as_str() {
                "created" => Ok(Put::Created(read_view(&mut reply, &member)?.into_task(queue)?)),
                "replaced" => Ok(Put::Replaced(read_view(&mut reply, &member)?.into_task(queue)?)),
                "exists" => Ok(Put::Exists),
                "full" => Ok(Put::Full),
                "no_queue" if self.inner.config.auto_create => {
                    self.create_queue(queue, &Settings::default()).await?;
                    continue;
                }
                "no_queue" => Ok(Put::NoQueue),
                _ => reply.unexpected(),
            };
        }
        Ok(Put::NoQueue) // deleted again just now
    }

    /// Changes a scheduled task in place.
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] it may have been changed.
    pub async fn edit(&self, queue: &QueueName, id: &TaskId, edit: &Edit) -> Result<Edited, StoreError> {
        let member = raw_id(id);
        for _ in 0..EDIT_TRIES {
            let mut call = self.inner.call(&script::EDIT, queue, self.inner.floor_ms());
            let (time, ms) = edit.when.map_or(("-", 0), when_args);
            call.arg(&member).arg(time).arg(ms);
            // an id of the service's has no fingerprint until a change makes one, of what was POSTed
            if edit.is_move() && id.as_uuid().is_none() {
                call.arg(0);
            } else {
                let raw = match self.look_up(queue, id).await? {
                    Found::Here(view) => Bytes::from(view.record),
                    Found::Unknown => return Ok(Edited::Unknown),
                    Found::NoQueue => return Ok(Edited::NoQueue),
                };
                let record = Record::decode(id, raw.clone())?;
                let new = record.edited(edit);
                let (expiry, expiry_ms) = match edit.expires {
                    None => ("=", 0),
                    Some(None) => ("-", 0),
                    Some(Some(when)) => when_args(when),
                };
                call.arg(1).arg(&raw[..record.head_length()]).arg(&new.head).arg(new.rest);
                call.arg(expiry).arg(expiry_ms).arg(u8::from(edit.is_new_content()));
            }
            let mut reply = Reply::new("edit", self.inner.persist(&call).await?)?;
            let word = reply.text()?;
            match word.as_str() {
                "unknown" => return Ok(Edited::Unknown),
                "no_queue" => return Ok(Edited::NoQueue),
                "expires_first" => return Ok(Edited::ExpiresFirst),
                "conflict" => continue,
                _ => {}
            }
            let task = read_view(&mut reply, &member)?.into_task(queue)?;
            return match word.as_str() {
                "done" => Ok(Edited::Done(task)),
                "active" => Ok(Edited::Active(task)),
                "finished" => Ok(Edited::Finished(task)),
                _ => reply.unexpected(),
            };
        }
        Err(StoreError::Answer { call: "edit", what: "a change that nobody overtakes" })
    }

    /// Makes a scheduled task due now, or begins a new life for one that ended undelivered.
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] it may have been revived.
    pub async fn run(&self, queue: &QueueName, id: &TaskId) -> Result<Revived, StoreError> {
        let ids = [id.clone()];
        let mut answers = self.revive(queue, &ids, false).await?;
        Ok(answers.pop().unwrap_or(Revived::Unknown))
    }

    async fn revive(&self, queue: &QueueName, ids: &[TaskId], only_dead: bool) -> Result<Vec<Revived>, StoreError> {
        let mut call = self.inner.call(&script::REVIVE, queue, self.inner.floor_ms());
        call.arg(u8::from(only_dead));
        for id in ids {
            call.arg(raw_id(id));
        }
        let mut reply = Reply::new("revive", self.inner.persist(&call).await?)?;
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            let mut answer = reply.list()?;
            let word = answer.text()?;
            answers.push(match word.as_str() {
                "no_queue" => return Ok(vec![Revived::NoQueue]),
                "unknown" => Revived::Unknown,
                "full" => Revived::Full,
                _ => {
                    let task = read_view(&mut answer, &raw_id(id))?.into_task(queue)?;
                    match word.as_str() {
                        "done" => Revived::Done(task),
                        "active" => Revived::Active(task),
                        "finished" => Revived::Finished(task),
                        _ => return answer.unexpected(),
                    }
                }
            });
        }
        Ok(answers)
    }

    /// Begins new lives for dead tasks, oldest first. Answers how many; `None` where there is no such queue. Cut off, it
    /// is safe to repeat.
    ///
    /// # Errors
    /// Some may have been revived.
    pub async fn replay(&self, queue: &QueueName, which: &Replay) -> Result<Option<u64>, StoreError> {
        let (mut replayed, most) = (0, which.limit.unwrap_or(u64::MAX));
        let Some(view) = self.describe(queue).await? else { return Ok(None) };
        // what dies while this goes on is not for this replay, or it might never end
        let before = which.ended_before.unwrap_or(UnixMs(i64::MAX)).min(UnixMs(view.now.0 + 1));
        let mut after = which.ended_after.map(|at| (at, last_id()));
        loop {
            let page = PageRequest { state: TaskState::Dead, after: after.take(), limit: REPLAY_PAGE, full: false };
            let Some(page) = self.list(queue, &page).await? else { return Ok(None) };
            let ended_too_late = |t: &Task| t.score >= before;
            let over = page.tasks.last().is_some_and(ended_too_late);
            let gave_up = |t: &Task| match &which.webhook {
                None => true,
                Some(webhook) => t.progress.hooks.get(webhook).is_some_and(|tries| tries.gave_up),
            };
            let wanted = page.tasks.iter().filter(|t| !ended_too_late(t) && gave_up(t)).map(|t| t.id.clone());
            let room = usize::try_from(most - replayed).unwrap_or(usize::MAX);
            let ids: Vec<TaskId> = wanted.take(room).collect();
            if which.dry_run {
                replayed += ids.len() as u64;
            } else {
                for piece in ids.chunks(REVIVE_PIECE) {
                    let answers = self.revive(queue, piece, true).await?;
                    replayed += answers.iter().filter(|a| matches!(a, Revived::Done(_))).count() as u64;
                }
            }
            match page.next {
                Some(next) if !over && replayed < most => after = Some(next),
                _ => return Ok(Some(replayed)),
            }
        }
    }

    /// Schedules many tasks of one queue; of two equal ids the first wins.
    ///
    /// # Errors
    /// Only for `atomic`: otherwise each task has its own.
    pub async fn enqueue_many(
        &self,
        queue: &QueueName,
        tasks: Vec<NewTask>,
        atomic: bool,
    ) -> Result<Batch, StoreError> {
        if atomic {
            return self.enqueue_all_or_none(queue, tasks).await;
        }
        let mut seen = HashSet::new();
        let again: Vec<bool> = tasks.iter().map(|t| t.id.as_ref().is_some_and(|id| !seen.insert(id.clone()))).collect();
        let mut results: Vec<Option<Result<Enqueued, StoreError>>> = tasks.iter().map(|_| None).collect();
        let mut tasks: Vec<Option<NewTask>> = tasks.into_iter().map(Some).collect();
        for second_turn in [false, true] {
            let turn: Vec<usize> = (0..tasks.len()).filter(|i| again[*i] == second_turn).collect();
            let calls: Vec<_> = turn.iter().filter_map(|i| Some(self.enqueue(tasks[*i].take()?))).collect();
            for (i, result) in turn.iter().zip(join_all(calls).await) {
                results[*i] = Some(result);
            }
        }
        Ok(Batch::Done(results.into_iter().flatten().collect()))
    }

    async fn enqueue_all_or_none(&self, queue: &QueueName, tasks: Vec<NewTask>) -> Result<Batch, StoreError> {
        let mut answers: Vec<Option<Result<Enqueued, StoreError>>> = tasks.iter().map(|_| None).collect();
        let mut left: Vec<(usize, NewTask)> = tasks.into_iter().enumerate().collect();
        for _ in 0..ATOMIC_TRIES {
            let call = enqueue_call(&self.inner, queue, true, left.iter().map(|(_, task)| task));
            let jobs = left.iter().map(|(_, task)| Box::new(task.clone())).collect();
            let (word, decided) = read_answers(self.inner.persist(&call).await?, queue, jobs)?;
            if matches!(word, Word::NoQueue) {
                if !self.inner.config.auto_create {
                    break;
                }
                self.create_queue(queue, &Settings::default()).await?;
                continue;
            }
            let decided = decided.into_iter().map(|answer| {
                answer.map(|answer| match answer {
                    EnqueueAnswer::Done(enqueued) => *enqueued,
                    EnqueueAnswer::NoQueue(_) => Enqueued::NoQueue,
                })
            });
            let decided: Vec<_> = decided.collect();
            let refused = matches!(word, Word::Refused);
            let is_fine = |answer: &Result<_, _>| matches!(answer, Ok(Enqueued::Created(_) | Enqueued::Replayed(_)));
            // the script cannot see that a task whose id the service made has the same content: what stands in nobody's
            // way is no refusal, and those it would have made are sent again
            let again = refused && decided.iter().all(is_fine);
            let mut rest = Vec::new();
            for ((i, task), answer) in left.into_iter().zip(decided) {
                if again && matches!(answer, Ok(Enqueued::Created(_))) {
                    rest.push((i, task));
                } else {
                    answers[i] = Some(answer);
                }
            }
            if rest.is_empty() {
                let all = answers.into_iter().flatten().collect();
                return Ok(if refused && !again { Batch::Refused(all) } else { Batch::Done(all) });
            }
            left = rest;
        }
        Ok(Batch::Refused(answers.iter().map(|_| Ok(Enqueued::NoQueue)).collect()))
    }

    /// Removes the tasks of one state (not `active`) without a record. Answers how many; `None` where there is no such
    /// queue. Cut off, it is safe to repeat.
    ///
    /// # Errors
    /// Some may have been removed.
    pub async fn purge(&self, queue: &QueueName, state: TaskState) -> Result<Option<u64>, StoreError> {
        let mut call = self.inner.call(&script::PURGE, queue, 0);
        call.arg(state.as_str());
        let (mut purged, mut most) = (0, None);
        loop {
            let mut reply = Reply::new("purge", self.inner.persist(&call).await?)?;
            if reply.text()? == "no_queue" {
                return Ok(if most.is_none() { None } else { Some(purged) }); // deleted meanwhile
            }
            purged += u64::try_from(reply.int()?).unwrap_or(0);
            let left = u64::try_from(reply.int()?).unwrap_or(0);
            // as many as there were at the beginning: who goes on enqueueing must not keep this going
            if left == 0 || purged >= *most.get_or_insert(purged + left) {
                return Ok(Some(purged));
            }
        }
    }

    /// Removes a queue with its webhooks, and with its tasks if `force`.
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] it may be gone.
    pub async fn drop_queue(&self, queue: &QueueName, force: bool) -> Result<Dropped, StoreError> {
        let mut call = self.inner.call(&script::DROP_QUEUE, queue, 0);
        call.arg(u8::from(force));
        let mut reply = Reply::new("drop_queue", self.inner.persist(&call).await?)?;
        match reply.text()?.as_str() {
            "done" => Ok(Dropped::Done),
            "not_empty" => Ok(Dropped::NotEmpty),
            "no_queue" => Ok(Dropped::NoQueue),
            _ => reply.unexpected(),
        }
    }
}

/// Sorts behind every id: "after this instant" means behind all that ended at it.
fn last_id() -> TaskId {
    TaskId::parse(&"~".repeat(128)).unwrap_or_else(|_| unreachable!("128 tildes are an id"))
}
