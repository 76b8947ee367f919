//! Tasks that are there: replace, move, edit, run.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::{
    Shared,
    extract::{JsonBody, NoQuery, OnlyNew, TaskPath, Trace},
    object::decode,
    problem::{Kind, Problem},
    tasks::{horizon, lean, location_of, new_task, payload},
    wire::{ByHand, TaskOut, TaskWanted, read_edit, read_new_content},
};
use crate::{
    domain::task::Edit,
    store::{Edited, Put, Revived},
};

/// Create or replace a task by its id
///
/// The last one wins. An attempt that is under way may still arrive, under its old `webhook-id`, and changes nothing
/// any more.
#[utoipa::path(put, path = "/queues/{queue}/tasks/{id}", operation_id = "put_task", tag = "tasks",
    params(
        ("queue" = String, Path), ("id" = String, Path),
        ("if-none-match" = Option<String>, Header, description = "`*`: only create"),
    ),
    request_body(content = ref("#/components/schemas/TaskPut"), content_type = "application/json"),
    responses(
        (status = 201, description = "A new task: none stood, or it had ended", body = TaskOut,
            headers(("location", description = "Path of the task"))),
        (status = 200, description = "In place of one that lived", body = TaskOut),
        (status = 404, description = "`queue-not-found` (only where queues are not made by use)"),
        (status = 412, description = "`precondition-failed`: there is a record of the id"),
        (status = 429, description = "`queue-full`"),
    ))]
pub async fn put_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
    OnlyNew(only_new): OnlyNew,
    Trace(traceparent): Trace,
    body: JsonBody,
) -> Result<Response, Problem> {
    let horizon = horizon(&api);
    let wanted = decode(body.text()?, |o| read_new_content(o, horizon))?;
    let wanted = TaskWanted { id: Some(id.clone()), ..wanted };
    let task = new_task(&api, &queue, &body, wanted, traceparent)?;
    match api.store.put(&task, only_new).await.map_err(|error| Problem::of_enqueue(error, id.clone()))? {
        Put::Created(task) => {
            api.metrics.queue(queue.as_str()).enqueued(1);
            Ok((StatusCode::CREATED, location_of(&task), ByHand(lean(&api, &task).await)).into_response())
        }
        Put::Replaced(task) => Ok(ByHand(lean(&api, &task).await).into_response()),
        Put::Exists => Err(Problem::new(Kind::PreconditionFailed, format!("there is a record of task {id}"))),
        Put::Full => Err(Problem::queue_full(&queue)),
        Put::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}

/// Move or edit a scheduled task
///
/// In place, with no gap in which it is gone. A field is replaced whole; `null` puts one back to its default, but for
/// `payload`, whose `null` is the JSON value. Attempts made stay counted.
#[utoipa::path(patch, path = "/queues/{queue}/tasks/{id}", operation_id = "patch_task", tag = "tasks",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskPatch"), content_type = "application/json"),
    responses(
        (status = 200, description = "Changed", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`task-active`, `task-finished`"),
    ))]
pub async fn patch_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
    body: JsonBody,
) -> Result<ByHand<TaskOut>, Problem> {
    let horizon = horizon(&api);
    let wanted = decode(body.text()?, |o| read_edit(o, horizon))?;
    let Some(named) = wanted.named else { return Err(Problem::invalid("give at least one field to change")) };
    let edit = Edit {
        payload: wanted.payload.map(|raw| payload(&api, &body, raw)).transpose()?,
        when: wanted.when,
        retry: wanted.retry,
        timeout: wanted.timeout,
        headers: wanted.headers,
        expires: wanted.expires,
        uid: (api.ids.uid)(),
    };
    match api.store.edit(&queue, &id, &edit).await? {
        Edited::Done(task) => Ok(ByHand(lean(&api, &task).await)),
        Edited::Active(_) => Err(Problem::task_active(&id)),
        Edited::Finished(task) => Err(Problem::task_finished(&id, task.state)),
        Edited::ExpiresFirst => Err(Problem::field(named, "the task would expire before its own time")),
        Edited::Unknown => Err(Problem::task_not_found(&id)),
        Edited::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}

/// Run a task now
///
/// Makes a scheduled task due now; a pause or limit still holds it. Revives a dead, cancelled or expired one: attempts
/// at 0, without its expiry.
#[utoipa::path(post, path = "/queues/{queue}/tasks/{id}/run", operation_id = "run_task", tag = "tasks",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "Due now", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`task-active`, `task-finished`: it was delivered"),
        (status = 429, description = "`queue-full`"),
    ))]
pub async fn run_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
) -> Result<ByHand<TaskOut>, Problem> {
    match api.store.run(&queue, &id).await? {
        Revived::Done(task) => Ok(ByHand(lean(&api, &task).await)),
        Revived::Active(_) => Err(Problem::task_active(&id)),
        Revived::Finished(task) => Err(Problem::task_finished(&id, task.state)),
        Revived::Full => Err(Problem::queue_full(&queue)),
        Revived::Unknown => Err(Problem::task_not_found(&id)),
        Revived::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}
