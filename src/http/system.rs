//! The service itself: alive, ready, version, metrics, specification; and what answers where no route does.

use std::time::Duration;

use axum::{
    extract::State,
    http::{HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Shared,
    extract::NoQuery,
    openapi::openapi_json,
    problem::{Kind, Problem},
    queues::stats_of,
    wire::{Json, oldest_due_ms},
};
use crate::{
    domain::{id::QueueName, queue::Stats},
    store::{Fate, RedisInfo, StoreError},
    telemetry::{CONTENT_TYPE, QueueDepth},
};

/// How long Redis may take to answer for the service to be ready; the answer as a whole takes less than a second.
const READY_WITHIN: Duration = Duration::from_millis(700);
const REFUSED: &str = "Redis refuses the service: credentials or permissions";
/// How long the depths of a scrape may take; without them it shows what this process did.
const SCRAPE_WITHIN: Duration = Duration::from_secs(5);
/// Queues whose depths a scrape reads.
const SCRAPE_QUEUES: usize = 1_000;

/// A sign of life.
#[derive(Serialize, ToSchema)]
pub struct Liveness {
    /// `ok`
    status: &'static str,
}

/// Whether the process lives
#[utoipa::path(get, path = "/livez", operation_id = "get_livez", tag = "service", security(()),
    responses((status = 200, description = "It does", body = Liveness)))]
pub async fn get_livez(_: NoQuery) -> Json<Liveness> {
    Json(Liveness { status: "ok" })
}

/// The service can do its work.
#[derive(Serialize, ToSchema)]
pub struct Readiness {
    /// `ready`
    status: &'static str,
    /// Name and version of Redis.
    redis: String,
    /// Whether its append-only file is on.
    append_only: bool,
    /// What an answered change survives: `none`, `memory`, `disk` or `replica`.
    durability: &'static str,
    /// What should be looked at although it works.
    warnings: Vec<String>,
}

/// Whether the service can do its work
///
/// Redis answers, takes writes, and the loops that deliver run.
#[utoipa::path(get, path = "/readyz", operation_id = "get_readyz", tag = "service", security(()),
    responses(
        (status = 200, description = "It can", body = Readiness),
        (status = 503, description = "`unavailable`, with the reason"),
    ))]
pub async fn get_readyz(State(api): State<Shared>, _: NoQuery) -> Result<Json<Readiness>, Problem> {
    let not_ready = |why: &str| Problem::new(Kind::Unavailable, why);
    if api.health.is_stopping() {
        return Err(not_ready("the service is stopping"));
    }
    let info = match tokio::time::timeout(READY_WITHIN, api.store.ping()).await {
        Err(_) => return Err(not_ready("Redis does not answer in time")),
        Ok(Err(error)) => {
            let why = match error.fate() {
                Fate::NotReady => REFUSED,
                _ => "Redis does not answer",
            };
            tracing::debug!(%error, "not ready");
            return Err(not_ready(why));
        }
        Ok(Ok(info)) => info,
    };
    if api.store.was_refused() {
        return Err(not_ready(REFUSED));
    }
    if !info.last_write_ok {
        return Err(not_ready("Redis cannot write its append-only file"));
    }
    if info.read_only {
        return Err(not_ready("Redis is a replica that takes no writes"));
    }
    if info.full {
        return Err(not_ready("Redis has no memory left"));
    }
    if !api.health.is_looking() {
        return Err(not_ready("what is due cannot be read from Redis; the log says why"));
    }
    if !api.health.is_beating() {
        return Err(not_ready("the loop that delivers does not run"));
    }
    let standing = api.store.standing();
    if let Some(why) = &standing.short {
        return Err(not_ready(why));
    }
    let warnings = warnings(&api, &info);
    let durability = standing.level.as_str();
    Ok(Json(Readiness { status: "ready", redis: info.version, append_only: info.append_only, durability, warnings }))
}

fn warnings(api: &Shared, info: &RedisInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    if info.eviction != "noeviction" {
        warnings.push(format!("maxmemory-policy is {}: Redis may drop tasks; set noeviction", info.eviction));
    }
    if !info.append_only {
        warnings.push("appendonly is off: tasks are lost when Redis stops".to_owned());
    }
    if let Some(why) = api.store.standing().unverified {
        warnings.push(why.to_owned());
    }
    if let Some(ms) = api.store.clock().ahead_ms() {
        let off = Duration::from_millis(ms.unsigned_abs()).as_secs_f64();
        let which = if ms > 0 { "ahead" } else { "behind" };
        warnings.push(format!("Redis's clock jumped and is {off:.1} s {which} of what is trusted; set it right"));
    }
    let failing = api.health.failing();
    if failing > 0 {
        warnings.push(format!("{failing} queues cannot be visited: their tasks wait; the log says why"));
    }
    let lost = api.store.rolled_back();
    if lost > 0 {
        warnings.push(format!("Redis lost {lost} accepted tasks (flushed, restored, or failed over), since the start"));
    }
    warnings
}

/// Which build runs.
#[derive(Serialize, ToSchema)]
pub struct Version {
    /// `duepost`
    name: &'static str,
    /// Semantic version.
    version: &'static str,
}

/// Which build runs
#[utoipa::path(get, path = "/version", operation_id = "get_version", tag = "service", security(()),
    responses((status = 200, description = "Name and version", body = Version)))]
pub async fn get_version(_: NoQuery) -> Json<Version> {
    Json(Version { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION") })
}

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "service",
    responses((status = 200, description = "Figures in Prometheus's text form", body = String, content_type = "text/plain")))]
pub async fn get_metrics(State(api): State<Shared>, _: NoQuery) -> Response {
    let depths = tokio::time::timeout(SCRAPE_WITHIN, depths(&api)).await;
    let depths = match depths {
        Ok(Ok(depths)) => depths,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a scrape goes without the depths of queues");
            Vec::new()
        }
        Err(_) => Vec::new(),
    };
    let text = HeaderValue::from_static(CONTENT_TYPE);
    ([(header::CONTENT_TYPE, text)], api.metrics.encode(&depths)).into_response()
}

async fn depths(api: &Shared) -> Result<Vec<QueueDepth>, StoreError> {
    let mut names = api.store.queue_names().await?;
    names.truncate(SCRAPE_QUEUES);
    let mut depths = Vec::with_capacity(names.len());
    for (name, stats) in stats_of(api, names).await {
        match stats {
            Ok(Some(stats)) => depths.push(depth(&name, &stats)),
            Ok(None) => {}
            Err(error) => tracing::debug!(queue = %name, %error, "a scrape goes without a queue"),
        }
    }
    Ok(depths)
}

fn depth(name: &QueueName, stats: &Stats) -> QueueDepth {
    QueueDepth {
        queue: name.to_string(),
        scheduled: stats.scheduled,
        active: stats.active,
        dead: stats.dead,
        completed: stats.completed,
        cancelled: stats.cancelled,
        expired: stats.expired,
        oldest_due_ms: oldest_due_ms(stats),
        paused: stats.pause.holds_at(stats.now),
        webhooks_held: stats.webhooks_held,
        webhooks_disabled: stats.webhooks_disabled,
    }
}

/// This specification
#[utoipa::path(get, path = "/openapi.json", operation_id = "get_openapi", tag = "service", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub async fn get_openapi(_: NoQuery) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], openapi_json()).into_response()
}

/// 404 of the router.
pub(super) async fn no_route() -> Problem {
    Problem::new(Kind::NotFound, "there is no such route")
}

/// 405 of the router, which adds `allow`.
pub(super) async fn no_method(method: Method) -> Problem {
    Problem::new(Kind::MethodNotAllowed, format!("the route does not know {method}; see the header allow"))
}
