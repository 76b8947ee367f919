//! Pull consumers: claim, ack, nack, extend.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::{
    Shared,
    extract::{JsonBody, NoQuery, OptionalJson, QueuePath, TaskPath},
    object::decode,
    problem::Problem,
    tasks::lean,
    wire::{
        ByHand, ClaimedOut, LeasedOut, NackWanted, Progress, TaskOut, json_of, read_ack, read_claim, read_extend,
        read_nack,
    },
};
use crate::{
    domain::{
        id::{QueueName, TaskId},
        task::Task,
    },
    store::{Taken, Told},
};

/// Take due tasks
///
/// They are held for `lease`; what is not acked, nacked or extended by then becomes due again. With `wait` the call stays
/// open until a task is due; no task is no error. An answer that cannot be handed to the connection gives its tasks back.
#[utoipa::path(post, path = "/queues/{queue}/claim", operation_id = "claim_tasks", tag = "consumers",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskClaim"), content_type = "application/json"),
    responses(
        (status = 200, description = "What was taken; empty when nothing is due, while paused, and for a queue that does not exist yet", body = ClaimedOut),
    ))]
pub async fn claim_tasks(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Response, Problem> {
    let want = decode(body.text()?, read_claim)?;
    let mut taken = api.store.pull(&queue, want).await?;
    let pulled = taken.tasks();
    let mut tasks = Vec::with_capacity(pulled.len());
    for pulled in pulled {
        let (max_attempts, until) = (api.known.max_attempts(&api.store, &pulled.task).await, pulled.task.score);
        let task = TaskOut::whole(pulled.task, max_attempts, Progress::Unknown);
        tasks.push(LeasedOut::new(task, pulled.token, until));
    }
    let answer = ByHand(ClaimedOut { tasks });
    if taken.is_empty() {
        return Ok(answer.into_response());
    }
    Ok(json_of(Body::new(Handing { bytes: answer.text()?.into(), taken: Some(taken) })))
}

/// The body of an answer with tasks: they are the consumer's once the connection takes the bytes.
struct Handing {
    bytes: Bytes,
    taken: Option<Taken>,
}

impl hyper::body::Body for Handing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(taken) = self.taken.take() else { return Poll::Ready(None) };
        taken.handed_over();
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.taken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

fn done(told: Told, queue: &QueueName, id: &TaskId) -> Result<Task, Problem> {
    match told {
        Told::Done(task) => Ok(*task),
        Told::LeaseLost(state) => Err(Problem::lease_lost(id, state)),
        Told::Unknown => Err(Problem::task_not_found(id)),
        Told::NoQueue => Err(Problem::queue_not_found(queue)),
    }
}

/// Say that a task is done
///
/// Counts also after the lease ran out, as long as nobody has claimed the task since, and when repeated. It completes the
/// task for all webhooks.
#[utoipa::path(post, path = "/queues/{queue}/tasks/{id}/ack", operation_id = "ack_task", tag = "consumers",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskAck"), content_type = "application/json"),
    responses(
        (status = 200, description = "Completed", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`lease-lost`: claimed anew since, or ended otherwise; no effect"),
    ))]
pub async fn ack_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
    body: JsonBody,
) -> Result<ByHand<TaskOut>, Problem> {
    let token = decode(body.text()?, read_ack)?;
    let task = done(api.store.ack(&queue, &id, token).await?, &queue, &id)?;
    Ok(ByHand(lean(&api, &task).await))
}

/// Say that a task is not done
///
/// It is tried again by the queue's policy or after `delay`, never again with `dead`, and with `failed: false` given back
/// without counting an attempt.
#[utoipa::path(post, path = "/queues/{queue}/tasks/{id}/nack", operation_id = "nack_task", tag = "consumers",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskNack"), content_type = "application/json"),
    responses(
        (status = 200, description = "Taken note of: the task as it stands", body = TaskOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`lease-lost`: the claim is over; no effect"),
    ))]
pub async fn nack_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
    body: JsonBody,
) -> Result<ByHand<TaskOut>, Problem> {
    let NackWanted { token, no, error } = decode(body.text()?, |o| read_nack(o, api.limits.max_delay))?;
    let told = api.store.nack(&queue, &id, token, no, error, (api.ids.dice)()).await?;
    let task = done(told, &queue, &id)?;
    Ok(ByHand(lean(&api, &task).await))
}

/// Hold a task for longer
///
/// Counted from now. `cancelling: true` says that it was cancelled meanwhile.
#[utoipa::path(post, path = "/queues/{queue}/tasks/{id}/extend", operation_id = "extend_task", tag = "consumers",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/TaskExtend"), content_type = "application/json"),
    responses(
        (status = 200, description = "Held on", body = LeasedOut),
        (status = 404, description = "`task-not-found`, `queue-not-found`"),
        (status = 409, description = "`lease-lost`: the claim is over; no effect"),
    ))]
pub async fn extend_task(
    State(api): State<Shared>,
    TaskPath(queue, id): TaskPath,
    _: NoQuery,
    body: JsonBody,
) -> Result<ByHand<LeasedOut>, Problem> {
    let (token, lease) = decode(body.text()?, read_extend)?;
    let task = done(api.store.extend(&queue, &id, token, lease).await?, &queue, &id)?;
    Ok(ByHand(LeasedOut::new(lean(&api, &task).await, token, task.score)))
}
