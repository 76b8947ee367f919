//! Pull consumers at the store: claims, acks, nacks, leases that run out. The clock is moved; nothing sleeps for its time to come.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use duepost::{
    domain::{
        attempt::Outcome,
        pull::No,
        queue::Pause,
        task::{DeadReason, Task, TaskState, When},
    },
    store::{Cancel, Change, Token, Want},
};

use crate::{
    store_pull_kit::{LEASE, alike, done, lost, outcomes, want},
    support::{inside::Inside, ms, receiver::Gate, secs, wait::eventually},
};

#[tokio::test]
async fn what_is_claimed_is_shown_whole_and_acked_once() {
    let it = Inside::start().await;
    let pulled = it.given_pulled("one").await;
    let task = &pulled.task;
    assert_eq!((task.state, task.attempt(), task.cancelling), (TaskState::Active, 1, false));
    assert_eq!(task.payload.as_ref().unwrap().bytes().as_ref(), b"{\"a\": 1.0}");
    let stands = it.task("one").await;
    assert_eq!(&Task { payload: task.payload.clone(), ..stands }, task, "it is shown as it stands");
    assert!(it.pull(want(1)).await.is_empty());

    it.advance(ms(300));
    let acked = done(it.ack(&pulled).await);
    assert_eq!((acked.state, acked.attempt()), (TaskState::Completed, 1));
    let stands = it.task("one").await;
    assert_eq!((acked.score, outcomes(&stands)), (stands.score, vec![(1, Outcome::Delivered)]));
    let attempt = &stands.progress.attempts[0];
    assert!((2..1000).contains(&attempt.lateness_ms) && attempt.duration_ms >= 300, "{attempt:?}");

    assert_eq!(done(it.ack(&pulled).await).score, stands.score, "a repeat changes nothing");
    assert_eq!(lost(it.nack(&pulled, No::Failed(None)).await), TaskState::Completed);
    assert_eq!(lost(it.extend(&pulled, LEASE).await), TaskState::Completed);
    let totals = it.totals().await;
    assert_eq!((totals.delivered, totals.failed_attempts), (1, 0));
}

#[tokio::test]
async fn a_nack_is_retried_by_the_policy_until_it_is_used_up() {
    let it = Inside::start().await;
    it.retry(2).await;
    let pulled = it.given_pulled("one").await;
    let now = it.store.clock().now();
    let waiting = done(it.nack(&pulled, No::Failed(None)).await);
    assert_eq!((waiting.state, waiting.attempt()), (TaskState::Scheduled, 1));
    assert!((secs(59)..secs(62)).contains(&waiting.score.since(now)), "dice 0.5 spread nothing");
    assert_eq!(it.task("one").await.score, waiting.score);
    assert_eq!(lost(it.nack(&pulled, No::Failed(None)).await), TaskState::Scheduled);
    assert!(it.pull(want(1)).await.is_empty());

    it.advance(secs(62));
    let again = it.pull_one().await;
    assert_eq!(again.task.attempt(), 2);
    let dead = done(it.nack(&again, No::Failed(Some(secs(1)))).await);
    assert_eq!((dead.state, dead.progress.reason), (TaskState::Dead, Some(DeadReason::MaxAttempts)));
    let stands = it.task("one").await;
    assert_eq!(outcomes(&stands), [(1, Outcome::Nacked), (2, Outcome::Nacked)]);
    assert_eq!(stands.progress.attempts[0].error.as_deref(), Some("no luck"));
    assert_eq!((stands.score, lost(it.ack(&again).await)), (dead.score, TaskState::Dead));
    let totals = it.totals().await;
    assert_eq!((totals.dead, totals.failed_attempts, totals.delivered), (1, 2, 0));
}

#[tokio::test]
async fn a_nack_may_name_its_pause_or_the_end_or_cost_nothing() {
    let it = Inside::start().await;
    it.retry(1).await;
    let pulled = it.given_pulled("given-back").await;
    let back = done(it.nack(&pulled, No::GivenBack(None)).await);
    assert_eq!((back.state, back.attempt(), outcomes(&back)), (TaskState::Scheduled, 0, vec![]));
    assert_eq!(back.score, back.run_at, "as it was");
    let again = it.pull_one().await;
    let later = done(it.nack(&again, No::GivenBack(Some(secs(30)))).await);
    assert!(later.score.since(it.store.clock().now()) > secs(29));
    assert_eq!(it.totals().await.failed_attempts, 0);

    let pulled = it.given_pulled("never").await;
    let dead = done(it.nack(&pulled, No::Dead).await);
    assert_eq!((dead.state, dead.progress.reason), (TaskState::Dead, Some(DeadReason::Nack)));
    it.retry(5).await;
    let pulled = it.given_pulled("soon").await;
    let soon = done(it.nack(&pulled, No::Failed(Some(Duration::ZERO))).await);
    assert!(soon.score <= it.store.clock().now());
    assert_eq!(it.pull_one().await.task.attempt(), 2);
}

#[tokio::test]
async fn a_lease_that_runs_out_counts_and_the_task_is_due_at_once() {
    let it = Inside::start().await;
    it.retry(3).await;
    let first = it.given_pulled("one").await;
    it.lapse().await;
    assert_eq!(it.totals().await.failed_attempts, 1);
    let second = it.pull_one().await;
    assert_eq!(second.task.attempt(), 2);
    assert_eq!(lost(it.ack(&first).await), TaskState::Active);
    assert_eq!(lost(it.nack(&first, No::Dead).await), TaskState::Active);
    assert_eq!(lost(it.extend(&first, LEASE).await), TaskState::Active);
    done(it.ack(&second).await);
    let task = it.task("one").await;
    assert_eq!((outcomes(&task), task.attempt()), (vec![(1, Outcome::Lost), (2, Outcome::Delivered)], 2));
}

#[tokio::test]
async fn leases_that_run_out_again_and_again_end_the_task() {
    let it = Inside::start().await;
    it.retry(2).await;
    it.given_pulled("one").await;
    it.lapse().await;
    it.pull_one().await;
    it.lapse().await;
    assert!(it.pull(want(1)).await.is_empty(), "not handed out a third time");
    let task = it.in_state("one", TaskState::Dead).await;
    assert_eq!(task.progress.reason, Some(DeadReason::MaxAttempts));
    assert_eq!((task.attempt(), outcomes(&task)), (2, vec![(1, Outcome::Lost), (2, Outcome::Lost)]));
    let totals = it.totals().await;
    assert_eq!((totals.dead, totals.failed_attempts), (1, 2));
}

#[tokio::test]
async fn an_ack_after_the_lease_counts_while_nobody_else_has_the_task() {
    let it = Inside::start().await;
    let pulled = it.given_pulled("one").await;
    it.lapse().await;
    assert_eq!(it.task("one").await.state, TaskState::Scheduled);
    assert_eq!(lost(it.extend(&pulled, LEASE).await), TaskState::Scheduled);
    assert_eq!(lost(it.nack(&pulled, No::Failed(None)).await), TaskState::Scheduled);
    let acked = done(it.ack(&pulled).await);
    assert_eq!((acked.state, acked.attempt()), (TaskState::Completed, 1));
    let task = it.task("one").await;
    assert_eq!((task.attempt(), outcomes(&task)), (1, vec![(1, Outcome::Delivered)]), "it is that attempt");
    done(it.ack(&pulled).await);
    assert_eq!(it.totals().await.delivered, 1);
    assert!(it.pull(want(1)).await.is_empty());
}

#[tokio::test]
async fn an_extended_lease_holds_for_longer() {
    let it = Inside::start().await;
    let pulled = it.given_pulled("one").await;
    it.advance(secs(8));
    let held = done(it.extend(&pulled, secs(60)).await);
    assert_eq!((held.state, held.score), (TaskState::Active, it.task("one").await.score));
    it.lapse().await;
    assert!(it.pull(want(1)).await.is_empty());
    assert!(matches!(it.store.cancel(&it.queue, &pulled.task.id).await.unwrap(), Cancel::UnderWay(_)));
    assert!(done(it.extend(&pulled, LEASE).await).cancelling);
    done(it.ack(&pulled).await);
}

#[tokio::test]
async fn a_cancelled_lease_ends_cancelled() {
    let it = Inside::start().await;
    for (id, no) in [("a", No::Failed(None)), ("b", No::GivenBack(None)), ("c", No::Dead)] {
        let pulled = it.given_pulled(id).await;
        it.store.cancel(&it.queue, &pulled.task.id).await.unwrap();
        let task = done(it.nack(&pulled, no).await);
        assert_eq!((task.state, task.cancelling), (TaskState::Cancelled, false));
        assert_eq!(lost(it.ack(&pulled).await), TaskState::Cancelled);
    }
    let pulled = it.given_pulled("d").await;
    it.store.cancel(&it.queue, &pulled.task.id).await.unwrap();
    it.lapse().await;
    assert_eq!(it.task("d").await.state, TaskState::Cancelled);
    assert_eq!(lost(it.ack(&pulled).await), TaskState::Cancelled);
    assert_eq!(it.totals().await.cancelled, 4);
}

#[tokio::test]
async fn what_has_expired_is_not_handed_out_nor_tried_again() {
    let it = Inside::start().await;
    let mut task = it.new_task("one");
    task.expires = Some(When::After(secs(5)));
    it.given(task).await;
    it.advance(ms(2));
    let pulled = it.pull_one().await;
    it.advance(secs(6));
    assert_eq!(done(it.nack(&pulled, No::Failed(None)).await).state, TaskState::Expired);
    assert_eq!(it.totals().await.expired, 1);
}

#[tokio::test]
async fn what_nobody_got_goes_back_as_it_was() {
    let it = Inside::start().await;
    let given = it.given_due("one").await;
    it.advance(ms(2));
    let taken = it.store.pull(&it.queue, want(1)).await.unwrap();
    assert!(!taken.is_empty());
    drop(taken);
    let back = it.in_state("one", TaskState::Scheduled).await;
    assert_eq!((back.score, back.attempt(), back.lost), (given.score, 0, 0));
    it.pull_one().await;
    assert_eq!(it.totals().await.failed_attempts, 0);
}

#[tokio::test]
async fn a_claim_for_a_client_that_went_away_goes_to_the_next_one_or_back() {
    let it = Inside::start().await;
    let waiting = Want { wait: secs(30), ..want(1) };
    let (store, queue) = (it.store.clone(), it.queue.clone());
    let gone = tokio::spawn(async move { store.pull(&queue, waiting).await });
    tokio::time::sleep(ms(50)).await;
    let (store, queue) = (it.store.clone(), it.queue.clone());
    let next = tokio::spawn(async move { store.pull(&queue, waiting).await });
    tokio::time::sleep(ms(50)).await;
    gone.abort();
    it.given_due("one").await;
    let taken = tokio::time::timeout(secs(5), next).await.unwrap().unwrap().unwrap();
    assert!(!taken.is_empty());
    taken.handed_over();
}

#[tokio::test]
async fn a_queue_that_is_not_there_and_a_paused_one_are_waited_for() {
    let it = Inside::start().await;
    assert!(it.pull(want(1)).await.is_empty());
    assert!(it.store.describe(&it.queue).await.unwrap().is_none(), "asking makes nothing");
    let waiter = async || it.pull(Want { wait: secs(30), ..want(1) }).await;
    let (tasks, ()) = tokio::join!(waiter(), async {
        tokio::time::sleep(ms(100)).await;
        it.given_due("one").await;
    });
    assert_eq!(tasks.len(), 1);
    it.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    it.given_due("two").await;
    assert!(it.pull(Want { wait: ms(200), ..want(1) }).await.is_empty());
    let (tasks, ()) = tokio::join!(waiter(), async {
        tokio::time::sleep(ms(100)).await;
        it.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    });
    assert_eq!(tasks[0].task.id.as_str(), "two");
}

#[tokio::test]
async fn waiters_at_a_limit_wake_when_a_place_comes_free() {
    let it = Inside::start().await;
    it.settings(|s| s.max_in_flight = Some(1)).await;
    let first = it.given_pulled("one").await;
    it.given_due("two").await;
    let waiter = async || it.pull(Want { wait: secs(30), ..want(1) }).await;
    let (tasks, _) = tokio::join!(waiter(), async {
        tokio::time::sleep(ms(100)).await;
        it.ack(&first).await
    });
    assert_eq!(tasks[0].task.id.as_str(), "two");
}

#[tokio::test]
async fn claims_of_different_leases_and_sizes_are_served_in_turn() {
    let it = Inside::start().await;
    let mut waiters = Vec::new();
    for n in 0..10_usize {
        let want = Want { max: 1 + n % 3, lease: secs(10 + (n as u64 / 4)), wait: secs(30) };
        let (store, queue) = (it.store.clone(), it.queue.clone());
        waiters.push(tokio::spawn(async move {
            let mut taken = store.pull(&queue, want).await.unwrap();
            let tasks = taken.tasks();
            taken.handed_over();
            (want, tasks)
        }));
        tokio::time::sleep(ms(10)).await;
    }
    it.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    for n in 0..30 {
        it.given_due(&format!("t{n:02}")).await;
    }
    it.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    let mut next = 0;
    for waiter in waiters {
        let (want, tasks) = tokio::time::timeout(secs(10), waiter).await.unwrap().unwrap();
        assert_eq!(tasks.len(), want.max);
        for task in tasks {
            assert_eq!(task.task.id.as_str(), format!("t{next:02}"));
            next += 1;
        }
    }
}

#[tokio::test]
async fn push_and_pull_share_a_queue_and_their_failures() {
    let it = Inside::start().await;
    it.settings(|s| s.retry.max_attempts = 3).await;
    let pulled = it.given_pulled("one").await;
    it.webhook("main").await;
    let gate = Gate::new();
    it.receiver.on("/main", crate::support::Answer::status(500).held_by(&gate));
    let worker = it.worker();
    done(it.nack(&pulled, No::Failed(Some(Duration::ZERO))).await);
    it.receiver.wait_for(1, secs(5)).await;
    assert_eq!(it.receiver.journal()[0].attempt(), 2, "attempts count for the task");
    gate.open();
    eventually(secs(5), async || it.task("one").await.attempt() == 2).await;
    it.in_state("one", TaskState::Scheduled).await;
    worker.stop(secs(1)).await;
    it.advance(secs(10));
    let last = it.pull_one().await;
    let dead = done(it.nack(&last, No::Failed(None)).await);
    assert_eq!((dead.state, dead.attempt()), (TaskState::Dead, 3));
}

#[tokio::test]
async fn after_the_end_of_waiting_every_claim_is_empty() {
    let it = Inside::start().await;
    it.given_due("one").await;
    it.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    let waiter = it.pull(Want { wait: secs(30), ..want(1) });
    let (tasks, ()) = tokio::join!(tokio::time::timeout(secs(5), waiter), async {
        tokio::time::sleep(ms(50)).await;
        it.store.end_waiting();
    });
    assert!(tasks.expect("it ends at once").is_empty());
    it.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    assert!(it.pull(want(1)).await.is_empty());
}

#[tokio::test]
async fn an_ack_that_goes_by_its_claim_comes_to_what_one_with_a_look_does() {
    let it = Inside::start().await;
    for keeps in [true, false] {
        if !keeps {
            it.settings(|s| s.retain_completed = Duration::ZERO).await;
        }
        let mut acked = Vec::new();
        for looks in [false, true] {
            let name = format!("{keeps}-{looks}");
            let mut new = it.new_task(&name);
            (new.expires, new.options.timeout) = (Some(When::After(secs(600))), Some(secs(7)));
            it.given(new).await;
            it.advance(ms(2));
            let mut pulled = it.pull_one().await;
            it.advance(ms(300));
            if looks {
                // as a token of an older release, which did not tell when a first claim was made
                let mut bytes = URL_SAFE_NO_PAD.decode(pulled.token.to_text()).unwrap();
                bytes[28..].fill(0);
                pulled.token = Token::parse(&URL_SAFE_NO_PAD.encode(bytes)).unwrap();
            }
            let task = done(it.ack(&pulled).await);
            if keeps {
                assert_eq!(it.task(&name).await, Task { payload: pulled.task.payload.clone(), ..task.clone() });
            }
            let attempt = &task.progress.attempts[0];
            assert!((1..1000).contains(&attempt.lateness_ms) && attempt.duration_ms >= 300, "{attempt:?}");
            acked.push(alike(task));
        }
        assert_eq!(acked[0], acked[1], "{keeps}");
    }
    assert_eq!(it.totals().await.delivered, 4);
}
