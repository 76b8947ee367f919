//! Plain ends: first claims that are done. `settle` goes by their run rows as claimed, without a close look at each; it must
//! come to the same.

use deadpool_redis::redis::Value;
use duepost::{
    domain::{
        attempt::{Attempt, Outcome},
        id::TaskId,
        queue::Settings,
        round::{Progress, Verdict},
        task::{DeadReason, NewTask, TaskState, When},
        time::UnixMs,
    },
    store::{Claim, ClaimKind, Lease, Renewal, Settled, Settlement, Visit},
};

use crate::{
    store_kit::{Kit, id, settlement, task},
    store_raw::{b, list, plain, word, words},
    support::ms,
};

fn closely(claim: &Claim) -> Lease {
    assert!(claim.lease.first.is_some(), "a first claim");
    Lease { first: None, ..claim.lease.clone() }
}

/// Long enough for a machine that stalls.
const LEASE_MS: u64 = 600_000;

async fn push(kit: &Kit, tasks: usize) -> Vec<Claim> {
    let visit = Visit { tasks, bytes: 1 << 20, lease: ms(LEASE_MS), kind: ClaimKind::Push };
    kit.store.visit(&kit.queue, visit).await.unwrap().claims
}

/// Due, and then claimed in one visit.
async fn given_claimed(kit: &Kit, names: &[&str]) -> Vec<Claim> {
    for name in names {
        kit.given(task(name)).await;
    }
    kit.advance(2);
    let mut claims = push(kit, names.len()).await;
    claims.sort_by_key(|claim| names.iter().position(|name| claim.id == id(name)));
    assert_eq!(claims.len(), names.len());
    claims
}

fn packed(claims: &[&Claim]) -> Vec<u8> {
    claims.iter().flat_map(|claim| plain(claim, "", "")).collect()
}

#[tokio::test]
async fn a_plain_end_leaves_what_a_close_look_would() {
    for settings in [Settings::default(), Settings { retain_completed: ms(0), ..Settings::default() }] {
        let mut dumps = Vec::new();
        for is_plain in [true, false] {
            let kit = Kit::start_with(settings.clone()).await;
            kit.open("h").await;
            let expires = Some(When::After(ms(60_000)));
            kit.given(NewTask { expires, ..task("a") }).await;
            kit.advance(2);
            let claim = kit.claim_one().await;
            let mut progress = Progress::default();
            progress.note(Attempt {
                number: 1,
                webhook: Some("h".to_owned()),
                started_at: UnixMs(1),
                lateness_ms: 1,
                duration_ms: 2,
                outcome: Outcome::Delivered,
                status: Some(200),
                error: None,
                response: None,
            });
            let won = vec!["h".to_owned(), "i".to_owned(), "h".to_owned()];
            let lease = if is_plain { claim.lease.clone() } else { closely(&claim) };
            let done = Settlement { won, progress: Some(progress.clone()), ..Settlement::new(lease, Verdict::Done) };
            assert_eq!(kit.settle(done).await, Settled::Completed);
            if let Some(task) = kit.get(&claim.id).await {
                assert_eq!((task.state, task.progress), (TaskState::Completed, progress));
                assert_eq!(task.delivered_to, ["h", "i"]);
            }
            assert_eq!((kit.size("active").await, kit.size("expiry").await), (0, 0));
            assert_eq!(kit.total("delivered").await, 1);
            kit.assert_sound().await;
            let mut dump = kit.dump().await;
            let run = dump.remove("runs").unwrap_or_default().pop().unwrap_or_default();
            let at = |part: &str| dump[part].iter().step_by(2).cloned().collect::<Vec<_>>();
            let timeless = run.get(..13).map(|head| [head, &run[37..]].concat()); // without instant and uid
            dumps.push((timeless, at("completed"), at("agenda"), dump["totals"].clone()));
        }
        assert_eq!(dumps[0], dumps[1]);
        assert_eq!(dumps[0].0.is_some(), settings.retain_completed > ms(0), "kept, or not");
    }
}

#[tokio::test]
async fn many_plain_ends_are_told_in_one_number() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let claims = given_claimed(&kit, &["a", "b", "c"]).await;
    let retry = given_claimed(&kit, &["d"]).await.remove(0).lease;
    let mut args = vec![b(0), packed(&claims.iter().collect::<Vec<_>>()), b(0)];
    args.extend([retry.member, retry.uid.0.as_bytes().to_vec(), b(retry.fence), b("retry"), b(9_000_000_000_000_i64)]);
    args.extend([b("h"), b(""), b(1), b("")]);
    let answer = kit.eval("settle", 0, &args).await;
    assert_eq!((word(&list(&answer)[0]).as_str(), words(&answer)), ("3", vec!["scheduled".to_owned()]));
    assert_eq!((kit.size("completed").await, kit.size("due").await, kit.size("active").await), (3, 1, 0));
    assert_eq!((kit.total("delivered").await, kit.total("failed").await), (3, 1));
    kit.assert_sound().await;
}

#[tokio::test]
async fn plain_ends_of_tasks_that_are_no_longer_under_way_are_looked_at_closely() {
    // each leaves the run row as it was claimed
    let ended = [
        (Verdict::Release(UnixMs(9_000_000_000_000)), "completed"),
        (Verdict::Done, "already"),
        (Verdict::Dead(DeadReason::MaxAttempts), "late"),
        (Verdict::Expired, "late"),
    ];
    for (verdict, expected) in ended {
        let kit = Kit::start().await;
        kit.open("h").await;
        let claims = given_claimed(&kit, &["a", "b", "c"]).await;
        let [a, b_, c] = &claims[..] else { panic!("three") };
        kit.settle(settlement(b_, verdict)).await;
        let args = [b(0), packed(&[a, b_, c]), b(0)];
        let answer = kit.eval("settle", 0, &args).await;
        assert_eq!(word(&list(&answer)[0]), "0");
        assert_eq!(words(&answer), ["completed", expected, "completed"], "{verdict:?}");
        assert_eq!(kit.total("delivered").await, if expected == "late" { 2 } else { 3 });
        assert_eq!(kit.size("active").await, 0);
        kit.assert_sound().await;
        assert_eq!(words(&kit.eval("settle", 0, &args).await)[0], "already", "a repeat");
    }
}

#[tokio::test]
async fn a_row_that_has_changed_is_looked_at_closely() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let claims = given_claimed(&kit, &["a", "b", "c", "d"]).await;
    let [a, b_, c, d] = &claims[..] else { panic!("four") };
    kit.cancel(&b_.id).await;
    let done = async |ones: &[&Claim]| words(&kit.eval("settle", 0, &[b(0), packed(ones), b(0)]).await);
    assert_eq!(done(&[a, b_, b_]).await, ["completed", "completed", "already"], "marked, and twice");
    assert_eq!((kit.size("active").await, kit.total("delivered").await), (2, 2));

    kit.advance(LEASE_MS + 1);
    kit.visit(0, ClaimKind::Push).await;
    assert_eq!(kit.total("retrying").await, 2);
    let again = push(&kit, 1).await.remove(0);
    assert!(again.lease.first.is_none(), "a second claim");
    let bytes = plain(c, ",h,", "");
    let other = plain(d, ",h,", "");
    let answer = kit.eval("settle", 0, &[b(0), [bytes, other].concat(), b(0)]).await;
    assert_eq!(words(&answer), ["completed", "completed"], "a late 2xx counts from anyone");
    assert_eq!(kit.get(&c.id).await.unwrap().delivered_to, ["h"]);
    assert_eq!((kit.total("retrying").await, kit.total("delivered").await), (0, 4));
    kit.assert_sound().await;
}

#[tokio::test]
async fn plain_ends_count_for_limits_and_memory() {
    let kit = Kit::start_with(Settings { max_in_flight: Some(1), ..Settings::default() }).await;
    kit.open("h").await;
    kit.given_due("a").await;
    kit.given_due("b").await;
    let claim = kit.claim_one().await;
    let mut ear = kit.ear().await;
    let answer = kit.eval("settle", 0, &[b(1), packed(&[&claim]), b(0)]).await;
    assert!(matches!(answer, Value::Int(_)), "{answer:?}");
    assert_eq!(ear.heard(&kit).await.len(), 1, "a place came free");
    assert!(kit.get(&claim.id).await.is_none() && !kit.has_run_row(&claim.id).await, "memory is full: not kept");
    assert_eq!(kit.visit(1, ClaimKind::Push).await.claims.len(), 1);
    kit.assert_sound().await;
}

#[tokio::test]
async fn the_instant_at_which_what_is_kept_goes_is_in_the_agenda() {
    for is_plain in [true, false] {
        let kit = Kit::start_with(Settings { retain_completed: ms(2000), ..Settings::default() }).await;
        kit.open("h").await;
        kit.given_due("a").await;
        let claim = push(&kit, 1).await.remove(0);
        let end_of_lease = kit.agenda().await;
        let lease = if is_plain { claim.lease.clone() } else { closely(&claim) };
        kit.settle(Settlement::new(lease, Verdict::Done)).await;
        let ended = kit.score("completed", &claim.id).await.unwrap();
        assert_eq!(kit.agenda().await, Some((ended + 2000) / 10_000 * 10_000 + 10_000), "plain: {is_plain}");
        assert!(kit.agenda().await < end_of_lease);
    }
}

/// Due, and then claimed in one visit, by a consumer.
async fn given_pulled(kit: &Kit, names: &[&str]) -> Vec<Claim> {
    for name in names {
        kit.given(task(name)).await;
    }
    kit.advance(2);
    let mut claims = kit.visit(names.len(), ClaimKind::Pull).await.claims;
    claims.sort_by_key(|claim| names.iter().position(|name| claim.id == id(name)));
    assert_eq!(claims.len(), names.len());
    claims
}

/// The sets that an id is in, and its scores there.
async fn places(kit: &Kit, id: &TaskId) -> Vec<Option<i64>> {
    let mut scores = Vec::new();
    for part in ["due", "active", "dead", "completed", "cancelled", "expired"] {
        scores.push(kit.score(part, id).await);
    }
    scores
}

#[tokio::test]
async fn plain_acks_show_their_tasks_without_payloads() {
    for settings in [Settings::default(), Settings { retain_completed: ms(0), ..Settings::default() }] {
        let kit = Kit::start_with(settings).await;
        let names: Vec<String> = (10..30).map(|n| format!("t{n}")).collect();
        let claims = given_pulled(&kit, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let mut records: Vec<Vec<u8>> = Vec::new();
        for claim in &claims {
            records.push(kit.on("HGET", "tasks", &[&claim.lease.member]).await);
        }
        let answer = kit.eval("settle", 0, &[b(0), packed(&claims.iter().collect::<Vec<_>>()), b(0)]).await;
        let [all, Value::Int(_), heads @ ..] = list(&answer) else { panic!("{answer:?}") };
        assert_eq!((word(all).as_str(), heads.len()), ("20", 20));
        for ((head, record), claim) in heads.iter().zip(records).zip(&claims) {
            let Value::BulkString(head) = head else { panic!("{head:?}") };
            assert_eq!(record, [head.as_slice(), &claim.payload].concat());
        }
        assert_eq!((kit.size("active").await, kit.total("delivered").await), (0, 20));
        kit.assert_sound().await;
    }
}

#[tokio::test]
async fn a_plain_ack_of_a_task_that_is_not_as_its_claim_left_it_has_no_effect() {
    // the last of them leave the run row as it was claimed
    for change in ["cancel", "lapse", "claim", "record", "release", "complete", "die"] {
        let kit = Kit::start().await;
        let claims = given_pulled(&kit, &["a", "b", "c"]).await;
        let [a, b_, c] = &claims[..] else { panic!("three") };
        let renewals = [a, c].map(|claim| Renewal { lease: claim.lease.clone(), won: Vec::new() });
        kit.store.renew(&kit.queue, ms(LEASE_MS), &renewals).await.unwrap();
        match change {
            "cancel" => _ = kit.cancel(&b_.id).await,
            "lapse" => _ = kit.lapse().await,
            "claim" => {
                kit.lapse().await;
                assert_eq!(kit.visit(1, ClaimKind::Pull).await.claims.len(), 1);
            }
            "record" => _ = kit.on::<i64>("HSET", "tasks", &[&b_.lease.member, b"torn"]).await,
            "release" => _ = kit.settle(settlement(b_, Verdict::Release(UnixMs(9_000_000_000_000)))).await,
            "complete" => _ = kit.settle(settlement(b_, Verdict::Ack)).await,
            _ => _ = kit.settle(settlement(b_, Verdict::Dead(DeadReason::Nack))).await,
        }
        let (row, delivered): (Vec<u8>, _) =
            (kit.on("HGET", "runs", &[&b_.lease.member]).await, kit.total("delivered").await);
        let stood = places(&kit, &b_.id).await;
        let answer = kit.eval("settle", 0, &[b(0), packed(&[a, b_, c]), b(0)]).await;
        let told: Vec<String> = list(&answer)[..4].iter().map(word).collect();
        assert_eq!(told, ["0", "completed", "unlike", "completed"], "{change}");
        assert_eq!(list(&answer).len(), 8, "{change}: now, and three heads");
        assert_eq!((places(&kit, &b_.id).await, kit.total("delivered").await), (stood, delivered + 2), "{change}");
        let row_after: Vec<u8> = kit.on("HGET", "runs", &[&b_.lease.member]).await;
        assert_eq!(row_after, row, "{change}");
        let again = kit.eval("settle", 0, &[b(0), packed(&[a, a]), b(0)]).await;
        assert_eq!(words(&again)[..2], ["unlike", "unlike"], "{change}: a repeat");
        if change != "record" {
            kit.assert_sound().await;
        }
    }
}

#[tokio::test]
async fn a_plain_ack_that_comes_twice_at_once_counts_once() {
    let kit = Kit::start().await;
    let claims = given_pulled(&kit, &["a", "b"]).await;
    let answer = kit.eval("settle", 0, &[b(0), packed(&[&claims[0], &claims[1], &claims[0]]), b(0)]).await;
    assert_eq!(words(&answer)[..3], ["completed", "completed", "unlike"]);
    assert_eq!((kit.size("completed").await, kit.total("delivered").await), (2, 2));
    kit.assert_sound().await;
}
