//! When to try again: pure arithmetic that cannot overflow at any attempt number.

use std::time::Duration;

/// Most attempts that may be asked for.
pub const MAX_ATTEMPTS: u32 = 10_000;
/// Shortest and longest backoff time.
pub const BACKOFF_TIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(30 * 86_400);
/// Largest factor of an exponential backoff; the smallest is 1.
pub const MAX_FACTOR: f64 = 100.0;
/// Most steps of a schedule.
pub const MAX_DELAYS: usize = 100;

/// How the pauses between attempts grow.
#[derive(Debug, Clone, PartialEq)]
pub enum BackoffKind {
    /// base × factor^(n−1), at most max, after the nth failure.
    Exponential {
        /// After the first failure.
        base: Duration,
        /// How much longer each next pause is, 1 to [`MAX_FACTOR`].
        factor: f64,
        /// The longest pause before jitter.
        max: Duration,
    },
    /// The same pause each time.
    Fixed {
        /// The pause.
        delay: Duration,
    },
    /// A list of pauses; the last one repeats.
    Schedule {
        /// 1 to [`MAX_DELAYS`] pauses.
        delays: Vec<Duration>,
    },
}

/// A kind of pause and how much it is spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// How pauses grow.
    pub kind: BackoffKind,
    /// j spreads each pause evenly over [1−j, 1+j]; 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The jitter that a backoff has if it names none.
    pub const DEFAULT_JITTER: f64 = 0.2;

    /// The pause after the `failures`th failed attempt (1 = the first). `dice` is an even random number in [0, 1).
    #[must_use]
    pub fn pause(&self, failures: u32, dice: f64) -> Duration {
        let nth = failures.max(1);
        let seconds = match &self.kind {
            BackoffKind::Exponential { base, factor, max } => {
                let grown = base.as_secs_f64() * factor.powi(i32::try_from(nth - 1).unwrap_or(i32::MAX));
                grown.min(max.as_secs_f64()) // inf.min(max) = max
            }
            BackoffKind::Fixed { delay } => delay.as_secs_f64(),
            BackoffKind::Schedule { delays } => {
                let at = usize::try_from(nth - 1).unwrap_or(usize::MAX).min(delays.len().saturating_sub(1));
                delays.get(at).copied().unwrap_or_default().as_secs_f64()
            }
        };
        let spread = 1.0 + self.jitter * (2.0 * dice - 1.0);
        Duration::try_from_secs_f64((seconds * spread).max(0.0)).unwrap_or(*BACKOFF_TIMES.end())
    }
}

impl Default for Backoff {
    /// 1 s, 5 s (4), 21 s (16), … up to 6 h.
    fn default() -> Self {
        let kind =
            BackoffKind::Exponential { base: Duration::from_secs(1), factor: 4.0, max: Duration::from_secs(6 * 3600) };
        Self { kind, jitter: Self::DEFAULT_JITTER }
    }
}

/// How often and when a task is tried.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// How many attempts may fail, 1 to [`MAX_ATTEMPTS`].
    pub max_attempts: u32,
    /// The pauses between them.
    pub backoff: Backoff,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 20, backoff: Backoff::default() }
    }
}

/// A task's own wishes, laid over its queue's [`Retry`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RetryPatch {
    /// Instead of the queue's.
    pub max_attempts: Option<u32>,
    /// Instead of the queue's, whole.
    pub backoff: Option<Backoff>,
}

impl RetryPatch {
    /// What holds for a task with these wishes.
    #[must_use]
    pub fn over(&self, queue: &Retry) -> Retry {
        Retry {
            max_attempts: self.max_attempts.unwrap_or(queue.max_attempts),
            backoff: self.backoff.clone().unwrap_or_else(|| queue.backoff.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_default_gives_up_after_about_three_days() {
        let backoff = Backoff { jitter: 0.0, ..Backoff::default() };
        let pauses: Vec<u64> = (1..=9).map(|n| backoff.pause(n, 0.5).as_secs()).collect();
        assert_eq!(pauses, [1, 4, 16, 64, 256, 1024, 4096, 16384, 21600]);
        let total: u64 = (1..20).map(|n| backoff.pause(n, 0.5).as_secs()).sum();
        assert!((2 * 86_400..4 * 86_400).contains(&total), "{total}");
    }

    #[test]
    fn a_schedule_repeats_its_last_step() {
        let kind = BackoffKind::Schedule { delays: vec![s(1), s(7)] };
        let backoff = Backoff { kind, jitter: 0.0 };
        assert_eq!([1, 2, 3, u32::MAX].map(|n| backoff.pause(n, 0.9)), [s(1), s(7), s(7), s(7)]);
    }

    fn any_backoff() -> impl Strategy<Value = Backoff> {
        let time = || (1_u64..=30 * 86_400_000).prop_map(Duration::from_millis);
        let kind = prop_oneof![
            (time(), 1.0..=MAX_FACTOR, time()).prop_map(|(a, factor, b)| BackoffKind::Exponential {
                base: a.min(b),
                factor,
                max: a.max(b)
            }),
            time().prop_map(|delay| BackoffKind::Fixed { delay }),
            prop::collection::vec(time(), 1..20).prop_map(|delays| BackoffKind::Schedule { delays }),
        ];
        (kind, 0.0..=1.0).prop_map(|(kind, jitter)| Backoff { kind, jitter })
    }

    proptest! {
        #[test]
        fn no_attempt_overflows_and_jitter_stays_in_bounds(backoff in any_backoff(), n in any::<u32>(), dice in 0.0..1.0) {
            let bare = Backoff { jitter: 0.0, ..backoff.clone() }.pause(n, dice).as_secs_f64();
            let got = backoff.pause(n, dice).as_secs_f64();
            let slack = 1e-6 * bare + 1e-6;
            prop_assert!(got >= bare * (1.0 - backoff.jitter) - slack && got <= bare * (1.0 + backoff.jitter) + slack);
            prop_assert!(bare <= BACKOFF_TIMES.end().as_secs_f64());
        }

        #[test]
        fn exponential_pauses_never_shrink(backoff in any_backoff(), n in 1_u32..20_000) {
            prop_assume!(matches!(backoff.kind, BackoffKind::Exponential { .. }));
            let still = Backoff { jitter: 0.0, ..backoff };
            prop_assert!(still.pause(n + 1, 0.0) >= still.pause(n, 0.0));
        }
    }
}
