//! What the tests stand on: servers they own, a receiver they script, a client, and patience without sleeping.

pub mod bare;
pub mod client;
pub mod cluster;
pub mod inside;
pub mod link;
pub mod load;
pub mod process;
pub mod receiver;
mod receiver_answer;
pub mod redis;
pub mod sentinel;
pub mod service;
pub mod vitals;
pub mod wait;
pub mod wall;
pub mod world;

pub use client::{Answer as ApiAnswer, Client};
pub use cluster::Cluster;
pub use receiver::{Answer, Gate, Receiver, Request};
pub use redis::RedisServer;
pub use sentinel::Sentinels;
pub use service::Service;
pub use wait::{eventually, now_ms, parse_ms, until};
pub use world::World;

use std::time::Duration;

/// The size of a test: the first in CI, the second, that of the case as it was told, with `DUEPOST_TEST_SIZE=full`.
pub fn size<T>(quick: T, full: T) -> T {
    let is_full = std::env::var("DUEPOST_TEST_SIZE").is_ok_and(|size| size == "full");
    if is_full { full } else { quick }
}

/// Whole seconds.
pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Milliseconds.
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
