//! Each rule of a round, then whole lives of fan-out tasks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::domain::retry::{Backoff, BackoffKind};

mod judging;
mod planning;

const NOW: UnixMs = UnixMs(1_000_000);
const LIMITS: Limits = Limits { max_attempts: 3, max_reclaims: 10 };

fn at(later_ms: i64) -> UnixMs {
    UnixMs(NOW.0 + later_ms)
}

fn retry(max_attempts: u32) -> Retry {
    let kind = BackoffKind::Fixed { delay: Duration::from_millis(100) };
    Retry { max_attempts, backoff: Backoff { kind, jitter: 0.0 } }
}

fn report(outcome: Outcome, advice: Advice) -> Report {
    let status = if outcome == Outcome::Delivered { 200 } else { 500 };
    let duration = Duration::from_millis(5);
    Report { outcome, status: Some(status), error: None, response: None, advice, duration }
}

fn delivered() -> Report {
    report(Outcome::Delivered, Advice::None)
}

fn rejected() -> Report {
    report(Outcome::Rejected, Advice::None)
}

/// A webhook that could be called at once.
fn free(id: &str) -> Candidate<'_> {
    Candidate { id, held_until: None, slot: true }
}

fn tries(failed: u32, next: UnixMs) -> Tries {
    Tries { failed, begun: failed, next, gave_up: false }
}

/// A task due now that was never tried.
fn fresh(progress: &Progress) -> Claimed<'_> {
    Claimed { progress, reclaims: 0, lapses: 0, has: &[], due: NOW, expires_at: None }
}

fn progress_with(hooks: &[(&str, Tries)]) -> Progress {
    let hooks = hooks.iter().map(|(w, t)| ((*w).to_owned(), *t)).collect();
    Progress { hooks, due: Some(NOW), ..Progress::default() }
}

fn own(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|w| (*w).to_owned()).collect()
}

/// What a receiver does this time.
#[derive(Debug, Clone, Copy)]
enum Does {
    Take,
    Fail,
    Refuse,
    Ask,
    Vanish,
}

/// One round of a life: how much later, who answers how, who is held, full or toggled.
#[derive(Debug, Clone)]
struct Turn {
    later_ms: i64,
    does: [Does; 3],
    gone: Option<usize>,
    held: Option<(usize, i64)>,
    full: Option<usize>,
    toggle: Option<usize>,
    worker_dies: bool,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let does = prop_oneof![
        3 => Just(Does::Take),
        4 => Just(Does::Fail),
        1 => Just(Does::Refuse),
        1 => Just(Does::Ask),
        1 => Just(Does::Vanish),
    ];
    let which = |weight| prop_oneof![weight => Just(None), 1 => (0_usize..3).prop_map(Some)];
    let held = prop_oneof![4 => Just(None), 1 => (0_usize..3, 1_i64..400).prop_map(Some)];
    let turn =
        (0_i64..150, prop::array::uniform3(does), which(20), held, which(4), which(12), prop::bool::weighted(0.2));
    let turn = turn.prop_map(|(later_ms, does, gone, held, full, toggle, worker_dies)| Turn {
        later_ms,
        does,
        gone,
        held,
        full,
        toggle,
        worker_dies,
    });
    prop::collection::vec(turn, 1..60)
}

/// A life of one task with three webhooks, driven by the rules alone.
#[derive(Debug, Default)]
struct Life {
    now: i64,
    due: i64,
    progress: Progress,
    has: Vec<String>,
    reclaims: u32,
    taken: BTreeMap<&'static str, u32>,
    failed: BTreeMap<&'static str, u32>,
    not_before: BTreeMap<&'static str, i64>,
    enabled: BTreeSet<usize>,
    holds: BTreeMap<usize, i64>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Life {
    fn turn(&mut self, turn: &Turn) -> Result<Option<Verdict>, TestCaseError> {
        self.now = (self.now + turn.later_ms).max(self.due);
        if let Some(hook) = turn.toggle
            && !self.enabled.remove(&hook)
        {
            self.enabled.insert(hook);
        }
        if let Some((hook, span)) = turn.held {
            self.holds.insert(hook, self.now + span);
        }
        let (now, on) = (UnixMs(self.now), self.enabled.iter().copied().collect::<Vec<_>>());
        let candidates: Vec<Candidate<'_>> = on
            .iter()
            .map(|i| Candidate {
                id: NAMES[*i],
                held_until: self.holds.get(i).map(|at| UnixMs(*at)),
                slot: turn.full != Some(*i),
            })
            .collect();
        let before = self.progress.clone();
        let claimed = Claimed {
            progress: &before,
            reclaims: self.reclaims,
            lapses: 0,
            has: &self.has,
            due: UnixMs(self.due),
            expires_at: None,
        };
        match plan(&claimed, &candidates, LIMITS, now) {
            Plan::Call { open, call } => {
                prop_assert!(call.iter().all(|c| open.contains(c)) && !call.is_empty());
                if turn.worker_dies {
                    self.reclaims += 1; // nothing was said: the lease ends and the task is due at once
                    self.due = self.now;
                    return Ok(None);
                }
                let open: Vec<usize> = open.iter().map(|i| on[*i]).collect();
                let call: Vec<usize> = call.iter().map(|i| on[*i]).collect();
                self.call(turn, &open, &call)
            }
            Plan::End(Verdict::Release(at)) => {
                if on.is_empty() {
                    prop_assert_eq!(at.0, self.due, "nobody enabled: it waits as it did");
                } else {
                    prop_assert!(at.0 > self.now, "a release that is due at once is a busy loop");
                    self.progress.due = Some(at);
                    self.progress.slot_waits += 1;
                }
                self.progress.lost_noted = self.reclaims;
                self.due = at.0;
                Ok(None)
            }
            Plan::End(verdict) => {
                prop_assert!(
                    !on.is_empty() || self.reclaims >= LIMITS.max_reclaims,
                    "nobody enabled never ends a task"
                );
                if verdict == Verdict::Done {
                    prop_assert!(on.iter().all(|i| self.has.iter().any(|h| h == NAMES[*i])));
                }
                Ok(Some(verdict))
            }
        }
    }

    fn call(&mut self, turn: &Turn, open: &[usize], call: &[usize]) -> Result<Option<Verdict>, TestCaseError> {
        let mut answers = Vec::new();
        for &i in call {
            let name = NAMES[i];
            prop_assert!(!self.has.iter().any(|h| h == name), "{} has it and is called again", name);
            prop_assert!(self.holds.get(&i).is_none_or(|until| *until <= self.now), "{} is held", name);
            prop_assert!(turn.full != Some(i), "{} has no slot", name);
            prop_assert!(self.not_before.get(name).is_none_or(|at| *at <= self.now), "{} is called early", name);
            let does = turn.does[i];
            if matches!(does, Does::Take) && turn.gone != Some(i) {
                *self.taken.entry(name).or_default() += 1;
            } else {
                *self.failed.entry(name).or_default() += 1;
            }
            let advice = match does {
                _ if turn.gone == Some(i) => Advice::Gone,
                Does::Refuse => Advice::Refused,
                Does::Ask => Advice::RetryAfter(Duration::from_millis(350)),
                _ => Advice::None,
            };
            let outcome = match does {
                Does::Take if advice == Advice::None => Outcome::Delivered,
                Does::Vanish => Outcome::Timeout,
                _ => Outcome::Rejected,
            };
            let pause = if advice == Advice::RetryAfter(Duration::from_millis(350)) { 350 } else { 100 };
            if advice == Advice::Gone {
                self.not_before.remove(name); // who enables it again wants it called
            } else {
                self.not_before.insert(name, self.now + pause);
            }
            answers.push((name, report(outcome, advice)));
        }
        let gave_up = |i: &usize| !open.contains(i) && !self.has.iter().any(|h| h == NAMES[*i]);
        let round = Round {
            open: open.iter().map(|i| NAMES[*i]).collect(),
            gave_up_before: self.enabled.iter().filter(|i| gave_up(i)).map(|i| NAMES[*i]).collect(),
            had_one: self.enabled.iter().any(|i| self.has.iter().any(|h| h == NAMES[*i])),
            held: self.holds.iter().map(|(i, at)| (NAMES[*i], UnixMs(*at))).collect(),
            lapses: 0,
            expires_at: None,
        };
        let answers: Vec<Answered<'_>> =
            answers.iter().map(|(id, report)| Answered { id, report, dice: 0.5 }).collect();
        let judgement = judge(&mut self.progress, &round, &answers, &retry(LIMITS.max_attempts), UnixMs(self.now));
        self.progress.lost_noted = self.reclaims;
        self.has.extend(judgement.won.iter().cloned());
        for gone in &judgement.gone {
            self.enabled.retain(|i| NAMES[*i] != gone);
        }
        match judgement.verdict {
            Verdict::Retry(at) => {
                prop_assert!(at.0 > self.now);
                prop_assert!(!judgement.about.is_empty());
                self.due = at.0;
                Ok(None)
            }
            Verdict::Release(_) => Err(TestCaseError::fail("a round that called is never a release")),
            verdict => Ok(Some(verdict)),
        }
    }
}

proptest! {
    #[test]
    fn whole_lives_keep_the_rules(turns in turns(), enabled in prop::collection::btree_set(0_usize..3, 0..=3)) {
        let mut life = Life { now: NOW.0, due: NOW.0, enabled, ..Life::default() };
        let mut end = None;
        for turn in &turns {
            end = life.turn(turn)?;
            prop_assert!(life.taken.values().all(|n| *n <= 1), "a second 2xx in one life");
            prop_assert!(life.failed.values().all(|n| *n <= LIMITS.max_attempts), "more tries than allowed");
            if end.is_some() {
                break;
            }
        }
        if end.is_none() {
            // everybody takes everything from now on: it ends within a few rounds
            life.enabled = BTreeSet::from([0, 1, 2]);
            let take = Turn {
                later_ms: 11_000, does: [Does::Take; 3], gone: None, held: None, full: None, toggle: None,
                worker_dies: false,
            };
            for _ in 0..5 {
                end = end.or(life.turn(&take)?);
                if end.is_some() {
                    break;
                }
            }
        }
        match end {
            Some(Verdict::Done) => prop_assert!(!life.has.is_empty(), "done, and nobody said 2xx"),
            Some(Verdict::Dead(DeadReason::Lost)) => prop_assert!(life.reclaims >= LIMITS.max_reclaims),
            Some(Verdict::Dead(_)) => prop_assert!(!life.failed.is_empty(), "dead without a failure"),
            other => prop_assert!(false, "did not end: {:?}", other),
        }
    }
}
