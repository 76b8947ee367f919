//! Remembers when Redis last gave trouble: a lost connection, a slow call, a jump of its clock, a new primary. By shard,
//! so that trouble with one node of a Cluster is none of the others'.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::keys::SHARDS;

/// Since when there has been no trouble.
#[derive(Debug)]
pub struct Calm {
    start: Instant,
    disturbed_us: [AtomicU64; SHARDS as usize],
}

impl Calm {
    pub fn new() -> Self {
        Self { start: Instant::now(), disturbed_us: [const { AtomicU64::new(0) }; SHARDS as usize] }
    }

    /// Trouble with these shards, now.
    pub fn disturb(&self, shards: impl IntoIterator<Item = u16>) {
        let now = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        for shard in shards {
            self.disturbed_us[usize::from(shard)].fetch_max(now, Ordering::Relaxed);
        }
    }

    /// How long a shard has been without trouble (or without a process).
    #[must_use]
    pub fn lasting(&self, shard: u16) -> Duration {
        let disturbed = self.disturbed_us[usize::from(shard)].load(Ordering::Relaxed);
        self.start.elapsed().saturating_sub(Duration::from_micros(disturbed))
    }
}
