//! Tasks: schedule, list, read, cancel.

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{
    Shared,
    extract::{JsonBody, NoQuery, QueuePath, TaskPath, TasksQuery, Trace, cursor, open_cursor},
    object::decode,
    problem::{Kind, Problem},
    wire::{ByHand, Horizon, ListOut, Progress, TaskOut, TaskWanted, read_task},
};
use crate::{
    domain::{
        id::{QueueName, TaskId},
        payload::{Payload, PayloadError},
        task::{NewTask, Task, TaskOptions, TaskState},
        time::UnixMs,
    },
    store::{Cancel, Enqueued, Found, PageRequest},
};

/// Says that an answer is about a task that was there before.
const REPLAYED: HeaderName = HeaderName::from_static("duepost-replayed");

/// Schedule a task
#[utoipa::path(post, path = "/queues/{queue}/tasks", operation_id = "create_task", tag = "tasks",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskCreate"), content_type = "application/json"),
    responses(
        (status = 201, description = "Scheduled", body = TaskOut, headers(("location", description = "Path of the task"))),
        (status = 200, description = "The id is taken by the same content: the task as it stands", body = TaskOut,
            headers(("duepost-replayed", description = "`true`"))),
        (status = 404, description = "`queue-not-found` (only where queues are not made by use)"),
        (status = 409, description = "`task-exists`, `task-active`"),
        (status = 429, description = "`queue-full`"),
    ))]
pub async fn create_task(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    Trace(traceparent): Trace,
    body: JsonBody,
) -> Result<Response, Problem> {
    let horizon = horizon(&api);
    let wanted = decode(body.text()?, |o| read_task(o, horizon))?;
    let task = new_task(&api, &queue, &body, wanted, traceparent)?;
    let (id, uid) = (task.id.clone(), task.uid);
    let of = |error| Problem::of_enqueue(error, id.unwrap_or_else(|| TaskId::from_uid(uid)));
    match api.store.enqueue(task).await.map_err(of)? {
        Enqueued::Created(task) => {
            api.metrics.queue(queue.as_str()).enqueued(1);
            Ok((StatusCode::CREATED, location_of(&task), ByHand(lean(&api, &task).await)).into_response())
        }
        Enqueued::Replayed(task) => {
            Ok(([(REPLAYED, HeaderValue::from_static("true"))], ByHand(lean(&api, &task).await)).into_response())
        }
        Enqueued::Exists(task) => Err(Problem::task_exists(lean(&api, &task).await, task.state)),
        Enqueued::Active(task) => Err(Problem::task_active(&task.id)),
        Enqueued::Full => Err(Problem::queue_full(&queue)),
        Enqueued::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}

/// List the tasks of one state
///
/// Waiting ones by `next_attempt_at`, ended ones by `ended_at`, oldest first.
#[utoipa::path(get, path = "/queues/{queue}/tasks", operation_id = "list_tasks", tag = "tasks",
    params(
        ("queue" = String, Path),
        ("state" = Option<String>, Query, description = "`scheduled` (default), `active`, `completed`, `dead`, `cancelled` or `expired`"),
        ("limit" = Option<u16>, Query, description = "At most so many, 1 to 1000; 100 by default", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("full" = Option<bool>, Query, description = "With payload, headers and attempts"),
    ),
    responses(
        (status = 200, description = "A page", body = ListOut<TaskOut>),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn list_tasks(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    TasksQuery(query): TasksQuery,
) -> Result<ByHand<ListOut<TaskOut>>, Problem> {
    let state = match query.get("state") {
        None => TaskState::Scheduled,
        Some(word) => TaskState::parse(word).ok_or_else(|| {
            Problem::field("state", "must be scheduled, active, completed, dead, cancelled or expired")
        })?,
    };
    let after = query.get("cursor").map(|text| read_place(text, state)).transpose()?;
    let request = PageRequest { state, after, limit: query.limit()?, full: query.flag("full")? };
    let (page, view) =
        tokio::try_join!(api.store.list(&queue, &request), api.store.describe(&queue)).map_err(Problem::of_read)?;
    let (Some(page), Some(view)) = (page, view) else { return Err(Problem::queue_not_found(&queue)) };
    let max_attempts = view.queue.settings.retry.max_attempts;
    let show = |task: Task| match request.full {
        true => TaskOut::whole(task, max_attempts, Progress::Unknown),
        false => TaskOut::lean(&task, max_attempts),
    };
    let next_cursor =
        page.next.map(|(score, id)| cursor(&[state.as_str().into(), score.0.to_string().into(), id.as_str().into()]));
    Ok(ByHand(ListOut { items: page.tasks.into_iter().map(show).collect(), next_cursor }))
}

fn read_place(text: &str, state: TaskState) -> Result<(UnixMs, TaskId), Problem> {
    let refuse = || Problem::field("cursor", "is not one that this list gave");
    let parts = open_cursor(text).ok_or_else(refuse)?;
    let [of, score, id] = parts.as_slice() else { return Err(refuse()) };
    if of != state.as_str() {
        return Err(Problem::field("cursor", "belongs to a list of another state"));
    }
    Ok((UnixMs(score.parse().map_err(|_| refuse())?), TaskId::parse(id).map_err(|_| refuse())?))
}

/// Read a task, with its attempts
#[utoipa::path(get, path = "/queues/{queue}/tasks/{id}", operation_id = "get_task", tag = "tasks",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "The task", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
    ))]
pub async fn get_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
) -> Result<ByHand<TaskOut>, Problem> {
    let (task, view) =
        tokio::try_join!(api.store.get(&queue, &id), api.store.describe(&queue)).map_err(Problem::of_read)?;
    match (task, view) {
        (Found::Here(task), Some(view)) => {
            let webhooks = Progress::of(&task, &view);
            Ok(ByHand(TaskOut::whole(task, view.queue.settings.retry.max_attempts, webhooks)))
        }
        (Found::Unknown, Some(_)) => Err(Problem::task_not_found(&id)),
        (Found::NoQueue, _) | (_, None) => Err(Problem::queue_not_found(&queue)),
    }
}

/// Cancel a task
///
/// 200: no attempt will start. 202: an attempt is under way and may still succeed; no further one will start.
#[utoipa::path(delete, path = "/queues/{queue}/tasks/{id}", operation_id = "cancel_task", tag = "tasks",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "No attempt will start", body = TaskOut),
        (status = 202, description = "An attempt is under way; no further one will start", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`task-finished`: it was delivered"),
    ))]
pub async fn cancel_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
) -> Result<Response, Problem> {
    match api.store.cancel(&queue, &id).await? {
        Cancel::Done(task) | Cancel::Already(task) => Ok(ByHand(lean(&api, &task).await).into_response()),
        Cancel::UnderWay(task) => Ok((StatusCode::ACCEPTED, ByHand(lean(&api, &task).await)).into_response()),
        Cancel::Finished(state) => Err(Problem::task_finished(&id, state)),
        Cancel::Unseen(state, why) => Err(Problem::cancelled_unseen(&id, state, why)),
        Cancel::Unknown => Err(Problem::task_not_found(&id)),
        Cancel::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}

/// What times may be asked for now.
pub(super) fn horizon(api: &Shared) -> Horizon {
    Horizon { now: api.store.clock().now(), max_delay: api.limits.max_delay }
}

/// A task's payload, within the limits.
pub(super) fn payload(api: &Shared, body: &JsonBody, raw: &str) -> Result<Payload, Problem> {
    Payload::new(body.slice(raw), api.limits.max_payload).map_err(|error| match error {
        PayloadError::TooLarge { .. } => Problem::new(Kind::TooLarge, error.to_string()),
        PayloadError::TooDeep => Problem::field("payload", error.to_string()),
    })
}

/// The task that a request wants.
pub(super) fn new_task(
    api: &Shared,
    queue: &QueueName,
    body: &JsonBody,
    wanted: TaskWanted<'_>,
    traceparent: Option<String>,
) -> Result<NewTask, Problem> {
    Ok(NewTask {
        payload: payload(api, body, wanted.payload)?,
        queue: queue.clone(),
        id: wanted.id,
        uid: (api.ids.uid)(),
        when: wanted.when,
        expires: wanted.expires,
        options: TaskOptions { retry: wanted.retry, timeout: wanted.timeout, headers: wanted.headers, traceparent },
    })
}

/// The id that a new task is going to have.
pub(super) fn id_of(task: &NewTask) -> TaskId {
    task.id.clone().unwrap_or_else(|| TaskId::from_uid(task.uid))
}

/// Where a new task is.
pub(super) fn location_of(task: &Task) -> [(HeaderName, HeaderValue); 1] {
    [(header::LOCATION, header_value(["/queues/", task.queue.as_str(), "/tasks/", task.id.as_str()].concat()))]
}

pub(super) async fn lean(api: &Shared, task: &Task) -> TaskOut {
    TaskOut::lean(task, api.known.max_attempts(&api.store, task).await)
}

/// Names are visible ASCII, so this never falls back.
fn header_value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("/"))
}
