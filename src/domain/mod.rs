//! Nouns and rules: no IO, no clock, no randomness, no Redis, no HTTP. Parsed values cannot be wrong.

pub mod address;
pub mod attempt;
pub mod breaker;
pub mod durability;
pub mod headers;
pub mod id;
pub mod payload;
pub mod pull;
pub mod queue;
pub mod retry;
pub mod retry_after;
pub mod round;
pub mod secret;
pub mod task;
pub mod time;
pub mod webhook;
