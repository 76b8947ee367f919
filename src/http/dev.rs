//! The receiver of `duepost dev`: takes whatever is POSTed, remembers a little and shows it. Not part of the contract.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::IntoResponse,
    routing,
};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Shared, wire::Json};
use crate::domain::time::UnixMs;

/// Deliveries that are remembered.
const KEPT: usize = 100;
/// Bytes of a body that are taken.
const BODY_MAX: usize = 4 << 20;

/// What the receiver got.
#[derive(Debug, Clone, Serialize)]
pub struct Delivery {
    /// When, on this process's idea of Redis's clock.
    pub received_at: String,
    /// Where it was sent to.
    pub path: String,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// Its body: JSON as it came, other text as a string.
    pub body: Box<RawValue>,
}

impl Delivery {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }
}

type Tell = dyn Fn(&Delivery) + Send + Sync;

/// Remembers deliveries, and tells of each through a callback.
#[derive(Clone)]
pub struct Receiver {
    got: Arc<Mutex<VecDeque<Delivery>>>,
    tell: Arc<Tell>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

impl Receiver {
    /// A receiver that calls `tell` for each delivery, as to print a line.
    pub fn new(tell: impl Fn(&Delivery) + Send + Sync + 'static) -> Self {
        Self { got: Arc::default(), tell: Arc::new(tell) }
    }

    fn take(&self, delivery: Delivery) {
        (self.tell)(&delivery);
        let mut got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        if got.len() == KEPT {
            got.pop_front();
        }
        got.push_back(delivery);
    }

    fn all(&self) -> Vec<Delivery> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

#[derive(Serialize)]
struct Got {
    /// Newest last.
    items: Vec<Delivery>,
}

pub(super) fn router(receiver: Receiver) -> Router<Shared> {
    let show = {
        let receiver = receiver.clone();
        move || async move { Json(Got { items: receiver.all() }) }
    };
    let take = move |State(api): State<Shared>, request: Request| receive(receiver.clone(), api, request);
    Router::new()
        .route("/dev/receiver", routing::get(show).post(take.clone()))
        .route("/dev/receiver/{*rest}", routing::post(take))
}

async fn receive(receiver: Receiver, api: Shared, request: Request) -> impl IntoResponse {
    let now: UnixMs = api.store.clock().now();
    let (parts, body): (_, Body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_MAX).collect().await else { return StatusCode::PAYLOAD_TOO_LARGE };
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let quoted = || serde_json::value::to_raw_value(&text);
    let Ok(body) = RawValue::from_string(text.clone()).or_else(|_| quoted()) else { return StatusCode::BAD_REQUEST };
    let headers = parts.headers.iter();
    let headers = headers.map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()));
    let path = parts.uri.path().to_owned();
    receiver.take(Delivery { received_at: now.to_string(), path, headers: headers.collect(), body });
    StatusCode::NO_CONTENT
}
