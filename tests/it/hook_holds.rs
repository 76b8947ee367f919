//! Webhooks that ask to be left alone, and webhooks that give no answer. The clock is moved.

use std::time::Duration;

use duepost::{
    domain::{id::WebhookId, task::TaskState},
    store::{Change, HookChange, QueueView},
};

use crate::support::{
    inside::{self, Inside},
    ms,
    receiver::{Answer, Gate},
    secs,
    wait::eventually,
};

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = ms(300);

async fn view(it: &Inside) -> QueueView {
    it.store.describe(&it.queue).await.unwrap().unwrap()
}

async fn given(it: &Inside, n: usize) {
    for i in 0..n {
        it.given_due(&format!("t{i}")).await;
    }
}

/// Attempts on record of the first n tasks.
async fn tries(it: &Inside, n: usize) -> usize {
    let mut sum = 0;
    for i in 0..n {
        sum += it.task(&format!("t{i}")).await.progress.attempts.len();
    }
    sum
}

/// A webhook that is called by one task at a time and has just given no answer for the tenth time.
async fn given_silent(it: &Inside) -> duepost::worker::Worker {
    it.webhook_with("main", |w| w.max_in_flight = Some(1)).await;
    it.receiver.on("/main", Answer::close());
    given(it, 30).await;
    let worker = it.worker();
    eventually(secs(10), async || view(it).await.holds.breaker("main") == 1).await;
    worker
}

#[tokio::test]
async fn retry_after_holds_all_tasks_of_the_webhook_on_all_replicas() {
    let it = Inside::start().await;
    it.webhook("main").await;
    let busy = Answer::status(429).header("retry-after", "60").into();
    it.receiver.on_in_turn("/main", vec![busy, Answer::status(200).into()]);
    given(&it, 1).await;
    let other = inside::store(&it.redis).await;
    let (one, two) = (it.worker(), Inside::worker_on(&other, |_| {}));
    eventually(secs(5), async || view(&it).await.holds.until("main").is_some()).await;
    for i in 1..8 {
        it.given_due(&format!("t{i}")).await;
    }
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(it.receiver.count(), 1, "nobody calls");
    let waits = it.task("t0").await;
    assert!(waits.score >= waits.progress.attempts[0].started_at.plus(secs(60)), "{waits:?}");

    it.advance(secs(61));
    other.clock().advance(secs(61));
    for i in 0..8 {
        let task = it.in_state(&format!("t{i}"), TaskState::Completed).await;
        assert_eq!(task.attempt(), if i == 0 { 2 } else { 1 }, "a hold costs no try");
    }
    assert_eq!(it.receiver.count(), 9);
    one.stop(secs(1)).await;
    two.stop(secs(1)).await;
}

#[tokio::test]
async fn a_held_webhook_does_not_hold_up_the_others() {
    let it = Inside::start().await;
    it.webhook("a").await;
    it.webhook("b").await;
    let busy = Answer::status(503).header("retry-after", "30").into();
    it.receiver.on_in_turn("/b", vec![busy, Answer::status(200).into()]);
    given(&it, 1).await;
    let worker = it.worker();
    eventually(secs(5), async || view(&it).await.holds.until("b").is_some()).await;
    for i in 1..6 {
        it.given_due(&format!("t{i}")).await;
    }
    let at = |path: &str| it.receiver.journal().iter().filter(|r| r.path() == path).count();
    eventually(secs(5), async || at("/a") == 6).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((at("/a"), at("/b")), (6, 1));
    let claims: u32 = it.task("t3").await.attempt();
    assert_eq!(claims, 1);
    it.advance(secs(31));
    for i in 0..6 {
        it.in_state(&format!("t{i}"), TaskState::Completed).await;
    }
    assert_eq!((at("/a"), at("/b")), (6, 7));
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn s16_ten_silent_attempts_open_the_breaker_and_what_waits_spends_no_tries() {
    let it = Inside::start().await;
    let worker = given_silent(&it).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((it.receiver.count(), tries(&it, 30).await), (10, 10));
    let held = view(&it).await;
    let left = held.holds.until("main").unwrap().since(held.now);
    assert!(left <= secs(5) && left > secs(3), "{left:?}");

    // after the hold one asks, in vain: held for twice as long
    it.advance(secs(5));
    eventually(secs(5), async || view(&it).await.holds.breaker("main") == 2).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!((it.receiver.count(), tries(&it, 30).await), (11, 11));
    let held = view(&it).await;
    assert!(held.holds.until("main").unwrap().since(held.now) > secs(8));
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn s16_after_a_hold_one_task_at_a_time_asks_until_any_answer_comes() {
    let it = Inside::start().await;
    let worker = given_silent(&it).await;
    it.webhook("main").await; // as many calls at once as usual; that it does not answer is still known
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(500).held_by(&gate));
    it.advance(secs(6));
    it.receiver.wait_for(11, secs(5)).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(it.receiver.count(), 11, "one asks");
    it.receiver.forget_rules();
    gate.open();
    eventually(secs(5), async || view(&it).await.holds.breaker("main") == 0).await;
    it.advance(secs(30));
    for i in 0..30 {
        it.in_state(&format!("t{i}"), TaskState::Completed).await;
    }
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn s16_another_replica_joins_an_open_breaker() {
    let it = Inside::start().await;
    let one = given_silent(&it).await;
    one.stop(secs(1)).await;
    it.webhook("main").await;
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(200).held_by(&gate));
    let other = inside::store(&it.redis).await;
    let two = Inside::worker_on(&other, |_| {});
    other.clock().advance(secs(6));
    it.advance(secs(6));
    it.receiver.wait_for(11, secs(5)).await;
    tokio::time::sleep(A_WHILE).await;
    let asked = it.receiver.count();
    assert!(asked == 11, "the other process knows too that it is to ask: {asked}");
    gate.open();
    two.stop(secs(1)).await;
}

#[tokio::test]
async fn s16_freeing_a_webhook_closes_its_breaker_at_once() {
    let it = Inside::start().await;
    let worker = given_silent(&it).await;
    it.webhook("main").await; // as many calls at once as usual
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(200).held_by(&gate));
    let free = HookChange::Free(WebhookId::parse("main").unwrap());
    it.change(Change { hooks: vec![free], ..Change::default() }).await;
    // those that were not tried yet are due, and go side by side
    it.receiver.wait_for(30, secs(5)).await;
    gate.open();
    assert!(view(&it).await.holds.until("main").is_none());
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn answers_of_any_status_open_nothing() {
    let it = Inside::start().await;
    it.webhook_with("main", |w| w.max_in_flight = Some(1)).await;
    it.receiver.on("/main", Answer::status(500));
    given(&it, 20).await;
    let worker = it.worker();
    it.receiver.wait_for(20, secs(10)).await;
    eventually(secs(5), async || view(&it).await.health.get("main").is_some_and(|h| h.consecutive_failures == 20))
        .await;
    assert_eq!((view(&it).await.holds.breaker("main"), view(&it).await.holds.until("main")), (0, None));
    it.receiver.forget_rules();
    it.advance(secs(2));
    eventually(secs(5), async || view(&it).await.health["main"].consecutive_failures == 0).await;
    assert!(view(&it).await.health["main"].last_success_at.is_some());
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn max_in_flight_of_a_webhook_bounds_its_calls() {
    let it = Inside::start().await;
    it.webhook_with("main", |w| w.max_in_flight = Some(3)).await;
    let gate = Gate::new();
    it.receiver.on("/main", Answer::status(200).held_by(&gate));
    given(&it, 12).await;
    let worker = it.worker();
    it.receiver.wait_for(3, secs(5)).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(it.receiver.count(), 3);
    it.webhook_with("main", |w| w.max_in_flight = Some(5)).await;
    it.receiver.wait_for(8, secs(5)).await; // those under the old number run out beside it
    gate.open();
    for i in 0..12 {
        it.in_state(&format!("t{i}"), TaskState::Completed).await;
    }
    worker.stop(secs(1)).await;
}
