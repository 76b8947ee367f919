//! Webhooks: register, list, read, set, remove; below, what is done with their secrets and by way of a test.

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{
    Shared,
    extract::{JsonBody, ListQuery, NoQuery, OptionalJson, QueuePath, WebhookPath, cursor, open_cursor},
    object::{Given, decode},
    problem::{Kind, Problem},
    wire::{Json, ListOut, WebhookOut, read_webhook, read_webhook_patch, read_webhook_put},
};
use crate::{
    domain::{
        id::{QueueName, WebhookId},
        secret::Secret,
        time::UnixMs,
        webhook::{MAX_WEBHOOKS, Webhook},
    },
    store::{Change, HookChange, QueueView},
};

pub mod probe;
pub mod secrets;

fn path_of(queue: &QueueName, id: &WebhookId) -> String {
    format!("/queues/{queue}/webhooks/{id}")
}

fn show(view: &QueueView, webhook: &Webhook, secret: bool) -> WebhookOut {
    let held = view.holds.until(webhook.id.as_str()).filter(|_| webhook.enabled);
    let health = view.health.get(webhook.id.as_str()).copied().unwrap_or_default();
    WebhookOut::new(webhook, &view.queue.name, health, held, view.now, secret)
}

/// The webhook of this id. One that cannot be read is there, but nothing is shown or written of it.
fn find<'v>(view: &'v QueueView, id: &WebhookId) -> Result<&'v Webhook, Problem> {
    refuse_unreadable(view, id)?;
    view.webhook(id).ok_or_else(|| Problem::webhook_not_found(id))
}

fn refuse_unreadable(view: &QueueView, id: &WebhookId) -> Result<(), Problem> {
    match view.unreadable.iter().find(|u| u.id == id.as_str()) {
        Some(_) => Err(Problem::new(
            Kind::Internal,
            format!("webhook {id} cannot be read by this service: see its log, and its secret_key"),
        )),
        None => Ok(()),
    }
}

/// Another webhook of the queue has this url.
fn url_taken(view: &QueueView, id: &WebhookId, url: &url::Url) -> Option<Problem> {
    let other = view.webhooks.iter().find(|w| w.id != *id && w.url == *url)?;
    let detail = format!("another webhook of queue {} has this url", view.queue.name);
    Some(Problem::webhook_exists(detail, path_of(&view.queue.name, &other.id)))
}

fn too_many(queue: &QueueName) -> Problem {
    Problem::invalid(format!("queue {queue} has {MAX_WEBHOOKS} webhooks, the most allowed"))
}

fn new_secret(api: &Shared) -> Result<Secret, Problem> {
    let made = Secret::from_bytes(&(api.ids.secret)());
    made.map_err(|e| Problem::new(Kind::Internal, format!("no secret could be made: {e}")))
}

fn fresh(id: WebhookId, url: url::Url, secret: Secret, now: UnixMs) -> Webhook {
    Webhook {
        id,
        url,
        enabled: true,
        description: None,
        headers: Vec::new(),
        timeout: None,
        max_in_flight: None,
        created_at: now,
        secret,
        previous_secret: None,
        disabled_reason: None,
    }
}

fn created(view: &QueueView, new: &Webhook) -> Response {
    let location = HeaderValue::from_str(&path_of(&view.queue.name, &new.id)).ok();
    let location = location.unwrap_or_else(|| HeaderValue::from_static("/"));
    (StatusCode::CREATED, [(header::LOCATION, location)], Json(show(view, new, true))).into_response()
}

/// The webhook of this id or url.
fn taken(view: &QueueView, new: &Webhook) -> Option<Problem> {
    let queue = &view.queue.name;
    let exists = |what, old: &Webhook| {
        Problem::webhook_exists(format!("queue {queue} has a webhook with this {what}"), path_of(queue, &old.id))
    };
    let by_id = view.webhook(&new.id).map(|old| exists("id", old));
    by_id.or_else(|| view.webhooks.iter().find(|old| old.url == new.url).map(|old| exists("url", old)))
}

/// Register a webhook
///
/// Every enabled webhook of the queue gets every due task.
#[utoipa::path(post, path = "/queues/{queue}/webhooks", operation_id = "create_webhook", tag = "webhooks",
    params(("queue" = String, Path)),
    request_body(content = ref("#/components/schemas/WebhookCreate"), content_type = "application/json"),
    responses(
        (status = 201, description = "Registered; the secret is shown here once", body = WebhookOut,
            headers(("location", description = "Path of the webhook"))),
        (status = 404, description = "`queue-not-found` (only where queues are not made by use)"),
        (status = 409, description = "`webhook-exists`: the queue has this url or id", headers(("location", description = "Path of that webhook"))),
    ))]
pub async fn create_webhook(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    _: NoQuery,
    body: JsonBody,
) -> Result<Response, Problem> {
    let (id, url, mut fields) = decode(body.text()?, |o| read_webhook(o, &api.policy))?;
    let secret = fields.secret.take().map_or_else(|| new_secret(&api), Ok)?;
    let id = id.unwrap_or_else(|| WebhookId::from_uid((api.ids.uid)()));
    let mut new = fresh(id, url, secret, api.store.clock().now());
    fields.over(&mut new);
    let change = |view: &QueueView| {
        refuse_unreadable(view, &new.id)?;
        if let Some(problem) = taken(view, &new) {
            return Err(problem);
        }
        if view.webhooks.len() + view.unreadable.len() >= MAX_WEBHOOKS {
            return Err(too_many(&queue));
        }
        new.created_at = view.now;
        Ok(Change { hooks: vec![HookChange::Set(Box::new(new.clone()))], ..Change::default() })
    };
    let view = api.change(&queue, api.auto_create, change).await?;
    Ok(created(&view, &new))
}

/// Create a webhook, or set all its fields, by id
///
/// For deploy scripts: what is left out gets its default, but a secret stays unless one is given.
#[utoipa::path(put, path = "/queues/{queue}/webhooks/{id}", operation_id = "put_webhook", tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/WebhookPut"), content_type = "application/json"),
    responses(
        (status = 200, description = "Set; with `secret` if it was set", body = WebhookOut),
        (status = 201, description = "Created; the secret is shown here once", body = WebhookOut,
            headers(("location", description = "Path of the webhook"))),
        (status = 404, description = "`queue-not-found` (only where queues are not made by use)"),
        (status = 409, description = "`webhook-exists`: another webhook of the queue has this url", headers(("location", description = "Path of that webhook"))),
    ))]
pub async fn put_webhook(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
    body: JsonBody,
) -> Result<Response, Problem> {
    let read = || decode(body.text()?, |o| read_webhook_put(o, &api.policy));
    let given = read()?.1.secret;
    let made = new_secret(&api)?;
    let mut is_new = false;
    let change = |view: &QueueView| {
        refuse_unreadable(view, &id)?;
        let (url, fields) = read()?;
        if let Some(problem) = url_taken(view, &id, &url) {
            return Err(problem);
        }
        let old = view.webhook(&id);
        is_new = old.is_none();
        if is_new && view.webhooks.len() + view.unreadable.len() >= MAX_WEBHOOKS {
            return Err(too_many(&queue));
        }
        let secret = old.map_or(&made, |old| &old.secret).clone();
        let mut new = fresh(id.clone(), url, secret, old.map_or(view.now, |old| old.created_at));
        new.previous_secret = old.and_then(|old| old.previous_secret.clone());
        let says_enabled = matches!(fields.enabled, Given::Value(true));
        fields.over(&mut new);
        let mut hooks = Vec::new();
        if let Some(old) = old {
            if !new.enabled && !old.enabled {
                new.disabled_reason.clone_from(&old.disabled_reason);
            }
            if says_enabled || (new.enabled && !old.enabled) || new.url != old.url {
                hooks.push(HookChange::Free(id.clone()));
            }
        }
        hooks.push(HookChange::Set(Box::new(new)));
        Ok(Change { hooks, ..Change::default() })
    };
    let view = api.change(&queue, api.auto_create, change).await?;
    let webhook = find(&view, &id)?;
    Ok(if is_new { created(&view, webhook) } else { Json(show(&view, webhook, given.is_some())).into_response() })
}

/// List the webhooks of a queue by id
#[utoipa::path(get, path = "/queues/{queue}/webhooks", operation_id = "list_webhooks", tag = "webhooks",
    params(
        ("queue" = String, Path),
        ("limit" = Option<u16>, Query, description = "At most so many, 1 to 1000; 100 by default", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = ListOut<WebhookOut>),
        (status = 404, description = "`queue-not-found`"),
    ))]
pub async fn list_webhooks(
    State(api): State<Shared>,
    QueuePath(queue): QueuePath,
    ListQuery(query): ListQuery,
) -> Result<Json<ListOut<WebhookOut>>, Problem> {
    let limit = query.limit()?;
    let after = query.get("cursor").map(read_place).transpose()?;
    let view = api.view(&queue).await?;
    let mut rest = view.webhooks.iter().filter(|w| after.as_ref().is_none_or(|after| w.id > *after)).peekable();
    let page: Vec<&Webhook> = rest.by_ref().take(limit).collect();
    let next_cursor = page.last().filter(|_| rest.peek().is_some()).map(|w| cursor(&[w.id.as_str().into()]));
    Ok(Json(ListOut { items: page.into_iter().map(|w| show(&view, w, false)).collect(), next_cursor }))
}

fn read_place(text: &str) -> Result<WebhookId, Problem> {
    let refuse = || Problem::field("cursor", "is not one that this list gave");
    let parts = open_cursor(text).ok_or_else(refuse)?;
    let [id] = parts.as_slice() else { return Err(refuse()) };
    WebhookId::parse(id).map_err(|_| refuse())
}

/// Read a webhook
#[utoipa::path(get, path = "/queues/{queue}/webhooks/{id}", operation_id = "get_webhook", tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 200, description = "The webhook", body = WebhookOut),
        (status = 404, description = "`webhook-not-found`, `queue-not-found`"),
    ))]
pub async fn get_webhook(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
) -> Result<Json<WebhookOut>, Problem> {
    let view = api.view(&queue).await?;
    Ok(Json(show(&view, find(&view, &id)?, false)))
}

/// Set some fields of a webhook
///
/// `null` puts one back to its default. `enabled: true` and a new `url` clear health and hold.
#[utoipa::path(patch, path = "/queues/{queue}/webhooks/{id}", operation_id = "patch_webhook", tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/WebhookPatch"), content_type = "application/json"),
    responses(
        (status = 200, description = "Set; with `secret` if it was set", body = WebhookOut),
        (status = 404, description = "`webhook-not-found`, `queue-not-found`"),
        (status = 409, description = "`webhook-exists`: another webhook of the queue has this url", headers(("location", description = "Path of that webhook"))),
    ))]
pub async fn patch_webhook(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<WebhookOut>, Problem> {
    let read = || decode(body.text()?, |o| Some(read_webhook_patch(o, &api.policy)));
    let secret_set = read()?.secret.is_some();
    let change = |view: &QueueView| {
        let old = find(view, &id)?;
        let (fields, mut new) = (read()?, old.clone());
        let enables = matches!(fields.enabled, Given::Value(true) | Given::Null);
        let moves = fields.url.as_ref().is_some_and(|url| *url != old.url);
        fields.over(&mut new);
        if let Some(problem) = url_taken(view, &id, &new.url) {
            return Err(problem);
        }
        let mut hooks = Vec::new();
        if enables || moves {
            new.disabled_reason = None;
            hooks.push(HookChange::Free(id.clone()));
        }
        hooks.push(HookChange::Set(Box::new(new)));
        Ok(Change { hooks, ..Change::default() })
    };
    let view = api.change(&queue, false, change).await?;
    let webhook = view.webhook(&id).ok_or_else(|| Problem::webhook_not_found(&id))?;
    Ok(Json(show(&view, webhook, secret_set)))
}

/// Unregister a webhook
#[utoipa::path(delete, path = "/queues/{queue}/webhooks/{id}", operation_id = "delete_webhook", tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    responses(
        (status = 204, description = "Unregistered"),
        (status = 404, description = "`webhook-not-found`, `queue-not-found`"),
    ))]
pub async fn delete_webhook(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
) -> Result<StatusCode, Problem> {
    let change = |view: &QueueView| match view.webhook(&id) {
        Some(_) => Ok(Change { hooks: vec![HookChange::Remove(id.clone())], ..Change::default() }),
        None if view.unreadable.iter().any(|u| u.id == id.as_str()) => {
            Ok(Change { hooks: vec![HookChange::Remove(id.clone())], ..Change::default() })
        }
        None => Err(Problem::webhook_not_found(&id)),
    };
    api.change(&queue, false, change).await?;
    Ok(StatusCode::NO_CONTENT)
}
