//! A webhook's secret, changed without a delivery that its receiver cannot verify.

use axum::extract::State;

use super::{find, new_secret, show};
use crate::{
    http::{
        Shared,
        extract::{NoQuery, OptionalJson, WebhookPath},
        object::decode,
        problem::Problem,
        wire::{Json, WebhookOut, read_rotation},
    },
    store::{Change, HookChange, QueueView},
};

/// Give a webhook a new secret
///
/// The one before signs too until `grace` ends (24h unless given); the newest two at most.
#[utoipa::path(post, path = "/queues/{queue}/webhooks/{id}/rotate-secret", operation_id = "rotate_webhook_secret",
    tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/SecretRotation"), content_type = "application/json"),
    responses(
        (status = 200, description = "The webhook with its new `secret`, shown here once", body = WebhookOut),
        (status = 404, description = "`webhook-not-found`, `queue-not-found`"),
    ))]
pub async fn rotate_webhook_secret(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<WebhookOut>, Problem> {
    let (grace, given) = decode(body.text()?, |o| Some(read_rotation(o)))?;
    let next = given.map_or_else(|| new_secret(&api), Ok)?;
    let change = |view: &QueueView| {
        let new = find(view, &id)?.clone().rotated(next.clone(), grace, view.now);
        Ok(Change { hooks: vec![HookChange::Set(Box::new(new))], ..Change::default() })
    };
    let view = api.change(&queue, false, change).await?;
    Ok(Json(show(&view, find(&view, &id)?, true)))
}
