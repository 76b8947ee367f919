//! Leases of attempts that run long are renewed in batches; a worker that dies loses its own within a lease.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Shop;
use crate::{
    domain::id::QueueName,
    store::{Lease, Renewal, Renewed},
};

/// Renewals in one script call.
const MAX_RENEWALS: usize = 500;

/// The claims that attempts under way hold.
#[derive(Default)]
pub struct Leases {
    held: Mutex<(u64, HashMap<u64, Held>)>,
}

struct Held {
    lease: Lease,
    since: Instant,
    won: Vec<String>,
}

/// One attempt's entry; it goes with the attempt.
pub struct Holding<'a> {
    leases: &'a Leases,
    key: u64,
}

impl Leases {
    /// Holds a claim from `since` on.
    pub fn hold(&self, lease: Lease, since: Instant) -> Holding<'_> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.0 += 1;
        let key = held.0;
        held.1.insert(key, Held { lease, since, won: Vec::new() });
        Holding { leases: self, key }
    }

    /// Claims held for longer than `age`, by queue.
    fn older_than(&self, age: Duration) -> HashMap<QueueName, Vec<Renewal>> {
        let mut by_queue: HashMap<QueueName, Vec<Renewal>> = HashMap::new();
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for one in held.1.values().filter(|h| h.since.elapsed() > age) {
            let renewal = Renewal { lease: one.lease.clone(), won: one.won.clone() };
            by_queue.entry(one.lease.queue.clone()).or_default().push(renewal);
        }
        by_queue
    }
}

impl Holding<'_> {
    /// A webhook of this round has the task: the next renewal says so, and a crash does not repeat it.
    pub fn won(&self, webhook: &str) {
        let mut held = self.leases.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = held.1.get_mut(&self.key) {
            one.won.push(webhook.to_owned());
        }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.leases.held.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&self.key);
    }
}

/// Renews every third of a lease (3 s of 10) until all attempts have ended after the stop.
pub async fn run(shop: Arc<Shop>) {
    let every = shop.config.lease.mul_f64(0.3);
    loop {
        tokio::select! {
            () = shop.stop.cancelled() => break,
            () = tokio::time::sleep(every) => renew(&shop, every).await,
        }
    }
    // during the drain attempts go on, so their leases do too; this part ends with the attempts
    let draining = Arc::clone(&shop);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = draining.attempts.wait() => return,
                () = tokio::time::sleep(every) => renew(&draining, every).await,
            }
        }
    });
}

async fn renew(shop: &Shop, every: Duration) {
    for (queue, claims) in shop.leases.older_than(every.mul_f64(0.5)) {
        for piece in claims.chunks(MAX_RENEWALS) {
            match shop.store.renew(&queue, shop.config.lease, piece).await {
                Ok(renewed) => {
                    let lost = renewed.iter().filter(|r| **r == Renewed::LeaseLost).count();
                    if lost > 0 {
                        tracing::warn!(%queue, lost, "leases ended under attempts; a success still counts");
                    }
                }
                Err(error) => shop.told.renewal(&queue, &error),
            }
        }
    }
}
