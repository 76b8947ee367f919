//! Who calls, and what they may do. A presented key is taken out of its header, compared, and never kept.
//!
//! [`NEEDS`] is the one table of which role may call which operation; what is not in it is for `admin` alone. Role and
//! queue are judged on the path, before a body is read or anything is looked up: a 403 says nothing of what is there.

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    RequestExt as _,
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request},
    http::{HeaderMap, header, request::Parts},
};

use super::problem::{Kind, Problem};
use crate::{
    domain::id::QueueName,
    keys::{
        Key, Keys,
        Role::{self, Consume, Produce, Read},
    },
};

/// Need no key.
pub(super) const OPEN: [&str; 5] = ["get_livez", "get_readyz", "get_version", "get_openapi", "get_docs"];

/// Which roles may call what; `admin` may call everything.
pub(super) const NEEDS: &[(&str, &[Role])] = &[
    ("create_task", &[Produce]),
    ("create_tasks", &[Produce]),
    ("put_task", &[Produce]),
    ("patch_task", &[Produce]),
    ("cancel_task", &[Produce]),
    ("run_task", &[Produce]),
    ("get_task", &[Produce, Consume, Read]),
    ("list_tasks", &[Produce, Consume, Read]),
    ("claim_tasks", &[Consume]),
    ("ack_task", &[Consume]),
    ("nack_task", &[Consume]),
    ("extend_task", &[Consume]),
    ("list_queues", &[Read]),
    ("get_queue", &[Read]),
    ("get_queue_stats", &[Read]),
    ("put_queue", &[]),
    ("patch_queue", &[]),
    ("delete_queue", &[]),
    ("pause_queue", &[]),
    ("resume_queue", &[]),
    ("purge_queue", &[]),
    ("replay_queue", &[]),
    ("list_webhooks", &[Read]),
    ("get_webhook", &[Read]),
    ("create_webhook", &[]),
    ("put_webhook", &[]),
    ("patch_webhook", &[]),
    ("delete_webhook", &[]),
    ("rotate_webhook_secret", &[]),
    ("test_webhook", &[]),
    ("get_metrics", &[Read]),
];

/// Answers with what the key reaches instead of refusing.
const SHOWS_ITS_OWN: &str = "list_queues";

/// Lets calls in.
#[derive(Clone)]
pub struct Auth(Option<Arc<Keys>>);

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Auth(keys)" } else { "Auth(open)" })
    }
}

impl Auth {
    /// Everybody may do everything.
    #[must_use]
    pub fn open() -> Self {
        Self(None)
    }

    /// Whoever presents one of these keys, as far as its roles and queues go.
    #[must_use]
    pub fn keys(keys: Keys) -> Self {
        Self(Some(Arc::new(keys)))
    }
}

fn admit<'a>(keys: &'a Keys, headers: &HeaderMap) -> Result<&'a Arc<Key>, Problem> {
    let refuse = |why| Problem::new(Kind::Unauthorized, why);
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, more) = (values.next(), values.next());
    if more.is_some() {
        return Err(refuse("there are two authorization headers"));
    }
    let key = value.and_then(|v| v.to_str().ok()).and_then(|v| {
        let (scheme, key) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim_matches(' '))
    });
    let key = key.ok_or_else(|| refuse("send the header authorization: Bearer <key>"))?;
    keys.verify(key).ok_or_else(|| refuse("the key is not known"))
}

/// Whether one of the key's roles is enough for the operation.
fn judge_role(key: &Key, operation: &str) -> Result<(), Problem> {
    let roles = NEEDS.iter().find(|(id, _)| *id == operation).map_or(&[][..], |(_, roles)| roles);
    if key.has(Role::Admin) || roles.iter().any(|role| key.has(*role)) {
        return Ok(());
    }
    let names: Vec<&str> = roles.iter().chain([&Role::Admin]).map(|role| role.as_str()).collect();
    Err(Problem::new(Kind::Forbidden, format!("this needs a key with the role {}", names.join(" or "))))
}

/// Whether the key reaches the queue of the path, or every queue where the path names none.
fn judge_queue(key: &Key, operation: &str, queue: Option<&str>) -> Result<(), Problem> {
    let refuse = |why| Err(Problem::new(Kind::Forbidden, why));
    match queue {
        Some(queue) if !key.reaches(queue) => refuse("the key is not for this queue"),
        None if operation != SHOWS_ITS_OWN && !key.reaches_all() => refuse("this needs a key for every queue (`*`)"),
        _ => Ok(()),
    }
}

async fn judge_call(key: &Key, operation: &str, request: &mut Request) -> Result<(), Problem> {
    judge_role(key, operation)?;
    if !request.extensions().get::<MatchedPath>().is_some_and(|path| path.as_str().contains("{queue}")) {
        return judge_queue(key, operation, None);
    }
    let params = request.extract_parts::<RawPathParams>().await;
    let params = params.map_err(|_| Problem::invalid("the path is not UTF-8 once its percent-encoding is undone"))?;
    // a path that names a queue but has none never fits
    let queue = params.iter().find(|(name, _)| *name == "queue").map_or("", |(_, queue)| queue);
    judge_queue(key, operation, Some(queue))
}

/// Stops calls without a key, or with one that does not allow them; and says whose a call is, which extractors find too.
pub(super) async fn judge(
    auth: &Auth,
    operation: &str,
    request: &mut Request,
) -> (Option<Caller>, Result<(), Problem>) {
    let Some(keys) = &auth.0 else { return (None, Ok(())) };
    let key = match admit(keys, request.headers()) {
        Ok(key) => key,
        Err(problem) => return (None, Err(problem)),
    };
    let (caller, judged) = (Caller(Arc::clone(key)), judge_call(key, operation, request).await);
    request.extensions_mut().insert(caller.clone());
    (Some(caller), judged)
}

/// Whose key a request came with: an extension of the request.
#[derive(Clone)]
pub(super) struct Caller(Arc<Key>);

impl Caller {
    /// The key's name, for logs.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

/// The queues that a call may see.
pub struct Reach(Option<Arc<Key>>);

impl Reach {
    /// Whether this one is among them.
    #[must_use]
    pub fn covers(&self, queue: &QueueName) -> bool {
        self.0.as_ref().is_none_or(|key| key.reaches(queue.as_str()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Reach {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Caller>().map(|caller| Arc::clone(&caller.0))))
    }
}
