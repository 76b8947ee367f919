//! What workers do over time: retries, leases, fan-out, the drain. The clock is moved; nothing sleeps for its time to come.

use std::time::Duration;

use duepost::domain::{
    attempt::Outcome,
    task::{DeadReason, TaskState, When},
};

use crate::support::{
    inside::Inside,
    receiver::{Answer, Gate},
    secs,
    wait::eventually,
};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn outcomes(task: &duepost::domain::task::Task) -> Vec<(u32, Outcome)> {
    task.progress.attempts.iter().map(|a| (a.number, a.outcome)).collect()
}

#[tokio::test]
async fn a_worker_that_dies_loses_its_lease_but_not_the_task() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.given_due("one").await;
    let dead = it.claim(1).await;
    assert_eq!(dead.claims.len(), 1);

    let alive = it.worker();
    it.advance(secs(11));
    let task = it.in_state("one", TaskState::Completed).await;

    assert_eq!(outcomes(&task), [(1, Outcome::Lost), (2, Outcome::Delivered)]);
    assert_eq!((task.attempt(), it.receiver.journal()[0].attempt()), (2, 2));
    alive.stop(secs(1)).await;
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_after_its_backoff_and_not_before() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.receiver.on_in_turn("/main", vec![Answer::status(500).into(), Answer::status(200).into()]);
    it.given_due("one").await;
    let worker = it.worker();
    it.receiver.wait_for(1, secs(5)).await;
    let waiting = it.in_state("one", TaskState::Scheduled).await;
    eventually(secs(5), async || it.task("one").await.attempt() == 1).await;
    assert_eq!(waiting.attempt(), 1);

    it.advance(ms(500)); // half of the first pause: dice 0.5 means no jitter
    it.claim(0).await;
    assert_eq!(it.receiver.count(), 1);
    it.advance(ms(600));
    let task = it.in_state("one", TaskState::Completed).await;

    assert_eq!(outcomes(&task), [(1, Outcome::Rejected), (2, Outcome::Delivered)]);
    let (first, second) = (&task.progress.attempts[0], &task.progress.attempts[1]);
    assert!(second.started_at.since(first.started_at) >= secs(1));
    assert!(second.lateness_ms < 1_000, "lateness counts from the retry's own instant: {second:?}");
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_long_attempt_keeps_its_lease_while_another_worker_looks_on() {
    let it = Inside::start().await;
    it.webhook("main").await;
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(200).held_by(&gate));
    it.given_due("one").await;
    let (one, two) = (it.worker_with(|c| c.lease = secs(1)), it.worker_with(|c| c.lease = secs(1)));
    it.receiver.wait_for(1, secs(5)).await;
    let first_end = it.in_state("one", TaskState::Active).await.score;

    // three leases long: each of the renewals moves the lease's end
    eventually(secs(10), async || it.task("one").await.score > first_end.plus(secs(3))).await;
    gate.open();
    let task = it.in_state("one", TaskState::Completed).await;

    assert_eq!((it.receiver.count(), task.lost), (1, 0));
    one.stop(secs(1)).await;
    two.stop(secs(1)).await;
}

#[tokio::test]
async fn fan_out_calls_each_webhook_until_it_has_the_task() {
    let it = Inside::start().await;
    it.webhook("a").await;
    it.webhook("b").await;
    it.receiver.on_in_turn("/b", vec![Answer::status(503).into(), Answer::status(200).into()]);
    it.given_due("one").await;
    let worker = it.worker();
    it.receiver.wait_for(2, secs(5)).await;
    eventually(secs(5), async || it.task("one").await.delivered_to == ["a"]).await;
    it.advance(secs(2));

    let task = it.in_state("one", TaskState::Completed).await;
    let called: Vec<String> = it.receiver.journal().iter().map(|r| format!("{} {}", r.path(), r.attempt())).collect();
    assert_eq!(called.iter().filter(|c| *c == "/a 1").count(), 1);
    assert_eq!(called.len(), 3, "{called:?}");
    assert_eq!(called[2], "/b 2");
    assert_eq!(task.delivered_to, ["a", "b"]);
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_410_disables_its_webhook_and_ends_the_task_unless_another_is_left() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.receiver.on("/main", Answer::status(410));
    it.given_due("one").await;
    let worker = it.worker();
    let task = it.in_state("one", TaskState::Dead).await;
    assert_eq!(task.progress.reason, Some(DeadReason::Gone));
    let view = it.store.describe(&it.queue).await.unwrap().unwrap();
    assert!(!view.webhooks[0].enabled);
    assert_eq!(view.webhooks[0].disabled_reason.as_deref(), Some("gone"));

    // the next one waits for a webhook, and is not called at the old one
    it.given_due("two").await;
    it.webhook("other").await;
    it.in_state("two", TaskState::Completed).await;
    assert_eq!(it.receiver.journal().iter().filter(|r| r.path() == "/main").count(), 1);
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn an_attempt_that_fails_after_the_expiry_ends_the_task_expired() {
    let it = Inside::start().await;
    it.webhook("main").await;
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(500).held_by(&gate));
    let mut task = it.new_task("one");
    task.expires = Some(When::After(secs(60)));
    it.given(task).await;
    let worker = it.worker();
    it.receiver.wait_for(1, secs(5)).await;
    it.advance(secs(61));
    gate.open();
    it.in_state("one", TaskState::Expired).await;

    // and one that waits when its time is over never starts
    let mut late = it.new_task("two");
    (late.when, late.expires) = (When::After(secs(20)), Some(When::After(secs(21))));
    it.given(late).await;
    it.store.change(&it.queue, false, |_| Ok::<_, ()>(pause())).await.unwrap();
    it.advance(secs(22));
    it.in_state("two", TaskState::Expired).await;
    assert_eq!(it.receiver.count(), 1);
    worker.stop(secs(1)).await;
}

fn pause() -> duepost::store::Change {
    duepost::store::Change { pause: Some(duepost::domain::queue::Pause::Open), ..Default::default() }
}

#[tokio::test]
async fn a_stop_gives_back_what_does_not_finish_within_the_grace() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.receiver.on("/main", Answer::hang());
    it.given_due("one").await;
    let worker = it.worker();
    it.receiver.wait_for(1, secs(5)).await;

    worker.stop(ms(50)).await;

    let task = it.task("one").await;
    assert_eq!(task.state, TaskState::Scheduled);
    assert_eq!((task.attempt(), task.lost), (0, 0), "a give-back does not count");
}

#[tokio::test]
async fn workers_that_vanish_again_and_again_end_the_task() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.given_due("one").await;
    for _ in 0..3 {
        assert_eq!(it.claim(1).await.claims.len(), 1);
        it.advance(secs(11));
        it.claim(0).await; // ends the lease
    }
    let worker = it.worker_with(|c| c.max_reclaims = 3);
    let task = it.in_state("one", TaskState::Dead).await;
    assert_eq!((task.progress.reason, it.receiver.count()), (Some(DeadReason::Lost), 0));
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn retention_forgets_what_was_kept_long_enough() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.settings(|s| s.retain_completed = secs(60)).await;
    it.given_due("one").await;
    let worker = it.worker();
    it.in_state("one", TaskState::Completed).await;
    it.advance(secs(50));
    it.claim(0).await;
    assert_eq!(it.store.stats(&it.queue).await.unwrap().unwrap().completed, 1);
    it.advance(secs(21));
    eventually(secs(5), async || it.store.stats(&it.queue).await.unwrap().unwrap().completed == 0).await;
    assert_eq!(it.store.stats(&it.queue).await.unwrap().unwrap().totals.delivered, 1);
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_damaged_record_is_dead_and_holds_nobody_up() {
    let it = Inside::start().await;
    it.webhook("main").await;
    it.given_due("bad").await;
    it.given_due("good").await;
    let key: Vec<String> = it.redis.command(&["KEYS", "dp:*:orders:tasks"]).await;
    let _: i64 = it.redis.command(&["HSET", &key[0], "bad", "\x09\x01nonsense that is long enough for a uid"]).await;
    let worker = it.worker();
    it.in_state("good", TaskState::Completed).await;
    eventually(secs(5), async || it.store.stats(&it.queue).await.unwrap().unwrap().dead == 1).await;
    assert_eq!(it.receiver.count(), 1);
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_lost_lease_does_not_hurry_a_webhook_that_waits_for_its_own_time() {
    let it = Inside::start().await;
    it.webhook("a").await;
    it.webhook("b").await;
    let later = Answer::status(503).header("retry-after", "100");
    it.receiver.on_in_turn("/a", vec![Answer::status(500).into(), Answer::status(200).into()]);
    it.receiver.on_in_turn("/b", vec![later.into(), Answer::status(200).into()]);
    it.given_due("one").await;
    let first = it.worker();
    eventually(secs(5), async || it.task("one").await.progress.attempts.len() == 2).await;
    first.stop(secs(1)).await;

    it.advance(secs(2));
    assert_eq!(it.claim(1).await.claims.len(), 1); // by a worker that dies
    it.advance(secs(11));
    let second = it.worker();
    eventually(secs(5), async || it.task("one").await.delivered_to == ["a"]).await;

    let called: Vec<String> = it.receiver.journal().iter().map(|r| r.path().to_owned()).collect();
    assert_eq!(called.iter().filter(|p| *p == "/b").count(), 1, "{called:?}");
    it.advance(secs(100));
    it.in_state("one", TaskState::Completed).await;
    second.stop(secs(1)).await;
}
