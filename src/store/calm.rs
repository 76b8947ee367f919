//! Remembers when Redis last gave trouble: a lost connection, a slow call, a jump of its clock, a new primary. By shard,
//! so that trouble with one node of a Cluster is none of the others'. And when it last refused us.

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
    /// 0 = never.
    refused_us: AtomicU64,
}

impl Calm {
    pub fn new() -> Self {
        let disturbed_us = [const { AtomicU64::new(0) }; SHARDS as usize];
        Self { start: Instant::now(), disturbed_us, refused_us: AtomicU64::new(0) }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A call was refused for want of credentials or permissions.
    pub fn refuse(&self) {
        self.refused_us.fetch_max(self.now_us().max(1), Ordering::Relaxed);
    }

    /// Whether one was so lately.
    #[must_use]
    pub fn was_refused_within(&self, span: Duration) -> bool {
        let at = self.refused_us.load(Ordering::Relaxed);
        at > 0 && self.start.elapsed().saturating_sub(Duration::from_micros(at)) < span
    }

    /// Trouble with these shards, now.
    pub fn disturb(&self, shards: impl IntoIterator<Item = u16>) {
        let now = self.now_us();
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
