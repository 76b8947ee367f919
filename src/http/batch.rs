//! Many tasks in one call: each answered as a POST of its own, or all or none.

use axum::{Extension, extract::State};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Shared,
    extract::{BatchBody, JsonBody, NoQuery, QueuePath, Trace},
    fields::boolean,
    object::{Object, decode, list, wrong},
    problem::{Fault, Kind, Problem, ProblemOut},
    request::RequestId,
    tasks::{horizon, id_of, lean, new_task},
    wire::{ByHand, Fields, Horizon, TaskOut, Written, read_task, room_of},
};
use crate::{
    domain::{
        id::{QueueName, TaskId},
        task::NewTask,
    },
    store::{Batch, Enqueued, StoreError},
};

/// Most tasks of a batch.
pub const TASKS_MAX: usize = 1000;
/// Most bytes of payload of an atomic batch, which is one script.
pub const ATOMIC_MAX: usize = 4 << 20;

/// What came of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BatchResults)]
pub struct BatchOut {
    /// In the order of the tasks.
    pub(super) results: Vec<ResultOut>,
}

/// What came of one task of a batch: the answer that a POST of its own would have had.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BatchResult)]
pub struct ResultOut {
    /// The HTTP status: 201 scheduled, 200 its id is taken by the same content, others as `problem` says.
    pub(super) status: u16,
    /// The task of a 200 or 201.
    pub(super) task: Option<TaskOut>,
    /// Why there is none.
    #[schema(value_type = Option<ProblemOut<'static>>)]
    pub(super) problem: Option<Box<RawValue>>,
}

impl Written for ResultOut {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        Fields::new(out).json(r#"{"status":"#, &self.status)?;
        match &self.task {
            Some(task) => {
                out.extend_from_slice(br#","task":"#);
                task.write(out)?;
            }
            None => out.extend_from_slice(br#","task":null"#),
        }
        let mut fields = Fields::new(out);
        fields.json_or_null(r#","problem":"#, self.problem.as_ref())?;
        fields.put("}");
        Ok(())
    }
}

impl Written for BatchOut {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let mut fields = Fields::new(out);
        fields.list(r#"{"results":"#, &self.results)?;
        fields.put("}");
        Ok(())
    }

    fn room(&self) -> usize {
        room_of(&self.results)
    }
}

/// Reads `{"tasks": […], "atomic": false}`; the tasks stay JSON text.
pub fn read_batch<'a>(o: &mut Object<'a>) -> Option<(Vec<&'a str>, bool)> {
    let atomic = o.optional("atomic", boolean).unwrap_or(false);
    let tasks = o.required("tasks", |raw| match list(raw, TASKS_MAX)? {
        tasks if tasks.is_empty() => Err("must have at least one task".to_owned()),
        tasks => Ok(tasks),
    });
    Some((tasks?, atomic))
}

/// Schedule many tasks
///
/// Each is answered as a POST of its own would be; of two equal ids the first wins. With `atomic` all or none.
#[utoipa::path(post, path = "/queues/{queue}/batch", operation_id = "create_tasks", tag = "tasks",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskBatch"), content_type = "application/json"),
    responses(
        (status = 200, description = "What came of each, in order", body = BatchOut),
        (status = 404, description = "`queue-not-found` (only where queues are not made by use)"),
        (status = 409, description = "`batch-refused`: nothing was scheduled; `errors` name the items, as `tasks[7].delay`"),
    ))]
pub async fn create_tasks(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    Trace(traceparent): Trace,
    Extension(request_id): Extension<RequestId>,
    BatchBody(body): BatchBody,
) -> Result<ByHand<BatchOut>, Problem> {
    let (raws, atomic) = decode(body.text()?, read_batch)?;
    let horizon = horizon(&api);
    let read = |raw: &&str| read_item(&api, &queue, &body, raw, horizon, traceparent.clone());
    let items: Vec<Result<NewTask, Problem>> = raws.iter().map(read).collect();
    let results = if atomic { all_or_none(&api, &queue, items).await? } else { each(&api, &queue, items).await? };
    let mut out = Vec::with_capacity(results.len());
    for result in results {
        out.push(match result {
            Ok((status, task)) => ResultOut { status, task: Some(task), problem: None },
            Err(problem) => {
                let body = String::from_utf8(problem.body(request_id.as_str())).unwrap_or_default();
                ResultOut { status: problem.status(), task: None, problem: RawValue::from_string(body).ok() }
            }
        });
    }
    Ok(ByHand(BatchOut { results: out }))
}

fn read_item(
    api: &Shared,
    queue: &QueueName,
    body: &JsonBody,
    raw: &str,
    horizon: Horizon,
    traceparent: Option<String>,
) -> Result<NewTask, Problem> {
    if !raw.starts_with('{') {
        return Err(Problem::invalid(format!("a task {}", wrong(raw, "an object"))));
    }
    new_task(api, queue, body, decode(raw, |o| read_task(o, horizon))?, traceparent)
}

type Answer = Result<(u16, TaskOut), Problem>;

/// Each task on its own.
async fn each(api: &Shared, queue: &QueueName, items: Vec<Result<NewTask, Problem>>) -> Result<Vec<Answer>, Problem> {
    let (mut tasks, mut ids, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for item in items {
        answers.push(item.map(|task| {
            ids.push(id_of(&task));
            tasks.push(task);
        }));
    }
    let (Batch::Done(done) | Batch::Refused(done)) = api.store.enqueue_many(queue, tasks, false).await?;
    if !done.is_empty() && done.iter().all(|answer| matches!(answer, Ok(Enqueued::NoQueue))) {
        return Err(Problem::queue_not_found(queue));
    }
    let mut done = ids.into_iter().zip(done);
    let mut out = Vec::with_capacity(answers.len());
    for answer in answers {
        out.push(match answer {
            Err(problem) => Err(problem),
            Ok(()) => match done.next() {
                Some((id, enqueued)) => answer_of(api, queue, &id, enqueued).await,
                None => Err(Problem::new(Kind::Internal, "an answer is missing")),
            },
        });
    }
    count(api, queue, &out);
    Ok(out)
}

/// All tasks in one script, or none.
async fn all_or_none(
    api: &Shared,
    queue: &QueueName,
    items: Vec<Result<NewTask, Problem>>,
) -> Result<Vec<Answer>, Problem> {
    let (mut tasks, mut faults) = (Vec::with_capacity(items.len()), Vec::new());
    for (i, item) in items.into_iter().enumerate() {
        match item {
            Ok(task) => tasks.push(task),
            Err(problem) => faults.extend(problem.faults_within(&format!("tasks[{i}]"))),
        }
    }
    if !faults.is_empty() {
        return Err(Problem::batch_refused(faults));
    }
    let size: usize = tasks.iter().map(|task| task.payload.bytes().len()).sum();
    if size > ATOMIC_MAX {
        let detail = format!("the payloads have {size} bytes together; an atomic batch may have {ATOMIC_MAX}");
        return Err(Problem::new(Kind::TooLarge, detail));
    }
    let ids: Vec<TaskId> = tasks.iter().map(id_of).collect();
    let answer = api.store.enqueue_many(queue, tasks, true).await;
    let (done, refused) = match answer.map_err(|error| Problem::of_batch(error, ids.clone()))? {
        Batch::Done(done) => (done, false),
        Batch::Refused(done) => (done, true),
    };
    if done.iter().any(|answer| matches!(answer, Ok(Enqueued::NoQueue))) {
        return Err(Problem::queue_not_found(queue));
    }
    if refused {
        for (i, (id, answer)) in ids.iter().zip(done).enumerate() {
            let about_id = !matches!(answer, Ok(Enqueued::Full));
            if matches!(answer, Ok(Enqueued::Created(_) | Enqueued::Replayed(_))) {
                continue;
            }
            if let Err(problem) = answer_of(api, queue, id, answer).await {
                let at = if about_id { format!("tasks[{i}].id") } else { format!("tasks[{i}]") };
                faults.push(Fault::new(at, problem.summary()));
            }
        }
        return Err(Problem::batch_refused(faults));
    }
    let mut out = Vec::with_capacity(ids.len());
    for (id, answer) in ids.iter().zip(done) {
        out.push(answer_of(api, queue, id, answer).await);
    }
    count(api, queue, &out);
    Ok(out)
}

async fn answer_of(api: &Shared, queue: &QueueName, id: &TaskId, enqueued: Result<Enqueued, StoreError>) -> Answer {
    match enqueued.map_err(|error| Problem::of_enqueue(error, id.clone()))? {
        Enqueued::Created(task) => Ok((201, lean(api, &task).await)),
        Enqueued::Replayed(task) => Ok((200, lean(api, &task).await)),
        Enqueued::Exists(task) => Err(Problem::task_exists(lean(api, &task).await, task.state)),
        Enqueued::Active(task) => Err(Problem::task_active(&task.id)),
        Enqueued::Full => Err(Problem::queue_full(queue)),
        Enqueued::NoQueue => Err(Problem::queue_not_found(queue)),
    }
}

fn count(api: &Shared, queue: &QueueName, answers: &[Answer]) {
    let created = answers.iter().filter(|answer| matches!(answer, Ok((201, _)))).count();
    api.metrics.queue(queue.as_str()).enqueued(created as u64);
}
