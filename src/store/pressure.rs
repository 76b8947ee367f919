//! Whether Redis is out of memory. While it refuses new tasks, and a little longer, nothing is kept of tasks that are
//! done, so that working off what is there makes room.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// So long after a refusal the memory counts as full.
pub const FULL_FOR: Duration = Duration::from_secs(10);

/// When Redis last refused to take something for want of memory.
#[derive(Debug, Default)]
pub struct Pressure(Mutex<Option<Instant>>);

impl Pressure {
    /// It did now. Answers whether that is news.
    pub fn note(&self) -> bool {
        let news = !self.is_high();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        news
    }

    /// Whether it did lately.
    pub fn is_high(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|at| at.elapsed() < FULL_FOR)
    }
}
