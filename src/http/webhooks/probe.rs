//! A delivery by way of a test: the one call that this room makes itself.

use axum::extract::State;
use bytes::Bytes;

use super::find;
use crate::{
    delivery::{Call, Delivery, Destination, Signers},
    domain::{
        attempt::Attempt,
        payload::{Payload, PayloadError},
    },
    http::{
        Shared,
        extract::{NoQuery, OptionalJson, WebhookPath},
        object::decode,
        problem::{Kind, Problem},
        wire::{AttemptOut, Json},
    },
};

/// Makes the calls.
#[derive(Clone)]
pub struct Prober(pub Delivery);

#[cfg(test)]
impl Prober {
    /// One that may call this machine.
    pub fn for_tests() -> Self {
        use crate::{delivery::DeliveryConfig, domain::address::AddressPolicy};
        let policy = AddressPolicy { allow_private: true, allow_loopback: true, allowed: Vec::new() };
        let config = DeliveryConfig { policy, extra_roots: None, user_agent: "duepost/test".to_owned() };
        Self(Delivery::new(config).unwrap())
    }
}

/// Send a signed test delivery now
///
/// Also to a webhook that is disabled or held. It is no task: nothing is counted, kept or tried again.
#[utoipa::path(post, path = "/queues/{queue}/webhooks/{id}/test", operation_id = "test_webhook", tag = "webhooks",
    params(("queue" = String, Path), ("id" = String, Path)),
    request_body(content = ref("#/components/schemas/WebhookTest"), content_type = "application/json"),
    responses(
        (status = 200, description = "What came of it, whatever that was", body = AttemptOut),
        (status = 404, description = "`webhook-not-found`, `queue-not-found`"),
    ))]
pub async fn test_webhook(
    State(api): State<Shared>,
    WebhookPath(queue, id): WebhookPath,
    _: NoQuery,
    OptionalJson(body): OptionalJson,
) -> Result<Json<AttemptOut>, Problem> {
    let given = decode(body.text()?, |o| Some(o.raw("payload")))?;
    let bytes = given.map_or(Bytes::from_static(b"{}"), |payload| body.slice(payload));
    let payload = Payload::new(bytes, api.limits.max_payload).map_err(|error| match error {
        PayloadError::TooLarge { .. } => Problem::new(Kind::TooLarge, error.to_string()),
        PayloadError::TooDeep => Problem::field("payload", error.to_string()),
    })?;
    let view = api.view(&queue).await?;
    let webhook = find(&view, &id)?;
    let parse = |(name, value): &(String, String)| Some((name.parse().ok()?, value.parse().ok()?));
    let call = Call {
        to: Destination::new(&webhook.url),
        body: payload.bytes().clone(),
        headers: webhook.headers.iter().filter_map(parse).collect(),
        signers: Signers::new(&webhook.signing_secrets(view.now)),
        timeout: webhook.timeout.unwrap_or(view.queue.settings.timeout),
        webhook_id: (api.ids.uid)().0,
        started_at: view.now,
        queue: queue.as_str(),
        task_id: "test",
        attempt: 0,
        run_at: view.now,
        traceparent: None,
    };
    let report = api.probe.0.call(call).await;
    Ok(Json(AttemptOut::from(Attempt {
        number: 0,
        webhook: Some(id.as_str().to_owned()),
        started_at: view.now,
        lateness_ms: 0,
        duration_ms: u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
        outcome: report.outcome,
        status: report.status,
        error: report.error,
        response: report.response,
    })))
}
