//! A room of the [waiting hall](super::waiting): the claims of one queue, in turn.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Lease, Pulled, Store, StoreError, Taken, Want,
    window::{Known, Wanted},
};
use crate::domain::time::UnixMs;

/// What a claim comes to.
pub type Answer = Result<Taken, StoreError>;

/// A claim.
pub struct Waiter {
    pub want: Want,
    pub until: Instant,
    /// Whether a look has been made since this one came in.
    pub looked: bool,
    /// Why the last look failed.
    pub trouble: Option<StoreError>,
    /// Which one this is of its room.
    pub turn: u64,
    pub answer: oneshot::Sender<Answer>,
}

/// The claims of one queue.
#[derive(Default)]
pub struct Room {
    pub waiters: VecDeque<Waiter>,
    /// Waiters that ever came in.
    pub turns: u64,
    /// When to look next.
    pub at: Option<Instant>,
    /// The place in the hall's timers.
    pub timer: Option<Instant>,
    /// A look is under way, for those up to this turn.
    pub looking: Option<u64>,
    /// The instant came while a look was under way.
    pub rung: bool,
    pub known: Option<Known>,
    /// Looks before this instant are brief.
    pub whole_at: UnixMs,
}

impl Room {
    /// Wants a look no later than this.
    pub fn want(&mut self, at: Instant) {
        self.at = Some(self.at.map_or(at, |old| old.min(at)));
    }

    /// Answers those whose wait is over, and lets those go that have gone.
    pub fn dismiss(&mut self, now: Instant) {
        let over = |w: &Waiter| w.until <= now && (w.looked || w.trouble.is_some());
        if !self.waiters.iter().any(|w| over(w) || w.answer.is_closed()) {
            return;
        }
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.answer.is_closed() {
                continue;
            }
            if !over(&waiter) {
                self.waiters.push_back(waiter);
                continue;
            }
            let answer = match waiter.trouble {
                Some(error) if !waiter.looked => Err(error),
                _ => Ok(Taken::nothing()),
            };
            let _ = waiter.answer.send(answer);
        }
    }

    pub fn wants_look(&self, now: Instant) -> bool {
        let new = |w: &Waiter| !w.looked && w.trouble.is_none();
        !self.waiters.is_empty() && (self.at.is_some_and(|at| at <= now) || self.waiters.iter().any(new))
    }

    /// A visit for those in front who want the same lease.
    pub fn next_visit(&self) -> Wanted {
        let lease = self.waiters.front().map(|w| w.want.lease).unwrap_or_default();
        let alike = self.waiters.iter().take_while(|w| w.want.lease == lease);
        Wanted { lease, tasks: alike.map(|w| w.want.max).sum() }
    }

    pub fn next_instant(&self) -> Option<Instant> {
        if self.waiters.is_empty() {
            return None;
        }
        let until = self.waiters.iter().filter(|w| w.looked).map(|w| w.until).min();
        let look = self.at.filter(|_| self.looking.is_none());
        until.into_iter().chain(look).min()
    }

    /// Gives tasks to those in front who want this lease; answers what nobody took.
    pub fn hand_out(
        &mut self,
        mut tasks: Vec<(Lease, Pulled)>,
        lease: Duration,
        store: &Arc<Store>,
    ) -> Vec<(Lease, Pulled)> {
        while !tasks.is_empty() {
            let Some(at) = self.waiters.iter().position(|w| w.want.lease == lease) else { break };
            let Some(waiter) = self.waiters.remove(at) else { break };
            let rest = tasks.split_off(waiter.want.max.min(tasks.len()));
            let taken = Taken::new(tasks, store, Instant::now() + lease);
            tasks = rest;
            if let Err(Ok(taken)) = waiter.answer.send(Ok(taken)) {
                let mut back = taken.take_back(); // the client has gone meanwhile
                back.append(&mut tasks);
                tasks = back;
            }
        }
        tasks
    }
}
