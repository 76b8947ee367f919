//! Holds and health of webhooks: they come with settlements.

use duepost::{
    domain::{round::Verdict, time::UnixMs},
    store::{Change, ClaimKind, HookChange, Note, Settled, Settlement, Stamp},
};

use crate::store_kit::{Kit, hook, settlement};

#[tokio::test]
async fn holds_come_with_settlements_and_are_only_made_longer() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for name in ["a", "b", "c", "d"] {
        kit.given_due(name).await;
    }
    let (mut claims, later) = (kit.push(4).await, kit.now().await + 60_000);
    let rev = kit.store.describe(&kit.queue).await.unwrap().unwrap().rev;
    let mut hold = async |more: i64, rev: u64| {
        let until = Some(UnixMs(later + more));
        let note = Note { webhook: "h".to_owned(), rev, held_until: until, breaker: Some(1), ..Note::default() };
        let done = Settlement { notes: vec![note], ..settlement(&claims.remove(0), Verdict::Done) };
        assert_eq!(kit.settle(done).await, Settled::Completed);
        let view = kit.store.describe(&kit.queue).await.unwrap().unwrap();
        assert_eq!(view.holds.breaker("h"), 1);
        view.holds.until("h").unwrap().0 - later
    };
    assert_eq!(hold(1000, rev).await, 1000);
    assert_eq!(hold(2000, rev).await, 2000);
    assert_eq!(hold(1500, rev).await, 2000);
    assert_eq!(hold(3000, rev - 1).await, 2000, "the set-up has changed since");
    let free = HookChange::Free(hook("h", true).id);
    kit.change(Change { hooks: vec![free], ..Change::default() }).await;
    let view = kit.store.describe(&kit.queue).await.unwrap().unwrap();
    assert_eq!((view.holds.until("h"), view.holds.breaker("h"), view.health.len()), (None, 0, 0));
}

#[tokio::test]
async fn health_is_counted_once_however_often_a_settlement_is_repeated() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for name in ["a", "b", "c", "d", "e"] {
        kit.given_due(name).await;
    }
    let mut claims = kit.push(5).await;
    let rev = kit.store.describe(&kit.queue).await.unwrap().unwrap().rev;
    let mut last = Stamp::default();
    let mut end = async |success: Option<i64>, failure: Option<i64>| {
        let (success, failure) = (success.map(UnixMs), failure.map(|at| Stamp::of(UnixMs(at), last)));
        last = failure.unwrap_or(last);
        let failures = u64::from(failure.is_some());
        let note = Note { webhook: "h".to_owned(), rev, success, failure, failures, ..Note::default() };
        let done = Settlement { notes: vec![note], ..settlement(&claims.remove(0), Verdict::Done) };
        kit.settle(done.clone()).await;
        kit.settle(done).await;
        let view = kit.store.describe(&kit.queue).await.unwrap().unwrap();
        let h = view.health["h"];
        (h.last_success_at.map(|at| at.0), h.last_failure_at.map(|at| at.0), h.consecutive_failures)
    };
    assert_eq!(end(None, Some(1000)).await, (None, Some(1000), 1));
    assert_eq!(end(None, Some(1001)).await, (None, Some(1001), 2));
    assert_eq!(end(None, Some(1001)).await, (None, Some(1001), 3), "two failures may share a millisecond");
    assert_eq!(end(Some(1500), None).await, (Some(1500), Some(1001), 0), "a change is written at once");
    assert_eq!(end(Some(2000), None).await, (Some(1500), Some(1001), 0), "the rest once a second");
    assert_eq!(kit.store.stats(&kit.queue).await.unwrap().unwrap().totals.delivered, 5);
}

#[tokio::test]
async fn a_hold_that_is_over_goes_with_the_next_claim_and_its_breaker_stays() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for name in ["a", "b", "c"] {
        kit.given_due(name).await;
    }
    let now = kit.now().await;
    for (field, value) in [("h", now - 1), ("i", now + 60_000), ("!h", 2)] {
        let _: i64 = kit.on("HSET", "holds", &[field.as_bytes(), value.to_string().as_bytes()]).await;
    }
    for over in [Some(UnixMs(now - 1)), None] {
        let visited = kit.visit(1, ClaimKind::Push).await;
        assert_eq!(visited.claims.len(), 1);
        let holds = visited.holds;
        assert_eq!((holds.until("h"), holds.until("i"), holds.breaker("h")), (over, Some(UnixMs(now + 60_000)), 2));
        let mut left: Vec<String> = kit.on("HKEYS", "holds", &[]).await;
        left.sort();
        assert_eq!(left, ["!h", "i"]);
    }
}
