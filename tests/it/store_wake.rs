//! Who sleeps until an instant is woken when it becomes earlier; the agenda is never later than the truth.

use std::time::Duration;

use duepost::{
    domain::{
        queue::{Pause, Settings},
        round::Verdict,
        task::{NewTask, When},
        time::UnixMs,
    },
    store::{Change, ClaimKind, HookChange, Ring, Settled},
};
use tokio_util::sync::CancellationToken;

use crate::{
    store_kit::{Kit, delayed, hook, retry_at, task},
    support::{ms, secs},
};

#[tokio::test]
async fn enqueue_rings_only_when_the_head_becomes_earlier() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.visit(0, ClaimKind::Push).await;
    let mut ear = kit.ear().await;
    let first = kit.given(delayed("a", 60_000)).await;
    assert_eq!(ear.heard(&kit).await, [format!("q {0} {0}", first.run_at.0)]);
    assert_eq!(kit.agenda().await, Some(first.run_at.0));
    kit.given(delayed("b", 61_000)).await;
    assert_eq!(ear.heard(&kit).await, Vec::<String>::new(), "a busy queue does not ring for each task");
    let earlier = kit.given(delayed("c", 30_000)).await;
    assert_eq!(ear.heard(&kit).await, [format!("q {0} {0}", earlier.run_at.0)]);
    assert_eq!(kit.agenda().await, Some(earlier.run_at.0));
}

#[tokio::test]
async fn without_a_webhook_only_pull_is_rung_for() {
    let kit = Kit::start().await;
    let mut ear = kit.ear().await;
    let task = kit.given(delayed("a", 60_000)).await;
    assert_eq!(ear.heard(&kit).await, [format!("q {} -", task.run_at.0)]);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.agenda().await, None, "no push could take anything");
    kit.open("h").await;
    assert_eq!(ear.heard(&kit).await, [format!("q {0} {0}", task.run_at.0)]);
    let looked = kit.agenda().await.unwrap();
    assert!(looked <= task.run_at.0, "too early costs a visit, too late is a bug");
}

#[tokio::test]
async fn settings_pause_resume_and_webhooks_always_ring() {
    let kit = Kit::start().await;
    let mut ear = kit.ear().await;
    let changes = [
        Change { settings: Some(Settings::default()), ..Change::default() },
        Change { pause: Some(Pause::Open), ..Change::default() },
        Change { pause: Some(Pause::No), ..Change::default() },
        Change { hooks: vec![HookChange::Set(Box::new(hook("h", true)))], ..Change::default() },
        Change { hooks: vec![HookChange::Free(hook("h", true).id)], ..Change::default() },
        Change { hooks: vec![HookChange::Remove(hook("h", true).id)], ..Change::default() },
    ];
    for change in changes {
        kit.change(change.clone()).await;
        assert_eq!(ear.heard(&kit).await, ["q - -"], "{change:?}");
    }
    let task = kit.given_due("a").await;
    kit.change(Change { pause: Some(Pause::Until(task.run_at.plus(secs(60)))), ..Change::default() }).await;
    ear.heard(&kit).await;
    kit.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    assert_eq!(ear.heard(&kit).await, [format!("q {} -", task.run_at.0)]);
}

#[tokio::test]
async fn resuming_brings_the_queues_instant_forward() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given_due("a").await;
    kit.change(Change { pause: Some(Pause::Open), ..Change::default() }).await;
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.agenda().await, None);
    kit.change(Change { pause: Some(Pause::No), ..Change::default() }).await;
    assert_eq!(kit.agenda().await, Some(task.run_at.0));
}

#[tokio::test]
async fn a_retry_that_is_due_before_the_head_rings() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    kit.given(delayed("b", 60_000)).await;
    kit.visit(0, ClaimKind::Push).await;
    let mut ear = kit.ear().await;
    let soon = kit.now().await + 30_000;
    assert_eq!(kit.end(&claim, retry_at(soon)).await, Settled::Scheduled);
    assert_eq!(ear.heard(&kit).await, [format!("q {soon} {soon}")]);
    assert!(kit.agenda().await.unwrap() <= soon);
    let (_, claim) = kit.given_claimed("c").await;
    ear.heard(&kit).await;
    assert_eq!(kit.end(&claim, retry_at(soon + 1)).await, Settled::Scheduled);
    assert_eq!(ear.heard(&kit).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_place_that_comes_free_in_a_full_queue_rings() {
    let kit = Kit::start_with(Settings { max_in_flight: Some(1), ..Settings::default() }).await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    let waiting = kit.given_due("b").await;
    kit.visit(0, ClaimKind::Push).await;
    assert!(kit.agenda().await.unwrap() > waiting.run_at.0, "it waits for the end of the lease");
    let mut ear = kit.ear().await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert_eq!(ear.heard(&kit).await, [format!("q {0} {0}", waiting.run_at.0)]);
    assert!(kit.agenda().await.unwrap() <= kit.now().await);

    kit.settings(Settings { max_in_flight: Some(2), ..Settings::default() }).await;
    let claim = kit.claim_one().await;
    kit.given_due("c").await;
    kit.visit(0, ClaimKind::Push).await;
    ear.heard(&kit).await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert_eq!(ear.heard(&kit).await, Vec::<String>::new(), "it was not full");
}

#[tokio::test]
async fn a_visit_that_only_looks_wakes_those_who_may_take_what_came_back() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_claimed("a").await;
    let mut ear = kit.ear().await;
    let visited = kit.lapse().await;
    assert_eq!(ear.heard(&kit).await, [format!("q {0} {0}", visited.now.0)]);
}

#[tokio::test]
async fn a_visit_sets_the_agenda_exactly() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let agenda = async || {
        let visited = kit.visit(0, ClaimKind::Push).await;
        assert_eq!(visited.agenda.map(|at| at.0), kit.agenda().await, "what it answers is what is there");
        visited.agenda.map(|at| at.0)
    };
    assert_eq!(agenda().await, None, "nothing to do");
    let task = kit.given(NewTask { expires: Some(When::After(ms(50_000))), ..delayed("a", 60_000) }).await;
    assert_eq!(agenda().await, task.expires_at.map(|at| at.0), "an expiry");
    kit.cancel(&task.id).await;
    let ended = kit.get(&task.id).await.unwrap().score.0;
    assert_eq!(agenda().await, Some((ended + 3_600_000) / 10_000 * 10_000 + 10_000), "a step of retention");
    let task = kit.given(delayed("b", 7000)).await;
    assert_eq!(agenda().await, Some(task.run_at.0), "a due task");
    kit.advance(7001);
    let now = kit.now().await;
    let still = agenda().await.unwrap();
    assert!((now..=kit.now().await).contains(&still), "still due");
    let visited = kit.visit(1, ClaimKind::Push).await;
    let lease = kit.score("active", &task.id).await;
    assert!(lease.is_some(), "it was claimed");
    assert_eq!(visited.agenda.map(|at| at.0), lease, "the end of the lease that it gave");
    assert_eq!(agenda().await, lease, "the end of a lease");
}

#[tokio::test]
async fn scripts_only_lower_the_agenda() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let first = kit.given(delayed("a", 20_000)).await;
    kit.visit(0, ClaimKind::Push).await;
    kit.given(NewTask { expires: Some(When::After(secs(90))), ..delayed("b", 60_000) }).await;
    assert_eq!(kit.agenda().await, Some(first.run_at.0));
    kit.given(NewTask { expires: Some(When::After(secs(10))), ..delayed("c", 9_000) }).await;
    kit.given(NewTask { expires: Some(When::After(secs(8))), ..delayed("d", 60_000) }).await;
    assert!(kit.agenda().await.unwrap() <= kit.now().await + 8001);
}

#[tokio::test]
async fn the_look_at_all_agendas_finds_what_is_due_within_a_second() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given(delayed("a", 5000)).await;
    kit.visit(0, ClaimKind::Push).await;
    assert!(kit.store.agenda().await.unwrap().soon.is_empty());
    kit.advance(4200);
    let agenda = kit.store.agenda().await.unwrap();
    assert_eq!(agenda.soon, [(kit.queue.clone(), task.run_at)]);
    assert!((kit.now().await - agenda.now.0).abs() < 1000);
    assert_eq!((agenda.seqs.len(), agenda.seqs.iter().flatten().sum::<u64>()), (64, 1));
}

#[tokio::test]
async fn the_stores_own_bell_hears_the_scripts() {
    let kit = Kit::start().await;
    let (mut rings, stop) = (kit.store.bell().listen(), CancellationToken::new());
    let (store, stopped) = (kit.store.clone(), stop.clone());
    let keeper = tokio::spawn(async move { store.keep_bell(stopped).await });
    let next = async |rings: &mut tokio::sync::broadcast::Receiver<Ring>| {
        tokio::time::timeout(Duration::from_secs(5), rings.recv()).await.expect("a ring").expect("the bell lives")
    };
    assert!(matches!(next(&mut rings).await, Ring::Look), "subscribed: look at once");
    let task = kit.given(task("a")).await;
    let Ring::Queue { queue, pull, push } = next(&mut rings).await else { panic!("no ring of the queue") };
    assert_eq!((queue, pull, push), (kit.queue.clone(), Some(UnixMs(task.run_at.0)), None));
    stop.cancel();
    keeper.await.unwrap();
}
