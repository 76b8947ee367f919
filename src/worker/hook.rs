//! What this process knows of one webhook: its breaker, and until when it is held. Redis holds it for all processes, a
//! moment later: the hold goes there with the next settlement.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    domain::{
        attempt::{Advice, Outcome, Report},
        breaker::{Breaker, Effect, Heard, Turn},
        time::UnixMs,
    },
    store::{Holds, Note, Stamp},
};

/// A hold that ends so soon is left to Redis, which has it by then. A process whose clock lags a little must not think at
/// the hold's very end that there is no room, and rest.
const CLOCK_DOUBT: Duration = Duration::from_millis(500);

/// Successes that follow upon one that was told, with no failure in between, are told again only after so long: one tells
/// the same of the webhook as many, and each costs Redis.
const TOLD_FOR: Duration = Duration::from_millis(50);

/// Shared by its calls under way.
#[derive(Default)]
pub struct Hook(Mutex<State>);

#[derive(Default)]
struct State {
    breaker: Breaker,
    held_until: Option<UnixMs>,
    last_failure: Stamp,
    /// The last success that was told, if nothing failed since.
    told: Option<UnixMs>,
}

impl Hook {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many calls may begin now; `None`: any number. A hold that this process knows of already counts too.
    pub fn room(&self, now: UnixMs) -> Option<usize> {
        let state = self.lock();
        if state.held_until.is_some_and(|until| until > now.plus(CLOCK_DOUBT)) { Some(0) } else { state.breaker.room() }
    }

    /// Until when it is held, as far as this process knows.
    pub fn held_until(&self) -> Option<UnixMs> {
        self.lock().held_until
    }

    pub fn turn(&self) -> Option<Turn> {
        self.lock().breaker.turn()
    }

    pub fn give_back(&self, turn: Turn) {
        self.lock().breaker.give_back(turn);
    }

    /// A breaker that another process opened is joined.
    pub fn join(&self, holds: u32) {
        if holds > 0 {
            self.lock().breaker.join(holds);
        }
    }

    /// The set-up has changed: what Redis no longer knows was freed.
    pub fn refresh(&self, holds: &Holds, webhook: &str) {
        let mut state = self.lock();
        state.held_until = holds.until(webhook);
        state.told = None;
        match holds.breaker(webhook) {
            0 if state.breaker.is_open() => state.breaker.clear(),
            0 => {}
            n => state.breaker.join(n),
        }
    }

    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.breaker.is_idle() && state.held_until.is_none()
    }

    /// A call came back at `now`: what it tells.
    pub fn hear(&self, turn: Turn, report: &Report, now: UnixMs) -> Note {
        let heard = match (report.status, report.outcome) {
            (Some(_), _) => Heard::Answer,
            (None, Outcome::Blocked) => Heard::Nothing,
            (None, _) => Heard::Silence,
        };
        let mut state = self.lock();
        let (hold, breaker) = match state.breaker.hear(turn, heard) {
            Effect::Hold(hold, holds) => (Some(hold), Some(holds)),
            Effect::Closed => (None, Some(0)),
            Effect::None => (None, None),
        };
        let asked = if let Advice::RetryAfter(wait) = report.advice { Some(wait) } else { None };
        let held_until = hold.max(asked).filter(|hold| !hold.is_zero()).map(|hold| now.plus(hold));
        state.held_until = state.held_until.filter(|until| *until > now).max(held_until);
        let won = report.outcome == Outcome::Delivered;
        let known = state.told.is_some_and(|told| told <= now && now.since(told) < TOLD_FOR);
        let success = Some(now).filter(|_| won && !known);
        let failure = if won { None } else { Some(Stamp::of(now, state.last_failure)) };
        state.told = if won { success.or(state.told) } else { None };
        state.last_failure = failure.unwrap_or(state.last_failure);
        Note { held_until, breaker, success, failure, failures: u64::from(!won), ..Note::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let advice = Advice::None;
        Report { outcome, status: Some(200), error: None, response: None, advice, duration: Duration::ZERO }
    }

    #[test]
    fn a_success_is_told_if_it_is_the_first_or_after_a_failure_or_a_while() {
        let hook = Hook::default();
        let told = |outcome, at| {
            let note = hook.hear(hook.turn().expect("a turn"), &report(outcome), UnixMs(at));
            (note.success.is_some(), note.failure.is_some(), note.is_silent())
        };
        use Outcome::{Delivered, Rejected};
        for (outcome, at, want) in [
            (Delivered, 1000, (true, false, false)),
            (Delivered, 1049, (false, false, true)),
            (Delivered, 1050, (true, false, false)),
            (Rejected, 1051, (false, true, false)),
            (Delivered, 1052, (true, false, false)),
            (Delivered, 1051, (true, false, false)), // the clock went back
        ] {
            assert_eq!(told(outcome, at), want, "{outcome:?} at {at}");
        }
    }
}
