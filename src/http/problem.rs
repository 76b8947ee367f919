//! Every error as RFC 9457: one table of types, and what becomes of trouble in the store.
//!
//! A [`Problem`] travels as an extension of its response; `request` writes the body, because it knows the request's id.

use std::sync::Arc;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::wire::TaskOut;
use crate::{
    domain::{
        id::{QueueName, TaskId, WebhookId},
        task::TaskState,
    },
    store::{Fate, StoreError},
};

/// The content type of every error.
pub const CONTENT_TYPE: &str = "application/problem+json";
/// `retry-after` of every 503, in seconds.
const RETRY_AFTER: &str = "1";
/// So many bad fields are named at most.
const FAULTS_MAX: usize = 20;

macro_rules! kinds {
    ($($kind:ident $status:literal $slug:literal $title:literal;)*) => {
        /// The types of problems; the names are those of the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, dead_code)] // the titles below say it; some are for calls to come
        pub enum Kind { $($kind),* }

        impl Kind {
            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$kind => $status),* }
            }

            /// The last part of `type`.
            #[must_use]
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$kind => $slug),* }
            }

            const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title),* }
            }
        }
    };
}

kinds! {
    InvalidRequest 400 "invalid-request" "The request is not valid";
    Unauthorized 401 "unauthorized" "A valid API key is needed";
    Forbidden 403 "forbidden" "The API key does not allow this";
    NotFound 404 "not-found" "There is no such route";
    QueueNotFound 404 "queue-not-found" "There is no such queue";
    TaskNotFound 404 "task-not-found" "There is no such task";
    WebhookNotFound 404 "webhook-not-found" "There is no such webhook";
    MethodNotAllowed 405 "method-not-allowed" "The route does not know this method";
    RequestTimeout 408 "request-timeout" "The request took too long to arrive";
    TaskExists 409 "task-exists" "The id is taken";
    TaskActive 409 "task-active" "An attempt is under way";
    TaskFinished 409 "task-finished" "The task has ended";
    BatchRefused 409 "batch-refused" "Not every task can be scheduled, so none was";
    QueueNotEmpty 409 "queue-not-empty" "The queue has tasks";
    WebhookExists 409 "webhook-exists" "The webhook is registered already";
    PreconditionFailed 412 "precondition-failed" "What the request demands does not hold";
    LeaseLost 409 "lease-lost" "The claim is no longer the task's last one";
    TooLarge 413 "too-large" "The request is too large";
    UnsupportedMediaType 415 "unsupported-media-type" "The body must be plain JSON";
    QueueFull 429 "queue-full" "The queue has as many tasks as it may hold";
    Internal 500 "internal" "A fault of the service";
    Unreadable 500 "unreadable" "What is kept has a form that this release does not know";
    Unavailable 503 "unavailable" "Redis is out of reach";
    StorageFull 503 "storage-full" "Redis has no memory left";
    Overloaded 503 "overloaded" "Too many calls at once";
    OutcomeUnknown 503 "outcome-unknown" "It is not known whether this was done";
}

/// One bad field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = FieldError)]
pub struct Fault {
    /// Its path, as `retry.max_attempts`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

impl Fault {
    /// A bad field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

#[derive(Debug)]
struct Parts {
    kind: Kind,
    detail: String,
    errors: Vec<Fault>,
    state: Option<TaskState>,
    task: Option<TaskOut>,
    task_id: Option<TaskId>,
    task_ids: Vec<TaskId>,
    location: Option<String>,
    cause: Option<StoreError>,
    closes: bool,
}

/// An error on its way to the client.
#[derive(Debug, Clone)]
pub struct Problem(Arc<Parts>);

/// The body of every error.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(super) struct ProblemOut<'a> {
    /// `/problems/<slug>`; stable.
    r#type: String,
    /// What the type means.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What happened here.
    detail: &'a str,
    /// The same as the header `x-request-id`.
    request_id: &'a str,
    /// The bad fields of an `invalid-request`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [Fault],
    /// The state of the task that a 409 or `unreadable` is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// The task that has the id, as in a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a TaskOut>,
    /// The id to repeat an enqueue with whose outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    task_id: Option<&'a str>,
    /// The ids to repeat an atomic batch with whose outcome is unknown, in the order of its tasks.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<String>)]
    task_ids: &'a [&'a str],
}

impl Problem {
    /// A problem of this kind.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self(Arc::new(Parts {
            kind,
            detail: detail.into(),
            errors: Vec::new(),
            state: None,
            task: None,
            task_id: None,
            task_ids: Vec::new(),
            location: None,
            cause: None,
            closes: false,
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        if let Some(parts) = Arc::get_mut(&mut self.0) {
            change(parts); // always: a problem is shared only once it is on its way
        }
        self
    }

    /// 400 about the request as a whole.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }

    /// 400 about fields.
    pub fn fields(mut errors: Vec<Fault>) -> Self {
        errors.truncate(FAULTS_MAX);
        let detail = match errors.as_slice() {
            [] => "the request is not valid".to_owned(),
            [only] => format!("{}: {}", only.field, only.message),
            [first, rest @ ..] => format!("{}: {} (and {} more)", first.field, first.message, rest.len()),
        };
        Self::invalid(detail).with(|p| p.errors = errors)
    }

    /// 400 about one field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::fields(vec![Fault::new(field, message)])
    }

    /// 404 about a queue.
    #[must_use]
    pub fn queue_not_found(queue: &QueueName) -> Self {
        Self::new(Kind::QueueNotFound, format!("there is no queue {queue}"))
    }

    /// 404 about a task.
    #[must_use]
    pub fn task_not_found(id: &TaskId) -> Self {
        Self::new(Kind::TaskNotFound, format!("there is no task {id}"))
    }

    /// 404 about a webhook.
    #[must_use]
    pub fn webhook_not_found(id: &WebhookId) -> Self {
        Self::new(Kind::WebhookNotFound, format!("there is no webhook {id}"))
    }

    /// 409: the id is taken.
    #[must_use]
    pub fn task_exists(task: TaskOut, state: TaskState) -> Self {
        let detail = match state {
            TaskState::Dead => "a dead task has this id: cancel it first",
            _ => "another task has this id",
        };
        Self::new(Kind::TaskExists, detail).with(|p| (p.state, p.task) = (Some(state), Some(task)))
    }

    /// 409: an attempt is under way.
    #[must_use]
    pub fn task_active(id: &TaskId) -> Self {
        Self::new(Kind::TaskActive, format!("an attempt of task {id} is still under way"))
            .with(|p| p.state = Some(TaskState::Active))
    }

    /// 409: it has ended.
    #[must_use]
    pub fn task_finished(id: &TaskId, state: TaskState) -> Self {
        Self::new(Kind::TaskFinished, format!("task {id} is {}", state.as_str())).with(|p| p.state = Some(state))
    }

    /// 500: it was cancelled as far as it could be, and cannot be shown.
    #[must_use]
    pub fn cancelled_unseen(id: &TaskId, state: TaskState, why: StoreError) -> Self {
        let done = if state == TaskState::Active { "no further attempt" } else { "no attempt" };
        let detail = format!("{done} of task {id} will start, but it cannot be shown: {why}");
        Self::new(Kind::Unreadable, detail).with(|p| (p.state, p.cause) = (Some(state), Some(why)))
    }

    /// 409: none of a batch was scheduled, because of these items.
    #[must_use]
    pub fn batch_refused(mut errors: Vec<Fault>) -> Self {
        let count = errors.len();
        errors.truncate(FAULTS_MAX);
        Self::new(Kind::BatchRefused, format!("nothing was scheduled, for {count} faults")).with(|p| p.errors = errors)
    }

    /// 429: the queue has its `max_size`.
    #[must_use]
    pub fn queue_full(queue: &QueueName) -> Self {
        Self::new(Kind::QueueFull, format!("queue {queue} has its max_size"))
    }

    /// 409: what a consumer says about a claim does not count any more.
    #[must_use]
    pub fn lease_lost(id: &TaskId, state: TaskState) -> Self {
        let detail = format!("this claim of task {id} is over; the task is {}", state.as_str());
        Self::new(Kind::LeaseLost, detail).with(|p| p.state = Some(state))
    }

    /// 409: the queue has this webhook.
    #[must_use]
    pub fn webhook_exists(detail: impl Into<String>, location: String) -> Self {
        Self::new(Kind::WebhookExists, detail).with(|p| p.location = Some(location))
    }

    /// The connection is of no further use: what is left of the body would be read as the next request.
    #[must_use]
    pub fn closing(self) -> Self {
        self.with(|p| p.closes = true)
    }

    /// Trouble with an enqueue; where it may have been taken, the answer names the id to repeat with.
    #[must_use]
    pub fn of_enqueue(error: StoreError, id: TaskId) -> Self {
        let unknown = error.fate() == Fate::Unknown;
        Self::from(error).with(|p| p.task_id = unknown.then_some(id))
    }

    /// Trouble with a batch of all or none; where it may have been taken, the answer names the ids to repeat with.
    #[must_use]
    pub fn of_batch(error: StoreError, ids: Vec<TaskId>) -> Self {
        let unknown = error.fate() == Fate::Unknown;
        Self::from(error).with(|p| p.task_ids = if unknown { ids } else { Vec::new() })
    }

    /// Trouble with a call that only reads: whatever became of it, nothing was done.
    #[must_use]
    pub fn of_read(error: StoreError) -> Self {
        match error.fate() {
            Fate::Unknown => {
                Self::new(Kind::Unavailable, "the connection to Redis broke").with(|p| p.cause = Some(error))
            }
            _ => error.into(),
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.kind.status()
    }

    /// Its type and what happened, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        format!("{}: {}", self.0.kind.slug(), self.0.detail)
    }

    /// The faults as those of a part of a bigger request; what is about the part as a whole names the part.
    #[must_use]
    pub fn faults_within(&self, part: &str) -> Vec<Fault> {
        if self.0.errors.is_empty() {
            return vec![Fault::new(part, self.0.detail.clone())];
        }
        let within = |fault: &Fault| Fault::new(format!("{part}.{}", fault.field), fault.message.clone());
        self.0.errors.iter().map(within).collect()
    }

    /// What it came from, for the log.
    #[must_use]
    pub fn cause(&self) -> Option<&StoreError> {
        self.0.cause.as_ref()
    }

    /// The body, once the request's id is known.
    #[must_use]
    pub fn body(&self, request_id: &str) -> Vec<u8> {
        let parts = &*self.0;
        let ids: Vec<&str> = parts.task_ids.iter().map(TaskId::as_str).collect();
        let out = ProblemOut {
            r#type: format!("/problems/{}", parts.kind.slug()),
            title: parts.kind.title(),
            status: parts.kind.status(),
            detail: &parts.detail,
            request_id,
            errors: &parts.errors,
            state: parts.state.map(TaskState::as_str),
            task: parts.task.as_ref(),
            task_id: parts.task_id.as_ref().map(TaskId::as_str),
            task_ids: &ids,
        };
        serde_json::to_vec(&out).unwrap_or_default()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let (kind, detail) = match error.fate() {
            Fate::NotDone if matches!(error, StoreError::Stopping) => {
                (Kind::Unavailable, "the service is stopping; nothing was done")
            }
            Fate::NotDone => (Kind::Unavailable, "Redis does not answer; nothing was done"),
            Fate::NotReady if matches!(error, StoreError::Durability(_)) => {
                (Kind::Unavailable, "Redis does not give the durability that is set; nothing was done")
            }
            Fate::NotReady => (Kind::Unavailable, "Redis refuses the service; nothing was done"),
            Fate::Full => (Kind::StorageFull, "Redis has no memory left; nothing was done"),
            Fate::Unknown if matches!(error, StoreError::NotCovered { .. }) => (
                Kind::OutcomeUnknown,
                "too few replicas have it in time, so it may be lost; repeating the call is safe",
            ),
            Fate::Unknown => (Kind::OutcomeUnknown, "the connection to Redis broke; repeating the call is safe"),
            Fate::Bug if matches!(error, StoreError::Record(_)) => {
                let why = format!("{error}: written by another release, or damaged");
                return Self::new(Kind::Unreadable, why).with(|p| p.cause = Some(error));
            }
            Fate::Bug => {
                (Kind::Internal, "the service met a fault of its own; its log says more under this request_id")
            }
        };
        Self::new(kind, detail).with(|p| p.cause = Some(error))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = StatusCode::from_u16(self.0.kind.status()).unwrap_or_default().into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if self.0.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.0.kind.status() == 503 {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        if self.0.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(location) = self.0.location.as_deref().and_then(|l| HeaderValue::from_str(l).ok()) {
            headers.insert(header::LOCATION, location);
        }
        response.extensions_mut().insert(self);
        response
    }
}
