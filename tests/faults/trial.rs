//! One trial: its name, its seed and its size. The seed is printed; `DUEPOST_FAULTS_SEED` replays it.

use std::time::{SystemTime, UNIX_EPOCH};

/// What a full run does more than one in CI.
const FULL: usize = 10;

#[derive(Debug, Clone)]
pub struct Trial {
    /// As `F1`, with a word more where a fault has several trials.
    pub name: &'static str,
    pub what: &'static str,
    pub seed: u64,
    pub full: bool,
}

impl Trial {
    pub fn of(name: &'static str, what: &'static str) -> Self {
        let seed = match std::env::var("DUEPOST_FAULTS_SEED") {
            Ok(text) => text.parse().expect("DUEPOST_FAULTS_SEED is a number"),
            Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH).expect("past 1970").subsec_nanos()),
        };
        let full = match std::env::var("DUEPOST_FAULTS").as_deref() {
            Ok("full") => true,
            Ok("ci") | Err(_) => false,
            Ok(other) => panic!("DUEPOST_FAULTS is ci or full, not {other:?}"),
        };
        println!("{name}: {what}; DUEPOST_FAULTS_SEED={seed}");
        Self { name, what, seed, full }
    }

    /// The size of a load or the number of faults, by its size in CI.
    pub fn size(&self, ci: usize) -> usize {
        if self.full { ci * FULL } else { ci }
    }

    /// A stream of chance of its own for each purpose, so that one more draw here moves nothing there.
    pub fn rng(&self, purpose: &str) -> fastrand::Rng {
        let mix = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        fastrand::Rng::with_seed(purpose.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }
}
