//! What clients do with tasks: enqueue, cancel, read, list.

use super::{
    Batcher, Call, Reply, Store, StoreError,
    enqueuing::{EnqueueAnswer, Enqueues},
    keys::{raw_id, raw_uid},
    record::{self, RecordError, View},
    script,
};
use crate::domain::{
    id::{QueueName, TaskId},
    queue::Settings,
    task::{NewTask, Task, TaskState, When},
    time::UnixMs,
};

/// Most bytes of records that a page of a list reads.
const PAGE_BYTES: usize = 4 << 20;

/// What came of an enqueue.
#[derive(Debug, Clone)]
pub enum Enqueued {
    /// A new task.
    Created(Task),
    /// The id is taken by the same content.
    Replayed(Task),
    /// The id is taken by other content, or by a dead task.
    Exists(Task),
    /// The id's task was cancelled, and its attempt is still under way.
    Active(Task),
    /// The queue has its `max_size`.
    Full,
    /// There is no such queue, and none is made by itself.
    NoQueue,
}

/// What came of a cancel.
#[derive(Debug, Clone)]
pub enum Cancel {
    /// No attempt will start.
    Done(Task),
    /// It had ended without being delivered.
    Already(Task),
    /// An attempt is under way; no further one will start.
    UnderWay(Task),
    /// It was delivered.
    Finished(TaskState),
    /// Like the three before it, but what is kept of it cannot be read: its state now, and why.
    Unseen(TaskState, StoreError),
    /// No such task.
    Unknown,
    /// No such queue.
    NoQueue,
}

/// What a look-up found.
#[derive(Debug, Clone)]
pub enum Found<T> {
    /// It is there.
    Here(T),
    /// No such task.
    Unknown,
    /// No such queue.
    NoQueue,
}

impl<T> Found<T> {
    /// The same with what was found read further.
    pub(super) fn and_then<U>(self, read: impl FnOnce(T) -> Result<U, RecordError>) -> Result<Found<U>, StoreError> {
        Ok(match self {
            Self::Here(found) => Found::Here(read(found)?),
            Self::Unknown => Found::Unknown,
            Self::NoQueue => Found::NoQueue,
        })
    }
}

/// Which part of a list is wanted.
#[derive(Debug, Clone)]
pub struct PageRequest {
    /// Tasks of this state.
    pub state: TaskState,
    /// Behind this score and id.
    pub after: Option<(UnixMs, TaskId)>,
    /// At most so many.
    pub limit: usize,
    /// With payloads.
    pub full: bool,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page {
    /// By score, then id.
    pub tasks: Vec<Task>,
    /// Where the next part begins; `None` = this was the last one.
    pub next: Option<(UnixMs, TaskId)>,
}

/// A task as `replace` takes it.
pub(super) fn push_task(call: &mut Call<'_>, task: &NewTask) {
    let record = record::encode(task);
    call.arg(task_member(task));
    let (kind, ms) = when_args(task.when);
    let (expiry, expiry_ms) = task.expires.map_or(("-", 0), when_args);
    call.arg(&record.head).arg(record.rest).arg(kind).arg(ms).arg(expiry).arg(expiry_ms);
}

pub(super) fn when_args(when: When) -> (&'static str, i64) {
    match when {
        When::After(delay) => ("in", i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)),
        When::At(at) => ("at", at.0),
    }
}

pub(super) fn task_member(task: &NewTask) -> Vec<u8> {
    task.id.as_ref().map_or_else(|| raw_uid(task.uid.0).to_vec(), raw_id)
}

/// {record, run, state, score} from the front.
pub(super) fn read_view(reply: &mut Reply, id: &[u8]) -> Result<View, StoreError> {
    Ok(View {
        id: id.to_vec(),
        record: reply.bytes()?,
        run: reply.bytes()?,
        state: reply.text()?,
        score: reply.int()?,
        whole: true,
    })
}

/// What `get` says of one task, from the front.
pub(super) fn read_found(reply: &mut Reply, id: Vec<u8>, whole: bool) -> Result<Found<View>, StoreError> {
    match reply.text()?.as_str() {
        "task" => Ok(Found::Here(View { whole, ..read_view(reply, &id)? })),
        "unknown" => Ok(Found::Unknown),
        "no_queue" => Ok(Found::NoQueue),
        _ => reply.unexpected(),
    }
}

impl Store {
    /// Schedules a task. Safe to repeat: the task's own uid tells the service's retry from another client's POST.
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] the task may have been taken.
    pub async fn enqueue(&self, task: NewTask) -> Result<Enqueued, StoreError> {
        let batcher: &Batcher<Enqueues> = &self.enqueues;
        match batcher.submit(Box::new(task)).await? {
            EnqueueAnswer::Done(answer) => Ok(*answer),
            EnqueueAnswer::NoQueue(_) if !self.inner.config.auto_create => Ok(Enqueued::NoQueue),
            EnqueueAnswer::NoQueue(task) => {
                // rare: it must not make all calls bigger
                Box::pin(self.create_queue(&task.queue, &Settings::default())).await?;
                match batcher.submit(task).await? {
                    EnqueueAnswer::Done(answer) => Ok(*answer),
                    EnqueueAnswer::NoQueue(_) => Ok(Enqueued::NoQueue), // deleted again just now
                }
            }
        }
    }

    /// Cancels by id: no attempt starts after the answer.
    ///
    /// # Errors
    /// With [`super::Fate::Unknown`] it may have been cancelled.
    pub async fn cancel(&self, queue: &QueueName, id: &TaskId) -> Result<Cancel, StoreError> {
        let member = raw_id(id);
        let mut call = self.inner.call(&script::CANCEL, queue, 0);
        call.arg(&member);
        let mut reply = Reply::new("cancel", self.inner.persist(&call).await?)?;
        let word = reply.text()?;
        match word.as_str() {
            "unknown" => return Ok(Cancel::Unknown),
            "no_queue" => return Ok(Cancel::NoQueue),
            _ => {}
        }
        let view = read_view(&mut reply, &member)?;
        let state = TaskState::parse(&view.state).ok_or(RecordError::Damaged("state"))?;
        if word == "finished" {
            return Ok(Cancel::Finished(state));
        }
        let task = match view.into_task(queue) {
            Ok(task) => task,
            Err(why) => return Ok(Cancel::Unseen(state, why.into())),
        };
        match word.as_str() {
            "done" => Ok(Cancel::Done(task)),
            "already" => Ok(Cancel::Already(task)),
            "under_way" => Ok(Cancel::UnderWay(task)),
            _ => reply.unexpected(),
        }
    }

    /// Reads one task.
    ///
    /// # Errors
    /// Redis is out of reach, or the record cannot be read.
    pub async fn get(&self, queue: &QueueName, id: &TaskId) -> Result<Found<Task>, StoreError> {
        self.look_up(queue, id).await?.and_then(|view| view.into_task(queue))
    }

    /// Reads one task as the script shows it.
    pub(super) async fn look_up(&self, queue: &QueueName, id: &TaskId) -> Result<Found<View>, StoreError> {
        let member = raw_id(id);
        let mut call = self.inner.call(&script::GET, queue, 0);
        call.arg(1).arg(&member);
        read_found(&mut Reply::new("get", self.inner.read(&call).await?)?, member, true)
    }

    /// Reads a page of one state. Records that cannot be read are left out, with a line in the log.
    ///
    /// # Errors
    /// Redis is out of reach.
    pub async fn list(&self, queue: &QueueName, page: &PageRequest) -> Result<Option<Page>, StoreError> {
        let mut call = self.inner.call(&script::LIST, queue, 0);
        call.arg(page.state.as_str());
        match &page.after {
            Some((score, id)) => call.arg(score.0).arg(raw_id(id)),
            None => call.arg("").arg(""),
        };
        call.arg(page.limit).arg(PAGE_BYTES).arg(u8::from(page.full));
        let mut reply = Reply::new("list", self.inner.read(&call).await?)?;
        if reply.text()? == "no_queue" {
            return Ok(None);
        }
        let more = reply.int()? == 1;
        let mut items = reply.list()?;
        let (mut tasks, mut last) = (Vec::with_capacity(items.left()), None);
        while items.left() > 0 {
            let mut item = items.list()?;
            let (id, record, run, score) = (item.bytes()?, item.bytes()?, item.bytes()?, item.int()?);
            if let Some(id) = super::keys::parse_raw_id(&id) {
                last = Some((UnixMs(score), id));
            }
            let view = View { id, record, run, state: page.state.as_str().to_owned(), score, whole: page.full };
            match view.into_task(queue) {
                Ok(task) => tasks.push(task),
                Err(error) => tracing::warn!(%queue, %error, "a task is left out of a list"),
            }
        }
        Ok(Some(Page { tasks, next: last.filter(|_| more) }))
    }
}
