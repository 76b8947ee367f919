//! Queues: list, read, create, set, figures.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, stream};

use super::{
    Shared,
    auth::Reach,
    extract::{ListQuery, NoQuery, OptionalJson, QueuePath, cursor, open_cursor},
    object::decode,
    problem::{Kind, Problem},
    wire::{Json, ListOut, QueueItem, QueueOut, StatsOut, read_settings},
};
use crate::{
    domain::{
        id::QueueName,
        queue::{Settings, Stats},
    },
    store::{Change, Decision, Fate, QueueView, StoreError},
};

/// Queues whose figures are read at once.
const AT_ONCE: usize = 16;

/// List queues by name
#[utoipa::path(get, path = "/queues", operation_id = "list_queues", tag = "queues",
    params(
        ("limit" = Option<u16>, Query, description = "At most so many, 1 to 1000; 100 by default", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page", body = ListOut<QueueItem>)))]
pub async fn list_queues(
    State(api): State<Shared>,
    reach: Reach,
    ListQuery(query): ListQuery,
) -> Result<Json<ListOut<QueueItem>>, Problem> {
    let limit = query.limit()?;
    let after = query.get("cursor").map(read_place).transpose()?;
    let mut names = api.store.queue_names().await.map_err(Problem::of_read)?;
    names.retain(|name| after.as_ref().is_none_or(|after| name > after) && reach.covers(name));
    let more = names.len() > limit;
    names.truncate(limit);
    let next_cursor = names.last().filter(|_| more).map(|name| cursor(&[name.as_str().into()]));
    let mut items = Vec::with_capacity(names.len());
    for (name, stats) in stats_of(&api, names).await {
        match stats {
            Ok(Some(stats)) => items.push(QueueItem::new(name.to_string(), Some(&stats))),
            Ok(None) => {} // deleted meanwhile
            Err(error) if error.fate() == Fate::Bug => {
                tracing::warn!(queue = %name, %error, "the figures of a queue cannot be read");
                items.push(QueueItem::new(name.to_string(), None));
            }
            Err(error) => return Err(Problem::of_read(error)),
        }
    }
    Ok(Json(ListOut { items, next_cursor }))
}

/// The figures of many queues, in the order of the names.
pub(super) async fn stats_of(
    api: &Shared,
    names: Vec<QueueName>,
) -> Vec<(QueueName, Result<Option<Stats>, StoreError>)> {
    let read = |name: QueueName| {
        let api = api.clone();
        async move {
            let stats = api.store.stats(&name).await;
            (name, stats)
        }
    };
    stream::iter(names).map(read).buffered(AT_ONCE).collect().await
}

fn read_place(text: &str) -> Result<QueueName, Problem> {
    let refuse = || Problem::field("cursor", "is not one that this list gave");
    let parts = open_cursor(text).ok_or_else(refuse)?;
    let [name] = parts.as_slice() else { return Err(refuse()) };
    QueueName::parse(name).map_err(|_| refuse())
}

/// Read a queue with its settings and figures
#[utoipa::path(get, path = "/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "The queue", body = QueueOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn get_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
) -> Result<Json<QueueOut>, Problem> {
    let view = api.view(&queue).await?;
    Ok(Json(show(&api, &view).await?))
}

/// Create a queue, or set all its settings
///
/// What is left out gets its default.
#[utoipa::path(put, path = "/queues/{queue}", operation_id = "put_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/QueuePut"), content_type = "application/json"),
    responses(
        (status = 201, description = "Created", body = QueueOut),
        (status = 200, description = "Set", body = QueueOut),
    ))]
pub async fn put_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Response, Problem> {
    let settings = decode(body.text()?, |o| Some(read_settings(o, &Settings::default(), false)))?;
    let change = |_: &QueueView| Ok::<_, Problem>(Change { settings: Some(settings.clone()), ..Change::default() });
    match api.store.change(&queue, true, change).await? {
        Decision::Changed { view, created } => {
            let status = if created { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, Json(show(&api, &view).await?)).into_response())
        }
        Decision::Refused(problem) => Err(problem),
        Decision::NoQueue => Err(deleted_meanwhile(&queue)),
    }
}

/// Only between two calls of a create.
fn deleted_meanwhile(queue: &QueueName) -> Problem {
    Problem::new(Kind::Unavailable, format!("queue {queue} is being deleted by somebody else"))
}

/// Set some settings of a queue
///
/// `null` puts one back to its default.
#[utoipa::path(patch, path = "/queues/{queue}", operation_id = "patch_queue", tag = "queues",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/QueuePatch"), content_type = "application/json"),
    responses(
        (status = 200, description = "Set", body = QueueOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn patch_queue(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<QueueOut>, Problem> {
    let over = |base: &Settings| decode(body.text()?, |o| Some(read_settings(o, base, true)));
    over(&Settings::default())?; // whether it is valid does not depend on what stands
    let change = |view: &QueueView| Ok(Change { settings: Some(over(&view.queue.settings)?), ..Change::default() });
    let view = api.change(&queue, false, change).await?;
    Ok(Json(show(&api, &view).await?))
}

/// Read the figures of a queue
#[utoipa::path(get, path = "/queues/{queue}/stats", operation_id = "get_queue_stats", tag = "queues",
    params(("queue" = String, Path)),
    responses(
        (status = 200, description = "The figures, of one instant", body = StatsOut),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn get_queue_stats(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
) -> Result<Json<StatsOut>, Problem> {
    stats(&api, &queue).await.map(Json)
}

async fn stats(api: &Shared, queue: &QueueName) -> Result<StatsOut, Problem> {
    let stats = api.store.stats(queue).await.map_err(Problem::of_read)?;
    let stats = stats.ok_or_else(|| Problem::queue_not_found(queue))?;
    let (figures, now) = (api.metrics.queue(queue.as_str()), std::time::Instant::now());
    Ok(StatsOut::new(&stats, figures.lateness_window(now), figures.duration_window(now)))
}

pub(super) async fn show(api: &Shared, view: &QueueView) -> Result<QueueOut, Problem> {
    api.known.learn(&view.queue.name, &view.queue.settings);
    Ok(QueueOut::new(&view.queue, stats(api, &view.queue.name).await?, view.now))
}
