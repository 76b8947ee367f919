//! The scripts' main paths on a real Redis, once each; the stories with their refusals stand in `store_*.rs`.

use duepost::{
    domain::{
        queue::{Pause, Settings},
        round::Verdict,
        task::{DeadReason, TaskState},
        time::UnixMs,
    },
    store::{Cancel, Change, ClaimKind, HookChange, PageRequest, Settled},
};

use crate::store_kit::{Kit, delayed, hook, id, retry_at};

#[tokio::test]
async fn a_task_is_enqueued_claimed_and_delivered() {
    let kit = Kit::bare().await;
    assert!(kit.store.create_queue(&kit.queue, &Settings::default()).await.unwrap());
    assert!(!kit.store.create_queue(&kit.queue, &Settings::default()).await.unwrap());
    kit.open("h").await;

    let task = kit.given_due("a").await;
    assert_eq!((task.state, task.run_at), (TaskState::Scheduled, task.created_at));
    let claim = kit.claim_one().await;
    assert_eq!((&claim.id, claim.lease.fence, claim.due), (&task.id, 1, task.run_at));
    assert_eq!(claim.payload, "1");
    assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Active);

    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Completed);
    kit.assert_sound().await;
}

#[tokio::test]
async fn each_verdict_leads_where_it_says() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let soon = kit.now().await + 60_000;
    for (name, verdict, settled, state) in [
        ("retry", retry_at(soon), Settled::Scheduled, TaskState::Scheduled),
        ("dead", Verdict::Dead(DeadReason::Refused), Settled::Dead, TaskState::Dead),
        ("expired", Verdict::Expired, Settled::Expired, TaskState::Expired),
        ("release", Verdict::Release(UnixMs(soon)), Settled::Scheduled, TaskState::Scheduled),
    ] {
        let (task, claim) = kit.given_claimed(name).await;
        assert_eq!(kit.end(&claim, verdict).await, settled, "{name}");
        let task = kit.get(&task.id).await.unwrap();
        assert_eq!(task.state, state, "{name}");
        if state == TaskState::Scheduled {
            assert_eq!(task.score, UnixMs(soon), "{name}");
        }
    }
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_lease_that_ends_puts_the_task_back() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, first) = kit.given_claimed("a").await;
    let visited = kit.lapse().await;
    assert!(visited.claims.is_empty());
    assert_eq!(visited.push, Some(visited.now));
    let second = kit.claim_one().await;
    assert_eq!((second.id, second.lease.fence, second.reclaims, second.lapses), (task.id, 2, 1, 0));
    assert_eq!(kit.end(&first, retry_at(0)).await, Settled::LeaseLost);
    kit.assert_sound().await;
}

#[tokio::test]
async fn cancel_answers_by_state() {
    let kit = Kit::start().await;
    kit.open("h").await;
    assert!(matches!(kit.cancel(&id("nobody")).await, Cancel::Unknown));
    let waiting = kit.given(delayed("waiting", 60_000)).await;
    assert!(matches!(kit.cancel(&waiting.id).await, Cancel::Done(t) if t.state == TaskState::Cancelled));
    assert!(matches!(kit.cancel(&waiting.id).await, Cancel::Already(t) if t.state == TaskState::Cancelled));

    let (task, claim) = kit.given_claimed("a").await;
    assert!(matches!(kit.cancel(&task.id).await, Cancel::UnderWay(t) if t.cancelling));
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Cancelled);

    let (task, claim) = kit.given_claimed("b").await;
    assert_eq!(kit.end(&claim, Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
    assert!(matches!(kit.cancel(&task.id).await, Cancel::Done(t) if t.state == TaskState::Cancelled));

    let (task, claim) = kit.given_claimed("c").await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert!(matches!(kit.cancel(&task.id).await, Cancel::Finished(TaskState::Completed)));
    kit.assert_sound().await;
}

#[tokio::test]
async fn lists_figures_and_agenda() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for n in 0..5 {
        kit.given(delayed(&format!("t{n}"), 1000)).await;
    }
    let page = |after, limit| PageRequest { state: TaskState::Scheduled, after, limit, full: true };
    let first = kit.store.list(&kit.queue, &page(None, 3)).await.unwrap().unwrap();
    assert_eq!(first.tasks.len(), 3);
    let rest = kit.store.list(&kit.queue, &page(first.next, 3)).await.unwrap().unwrap();
    let mut ids: Vec<String> = first.tasks.iter().chain(&rest.tasks).map(|t| t.id.to_string()).collect();
    ids.sort();
    assert_eq!((ids, rest.next), (["t0", "t1", "t2", "t3", "t4"].map(str::to_owned).to_vec(), None));

    let agenda = kit.store.agenda().await.unwrap();
    assert_eq!(agenda.seqs.iter().flatten().sum::<u64>(), 5);
    assert_eq!(agenda.soon.len(), 1);
    let stats = kit.store.stats(&kit.queue).await.unwrap().unwrap();
    assert_eq!((stats.scheduled, stats.due, stats.webhooks, stats.totals.enqueued), (5, 0, 1, 5));
    kit.advance(1001);
    assert_eq!(kit.store.stats(&kit.queue).await.unwrap().unwrap().due, 5);
}

#[tokio::test]
async fn set_up_is_read_as_it_was_changed() {
    let kit = Kit::start().await;
    let before = kit.store.describe(&kit.queue).await.unwrap().unwrap();
    kit.change(Change {
        pause: Some(Pause::Open),
        hooks: vec![HookChange::Set(Box::new(hook("h", true))), HookChange::Set(Box::new(hook("off", false)))],
        settings: Some(Settings { max_in_flight: Some(3), ..Settings::default() }),
    })
    .await;
    let after = kit.store.describe(&kit.queue).await.unwrap().unwrap();
    assert!(after.rev > before.rev);
    assert_eq!(after.queue.pause, Pause::Open);
    assert_eq!(after.queue.settings.max_in_flight, Some(3));
    assert_eq!(after.webhooks, [hook("h", true), hook("off", false)]);
    assert_eq!(after.queue.created_at, before.queue.created_at);
    let visited = kit.visit(0, ClaimKind::Push).await;
    assert_eq!(visited.rev, after.rev);
    assert_eq!(kit.store.queue_names().await.unwrap(), std::slice::from_ref(&kit.queue));
}
