//! A webhook: where a queue's due tasks are POSTed.

use std::time::Duration;

use url::Url;

use super::{id::WebhookId, secret::Secret, time::UnixMs};

/// The longest that a secret signs on after a rotation.
pub const MAX_GRACE: Duration = Duration::from_secs(7 * 86_400);
/// How long a secret signs on after a rotation, unless the call says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(86_400);
/// Most webhooks of a queue.
pub const MAX_WEBHOOKS: usize = 100;
/// Longest `description`, in bytes.
pub const MAX_DESCRIPTION: usize = 1024;

/// A registered receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Unique in its queue.
    pub id: WebhookId,
    /// Where to POST.
    pub url: Url,
    /// Whether due tasks go there.
    pub enabled: bool,
    /// For people.
    pub description: Option<String>,
    /// Added to each delivery; values are secret.
    pub headers: Vec<(String, String)>,
    /// Instead of the queue's deadline of an attempt.
    pub timeout: Option<Duration>,
    /// Calls at once per service process; `None` = the service's own limit.
    pub max_in_flight: Option<u32>,
    /// When it was registered.
    pub created_at: UnixMs,
    /// Signs deliveries.
    pub secret: Secret,
    /// The one before, which signs too until this instant.
    pub previous_secret: Option<(Secret, UnixMs)>,
    /// Why the service disabled it: `gone` after a 410.
    pub disabled_reason: Option<String>,
}

/// How a webhook has done of late, over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookHealth {
    /// When a delivery last succeeded; at most a second behind.
    pub last_success_at: Option<UnixMs>,
    /// When one last failed.
    pub last_failure_at: Option<UnixMs>,
    /// Failures since the last success.
    pub consecutive_failures: u64,
}

impl Webhook {
    /// With another secret; the one before signs too for the time of grace. The same secret again (a call repeated)
    /// changes nothing about the one before.
    #[must_use]
    pub fn rotated(mut self, next: Secret, grace: Duration, now: UnixMs) -> Self {
        if next == self.secret {
            return self;
        }
        let before = std::mem::replace(&mut self.secret, next);
        self.previous_secret = (!grace.is_zero()).then(|| (before, now.plus(grace)));
        self
    }

    /// The secrets that sign at this instant, the newest first.
    #[must_use]
    pub fn signing_secrets(&self, now: UnixMs) -> Vec<Secret> {
        let previous = self.previous_secret.iter().filter(|(_, until)| now < *until).map(|(secret, _)| secret);
        std::iter::once(&self.secret).chain(previous).cloned().collect()
    }
}
