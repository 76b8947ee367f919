//! What operators do with a queue: pause, resume, purge, replay, delete.

use axum::{extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Shared,
    extract::{ForceQuery, JsonBody, NoQuery, OptionalJson, QueuePath},
    fields::{boolean, instant, name, whole},
    object::{Object, decode, list, text},
    problem::{Kind, Problem},
    queues::show,
    wire::{Json, QueueOut},
};
use crate::{
    domain::{
        id::{QueueName, WebhookId},
        queue::Pause,
        task::TaskState,
        time::UnixMs,
    },
    store::{Change, Dropped, QueueView, Replay},
};

/// How many tasks a purge removed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Purged)]
pub struct PurgedOut {
    /// How many.
    purged: u64,
}

/// How many tasks a replay brought back.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replayed)]
pub struct ReplayedOut {
    /// How many; in a dry run how many would be.
    replayed: u64,
}

/// Reads how long to pause.
pub fn read_pause(o: &mut Object<'_>, now: UnixMs) -> Option<Pause> {
    let until = o.optional("until", instant);
    if until.is_some_and(|until| until <= now) {
        o.fault("until", "is past already");
    }
    Some(until.map_or(Pause::Open, Pause::Until))
}

/// Reads which states to purge.
pub fn read_purge(o: &mut Object<'_>) -> Option<Vec<TaskState>> {
    o.required("states", |raw| {
        let mut states = Vec::new();
        for item in list(raw, TaskState::ALL.len())? {
            match TaskState::parse(&text(item)?) {
                Some(TaskState::Active) => return Err("active tasks cannot be purged: cancel them".to_owned()),
                Some(state) if states.contains(&state) => return Err(format!("{} is given twice", state.as_str())),
                Some(state) => states.push(state),
                None => return Err("must be scheduled, completed, dead, cancelled or expired".to_owned()),
            }
        }
        if states.is_empty() { Err("must name at least one state".to_owned()) } else { Ok(states) }
    })
}

/// Reads which dead tasks to replay.
pub fn read_replay(o: &mut Object<'_>) -> Option<Replay> {
    Some(Replay {
        webhook: o.optional("webhook", name(WebhookId::parse)).map(|id| id.to_string()),
        ended_after: o.optional("ended_after", instant),
        ended_before: o.optional("ended_before", instant),
        limit: o.optional("limit", whole(1..=i64::MAX.unsigned_abs())),
        dry_run: o.optional("dry_run", boolean).unwrap_or(false),
    })
}

async fn set_pause(api: &Shared, queue: &QueueName, pause: Pause) -> Result<Json<QueueOut>, Problem> {
    let change = |_: &QueueView| Ok(Change { pause: Some(pause), ..Change::default() });
    let view = api.change(queue, false, change).await?;
    Ok(Json(show(api, &view).await?))
}

/// Pause a queue
///
/// No attempt starts after the answer, pushed or pulled; those under way end, enqueue goes on.
#[utoipa::path(post, path = "/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/QueuePause"), content_type = "application/json"),
    responses(
        (status = 200, description = "Paused", body = QueueOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn pause_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<QueueOut>, Problem> {
    let now = api.store.clock().now();
    let pause = decode(body.text()?, |o| read_pause(o, now))?;
    set_pause(&api, &queue, pause).await
}

/// Resume a queue
#[utoipa::path(post, path = "/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "Attempts start again", body = QueueOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn resume_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
) -> Result<Json<QueueOut>, Problem> {
    set_pause(&api, &queue, Pause::No).await
}

/// Purge a queue
///
/// Removes the tasks of these states, without a record. It goes in steps: cut off, it is safe to repeat.
#[utoipa::path(post, path = "/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/QueuePurge"), content_type = "application/json"),
    responses(
        (status = 200, description = "Removed", body = PurgedOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn purge_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    body: JsonBody,
) -> Result<Json<PurgedOut>, Problem> {
    let mut purged = 0;
    for state in decode(body.text()?, read_purge)? {
        purged += api.store.purge(&queue, state).await?.ok_or_else(|| Problem::queue_not_found(&queue))?;
    }
    Ok(Json(PurgedOut { purged }))
}

/// Replay dead tasks
///
/// They become due now, oldest first: attempts at 0, without their expiry. It goes in steps: cut off, it is safe to
/// repeat.
#[utoipa::path(post, path = "/queues/{queue}/replay", operation_id = "replay_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/QueueReplay"), content_type = "application/json"),
    responses(
        (status = 200, description = "Scheduled again", body = ReplayedOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn replay_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<ReplayedOut>, Problem> {
    let which = decode(body.text()?, read_replay)?;
    let replayed = api.store.replay(&queue, &which).await?;
    Ok(Json(ReplayedOut { replayed: replayed.ok_or_else(|| Problem::queue_not_found(&queue))? }))
}

/// Delete a queue with its webhooks
///
/// With `force` also one with tasks that are scheduled, active or dead.
#[utoipa::path(delete, path = "/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(
        ("queue" = String, Path),
        ("force" = Option<bool>, Query, description = "Also with tasks scheduled, active or dead"),
    ),
    responses(
        (status = 204, description = "Gone"),
        (status = 404, description = "`queue-not-found`"),
        (status = 409, description = "`queue-not-empty`"),
    ))]
pub async fn delete_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    ForceQuery(query): ForceQuery,
) -> Result<StatusCode, Problem> {
    match api.store.drop_queue(&queue, query.flag("force")?).await? {
        Dropped::Done => {
            api.known.forget(&queue);
            api.metrics.remove_queue(queue.as_str());
            Ok(StatusCode::NO_CONTENT)
        }
        Dropped::NotEmpty => Err(Problem::new(
            Kind::QueueNotEmpty,
            format!("queue {queue} has tasks that are scheduled, active or dead: purge them, or say force=true"),
        )),
        Dropped::NoQueue => Err(Problem::queue_not_found(&queue)),
    }
}
