//! Redis owns the clock. This is the process's idea of it between two answers, by the monotonic clock, with a brake
//! against jumps; the wall clock alone moves nothing.
//!
//! Two readings: what Redis *shows*, for instants that scripts compare with Redis's own clock (agenda, leases), and what
//! this process *trusts*, for what must never come early: due instants and delays. They part when Redis's clock jumps
//! by more than [`BRAKE`], until it comes back, or the process's wall clock shows that it was right to jump.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{sync::Notify, time::Instant};

use crate::domain::time::UnixMs;

/// Redis's clock may differ by so much from what this process trusts, and is followed.
pub const BRAKE: Duration = Duration::from_secs(2);
/// An answer that is further behind what was expected is a step, unless its way explains it.
const STEP_US: i64 = 20_000;

/// A primary that has not answered for so long is no reason for an alarm any more.
const FORGET: Duration = Duration::from_secs(30);
const BRAKE_US: i64 = 2_000_000;
const ROUNDING_US: i64 = 1_000;
const UNKNOWN: i64 = i64::MIN;

/// What an answer of Redis came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// By how much the clock differed from what it showed before, beyond what the answer's way explains.
    pub jump: Duration,
    /// What became of the brake.
    pub brake: Option<Brake>,
}

/// A change of the brake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brake {
    /// Redis's clock is so many milliseconds ahead (behind, if negative) and is not followed.
    Set(i64),
    /// Redis's clock is back.
    Back,
    /// This process's wall clock agrees: the new time is right.
    Adopted,
}

/// Redis's clock, extrapolated, plus the offset that tests move.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    wall: fn() -> SystemTime,
    /// What Redis shows minus the monotonic clock, in µs.
    shown_us: AtomicI64,
    /// The same, as far as it is trusted.
    trusted_us: AtomicI64,
    /// While the brake is set: the primaries whose clock is off, by how many ms it is ahead, and when that was seen.
    /// Held by whoever takes in an answer.
    off: Mutex<HashMap<usize, (i64, Instant)>>,
    stepped: Mutex<Option<Instant>>,
    offset_ms: AtomicI64,
    moved: Notify,
}

impl Default for Clock {
    #[allow(clippy::disallowed_methods)] // the wall clock only confirms what Redis says
    fn default() -> Self {
        Self::with_wall(SystemTime::now)
    }
}

impl Clock {
    /// With a wall clock of the caller's.
    #[must_use]
    pub fn with_wall(wall: fn() -> SystemTime) -> Self {
        Self {
            start: Instant::now(),
            wall,
            shown_us: AtomicI64::new(UNKNOWN),
            trusted_us: AtomicI64::new(UNKNOWN),
            off: Mutex::default(),
            stepped: Mutex::default(),
            offset_ms: AtomicI64::new(0),
            moved: Notify::new(),
        }
    }

    fn elapsed_us(&self) -> i64 {
        micros(self.start.elapsed())
    }

    /// Takes note of an instant that the primary at this place answered to a call that was `sent` with this offset.
    pub fn observe(&self, answered: UnixMs, offset_ms: i64, sent: Instant, place: usize) -> Observed {
        let mut all = self.off.lock().unwrap_or_else(PoisonError::into_inner);
        let (answered_us, way_us) = ((answered.0 - offset_ms) * 1000, micros(sent.elapsed()));
        let new = answered_us - self.elapsed_us();
        let (shown, trusted) = (self.shown_us.load(Ordering::Relaxed), self.trusted_us.load(Ordering::Relaxed));
        if trusted == UNKNOWN {
            self.shown_us.store(new, Ordering::Relaxed);
            self.trusted_us.store(new, Ordering::Relaxed);
            return Observed { jump: Duration::ZERO, brake: None };
        }
        self.shown_us.store(follow(shown, new, way_us), Ordering::Relaxed);
        // the answer was true at some time on its way: the clock is now at `new`, or up to `way_us` later
        let off = outside(new - trusted, way_us);
        let beyond = off.abs() > BRAKE_US;
        let wall_us = (self.wall)().duration_since(UNIX_EPOCH).map_or(0, micros);
        let agrees = outside(answered_us - wall_us, way_us).abs() <= BRAKE_US;
        if !beyond || agrees {
            let next = if beyond { new } else { follow(trusted, new, way_us) };
            self.trusted_us.store(next, Ordering::Relaxed);
        }
        let was_set = !all.is_empty();
        if beyond && !agrees {
            all.insert(place, (off / 1000, Instant::now()));
        } else {
            all.remove(&place);
            all.retain(|_, (_, seen)| seen.elapsed() < FORGET);
        }
        let brake = match (was_set, !all.is_empty()) {
            (false, true) => Some(Brake::Set(off / 1000)),
            (true, false) if !beyond => Some(Brake::Back),
            _ => (beyond && agrees).then_some(Brake::Adopted),
        };
        let jump = Duration::from_micros(outside(new - shown, way_us).unsigned_abs());
        if jump > Duration::from_secs(1) {
            *self.stepped.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        Observed { jump, brake }
    }

    /// Redis's clock now, as far as it is trusted.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        self.reading(&self.trusted_us)
    }

    /// What Redis's clock shows now.
    #[must_use]
    pub fn shown(&self) -> UnixMs {
        self.reading(&self.shown_us)
    }

    fn reading(&self, base: &AtomicI64) -> UnixMs {
        let us = base.load(Ordering::Relaxed).saturating_add(self.elapsed_us());
        UnixMs(us.div_euclid(1000) + self.offset_ms())
    }

    /// Nothing due later than this may begin; `None` before Redis has answered once.
    #[must_use]
    pub fn latest(&self) -> Option<UnixMs> {
        (self.trusted_us.load(Ordering::Relaxed) != UNKNOWN).then(|| self.now().plus(BRAKE))
    }

    /// A delay counts from no earlier than this; `None` before Redis has answered once.
    #[must_use]
    pub fn earliest(&self) -> Option<UnixMs> {
        self.latest().map(|latest| UnixMs(latest.0 - 2 * BRAKE_US / 1000))
    }

    /// While the brake is set: how many milliseconds Redis's clock is ahead of what is trusted; negative is behind.
    #[must_use]
    pub fn ahead_ms(&self) -> Option<i64> {
        let all = self.off.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().map(|(ms, _)| *ms).max_by_key(|ms| ms.abs())
    }

    /// Whether what Redis shows made no step in this span.
    #[must_use]
    pub fn is_steady(&self, span: Duration) -> bool {
        let stepped = *self.stepped.lock().unwrap_or_else(PoisonError::into_inner);
        stepped.is_none_or(|at| at.elapsed() >= span)
    }

    /// The monotonic instant at which Redis's clock will show `at`; never further than an hour.
    #[must_use]
    pub fn instant_of(&self, at: UnixMs) -> Instant {
        let base = self.shown_us.load(Ordering::Relaxed);
        let target = (at.0 - self.offset_ms()).saturating_mul(1000).saturating_sub(base);
        let wait = target.saturating_sub(self.elapsed_us()).clamp(0, 3_600_000_000);
        Instant::now() + Duration::from_micros(u64::try_from(wait).unwrap_or(0))
    }

    /// The offset that scripts add to `TIME`: zero but in tests.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }

    /// Moves the clock of this process's scripts forward (tests).
    pub fn advance(&self, by: Duration) {
        self.offset_ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(0), Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    /// Wakes when [`Self::advance`] moved the clock.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// How far the span from `off` to `off + way` is from zero.
fn outside(off: i64, way: i64) -> i64 {
    if off > 0 { off } else { off.saturating_add(way).min(0) }
}

/// An answer is whole milliseconds, rounded down, and was true at some time on its way: the clock is now at `new`, or up to
/// a millisecond and the way later. What lies within that stays; a late answer says nothing against it. Below, it is
/// followed up at once. Beyond, it is followed down slowly (clocks drift), or at once if it is a step. So the reading is
/// as near to the truth as the fastest answer was, and never goes after slow ones.
fn follow(old: i64, new: i64, way_us: i64) -> i64 {
    match outside(new - old, way_us + ROUNDING_US) {
        0 => old,
        off if (-STEP_US..0).contains(&off) => old + off / 16 - 1,
        off if off < 0 => new,
        up => old + up,
    }
}

/// How long ago something began, by the monotonic clock and by the wall clock, whichever shows more: one of them stands
/// still while a machine is suspended.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    monotonic: Instant,
    wall: SystemTime,
}

impl Stopwatch {
    /// Begins now.
    #[must_use]
    #[allow(clippy::disallowed_methods)] // the wall clock can only make an attempt not start
    pub fn start() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.monotonic.elapsed().max(self.wall.elapsed().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const T: i64 = 1_796_061_300_000;

    /// A clock whose wall shows `T` for ever; the tests take no time to speak of.
    fn clock() -> Clock {
        let clock = Clock::with_wall(|| UNIX_EPOCH + Duration::from_millis(T.unsigned_abs()));
        assert_eq!(clock.latest(), None, "nothing is known yet");
        clock
    }

    fn says(clock: &Clock, ms: i64) -> Observed {
        clock.observe(UnixMs(ms), clock.offset_ms(), Instant::now(), 0)
    }

    /// Within a second: the machine may be busy.
    fn near(a: UnixMs, b: i64) -> bool {
        (a.0 - b).abs() < 1000
    }

    #[tokio::test]
    async fn the_first_answer_is_taken_and_a_jump_is_not() {
        let clock = clock();
        says(&clock, T);
        for (jump, ahead) in [(HOUR, HOUR), (-HOUR, -HOUR)] {
            let Observed { brake: Some(Brake::Set(ms)), .. } = says(&clock, T + jump) else { panic!("no brake") };
            assert!((ms - ahead).abs() < 1000, "{ms}");
            assert!(near(clock.now(), T) && near(clock.shown(), T + jump), "{:?} {:?}", clock.now(), clock.shown());
            assert!(near(clock.latest().unwrap(), T + 2000) && near(clock.earliest().unwrap(), T - 2000));
            assert_eq!(says(&clock, T + jump).brake, None, "said once");
            assert!(clock.ahead_ms().is_some());
            assert_eq!(says(&clock, T).brake, Some(Brake::Back));
            assert_eq!(clock.ahead_ms(), None);
        }
    }

    #[tokio::test]
    async fn a_jump_is_adopted_when_the_wall_clock_agrees() {
        let clock = clock();
        says(&clock, T - HOUR); // a fresh process believes what it hears
        assert!(near(clock.now(), T - HOUR));
        assert_eq!(says(&clock, T - 100).brake, Some(Brake::Adopted), "Redis was put right");
        assert!(near(clock.now(), T) && clock.ahead_ms().is_none());
        assert!(matches!(says(&clock, T + HOUR).brake, Some(Brake::Set(_))));
        assert!(near(clock.now(), T), "the wall clock alone moves nothing, nor does Redis alone");
    }

    #[tokio::test]
    async fn small_steps_are_followed_and_old_answers_are_no_steps() {
        let clock = clock();
        says(&clock, T);
        assert_eq!(says(&clock, T + 1500).brake, None);
        assert!(near(clock.now(), T + 1500));
        let sent = Instant::now().checked_sub(Duration::from_secs(10)).expect("up for ten seconds");
        let late = clock.observe(UnixMs(T - 5000), 0, sent, 0);
        assert_eq!((late.brake, late.jump), (None, Duration::ZERO), "it was on its way for ten seconds");
        assert!(near(clock.now(), T + 1500) && near(clock.shown(), T + 1500));
    }

    #[test]
    fn slow_answers_say_nothing_against_a_fast_one() {
        let fast = follow(UNKNOWN / 2, 1_000_000, 100);
        let mut clock = fast;
        for late in 0..1000 {
            let way = 1_000 + late * 50;
            clock = follow(clock, 1_000_000 - way, way);
        }
        assert_eq!(clock, fast, "each was true when it was sent");
        assert_eq!(follow(clock, clock + 300, 100), clock + 300, "up at once");
        let down = follow(clock, clock - 5_000, 100);
        assert!((clock - 300..clock).contains(&down), "down slowly");
        assert_eq!(follow(clock, clock - 50_000, 100), clock - 50_000, "a step at once");
    }

    #[tokio::test]
    async fn one_primary_of_several_that_is_off_is_one_alarm() {
        let clock = clock();
        let say = |ms, place| clock.observe(UnixMs(ms), 0, Instant::now(), place).brake;
        say(T, 0);
        assert!(matches!(say(T + HOUR, 1), Some(Brake::Set(_))));
        for _ in 0..3 {
            assert_eq!((say(T, 0), say(T + HOUR, 1)), (None, None));
        }
        assert!(near(clock.now(), T) && clock.ahead_ms().is_some());
        assert_eq!(say(T, 1), Some(Brake::Back));
    }

    #[tokio::test]
    async fn the_offset_of_tests_is_no_jump() {
        let clock = clock();
        says(&clock, T);
        let before = clock.offset_ms();
        clock.advance(Duration::from_secs(3600));
        assert_eq!(clock.observe(UnixMs(T), before, Instant::now(), 0).brake, None, "an answer to the offset before");
        assert_eq!(says(&clock, T + HOUR).brake, None);
        assert!(near(clock.now(), T + HOUR));
    }
}
