//! Fan-out is a round: a claim leases the whole task to one worker, [`plan`] chooses which webhooks to call, and
//! [`judge`] turns what they answered into one verdict. Both are pure: no clock, no randomness, no IO.
//!
//! Invariants: a webhook that has the task is never called again in the same life; no round ends a task while no
//! webhook is enabled; nothing here looks at more than one task.

use std::{collections::BTreeMap, time::Duration};

use super::{
    attempt::{Advice, Attempt, Outcome, Report},
    retry::Retry,
    task::{ATTEMPTS_KEPT, DeadReason},
    time::UnixMs,
};

/// Workers that may vanish with a task before it is dead; a setting of the worker, and what a claim by pull goes by.
pub const MAX_RECLAIMS: u32 = 10;
/// First pause of a round that had nothing to call but for slots; it doubles up to [`SLOT_WAIT_MAX`].
pub const SLOT_WAIT: Duration = Duration::from_secs(1);
/// Longest such pause.
pub const SLOT_WAIT_MAX: Duration = Duration::from_secs(10);

/// The longest that a task waits for the end of a hold without a look whether it still stands.
pub const HELD_WAIT_MAX: Duration = Duration::from_secs(60);

/// How far one webhook has come with a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tries {
    /// Attempts that failed.
    pub failed: u32,
    /// Attempts that reported, whatever they reported.
    pub begun: u32,
    /// No attempt before this instant.
    pub next: UnixMs,
    /// Its attempts are used up, or it refused.
    pub gave_up: bool,
}

/// What pull consumers reported of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pulls {
    /// Attempts that they refused.
    pub failed: u32,
    /// Attempts that they reported, whatever they reported.
    pub begun: u32,
}

/// What only Rust reads of a run row: opaque bytes to the scripts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Per webhook.
    pub hooks: BTreeMap<String, Tries>,
    /// By pull; counts beside those of every webhook.
    pub pulls: Pulls,
    /// The instant that my last verdict set; another score at the claim means that somebody moved the task.
    pub due: Option<UnixMs>,
    /// Rounds in a row that found no free slot.
    pub slot_waits: u32,
    /// Lost attempts that are in `attempts` already.
    pub lost_noted: u32,
    /// The last [`ATTEMPTS_KEPT`], oldest first.
    pub attempts: Vec<Attempt>,
    /// Why it is dead.
    pub reason: Option<DeadReason>,
}

impl Progress {
    /// Attempts that reported: those of the webhook with the most, and the pulled ones.
    #[must_use]
    pub fn most_begun(&self) -> u32 {
        self.hooks.values().map(|t| t.begun).max().unwrap_or(0).saturating_add(self.pulls.begun)
    }

    /// Attempts that failed, as a pull counts them: the pulled ones, and those of the webhook that has most of its tries left.
    #[must_use]
    pub fn least_failed(&self) -> u32 {
        let living = self.hooks.values().filter(|t| !t.gave_up);
        living.map(|t| t.failed).min().unwrap_or(0).saturating_add(self.pulls.failed)
    }

    /// Puts attempts on the record of which nobody reported, up to `lost` of them in all; answers how many are new.
    pub fn note_lost(&mut self, lost: u32, started_at: UnixMs) -> u32 {
        let new = lost.saturating_sub(self.lost_noted);
        for _ in 0..new {
            self.lost_noted += 1;
            self.note(Attempt {
                number: self.most_begun().saturating_add(self.lost_noted),
                webhook: None,
                started_at,
                lateness_ms: 0,
                duration_ms: 0,
                outcome: Outcome::Lost,
                status: None,
                error: Some("the worker vanished, or the lease ran out".to_owned()),
                response: None,
            });
        }
        new
    }

    /// Keeps an attempt, forgetting the oldest one where there are too many.
    pub fn note(&mut self, attempt: Attempt) {
        self.attempts.push(attempt);
        let too_many = self.attempts.len().saturating_sub(ATTEMPTS_KEPT);
        self.attempts.drain(..too_many);
    }
}

/// What a claim found.
#[derive(Debug, Clone)]
pub struct Claimed<'a> {
    /// What earlier rounds left.
    pub progress: &'a Progress,
    /// Push attempts whose worker vanished.
    pub reclaims: u32,
    /// Pull leases that ran out.
    pub lapses: u32,
    /// Webhooks that have the task.
    pub has: &'a [String],
    /// The score under which it was due.
    pub due: UnixMs,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
}

/// A webhook that could be called.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its id.
    pub id: &'a str,
    /// Held until this instant.
    pub held_until: Option<UnixMs>,
    /// Whether this process may call it now.
    pub slot: bool,
}

/// Limits that a plan looks at.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Attempts that may fail.
    pub max_attempts: u32,
    /// Workers that may vanish.
    pub max_reclaims: u32,
}

/// What to do with a claimed task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// No attempt: settle with this verdict.
    End(Verdict),
    /// Call these (indexes into the candidates); `open` still want the task.
    Call {
        /// Webhooks that still want it.
        open: Vec<usize>,
        /// Those of them to call now.
        call: Vec<usize>,
    },
}

/// How a round ends; [`super::task::TRANSITIONS`] says what the script makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Every webhook that counts has it.
    Done,
    /// A pull consumer has done it: counts under the latest fence only.
    Ack,
    /// An attempt failed: again at this instant.
    Retry(UnixMs),
    /// No attempt was made: again at this instant, costing no try.
    Release(UnixMs),
    /// Given up.
    Dead(DeadReason),
    /// No longer wanted.
    Expired,
}

/// Chooses what to call. `enabled` are the queue's enabled webhooks as of this claim.
#[must_use]
pub fn plan(task: &Claimed<'_>, enabled: &[Candidate<'_>], limits: Limits, now: UnixMs) -> Plan {
    if task.expires_at.is_some_and(|at| at <= now) {
        return Plan::End(Verdict::Expired);
    }
    if task.reclaims >= limits.max_reclaims {
        return Plan::End(Verdict::Dead(DeadReason::Lost));
    }
    if enabled.is_empty() {
        return Plan::End(Verdict::Release(task.due)); // never "done": a webhook may come yet
    }
    let tries = |c: &Candidate<'_>| task.progress.hooks.get(c.id).copied().unwrap_or_default();
    let gave_up = |c: &Candidate<'_>| {
        let t = tries(c);
        let failed = t.failed.saturating_add(task.progress.pulls.failed).saturating_add(task.lapses);
        t.gave_up || failed >= limits.max_attempts
    };
    let wants: Vec<usize> = (0..enabled.len()).filter(|i| !task.has.iter().any(|h| h == enabled[*i].id)).collect();
    let open: Vec<usize> = wants.iter().copied().filter(|i| !gave_up(&enabled[*i])).collect();
    if open.is_empty() {
        let verdict = if wants.is_empty() { Verdict::Done } else { Verdict::Dead(task.dead_reason()) };
        return Plan::End(verdict);
    }
    let moved = task.was_moved();
    let ready = |c: &Candidate<'_>| (moved || tries(c).next <= now) && c.held_until.is_none_or(|until| until <= now);
    let call: Vec<usize> = open.iter().copied().filter(|i| ready(&enabled[*i]) && enabled[*i].slot).collect();
    if !call.is_empty() {
        return Plan::Call { open, call };
    }
    let slot_wait = slot_wait(task.progress.slot_waits);
    let wait = |c: &Candidate<'_>| {
        let next = if moved { now } else { tries(c).next };
        let held = c.held_until.map_or(next, |until| look_again(until, now));
        next.max(held).max(if ready(c) { now.plus(slot_wait) } else { UnixMs(now.0 + 1) })
    };
    let at = open.iter().map(|i| wait(&enabled[*i])).min().unwrap_or(now.plus(slot_wait));
    Plan::End(Verdict::Release(at))
}

/// A hold may be cleared before its end, so a task that waits for one of several webhooks is looked at in between.
fn look_again(held_until: UnixMs, now: UnixMs) -> UnixMs {
    held_until.min(now.plus(HELD_WAIT_MAX))
}

/// 1 s doubling to 10 s.
fn slot_wait(waits: u32) -> Duration {
    SLOT_WAIT.saturating_mul(1_u32.checked_shl(waits.min(8)).unwrap_or(u32::MAX)).min(SLOT_WAIT_MAX)
}

impl Claimed<'_> {
    /// Whether the score at the claim is not the one of my last verdict, nor that of a lease that ended since: then
    /// PATCH or `run` moved it, and every open webhook is called.
    #[must_use]
    pub fn was_moved(&self) -> bool {
        let lost_since = self.reclaims.saturating_add(self.lapses) > self.progress.lost_noted;
        !lost_since && self.progress.due.is_some_and(|due| due != self.due)
    }

    fn dead_reason(&self) -> DeadReason {
        self.progress.reason.unwrap_or(DeadReason::MaxAttempts)
    }
}

/// One webhook's answer in a round.
#[derive(Debug, Clone)]
pub struct Answered<'a> {
    /// Which webhook.
    pub id: &'a str,
    /// What it answered.
    pub report: &'a Report,
    /// Even random number in [0, 1) for the jitter.
    pub dice: f64,
}

/// What a round comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// How it ends.
    pub verdict: Verdict,
    /// The webhooks that the verdict is about: those that still want the task (retry) or gave up (dead).
    pub about: Vec<String>,
    /// Those that answered 2xx.
    pub won: Vec<String>,
    /// Those that answered 410 and are to be disabled first.
    pub gone: Vec<String>,
    /// Calls that failed.
    pub failed: u32,
}

/// Turns a round's answers into one verdict and writes the tries into `progress`.
///
/// `open` are the ids of the webhooks that wanted the task at the plan, `has` those that had it before.
#[must_use]
pub fn judge(
    progress: &mut Progress,
    task: &Round<'_>,
    answers: &[Answered<'_>],
    retry: &Retry,
    now: UnixMs,
) -> Judgement {
    let (mut won, mut gone, mut gave_up) = (Vec::new(), Vec::new(), Vec::new());
    let (mut failed, pulled) = (0, progress.pulls.failed.saturating_add(task.lapses));
    for answer in answers {
        let tries = progress.hooks.entry(answer.id.to_owned()).or_default();
        tries.begun = tries.begun.saturating_add(1);
        if answer.report.outcome == Outcome::Delivered {
            won.push(answer.id.to_owned());
            continue;
        }
        failed += 1;
        tries.failed = tries.failed.saturating_add(1);
        if answer.report.advice == Advice::Gone {
            gone.push(answer.id.to_owned());
            continue;
        }
        let backoff = retry.backoff.pause(tries.failed, answer.dice);
        let asked = if let Advice::RetryAfter(wait) = answer.report.advice { wait } else { Duration::ZERO };
        tries.next = now.plus(backoff.max(asked).max(Duration::from_millis(1)));
        let refused = answer.report.advice == Advice::Refused;
        if refused || tries.failed.saturating_add(pulled) >= retry.max_attempts {
            tries.gave_up = true;
            gave_up.push(answer.id.to_owned());
            progress.reason = Some(if refused { DeadReason::Refused } else { DeadReason::MaxAttempts });
        }
    }
    let out = |id: &str| [&won, &gone, &gave_up].iter().any(|l| l.iter().any(|x| x == id));
    let left: Vec<String> = task.open.iter().filter(|id| !out(id)).map(|id| (*id).to_owned()).collect();
    gave_up.extend(task.gave_up_before.iter().map(|id| (*id).to_owned()));
    let (verdict, about) = if !left.is_empty() {
        let later = UnixMs(now.0 + 1);
        let held =
            |id: &String| task.held.iter().find(|(w, _)| w == id).map_or(later, |(_, until)| look_again(*until, now));
        let next = |id: &String| progress.hooks.get(id).map_or(later, |t| t.next.max(later)).max(held(id));
        match task.expires_at {
            Some(expires) if expires <= now => (Verdict::Expired, Vec::new()),
            _ => (Verdict::Retry(left.iter().map(next).min().unwrap_or(later)), left),
        }
    } else if !gave_up.is_empty() {
        (Verdict::Dead(progress.reason.unwrap_or(DeadReason::MaxAttempts)), gave_up)
    } else if !won.is_empty() || task.had_one {
        (Verdict::Done, Vec::new())
    } else {
        progress.reason = Some(DeadReason::Gone);
        (Verdict::Dead(DeadReason::Gone), Vec::new())
    };
    if !matches!(verdict, Verdict::Dead(_)) {
        progress.reason = progress.reason.filter(|_| progress.hooks.values().any(|t| t.gave_up));
    }
    progress.due = if let Verdict::Retry(at) = verdict { Some(at) } else { None };
    progress.slot_waits = 0;
    Judgement { verdict, about, won, gone, failed }
}

/// What [`judge`] needs to know of the plan.
#[derive(Debug, Clone)]
pub struct Round<'a> {
    /// Ids of the webhooks that wanted the task.
    pub open: Vec<&'a str>,
    /// Ids of enabled webhooks that gave up in an earlier round.
    pub gave_up_before: Vec<&'a str>,
    /// Webhooks that were held at the claim, and until when.
    pub held: Vec<(&'a str, UnixMs)>,
    /// Whether an enabled webhook had the task before.
    pub had_one: bool,
    /// Pull leases that ran out.
    pub lapses: u32,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
}

#[cfg(test)]
mod tests;
