//! What `enqueue` answers, and when an id is free.

use duepost::{
    domain::{
        queue::Settings,
        round::Verdict,
        task::{DeadReason, NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Cancel, ClaimKind, Enqueued, Settled},
};

use crate::{
    store_kit::{Kit, anonymous, at, delayed, id, payload, retry_at, task, uid},
    store_raw::{firsts, list, rows, word},
    support::ms,
};

async fn enqueue(kit: &Kit, task: NewTask) -> Enqueued {
    kit.store.enqueue(task).await.expect("Redis answers")
}

#[tokio::test]
async fn the_same_content_is_replayed_and_other_content_is_refused() {
    let kit = Kit::start().await;
    let first = kit.given(delayed("a", 500)).await;
    kit.advance(100);
    let Enqueued::Replayed(again) = enqueue(&kit, delayed("a", 500)).await else { panic!("not replayed") };
    assert_eq!(again, first);
    let other = NewTask { payload: payload("2"), ..delayed("a", 500) };
    let Enqueued::Exists(there) = enqueue(&kit, other).await else { panic!("not refused") };
    assert_eq!(there, first);
    assert!(matches!(enqueue(&kit, delayed("a", 501)).await, Enqueued::Exists(_)));
    let expiring = NewTask { expires: Some(When::After(ms(9000))), ..delayed("a", 500) };
    assert!(matches!(enqueue(&kit, expiring).await, Enqueued::Exists(_)));
    assert_eq!((kit.total("enqueued").await, kit.total("replays").await), (1, 4));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_delivered_task_is_replayed_and_a_dead_one_refused() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    assert!(matches!(enqueue(&kit, task("a")).await, Enqueued::Replayed(t) if t.state == TaskState::Active));
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    assert!(matches!(enqueue(&kit, task("a")).await, Enqueued::Replayed(t) if t.state == TaskState::Completed));

    let (_, claim) = kit.given_claimed("b").await;
    assert_eq!(kit.end(&claim, Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
    assert!(matches!(enqueue(&kit, task("b")).await, Enqueued::Exists(t) if t.state == TaskState::Dead));
    kit.assert_sound().await;
}

#[tokio::test]
async fn the_services_own_retry_is_answered_created_with_the_first_ones_instants() {
    let kit = Kit::start().await;
    for mine in [NewTask { when: When::After(ms(7)), ..anonymous() }, delayed("a", 7)] {
        let first = kit.given(mine.clone()).await;
        kit.advance(1000);
        let seq: i64 = kit.on("GET", "seq", &[]).await;
        assert_eq!(kit.given(mine).await, first);
        assert_eq!(kit.on::<i64>("GET", "seq", &[]).await, seq);
    }
    assert_eq!((kit.total("enqueued").await, kit.total("replays").await), (2, 2), "a replay writes, for WAIT");
    kit.assert_sound().await;
}

#[tokio::test]
async fn the_services_own_retry_brings_no_cancelled_task_back() {
    let kit = Kit::start().await;
    for mine in [anonymous(), task("a")] {
        let first = kit.given(mine.clone()).await;
        assert!(matches!(kit.cancel(&first.id).await, Cancel::Done(_)));
        assert_eq!(kit.given(mine).await.state, TaskState::Cancelled);
    }
    kit.advance(2);
    assert!(kit.visit(5, ClaimKind::Pull).await.claims.is_empty());
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_service_made_id_that_the_client_repeats_is_told_by_its_content() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let first = kit.given(NewTask { when: When::After(ms(50)), ..anonymous() }).await;
    let repeat = |delay| NewTask { id: Some(first.id.clone()), when: When::After(ms(delay)), ..anonymous() };
    assert!(matches!(enqueue(&kit, repeat(50)).await, Enqueued::Replayed(t) if t == first));
    assert!(matches!(enqueue(&kit, repeat(51)).await, Enqueued::Exists(t) if t == first));
    let other = NewTask { payload: payload("2"), ..repeat(50) };
    assert!(matches!(enqueue(&kit, other).await, Enqueued::Exists(_)));
    kit.advance(60);
    let claim = kit.claim_one().await;
    assert_eq!(kit.end(&claim, Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
    assert!(matches!(enqueue(&kit, repeat(50)).await, Enqueued::Exists(t) if t.state == TaskState::Dead));
    assert!(matches!(kit.cancel(&first.id).await, Cancel::Done(_)));
    assert!(matches!(enqueue(&kit, repeat(50)).await, Enqueued::Created(t) if t.uid != first.uid));
    kit.assert_sound().await;
}

#[tokio::test]
async fn cancelling_frees_the_id_but_not_while_the_attempt_is_under_way() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (first, claim) = kit.given_claimed("a").await;
    assert!(matches!(kit.cancel(&first.id).await, Cancel::UnderWay(_)));
    assert!(matches!(enqueue(&kit, task("a")).await, Enqueued::Active(t) if t.uid == first.uid && t.cancelling));
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Cancelled);

    let second = kit.given(task("a")).await;
    assert_ne!(second.uid, first.uid);
    assert!(!kit.has_run_row(&second.id).await, "the new task starts anew");
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Gone, "a 2xx for the old content");
    kit.advance(2);
    let claim = kit.claim_one().await;
    assert_eq!((claim.lease.fence, claim.lease.uid, claim.reclaims), (1, second.uid, 0));
    kit.assert_sound().await;
}

#[tokio::test]
async fn an_expired_id_is_free_too() {
    let kit = Kit::start().await;
    let expiring = || NewTask { expires: Some(When::After(ms(100))), ..delayed("a", 90) };
    kit.given(expiring()).await;
    assert!(matches!(enqueue(&kit, expiring()).await, Enqueued::Replayed(_)));
    kit.advance(200);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.get(&id("a")).await.unwrap().state, TaskState::Expired);
    let anew = kit.given(expiring()).await;
    assert_eq!(kit.score("expiry", &anew.id).await, Some(anew.created_at.0 + 100));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_full_queue_counts_scheduled_active_and_dead_tasks() {
    let settings = Settings { max_size: Some(3), ..Settings::default() };
    let kit = Kit::start_with(settings).await;
    kit.open("h").await;
    let (_, dead) = kit.given_claimed("dead").await;
    assert_eq!(kit.end(&dead, Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
    let (_, active) = kit.given_claimed("active").await;
    let waiting = kit.given(delayed("waiting", 1000)).await;
    let before = kit.dump().await;
    assert!(matches!(enqueue(&kit, task("more")).await, Enqueued::Full));
    assert_eq!(kit.dump().await, before);
    assert!(matches!(enqueue(&kit, delayed("waiting", 1000)).await, Enqueued::Replayed(_)), "it takes no place");
    assert!(matches!(kit.cancel(&waiting.id).await, Cancel::Done(_)));
    kit.given(task("more")).await;
    assert!(matches!(enqueue(&kit, task("waiting")).await, Enqueued::Full), "a cancelled one needs a place again");
    assert_eq!(kit.end(&active, Verdict::Done).await, Settled::Completed);
    kit.given(task("waiting")).await;
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_delay_counts_from_the_next_whole_millisecond() {
    let kit = Kit::start().await;
    for delay in [0, 1, 250, 86_400_000_000] {
        let before = kit.now().await;
        let task = kit.given(delayed(&format!("t{delay}"), delay)).await;
        let after = kit.now().await;
        assert!((before..=after + 1).contains(&task.created_at.0));
        assert_eq!(task.run_at, task.created_at.plus(ms(delay)));
        assert_eq!(kit.score("due", &task.id).await, Some(task.run_at.0));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
    }
}

#[tokio::test]
async fn no_delay_counts_from_before_the_request() {
    let kit = Kit::start().await;
    for n in 0..20 {
        let (s, us): (i64, i64) = kit.ask("TIME", &[]).await;
        let task = kit.given(task(&format!("t{n}"))).await;
        assert!(task.created_at.0 * 1000 >= s * 1_000_000 + us, "a millisecond under way is not counted from");
    }
}

#[tokio::test]
async fn a_past_instant_is_due_now_and_stays_as_given() {
    let kit = Kit::start().await;
    for (name, instant) in [("past", 1000), ("long past", -5)] {
        let task = kit.given(NewTask { when: at(instant), ..task(&name.replace(' ', "-")) }).await;
        assert_eq!((task.run_at, task.score), (UnixMs(instant), task.created_at));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
    }
    kit.advance(1);
    assert_eq!(kit.visit(10, ClaimKind::Pull).await.claims.len(), 2);
}

#[tokio::test]
async fn expiry_is_an_instant_or_counts_from_acceptance() {
    let kit = Kit::start().await;
    let far = kit.now().await + 77_000;
    let a = kit.given(NewTask { expires: Some(at(far)), ..task("a") }).await;
    let z = kit.given(NewTask { expires: Some(When::After(ms(88_000))), ..task("b") }).await;
    assert_eq!(a.expires_at, Some(UnixMs(far)));
    assert_eq!(z.expires_at, Some(z.created_at.plus(ms(88_000))));
    for task in [a, z] {
        assert_eq!(kit.score("expiry", &task.id).await, task.expires_at.map(|at| at.0));
        assert_eq!(kit.get(&task.id).await.unwrap(), task);
    }
}

#[tokio::test]
async fn without_a_queue_nothing_is_taken() {
    let kit = Kit::bare().await;
    assert!(matches!(enqueue(&kit, task("a")).await, Enqueued::NoQueue));
    assert!(matches!(kit.cancel(&id("a")).await, Cancel::NoQueue));
    assert!(kit.store.stats(&kit.queue).await.unwrap().is_none());
    assert!(kit.store.describe(&kit.queue).await.unwrap().is_none());
    let keys: Vec<String> = kit.ask("KEYS", &[b"*"]).await;
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn duplicates_within_one_batch_are_seen() {
    let kit = Kit::start().await;
    let (first, other) = (uid(), uid());
    let args = rows(
        false,
        &[
            ("a", first, 1, ("in", 500)),
            ("a", first, 1, ("in", 500)),
            ("a", other, 1, ("in", 500)),
            ("a", other, 2, ("in", 500)),
            ("b", uid(), 1, ("in", 0)),
        ],
    );
    let answer = kit.eval("enqueue", 0, &args).await;
    assert_eq!(word(&list(&answer)[0]), "done");
    let answers = &list(&answer)[2];
    assert_eq!(firsts(answers), ["created", "created", "replayed", "exists", "created"]);
    let base: i64 = word(&list(&answer)[1]).parse().unwrap();
    for again in &list(answers)[1..4] {
        let again = list(again);
        let duepost_record: Vec<u8> = kit.on("HGET", "tasks", &[b"a"]).await;
        assert_eq!(again[1], deadpool_redis::redis::Value::BulkString(duepost_record), "the first one's record");
        assert_eq!(
            (word(&again[2]), word(&again[3]), word(&again[4])),
            (String::new(), "scheduled".to_owned(), (base + 500).to_string())
        );
    }
    assert_eq!(kit.on::<i64>("GET", "seq", &[]).await, 2);
    kit.assert_sound().await;
}

#[tokio::test]
async fn duplicates_take_one_place_of_a_full_queue() {
    let kit = Kit::start_with(Settings { max_size: Some(1), ..Settings::default() }).await;
    let first = uid();
    let args = rows(false, &[("a", first, 1, ("in", 500)), ("a", uid(), 1, ("in", 500)), ("b", uid(), 1, ("in", 500))]);
    let answer = kit.eval("enqueue", 0, &args).await;
    assert_eq!(firsts(&list(&answer)[2]), ["created", "replayed", "full"]);
    kit.assert_sound().await;
}

#[tokio::test]
async fn all_or_nothing_writes_nothing_when_one_is_refused() {
    let kit = Kit::start().await;
    kit.given(task("a")).await;
    let before = kit.dump().await;
    let args = rows(true, &[("b", uid(), 1, ("in", 0)), ("a", uid(), 1, ("in", 0))]);
    let answer = kit.eval("enqueue", 0, &args).await;
    assert_eq!(word(&list(&answer)[0]), "refused");
    assert_eq!(firsts(&list(&answer)[2]), ["created", "exists"]);
    assert_eq!(kit.dump().await, before);
}

#[tokio::test]
async fn a_delay_counts_from_no_earlier_than_the_floor() {
    let kit = Kit::start().await;
    let floor = kit.now().await + 3000;
    let args = rows(false, &[("a", uid(), 1, ("in", 10)), ("b", uid(), 1, ("at", 10))]);
    let answer = kit.eval("enqueue", floor, &args).await;
    let deadpool_redis::redis::Value::BulkString(base_and_seq) = answer else { panic!("{answer:?}") };
    assert_eq!(base_and_seq[..8], floor.to_be_bytes());
    assert_eq!(kit.score("due", &id("a")).await, Some(floor + 10));
}
