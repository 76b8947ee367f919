//! The call itself.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response,
    body::{Body as _, Incoming},
    header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT},
};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::{
    DeliveryConfig, DeliveryError, Destination, Resolve, SystemResolver, answer,
    connection::{Connection, Outgoing, Pool, Trouble},
    destination::Parts,
    fault::explain,
    guard::{Dialer, Guard},
    signature::Signers,
    tls,
};
use crate::domain::{
    attempt::{Advice, Outcome, Report},
    headers::is_owned,
    time::{UnixMs, format_duration},
};

/// Bytes that are read of an answer's body.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The headers that tell of the task, as [`values`] writes them.
#[allow(clippy::declare_interior_mutable_const)] // as those of `http` are
const OWN: [HeaderName; 7] = [
    HeaderName::from_static("webhook-id"),
    HeaderName::from_static("webhook-timestamp"),
    HeaderName::from_static("webhook-signature"),
    HeaderName::from_static("duepost-queue"),
    HeaderName::from_static("duepost-task-id"),
    HeaderName::from_static("duepost-attempt"),
    HeaderName::from_static("duepost-run-at"),
];

/// One call of a webhook. It has no `Debug`: headers and the URL's query may hold secrets.
pub struct Call<'a> {
    /// The webhook's URL, as `domain::address::parse_target` gave it.
    pub to: Destination,
    /// The payload, byte for byte.
    pub body: Bytes,
    /// Headers of the webhook and the task, checked and merged; those that the service owns are left out.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who signs, the newest first.
    pub signers: Signers,
    /// The whole time that the call may take.
    pub timeout: Duration,
    /// The task's uid.
    pub webhook_id: Uuid,
    /// When the attempt began, on Redis's clock.
    pub started_at: UnixMs,
    /// Name of the task's queue.
    pub queue: &'a str,
    /// The task's id.
    pub task_id: &'a str,
    /// Counts from 1 for this webhook.
    pub attempt: u32,
    /// The time that the task was meant for.
    pub run_at: UnixMs,
    /// That of the request that enqueued the task.
    pub traceparent: Option<HeaderValue>,
}

/// Calls webhooks. Clones share one pool of connections.
#[derive(Clone)]
pub struct Delivery {
    dialer: Dialer,
    pool: Arc<Pool>,
    user_agent: HeaderValue,
}

impl Delivery {
    /// A client of these settings that resolves names as the system does.
    ///
    /// # Errors
    /// The file of further roots is no good.
    pub fn new(config: DeliveryConfig) -> Result<Self, DeliveryError> {
        Self::with_resolver(config, Arc::new(SystemResolver))
    }

    /// The same with another way to resolve names.
    ///
    /// # Errors
    /// As [`Delivery::new`].
    pub fn with_resolver(config: DeliveryConfig, resolver: Arc<dyn Resolve>) -> Result<Self, DeliveryError> {
        let tls = tls::client_config(config.extra_roots.as_deref())?;
        let dialer = Dialer::new(Guard::new(config.policy, resolver), tls);
        let user_agent = HeaderValue::try_from(config.user_agent).map_err(|_| DeliveryError::UserAgent)?;
        Ok(Self { dialer, pool: Arc::default(), user_agent })
    }

    /// Calls the webhook and says what came of it, within the call's timeout whatever the receiver does.
    pub async fn call(&self, call: Call<'_>) -> Report {
        let (begun, started_at, limit) = (Instant::now(), call.started_at, call.timeout);
        let deadline = begun + limit;
        let failed = |outcome, error| Report {
            outcome,
            status: None,
            error: Some(error),
            response: None,
            advice: Advice::None,
            duration: begun.elapsed(),
        };
        let Some((to, request)) = self.request(call) else {
            return failed(Outcome::Unreachable, "the request cannot be written as HTTP".to_owned());
        };
        let (mut connection, answer) = match timeout_at(deadline, self.send(&to, request, begun)).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(trouble)) => {
                let (outcome, text) = explain(&trouble);
                return failed(outcome, text);
            }
            Err(_) => return failed(Outcome::Timeout, format!("no answer within {}", format_duration(limit))),
        };
        let duration = begun.elapsed();
        let (head, body) = answer.into_parts();
        if answer::has_doubtful_length(&head.headers) {
            return failed(Outcome::Unreachable, "not a valid HTTP answer: two lengths of one body".to_owned());
        }
        let verdict = answer::judge(head.status, &head.headers, started_at.plus(duration));
        let (response, is_clean) = read(&mut connection, body, deadline).await;
        if is_clean {
            self.pool.put(&to.origin, connection);
        }
        Report {
            outcome: verdict.outcome,
            status: Some(head.status.as_u16()),
            error: verdict.error,
            response,
            advice: verdict.advice,
            duration,
        }
    }

    /// Sends the request, on a connection at rest if there is one, and waits for the head of the answer. It goes to another
    /// connection only if not a byte of it has left, so it is never on the wire twice.
    async fn send(
        &self,
        to: &Parts,
        request: Outgoing,
        begun: Instant,
    ) -> Result<(Connection, Response<Incoming>), Trouble> {
        let mut request = request;
        while let Some(mut connection) = self.pool.take(&to.origin, begun) {
            match connection.send(request).await {
                Ok(answer) => return Ok((connection, answer)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(Trouble::Http(error.into_error())),
                },
            }
        }
        // rare, and big: it must not make every call as big
        let mut connection = Box::pin(Connection::open(self.dialer.clone(), to.uri.clone())).await?;
        match connection.send(request).await {
            Ok(answer) => Ok((connection, answer)),
            Err(error) => Err(Trouble::Http(error.into_error())),
        }
    }

    /// The request as the receiver sees it, and where it goes; `None` if no HTTP message can carry it, which the domain's
    /// rules should have seen to.
    fn request(&self, call: Call<'_>) -> Option<(Arc<Parts>, Outgoing)> {
        let to = Arc::clone(call.to.parts()?);
        let mut headers = HeaderMap::with_capacity(12 + call.headers.len());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.user_agent.clone());
        let (text, ends) = values(&call);
        let (text, mut from) = (Bytes::from(text), 0);
        for (name, end) in OWN.into_iter().zip(ends) {
            headers.insert(name, HeaderValue::from_maybe_shared(text.slice(from..end)).ok()?);
            from = end;
        }
        if let Some(traceparent) = call.traceparent {
            headers.insert(const { HeaderName::from_static("traceparent") }, traceparent);
        }
        for (name, value) in call.headers {
            if !is_owned(name.as_str()) {
                headers.insert(name, value);
            }
        }
        headers.insert(HOST, to.host.clone());
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = to.target.clone();
        *request.headers_mut() = headers;
        Some((to, request))
    }
}

/// What the values of [`OWN`] take together, mostly.
const VALUES_BYTES: usize = 256;

/// The values of [`OWN`] one after the other, so that they share one piece of memory; and where each ends.
fn values(call: &Call<'_>) -> (String, [usize; 7]) {
    let mut text = String::with_capacity(VALUES_BYTES);
    let mut put = |write: &dyn Fn(&mut String)| {
        write(&mut text);
        text.len()
    };
    let mut id = Uuid::encode_buffer();
    let (id, timestamp) = (&*call.webhook_id.hyphenated().encode_lower(&mut id), call.started_at.0.div_euclid(1000));
    let ends = [
        put(&|text| text.push_str(id)),
        put(&|text| text.push_str(&timestamp.to_string())),
        put(&|text| call.signers.sign(id, timestamp, &call.body, text)),
        put(&|text| text.push_str(call.queue)),
        put(&|text| text.push_str(call.task_id)),
        put(&|text| text.push_str(&call.attempt.to_string())),
        put(&|text| text.push_str(&call.run_at.to_string())),
    ];
    (text, ends)
}

/// Reads what it may of the body and keeps the beginning; says whether that was all of it. Nothing that happens here
/// changes what the head said.
async fn read(connection: &mut Connection, mut body: Incoming, deadline: Instant) -> (Option<String>, bool) {
    if body.is_end_stream() {
        return (None, true);
    }
    let (mut kept, mut seen, mut is_clean) = (Vec::new(), 0, false);
    while seen <= BODY_BYTES_MAX {
        match timeout_at(deadline, connection.drive(body.frame())).await {
            Ok(Some(Ok(frame))) => {
                let Some(data) = frame.data_ref() else { continue };
                seen += data.len();
                let room = answer::EXCERPT_READ.saturating_sub(kept.len());
                kept.extend_from_slice(&data[..data.len().min(room)]);
            }
            Ok(None) => {
                is_clean = true;
                break;
            }
            Ok(Some(Err(_))) | Err(_) => break,
        }
    }
    (answer::excerpt(&kept), is_clean)
}
