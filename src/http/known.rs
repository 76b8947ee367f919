//! What answers about tasks need to know of their queue: its `max_attempts`, at most a second old. Kept so that an
//! enqueue costs one call of Redis and not two.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    domain::{id::QueueName, queue::Settings, task::Task},
    http::wire::own_max_attempts,
    store::Store,
};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);
/// Queues that are remembered; beyond it all are forgotten.
const QUEUES_MAX: usize = 10_000;

/// Queue → when it was read, `max_attempts`.
#[derive(Debug, Default)]
pub struct Known(Mutex<HashMap<QueueName, (Instant, u32)>>);

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, (Instant, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of settings that were just read or set.
    pub fn learn(&self, queue: &QueueName, settings: &Settings) {
        let mut known = self.lock();
        if known.len() >= QUEUES_MAX && !known.contains_key(queue) {
            known.clear();
        }
        known.insert(queue.clone(), (Instant::now(), settings.retry.max_attempts));
    }

    /// Forgets a queue that is gone.
    pub fn forget(&self, queue: &QueueName) {
        self.lock().remove(queue);
    }

    /// The limit of a task's queue. An answer about a task that was taken must not fail for it: if Redis has just gone
    /// away, the last known one stands.
    pub async fn max_attempts(&self, store: &Store, task: &Task) -> u32 {
        if let Some(own) = own_max_attempts(task) {
            return own;
        }
        let mut last = None;
        if let Some((read, attempts)) = self.lock().get_mut(&task.queue) {
            if read.elapsed() < FRESH {
                return *attempts;
            }
            *read = Instant::now(); // one reads again, the others go on with the old one
            last = Some(*attempts);
        }
        match Box::pin(store.describe(&task.queue)).await {
            Ok(Some(view)) => {
                self.learn(&task.queue, &view.queue.settings);
                view.queue.settings.retry.max_attempts
            }
            _ => last.unwrap_or_else(|| Settings::default().retry.max_attempts),
        }
    }
}
