//! What somebody else did to Redis: records gone or cut, scripts flushed, no memory left. Nothing wedges a queue.

use bytes::Bytes;
use duepost::{
    domain::{
        queue::Settings,
        round::Verdict,
        task::{DeadReason, NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{
        Cancel, ClaimKind, Enqueued, Fate, PageRequest, Renewal, Renewed, Settled,
        keys::{raw_id, shard_of},
    },
};

use crate::{
    store_kit::{Kit, anonymous, delayed, id, payload, retry_at, settlement, task},
    support::ms,
};

#[tokio::test]
async fn a_flush_of_the_scripts_is_not_seen() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let flush = async || kit.ask::<String>("SCRIPT", &[b"FLUSH"]).await;
    flush().await;
    kit.given(task("a")).await;
    kit.advance(2);
    flush().await;
    let claim = kit.claim_one().await;
    flush().await;
    let renewal = Renewal { lease: claim.lease.clone(), won: vec![] };
    assert_eq!(kit.store.renew(&kit.queue, ms(5000), &[renewal]).await.unwrap(), [Renewed::Held]);
    flush().await;
    assert!(matches!(kit.cancel(&claim.id).await, Cancel::UnderWay(_)));
    flush().await;
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Cancelled);
    flush().await;
    assert_eq!(kit.store.stats(&kit.queue).await.unwrap().unwrap().cancelled, 1);
    flush().await;
    assert_eq!(kit.store.agenda().await.unwrap().seqs.iter().flatten().sum::<u64>(), 1);
}

#[tokio::test]
async fn a_record_removed_by_hand_leaves_with_the_next_visit() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let expiring = |name| NewTask { expires: Some(When::After(ms(700))), ..task(name) };
    let (retried, claim) = kit.given_claimed("retried").await;
    kit.end(&claim, retry_at(0)).await;
    let waiting = kit.given(task("waiting")).await;
    let expired = kit.given(NewTask { when: When::After(ms(600)), ..expiring("expired") }).await;
    for task in [&retried, &waiting, &expired] {
        let _: i64 = kit.on("HDEL", "tasks", &[&raw_id(&task.id)]).await;
        assert!(kit.get(&task.id).await.is_none());
        assert!(matches!(kit.cancel(&task.id).await, Cancel::Unknown));
    }
    let page = PageRequest { state: TaskState::Scheduled, after: None, limit: 2, full: false };
    let first = kit.store.list(&kit.queue, &page).await.unwrap().unwrap();
    assert!(first.tasks.is_empty() && first.next.is_some(), "a page of ghosts is not the end");
    kit.advance(800);
    assert!(kit.push(10).await.is_empty());
    assert_eq!((kit.total("ghosts").await, kit.total("expired").await), (3, 0));
    kit.assert_sound().await;

    let (active, claim) = kit.given_claimed("active").await;
    let _: i64 = kit.on("HDEL", "tasks", &[&raw_id(&active.id)]).await;
    let visited = kit.lapse().await;
    assert_eq!((visited.push, kit.total("ghosts").await), (None, 4));
    assert_eq!(kit.end(&claim, retry_at(0)).await, Settled::Gone);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_cut_record_is_handed_out_as_damaged_and_can_be_ended() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let good = kit.given(task("good")).await;
    let mut bad = Vec::new();
    for (n, bytes) in [&b""[..], b"\x01", b"\x01\x07", b"\x01\x05short", b"\xff\x00"].into_iter().enumerate() {
        let task = if n % 2 == 0 { kit.given(task(&format!("bad{n}"))).await } else { kit.given(anonymous()).await };
        let _: i64 = kit.on("HSET", "tasks", &[&raw_id(&task.id), bytes]).await;
        bad.push(task.id);
    }
    kit.advance(2);
    for full in [false, true] {
        let page = PageRequest { state: TaskState::Scheduled, after: None, limit: 100, full };
        let page = kit.store.list(&kit.queue, &page).await.unwrap().unwrap();
        assert_eq!(page.tasks.iter().map(|t| &t.id).collect::<Vec<_>>(), [&good.id]);
    }
    assert!(kit.store.get(&kit.queue, &bad[0]).await.is_err_and(|e| e.fate() == Fate::Bug));
    let visited = kit.visit(10, ClaimKind::Push).await;
    assert_eq!((visited.claims.len(), visited.damaged.len()), (1, 5));
    kit.lapse().await;
    let visited = kit.visit(10, ClaimKind::Push).await;
    assert_eq!((visited.claims.len(), visited.damaged.len()), (1, 5));
    for damaged in visited.damaged {
        let mut end = settlement(&visited.claims[0], Verdict::Dead(DeadReason::Lost));
        end.lease = damaged.lease;
        assert_eq!(kit.settle(end).await, Settled::Dead);
    }
    assert_eq!(kit.size("dead").await, 5);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_damaged_run_row_counts_as_none() {
    let kit = Kit::start().await;
    kit.open("h").await;
    for bad in [&b""[..], b"\x01", b"\x02\0\0\0\x09", &[0xff; 60]] {
        let (task, claim) = kit.given_claimed("a").await;
        kit.lapse().await;
        let second = kit.claim_one().await;
        assert_eq!((second.lease.fence, second.reclaims), (2, 1));
        let _: i64 = kit.on("HSET", "runs", &[&raw_id(&task.id), bad]).await;
        assert_eq!(kit.end(&second, retry_at(0)).await, Settled::Gone);
        let renewal = Renewal { lease: claim.lease.clone(), won: vec![] };
        assert_eq!(kit.store.renew(&kit.queue, ms(5000), &[renewal]).await.unwrap(), [Renewed::LeaseLost]);
        kit.lapse().await;
        let third = kit.claim_one().await;
        assert_eq!((third.lease.fence, third.reclaims), (1, 0), "{bad:?}");
        let _: i64 = kit.on("HSET", "runs", &[&raw_id(&task.id), bad]).await;
        assert!(kit.store.cancel(&kit.queue, &task.id).await.is_ok_and(|c| matches!(c, Cancel::UnderWay(_))));
        kit.lapse().await;
        assert_eq!(kit.get(&task.id).await.unwrap().state, TaskState::Cancelled, "a cancel holds all the same");
        kit.assert_sound().await;
    }
}

#[tokio::test]
async fn a_run_row_left_by_other_content_counts_for_its_fence_only() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let (task, claim) = kit.given_claimed("a").await;
    let renewal = Renewal { lease: claim.lease.clone(), won: vec!["h".to_owned()] };
    kit.store.renew(&kit.queue, ms(1000), &[renewal]).await.unwrap();
    kit.lapse().await;
    let mut record: Bytes = kit.on::<Vec<u8>>("HGET", "tasks", &[&raw_id(&task.id)]).await.into();
    let mut other = record.split_to(18).to_vec();
    other.extend_from_slice(&[9; 16]);
    other.extend_from_slice(&record[16..]);
    let _: i64 = kit.on("HSET", "tasks", &[&raw_id(&task.id), &other]).await;
    let claim = kit.claim_one().await;
    assert_eq!((claim.lease.fence, claim.reclaims, claim.has.len()), (2, 0, 0));
    assert_eq!(claim.lease.uid.0.as_bytes(), &[9; 16]);
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_gate_that_was_lost_stops_pushes_and_keeps_everything_for_a_day() {
    let kit = Kit::start_with(Settings { retain_completed: ms(0), ..Settings::default() }).await;
    kit.open("h").await;
    let (_, claim) = kit.given_claimed("a").await;
    let _: i64 = kit.on("DEL", "gate", &[]).await;
    assert_eq!(kit.end(&claim, Verdict::Done).await, Settled::Completed);
    kit.given_due("b").await;
    let visited = kit.visit(5, ClaimKind::Push).await;
    assert_eq!((visited.claims.len(), visited.rev), (0, 0));
    kit.advance(86_000_000);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("completed").await, 1);
    kit.advance(400_001);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.size("completed").await, 0);
}

#[tokio::test]
async fn without_memory_enqueue_is_refused_and_everything_that_drains_works() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let big = || payload(&format!("\"{}\"", "x".repeat(2000)));
    for n in 0..200 {
        kit.given(NewTask { payload: big(), ..task(&format!("t{n:03}")) }).await;
    }
    let far = kit.given(delayed("far", 1_000_000)).await;
    let _: String = kit.ask("CONFIG", &[b"SET", b"maxmemory", b"1"]).await;
    kit.advance(2);
    let refused = kit.store.enqueue(NewTask { payload: big(), ..task("more") }).await;
    assert_eq!(refused.expect_err("no memory").fate(), Fate::Full);
    assert!(kit.get(&id("more")).await.is_none());

    let claims = kit.push(100).await;
    assert_eq!(claims.len(), 100);
    let renewal = |n: usize| Renewal { lease: claims[n].lease.clone(), won: vec!["h".to_owned()] };
    assert_eq!(
        kit.store.renew(&kit.queue, ms(1000), &[renewal(0), renewal(1)]).await.unwrap(),
        [Renewed::Held, Renewed::Held]
    );
    assert!(matches!(kit.cancel(&claims[0].id).await, Cancel::UnderWay(_)));
    assert!(matches!(kit.cancel(&far.id).await, Cancel::Done(_)));
    assert_eq!(kit.end(&claims[0], retry_at(0)).await, Settled::Cancelled);
    assert_eq!(kit.end(&claims[1], retry_at(0)).await, Settled::Scheduled);
    assert_eq!(kit.end(&claims[2], Verdict::Dead(DeadReason::Refused)).await, Settled::Dead);
    for claim in &claims[3..50] {
        assert_eq!(kit.end(claim, Verdict::Done).await, Settled::Completed);
    }
    kit.lapse().await;
    loop {
        let claims = kit.push(100).await;
        for claim in &claims {
            assert_eq!(kit.end(claim, Verdict::Done).await, Settled::Completed);
        }
        if claims.is_empty() {
            break;
        }
    }
    assert_eq!((kit.size("due").await, kit.size("active").await), (0, 0));
    let _: String = kit.ask("CONFIG", &[b"SET", b"maxmemory", b"0"]).await;
    assert!(matches!(kit.store.enqueue(task("more")).await.unwrap(), Enqueued::Created(_)));
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_pause_can_be_lifted_without_memory() {
    let kit = Kit::start().await;
    let _: String = kit.ask("CONFIG", &[b"SET", b"maxmemory", b"1"]).await;
    kit.open("h").await;
    assert_eq!(kit.store.describe(&kit.queue).await.unwrap().unwrap().webhooks.len(), 1);
}

#[tokio::test]
async fn a_list_of_queues_is_whole_or_an_error() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let other = u16::from(shard_of(&kit.queue) == 0);
    let _: i64 = kit.ask("HSET", &[b"dp:{63}:queues", b"\xff", b"{}"]).await;
    let _: String = kit.ask("SET", &[format!("dp:{{{other}}}:queues").as_bytes(), b"damaged"]).await;
    assert_eq!(kit.store.queue_names().await.unwrap(), std::slice::from_ref(&kit.queue), "damage hides no others");
    let _: String = kit.ask("ACL", &[b"SETUSER", b"default", b"-hkeys"]).await;
    assert_eq!(kit.store.queue_names().await.expect_err("no list").fate(), Fate::NotReady, "not an empty list");
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_comes_back() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given_due("a").await;
    drop(kit.push(1).await); // nobody knows of it
    let visited = kit.lapse().await;
    assert_eq!(visited.push, Some(visited.now));
    let claim = kit.claim_one().await;
    assert_eq!((claim.id, claim.reclaims, claim.progress.hooks.len()), (task.id, 1, 0), "a reclaim, not a try");
    assert!(claim.due > UnixMs(0));
}
