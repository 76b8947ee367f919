//! Each rule of a round, then whole lives of fan-out tasks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::domain::retry::{Backoff, BackoffKind};

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

mod planning {
    use super::*;

    #[test]
    fn a_fresh_task_goes_to_every_enabled_webhook() {
        let progress = Progress::default();
        let planned = plan(&fresh(&progress), &[free("a"), free("b")], LIMITS, NOW);
        assert_eq!(planned, Plan::Call { open: vec![0, 1], call: vec![0, 1] });
    }

    #[test]
    fn one_that_has_expired_is_not_tried() {
        let progress = Progress::default();
        let task = |expires| Claimed { expires_at: Some(expires), ..fresh(&progress) };
        assert_eq!(plan(&task(NOW), &[free("a")], LIMITS, NOW), Plan::End(Verdict::Expired));
        assert_eq!(plan(&task(NOW), &[], LIMITS, NOW), Plan::End(Verdict::Expired), "also with nobody to call");
        assert!(matches!(plan(&task(at(1)), &[free("a")], LIMITS, NOW), Plan::Call { .. }));
    }

    #[test]
    fn one_that_kills_its_workers_ends_and_not_before_the_limit() {
        let progress = Progress::default();
        let task = |reclaims| Claimed { reclaims, ..fresh(&progress) };
        assert!(matches!(plan(&task(9), &[free("a")], LIMITS, NOW), Plan::Call { .. }));
        assert_eq!(plan(&task(10), &[free("a")], LIMITS, NOW), Plan::End(Verdict::Dead(DeadReason::Lost)));
    }

    #[test]
    fn without_an_enabled_webhook_it_waits_as_it_did() {
        let progress = progress_with(&[("a", tries(3, NOW))]);
        let has = own(&["a"]);
        let task = Claimed { has: &has, due: at(-50), ..fresh(&progress) };
        assert_eq!(plan(&task, &[], LIMITS, NOW), Plan::End(Verdict::Release(at(-50))));
    }

    #[test]
    fn one_that_every_webhook_has_is_done() {
        let progress = Progress::default();
        let has = own(&["a", "gone"]);
        let task = Claimed { has: &has, ..fresh(&progress) };
        assert_eq!(plan(&task, &[free("a")], LIMITS, NOW), Plan::End(Verdict::Done));
        let planned = plan(&task, &[free("a"), free("new")], LIMITS, NOW);
        assert_eq!(planned, Plan::Call { open: vec![1], call: vec![1] }, "never called again in the same life");
    }

    #[test]
    fn one_that_an_enabled_webhook_gave_up_is_dead_once_the_others_have_it() {
        let gave_up = Tries { gave_up: true, ..tries(1, NOW) };
        let mut progress = progress_with(&[("a", gave_up)]);
        progress.reason = Some(DeadReason::Refused);
        let has = own(&["b"]);
        let task = Claimed { has: &has, ..fresh(&progress) };
        let dead = Plan::End(Verdict::Dead(DeadReason::Refused));
        assert_eq!(plan(&task, &[free("a"), free("b")], LIMITS, NOW), dead);
        assert_eq!(plan(&task, &[free("b")], LIMITS, NOW), Plan::End(Verdict::Done), "it was disabled since");
        let three = [free("a"), free("b"), free("c")];
        assert_eq!(plan(&task, &three, LIMITS, NOW), Plan::Call { open: vec![2], call: vec![2] });
    }

    #[test]
    fn failed_tries_and_lapses_together_reach_the_limit() {
        let progress = progress_with(&[("a", tries(1, NOW))]);
        let task = |lapses| Claimed { lapses, ..fresh(&progress) };
        assert!(matches!(plan(&task(1), &[free("a")], LIMITS, NOW), Plan::Call { .. }));
        let dead = Plan::End(Verdict::Dead(DeadReason::MaxAttempts));
        assert_eq!(plan(&task(2), &[free("a")], LIMITS, NOW), dead);
        assert_eq!(plan(&task(u32::MAX), &[free("a")], LIMITS, NOW), dead);
        let has = own(&["a"]);
        let has_it = Claimed { has: &has, ..task(2) };
        assert_eq!(plan(&has_it, &[free("a")], LIMITS, NOW), Plan::End(Verdict::Done), "but delivered is delivered");
    }

    #[test]
    fn only_those_whose_time_has_come_are_called() {
        let progress = progress_with(&[("a", tries(1, at(0))), ("b", tries(1, at(1)))]);
        let planned = plan(&fresh(&progress), &[free("a"), free("b"), free("c")], LIMITS, NOW);
        assert_eq!(planned, Plan::Call { open: vec![0, 1, 2], call: vec![0, 2] });
    }

    #[test]
    fn one_that_was_moved_goes_to_all_at_once() {
        let progress = progress_with(&[("a", tries(1, at(5000)))]);
        let moved = Claimed { due: at(-1), ..fresh(&progress) };
        assert!(matches!(plan(&moved, &[free("a")], LIMITS, NOW), Plan::Call { .. }));
        let lost = Claimed { reclaims: 1, ..moved.clone() };
        assert_eq!(
            plan(&lost, &[free("a")], LIMITS, NOW),
            Plan::End(Verdict::Release(at(5000))),
            "a lease that ended is no move"
        );
        let noted = Progress { lost_noted: 1, ..progress.clone() };
        let since = Claimed { progress: &noted, reclaims: 1, ..moved };
        assert!(matches!(plan(&since, &[free("a")], LIMITS, NOW), Plan::Call { .. }), "it was noted before the move");
    }

    #[test]
    fn a_held_webhook_is_waited_for_also_by_one_that_was_moved() {
        let progress = progress_with(&[("a", tries(1, at(50)))]);
        let held = Candidate { held_until: Some(at(700)), ..free("a") };
        assert_eq!(plan(&fresh(&progress), &[held], LIMITS, NOW), Plan::End(Verdict::Release(at(700))));
        let moved = Claimed { due: at(-1), ..fresh(&progress) };
        assert_eq!(plan(&moved, &[held], LIMITS, NOW), Plan::End(Verdict::Release(at(700))));
        let over = Candidate { held_until: Some(NOW), ..free("b") };
        let planned = plan(&moved, &[held, over], LIMITS, NOW);
        assert_eq!(planned, Plan::Call { open: vec![0, 1], call: vec![1] });
    }

    #[test]
    fn without_a_slot_it_waits_one_second_doubling_to_ten() {
        let full = Candidate { slot: false, ..free("a") };
        for (waits, wait) in [(0, 1000), (1, 2000), (2, 4000), (3, 8000), (4, 10_000), (u32::MAX, 10_000)] {
            let progress = Progress { slot_waits: waits, ..Progress::default() };
            let planned = plan(&fresh(&progress), &[full], LIMITS, NOW);
            assert_eq!(planned, Plan::End(Verdict::Release(at(wait))), "after {waits} waits");
        }
        let progress = progress_with(&[("b", tries(1, at(300)))]);
        let planned = plan(&fresh(&progress), &[full, free("b")], LIMITS, NOW);
        assert_eq!(planned, Plan::End(Verdict::Release(at(300))), "the first of them");
        let planned = plan(&fresh(&progress), &[full, free("c")], LIMITS, NOW);
        assert_eq!(planned, Plan::Call { open: vec![0, 1], call: vec![1] }, "the others do not wait for it");
    }
}

mod judging {
    use super::*;

    fn round<'a>(open: &[&'a str]) -> Round<'a> {
        Round { open: open.to_vec(), gave_up_before: vec![], held: vec![], had_one: false, lapses: 0, expires_at: None }
    }

    fn judged(progress: &mut Progress, round: &Round<'_>, answers: &[(&str, Report)]) -> Judgement {
        let answers: Vec<Answered<'_>> =
            answers.iter().map(|(id, report)| Answered { id, report, dice: 0.5 }).collect();
        judge(progress, round, &answers, &retry(3), NOW)
    }

    #[test]
    fn all_2xx_is_done() {
        let mut progress = Progress::default();
        let judgement = judged(&mut progress, &round(&["a", "b"]), &[("a", delivered()), ("b", delivered())]);
        assert_eq!((judgement.verdict, judgement.won, judgement.failed), (Verdict::Done, own(&["a", "b"]), 0));
        assert!(judgement.about.is_empty());
        assert_eq!(progress.hooks["a"], Tries { begun: 1, ..Tries::default() });
    }

    #[test]
    fn a_failure_is_tried_again_after_its_backoff_and_is_about_those_left() {
        let mut progress = Progress::default();
        let judgement = judged(&mut progress, &round(&["a", "b", "c"]), &[("a", rejected()), ("b", delivered())]);
        assert_eq!(judgement.about, own(&["a", "c"]));
        assert_eq!(judgement.verdict, Verdict::Retry(at(1)), "c was not called and has no time of its own");
        assert_eq!((progress.hooks["a"].failed, progress.hooks["a"].next), (1, at(100)));
        assert_eq!((progress.due, judgement.failed), (Some(at(1)), 1));
        let judgement = judged(&mut progress, &round(&["a"]), &[("a", rejected())]);
        assert_eq!(judgement.verdict, Verdict::Retry(at(100)));
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_pause_but_not_for_a_shorter_one() {
        for (asked, next) in [(50, 100), (5000, 5000)] {
            let busy = report(Outcome::Rejected, Advice::RetryAfter(Duration::from_millis(asked)));
            let judgement = judged(&mut Progress::default(), &round(&["a"]), &[("a", busy)]);
            assert_eq!(judgement.verdict, Verdict::Retry(at(next)));
        }
    }

    #[test]
    fn the_last_try_that_fails_is_dead() {
        let mut progress = progress_with(&[("a", tries(2, NOW))]);
        let judgement = judged(&mut progress, &round(&["a"]), &[("a", rejected())]);
        assert_eq!(judgement.verdict, Verdict::Dead(DeadReason::MaxAttempts));
        assert_eq!((judgement.about, progress.reason), (own(&["a"]), Some(DeadReason::MaxAttempts)));
        assert!(progress.hooks["a"].gave_up && progress.due.is_none());
        let mut progress = progress_with(&[("a", tries(1, NOW))]);
        let lapsed = Round { lapses: 1, ..round(&["a"]) };
        let judgement = judged(&mut progress, &lapsed, &[("a", rejected())]);
        assert_eq!(judgement.verdict, Verdict::Dead(DeadReason::MaxAttempts), "pull leases that ran out count");
    }

    #[test]
    fn a_refusal_is_the_end_for_its_webhook_and_the_others_go_on() {
        let refused = || report(Outcome::Rejected, Advice::Refused);
        let mut progress = Progress::default();
        let judgement = judged(&mut progress, &round(&["a", "b"]), &[("a", refused()), ("b", rejected())]);
        assert_eq!((judgement.verdict, judgement.about), (Verdict::Retry(at(100)), own(&["b"])));
        let later = Round { gave_up_before: vec!["a"], ..round(&["b"]) };
        let judgement = judged(&mut progress, &later, &[("b", delivered())]);
        assert_eq!(judgement.verdict, Verdict::Dead(DeadReason::Refused));
        assert_eq!((judgement.about, judgement.won), (own(&["a"]), own(&["b"])));
    }

    #[test]
    fn a_410_leaves_the_round_and_is_dead_only_when_nobody_else_has_it() {
        let gone = || report(Outcome::Rejected, Advice::Gone);
        let mut progress = Progress::default();
        let judgement = judged(&mut progress, &round(&["a", "b"]), &[("a", gone()), ("b", delivered())]);
        assert_eq!((judgement.verdict, judgement.gone), (Verdict::Done, own(&["a"])));
        let judgement = judged(&mut progress, &round(&["a", "b"]), &[("a", gone()), ("b", rejected())]);
        assert_eq!((judgement.verdict, judgement.about), (Verdict::Retry(at(100)), own(&["b"])));
        let judgement = judged(&mut Progress::default(), &round(&["a"]), &[("a", gone())]);
        assert_eq!((judgement.verdict, judgement.failed), (Verdict::Dead(DeadReason::Gone), 1));
        let had = Round { had_one: true, ..round(&["a"]) };
        assert_eq!(judged(&mut Progress::default(), &had, &[("a", gone())]).verdict, Verdict::Done);
    }

    #[test]
    fn when_its_expiry_came_during_the_attempt_a_failure_is_the_end() {
        let until = |expires| Round { expires_at: Some(expires), ..round(&["a"]) };
        let failed = |expires| judged(&mut Progress::default(), &until(expires), &[("a", rejected())]).verdict;
        assert_eq!(failed(NOW), Verdict::Expired);
        assert_eq!(failed(at(1)), Verdict::Retry(at(100)), "it expires at its instant, while it waits");
        let done = judged(&mut Progress::default(), &until(NOW), &[("a", delivered())]);
        assert_eq!(done.verdict, Verdict::Done, "a success counts");
    }

    #[test]
    fn a_round_that_called_clears_the_waits_for_slots() {
        let mut progress = Progress { slot_waits: 7, ..Progress::default() };
        judged(&mut progress, &round(&["a"]), &[("a", rejected())]);
        assert_eq!(progress.slot_waits, 0);
    }

    #[test]
    fn only_the_last_attempts_are_kept() {
        let mut progress = Progress::default();
        for n in 0..50 {
            progress.note(Attempt {
                number: n,
                webhook: None,
                started_at: NOW,
                lateness_ms: 0,
                duration_ms: 0,
                outcome: Outcome::Lost,
                status: None,
                error: None,
                response: None,
            });
        }
        let numbers: Vec<u32> = progress.attempts.iter().map(|a| a.number).collect();
        assert_eq!(numbers, (30..50).collect::<Vec<_>>());
    }
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
