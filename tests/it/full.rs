//! F12: a Redis without memory takes nothing new, and all that empties it goes on, until it is empty.

use duepost::{
    domain::{
        round::Verdict,
        task::{NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, ClaimKind, Enqueued, Fate, Renewal, Renewed, Settled, Settlement, Visit},
};
use serde_json::json;

use crate::{
    store_kit::{Kit, settlement, task},
    support::{World, eventually, inside::Inside, ms, secs, until, world::figure},
};

/// Sets the limit so low that nothing more fits, or lifts it.
async fn fill(kit: &Kit, full: bool) {
    let _: String = kit.ask("CONFIG", &[b"SET", b"maxmemory", if full { b"1" } else { b"0" }]).await;
}

#[tokio::test]
async fn f12_at_maxmemory_everything_that_drains_works() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let due = kit.given_due("done").await;
    kit.given_due("retried").await;
    kit.given_due("died").await;
    let cancelled = kit.given(NewTask { when: When::After(secs(60)), ..task("cancelled") }).await;
    let running = kit.given_due("running").await;
    let claims = kit.push(3).await;
    assert_eq!(claims.len(), 3);
    fill(&kit, true).await;
    let refused = kit.store.enqueue(task("new")).await.expect_err("no memory");
    assert_eq!(refused.fate(), Fate::Full);

    let of = |id: &str| claims.iter().find(|c| c.id.as_str() == id).expect("claimed");
    let renewals = claims.iter().map(|c| Renewal { lease: c.lease.clone(), won: vec!["h".to_owned()] });
    let renewed = kit.store.renew(&kit.queue, secs(10), &renewals.collect::<Vec<_>>()).await.expect("renew runs");
    assert_eq!(renewed, [Renewed::Held; 3]);
    assert_eq!(kit.end(of("done"), Verdict::Done).await, Settled::Completed);
    assert_eq!(kit.end(of("retried"), Verdict::Release(due.run_at)).await, Settled::Scheduled);
    let dead = Verdict::Dead(duepost::domain::task::DeadReason::Refused);
    assert_eq!(
        kit.settle(Settlement { about: vec!["x".to_owned()], ..settlement(of("died"), dead) }).await,
        Settled::Dead
    );
    assert!(matches!(kit.cancel(&cancelled.id).await, Cancel::Done(_)));
    let more = kit.push(10).await;
    assert_eq!(more.len(), 2, "visit claims: {more:?}");
    assert!(matches!(kit.cancel(&running.id).await, Cancel::UnderWay(_)));
    let visit = Visit { tasks: 0, bytes: 1 << 20, lease: secs(1), kind: ClaimKind::Push };
    kit.advance(10_001);
    kit.store.visit(&kit.queue, visit).await.expect("visit ends leases");
    assert_eq!(kit.get(&running.id).await.expect("kept").state, TaskState::Cancelled);
    assert!(kit.get(&due.id).await.is_none(), "what is completed is not kept while memory is full");
    assert_eq!(kit.get(&of("died").id).await.expect("the dead are kept").state, TaskState::Dead);
    fill(&kit, false).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn at_maxmemory_a_brief_visit_claims_and_one_that_finds_nothing_says_when_to_come_again() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_due("a").await;
    let later = kit.given(NewTask { when: When::After(secs(60)), ..task("later") }).await;
    fill(&kit, true).await;
    let visit = Visit { tasks: 5, bytes: 1 << 20, lease: secs(10), kind: ClaimKind::Push };
    for claims in [1, 0] {
        let until = UnixMs(kit.now().await + 900);
        let visited = kit.store.visit_briefly(&kit.queue, visit, until).await.expect("its first write frees");
        assert_eq!((visited.claims.len(), visited.push, visited.agenda), (claims, Some(later.run_at), Some(until)));
    }
    fill(&kit, false).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn at_maxmemory_a_repeated_post_finds_its_task_and_only_the_new_one_is_refused() {
    let kit = Kit::start().await;
    let first = task("first");
    kit.given(first.clone()).await;
    fill(&kit, true).await;
    let before = kit.total("replays").await;

    // one batch of the script: the batcher puts both into one call, or two; the answers are the same
    let again = NewTask { uid: crate::store_kit::uid(), ..first.clone() };
    let (replayed, own, new) =
        tokio::join!(kit.store.enqueue(again), kit.store.enqueue(first), kit.store.enqueue(task("new")));
    assert!(matches!(replayed, Ok(Enqueued::Replayed(_))), "{replayed:?}");
    assert!(matches!(own, Ok(Enqueued::Created(_))), "the service's own retry: {own:?}");
    assert_eq!(new.expect_err("no memory").fate(), Fate::Full);
    assert_eq!(kit.total("replays").await, before + 2, "a replay writes");
    let many = kit.store.enqueue_many(&kit.queue, vec![task("a"), task("b")], true).await;
    assert_eq!(many.expect_err("all or none").fate(), Fate::Full);
    assert_eq!(kit.size("due").await, 1);
    fill(&kit, false).await;
    kit.given(task("new")).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn f12_what_expires_is_not_kept_while_memory_is_full_and_is_kept_again_later() {
    let it = Inside::start().await;
    it.webhook("main").await;
    let short = |id: &str| {
        let expires = Some(When::After(secs(30)));
        NewTask { when: When::After(secs(20)), expires, ..it.new_task(id) }
    };
    it.settings(|s| s.max_in_flight = None).await;
    for id in ["one", "two"] {
        it.given(short(id)).await;
    }
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(it.store.enqueue(it.new_task("new")).await.expect_err("no memory").fate(), Fate::Full);
    it.advance(secs(31));
    it.claim(0).await;
    let gone = it.store.get(&it.queue, &it.new_task("one").id.unwrap()).await.unwrap();
    assert!(matches!(gone, duepost::store::Found::Unknown), "{gone:?}");
}

/// Fills a Redis to its limit with tasks, then lets a receiver take them all.
#[tokio::test]
async fn f12_a_full_redis_is_worked_off_until_it_is_empty() {
    const KIB: usize = 1024;
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.api.post("/queues/q/pause", "").await.expect(200);
    let used = until(secs(5), async || {
        let info: String = it.redis.command(&["INFO", "memory"]).await;
        info.lines().find_map(|l| l.strip_prefix("used_memory:")).and_then(|n| n.trim().parse::<usize>().ok())
    })
    .await;
    let limit = used + 4 * KIB * KIB;
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).await;
    let payload = "x".repeat(4 * KIB);
    let mut taken = 0;
    loop {
        let answer = it.api.post("/queues/q/tasks", json!({"id": format!("t{taken}"), "payload": payload})).await;
        if answer.status == 503 {
            answer.problem(503, "storage-full");
            break;
        }
        answer.expect(201);
        taken += 1;
        assert!(taken < 5000, "the limit does not hold");
    }
    println!("{taken} tasks until Redis was full");
    assert!(taken > 200, "{taken}");
    it.api.post("/queues/q/tasks", json!({"id": "t0", "payload": payload})).await.expect(200);
    it.api.get("/readyz").await.problem(503, "unavailable");

    it.api.post("/queues/q/resume", "").await.expect(200);
    // new ones go on being refused or taken; the old ones go out
    let stats = until(secs(60), async || {
        let _ = it.api.post("/queues/q/tasks", json!({"id": "poke", "payload": payload, "delay": "1h"})).await;
        let _ = it.api.delete("/queues/q/tasks/poke").await;
        let stats = it.stats("q").await;
        (figure(&stats, "scheduled") + figure(&stats, "active") == 0).then_some(stats)
    })
    .await;
    it.receiver.wait_for(taken, secs(10)).await;
    assert!(figure(&stats, "completed") < i64::try_from(taken).unwrap(), "what was done made room: {stats}");
    eventually(secs(20), async || {
        tokio::time::sleep(ms(50)).await;
        it.api.post("/queues/q/tasks", json!({"id": "after", "payload": payload})).await.status != 503
    })
    .await;
    let log = it.service.stderr();
    for trouble in ["could not be renewed", "is not settled yet", "a visit failed", "an outcome is lost"] {
        assert!(!log.contains(trouble), "an error while draining:\n{log}");
    }
    it.receiver.wait_for_task("after", secs(10)).await;
}
