//! `run`, replay, purge, and the end of a queue.

use duepost::{
    domain::{
        queue::Settings,
        round::{Progress, Tries, Verdict},
        task::{DeadReason, NewTask, Task, TaskState, When},
        time::UnixMs,
    },
    store::{Batch, Cancel, Claim, ClaimKind, Dropped, Enqueued, Replay, Revived, Settled, Settlement},
};

use crate::{
    store_kit::{Kit, anonymous, delayed, hook, id, retry_at, settlement, task, uid},
    support::{ms, secs},
};

impl Kit {
    async fn run(&self, name: &str) -> Revived {
        self.store.run(&self.queue, &id(name)).await.expect("Redis answers")
    }

    async fn revived(&self, name: &str) -> Task {
        match self.run(name).await {
            Revived::Done(task) => task,
            other => panic!("not revived: {other:?}"),
        }
    }

    async fn replay(&self, which: Replay) -> u64 {
        self.store.replay(&self.queue, &which).await.expect("Redis answers").expect("the queue is there")
    }

    async fn purge(&self, state: TaskState) -> u64 {
        self.store.purge(&self.queue, state).await.expect("Redis answers").expect("the queue is there")
    }

    /// Dies because this webhook gave up.
    async fn given_dead(&self, name: &str, webhook: &str) -> Task {
        let (task, claim) = self.given_claimed(name).await;
        assert_eq!(self.settle(gave_up(&claim, webhook)).await, Settled::Dead);
        task
    }
}

fn gave_up(claim: &Claim, webhook: &str) -> Settlement {
    let mut progress = Progress::default();
    let tries = Tries { failed: 3, begun: 3, next: UnixMs(0), gave_up: true };
    progress.hooks.insert(webhook.to_owned(), tries);
    progress.reason = Some(DeadReason::MaxAttempts);
    let verdict = Verdict::Dead(DeadReason::MaxAttempts);
    let about = vec![webhook.to_owned()];
    Settlement { about, failed: 1, progress: Some(progress), ..settlement(claim, verdict) }
}

#[tokio::test]
async fn a_dead_task_begins_a_new_life() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.open("i").await;
    let (first, claim) = kit.given_claimed("a").await;
    let dead = Settlement { won: vec!["i".to_owned()], ..gave_up(&claim, "h") };
    assert_eq!(kit.settle(dead.clone()).await, Settled::Dead);
    let task = kit.revived("a").await;
    assert_eq!((task.state, task.uid, task.attempt()), (TaskState::Scheduled, first.uid, 0));
    assert_eq!((&task.delivered_to, task.progress.reason), (&vec!["i".to_owned()], None));
    assert_eq!((kit.total("revived").await, kit.total("dead").await, kit.total("retrying").await), (1, 1, 0));
    assert_eq!(kit.settle(dead).await, Settled::LeaseLost, "the old claim moves nothing back");
    kit.assert_sound().await;
    kit.advance(1);
    let claim = kit.claim_one().await;
    assert_eq!((claim.lease.fence, claim.lease.uid), (2, first.uid));
    assert_eq!(claim.has, ["i"]);
    assert!(matches!(kit.run("a").await, Revived::Active(_)));
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert!(matches!(kit.run("a").await, Revived::Finished(t) if t.state == TaskState::Completed));
    assert!(matches!(kit.run("none").await, Revived::Unknown));
    assert!(matches!(Kit::bare().await.run("a").await, Revived::NoQueue));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_cancelled_task_is_revived_without_its_mark() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    assert!(matches!(kit.cancel(&id("a")).await, Cancel::UnderWay(_)));
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Cancelled);
    kit.given(task("b")).await;
    assert!(matches!(kit.cancel(&id("b")).await, Cancel::Done(_)));
    for name in ["a", "b"] {
        assert!(!kit.revived(name).await.cancelling);
    }
    kit.assert_sound().await;
    kit.advance(1);
    for claim in kit.push(5).await {
        assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Scheduled, "the mark is gone");
    }
    assert_eq!(kit.total("cancelled").await, 2);
    kit.assert_sound().await;
}

#[tokio::test]
async fn an_expired_task_lives_on_without_its_expiry() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given(NewTask { expires: Some(When::After(ms(10))), ..delayed("a", 9) }).await;
    kit.advance(20);
    kit.visit(0, ClaimKind::Push).await;
    let task = kit.revived("a").await;
    assert_eq!((task.state, task.expires_at, kit.score("expiry", &task.id).await), (TaskState::Scheduled, None, None));
    kit.advance(1000);
    let claim = kit.claim_one().await;
    assert_eq!(claim.expires_at, None);
    kit.lapse().await;
    assert_eq!(kit.score("expiry", &task.id).await, None, "nor after a lease that ended");
    assert_eq!(kit.claim_one().await.reclaims, 1);
    kit.assert_sound().await;
}

#[tokio::test]
async fn lost_workers_and_lapses_are_forgotten_in_a_new_life() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given_claimed("a").await;
    kit.lapse().await;
    kit.visit(1, ClaimKind::Pull).await;
    kit.lapse().await;
    let claim = kit.claim_one().await;
    assert_eq!((claim.reclaims, claim.lapses), (1, 1));
    assert_eq!(kit.end(&claim, Verdict::Dead(DeadReason::Lost)).await, Settled::Dead);
    assert_eq!(kit.revived("a").await.attempt(), 0);
    kit.advance(1);
    let claim = kit.claim_one().await;
    assert_eq!((claim.reclaims, claim.lapses, claim.lease.fence), (0, 0, 4));
    kit.assert_sound().await;
}

#[tokio::test]
async fn run_of_a_scheduled_task_only_moves_it() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let first = kit.given(delayed("a", 60_000)).await;
    let (_, claim) = kit.given_claimed("b").await;
    assert_eq!(kit.end(&claim, retry_at(kit.now().await + 60_000)).await, Settled::Scheduled);
    let row: Vec<u8> = kit.on("HGET", "runs", &[b"b"]).await;
    let mut ear = kit.ear().await;
    assert_eq!((kit.revived("a").await.run_at, kit.revived("b").await.state), (first.run_at, TaskState::Scheduled));
    assert_eq!(kit.on::<Vec<u8>>("HGET", "runs", &[b"b"]).await, row);
    assert!(kit.has_run_row(&id("a")).await, "its record tells another instant");
    assert_eq!((kit.total("revived").await, kit.total("retrying").await), (0, 1));
    assert_eq!(ear.heard(&kit).await.len(), 1, "the head became earlier");
    kit.advance(1);
    let due = kit.score("due", &id("a")).await;
    kit.revived("a").await;
    assert_eq!(kit.score("due", &id("a")).await, due, "what is due stays where it is");
    let claims = kit.push(5).await;
    assert_eq!((claims.len(), Some(claims[0].due.0)), (2, due));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_revival_needs_a_place_but_for_a_dead_one() {
    let kit = Kit::start_with(Settings { max_size: Some(2), ..Settings::default() }).await;
    kit.open("h").await;
    kit.given_dead("dead", "h").await;
    kit.given(task("gone")).await;
    assert!(matches!(kit.cancel(&id("gone")).await, Cancel::Done(_)));
    kit.given(delayed("b", 60_000)).await;
    let before = kit.dump().await;
    assert!(matches!(kit.run("gone").await, Revived::Full));
    assert_eq!(kit.dump().await, before);
    kit.revived("dead").await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn replay_takes_the_dead_that_are_asked_for() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.open("i").await;
    let mut died = Vec::new();
    for n in 0..6 {
        let name = format!("t{n}");
        kit.given_dead(&name, if n % 2 == 0 { "h" } else { "i" }).await;
        died.push(kit.score("dead", &id(&name)).await.expect("dead"));
        kit.advance(10);
    }
    kit.given(task("gone")).await;
    kit.cancel(&id("gone")).await;
    let all = Replay::default();
    let span = Replay { ended_after: Some(UnixMs(died[0])), ended_before: Some(UnixMs(died[3])), ..all.clone() };
    let of_h = Replay { webhook: Some("h".to_owned()), ..all.clone() };
    for (which, count) in [(&all, 6), (&span, 2), (&of_h, 3)] {
        let before = kit.dump().await;
        assert_eq!(kit.replay(Replay { dry_run: true, ..which.clone() }).await, count);
        assert_eq!(kit.dump().await, before, "a dry run only counts");
    }
    assert_eq!(kit.replay(Replay { limit: Some(2), dry_run: true, ..all.clone() }).await, 2);
    assert_eq!(kit.replay(span).await, 2);
    assert_eq!(kit.replay(Replay { webhook: Some("none".to_owned()), ..all.clone() }).await, 0);
    assert_eq!(kit.replay(Replay { limit: Some(1), ..of_h.clone() }).await, 1);
    assert_eq!(kit.get(&id("t0")).await.unwrap().state, TaskState::Scheduled, "the oldest first");
    assert_eq!(kit.replay(of_h).await, 1);
    kit.assert_sound().await;
    assert_eq!((kit.replay(all.clone()).await, kit.replay(all.clone()).await), (2, 0));
    assert_eq!((kit.total("revived").await, kit.get(&id("gone")).await.unwrap().state), (6, TaskState::Cancelled));
    assert!(Kit::bare().await.store.replay(&kit.queue, &all).await.unwrap().is_none());
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_replay_goes_on_behind_its_first_page() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for _ in 0..1200 {
        kit.store.enqueue(anonymous()).await.unwrap();
    }
    kit.advance(2);
    loop {
        let claims = kit.push(400).await;
        if claims.is_empty() {
            break;
        }
        for claim in claims {
            assert_eq!(kit.end(&claim, Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
        }
    }
    assert_eq!(kit.replay(Replay { dry_run: true, ..Replay::default() }).await, 1200);
    assert_eq!(kit.replay(Replay { limit: Some(700), ..Replay::default() }).await, 700);
    assert_eq!(kit.replay(Replay::default()).await, 500);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_purge_keeps_the_books() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for _ in 0..1100 {
        kit.given(NewTask { when: When::After(secs(60)), expires: Some(When::After(secs(90))), ..anonymous() }).await;
    }
    for name in ["a", "b"] {
        let (_, claim) = kit.given_claimed(name).await;
        assert_eq!(kit.end(&claim, retry_at(kit.now().await + 9000)).await, Settled::Scheduled);
    }
    kit.given_dead("dead", "h").await;
    let (_, active) = kit.given_claimed("active").await;
    kit.given(delayed("cancelled", 1)).await;
    kit.cancel(&id("cancelled")).await;
    assert_eq!(kit.total("retrying").await, 2);
    assert_eq!(kit.purge(TaskState::Scheduled).await, 1102);
    assert_eq!((kit.total("purged").await, kit.total("retrying").await), (1102, 0));
    assert_eq!((kit.size("due").await, kit.size("expiry").await, kit.size("dead").await), (0, 0, 1));
    kit.assert_sound().await;
    assert_eq!((kit.purge(TaskState::Dead).await, kit.purge(TaskState::Dead).await), (1, 0));
    assert_eq!((kit.purge(TaskState::Cancelled).await, kit.purge(TaskState::Completed).await), (1, 0));
    assert_eq!(kit.total("purged").await, 1102, "what had ended moves no total");
    kit.given(task("a")).await;
    assert_eq!(kit.end(&active, Verdict::Done).await, Settled::Completed);
    kit.assert_sound().await;
    assert!(Kit::bare().await.store.purge(&kit.queue, TaskState::Dead).await.unwrap().is_none());
}

#[tokio::test]
async fn a_queue_goes_when_it_is_empty_or_by_force() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let drop_queue = async |force| kit.store.drop_queue(&kit.queue, force).await.unwrap();
    let (_, claim) = kit.given_claimed("a").await;
    assert_eq!(drop_queue(false).await, Dropped::NotEmpty);
    assert_eq!(kit.settle(gave_up(&claim, "h")).await, Settled::Dead);
    assert_eq!(drop_queue(false).await, Dropped::NotEmpty);
    kit.revived("a").await;
    assert_eq!(drop_queue(false).await, Dropped::NotEmpty);
    kit.cancel(&id("a")).await;
    let mut ear = kit.ear().await;
    assert_eq!(drop_queue(false).await, Dropped::Done, "records of what has ended go along");
    assert_eq!(ear.heard(&kit).await.len(), 1);
    assert_eq!(drop_queue(true).await, Dropped::NoQueue);
    let keys: Vec<String> = kit.ask("KEYS", &[b"*"]).await;
    assert!(keys.iter().all(|k| k.ends_with(":seq")), "{keys:?}");
}

#[tokio::test]
async fn workers_of_a_deleted_queue_leave_no_ghosts() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, one) = kit.given_claimed("one").await;
    let (_, two) = kit.given_claimed("two").await;
    kit.given(delayed("later", 10)).await;
    assert_eq!(kit.store.drop_queue(&kit.queue, true).await.unwrap(), Dropped::Done);

    assert_eq!(kit.end(&one, Verdict::Done).await, Settled::Gone);
    assert_eq!(kit.settle(gave_up(&two, "h")).await, Settled::Gone);
    let hold = [
        vec!["0", "", "1", "h", "1", "99999999999999", "", "0", "0", "0"],
        vec!["two", "x", "1", "retry", "0", "h", "", "1", ""],
    ]
    .concat();
    let hold: Vec<Vec<u8>> = hold.into_iter().map(|arg| arg.as_bytes().to_vec()).collect();
    kit.eval("settle", 0, &hold).await;
    let renewal = duepost::store::Renewal { lease: two.lease.clone(), won: vec!["h".to_owned()] };
    kit.store.renew(&kit.queue, secs(1), &[renewal]).await.unwrap();
    kit.advance(20);
    assert!(kit.push(5).await.is_empty());
    assert!(matches!(kit.run("one").await, Revived::NoQueue));
    assert!(matches!(kit.cancel(&id("one")).await, Cancel::NoQueue));
    let keys: Vec<String> = kit.ask("KEYS", &[b"*"]).await;
    assert!(keys.iter().all(|k| k.ends_with(":seq")), "{keys:?}");

    assert!(kit.store.create_queue(&kit.queue, &Settings::default()).await.unwrap());
    assert!(kit.store.describe(&kit.queue).await.unwrap().unwrap().webhook(&hook("h", true).id).is_none());
    kit.given(task("one")).await;
    assert_eq!(kit.end(&one, Verdict::Done).await, Settled::Gone, "nothing of the new queue's");
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_the_first_of_equal_ids_wins() {
    let kit = Kit::start_with(Settings { max_size: Some(4), ..Settings::default() }).await;
    kit.given(delayed("there", 7)).await;
    let tasks = || {
        let other = NewTask { payload: crate::store_kit::payload("2"), ..task("a") };
        vec![task("a"), delayed("there", 7), task("there"), other, task("a"), anonymous(), task("b"), task("c")]
    };
    let words = |answers: Vec<Result<Enqueued, _>>| -> Vec<&str> {
        let word = |answer: Result<Enqueued, duepost::store::StoreError>| match answer.expect("Redis answers") {
            Enqueued::Created(_) => "created",
            Enqueued::Replayed(_) => "replayed",
            Enqueued::Exists(_) => "exists",
            Enqueued::Active(_) => "active",
            Enqueued::Full => "full",
            Enqueued::NoQueue => "no queue",
        };
        answers.into_iter().map(word).collect()
    };
    let expected = ["created", "replayed", "exists", "exists", "replayed", "created", "created", "full"];
    let before = kit.dump().await;
    let Batch::Refused(answers) = kit.store.enqueue_many(&kit.queue, tasks(), true).await.unwrap() else { panic!() };
    assert_eq!((words(answers), kit.dump().await), (expected.to_vec(), before));
    let Batch::Done(answers) = kit.store.enqueue_many(&kit.queue, tasks(), false).await.unwrap() else { panic!() };
    assert_eq!(words(answers), expected);
    kit.assert_sound().await;
    let all = vec![delayed("there", 7), task("a")];
    let Batch::Done(answers) = kit.store.enqueue_many(&kit.queue, all, true).await.unwrap() else { panic!() };
    assert_eq!(words(answers), ["replayed", "replayed"]);
}

#[tokio::test]
async fn a_thousand_tasks_are_one_script() {
    let kit = Kit::start().await;
    let tasks: Vec<NewTask> =
        (0..1000).map(|n| NewTask { expires: Some(When::After(secs(9))), ..task(&format!("t{n}")) }).collect();
    let Batch::Done(answers) = kit.store.enqueue_many(&kit.queue, tasks, true).await.unwrap() else { panic!() };
    assert!(answers.iter().all(|a| matches!(a, Ok(Enqueued::Created(_)))));
    assert_eq!((answers.len(), kit.size("due").await), (1000, 1000));
}

#[tokio::test]
async fn scripts_are_sent_again_where_redis_forgot_them() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let flush = async || {
        let _: String = kit.ask("SCRIPT", &[b"FLUSH"]).await;
    };
    flush().await;
    assert!(matches!(kit.store.put(&delayed("a", 60_000), false).await.unwrap(), duepost::store::Put::Created(_)));
    flush().await;
    let edit = duepost::domain::task::Edit {
        when: Some(When::After(ms(5))),
        payload: None,
        retry: None,
        timeout: None,
        headers: None,
        expires: None,
        uid: uid(),
    };
    assert!(matches!(kit.store.edit(&kit.queue, &id("a"), &edit).await.unwrap(), duepost::store::Edited::Done(_)));
    flush().await;
    kit.revived("a").await;
    flush().await;
    assert_eq!(kit.purge(TaskState::Scheduled).await, 1);
    flush().await;
    assert_eq!(kit.store.drop_queue(&kit.queue, false).await.unwrap(), Dropped::Done);
}
