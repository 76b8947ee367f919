//! What handlers take: names from paths, strict queries, JSON bodies. Whatever does not fit is a [`Problem`].

use std::{borrow::Cow, future::poll_fn, task::Poll, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, HeaderName, header, request::Parts},
};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::{
    Shared,
    problem::{Fault, Kind, Problem},
};
use crate::domain::id::{NameError, QueueName, TaskId, WebhookId};

/// How long a body may take to arrive.
pub const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// What a body may have beyond the payload's limit, in bytes.
pub const BODY_SURPLUS: usize = 64 << 10;

/// `{queue}`.
pub struct QueuePath(pub QueueName);
/// `{queue}` and the `{id}` of a task.
pub struct TaskPath(pub QueueName, pub TaskId);
/// `{queue}` and the `{id}` of a webhook.
pub struct WebhookPath(pub QueueName, pub WebhookId);

struct Params(RawPathParams);

impl Params {
    async fn of<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        params.map(Self).map_err(|_| Problem::invalid("the path is not UTF-8 once its percent-encoding is undone"))
    }

    fn parse<T>(&self, name: &str, parse: impl Fn(&str) -> Result<T, NameError>) -> Result<T, Problem> {
        let text = self.0.iter().find(|(param, _)| *param == name).map_or("", |(_, text)| text);
        parse(text).map_err(|e| Problem::field(name, e.to_string()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for QueuePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Params::of(parts, state).await?;
        Ok(Self(params.parse("queue", QueueName::parse)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Params::of(parts, state).await?;
        Ok(Self(params.parse("queue", QueueName::parse)?, params.parse("id", TaskId::parse)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for WebhookPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = Params::of(parts, state).await?;
        Ok(Self(params.parse("queue", QueueName::parse)?, params.parse("id", WebhookId::parse)?))
    }
}

/// A query of which every parameter is known and there once.
pub struct Query(Vec<(String, String)>);

/// Most items of a page, and how many it has if nothing else is asked for.
const LIMIT: std::ops::RangeInclusive<usize> = 1..=1000;
const LIMIT_DEFAULT: usize = 100;

impl Query {
    fn parse(parts: &Parts, known: &[&str]) -> Result<Self, Problem> {
        let mut found = Vec::<(String, String)>::new();
        let mut faults = Vec::new();
        for (name, value) in url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            let shown = || name.chars().take(128).collect::<String>();
            if !known.contains(&&*name) {
                faults.push(Fault::new(shown(), "is not a query parameter here"));
            } else if found.iter().any(|(other, _)| *other == name) {
                faults.push(Fault::new(shown(), "is given twice"));
            } else {
                found.push((name.into_owned(), value.into_owned()));
            }
        }
        if faults.is_empty() { Ok(Self(found)) } else { Err(Problem::fields(faults)) }
    }

    /// A parameter's text.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// `limit`.
    pub fn limit(&self) -> Result<usize, Problem> {
        let Some(text) = self.get("limit") else { return Ok(LIMIT_DEFAULT) };
        let number = Some(text).filter(|t| t.bytes().all(|b| b.is_ascii_digit())).and_then(|t| t.parse().ok());
        number.filter(|n| LIMIT.contains(n)).ok_or_else(|| Problem::field("limit", "must be 1 to 1000"))
    }

    /// `true` or `false`; left out is `false`.
    pub fn flag(&self, name: &'static str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::field(name, "must be true or false")),
        }
    }
}

macro_rules! query {
    ($(#[$doc:meta])* $name:ident, [$($param:literal),*]) => {
        $(#[$doc])*
        pub struct $name(#[allow(dead_code)] pub Query);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                Query::parse(parts, &[$($param),*]).map(Self)
            }
        }
    };
}

query!(
    /// No query at all.
    NoQuery, []
);
query!(
    /// `force`.
    ForceQuery, ["force"]
);
query!(
    /// `limit` and `cursor`.
    ListQuery, ["limit", "cursor"]
);
query!(
    /// What a list of tasks knows.
    TasksQuery, ["state", "limit", "cursor", "full"]
);

/// A body that should be one JSON text, within the limit.
pub struct JsonBody(Bytes);

impl JsonBody {
    /// The text.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn text(&self) -> Result<&str, Problem> {
        std::str::from_utf8(&self.0)
            .map_err(|error| Problem::invalid(format!("the body is not UTF-8, see byte {}", error.valid_up_to())))
    }

    /// Part of the text, as bytes that share the body's memory.
    #[must_use]
    pub fn slice(&self, part: &str) -> Bytes {
        self.0.slice_ref(part.as_bytes())
    }
}

/// The same, but where every field is optional the body may be left out.
pub struct OptionalJson(pub JsonBody);

impl FromRequest<Shared> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, Problem> {
        check_encoding(request.headers())?;
        check_type(request.headers())?;
        read(request.into_body(), body_max(api)).await.map(Self)
    }
}

/// The same for a batch, which may be larger.
pub struct BatchBody(pub JsonBody);

impl FromRequest<Shared> for BatchBody {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, Problem> {
        check_encoding(request.headers())?;
        check_type(request.headers())?;
        read(request.into_body(), api.limits.max_batch).await.map(|bytes| Self(JsonBody(bytes)))
    }
}

impl FromRequest<Shared> for OptionalJson {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Shared) -> Result<Self, Problem> {
        const NOTHING: Bytes = Bytes::from_static(b"{}");
        check_encoding(request.headers())?;
        if request.headers().contains_key(header::CONTENT_TYPE) {
            check_type(request.headers())?;
        }
        let typed = request.headers().contains_key(header::CONTENT_TYPE);
        let body = read(request.into_body(), body_max(api)).await?;
        if !body.is_empty() && !typed {
            return Err(not_json());
        }
        Ok(Self(JsonBody(if body.is_empty() { NOTHING } else { body })))
    }
}

fn not_json() -> Problem {
    Problem::new(Kind::UnsupportedMediaType, "a body needs content-type: application/json, in UTF-8").closing()
}

/// `application/json`, once; of its parameters only `charset` matters.
fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(not_json()) };
    if value == "application/json" {
        return Ok(()); // as nearly all say it
    }
    let value = value.to_str().map_err(|_| not_json())?;
    let mut parts = value.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|t| t.eq_ignore_ascii_case("application/json"));
    let is_utf8 = parts.all(|parameter| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    if is_json && is_utf8 { Ok(()) } else { Err(not_json()) }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    let plain =
        headers.get_all(header::CONTENT_ENCODING).iter().all(|v| v.as_bytes().eq_ignore_ascii_case(b"identity"));
    if plain {
        return Ok(());
    }
    Err(Problem::new(Kind::UnsupportedMediaType, "a compressed body is not taken").closing())
}

fn body_max(api: &Shared) -> usize {
    api.limits.max_payload.saturating_add(BODY_SURPLUS)
}

async fn read(body: Body, max: usize) -> Result<Bytes, Problem> {
    let too_large =
        || Problem::new(Kind::TooLarge, format!("the body has more than {max} bytes, the most allowed")).closing();
    if hyper::body::Body::size_hint(&body).lower() > max as u64 {
        return Err(too_large());
    }
    let mut collected = std::pin::pin!(Limited::new(body, max).collect());
    // At the first look the connection learns that the body is wanted, and mostly it is there at the second. Only what takes
    // longer has a timer.
    let mut asked = false;
    let early = poll_fn(|cx| match collected.as_mut().poll(cx) {
        Poll::Pending if !asked => {
            asked = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        found => Poll::Ready(found),
    });
    let whole = match early.await {
        Poll::Ready(whole) => Ok(whole),
        Poll::Pending => tokio::time::timeout(BODY_DEADLINE, collected).await,
    };
    match whole {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::invalid("the body ended before it was whole").closing()),
        Err(_) => {
            let detail = format!("the body did not arrive within {} s", BODY_DEADLINE.as_secs());
            Err(Problem::new(Kind::RequestTimeout, detail).closing())
        }
    }
}

/// `if-none-match: *`: only what is not there yet.
pub struct OnlyNew(pub bool);

impl<S: Send + Sync> FromRequestParts<S> for OnlyNew {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(header::IF_NONE_MATCH).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(Self(false)),
            (Some(value), None) if value.as_bytes() == b"*" => Ok(Self(true)),
            _ => Err(Problem::field("if-none-match", "must be * and there once")),
        }
    }
}

/// `traceparent` of the request, if it has the form that W3C gives it.
pub struct Trace(pub Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for Trace {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(traceparent(&parts.headers)))
    }
}

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The header's text, if it has the form that W3C gives it and is there once.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let text = value.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags] = parts.as_slice() else { return None };
    let hex = |part: &str, length| part.len() == length && part.bytes().all(|b| b"0123456789abcdef".contains(&b));
    let set = |part: &str| part.bytes().any(|b| b != b'0');
    let fits = hex(version, 2) && *version != "ff" && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    (fits && set(trace) && set(parent)).then(|| text.to_owned())
}

/// An opaque place in a list: the parts it is made of, or `None` for a text that no list gave.
#[must_use]
pub fn open_cursor(text: &str) -> Option<Vec<String>> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    if text.len() > 1024 {
        return None;
    }
    let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    Some(plain.split('\n').map(str::to_owned).collect())
}

/// The cursor for these parts.
#[must_use]
pub fn cursor(parts: &[Cow<'_, str>]) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    URL_SAFE_NO_PAD.encode(parts.join("\n"))
}
