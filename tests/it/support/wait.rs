//! Waiting for conditions, and the wall clock.

use std::{
    future::Future,
    panic::Location,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Pause between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Waits until the condition holds; panics at the caller's line when it does not within `deadline`.
#[track_caller]
pub fn eventually<F>(deadline: Duration, mut condition: F) -> impl Future<Output = ()>
where
    F: AsyncFnMut() -> bool,
{
    let from = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        while !condition().await {
            assert!(Instant::now() < end, "not within {deadline:?}: the condition at {from}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// Waits until there is a value, and gives it; panics at the caller's line when there is none within `deadline`.
#[track_caller]
pub fn until<T, F>(deadline: Duration, mut look: F) -> impl Future<Output = T>
where
    F: AsyncFnMut() -> Option<T>,
{
    let from = Location::caller();
    async move {
        let end = Instant::now() + deadline;
        loop {
            if let Some(value) = look().await {
                return value;
            }
            assert!(Instant::now() < end, "not within {deadline:?}: the value at {from}");
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// Sleeps until the wall clock shows this instant; at once if it is past.
pub async fn sleep_until_ms(instant: i64) {
    let left = u64::try_from(instant - now_ms()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(left)).await;
}

/// The wall clock in whole milliseconds since 1970, the clock that Redis on this machine shows too.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(since.as_millis()).expect("fits")
}

/// An RFC 3339 text as milliseconds since 1970, read by a parser that is not the service's own.
#[track_caller]
pub fn parse_ms(text: &str) -> i64 {
    let instant: jiff::Timestamp = text.parse().unwrap_or_else(|e| panic!("{text:?} is no instant: {e}"));
    instant.as_millisecond()
}

/// `2026-11-30T17:25:00.000Z`.
pub fn format_ms(instant: i64) -> String {
    let instant = jiff::Timestamp::from_millisecond(instant).expect("within the years that jiff knows");
    format!("{instant:.3}")
}
