//! How tasks come in: enqueues go in batches.

use std::sync::Arc;

use super::{
    Call, Enqueued, Inner, Reply, StoreError, Value,
    batch::Batch,
    keys::shard_of,
    record::{self, Record},
    script,
    tasks::{read_view, task_member, when_args},
};
use crate::domain::{
    id::{QueueName, TaskId},
    round::Progress,
    task::{NewTask, Task, TaskState, When},
    time::UnixMs,
};

/// Enqueues in batches.
pub struct Enqueues(pub(super) Arc<Inner>);

/// A queue that is missing gives the job back.
pub enum EnqueueAnswer {
    /// Decided.
    Done(Box<Enqueued>),
    /// The queue is to be made first.
    NoQueue(Box<NewTask>),
}

impl Batch for Enqueues {
    /// Boxed: it is handed on several times.
    type Job = Box<NewTask>;
    type Answer = EnqueueAnswer;

    fn queue(job: &Box<NewTask>) -> &QueueName {
        &job.queue
    }

    fn bytes(job: &Box<NewTask>) -> usize {
        job.payload.bytes().len()
    }

    async fn run(&self, queue: QueueName, jobs: Vec<Box<NewTask>>) -> Vec<Result<EnqueueAnswer, StoreError>> {
        let before = self.0.seqs.known_of(shard_of(&queue));
        let call = enqueue_call(&self.0, &queue, false, jobs.iter().map(Box::as_ref));
        let count = jobs.len();
        match self.0.persist(&call).await.and_then(|value| read_answers(value, &queue, jobs)) {
            Ok((word, answers)) => {
                if let Word::Done(Some(seq)) = word {
                    self.0.see_seqs([(shard_of(&queue), before, seq)]);
                }
                if answers.iter().any(|answer| matches!(answer, Err(StoreError::Full))) {
                    self.0.note_full();
                }
                answers
            }
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }
}

/// Tasks as `enqueue` takes them.
pub(super) fn enqueue_call<'t>(
    inner: &Inner,
    queue: &QueueName,
    all_or_none: bool,
    tasks: impl Iterator<Item = &'t NewTask> + Clone,
) -> Call<'static> {
    let mut call = inner.call_with(&script::ENQUEUE, queue, inner.floor_ms(), &[&[u8::from(all_or_none)]]);
    let records: Vec<_> = tasks.clone().map(record::encode).collect();
    let mut packed = Vec::with_capacity(records.len() * 40);
    for (task, record) in tasks.zip(&records) {
        let member = task_member(task);
        let (run_is_delay, run_ms) = (matches!(task.when, When::After(_)), when_args(task.when).1);
        let (expires, expiry_is_delay) = (task.expires.is_some(), matches!(task.expires, Some(When::After(_))));
        packed.push(u8::try_from(member.len()).unwrap_or(0)); // at most 128
        packed.extend_from_slice(&member);
        packed.extend_from_slice(&record.head);
        packed.push(u8::from(run_is_delay) | u8::from(expires) << 1 | u8::from(expiry_is_delay) << 2);
        packed.extend_from_slice(&run_ms.to_be_bytes());
        packed.extend_from_slice(&task.expires.map_or(0, |expires| when_args(expires).1).to_be_bytes());
    }
    call.arg(packed);
    for record in records {
        call.arg(record.rest);
    }
    call
}

/// What a call of `enqueue` came to.
pub(super) enum Word {
    /// Nothing was done.
    NoQueue,
    /// All or none: none.
    Refused,
    /// Each was decided on its own; the shard's count of enqueues.
    Done(Option<u64>),
}

/// What it came to, and an answer for each job.
#[allow(clippy::vec_box)] // they come in boxes
pub(super) fn read_answers(
    value: Value,
    queue: &QueueName,
    jobs: Vec<Box<NewTask>>,
) -> Result<(Word, Vec<Result<EnqueueAnswer, StoreError>>), StoreError> {
    if let Value::BulkString(made) = &value {
        let ([base, seq], []) = made.as_chunks() else {
            return Err(StoreError::Answer { call: "enqueue", what: "base and seq" });
        };
        let base = UnixMs(i64::from_be_bytes(*base));
        let made = |task: Box<NewTask>| Ok(EnqueueAnswer::Done(Box::new(Enqueued::Created(created(*task, base)))));
        return Ok((Word::Done(Some(u64::from_be_bytes(*seq))), jobs.into_iter().map(made).collect()));
    }
    let mut reply = Reply::new("enqueue", value)?;
    match reply.text()?.as_str() {
        "no_queue" => Ok((Word::NoQueue, jobs.into_iter().map(|task| Ok(EnqueueAnswer::NoQueue(task))).collect())),
        "refused" => Ok((Word::Refused, read_decided(&mut reply, queue, jobs)?)),
        "done" => {
            let answers = read_decided(&mut reply, queue, jobs)?;
            Ok((Word::Done(u64::try_from(reply.int()?).ok()), answers))
        }
        _ => reply.unexpected(),
    }
}

/// {base, answers} from the front.
#[allow(clippy::vec_box)] // they come in boxes
fn read_decided(
    reply: &mut Reply,
    queue: &QueueName,
    jobs: Vec<Box<NewTask>>,
) -> Result<Vec<Result<EnqueueAnswer, StoreError>>, StoreError> {
    let base = UnixMs(reply.int()?);
    let mut answers = reply.list()?;
    let mut read = |task: Box<NewTask>| -> Result<EnqueueAnswer, StoreError> {
        let mut answer = answers.list_or_word()?;
        let word = answer.text()?;
        let there = if answer.left() > 0 { Some(read_view(&mut answer, &task_member(&task))?) } else { None };
        let enqueued = match (word.as_str(), there) {
            ("created", None) => Enqueued::Created(created(*task, base)),
            ("created", Some(view)) => Enqueued::Created(view.into_task(queue)?),
            ("full", _) => Enqueued::Full,
            ("oom", _) => return Err(StoreError::Full),
            ("replayed", Some(view)) => Enqueued::Replayed(view.into_task(queue)?),
            ("active", Some(view)) => Enqueued::Active(view.into_task(queue)?),
            ("exists", Some(view)) => {
                let id = task.id.clone().unwrap_or_else(|| TaskId::from_uid(task.uid));
                let same = Record::decode(&id, view.record.clone().into())?.has_same_content(&task);
                let there = view.into_task(queue)?;
                if same && there.state != TaskState::Dead { Enqueued::Replayed(there) } else { Enqueued::Exists(there) }
            }
            _ => return answer.unexpected(),
        };
        Ok(EnqueueAnswer::Done(Box::new(enqueued)))
    };
    Ok(jobs.into_iter().map(&mut read).collect())
}

/// A new task as it stands right after the script took it.
fn created(task: NewTask, base: UnixMs) -> Task {
    let instant = |when| match when {
        When::After(delay) => base.plus(delay),
        When::At(at) => at,
    };
    let run_at = instant(task.when);
    Task {
        id: task.id.unwrap_or_else(|| TaskId::from_uid(task.uid)),
        uid: task.uid,
        queue: task.queue,
        state: TaskState::Scheduled,
        created_at: base,
        run_at,
        score: run_at.max(base),
        expires_at: task.expires.map(instant),
        cancelling: false,
        options: task.options,
        lost: 0,
        delivered_to: Vec::new(),
        progress: Progress::default(),
        payload: Some(task.payload),
    }
}
