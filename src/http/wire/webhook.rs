//! A webhook on the wire. Its secret is shown only by the calls that make or set one, values of its headers never.

use std::time::Duration;

use serde::Serialize;
use url::Url;
use utoipa::ToSchema;

use super::{At, Span};
use crate::{
    domain::{
        address::{AddressPolicy, parse_target, visible_refusal},
        id::{QueueName, WebhookId},
        queue::MAX_IN_FLIGHT,
        secret::Secret,
        time::UnixMs,
        webhook::{DEFAULT_GRACE, HookHealth, MAX_DESCRIPTION, MAX_GRACE, Webhook},
    },
    http::{
        fields::{boolean, duration_in, headers, name, parsed, text_of, timeout, whole_u32},
        object::{Given, Object, text},
    },
};

/// A webhook.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookOut {
    /// Unique in its queue.
    id: String,
    /// Its queue.
    queue: String,
    /// Where due tasks are POSTed.
    url: String,
    /// Whether they are.
    enabled: bool,
    /// For people.
    description: Option<String>,
    /// Names of the headers added to each delivery.
    header_names: Vec<String>,
    /// Instead of the queue's.
    #[schema(value_type = Option<String>)]
    timeout: Option<Span>,
    /// Calls at once per service process.
    max_in_flight: Option<u32>,
    /// When it was registered.
    #[schema(value_type = String, format = DateTime)]
    created_at: At,
    /// Signs deliveries; only in answers that made or set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    secret: Option<String>,
    /// Until when the secret before signs too.
    #[schema(value_type = Option<String>, format = DateTime)]
    previous_secret_until: Option<At>,
    /// When a delivery last succeeded.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_success_at: Option<At>,
    /// When one last failed.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_failure_at: Option<At>,
    /// Failures since the last success.
    consecutive_failures: u64,
    /// Until when it is left alone.
    #[schema(value_type = Option<String>, format = DateTime)]
    held_until: Option<At>,
    /// Why the service disabled it: `gone` after a 410.
    disabled_reason: Option<String>,
}

impl WebhookOut {
    /// A webhook as it stands at `now`.
    #[must_use]
    pub fn new(
        webhook: &Webhook,
        queue: &QueueName,
        health: HookHealth,
        held_until: Option<UnixMs>,
        now: UnixMs,
        secret: bool,
    ) -> Self {
        let later = |at: UnixMs| (at > now).then_some(At(at));
        Self {
            id: webhook.id.to_string(),
            queue: queue.to_string(),
            url: webhook.url.to_string(),
            enabled: webhook.enabled,
            description: webhook.description.clone(),
            header_names: webhook.headers.iter().map(|(name, _)| name.clone()).collect(),
            timeout: webhook.timeout.map(Span),
            max_in_flight: webhook.max_in_flight,
            created_at: At(webhook.created_at),
            secret: secret.then(|| webhook.secret.to_text()),
            previous_secret_until: webhook.previous_secret.as_ref().and_then(|(_, until)| later(*until)),
            last_success_at: health.last_success_at.map(At),
            last_failure_at: health.last_failure_at.map(At),
            consecutive_failures: health.consecutive_failures,
            held_until: held_until.and_then(later),
            disabled_reason: webhook.disabled_reason.clone(),
        }
    }
}

/// What a request says about a webhook.
#[derive(Debug)]
pub struct WebhookFields {
    /// Where to POST.
    pub url: Option<Url>,
    /// Signs deliveries.
    pub secret: Option<Secret>,
    /// Whether due tasks go there; `null` is the default, true.
    pub enabled: Given<bool>,
    headers: Given<Vec<(String, String)>>,
    timeout: Given<Option<Duration>>,
    max_in_flight: Given<Option<u32>>,
    description: Given<Option<String>>,
}

impl WebhookFields {
    /// Puts them over a webhook.
    pub fn over(self, webhook: &mut Webhook) {
        if let Some(url) = self.url {
            webhook.url = url;
        }
        if let Some(secret) = self.secret.filter(|secret| *secret != webhook.secret) {
            (webhook.secret, webhook.previous_secret) = (secret, None);
        }
        self.enabled.over(&mut webhook.enabled, true);
        self.headers.over(&mut webhook.headers, Vec::new());
        self.timeout.over(&mut webhook.timeout, None);
        self.max_in_flight.over(&mut webhook.max_in_flight, None);
        self.description.over(&mut webhook.description, None);
    }
}

fn target<'a>(policy: &AddressPolicy) -> impl Fn(&'a str) -> Result<Url, String> {
    move |raw| {
        let url = parse_target(&text(raw)?).map_err(|e| e.to_string())?;
        match visible_refusal(&url, policy) {
            Some(refused) => Err(format!("{refused} (--allow-private-targets allows private ones)")),
            None => Ok(url),
        }
    }
}

fn read_rest(o: &mut Object<'_>, url: Option<Url>, patch: bool) -> WebhookFields {
    WebhookFields {
        url,
        secret: o.optional("secret", parsed(Secret::parse)),
        headers: headers(o, patch),
        timeout: o.given("timeout", true, |raw| timeout(raw).map(Some)),
        enabled: o.given("enabled", patch, boolean),
        max_in_flight: o.given("max_in_flight", true, |raw| whole_u32(1..=MAX_IN_FLIGHT)(raw).map(Some)),
        description: o.given("description", true, |raw| text_of(MAX_DESCRIPTION)(raw).map(Some)),
    }
}

/// Reads a webhook to register: its id if one is given, its url, the rest.
pub fn read_webhook(o: &mut Object<'_>, policy: &AddressPolicy) -> Option<(Option<WebhookId>, Url, WebhookFields)> {
    let url = o.required("url", target(policy));
    let id = o.optional("id", name(WebhookId::parse));
    let rest = read_rest(o, None, false);
    Some((id, url?, rest))
}

/// Reads all fields of a webhook but its id: its url, the rest.
pub fn read_webhook_put(o: &mut Object<'_>, policy: &AddressPolicy) -> Option<(Url, WebhookFields)> {
    let url = o.required("url", target(policy));
    let rest = read_rest(o, None, false);
    Some((url?, rest))
}

/// Reads a change of secrets: how long the old one signs on, and the new one if it is given.
pub fn read_rotation(o: &mut Object<'_>) -> (Duration, Option<Secret>) {
    let grace = o.optional("grace", duration_in(Duration::ZERO..=MAX_GRACE));
    (grace.unwrap_or(DEFAULT_GRACE), o.optional("secret", parsed(Secret::parse)))
}

/// Reads a PATCH of a webhook.
pub fn read_webhook_patch(o: &mut Object<'_>, policy: &AddressPolicy) -> WebhookFields {
    let url = o.optional("url", target(policy));
    read_rest(o, url, true)
}
