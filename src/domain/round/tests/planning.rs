//! Whom a claimed task is for, if anybody.

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
