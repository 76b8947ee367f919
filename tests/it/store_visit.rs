//! What `visit` takes and ends; what it forgets is in `store_retention`.

use duepost::{
    domain::{
        queue::{Pause, Rate, Settings},
        round::Verdict,
        task::{NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, Change, ClaimKind, HookChange, Settled, Visit},
};

use crate::{
    store_kit::{Kit, LEASE, delayed, hook, payload, retry_at, store_on, task},
    store_raw::{b, claims},
    support::{ms, secs},
};

#[tokio::test]
async fn nothing_is_taken_early_and_the_earliest_comes_first() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let late = kit.given(delayed("a", 90_000)).await;
    let soon = kit.given(delayed("z", 60_000)).await;
    kit.advance(59_000);
    let visited = kit.visit(10, ClaimKind::Push).await;
    assert!(visited.claims.is_empty());
    assert_eq!((visited.push, visited.pull, visited.agenda), (Some(soon.run_at), Some(soon.run_at), Some(soon.run_at)));
    kit.advance(31_001);
    let claims = kit.push(1).await;
    assert_eq!((claims[0].id.as_str(), claims[0].due, claims[0].run_at), ("z", soon.run_at, soon.run_at));
    assert_eq!(kit.push(10).await[0].id, late.id);
    assert!(kit.push(10).await.is_empty());
    assert_eq!(kit.size("active").await, 2);
}

#[tokio::test]
async fn a_visit_takes_as_many_and_as_much_as_it_may() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for n in 0..6 {
        kit.given(NewTask { payload: payload(&format!("\"{}\"", "x".repeat(1000))), ..task(&format!("t{n}")) }).await;
    }
    kit.advance(2);
    let visit = |bytes| Visit { tasks: 10, bytes, lease: secs(600), kind: ClaimKind::Push };
    assert_eq!(kit.store.visit(&kit.queue, Visit { tasks: 2, ..visit(1 << 20) }).await.unwrap().claims.len(), 2);
    assert_eq!(kit.store.visit(&kit.queue, visit(2200)).await.unwrap().claims.len(), 2);
    assert_eq!(kit.store.visit(&kit.queue, visit(1)).await.unwrap().claims.len(), 1, "one always fits");
    let last = kit.store.visit(&kit.queue, visit(1 << 20)).await.unwrap();
    assert_eq!((last.claims.len(), last.push), (1, None));
    kit.assert_sound().await;
    for n in 0..40 {
        kit.given(NewTask { payload: payload(&format!("\"{}\"", "x".repeat(998))), ..task(&format!("u{n:02}")) }).await;
    }
    kit.advance(2);
    for (bytes, fit) in [(1050 * 11 + 1000, 11), (1050 * 8, 8), (1050 * 16 + 500, 16), (1 << 20, 5)] {
        let claims = kit.store.visit(&kit.queue, Visit { tasks: 25, ..visit(bytes) }).await.unwrap().claims;
        assert_eq!(claims.len(), fit, "{bytes}");
        assert!(claims.iter().all(|claim| claim.payload.len() == 1000));
    }
    kit.assert_sound().await;
}

#[tokio::test]
async fn without_an_enabled_webhook_only_pull_takes() {
    let kit = Kit::start().await;
    kit.given_due("a").await;
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert!(visited.claims.is_empty());
    assert_eq!((visited.push, visited.agenda), (None, None));
    assert!(visited.pull.is_some_and(|at| at <= visited.now));
    kit.close("h").await;
    assert!(kit.push(5).await.is_empty(), "a disabled one does not count");
    assert_eq!(kit.visit(5, ClaimKind::Pull).await.claims.len(), 1);
}

#[tokio::test]
async fn the_fence_grows_with_each_claim_and_a_run_row_begins_with_the_first() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given_due("a").await;
    assert!(!kit.has_run_row(&task.id).await);
    for fence in 1..=4 {
        let claim = kit.claim_one().await;
        assert_eq!(claim.lease.fence, fence);
        assert!(kit.has_run_row(&task.id).await);
        assert_eq!(kit.end(&claim, Verdict::Release(UnixMs(0))).await, Settled::Scheduled);
        assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::LeaseLost, "its claim has ended");
    }
}

#[tokio::test]
async fn vanished_pushes_and_pulls_are_counted_apart() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_due("a").await;
    kit.claim_one().await;
    kit.lapse().await;
    assert_eq!(kit.total("failed").await, 0, "a vanished worker is no failed attempt");
    assert_eq!(kit.total("retrying").await, 1);
    let pulled = kit.visit(1, ClaimKind::Pull).await.claims.remove(0);
    assert_eq!((pulled.reclaims, pulled.lapses), (1, 0));
    kit.lapse().await;
    assert_eq!(kit.total("failed").await, 1);
    let claim = kit.claim_one().await;
    assert_eq!((claim.lease.fence, claim.reclaims, claim.lapses), (3, 1, 1));
    assert_eq!(kit.total("retrying").await, 0);
    assert!(claim.claimed_before > pulled.claimed_before);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_lease_ends_at_its_instant_and_the_task_is_due_at_once() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, _) = kit.given_claimed("a").await;
    let end = kit.score("active", &task.id).await.unwrap();
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert_eq!((visited.claims.len(), visited.agenda), (0, Some(UnixMs(end))));
    kit.advance(1001);
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.score("due", &task.id).await, Some(visited.now.0));
    assert_eq!(visited.agenda, Some(visited.now), "still due: behind the others");
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_process_without_undisturbed_time_ends_no_lease() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    let (fresh, clock) = store_on(&kit.redis, secs(3600)).await;
    clock.advance(ms(5000));
    let visit = Visit { tasks: 5, bytes: 1, lease: LEASE, kind: ClaimKind::Push };
    let visited = fresh.visit(&kit.queue, visit).await.unwrap();
    assert!(visited.claims.is_empty());
    assert_eq!(visited.agenda, Some(visited.now.plus(ms(1000))), "it looks again in a second");
    assert!(kit.score("active", &task.id).await.is_some());
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
}

#[tokio::test]
async fn a_visit_that_sat_in_a_socket_ends_no_lease() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, _) = kit.given_claimed("a").await;
    kit.advance(1001);
    let now = kit.now().await;
    let args = |until: i64| [5, 1 << 20, 1000, 0, until, 0, 0].map(b);
    kit.eval("visit", now + 10_000, &args(now - 1)).await;
    assert!(kit.score("active", &task.id).await.is_some());
    let answer = kit.eval("visit", now + 10_000, &args(now + 60_000)).await;
    assert_eq!(claims(&answer), 1, "taken back and claimed anew");
}

#[tokio::test]
async fn nothing_due_later_than_the_cap_is_taken() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given(delayed("a", 100)).await;
    kit.advance(5000);
    let args = [5, 1 << 20, 1000, 0, 0, 0, 0].map(b);
    let answer = kit.eval("visit", task.run_at.0 - 1, &args).await;
    assert_eq!(claims(&answer), 0, "Redis's clock jumped");
    let answer = kit.eval("visit", task.run_at.0, &args).await;
    assert_eq!(claims(&answer), 1);
}

#[tokio::test]
async fn a_cancelled_task_whose_worker_dies_ends_cancelled() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    assert!(matches!(kit.cancel(&task.id).await, Cancel::UnderWay(_)));
    let visited = kit.lapse().await;
    assert_eq!(visited.push, None);
    let task = kit.get(&task.id).await.unwrap();
    assert_eq!((task.state, task.cancelling), (TaskState::Cancelled, false));
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Late, "counted, not applied");
    assert_eq!((kit.total("cancelled").await, kit.total("delivered").await), (1, 0));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_pause_stops_every_kind_of_claim() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_due("a").await;
    kit.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    for kind in [ClaimKind::Push, ClaimKind::Pull] {
        let visited = kit.visit(5, kind).await;
        assert!(visited.claims.is_empty());
        assert_eq!((visited.push, visited.pull, visited.agenda), (None, None, None));
    }
    let until = UnixMs(kit.now().await + 60_000);
    kit.change(Change { pause: Some(Pause::Until(until)), ..Change::default() }).await;
    let visited = kit.visit(5, ClaimKind::Pull).await;
    assert!(visited.claims.is_empty());
    assert_eq!((visited.push, visited.pull, visited.agenda), (Some(until), Some(until), Some(until)));
    kit.advance(60_000);
    assert_eq!(kit.push(5).await.len(), 1, "it ends by itself");
    kit.given_due("b").await;
    kit.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    kit.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    assert_eq!(kit.push(5).await.len(), 1);
}

#[tokio::test]
async fn no_more_than_max_in_flight_are_under_way_pushed_and_pulled() {
    let kit = Kit::start_with(Settings { max_in_flight: Some(2), ..Settings::default() }).await;
    kit.open("h").await;
    for n in 0..4 {
        kit.given_due(&format!("t{n}")).await;
    }
    let pulled = kit.visit(1, ClaimKind::Pull).await.claims.remove(0);
    let pushed = kit.visit(5, ClaimKind::Push).await;
    assert_eq!(pushed.claims.len(), 1);
    let first_end = kit.score("active", &pulled.id).await;
    assert_eq!(pushed.push.map(|at| at.0), first_end, "a place comes free at the latest when a lease ends");
    assert!(kit.visit(5, ClaimKind::Pull).await.claims.is_empty());
    assert_eq!(kit.end(&pulled, Verdict::Done).await, Settled::Completed);
    assert_eq!(kit.push(5).await.len(), 1);
    kit.settings(Settings { max_in_flight: Some(1), ..Settings::default() }).await;
    assert!(kit.push(5).await.is_empty(), "more are under way than may be");
    kit.lapse().await;
    assert_eq!(kit.push(5).await.len(), 1);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_rate_lets_a_burst_through_and_then_one_after_the_other() {
    let rate = Rate { limit: 2, per: ms(2000), burst: 3 };
    let kit = Kit::start_with(Settings { rate: Some(rate), ..Settings::default() }).await;
    kit.open("h").await;
    for n in 0..9 {
        kit.given(task(&format!("t{n}"))).await;
    }
    kit.advance(2);
    let visited = kit.visit(9, ClaimKind::Push).await;
    assert_eq!(visited.claims.len(), 3);
    let next = visited.push.unwrap().0;
    assert!((999..=1001).contains(&(next - visited.now.0)), "{}", next - visited.now.0);
    assert_eq!((visited.agenda, visited.pull), (visited.push, visited.push));
    kit.advance(900);
    assert!(kit.visit(9, ClaimKind::Pull).await.claims.is_empty());
    kit.advance(101);
    assert_eq!(kit.push(9).await.len(), 1);
    kit.advance(5000);
    let taken: usize = kit.push(9).await.len();
    assert_eq!(taken, 3, "no more than a burst after a rest (and nothing of the leases that ended)");
    kit.settings(Settings::default()).await;
    assert!(kit.push(9).await.len() >= 2, "without a rate all is taken");
}

#[tokio::test]
async fn a_hold_of_the_only_webhook_stops_pushes_but_not_pulls() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_due("a").await;
    let until = kit.now().await + 60_000;
    let _: i64 = kit.on("HSET", "holds", &[b"h", &b(until)]).await;
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert!(visited.claims.is_empty());
    assert_eq!((visited.push, visited.agenda), (Some(UnixMs(until)), Some(UnixMs(until))));
    assert!(visited.pull.is_some_and(|at| at <= visited.now));
    kit.open("free").await;
    assert_eq!(kit.push(5).await.len(), 1, "another one is free");
    kit.given_due("b").await;
    kit.close("free").await;
    assert!(kit.push(5).await.is_empty(), "a disabled one is no way out");
    let free = HookChange::Free(hook("h", true).id);
    kit.change(Change { hooks: vec![free], ..Change::default() }).await;
    assert_eq!(kit.push(5).await.len(), 1);
    assert!(kit.store.describe(&kit.queue).await.unwrap().unwrap().holds.until("h").is_none());
}

#[tokio::test]
async fn a_waiting_task_expires_at_its_instant_and_one_under_way_does_not() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let expiring = |name: &str| NewTask { expires: Some(When::After(ms(500))), ..task(name) };
    let waiting = kit.given(NewTask { when: When::After(ms(400)), ..expiring("waiting") }).await;
    let active = kit.given(expiring("active")).await;
    kit.advance(2);
    let claim = kit.claim_one().await;
    assert_eq!((&claim.id, claim.expires_at), (&active.id, active.expires_at));
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert!(visited.agenda <= waiting.expires_at);
    kit.advance(500);
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert!(visited.claims.is_empty(), "no attempt starts later");
    assert_eq!(kit.get(&waiting.id).await.unwrap().state, TaskState::Expired);
    assert_eq!(kit.get(&active.id).await.unwrap().state, TaskState::Active);
    kit.advance(1000);
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert!(visited.claims.is_empty());
    assert_eq!(kit.get(&active.id).await.unwrap().state, TaskState::Expired, "its worker vanished");
    assert_eq!(kit.total("expired").await, 2);
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Late);
    kit.assert_sound().await;
}
