//! `fsck`: each kind of damage is planted, found, mended, and gone; a sound store is clean, also under load.

use std::process::Command;

use duepost::{
    domain::{
        queue::Settings,
        task::{NewTask, TaskState, When},
    },
    store::{Audit, Decision, Fault, keys::raw_id},
};
use serde_json::{Value, json};

use crate::{
    store_kit::{Kit, delayed, retry_at},
    support::{World, ms, secs, until},
};

/// What an audit finds, as (id, fault).
async fn faults(kit: &Kit, repair: bool) -> Vec<(Option<String>, Fault)> {
    let audit = kit.store.audit(repair).await.expect("Redis answers");
    assert_eq!(audit.faults, audit.findings.len());
    assert!(audit.findings.iter().all(|it| it.repaired == (repair && it.fault.can_be_repaired())), "{audit:?}");
    audit.findings.into_iter().map(|it| (it.id, it.fault)).collect()
}

/// Finds just this, changes nothing by looking, mends it, and then finds nothing.
async fn found_and_mended(kit: &Kit, id: Option<&str>, fault: Fault) {
    let expected = vec![(id.map(str::to_owned), fault)];
    let before = kit.dump().await;
    assert_eq!(faults(kit, false).await, expected);
    assert_eq!(kit.dump().await, before, "a look changes nothing");
    assert_eq!(faults(kit, true).await, expected);
    assert_eq!(faults(kit, false).await, []);
    kit.assert_sound().await;
}

#[tokio::test]
async fn a_sound_store_is_clean_in_every_state() {
    let kit = Kit::start().await;
    kit.open("h").await;
    assert_eq!(kit.store.audit(false).await.unwrap(), Audit { queues: 1, ..Audit::default() });
    kit.given(NewTask { expires: Some(When::After(secs(50))), ..delayed("waits", 30_000) }).await;
    kit.given(delayed("cancelled", 30_000)).await;
    kit.cancel(&crate::store_kit::id("cancelled")).await;
    let (_, claim) = kit.given_claimed("retried").await;
    kit.end(&claim, retry_at(kit.now().await + 5_000)).await;
    let (_, claim) = kit.given_claimed("delivered").await;
    kit.end(&claim, duepost::domain::round::Verdict::Done).await;
    kit.given_claimed("active").await;
    let audit = kit.store.audit(true).await.unwrap();
    assert_eq!((audit.queues, audit.tasks, audit.faults), (1, 5, 0), "{audit:?}");
    kit.advance(60_000);
    kit.visit(0, duepost::store::ClaimKind::Push).await;
    assert_eq!(faults(&kit, false).await, []);
    kit.advance(4_000_000);
    kit.visit(0, duepost::store::ClaimKind::Push).await;
    assert_eq!(faults(&kit, false).await, []);
}

#[tokio::test]
async fn a_record_in_no_set_is_found_and_ends_dead() {
    let kit = Kit::start().await;
    let lost = kit.given(delayed("lost", 30_000)).await;
    kit.given(delayed("there", 30_000)).await;
    let _: i64 = kit.on("ZREM", "due", &[&raw_id(&lost.id)]).await;
    let expected = vec![(Some("lost".to_owned()), Fault::Orphan), (None, Fault::Books)];
    assert_eq!(faults(&kit, false).await, expected);
    // once it is dead, it is dead in the books too
    assert_eq!(faults(&kit, true).await, expected[..1]);
    assert_eq!(faults(&kit, false).await, []);
    assert_eq!(kit.get(&lost.id).await.unwrap().state, TaskState::Dead);
    kit.assert_sound().await;
}

#[tokio::test]
async fn an_id_without_a_record_is_found_and_goes() {
    for part in ["due", "active", "completed"] {
        let kit = Kit::start().await;
        kit.open("h").await;
        let (task, claim) = kit.given_claimed("ghost").await;
        match part {
            "due" => _ = kit.end(&claim, retry_at(kit.now().await + 9_000)).await,
            "completed" => _ = kit.end(&claim, duepost::domain::round::Verdict::Done).await,
            _ => {}
        }
        let _: i64 = kit.on("HDEL", "tasks", &[&raw_id(&task.id)]).await;
        found_and_mended(&kit, Some("ghost"), Fault::Ghost).await;
    }
}

#[tokio::test]
async fn an_id_in_two_sets_stays_in_the_strongest() {
    let kit = Kit::start().await;
    let twice = kit.given(delayed("twice", 30_000)).await;
    let _: i64 = kit.on("ZADD", "completed", &[b"5", &raw_id(&twice.id)]).await;
    let later = kit.agenda().await;
    assert!(faults(&kit, false).await.contains(&(Some("twice".to_owned()), Fault::Double)));
    faults(&kit, true).await;
    assert_eq!(faults(&kit, false).await, []);
    assert_eq!(kit.get(&twice.id).await.unwrap().state, TaskState::Scheduled);
    assert_eq!(kit.agenda().await, later);
    kit.assert_sound().await;
}

#[tokio::test]
async fn what_is_left_over_is_found_and_goes() {
    let kit = Kit::start().await;
    kit.given(delayed("there", 30_000)).await;
    let _: i64 = kit.on("HSET", "runs", &[b"gone", b"x"]).await;
    found_and_mended(&kit, Some("gone"), Fault::StrayRun).await;
    let _: i64 = kit.on("ZADD", "expiry", &[b"9000000000000", b"gone"]).await;
    found_and_mended(&kit, Some("gone"), Fault::Expiry).await;
    let _: i64 = kit.on("ZADD", "expiry", &[b"9000000000000", b"there"]).await;
    found_and_mended(&kit, Some("there"), Fault::Expiry).await;
    let _: i64 = kit.on("HSET", "runs", &[b"there", b"rubbish"]).await;
    found_and_mended(&kit, Some("there"), Fault::Run).await;
}

#[tokio::test]
async fn a_lost_expiry_is_found_and_holds_again() {
    let kit = Kit::start().await;
    let expires = Some(When::After(secs(40)));
    let task = kit.given(NewTask { expires, ..delayed("e", 30_000) }).await;
    let _: i64 = kit.on("ZREM", "expiry", &[&raw_id(&task.id)]).await;
    found_and_mended(&kit, Some("e"), Fault::Expiry).await;
    assert_eq!(kit.score("expiry", &task.id).await, task.expires_at.map(|at| at.0));
}

#[tokio::test]
async fn a_queue_that_nobody_would_visit_is_found_and_visited() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given(delayed("t", 30_000)).await;
    kit.visit(0, duepost::store::ClaimKind::Push).await;
    let _: i64 = kit.on("ZREM", "agenda", &[b"q"]).await;
    found_and_mended(&kit, None, Fault::Agenda).await;
    assert_eq!(kit.agenda().await, Some(task.score.0));
    let _: i64 = kit.on("ZADD", "agenda", &[(task.score.0 + 1).to_string().as_bytes(), b"q"]).await;
    found_and_mended(&kit, None, Fault::Agenda).await;
}

#[tokio::test]
async fn books_that_do_not_balance_are_found_and_set_right() {
    let kit = Kit::start().await;
    kit.given(delayed("t", 30_000)).await;
    for counter in ["enqueued", "delivered"] {
        let _: i64 = kit.on("HINCRBY", "totals", &[counter.as_bytes(), b"3"]).await;
        found_and_mended(&kit, None, Fault::Books).await;
    }
    let _: i64 = kit.on("HINCRBY", "totals", &[b"retrying", b"1"]).await;
    assert_eq!(faults(&kit, false).await, [(None, Fault::Retrying)]);
}

#[tokio::test]
async fn what_scripts_read_of_a_queue_is_made_anew() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let _: i64 = kit.on("HSET", "gate", &[b"open", b"other"]).await;
    found_and_mended(&kit, None, Fault::Gate).await;
    let _: i64 = kit.on("DEL", "gate", &[]).await;
    found_and_mended(&kit, None, Fault::Gate).await;
    let open: String = kit.on("HGET", "gate", &[b"open"]).await;
    assert_eq!(open, "h");
    let kept: String = kit.on("HGET", "gate", &[b"keep"]).await;
    assert_eq!(kept, Settings::default().retain_completed.as_millis().to_string());
}

#[tokio::test]
async fn a_queue_that_is_on_no_list_is_found_and_listed() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let task = kit.given(delayed("t", 30_000)).await;
    let _: i64 = kit.on("HDEL", "queues", &[b"q"]).await;
    assert_eq!(faults(&kit, false).await, [(None, Fault::Unlisted)]);
    assert_eq!(faults(&kit, true).await[0], (None, Fault::Unlisted));
    assert_eq!(faults(&kit, false).await, []);
    assert!(kit.get(&task.id).await.is_some());
    let found = kit.store.change::<()>(&kit.queue, false, |view| {
        assert_eq!(view.webhooks.len(), 1, "its webhooks are still there");
        Err(())
    });
    assert!(matches!(found.await.unwrap(), Decision::Refused(())));
}

#[tokio::test]
async fn a_damaged_record_is_told_and_left_alone() {
    let kit = Kit::start().await;
    let bad = kit.given(delayed("bad", 30_000)).await;
    let _: i64 = kit.on("HSET", "tasks", &[&raw_id(&bad.id), b"\x63\x00rubbish"]).await;
    let before = kit.dump().await;
    assert_eq!(faults(&kit, true).await, [(Some("bad".to_owned()), Fault::Record)]);
    assert_eq!(kit.dump().await, before);
    assert!(!kit.store.audit(true).await.unwrap().is_clean());
}

fn fsck(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duepost"));
    let output = command.arg("fsck").args(arguments).env_clear().output().expect("it runs");
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

#[tokio::test]
async fn the_command_looks_at_a_running_service_under_load() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let api = it.service.client();
    let load = tokio::spawn(async move {
        for n in 0_u32.. {
            let task = json!({"id": format!("t{n}"), "payload": n, "delay": "30ms"});
            api.post("/queues/q/tasks", task).await.expect(201);
            if n % 3 == 0 {
                api.delete(&format!("/queues/q/tasks/t{n}")).await;
            }
        }
    });
    it.receiver.wait_for(20, secs(20)).await;
    for _ in 0..5 {
        let url = it.redis.url();
        let looked = tokio::task::spawn_blocking(move || fsck(&["--json", "--redis", &url])).await.expect("it runs");
        let told: Value = serde_json::from_str(&looked.1).expect("JSON");
        assert_eq!((looked.0, &told["clean"]), (Some(0), &json!(true)), "{told}");
        assert!(told["tasks"].as_u64() > Some(0), "{told}");
    }
    load.abort();
    it.schedule("r", json!({"id": "lost", "payload": 1, "delay": "1h"})).await;
    let keys: Vec<String> = it.redis.command(&["KEYS", "dp:*:r:due"]).await;
    let _: i64 = it.redis.command(&["DEL", &keys[0]]).await;
    let url = it.redis.url();
    let (code, told) = tokio::task::spawn_blocking(move || fsck(&["--redis", &url])).await.expect("it runs");
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("r task lost: orphan (--repair can mend it)"), "{told}");
    let url = it.redis.url();
    let (code, told) =
        tokio::task::spawn_blocking(move || fsck(&["--repair", "--redis", &url])).await.expect("it runs");
    assert_eq!(code, Some(0), "{told}");
    it.api.post("/queues/r/tasks/lost/run", "{}").await.expect(200);
    until(ms(5_000), async || (it.task("r", "lost").await["state"] == "scheduled").then_some(())).await;
}
