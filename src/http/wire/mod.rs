//! The wire forms, one file per noun. Requests are read by [`Object`](super::object::Object) straight into domain types;
//! answers are structs in the order that the contract shows; those about tasks are [`written`] by hand. Answers may grow,
//! requests are closed.

mod edit;
mod pull;
mod queue;
mod retry;
mod task;
mod webhook;
mod written;

use std::{fmt, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

pub use self::{
    edit::read_edit,
    pull::{ClaimedOut, LeasedOut, NackWanted, read_ack, read_claim, read_extend, read_nack},
    queue::{QueueItem, QueueOut, StatsOut, oldest_due_ms, read_settings},
    retry::{RetryOut, read_retry},
    task::{AttemptOut, Horizon, Progress, TaskOut, TaskWanted, own_max_attempts, read_new_content, read_task},
    webhook::{WebhookOut, read_rotation, read_webhook, read_webhook_patch, read_webhook_put},
    written::{ByHand, Fields, Written, json_of, room_of},
};
use crate::domain::time::{UnixMs, format_duration};

/// A name or an id in an answer.
fn shown<S: Serializer>(name: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

/// An instant in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At(pub UnixMs);

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.digits().as_ref().and_then(|text| std::str::from_utf8(text).ok()) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.collect_str(&self.0),
        }
    }
}

/// A duration in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(self.0))
    }
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListOut<T> {
    /// In the order of the list; may be fewer than `limit` although more follow.
    pub items: Vec<T>,
    /// Give it as `cursor` to go on; `null` is the end.
    pub next_cursor: Option<String>,
}

impl<T: Written> Written for ListOut<T> {
    fn write(&self, out: &mut Vec<u8>) -> serde_json::Result<()> {
        let mut fields = Fields::new(out);
        fields.list(r#"{"items":"#, &self.items)?;
        fields.json(r#","next_cursor":"#, &self.next_cursor)?;
        fields.put("}");
        Ok(())
    }

    fn room(&self) -> usize {
        room_of(&self.items)
    }
}

/// Room for most answers.
const ROOM: usize = 768;

/// An answer as JSON.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut bytes = Vec::with_capacity(ROOM);
        match serde_json::to_writer(&mut bytes, &self.0) {
            Ok(()) => json_of(Body::from(bytes)),
            Err(_) => super::problem::Problem::new(super::problem::Kind::Internal, "the answer cannot be written")
                .into_response(),
        }
    }
}
