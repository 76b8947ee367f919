//! Percentiles of the last five minutes in little memory.
//!
//! Thirty slices of ten seconds, each a histogram that holds only the buckets in use: a slice in which all calls took
//! about the same is a few dozen bytes. Below 32 ms a bucket is one millisecond; above, 16 buckets a power of two, so
//! that the middle of a bucket is within 3.2 % of what fell into it. The time comes in, so nothing here waits.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// How long a slice is; the oldest one leaves as a whole.
const SLICE: Duration = Duration::from_secs(10);
/// Slices that count: five minutes.
const SLICES: u64 = 30;
/// Buckets in a power of two, as a power of two.
const FINENESS: u32 = 4;
/// Values below are their own bucket.
const EXACT: u64 = 2 << FINENESS;

/// Percentiles, in whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percentiles {
    /// Half of all are at most this, within 5 %.
    pub p50: u64,
    /// 95 of 100.
    pub p95: u64,
    /// 99 of 100.
    pub p99: u64,
    /// The largest, exactly.
    pub max: u64,
}

/// Durations of the last five minutes.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// When the first value came: where slices are counted from.
    began: Option<Instant>,
    /// By number, oldest first.
    slices: VecDeque<Slice>,
}

#[derive(Debug, Clone)]
struct Slice {
    number: u64,
    max: u64,
    /// Bucket and how many fell into it, by bucket.
    counts: Vec<(u16, u32)>,
}

impl Window {
    /// Adds a duration that ended at `now`.
    pub fn record(&mut self, took: Duration, now: Instant) {
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let number = self.number(now);
        self.forget_before(number);
        // threads may come a little out of order, so the slice is not always the last
        let at = self.slices.partition_point(|slice| slice.number < number);
        if self.slices.get(at).is_none_or(|slice| slice.number != number) {
            self.slices.insert(at, Slice { number, max: 0, counts: Vec::new() });
        }
        if let Some(slice) = self.slices.get_mut(at) {
            slice.add(ms);
        }
    }

    /// The percentiles at `now`, `None` without a value in the last five minutes.
    pub fn percentiles(&mut self, now: Instant) -> Option<Percentiles> {
        let number = self.number(now);
        self.forget_before(number);
        let mut counts: Vec<(u16, u64)> =
            self.slices.iter().flat_map(|s| &s.counts).map(|(bucket, n)| (*bucket, u64::from(*n))).collect();
        counts.sort_unstable();
        let total: u64 = counts.iter().map(|(_, n)| n).sum();
        let max = self.slices.iter().map(|s| s.max).max()?;
        let at = |percent: u64| {
            let rank = (total * percent).div_ceil(100);
            let mut seen = 0;
            let bucket = counts.iter().find(|(_, n)| {
                seen += n;
                seen >= rank
            });
            bucket.map_or(max, |(bucket, _)| middle(*bucket).min(max))
        };
        Some(Percentiles { p50: at(50), p95: at(95), p99: at(99), max })
    }

    fn number(&mut self, now: Instant) -> u64 {
        let began = *self.began.get_or_insert(now);
        now.saturating_duration_since(began).as_secs() / SLICE.as_secs()
    }

    fn forget_before(&mut self, number: u64) {
        let newest = self.slices.back().map_or(number, |slice| slice.number.max(number));
        while self.slices.front().is_some_and(|slice| slice.number + SLICES <= newest) {
            self.slices.pop_front();
        }
        // a quiet queue gives its memory back
        if self.slices.is_empty() {
            self.slices = VecDeque::new();
        }
    }
}

impl Slice {
    fn add(&mut self, ms: u64) {
        self.max = self.max.max(ms);
        let bucket = bucket(ms);
        match self.counts.binary_search_by_key(&bucket, |(b, _)| *b) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(1),
            Err(at) => self.counts.insert(at, (bucket, 1)),
        }
    }
}

/// At most 976 of them, so a slice has at most 8 KiB.
fn bucket(ms: u64) -> u16 {
    if ms < EXACT {
        return ms as u16;
    }
    let shift = ms.ilog2() - FINENESS;
    (u64::from(shift << FINENESS) + (ms >> shift)) as u16
}

fn middle(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < EXACT {
        return bucket;
    }
    let shift = (bucket >> FINENESS) - 1;
    let low = (bucket - (shift << FINENESS)) << shift;
    low + ((1 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn without_a_value_there_is_nothing() {
        assert_eq!(Window::default().percentiles(Instant::now()), None);
    }

    #[test]
    fn small_values_are_exact() {
        let (mut window, now) = (Window::default(), Instant::now());
        for n in 1..=20 {
            window.record(ms(n), now);
        }
        assert_eq!(window.percentiles(now), Some(Percentiles { p50: 10, p95: 19, p99: 20, max: 20 }));
    }

    #[test]
    fn one_value_is_all_percentiles() {
        let (mut window, now) = (Window::default(), Instant::now());
        window.record(ms(12_345), now);
        let p = window.percentiles(now).unwrap();
        assert_eq!(p.max, 12_345);
        assert!(p.p50.abs_diff(12_345) * 20 <= 12_345 && p.p50 == p.p99 && p.p99 <= p.max, "{p:?}");
    }

    #[test]
    fn values_leave_after_five_minutes() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.record(ms(900), start);
        window.record(ms(5), start + Duration::from_secs(200));

        let p = |window: &mut Window, s| window.percentiles(start + Duration::from_secs(s)).map(|p| p.max);
        assert_eq!(p(&mut window, 289), Some(900));
        assert_eq!(p(&mut window, 300), Some(5), "the first is five minutes old");
        assert_eq!(p(&mut window, 499), Some(5));
        assert_eq!(p(&mut window, 500), None);
    }

    #[test]
    fn a_value_from_a_slower_thread_still_counts_in_its_own_slice() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.record(ms(1), start);
        window.record(ms(2), start + Duration::from_secs(20));
        window.record(ms(3), start + Duration::from_secs(10));
        let p = |window: &mut Window, s| window.percentiles(start + Duration::from_secs(s)).map(|p| p.max);
        assert_eq!(p(&mut window, 20), Some(3));
        assert_eq!(p(&mut window, 310), Some(2), "that of second 10 is gone, that of second 20 is not");
    }

    #[test]
    fn memory_is_bounded_by_slices_and_buckets() {
        let (mut window, start) = (Window::default(), Instant::now());
        for second in 0..2_000 {
            for power in 0..64 {
                window.record(ms(1_u64 << power), start + Duration::from_secs(second));
            }
        }
        assert!(window.slices.len() as u64 <= SLICES, "{} slices", window.slices.len());
        assert!(window.slices.iter().all(|slice| slice.counts.len() <= 64));
        assert_eq!(bucket(u64::MAX), 975);
    }

    proptest::proptest! {
        #[test]
        fn the_middle_of_a_bucket_is_within_five_percent(ms in proptest::prelude::any::<u64>(), shift in 0..64_u32) {
            let ms = ms >> shift;
            let middle = middle(bucket(ms));
            proptest::prop_assert!(u128::from(middle.abs_diff(ms)) * 20 <= u128::from(ms), "{} {}", ms, middle);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_values(mut values in proptest::collection::vec(0..10_000_000_u64, 1..300)) {
            let (mut window, now) = (Window::default(), Instant::now());
            for value in &values {
                window.record(ms(*value), now);
            }
            values.sort_unstable();
            let p = window.percentiles(now).unwrap();
            for (percent, found) in [(50, p.p50), (95, p.p95), (99, p.p99)] {
                let right = values[(values.len() * percent).div_ceil(100) - 1];
                proptest::prop_assert!(found.abs_diff(right) * 20 <= right, "p{}: {} for {}", percent, found, right);
            }
            proptest::prop_assert_eq!(Some(&p.max), values.last());
        }
    }
}
