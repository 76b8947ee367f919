//! What `settle` makes of a claim, whoever reports and however late.

use duepost::{
    domain::{
        attempt::{Attempt, Outcome},
        queue::Settings,
        round::{Progress, Verdict},
        task::{DeadReason, NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, Claim, ClaimKind, Renewal, Renewed, Settled, Settlement},
};

use crate::{
    store_kit::{Kit, delayed, id, retry_at, settlement, task, uid},
    store_raw::{b, words},
    support::ms,
};

const GIVEN_UP: Verdict = Verdict::Dead(DeadReason::MaxAttempts);

fn about(claim: &Claim, verdict: Verdict, about: &[&str], won: &[&str]) -> Settlement {
    let own = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect();
    Settlement { about: own(about), won: own(won), ..settlement(claim, verdict) }
}

/// A task that a first worker lost and a second one holds.
async fn given_stolen(kit: &Kit) -> (Claim, Claim) {
    let (_, first) = kit.given_claimed("a").await;
    kit.lapse().await;
    let second = kit.claim_one().await;
    (first, second)
}

#[tokio::test]
async fn only_the_current_claim_moves_a_task_backwards() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, second) = given_stolen(&kit).await;
    let before = kit.dump().await;
    for verdict in [retry_at(0), Verdict::Release(UnixMs(0)), GIVEN_UP, Verdict::Expired] {
        let failed = Settlement { failed: 1, progress: Some(Progress::default()), ..settlement(&first, verdict) };
        assert_eq!(kit.settle(failed).await, Settled::LeaseLost, "{verdict:?}");
    }
    assert_eq!(kit.dump().await, before, "a late failure is without effect");
    assert_eq!(kit.end(&second, GIVEN_UP).await, Settled::Dead);
    assert_eq!(kit.end(&first, retry_at(0)).await, Settled::Late);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_failure_that_comes_while_nobody_holds_the_task_is_without_effect() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    kit.lapse().await;
    let before = kit.dump().await;
    for verdict in [retry_at(0), GIVEN_UP, Verdict::Expired, Verdict::Release(UnixMs(0))] {
        assert_eq!(kit.end(&claim, verdict).await, Settled::LeaseLost);
    }
    assert_eq!(kit.dump().await, before);
}

#[tokio::test]
async fn a_late_success_ends_a_task_that_waits_or_is_with_another() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, second) = given_stolen(&kit).await;
    assert_eq!(kit.settle(about(&first, Verdict::Done, &[], &["h"])).await, Settled::Completed);
    assert_eq!(kit.end(&second, retry_at(0)).await, Settled::Already, "to the one that holds it, it had ended so");
    assert_eq!(kit.end(&second, Verdict::Done).await, Settled::Already);

    let (task, claim) = kit.given_claimed("b").await;
    kit.lapse().await;
    assert_eq!(kit.total("retrying").await, 1);
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Completed);
    assert_eq!((kit.total("retrying").await, kit.total("delivered").await), (0, 2));
    assert!(kit.push(5).await.is_empty(), "nobody calls again");
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_settlement_may_be_repeated() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for (name, verdict, again) in [
        ("done", Verdict::Done, Settled::Already),
        ("dead", GIVEN_UP, Settled::Late),
        ("retry", retry_at(i64::from(u32::MAX) * 1000), Settled::LeaseLost),
    ] {
        let (_, claim) = kit.given_claimed(name).await;
        let failed = Settlement { failed: 1, ..settlement(&claim, verdict) };
        kit.settle(failed.clone()).await;
        let before = kit.dump().await;
        assert_eq!(kit.settle(failed).await, again, "{name}");
        assert_eq!(kit.dump().await, before, "{name}: nothing is counted twice");
    }
    assert_eq!(kit.total("failed").await, 3);
    kit.assert_sound().await;
}

#[tokio::test]
async fn one_batch_may_hold_a_task_twice() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, second) = given_stolen(&kit).await;
    let soon = kit.now().await + 60_000;
    let one = |claim: &Claim, verb: &str, won: &str| {
        let lease = &claim.lease;
        let mut args = vec![lease.member.clone(), lease.uid.0.as_bytes().to_vec(), b(lease.fence), b(verb), b(soon)];
        args.extend([b("h"), b(won), b(1), b("")]);
        args
    };
    let mut args = vec![b(0), b(""), b(0)];
    for (claim, verb, won) in [
        (&second, "retry", ""),
        (&second, "retry", ""),
        (&first, "retry", ""),
        (&first, "done", "h"),
        (&second, "dead", ""),
    ] {
        args.extend(one(claim, verb, won));
    }
    let answer = kit.eval("settle", 0, &args).await;
    assert_eq!(words(&answer), ["scheduled", "lease_lost", "lease_lost", "completed", "already"]);
    assert_eq!((kit.total("failed").await, kit.total("delivered").await, kit.total("dead").await), (1, 1, 0));
    kit.assert_sound().await;
}

#[tokio::test]
async fn other_content_is_gone_also_for_a_success() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    let mut other = claim.lease.clone();
    other.uid = uid();
    let before = kit.dump().await;
    for verdict in [Verdict::Done, retry_at(0)] {
        let stale = Settlement { lease: other.clone(), ..about(&claim, verdict, &[], &["h"]) };
        assert_eq!(kit.settle(stale).await, Settled::Gone);
    }
    let renewal = Renewal { lease: other, won: vec!["h".to_owned()] };
    assert_eq!(kit.store.renew(&kit.queue, ms(5000), &[renewal]).await.unwrap(), [Renewed::LeaseLost]);
    assert_eq!(kit.dump().await, before);
    let mut nobody = settlement(&claim, Verdict::Done);
    nobody.lease.member = b"nobody".to_vec();
    assert_eq!(kit.settle(nobody).await, Settled::Gone);
    assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Active);
}

#[tokio::test]
async fn a_success_is_remembered_although_the_lease_is_lost() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.open("i").await;
    let (first, second) = given_stolen(&kit).await;
    assert_eq!(kit.settle(about(&first, retry_at(0), &["i"], &["h"])).await, Settled::LeaseLost);
    assert_eq!(kit.settle(about(&first, retry_at(0), &["i"], &["h"])).await, Settled::LeaseLost);
    assert_eq!(kit.get(&second.id).await.unwrap().delivered_to, ["h"]);
    assert_eq!(kit.settle(about(&second, retry_at(0), &["i"], &[])).await, Settled::Scheduled);
    let third = kit.claim_one().await;
    assert_eq!(third.has, ["h"]);
}

#[tokio::test]
async fn a_verdict_about_webhooks_that_have_it_meanwhile_completes() {
    for verdict in [retry_at(0), GIVEN_UP] {
        let kit = Kit::start().await;
        kit.open("h").await;
        let (first, second) = given_stolen(&kit).await;
        assert_eq!(kit.settle(about(&first, retry_at(0), &["i"], &["h"])).await, Settled::LeaseLost);
        assert_eq!(kit.settle(about(&second, verdict, &["h"], &["i"])).await, Settled::Completed);
        kit.assert_sound().await;
    }
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, second) = given_stolen(&kit).await;
    assert_eq!(kit.settle(about(&first, retry_at(0), &["i"], &["h"])).await, Settled::LeaseLost);
    assert_eq!(kit.settle(about(&second, GIVEN_UP, &["h", "i"], &[])).await, Settled::Dead, "one of them has not");
    let (_, claim) = kit.given_claimed("b").await;
    assert_eq!(kit.settle(about(&claim, Verdict::Release(UnixMs(0)), &["h"], &["h"])).await, Settled::Scheduled);
}

#[tokio::test]
async fn a_stale_verdict_about_webhooks_that_have_it_does_not_complete() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, second) = given_stolen(&kit).await;
    assert_eq!(kit.settle(about(&first, retry_at(0), &["h"], &["h"])).await, Settled::LeaseLost);
    assert_eq!(kit.get(&second.id).await.unwrap().state, TaskState::Active);
}

#[tokio::test]
async fn the_names_of_webhooks_are_compared_whole() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for (name, other) in [("a", "ab"), ("b", "bc")] {
        let (_, claim) = kit.given_claimed(name).await;
        let later = retry_at(9_000_000_000_000);
        assert_eq!(kit.settle(about(&claim, later, &[other], &["abc", "c", "b"])).await, Settled::Scheduled, "{other}");
        assert_eq!(kit.get(&id(name)).await.unwrap().delivered_to, ["abc", "c", "b"]);
    }
}

#[tokio::test]
async fn nothing_leads_a_cancelled_task_back() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let verdicts = [retry_at(0), Verdict::Release(UnixMs(0)), GIVEN_UP, Verdict::Expired].into_iter().enumerate();
    for (n, verdict) in verdicts {
        let (task, claim) = kit.given_claimed(&format!("t{n}")).await;
        assert!(matches!(kit.cancel(&task.id).await, Cancel::UnderWay(_)));
        assert!(matches!(kit.cancel(&task.id).await, Cancel::UnderWay(t) if t.cancelling));
        assert_eq!(kit.end(&claim, verdict).await, Settled::Cancelled);
        assert!(matches!(kit.cancel(&task.id).await, Cancel::Already(t) if !t.cancelling));
    }
    let (task, claim) = kit.given_claimed("delivered").await;
    assert!(matches!(kit.cancel(&task.id).await, Cancel::UnderWay(_)));
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed, "it may still succeed");
    assert!(matches!(kit.cancel(&task.id).await, Cancel::Finished(_)));
    assert_eq!(kit.total("cancelled").await, 4);
    kit.assert_sound().await;
}

#[tokio::test]
async fn cancelling_a_dead_task_moves_no_total() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    kit.end(&claim, GIVEN_UP).await;
    assert!(matches!(kit.cancel(&task.id).await, Cancel::Done(_)));
    assert_eq!((kit.total("dead").await, kit.total("cancelled").await), (1, 0));
    assert_eq!((kit.size("dead").await, kit.size("cancelled").await), (0, 1));
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Late, "cancelled is final");
    kit.assert_sound().await;
}

#[tokio::test]
async fn retrying_counts_waiting_tasks_that_had_an_attempt() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let later = kit.now().await + 50_000;
    let (a, claim) = kit.given_claimed("a").await;
    assert_eq!(kit.end(&claim, Verdict::Release(UnixMs(0))).await, Settled::Scheduled);
    assert_eq!(kit.total("retrying").await, 0, "a release is no attempt");
    let claim = kit.claim_one().await;
    kit.end(&claim, retry_at(0)).await;
    assert_eq!(kit.total("retrying").await, 1);
    let claim = kit.claim_one().await;
    assert_eq!(kit.total("retrying").await, 0);
    kit.end(&claim, Verdict::Release(UnixMs(later))).await;
    assert_eq!(kit.total("retrying").await, 1, "it had one before");
    assert_eq!(kit.store.stats(&kit.queue).await.unwrap().unwrap().retrying, 1);
    kit.cancel(&a.id).await;
    assert_eq!(kit.total("retrying").await, 0);
    let (_, claim) = kit.given_claimed("b").await;
    kit.end(&claim, retry_at(later)).await;
    kit.end(&claim, Verdict::Done).await;
    assert_eq!(kit.total("retrying").await, 0, "a late success took it out");
    kit.given(delayed("c", 10)).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn what_rust_keeps_comes_back_with_the_next_claim() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let attempt = |started| Attempt {
        number: 1,
        webhook: Some("h".to_owned()),
        started_at: UnixMs(started),
        lateness_ms: 1,
        duration_ms: 2,
        outcome: Outcome::Rejected,
        status: Some(500),
        error: None,
        response: None,
    };
    let (_, claim) = kit.given_claimed("a").await;
    let mut progress = claim.progress.clone();
    assert_eq!(progress, Progress::default());
    progress.note(attempt(1));
    let kept = Settlement { progress: Some(progress.clone()), failed: 1, ..settlement(&claim, retry_at(0)) };
    assert_eq!(kit.settle(kept).await, Settled::Scheduled);
    let second = kit.claim_one().await;
    assert_eq!(second.progress, progress);
    assert_eq!(kit.end(&second, Verdict::Release(UnixMs(0))).await, Settled::Scheduled);
    let third = kit.claim_one().await;
    assert_eq!(third.progress, progress, "none leaves it as it is");
    let mut late = progress.clone();
    late.note(attempt(2));
    let late = Settlement { progress: Some(late), ..settlement(&claim, Verdict::Done) };
    assert_eq!(kit.settle(late).await, Settled::Completed);
    let attempts = kit.get(&id("a")).await.unwrap().progress.attempts;
    assert_eq!(attempts.iter().map(|a| a.started_at.0).collect::<Vec<_>>(), [1, 2], "a late success adds its own");
}

#[tokio::test]
async fn while_memory_is_full_only_the_dead_are_kept() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let mut args = vec![b(1), b(""), b(0)];
    for (name, verb) in [("a", "done"), ("b", "dead"), ("c", "retry"), ("d", "expired")] {
        let (_, claim) = kit.given_claimed(name).await;
        let lease = claim.lease;
        args.extend([lease.member, lease.uid.0.as_bytes().to_vec(), b(lease.fence), b(verb), b(9_000_000_000_000_i64)]);
        args.extend([b(""), b(""), b(0), b("")]);
    }
    assert_eq!(words(&kit.eval("settle", 0, &args).await), ["completed", "dead", "scheduled", "expired"]);
    assert!(kit.get(&id("a")).await.is_none() && kit.get(&id("d")).await.is_none());
    assert!(kit.get(&id("b")).await.is_some() && kit.get(&id("c")).await.is_some());
    assert_eq!((kit.total("delivered").await, kit.total("expired").await), (1, 1));
    kit.assert_sound().await;
}

#[tokio::test]
async fn an_ack_counts_until_the_task_is_claimed_anew() {
    let kit = Kit::start().await;
    let ack = async |claim: &Claim| {
        let lease = &claim.lease;
        let mut args =
            vec![b(0), b(""), b(0), lease.member.clone(), lease.uid.0.as_bytes().to_vec(), b(lease.fence), b("ack")];
        args.extend([b(0), b(""), b(""), b(0), b("")]);
        words(&kit.eval("settle", 0, &args).await).remove(0)
    };
    let pull = async || kit.visit(1, ClaimKind::Pull).await.claims.remove(0);
    kit.given_due("a").await;
    let first = pull().await;
    kit.lapse().await;
    let second = pull().await;
    assert_eq!(ack(&first).await, "lease_lost");
    kit.lapse().await;
    assert_eq!(ack(&second).await, "completed", "nobody has it");
    assert_eq!(ack(&second).await, "already");
    assert_eq!(ack(&first).await, "late");
    kit.assert_sound().await;
}

#[tokio::test]
async fn what_ended_no_longer_expires_and_what_waits_again_does() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for (name, verdict, left) in [
        ("done", Verdict::Done, false),
        ("dead", GIVEN_UP, false),
        ("retry", retry_at(i64::from(u32::MAX) * 1000), true),
    ] {
        let task = kit.given(NewTask { expires: Some(When::After(ms(60_000))), ..task(name) }).await;
        kit.advance(2);
        let claim = kit.claim_one().await;
        kit.end(&claim, verdict).await;
        assert_eq!(kit.score("expiry", &task.id).await.is_some(), left, "{name}");
    }
}

#[tokio::test]
async fn a_removed_record_is_gone() {
    let settings = Settings { retain_completed: ms(0), ..Settings::default() };
    let kit = Kit::start_with(settings).await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Gone);
    assert!(matches!(kit.cancel(&id("a")).await, Cancel::Unknown));
    kit.given(task("a")).await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Gone);
    kit.assert_sound().await;
}
