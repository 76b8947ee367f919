//! Faults: real processes on loopback are killed, stopped, cut off and filled up under load, and nothing may be lost.
//!
//! A trial (`trial`) has a seed. Its load (`load`) writes down every acknowledged call, the receiver every POST
//! (`journal`); the checker (`check`) joins both. `rig` puts a trial together, `proxy` and `shim` make trouble.
#![allow(clippy::disallowed_methods)] // Judged by the machine's own clock; seed and size come from the environment.

#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "a kit shared with the other tests")]
mod support;

mod check;
mod check_works;
mod journal;
mod load;
mod proxy;
mod report;
mod rig;
mod shim;
mod trial;

mod clock;
mod cluster;
mod hostile;
mod net;
mod redis;
mod services;
mod soak;
