//! What `/readyz` asks: whether the loops that deliver are alive, and whether the service is stopping. Health is only
//! ever read by its callers; asking changes nothing.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// A loop that has not been round for this long is stuck.
pub const BEAT_LIMIT: Duration = Duration::from_secs(5);

/// Signs of life of one process.
#[derive(Debug)]
pub struct Health {
    start: Instant,
    beat_ms: AtomicU64,
    look_ms: AtomicU64,
    failing: AtomicUsize,
    stopping: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            beat_ms: AtomicU64::new(0),
            look_ms: AtomicU64::new(0),
            failing: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        }
    }
}

impl Health {
    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The dispatcher went round once more.
    pub fn beat(&self) {
        self.beat_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// The dispatcher read from Redis what is due.
    pub fn look(&self) {
        self.look_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Whether the dispatcher went round lately.
    #[must_use]
    pub fn is_beating(&self) -> bool {
        self.is_recent(&self.beat_ms)
    }

    /// Whether it read lately what is due: a loop that goes round over what it cannot read delivers nothing.
    #[must_use]
    pub fn is_looking(&self) -> bool {
        self.is_recent(&self.look_ms)
    }

    /// How many queues could not be visited when it was last tried.
    #[must_use]
    pub fn failing(&self) -> usize {
        self.failing.load(Ordering::Relaxed)
    }

    /// Says so; only the dispatcher knows.
    pub fn set_failing(&self, queues: usize) {
        self.failing.store(queues, Ordering::Relaxed);
    }

    fn is_recent(&self, at_ms: &AtomicU64) -> bool {
        let since = self.elapsed_ms().saturating_sub(at_ms.load(Ordering::Relaxed));
        Duration::from_millis(since) <= BEAT_LIMIT
    }

    /// The service takes no more work.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::stop`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}
