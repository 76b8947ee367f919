//! Duepost: tasks, POSTed when due. A delay queue over HTTP/JSON, on Redis.
//!
//! # Rooms
//!
//! ```text
//!              app  (builds everything, owns start and shutdown)
//!         ┌─────┴──────┐
//!       http         worker ──── delivery     one webhook call
//!         └─────┬──────┘            │
//!             store                 │         the only room that knows Redis
//!               └──────── domain ───┘         nouns and rules; no IO, no clock, no randomness
//! ```
//!
//! An arrow goes down only: `domain` imports nothing of ours; `store` and `delivery` import `domain`; `worker` imports
//! those three; `http` imports `domain`, `store` and, to test a webhook, `delivery`. `http` and `worker` never meet: what they share is the bell in
//! `store`. `config`, `telemetry`, `health` and `keys` are plain modules that any room may use. A test asserts this.
//!
//! # The trip of a task
//!
//! 1. [`http`] parses `POST /queues/{queue}/tasks` once; the payload stays the bytes that came.
//! 2. [`store`] gathers enqueues into batches; `enqueue.lua` puts the id into `due` and the record into `tasks`, lowers
//!    the queue's instant in the agenda, and rings the bell if the head became earlier.
//! 3. The dispatcher in [`worker`] hears the bell, sleeps until the instant, takes permits, and sends a visit: `visit.lua`
//!    moves what is due to `active`, under a lease with a fence.
//! 4. `domain::round` plans whom to call; [`delivery`] signs, dials and POSTs.
//! 5. `domain::round` judges the answers; `settle.lua` ends the task, or puts it back for its next attempt.
//! 6. Retention: a later visit forgets it.
#![forbid(unsafe_code)]

pub mod app;
mod banner;
pub mod cli;
pub mod config;
pub mod delivery;
pub mod domain;
pub mod health;
pub mod http;
pub mod keys;
pub mod store;
pub mod telemetry;
pub mod worker;
