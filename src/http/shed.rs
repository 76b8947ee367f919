//! How many calls may be under way: past it a 503 at once, so that those inside get their answers and Redis is not
//! buried. Deliveries do not pass here; neither do the signs of life and the metrics, which are needed most under load.
//!
//! Not tower's `ConcurrencyLimit` under `LoadShed`: which room a call takes a place in depends on its operation, and
//! two layers and their boxes a route would say no more than one semaphore.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    Limits,
    problem::{Kind, Problem},
};

/// Tests of webhooks at once. Each waits for a receiver, which may take as long as its webhook's timeout lets it.
const TESTS_MAX: usize = 32;

/// Places for calls. One that waits, for a task or for the receiver of a test, holds no place of those that work.
#[derive(Debug)]
pub(super) struct Rooms {
    calls: Semaphore,
    claims: Semaphore,
    tests: Semaphore,
}

impl Rooms {
    pub fn new(limits: &Limits) -> Self {
        let places = |n: usize| Semaphore::new(n.min(Semaphore::MAX_PERMITS));
        Self { calls: places(limits.max_requests), claims: places(limits.max_claims), tests: places(TESTS_MAX) }
    }

    fn of(&self, operation: &str) -> Option<&Semaphore> {
        match operation {
            "get_metrics" => None,
            "claim_tasks" => Some(&self.claims),
            "test_webhook" => Some(&self.tests),
            _ => Some(&self.calls),
        }
    }

    /// A place for as long as the call lasts; `None` where none is needed.
    pub fn place(&self, operation: &str) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        let Some(room) = self.of(operation) else { return Ok(None) };
        let overloaded = |_| Problem::new(Kind::Overloaded, "there are too many calls under way; nothing was done");
        room.try_acquire().map(Some).map_err(overloaded)
    }
}
