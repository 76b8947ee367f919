//! How many calls may be under way: past it a 503 at once, so that those inside get their answers and Redis is not
//! buried. Deliveries do not pass here; neither do the signs of life and the metrics, which are needed most under load.
//!
//! Not tower's `ConcurrencyLimit` under `LoadShed`: which room a call takes a place in depends on its operation, and
//! two layers and their boxes a route would say no more than one semaphore.

use axum::{
    extract::Request,
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use super::{
    Limits, Shared,
    problem::{Kind, Problem},
    request::Operation,
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
}

/// Takes a place for as long as the call lasts. Behind `auth`: who has no key takes none.
pub(super) async fn shed(api: &Shared, request: Request, next: Next) -> Response {
    let operation = request.extensions().get::<Operation>().map_or("none", |operation| operation.0);
    let Some(room) = api.rooms.of(operation) else { return next.run(request).await };
    let Ok(_place) = room.try_acquire() else {
        let detail = "there are too many calls under way; nothing was done";
        return Problem::new(Kind::Overloaded, detail).into_response();
    };
    next.run(request).await
}
