//! A task, its states, and the table of its transitions.

use std::time::Duration;

use super::{
    id::{QueueName, TaskId, Uid},
    payload::Payload,
    retry::{Retry, RetryPatch},
    round::Progress,
    time::UnixMs,
};

/// Attempts that are kept with a task.
pub const ATTEMPTS_KEPT: usize = 20;

/// Where a task stands: the set that holds its id. There is no state field that could disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Waiting for its time, or due and not yet taken; also between attempts.
    Scheduled,
    /// An attempt is under way.
    Active,
    /// Delivered.
    Completed,
    /// Given up.
    Dead,
    /// Taken back by a client.
    Cancelled,
    /// Its `expires_at` came first.
    Expired,
}

use TaskState::{Active, Cancelled, Completed, Dead, Expired, Scheduled};

impl TaskState {
    /// All of them.
    pub const ALL: [Self; 6] = [Scheduled, Active, Completed, Dead, Cancelled, Expired];

    /// The word that the API, the scripts and the metrics use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheduled => "scheduled",
            Active => "active",
            Completed => "completed",
            Dead => "dead",
            Cancelled => "cancelled",
            Expired => "expired",
        }
    }

    /// The state that a word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == word)
    }

    /// Whether nothing happens any more by itself.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        !matches!(self, Scheduled | Active)
    }
}

/// The machine as data: from, the script that moves it, to. `None` is "no such task". A test compares it with the
/// files in `src/store/lua/`.
pub const TRANSITIONS: &[(Option<TaskState>, &str, Option<TaskState>)] = &[
    (None, "enqueue", Some(Scheduled)),
    (Some(Cancelled), "enqueue", Some(Scheduled)),
    (Some(Expired), "enqueue", Some(Scheduled)),
    (Some(Scheduled), "visit", Some(Active)),
    (Some(Scheduled), "visit", Some(Expired)),
    (Some(Active), "visit", Some(Scheduled)),
    (Some(Active), "visit", Some(Cancelled)),
    (Some(Completed), "visit", None),
    (Some(Dead), "visit", None),
    (Some(Cancelled), "visit", None),
    (Some(Expired), "visit", None),
    (Some(Active), "settle", Some(Completed)),
    (Some(Scheduled), "settle", Some(Completed)),
    (Some(Active), "settle", Some(Scheduled)),
    (Some(Active), "settle", Some(Dead)),
    (Some(Active), "settle", Some(Expired)),
    (Some(Active), "settle", Some(Cancelled)),
    (Some(Active), "renew", Some(Active)),
    (Some(Scheduled), "cancel", Some(Cancelled)),
    (Some(Dead), "cancel", Some(Cancelled)),
    (Some(Active), "cancel", Some(Active)),
    (None, "replace", Some(Scheduled)),
    (Some(Scheduled), "replace", Some(Scheduled)),
    (Some(Active), "replace", Some(Scheduled)),
    (Some(Completed), "replace", Some(Scheduled)),
    (Some(Dead), "replace", Some(Scheduled)),
    (Some(Cancelled), "replace", Some(Scheduled)),
    (Some(Expired), "replace", Some(Scheduled)),
    (Some(Scheduled), "edit", Some(Scheduled)),
    (Some(Scheduled), "revive", Some(Scheduled)),
    (Some(Dead), "revive", Some(Scheduled)),
    (Some(Cancelled), "revive", Some(Scheduled)),
    (Some(Expired), "revive", Some(Scheduled)),
    (Some(Scheduled), "purge", None),
    (Some(Completed), "purge", None),
    (Some(Dead), "purge", None),
    (Some(Cancelled), "purge", None),
    (Some(Expired), "purge", None),
    (Some(Scheduled), "drop_queue", None),
    (Some(Active), "drop_queue", None),
    (Some(Completed), "drop_queue", None),
    (Some(Dead), "drop_queue", None),
    (Some(Cancelled), "drop_queue", None),
    (Some(Expired), "drop_queue", None),
    (None, "audit", Some(Dead)),
];

/// Why a task is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// Its attempts are used up.
    MaxAttempts,
    /// A receiver said `duepost-retry: false`.
    Refused,
    /// Its webhook answered 410.
    Gone,
    /// A pull consumer said never again.
    Nack,
    /// Its workers vanished too often, or its record was damaged.
    Lost,
}

impl DeadReason {
    /// The word that the API uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Nack => "nack",
            Self::Lost => "lost",
        }
    }

    /// The reason that a word stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::MaxAttempts, Self::Refused, Self::Gone, Self::Nack, Self::Lost].into_iter().find(|r| r.as_str() == word)
    }
}

/// When a task wants to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// This long after it was accepted; zero means now.
    After(Duration),
    /// At this instant; a past one means now.
    At(UnixMs),
}

/// What a task wants beside its time and payload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskOptions {
    /// Over the queue's.
    pub retry: Option<RetryPatch>,
    /// Over the webhook's and the queue's.
    pub timeout: Option<Duration>,
    /// Added to the delivery; over the webhook's.
    pub headers: Vec<(String, String)>,
    /// `traceparent` of the enqueuing request, passed on with the delivery.
    pub traceparent: Option<String>,
}

impl TaskOptions {
    /// What holds for a task with these options: its own wishes over the queue's.
    #[must_use]
    pub fn retry_over(&self, queue: &Retry) -> Retry {
        self.retry.as_ref().map_or_else(|| queue.clone(), |own| own.over(queue))
    }
}

/// A task as a client wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// Where it goes.
    pub queue: QueueName,
    /// The client's own id, if it chose one.
    pub id: Option<TaskId>,
    /// Names this content; it is also the id if the client chose none.
    pub uid: Uid,
    /// When it is due.
    pub when: When,
    /// When it is no longer wanted.
    pub expires: Option<When>,
    /// Its own options.
    pub options: TaskOptions,
    /// What is delivered.
    pub payload: Payload,
}

/// What to change about a scheduled task; `None` leaves a part as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit {
    /// Another time.
    pub when: Option<When>,
    /// Other content.
    pub payload: Option<Payload>,
    /// Another policy, or none of its own.
    pub retry: Option<Option<RetryPatch>>,
    /// Another deadline of an attempt, or none of its own.
    pub timeout: Option<Option<Duration>>,
    /// Other headers, whole.
    pub headers: Option<Vec<(String, String)>>,
    /// Another end, or none.
    pub expires: Option<Option<When>>,
    /// Names the content if it changes.
    pub uid: Uid,
}

impl Edit {
    /// Whether receivers get something else than before: then the uid changes.
    #[must_use]
    pub fn is_new_content(&self) -> bool {
        self.payload.is_some() || self.headers.is_some()
    }

    /// Whether only the time changes, which needs no look at the record.
    #[must_use]
    pub fn is_move(&self) -> bool {
        !self.is_new_content() && self.retry.is_none() && self.timeout.is_none() && self.expires.is_none()
    }
}

/// A task as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Unique in its queue.
    pub id: TaskId,
    /// Names its content.
    pub uid: Uid,
    /// Its queue.
    pub queue: QueueName,
    /// Where it stands.
    pub state: TaskState,
    /// When it was accepted.
    pub created_at: UnixMs,
    /// The time asked for.
    pub run_at: UnixMs,
    /// The set's score: next attempt, lease end, or the instant of its end.
    pub score: UnixMs,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
    /// Cancelled while an attempt was under way.
    pub cancelling: bool,
    /// Its own options.
    pub options: TaskOptions,
    /// Attempts whose worker vanished (pushed) or whose lease ran out (pulled).
    pub lost: u32,
    /// Webhooks that have it.
    pub delivered_to: Vec<String>,
    /// What its attempts brought.
    pub progress: Progress,
    /// What is delivered; `None` where it was not asked for.
    pub payload: Option<Payload>,
}

impl Task {
    /// The earliest instant of the next attempt: `None` while one is under way and after the end.
    #[must_use]
    pub fn next_attempt_at(&self) -> Option<UnixMs> {
        (self.state == Scheduled).then_some(self.score)
    }

    /// When it ended.
    #[must_use]
    pub fn ended_at(&self) -> Option<UnixMs> {
        self.state.is_ended().then_some(self.score)
    }

    /// Attempts begun: of several webhooks the highest.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        let under_way = u32::from(self.state == Active);
        self.progress.most_begun().saturating_add(self.lost).saturating_add(under_way)
    }
}
