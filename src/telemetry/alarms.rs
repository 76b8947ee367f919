//! Figures that are zero while all is well.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

/// Alarms of one process, as figures; the log and `/readyz` say the same in words.
#[derive(Debug, Default)]
pub struct Alarms {
    clock_ahead: Gauge<f64, std::sync::atomic::AtomicU64>,
    rolled_back: Counter,
}

impl Alarms {
    pub(super) fn register(&self, to: &mut Registry) {
        let ahead = "How far Redis's clock is ahead of what is trusted (behind, if negative); 0 if it is trusted";
        to.register("redis_clock_ahead_seconds", ahead, self.clock_ahead.clone());
        let lost = "Accepted tasks that Redis lost again, as this process saw its counters fall";
        to.register("rolled_back", lost, self.rolled_back.clone());
    }

    /// Redis's clock is not trusted, or is again.
    pub fn clock_ahead(&self, ms: Option<i64>) {
        #[allow(clippy::cast_precision_loss)] // a figure for people
        self.clock_ahead.set(ms.unwrap_or(0) as f64 / 1000.0);
    }

    /// Accepted tasks are gone.
    pub fn rolled_back(&self, tasks: u64) {
        self.rolled_back.inc_by(tasks);
    }
}
