//! What surrounds every request: its id, its line in the log, its place in the metrics, and the body of its problem.

use std::{
    any::Any,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use tokio::{sync::SemaphorePermit, time::Instant};
use tower::{Layer, Service};
use uuid::Uuid;

use super::{
    Shared,
    auth::{self, Caller},
    durability,
    extract::traceparent,
    openapi,
    problem::{Kind, Problem},
};
use crate::{
    store::Fate,
    telemetry::{chain, traces::RequestSpan},
};

/// Names a request in answers and logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The one operation whose answer has problems within it, and so the request's id.
const TELLS_ID: &str = "create_tasks";

/// The id of the request, for handlers that write problems into their answers.
#[derive(Debug, Clone)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// Whose lines the request log is, whatever module writes them.
const LOG_TARGET: &str = "duepost::requests";
/// Characters of a path in the log.
const PATH_SHOWN: usize = 300;

/// What the log tells of a request: nothing of its query, its body, or its other headers.
struct Shown {
    path: String,
    trace: Option<String>,
}

impl Shown {
    /// Nothing is copied when nothing will be told.
    fn of(api: &Shared, request: &Request) -> Option<Self> {
        let told = api.request_log || tracing::enabled!(target: LOG_TARGET, tracing::Level::DEBUG);
        told.then(|| Self {
            path: request.uri().path().chars().take(PATH_SHOWN).collect(),
            // the trace without the parent's span
            trace: traceparent(request.headers()).and_then(|text| text.split('-').nth(1).map(str::to_owned)),
        })
    }
}

/// The client's own id, if it is one and there once.
fn own_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut values = headers.get_all(REQUEST_ID).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let fine = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let bytes = value.as_bytes();
    ((1..=128).contains(&bytes.len()) && bytes.iter().all(fine)).then(|| value.clone())
}

fn new_id(api: &Shared) -> HeaderValue {
    let (uid, mut text) = ((api.ids.uid)().0, Uuid::encode_buffer());
    let text: &str = uid.hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// Puts [`surround`] around all routes and the fallback. All of it in one layer: each one more would cost every request
/// a box and a clone of all that it surrounds.
#[derive(Clone)]
pub(super) struct Surround(pub Shared);

impl<S> Layer<S> for Surround {
    type Service = Surrounded<S>;

    fn layer(&self, within: S) -> Surrounded<S> {
        Surrounded { api: self.0.clone(), within }
    }
}

/// A route and what surrounds it.
#[derive(Clone)]
pub(super) struct Surrounded<S> {
    api: Shared,
    within: S,
}

impl<S, B> Service<Request> for Surrounded<S>
where
    S: Service<Request, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.within.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let next = self.within.clone();
        let ready = std::mem::replace(&mut self.within, next);
        Box::pin(surround(self.api.clone(), request, ready))
    }
}

/// The request is kept in one place from the first step to the last but one: each function more would copy it once more.
async fn surround<S, B>(api: Shared, mut request: Request, mut within: S) -> Result<Response, Infallible>
where
    S: Service<Request, Response = Response<B>, Error = Infallible>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let began = Instant::now();
    let id = own_id(request.headers());
    let id = id.unwrap_or_else(|| new_id(&api));
    let method = request.method().clone();
    let (operation, guarded) = operation(&method, request.extensions().get::<MatchedPath>());

    let span = api.traces.request(operation, request.uri().path(), || traceparent(request.headers()));
    // a request without a trace begins one: its task stores it, and so its deliveries find it
    if let Some(begun) = span.as_ref().and_then(RequestSpan::traceparent)
        && let Ok(begun) = HeaderValue::from_str(&begun)
    {
        request.headers_mut().insert("traceparent", begun);
    }
    let shown = Shown::of(&api, &request);

    if operation == TELLS_ID {
        request.extensions_mut().insert(RequestId(id.clone()));
    }
    let told = guarded && durability::is_told(request.method().as_str(), operation);
    let (caller, admitted) = if guarded { admit(&api, operation, &mut request).await } else { (None, Ok(None)) };
    let mut response = match admitted {
        Ok(_place) => match within.call(request).await {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        },
        Err(problem) => problem.into_response(),
    };
    if told && response.status().is_success() {
        durability::tell(&api, operation, &mut response);
    }

    let request_id = id.to_str().unwrap_or_default();
    let status = response.status().as_u16();
    api.metrics.http_request(operation, status);
    if let Some(span) = span {
        span.end(status);
    }
    if let Some(shown) = shown {
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        let key = caller.as_ref().map(Caller::name);
        let (path, trace) = (shown.path.as_str(), shown.trace.as_deref());
        if api.request_log {
            tracing::info!(target: LOG_TARGET, request_id, %method, path, operation, status, took_ms, key, trace, "answered");
        } else {
            tracing::debug!(target: LOG_TARGET, request_id, %method, path, operation, status, took_ms, key, trace, "answered");
        }
    }
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        tell(&problem, request_id, operation);
        *response.body_mut() =
            if method == Method::HEAD { Body::empty() } else { Body::from(problem.body(request_id)) };
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    response.headers_mut().insert(REQUEST_ID, id);
    Ok(response)
}

/// Whether a call that needs a key, where there are some, may go on: then its place among those under way. And whose it is.
async fn admit<'a>(
    api: &'a Shared,
    operation: &'static str,
    request: &mut Request,
) -> (Option<Caller>, Result<Option<SemaphorePermit<'a>>, Problem>) {
    let (caller, judged) = auth::judge(&api.auth, operation, request).await;
    // who has no key takes no place
    (caller, judged.and_then(|()| api.rooms.place(operation)))
}

/// What a client learns of a panic; the hook that logs panics has told the rest.
pub(super) fn panicked(_: Box<dyn Any + Send>) -> Response {
    Problem::new(Kind::Internal, "the service met a fault of its own; its log says more").into_response()
}

/// The one place that logs what went wrong below. Redis being away is told by those who keep its connections.
fn tell(problem: &Problem, request_id: &str, operation: &'static str) {
    let Some(cause) = problem.cause() else { return };
    let told = chain(cause);
    if cause.fate() == Fate::Bug {
        tracing::error!(request_id, operation, error = told, "a call failed by a fault of ours");
    } else {
        tracing::debug!(request_id, operation, error = told, "a call failed");
    }
}

/// The `operationId` of a request, or `none`; and whether it is one of those that need a key, as all of a path's are where
/// one is.
fn operation(method: &Method, path: Option<&MatchedPath>) -> (&'static str, bool) {
    let Some(path) = path else { return ("none", false) };
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let mut of_path = openapi::OPERATIONS.iter().filter(|(_, p, _)| *p == path.as_str()).peekable();
    let guarded = of_path.peek().is_some_and(|(.., id)| !auth::OPEN.contains(id));
    (of_path.find(|(m, ..)| *m == method).map_or("none", |(.., id)| id), guarded)
}
