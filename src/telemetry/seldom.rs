//! Lines of the log that would come again and again while something is broken.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Shortest time between two of them.
const EVERY: Duration = Duration::from_secs(5);

/// Lets a line through now and then, and counts those in between. For trouble that lasts and is met often: each try of
/// each task, each visit of each queue.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// How many lines were left out since the last one, if it is time for another.
    pub fn turn(&self) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.last.is_some_and(|last| last.elapsed() < EVERY) {
            told.left_out += 1;
            return None;
        }
        told.last = Some(Instant::now());
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn c143_a_line_comes_every_five_seconds_with_the_number_of_those_between() {
        let seldom = Seldom::default();
        assert_eq!(seldom.turn(), Some(0), "the first at once");
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(seldom.turn(), None);
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(seldom.turn(), Some(3));
        assert_eq!(seldom.turn(), None);
    }
}
