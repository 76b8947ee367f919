//! What a round comes to.

use super::*;

fn round<'a>(open: &[&'a str]) -> Round<'a> {
    Round { open: open.to_vec(), gave_up_before: vec![], held: vec![], had_one: false, lapses: 0, expires_at: None }
}

fn judged(progress: &mut Progress, round: &Round<'_>, answers: &[(&str, Report)]) -> Judgement {
    let answers: Vec<Answered<'_>> = answers.iter().map(|(id, report)| Answered { id, report, dice: 0.5 }).collect();
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
