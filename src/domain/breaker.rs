//! The breaker of one webhook in one process: ten calls in a row without any HTTP answer open it. Then the webhook is held
//! (no calls, so no tries are spent), and after each hold one call at a time asks, until an answer of any status closes it.
//!
//! Pure: who calls tells what was heard, and gets how long to hold. The hold itself is kept in Redis for all processes.

use std::time::Duration;

/// Calls in a row without an answer that open it.
pub const SILENCE_MAX: u32 = 10;
/// The first hold; each further one is twice as long, up to [`HOLD_MAX`].
pub const HOLD: Duration = Duration::from_secs(5);
/// The longest hold.
pub const HOLD_MAX: Duration = Duration::from_secs(60);

/// What a call heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// An HTTP answer, whatever its status.
    Answer,
    /// No answer: refused, reset, TLS, DNS, timeout.
    Silence,
    /// The call was not made (its address is not allowed): it tells nothing of the receiver.
    Nothing,
}

/// What follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Hold the webhook for so long; the how-manieth hold it is.
    Hold(Duration, u32),
    /// It is closed again.
    Closed,
}

/// The right to make one call. Must come back by [`Breaker::hear`] or [`Breaker::give_back`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// One of many.
    Any,
    /// The one that asks whether the receiver is back.
    Asking,
}

/// The state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breaker {
    /// Calls in a row without an answer, while closed.
    silence: u32,
    /// Holds so far; 0 while closed.
    holds: u32,
    /// A call that asks is under way.
    asking: bool,
}

impl Breaker {
    /// How many calls may begin now, as far as the breaker is concerned; `None`: any number.
    #[must_use]
    pub fn room(&self) -> Option<usize> {
        (self.holds > 0).then(|| usize::from(!self.asking))
    }

    /// Takes the right to make a call, if there is one.
    pub fn turn(&mut self) -> Option<Turn> {
        match self.room() {
            None => Some(Turn::Any),
            Some(0) => None,
            Some(_) => {
                self.asking = true;
                Some(Turn::Asking)
            }
        }
    }

    /// The call was not made, or nobody waits for it any more.
    pub fn give_back(&mut self, turn: Turn) {
        if turn == Turn::Asking {
            self.asking = false;
        }
    }

    /// A call ended.
    pub fn hear(&mut self, turn: Turn, heard: Heard) -> Effect {
        self.give_back(turn);
        match heard {
            Heard::Answer => {
                let was_open = self.is_open();
                (self.silence, self.holds) = (0, 0);
                if was_open { Effect::Closed } else { Effect::None }
            }
            // while open only the one that asks counts: the others began before it opened
            _ if self.is_open() && turn == Turn::Any => Effect::None,
            _ if self.is_open() => self.hold(),
            Heard::Nothing => Effect::None,
            Heard::Silence => {
                self.silence = self.silence.saturating_add(1);
                if self.silence >= SILENCE_MAX { self.hold() } else { Effect::None }
            }
        }
    }

    fn hold(&mut self) -> Effect {
        let hold = HOLD.saturating_mul(1_u32.checked_shl(self.holds.min(8)).unwrap_or(u32::MAX)).min(HOLD_MAX);
        self.holds = self.holds.saturating_add(1);
        Effect::Hold(hold, self.holds)
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.holds > 0
    }

    /// Whether there is nothing to remember of it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Another process has opened its own, and held so often: nobody finds out anew what is known.
    pub fn join(&mut self, holds: u32) {
        self.holds = self.holds.max(holds);
    }

    /// Somebody freed the webhook. A call that asks at that moment goes on as one of many.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for n in 1..SILENCE_MAX {
            let turn = breaker.turn().unwrap();
            assert_eq!(breaker.hear(turn, Heard::Silence), Effect::None, "{n}");
        }
        assert_eq!(breaker.hear(Turn::Any, Heard::Silence), Effect::Hold(HOLD, 1));
        breaker
    }

    #[test]
    fn s16_ten_in_a_row_open_it_and_an_answer_in_between_begins_anew() {
        let mut breaker = Breaker::default();
        for n in 0..100 {
            let heard = if n % 10 == 9 { Heard::Answer } else { Heard::Silence };
            assert_eq!(breaker.hear(Turn::Any, heard), Effect::None);
        }
        assert_eq!((breaker.room(), opened().room()), (None, Some(1)));
    }

    #[test]
    fn s16_each_hold_is_twice_as_long_up_to_a_minute() {
        let mut breaker = opened();
        let mut holds = Vec::new();
        for _ in 0..6 {
            let turn = breaker.turn().unwrap();
            let Effect::Hold(hold, _) = breaker.hear(turn, Heard::Silence) else { panic!("held on") };
            holds.push(hold.as_secs());
        }
        assert_eq!(holds, [10, 20, 40, 60, 60, 60]);
    }

    #[test]
    fn s16_one_asks_at_a_time_and_any_answer_closes() {
        let mut breaker = opened();
        assert_eq!(breaker.turn(), Some(Turn::Asking));
        assert_eq!((breaker.turn(), breaker.room()), (None, Some(0)));
        assert_eq!(breaker.hear(Turn::Any, Heard::Silence), Effect::None, "it began before");
        breaker.give_back(Turn::Asking);
        assert_eq!(breaker.turn(), Some(Turn::Asking));
        assert_eq!(breaker.hear(Turn::Asking, Heard::Answer), Effect::Closed);
        assert!(breaker.is_idle());
        assert_eq!(opened().hear(Turn::Any, Heard::Answer), Effect::Closed, "a late one too");
    }

    #[test]
    fn a_blocked_address_opens_nothing_but_does_not_close_either() {
        let mut breaker = Breaker::default();
        for _ in 0..50 {
            assert_eq!(breaker.hear(Turn::Any, Heard::Nothing), Effect::None);
        }
        let mut breaker = opened();
        let turn = breaker.turn().unwrap();
        assert_eq!(breaker.hear(turn, Heard::Nothing), Effect::Hold(HOLD * 2, 2));
    }

    #[test]
    fn another_process_is_joined_and_freeing_clears_all() {
        let mut breaker = Breaker::default();
        breaker.join(3);
        assert_eq!(breaker.room(), Some(1));
        breaker.join(1);
        let turn = breaker.turn().unwrap();
        assert_eq!(breaker.hear(turn, Heard::Silence), Effect::Hold(Duration::from_secs(40), 4));
        breaker.clear();
        assert!(breaker.is_idle());
        breaker.join(u32::MAX);
        assert_eq!(breaker.hear(Turn::Asking, Heard::Silence), Effect::Hold(HOLD_MAX, u32::MAX));
    }

    /// A random life: turns are taken, given back and heard of in any order.
    fn live(steps: &[(u8, u8)], mut check: impl FnMut(&Breaker, Option<(Turn, Heard, Effect)>, usize)) {
        let (mut breaker, mut out) = (Breaker::default(), Vec::new());
        for (what, which) in steps {
            let mut told = None;
            if *what < 4 || out.is_empty() {
                out.extend(breaker.turn());
            } else {
                let turn = out.swap_remove(*which as usize % out.len());
                let heard = match what {
                    4 => {
                        breaker.give_back(turn);
                        None
                    }
                    5 => Some(Heard::Answer),
                    6 => Some(Heard::Nothing),
                    _ => Some(Heard::Silence),
                };
                told = heard.map(|heard| (turn, heard, breaker.hear(turn, heard)));
            }
            check(&breaker, told, out.iter().filter(|t| **t == Turn::Asking).count());
        }
    }

    proptest! {
        #[test]
        fn never_more_than_one_asks_and_room_says_so(steps in prop::collection::vec((0..20_u8, any::<u8>()), 0..400)) {
            live(&steps, |breaker, _, asking| {
                assert!(asking <= 1);
                if breaker.is_open() {
                    assert_eq!(breaker.room(), Some(1 - asking));
                } else {
                    assert_eq!(breaker.room(), None);
                }
            });
        }

        #[test]
        fn it_opens_after_ten_silences_in_a_row_and_closes_with_any_answer(
            steps in prop::collection::vec((0..20_u8, any::<u8>()), 0..400),
        ) {
            let (mut row, mut was_open, mut last) = (0, false, Duration::ZERO);
            live(&steps, |breaker, told, _| {
                if let Some((turn, heard, effect)) = told {
                    match heard {
                        Heard::Answer => row = 0,
                        Heard::Silence => row += 1,
                        Heard::Nothing => {}
                    }
                    let opens = !was_open && heard == Heard::Silence && row >= SILENCE_MAX;
                    let holds_on = was_open && heard != Heard::Answer && turn == Turn::Asking;
                    match effect {
                        Effect::Hold(hold, _) => {
                            assert!(opens || holds_on);
                            assert_eq!(hold, if opens { HOLD } else { (last * 2).min(HOLD_MAX) });
                            last = hold;
                        }
                        Effect::Closed => assert!(was_open && heard == Heard::Answer),
                        Effect::None => assert!(!(opens || holds_on || was_open && heard == Heard::Answer)),
                    }
                }
                was_open = breaker.is_open();
            });
        }
    }
}
