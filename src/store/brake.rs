//! What calls tell beside their answers: Redis's clock, with the brake against its jumps ([`clock`](super::clock) decides),
//! and the counts that show a [`rollback`](super::rollback).

use std::time::Duration;

use tokio::time::Instant;

use super::{Inner, clock::Brake};
use crate::domain::time::UnixMs;

/// An instant that never comes: no cap.
const NO_CAP_MS: i64 = 9_000_000_000_000_000;
/// A step of Redis's clock beyond this is trouble: leases are not ended for a while.
const JUMP: Duration = Duration::from_secs(1);

impl Inner {
    /// A visit takes nothing due later than this.
    pub(super) fn cap_ms(&self) -> i64 {
        self.clock.latest().map_or(NO_CAP_MS, |at| at.0)
    }

    /// A delay counts from no earlier than this; 0 before anything is known.
    pub(super) fn floor_ms(&self) -> i64 {
        self.clock.earliest().map_or(0, |at| at.0)
    }

    /// What [`Self::observe`] needs to know of a call: the offset that it takes along, and when it is sent.
    pub(super) fn now_sent(&self) -> (i64, Instant) {
        (self.clock.offset_ms(), Instant::now())
    }

    /// Takes note of the counts of enqueues that an answer shows; `before` was known when its call was sent.
    pub(super) fn see_seqs(&self, seqs: impl IntoIterator<Item = (u16, u64, u64)>) {
        let lost: u64 = seqs.into_iter().map(|(shard, before, seq)| self.seqs.see(shard, before, seq)).sum();
        if lost > 0 {
            tracing::error!(
                lost,
                "ALARM: Redis lost writes that it had acknowledged (flushed, restored from a backup, or a failover); \
                 tasks are gone or come again"
            );
            self.topology.metrics.alarms.rolled_back(lost);
        }
    }

    /// Redis refused something new for want of memory.
    pub(super) fn note_full(&self) {
        if self.pressure.note() {
            tracing::warn!(
                "Redis has no memory left: new tasks are refused, and what completes or expires is not kept"
            );
        }
    }

    /// Takes note of a primary's clock, as an answer to a call about this shard shows it. Says aloud when it cannot be right.
    pub(super) fn observe(&self, now: UnixMs, (offset_ms, sent): (i64, Instant), shard: u16) {
        let table = self.topology.table();
        let place = table.place(shard);
        let seen = self.clock.observe(now, offset_ms, sent, place);
        if seen.jump > JUMP {
            self.topology.calm.disturb(table.nodes.get(place).into_iter().flat_map(|node| table.shards_of(node)));
        }
        match seen.brake {
            Some(Brake::Set(ahead_ms)) => tracing::error!(
                ahead_ms,
                "ALARM: Redis's clock jumped and is not followed: nothing begins early by it, tasks may be late; set it right"
            ),
            Some(Brake::Back) => tracing::warn!("Redis's clock is back"),
            Some(Brake::Adopted) => {
                tracing::warn!("Redis's clock jumped; this machine's clock agrees with it, so it is followed");
            }
            None => return,
        }
        self.topology.metrics.alarms.clock_ahead(self.clock.ahead_ms());
    }
}
