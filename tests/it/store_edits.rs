//! What PUT and PATCH do to a task in each state.

use duepost::{
    domain::{
        queue::Settings,
        retry::RetryPatch,
        round::Verdict,
        task::{DeadReason, Edit, NewTask, Task, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, ClaimKind, Edited, Enqueued, Put, Revived, Settled},
};
use futures_util::future::join_all;

use crate::{
    store_kit::{Kit, anonymous, at, delayed, id, payload, retry_at, settlement, task, uid},
    support::{ms, secs},
};

impl Kit {
    async fn put(&self, task: NewTask) -> Put {
        self.store.put(&task, false).await.expect("Redis answers")
    }

    async fn created(&self, task: NewTask) -> Task {
        match self.put(task).await {
            Put::Created(task) => task,
            other => panic!("not created: {other:?}"),
        }
    }

    async fn replaced(&self, task: NewTask) -> Task {
        match self.put(task).await {
            Put::Replaced(task) => task,
            other => panic!("not replaced: {other:?}"),
        }
    }

    async fn edit(&self, name: &str, edit: Edit) -> Edited {
        self.store.edit(&self.queue, &id(name), &edit).await.expect("Redis answers")
    }

    async fn edited(&self, name: &str, edit: Edit) -> Task {
        match self.edit(name, edit).await {
            Edited::Done(task) => task,
            other => panic!("not edited: {other:?}"),
        }
    }
}

fn no_edit() -> Edit {
    Edit { when: None, payload: None, retry: None, timeout: None, headers: None, expires: None, uid: uid() }
}

fn moved(when: When) -> Edit {
    Edit { when: Some(when), ..no_edit() }
}

/// A queue with a task in each state, named after it.
async fn one_of_each() -> (Kit, Vec<&'static str>) {
    let kit = Kit::start().await;
    kit.open("h").await;
    for (name, verdict) in [("completed", Verdict::Done), ("dead", Verdict::Dead(DeadReason::Refused))] {
        let (_, claim) = kit.given_claimed(name).await;
        kit.end(&claim, verdict).await;
    }
    kit.given(task("cancelled")).await;
    assert!(matches!(kit.cancel(&id("cancelled")).await, Cancel::Done(_)));
    kit.given(NewTask { expires: Some(When::After(ms(10))), ..delayed("expired", 9) }).await;
    kit.advance(20);
    kit.visit(0, ClaimKind::Push).await;
    kit.given_claimed("active").await;
    kit.given(delayed("scheduled", 60_000)).await;
    (kit, vec!["completed", "dead", "cancelled", "expired", "active", "scheduled"])
}

#[tokio::test]
async fn a_put_stands_in_every_place() {
    let (kit, states) = one_of_each().await;
    let enqueued = kit.total("enqueued").await;
    for name in states {
        assert_eq!(kit.get(&id(name)).await.unwrap().state.as_str(), name);
        let new = NewTask { payload: payload("2"), ..delayed(name, 500) };
        assert!(matches!(kit.store.put(&new, true).await.unwrap(), Put::Exists), "{name}: there is a record");
        let living = ["active", "scheduled"].contains(&name);
        let task = if living { kit.replaced(new.clone()).await } else { kit.created(new.clone()).await };
        assert_eq!((task.state, task.uid, task.attempt()), (TaskState::Scheduled, new.uid, 0), "{name}");
        assert_eq!((task.run_at, task.score), (task.created_at.plus(ms(500)), task.run_at));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
        assert!(!kit.has_run_row(&task.id).await, "{name} starts anew");
        kit.assert_sound().await;
    }
    assert_eq!(kit.total("enqueued").await, enqueued + 4, "a living one goes on with its life");
    let task = kit.created(task("none")).await;
    assert_eq!(task.score, task.created_at);
    assert!(matches!(kit.store.put(&anonymous_put("only"), true).await.unwrap(), Put::Created(_)));
    kit.assert_sound().await;
}

fn anonymous_put(name: &str) -> NewTask {
    NewTask { id: Some(id(name)), ..anonymous() }
}

#[tokio::test]
async fn an_attempt_that_a_put_overtook_is_on_its_own() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    let task = kit.replaced(task("a")).await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Gone, "a success of the old content");
    assert_eq!(kit.get(&task.id).await.unwrap(), task);
    kit.advance(2);
    let anew = kit.claim_one().await;
    assert_eq!((anew.lease.uid, anew.lease.fence, anew.reclaims), (task.uid, 1, 0));
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Gone);
    assert_eq!(kit.end(&anew, Verdict::Done).await, Settled::Completed);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_put_over_a_cancelled_attempt_is_a_task_again() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    assert!(matches!(kit.cancel(&id("a")).await, Cancel::UnderWay(_)));
    let task = kit.replaced(task("a")).await;
    assert!(!task.cancelling);
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Gone);
    kit.advance(2);
    let anew = kit.claim_one().await;
    assert_eq!(kit.end(&anew, retry_at(0)).await, Settled::Scheduled);
    kit.assert_sound().await;
}

#[tokio::test]
async fn the_services_own_put_again_changes_nothing() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let mine = delayed("a", 7);
    for only_new in [true, false] {
        let first = kit.store.put(&mine, only_new).await.unwrap();
        let before = kit.dump().await;
        let Put::Created(again) = kit.store.put(&mine, only_new).await.unwrap() else { panic!("{first:?}") };
        assert_eq!((again, kit.dump().await), (kit.get(&id("a")).await.unwrap(), before));
    }
    kit.advance(20);
    let claim = kit.claim_one().await;
    kit.end(&claim, Verdict::Done).await;
    assert!(matches!(kit.put(mine).await, Put::Created(t) if t.state == TaskState::Completed), "it is not run twice");
}

#[tokio::test]
async fn a_put_needs_a_place_only_where_it_takes_one() {
    let kit = Kit::start_with(Settings { max_size: Some(2), ..Settings::default() }).await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("dead").await;
    kit.end(&claim, Verdict::Dead(DeadReason::Refused)).await;
    kit.given(task("b")).await;
    let before = kit.dump().await;
    assert!(matches!(kit.put(task("c")).await, Put::Full));
    assert_eq!(kit.dump().await, before);
    kit.created(task("dead")).await;
    kit.replaced(task("b")).await;
    assert!(matches!(kit.put(task("c")).await, Put::Full));
    kit.assert_sound().await;
    let none = Kit::bare().await;
    assert!(matches!(none.put(task("a")).await, Put::NoQueue));
}

#[tokio::test]
async fn a_put_frees_the_place_of_an_attempt_and_rings() {
    let kit = Kit::start_with(Settings { max_in_flight: Some(1), ..Settings::default() }).await;
    kit.open("h").await;
    kit.given_claimed("a").await;
    kit.given_due("b").await;
    assert!(kit.push(5).await.is_empty());
    let mut ear = kit.ear().await;
    kit.replaced(delayed("a", 60_000)).await;
    assert_eq!(ear.heard(&kit).await.len(), 1);
    assert_eq!(kit.claim_one().await.id, id("b"));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_put_forgets_expiry_and_retries_of_what_was_there() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.given(NewTask { expires: Some(When::After(secs(60))), ..task("a") }).await;
    kit.advance(2);
    let claim = kit.claim_one().await;
    assert_eq!(kit.end(&claim, retry_at(kit.now().await + 9000)).await, Settled::Scheduled);
    assert_eq!(kit.total("retrying").await, 1);
    let task = kit.replaced(delayed("a", 9000)).await;
    assert_eq!((task.expires_at, kit.score("expiry", &task.id).await, kit.total("retrying").await), (None, None, 0));
    let task = kit.replaced(NewTask { expires: Some(When::After(secs(70))), ..delayed("a", 9000) }).await;
    assert_eq!(kit.score("expiry", &task.id).await, Some(task.created_at.0 + 70_000));
    kit.assert_sound().await;
}

#[tokio::test]
async fn only_a_scheduled_task_is_edited() {
    let (kit, states) = one_of_each().await;
    for name in states {
        for edit in [moved(at(1)), Edit { payload: Some(payload("2")), ..no_edit() }] {
            let before = kit.dump().await;
            let edited = kit.edit(name, edit).await;
            match name {
                "scheduled" => assert!(matches!(edited, Edited::Done(_))),
                "active" => assert!(matches!(edited, Edited::Active(t) if t.state == TaskState::Active)),
                _ => assert!(matches!(edited, Edited::Finished(t) if t.state.as_str() == name)),
            }
            assert!(name == "scheduled" || kit.dump().await == before, "{name}");
        }
    }
    assert!(matches!(kit.edit("none", moved(at(1))).await, Edited::Unknown));
    assert!(matches!(kit.edit("none", Edit { payload: Some(payload("2")), ..no_edit() }).await, Edited::Unknown));
    kit.assert_sound().await;
    let none = Kit::bare().await;
    assert!(matches!(none.edit("a", moved(at(1))).await, Edited::NoQueue));
    assert!(matches!(none.edit("a", Edit { payload: Some(payload("2")), ..no_edit() }).await, Edited::NoQueue));
}

#[tokio::test]
async fn moving_loses_no_wake_up() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let first = kit.given(delayed("a", 60_000)).await;
    let mut ear = kit.ear().await;
    for delay in [30_000, 90_000, 5_000, 70_000, 100] {
        let earlier = kit.get(&id("a")).await.unwrap().score;
        let task = kit.edited("a", moved(When::After(ms(delay)))).await;
        assert_eq!((task.uid, task.created_at, task.score), (first.uid, first.created_at, task.run_at));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
        assert!(kit.agenda().await.is_some_and(|at| at <= task.score.0), "too late is a bug");
        assert_eq!(ear.heard(&kit).await.len(), usize::from(task.score < earlier), "{delay}");
        kit.assert_sound().await;
    }
    kit.edited("a", moved(When::After(ms(400)))).await;
    kit.advance(300);
    assert!(kit.push(5).await.is_empty(), "not at the time before");
    kit.advance(200);
    assert_eq!(kit.claim_one().await.due, kit.get(&id("a")).await.unwrap().run_at);
}

#[tokio::test]
async fn a_past_time_is_due_now_and_shown_as_given() {
    let kit = Kit::start().await;
    kit.given(delayed("a", 60_000)).await;
    let task = kit.edited("a", moved(at(5))).await;
    assert_eq!(task.run_at, UnixMs(5));
    assert!((kit.now().await - 1000..=kit.now().await + 1).contains(&task.score.0));
    kit.advance(2);
    let claims = kit.visit(1, ClaimKind::Pull).await.claims;
    assert_eq!(
        (claims.len(), claims[0].due),
        (1, task.score),
        "it is late by what it waited, not by what it was given"
    );
}

#[tokio::test]
async fn an_edit_keeps_what_the_id_stands_for() {
    let kit = Kit::start().await;
    let sent = NewTask { expires: Some(When::After(secs(900))), ..delayed("a", 500) };
    kit.given(sent.clone()).await;
    let made = kit.given(NewTask { when: When::After(ms(500)), ..anonymous() }).await;
    let repeat = NewTask { id: Some(made.id.clone()), when: When::After(ms(500)), ..anonymous() };
    for edit in [moved(When::After(secs(9))), Edit { payload: Some(payload("2")), ..no_edit() }] {
        for (name, sent) in [("a", &sent), (made.id.as_str(), &repeat)] {
            let edited = kit.edited(name, Edit { uid: uid(), ..edit.clone() }).await;
            let again = NewTask { uid: uid(), ..sent.clone() };
            let again = kit.store.enqueue(again).await.unwrap();
            assert!(matches!(&again, Enqueued::Replayed(t) if *t == edited), "{name}: {again:?}");
            let other = NewTask { uid: uid(), payload: payload("3"), ..sent.clone() };
            assert!(matches!(kit.store.enqueue(other).await.unwrap(), Enqueued::Exists(_)));
        }
    }
    // a PUT sets it
    kit.replaced(NewTask { payload: payload("3"), ..sent.clone() }).await;
    let again = NewTask { uid: uid(), payload: payload("3"), ..sent };
    assert!(matches!(kit.store.enqueue(again).await.unwrap(), Enqueued::Replayed(_)));
    kit.assert_sound().await;
}

#[tokio::test]
async fn new_content_has_a_new_uid_and_nobody_has_it() {
    let kit = Kit::start().await;
    kit.open("h").await;
    kit.open("i").await;
    let (first, claim) = kit.given_claimed("a").await;
    let mut retry = settlement(&claim, retry_at(kit.now().await + 5000));
    (retry.won, retry.about, retry.failed) = (vec!["h".to_owned()], vec!["i".to_owned()], 1);
    assert_eq!(kit.settle(retry).await, Settled::Scheduled);
    for edit in [
        moved(When::After(secs(9))),
        Edit { retry: Some(Some(RetryPatch { max_attempts: Some(3), backoff: None })), ..no_edit() },
        Edit { timeout: Some(Some(secs(3))), ..no_edit() },
    ] {
        let task = kit.edited("a", edit).await;
        assert_eq!((task.uid, &task.delivered_to), (first.uid, &vec!["h".to_owned()]));
    }
    let headers = vec![("x-a".to_owned(), "1".to_owned())];
    for edit in
        [Edit { headers: Some(headers.clone()), ..no_edit() }, Edit { payload: Some(payload("7")), ..no_edit() }]
    {
        let new = edit.uid;
        let task = kit.edited("a", edit).await;
        assert_eq!((task.uid, task.delivered_to.len()), (new, 0));
        assert_eq!((&task.options.headers, task.options.timeout), (&headers, Some(secs(3))));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
    }
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Gone, "late, for the old content");
    let task =
        kit.edited("a", Edit { retry: Some(None), timeout: Some(None), headers: Some(vec![]), ..no_edit() }).await;
    assert_eq!(task.options, Default::default());
    kit.advance(10_000);
    let claim = kit.claim_one().await;
    assert_eq!((claim.lease.uid, claim.lease.fence), (task.uid, 2), "attempts made stay counted");
    kit.assert_sound().await;
}

#[tokio::test]
async fn expiry_is_set_moved_and_taken_away() {
    let kit = Kit::start().await;
    kit.given(delayed("a", 10_000)).await;
    let task = kit.edited("a", Edit { expires: Some(Some(When::After(secs(60)))), ..no_edit() }).await;
    assert_eq!(kit.score("expiry", &task.id).await, task.expires_at.map(|at| at.0));
    assert!(task.expires_at.unwrap() >= task.created_at.plus(secs(60)));
    assert!(kit.agenda().await.unwrap() <= task.run_at.0);
    let far = kit.now().await + 20_000;
    let task = kit.edited("a", Edit { expires: Some(Some(at(far))), ..no_edit() }).await;
    assert_eq!((task.expires_at, kit.score("expiry", &task.id).await), (Some(UnixMs(far)), Some(far)));
    let before = kit.dump().await;
    for refused in [moved(at(far)), moved(at(far + 1)), Edit { expires: Some(Some(at(far - 15_000))), ..no_edit() }] {
        assert!(matches!(kit.edit("a", refused).await, Edited::ExpiresFirst));
    }
    assert_eq!(kit.dump().await, before);
    kit.edited("a", moved(at(far - 1))).await;
    kit.edited("a", Edit { when: Some(at(far + 50)), expires: Some(Some(at(far + 100))), ..no_edit() }).await;
    let task = kit.edited("a", Edit { expires: Some(None), ..no_edit() }).await;
    assert_eq!((task.expires_at, kit.score("expiry", &task.id).await), (None, None));
    kit.edited("a", moved(When::After(secs(900)))).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn an_expiry_given_to_a_revived_task_counts_again() {
    let kit = Kit::start().await;
    kit.given(NewTask { expires: Some(When::After(ms(10))), ..delayed("a", 9) }).await;
    kit.advance(20);
    kit.visit(0, ClaimKind::Push).await;
    assert!(matches!(kit.store.run(&kit.queue, &id("a")).await.unwrap(), Revived::Done(t) if t.expires_at.is_none()));
    let task = kit.edited("a", moved(When::After(secs(5)))).await;
    assert_eq!(task.expires_at, None, "a move leaves it waived");
    let task = kit.edited("a", Edit { expires: Some(Some(When::After(secs(9)))), ..no_edit() }).await;
    assert_eq!(kit.score("expiry", &task.id).await, Some(task.expires_at.unwrap().0));
    kit.assert_sound().await;
    kit.advance(10_000);
    kit.visit(1, ClaimKind::Push).await;
    assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Expired);
    kit.assert_sound().await;
}

#[tokio::test]
async fn edits_at_the_same_time_lose_nothing() {
    let kit = Kit::start().await;
    kit.given(delayed("a", 10_000)).await;
    let edits = (0..8).flat_map(|n| {
        let timeout = Edit { timeout: Some(Some(secs(1 + n))), ..no_edit() };
        [timeout, Edit { payload: Some(payload(&n.to_string())), ..no_edit() }, moved(When::After(secs(10 + n)))]
    });
    let edits: Vec<Edit> = edits.collect();
    let a = id("a");
    for edited in join_all(edits.iter().map(|edit| kit.store.edit(&kit.queue, &a, edit))).await {
        assert!(matches!(edited, Ok(Edited::Done(_))), "{edited:?}");
    }
    let task = kit.get(&id("a")).await.unwrap();
    assert!(task.options.timeout.is_some(), "an edit of the payload undid one of the timeout");
    assert!(task.payload != Some(payload("1")) || edits.iter().any(|e| e.uid == task.uid));
    kit.assert_sound().await;
}
