//! The rollback detector: each shard counts accepted enqueues (`seq`), and a count that is lower than one seen before
//! means that Redis lost writes: FLUSHALL, an old backup, a failover to a replica that was behind. It is told, not
//! repaired: a repair could revive what another process cancelled.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::keys::SHARDS;

/// The highest count of each shard that this process has seen.
#[derive(Debug)]
pub struct Seqs {
    highest: Mutex<Vec<u64>>,
    rolled_back: AtomicU64,
}

impl Default for Seqs {
    fn default() -> Self {
        Self { highest: Mutex::new(vec![0; usize::from(SHARDS)]), rolled_back: AtomicU64::new(0) }
    }
}

impl Seqs {
    /// What is known before a call is sent: its answer may not be lower. Of all shards.
    pub fn known(&self) -> Vec<u64> {
        self.highest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same of one shard.
    pub fn known_of(&self, shard: u16) -> u64 {
        let highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        highest.get(usize::from(shard)).copied().unwrap_or(0)
    }

    /// Takes note of an answer; answers how many enqueues are gone.
    pub fn see(&self, shard: u16, before: u64, seq: u64) -> u64 {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(highest) = highest.get_mut(usize::from(shard)) else { return 0 };
        if *highest < before {
            return 0; // another call has told of it since this one was sent
        }
        if seq >= before {
            *highest = seq.max(*highest);
            return 0;
        }
        let lost = *highest - seq;
        *highest = seq; // what comes from now on is counted from here
        self.rolled_back.fetch_add(lost, Ordering::Relaxed);
        lost
    }

    /// Enqueues that were accepted and are gone, since this process began.
    pub fn rolled_back(&self) -> u64 {
        self.rolled_back.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_count_is_told_once_and_counting_goes_on_from_it() {
        let seqs = Seqs::default();
        assert_eq!(seqs.see(3, 0, 10), 0);
        let (look, enqueue) = (seqs.known_of(3), seqs.known_of(3));
        assert_eq!(seqs.see(3, look, 4), 6);
        assert_eq!(seqs.see(3, enqueue, 5), 0, "the same loss, seen by a call that was sent before it was known");
        assert_eq!(seqs.see(3, enqueue, 12), 0, "an answer from before the loss");
        assert_eq!(seqs.see(3, seqs.known_of(3), 5), 0);
        assert_eq!(seqs.see(3, seqs.known_of(3), 0), 5);
        assert_eq!(seqs.rolled_back(), 11);
        assert_eq!(seqs.known()[3], 0);
    }

    #[test]
    fn answers_may_overtake_each_other() {
        let seqs = Seqs::default();
        let (one, two) = (seqs.known_of(0), seqs.known_of(0));
        assert_eq!(seqs.see(0, two, 20), 0);
        assert_eq!(seqs.see(0, one, 10), 0);
        assert_eq!(seqs.known_of(0), 20);
    }
}
