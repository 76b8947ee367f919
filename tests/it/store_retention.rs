//! What `visit` forgets, and when: how long ended tasks are kept, and how many.

use duepost::{
    domain::{
        queue::Settings,
        round::Verdict,
        task::{DeadReason, NewTask, When},
        time::UnixMs,
    },
    store::{Cancel, ClaimKind, Settled},
};

use crate::{
    store_kit::{Kit, anonymous, delayed, id, task},
    support::{ms, secs},
};

#[tokio::test]
async fn ended_tasks_are_kept_for_their_time_in_steps_of_ten_seconds() {
    let settings = Settings { retain_completed: secs(60), retain_dead: secs(120), ..Settings::default() };
    let kit = Kit::start_with(settings).await;
    kit.open("h").await;
    let mut ended = Vec::new();
    for (name, verdict) in
        [("done", Verdict::Done), ("expired", Verdict::Expired), ("dead", Verdict::Dead(DeadReason::Refused))]
    {
        let (task, claim) = kit.given_claimed(name).await;
        kit.end(&claim, verdict).await;
        ended.push(kit.get(&task.id).await.unwrap());
    }
    let cancelled = kit.given(delayed("cancelled", 5)).await;
    kit.cancel(&cancelled.id).await;
    let step = |at: i64| (at / 10_000 + 1) * 10_000;
    let first = ended[0].score.0;
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(visited.agenda, Some(UnixMs(step(first + 60_000))));
    assert_eq!(kit.size("completed").await, 1);
    kit.advance(60_100);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!((kit.size("completed").await, kit.size("expired").await, kit.size("cancelled").await), (0, 0, 0));
    assert!(kit.get(&ended[0].id).await.is_none() && !kit.has_run_row(&ended[0].id).await);
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(visited.agenda, Some(UnixMs(step(ended[2].score.0 + 120_000))));
    kit.settings(Settings { retain_dead: secs(1), ..Settings::default() }).await;
    assert!(kit.agenda().await.unwrap() <= kit.now().await, "a changed retention is looked at once");
    assert_eq!(kit.store.audit(false).await.unwrap().findings, [], "and no check finds the queue forgotten");
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("dead").await, 0, "and holds for those that are there");
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!((visited.agenda, kit.agenda().await), (None, None));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_queue_that_keeps_nothing_keeps_nothing() {
    let settings = Settings { retain_completed: secs(0), retain_dead: secs(0), ..Settings::default() };
    let kit = Kit::start_with(settings).await;
    kit.open("h").await;
    for (name, verdict) in
        [("done", Verdict::Done), ("expired", Verdict::Expired), ("dead", Verdict::Dead(DeadReason::Refused))]
    {
        let (task, claim) = kit.given_claimed(name).await;
        kit.end(&claim, verdict).await;
        assert!(kit.get(&task.id).await.is_none(), "{name}");
        assert_eq!(kit.end(&claim, verdict).await, Settled::Gone);
    }
    let waiting = kit.given(delayed("cancelled", 5)).await;
    assert!(matches!(kit.cancel(&waiting.id).await, Cancel::Done(_)));
    let (marked, _) = kit.given_claimed("marked").await;
    kit.cancel(&marked.id).await;
    kit.given(NewTask { expires: Some(When::After(ms(300))), ..delayed("late", 200) }).await;
    kit.lapse().await;
    assert_eq!(kit.on::<i64>("HLEN", "tasks", &[]).await, 0);
    assert_eq!(kit.on::<i64>("HLEN", "runs", &[]).await, 0);
    assert_eq!((kit.total("cancelled").await, kit.total("expired").await), (2, 2));
    kit.assert_sound().await;
}

#[tokio::test]
async fn no_more_than_the_most_are_kept_but_young_ones_with_a_clients_id_are_spared() {
    let kit = Kit::start_with(Settings { retain_completed_max: 2, ..Settings::default() }).await;
    kit.open("h").await;
    let mut done = Vec::new();
    for task in [anonymous(), anonymous(), task("a"), task("b"), anonymous()] {
        let task = kit.given(task).await;
        kit.advance(2);
        let claim = kit.claim_one().await;
        assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
        done.push(task.id);
    }
    assert!(kit.agenda().await.unwrap() <= (kit.now().await / 10_000 + 1) * 10_000);
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("completed").await, 3, "the two old ones without a client's id are gone");
    assert!(visited.agenda.unwrap() <= visited.now.plus(secs(10)), "and the one too many is looked at again");
    for spared in &done[2..] {
        assert!(kit.get(spared).await.is_some());
    }
    kit.advance(60_001);
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("completed").await, 2);
    assert!(kit.get(&id("a")).await.is_none() && kit.get(&id("b")).await.is_some());
    assert!(visited.agenda.unwrap().0 > visited.now.0 + 3_000_000);
    kit.assert_sound().await;
}

#[tokio::test]
async fn what_goes_by_its_time_is_not_counted_among_the_too_many() {
    let kept = Settings { retain_completed: secs(30), retain_completed_max: 3, ..Settings::default() };
    let kit = Kit::start_with(kept).await;
    kit.open("h").await;
    for _ in 0..5 {
        kit.given(anonymous()).await;
    }
    kit.advance(2);
    for (n, claim) in kit.push(5).await.iter().enumerate() {
        assert_eq!(kit.end(claim, Verdict::Done).await, Settled::Completed);
        kit.advance(if n == 1 { 29_000 } else { 0 });
    }
    kit.advance(1500);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("completed").await, 3);
}
