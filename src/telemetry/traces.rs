//! Traces: a span for each request that enqueues, and one for each delivery attempt.
//!
//! An enqueue is a child of the `traceparent` that came with it. A delivery may come days later, so it is a trace of its own
//! with a *link* to the enqueue: through the `traceparent` that is stored with the task and passed on to the receiver. Off
//! unless the standard variables name a collector; then each call here is one look at an `Option`. Spans tell names, ids
//! and outcomes: no payload, header, query or text of a receiver.

#[cfg(feature = "otlp")]
mod otlp;

use std::time::Duration;

#[cfg(feature = "otlp")]
pub use otlp::{AttemptSpan, RequestSpan, Traces};
#[cfg(not(feature = "otlp"))]
pub use without::{AttemptSpan, RequestSpan, Traces};

/// Operations whose requests are spans.
pub const ENQUEUES: [&str; 3] = ["create_task", "create_tasks", "put_task"];

/// A delivery attempt that begins.
#[derive(Debug, Clone, Copy)]
pub struct Delivering<'a> {
    /// Name of the task's queue.
    pub queue: &'a str,
    /// The task's id.
    pub task: &'a str,
    /// The task's uid, which is the delivery's `webhook-id`.
    pub uid: uuid::Uuid,
    /// Id of the webhook.
    pub webhook: &'a str,
    /// Its host.
    pub host: Option<&'a str>,
    /// Which attempt it is for that webhook.
    pub number: u32,
    /// How late it begins.
    pub lateness: Duration,
    /// The stored `traceparent`.
    pub link: Option<&'a str>,
}

/// The same names where spans are not built in.
#[cfg(not(feature = "otlp"))]
mod without {
    use std::time::Duration;

    use crate::domain::attempt::Report;

    /// Traces that are never on.
    #[derive(Debug, Clone, Default)]
    pub struct Traces;

    /// There is none.
    pub enum RequestSpan {}
    /// There is none.
    pub enum AttemptSpan {}

    #[allow(clippy::unused_self, missing_docs)] // as in `otlp`
    impl Traces {
        /// # Errors
        /// Always: this binary has no exporter.
        pub fn start(_: rustls::ClientConfig, _: Duration) -> Result<Self, &'static str> {
            Err("this binary was built without the feature `otlp`")
        }

        pub fn request(&self, _: &'static str, _: &str, _: impl FnOnce() -> Option<String>) -> Option<RequestSpan> {
            None
        }

        pub const fn attempt(&self, _: &super::Delivering<'_>) -> Option<AttemptSpan> {
            None
        }

        pub async fn stop(&self, _: Duration) {}
    }

    #[allow(missing_docs)] // as in `otlp`
    impl RequestSpan {
        pub fn traceparent(&self) -> Option<String> {
            match *self {}
        }

        pub fn end(self, _: u16) {
            match self {}
        }
    }

    #[allow(missing_docs)] // as in `otlp`
    impl AttemptSpan {
        pub fn end(self, _: &Report) {
            match self {}
        }
    }
}
