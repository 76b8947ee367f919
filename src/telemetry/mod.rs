//! What the service says about itself: the log (here), [`metrics`], the five-minute [`window`]s behind a queue's stats, and
//! [`traces`].
//!
//! No payload, no key and no URL with userinfo is logged at any level; that is up to those who log.

mod alarms;
mod depth;
pub mod metrics;
mod seldom;
pub mod traces;
pub mod window;

use std::{any::Any, io::IsTerminal as _, panic};

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;
pub use alarms::Alarms;
pub use depth::QueueDepth;
pub use metrics::{CONTENT_TYPE, Metrics, QueueMetrics};
pub use seldom::Seldom;
pub use traces::Traces;

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not one; `config` checks that it is.
    #[error("the log filter is wrong")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// There is one already.
    #[error("the log is set up already")]
    Subscriber(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the log of this process, on standard error, and the hook that logs panics. Once.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init(filter: &str, format: LogFormat) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse(filter).map_err(TelemetryError::Filter)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Subscriber)?;
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// An error with its causes, each once: some tell theirs themselves.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}

/// Where it happened, and what may be told of why.
fn log_panic(info: &panic::PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    tracing::error!(place, thread, "panicked: {}", harmless(info.payload()));
}

/// The message if it is a literal; a formatted one may hold a payload or a secret.
fn harmless(message: &(dyn Any + Send)) -> &'static str {
    message.downcast_ref::<&'static str>().copied().unwrap_or("(a message with values, left out)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c190_a_panic_tells_no_values() {
        let secret = String::from("s3cret");
        let with_value = panic::catch_unwind(|| panic!("key {secret} is wrong")).unwrap_err();
        let literal = panic::catch_unwind(|| panic!("no bucket")).unwrap_err();
        assert_eq!(harmless(&*with_value), "(a message with values, left out)");
        assert_eq!(harmless(&*literal), "no bucket");
    }
}
