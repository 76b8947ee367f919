//! One webhook call and what came of it.

use std::time::Duration;

use super::time::UnixMs;

/// What came of an attempt; the words are those of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A 2xx answer, or an ack.
    Delivered,
    /// Any other answer.
    Rejected,
    /// No answer's head within the attempt's deadline.
    Timeout,
    /// DNS, refused, reset, TLS.
    Unreachable,
    /// The address is not allowed as a target.
    Blocked,
    /// The worker vanished, or a pull lease ran out.
    Lost,
    /// A pull consumer said no.
    Nacked,
}

impl Outcome {
    /// The word that API answers, metrics and records use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Rejected => "rejected",
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Blocked => "blocked",
            Self::Lost => "lost",
            Self::Nacked => "nacked",
        }
    }

    /// The outcome that a word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Delivered, Self::Rejected, Self::Timeout, Self::Unreachable, Self::Blocked, Self::Lost, Self::Nacked]
            .into_iter()
            .find(|o| o.as_str() == word)
    }
}

/// What the receiver's answer asks of us beyond its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Nothing.
    None,
    /// 429 or 503 with a usable `retry-after`: not before this long after the answer. Capped at one hour.
    RetryAfter(Duration),
    /// `duepost-retry: false`: never again.
    Refused,
    /// 410: the webhook is no more.
    Gone,
}

/// What one call of a webhook brought back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The class of the result.
    pub outcome: Outcome,
    /// The HTTP status, if an answer's head came.
    pub status: Option<u16>,
    /// Why it was not delivered, in one line; without addresses that would tell an attacker about the network.
    pub error: Option<String>,
    /// The first [`RESPONSE_KEPT`] bytes of the answer's body as text.
    pub response: Option<String>,
    /// What the answer asks for.
    pub advice: Advice,
    /// From connect to the end of the answer's head (or to the failure).
    pub duration: Duration,
}

/// Bytes of an answer's body that are kept with the attempt.
pub const RESPONSE_KEPT: usize = 1024;

/// An attempt as it is kept with the task and shown by the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Counts from 1 for its webhook.
    pub number: u32,
    /// The webhook called; `None` for a pulled task.
    pub webhook: Option<String>,
    /// When it began.
    pub started_at: UnixMs,
    /// Start minus the due instant of this attempt.
    pub lateness_ms: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What came of it.
    pub outcome: Outcome,
    /// HTTP status, if any.
    pub status: Option<u16>,
    /// Why it failed.
    pub error: Option<String>,
    /// First KiB of the answer.
    pub response: Option<String>,
}
