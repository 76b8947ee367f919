//! What `visit` answers of its claims, and what it leaves to another visit when it is told to be brief.

use std::time::Duration;

use duepost::{
    domain::{queue::Settings, time::UnixMs},
    store::{ClaimKind, Visit, Want},
};

use crate::store_kit::{Kit, LEASE, delayed};

const VISIT: Visit = Visit { tasks: 5, bytes: 1 << 20, lease: LEASE, kind: ClaimKind::Push };

#[tokio::test]
async fn each_claim_has_its_own_instant_and_the_next_is_that_of_what_is_left() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let mut tasks = Vec::new();
    for (n, delay) in [10, 20, 30, 40].into_iter().enumerate() {
        tasks.push(kit.given(delayed(&format!("t{n}"), delay)).await);
    }
    kit.advance(5000);
    let visited = kit.visit(3, ClaimKind::Push).await;
    let dues: Vec<_> = visited.claims.iter().map(|c| (&c.id, c.due)).collect();
    let want: Vec<_> = tasks[..3].iter().map(|t| (&t.id, t.run_at)).collect();
    assert_eq!((dues, visited.push), (want, Some(tasks[3].run_at)));
    let last = kit.visit(3, ClaimKind::Push).await;
    assert_eq!((last.claims[0].due, last.claims.len(), last.push), (tasks[3].run_at, 1, None));
}

#[tokio::test]
async fn a_brief_visit_leaves_what_is_no_task_to_the_instant_that_it_was_given() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, _) = kit.given_claimed("a").await;
    kit.advance(10_000);
    let other = kit.given(delayed("b", 60_000)).await;
    let until = kit.now().await + 900;

    let brief = kit.store.visit_briefly(&kit.queue, VISIT, UnixMs(until)).await.unwrap();
    assert!(brief.claims.is_empty(), "the lease that ended is left alone");
    assert_eq!((brief.push, brief.agenda), (Some(other.run_at), Some(UnixMs(until))));
    assert_eq!(kit.agenda().await, Some(until), "also in the agenda");

    let whole = kit.store.visit_briefly(&kit.queue, VISIT, UnixMs(brief.now.0 + 2000)).await.unwrap();
    assert_eq!(whole.claims.len(), 1, "an instant that far off is a clock gone wrong");
    assert_eq!(whole.claims[0].id, task.id);
    kit.advance(2000);
    let whole = kit.store.visit_briefly(&kit.queue, VISIT, whole.now).await.unwrap();
    assert_eq!(whole.claims.len(), 1, "that instant has come");
}

#[tokio::test]
async fn a_brief_visit_to_a_queue_with_a_limit_looks_at_all() {
    let kit = Kit::start_with(Settings { max_in_flight: Some(1), ..Settings::default() }).await;
    kit.open("h").await;
    let (task, _) = kit.given_claimed("a").await;
    kit.given_due("b").await;
    kit.advance(1001);
    let until = UnixMs(kit.now().await + 900);
    let visited = kit.store.visit_briefly(&kit.queue, VISIT, until).await.unwrap();
    assert_eq!(visited.claims.len(), 1, "the lease of {} ended, and its place is free", task.id);
}

#[tokio::test]
async fn looks_of_consumers_are_brief_in_a_row_and_only_where_they_take_tasks() {
    const TASKS: usize = 30;
    let kit = Kit::start().await;
    for n in 0..TASKS {
        kit.given_due(&format!("t{n}")).await;
    }
    kit.advance(2);
    let pull = async || {
        let want = Want { max: 1, lease: Duration::from_secs(30), wait: Duration::ZERO };
        let mut taken = kit.store.pull(&kit.queue, want).await.unwrap();
        let tasks = taken.tasks().len();
        taken.handed_over();
        tasks
    };
    let mut brief = 0;
    for _ in 0..TASKS {
        assert_eq!(pull().await, 1);
        // a whole one knows that nothing is to be done before the first lease ends
        let agenda = kit.agenda().await.expect("a lease that will end");
        brief += usize::from(agenda <= kit.now().await + 100);
    }
    assert!((1..TASKS).contains(&brief), "{brief} of {TASKS} left the rest to an instant that is near");

    for _ in 0..3 {
        assert_eq!(pull().await, 0);
    }
    let agenda = kit.agenda().await.expect("a lease that will end");
    assert!(agenda > kit.now().await + 100, "who asks in vain must not make the agenda want visits");
}
