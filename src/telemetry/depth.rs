//! How deep queues are, as gauges: read from Redis for one scrape and forgotten after it.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::metrics::{OTHER, OfQueue};

/// How deep a queue is, read from Redis for a scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the states of a task, counted
pub struct QueueDepth {
    /// Its name.
    pub queue: String,
    pub scheduled: u64,
    pub active: u64,
    pub dead: u64,
    pub completed: u64,
    pub cancelled: u64,
    pub expired: u64,
    /// How late the head is, 0 if nothing is due.
    pub oldest_due_ms: u64,
    /// Whether attempts are stopped.
    pub paused: bool,
    /// Webhooks that are not called for a while.
    pub webhooks_held: u64,
    /// Webhooks that are not called until someone enables them.
    pub webhooks_disabled: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    queue: String,
    state: &'static str,
}

/// Gauges of one scrape. The first queues by name have their own labels, so that all replicas choose the same; of the
/// others counts are added and the oldest is kept.
pub fn depth_gauges(depths: &[QueueDepth], label_cap: usize) -> Registry {
    let tasks = Family::<OfState, Gauge>::default();
    let oldest = Family::<OfQueue, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
    let (paused, held, disabled) = (Family::<OfQueue, Gauge>::default(), Family::default(), Family::default());
    let add = |to: &Family<OfQueue, Gauge>, of: &OfQueue, n: u64| {
        to.get_or_create(of).inc_by(i64::try_from(n).unwrap_or(i64::MAX));
    };
    let mut by_name: Vec<&QueueDepth> = depths.iter().collect();
    by_name.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
    for (at, depth) in by_name.into_iter().enumerate() {
        let of = OfQueue { queue: if at < label_cap { depth.queue.clone() } else { OTHER.to_owned() } };
        for (state, n) in [
            ("scheduled", depth.scheduled),
            ("active", depth.active),
            ("dead", depth.dead),
            ("completed", depth.completed),
            ("cancelled", depth.cancelled),
            ("expired", depth.expired),
        ] {
            let gauge = tasks.get_or_create_owned(&OfState { queue: of.queue.clone(), state });
            gauge.inc_by(i64::try_from(n).unwrap_or(i64::MAX));
        }
        let late = Duration::from_millis(depth.oldest_due_ms).as_secs_f64();
        let gauge = oldest.get_or_create_owned(&of);
        gauge.set(gauge.get().max(late));
        add(&paused, &of, u64::from(depth.paused));
        add(&held, &of, depth.webhooks_held);
        add(&disabled, &of, depth.webhooks_disabled);
    }
    let mut registry = Registry::with_prefix("duepost");
    registry.register("tasks", "Tasks by state", tasks);
    registry.register("oldest_due_seconds", "How late the head of the queue is", oldest);
    registry.register("queue_paused", "1 while the queue is paused", paused);
    registry.register("webhooks_held", "Webhooks not called for a while", held);
    registry.register("webhooks_disabled", "Webhooks not called until enabled", disabled);
    registry
}
