//! The JSON form of a webhook in `hooks`, for people and Rust. With a key its secrets are sealed; what was written before
//! there was one stays readable.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{form::ms, record::RecordError, seal::Seal};
use crate::domain::{
    id::{QueueName, WebhookId},
    secret::Secret,
    time::UnixMs,
    webhook::Webhook,
};

#[derive(Serialize, Deserialize)]
struct WebhookForm {
    v: u8,
    url: String,
    enabled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_in_flight: Option<u32>,
    created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<(String, i64)>,
    /// With a key: `secret`, `previous` and `headers` as a [`SecretsForm`], sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    disabled_reason: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct SecretsForm {
    secret: String,
    previous: Option<(String, i64)>,
    headers: Vec<(String, String)>,
}

/// Whom secrets are sealed for.
fn owner(queue: &QueueName, id: &str) -> String {
    format!("{queue} {id}")
}

/// A webhook as `hooks` keeps it; `None` if it should be sealed and cannot.
#[must_use]
pub fn encode(queue: &QueueName, webhook: &Webhook, seal: &Seal) -> Option<String> {
    let previous = webhook.previous_secret.as_ref().map(|(s, until)| (s.to_text(), until.0));
    let secrets = SecretsForm { secret: webhook.secret.to_text(), previous, headers: webhook.headers.clone() };
    let (sealed, open) = if seal.has_key() {
        let secrets = serde_json::to_string(&secrets).ok()?;
        (Some(seal.seal(&owner(queue, webhook.id.as_str()), &secrets)?), None)
    } else {
        (None, Some(secrets))
    };
    let (secret, previous, headers) =
        open.map_or((None, None, Vec::new()), |s| (Some(s.secret), s.previous, s.headers));
    let form = WebhookForm {
        v: super::record::VERSION,
        url: webhook.url.as_str().to_owned(),
        enabled: webhook.enabled,
        description: webhook.description.clone(),
        headers,
        timeout_ms: webhook.timeout.map(ms),
        max_in_flight: webhook.max_in_flight,
        created_at: webhook.created_at.0,
        secret,
        previous,
        sealed,
        disabled_reason: webhook.disabled_reason.clone(),
    };
    serde_json::to_string(&form).ok()
}

/// Reads a webhook back.
///
/// # Errors
/// Damaged, from a newer release, or sealed with another key.
pub fn decode(queue: &QueueName, id: &str, json: &str, seal: &Seal) -> Result<Webhook, RecordError> {
    let damaged = |_| RecordError::Damaged("webhook");
    let form: WebhookForm = serde_json::from_str(json).map_err(damaged)?;
    if form.v != super::record::VERSION {
        return Err(RecordError::Version(form.v));
    }
    let secrets = match (form.sealed, form.secret) {
        (Some(sealed), _) => serde_json::from_str(&seal.open(&owner(queue, id), &sealed)?).map_err(damaged)?,
        (None, Some(secret)) => SecretsForm { secret, previous: form.previous, headers: form.headers },
        (None, None) => return Err(RecordError::Damaged("secret")),
    };
    let secret = |text: &str| Secret::parse(text).map_err(|_| RecordError::Damaged("secret"));
    Ok(Webhook {
        id: WebhookId::parse(id).map_err(|_| RecordError::Damaged("webhook id"))?,
        url: form.url.parse().map_err(|_| RecordError::Damaged("url"))?,
        enabled: form.enabled,
        description: form.description,
        headers: secrets.headers,
        timeout: form.timeout_ms.map(Duration::from_millis),
        max_in_flight: form.max_in_flight,
        created_at: UnixMs(form.created_at),
        secret: secret(&secrets.secret)?,
        previous_secret: secrets.previous.map(|(s, until)| secret(&s).map(|s| (s, UnixMs(until)))).transpose()?,
        disabled_reason: form.disabled_reason,
    })
}
