//! What a call meets when something is broken: Redis gone, silent, full or damaged, or too many calls at once.

use duepost::{
    domain::id::QueueName,
    store::keys::{Keys, SHARDS},
};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Case, call_lawfully, cases_of};
use crate::support::{Answer, ApiAnswer, Client, Gate, Service, World, eventually, secs};

/// The cases of 503 with this problem.
fn unavailable(problem: &str) -> Vec<Case> {
    cases_of(&[503]).into_iter().filter(|case| case.problem == problem).collect()
}

/// Makes a queue `q` with a webhook `t` that is not called and a task `t` that a consumer holds; gives the claim's token.
async fn stage(api: &Client) -> String {
    api.post("/queues/q/webhooks", json!({"id": "t", "url": "http://127.0.0.1:9/", "enabled": false}))
        .await
        .expect(201);
    api.post("/queues/q/tasks", json!({"id": "t", "payload": 1})).await.expect(201);
    let claimed = api.post("/queues/q/claim", json!({"wait": "5s", "lease": "1h"})).await.expect(200).json();
    claimed["tasks"][0]["lease"]["token"].as_str().expect("a task was due").to_owned()
}

async fn provoke(api: &Client, case: &Case, token: &str) -> ApiAnswer {
    call_lawfully(api, &case.operation, &case.operation.path_to("q", "t"), token).await
}

#[test]
fn every_kind_of_trouble_is_provoked_by_a_test() {
    for case in cases_of(&super::TROUBLE) {
        let known = ["unavailable", "outcome-unknown", "storage-full", "overloaded", "internal", "unreadable"];
        assert!(known.contains(&case.problem.as_str()), "nothing here provokes {}", case.name());
    }
}

/// What is stored is of another type than it should be, as if somebody else wrote under our names.
#[tokio::test]
async fn what_cannot_be_understood_in_redis_is_500() {
    let it = World::start().await;
    let token = stage(&it.api).await;
    let mut keys = Keys::new("dp").of_queue(&QueueName::parse("q").unwrap()).to_vec();
    keys.extend((0..SHARDS).map(|shard| Keys::new("dp").of_shard(shard, "queues")));
    for key in keys {
        it.redis.command::<()>(&["SET", &key, "damaged"]).await;
    }
    for case in cases_of(&[500]).iter().filter(|case| case.problem == "internal") {
        case.check(&provoke(&it.api, case, &token).await);
    }
}

/// The record of a task is of a release that is still to come.
#[tokio::test]
async fn a_task_of_another_release_is_500_unreadable() {
    let key = Keys::new("dp").of_part(&QueueName::parse("q").unwrap(), "tasks");
    for case in cases_of(&[500]).iter().filter(|case| case.problem == "unreadable") {
        let it = World::start().await;
        let token = stage(&it.api).await;
        let record = "local old = redis.call('HGET', KEYS[1], 't') \
            return redis.call('HSET', KEYS[1], 't', string.char(9) .. string.sub(old, 2))";
        it.redis.command::<()>(&["EVAL", record, "1", &key]).await;
        let answer = match case.operation.id.as_str() {
            "create_task" => it.api.post("/queues/q/tasks", json!({"id": "t", "payload": 1})).await,
            _ => provoke(&it.api, case, &token).await,
        };
        case.check(&answer);
    }
}

#[tokio::test]
async fn a_redis_that_is_gone_is_503_unavailable() {
    let mut it = World::start().await;
    let token = stage(&it.api).await;
    it.redis.kill9();
    // A connection that has not broken yet may take a call along: then its outcome is not known.
    join_all(unavailable("unavailable").iter().map(async |case| {
        eventually(secs(20), async || {
            let answer = provoke(&it.api, case, &token).await;
            assert_eq!(answer.status, 503, "{}: {}", case.name(), answer.text());
            let is_it = answer.json()["type"] == "/problems/unavailable";
            is_it.then(|| case.check(&answer)).is_some()
        })
        .await;
    }))
    .await;
}

#[tokio::test]
async fn a_redis_that_falls_silent_is_503_outcome_unknown() {
    let it = World::start().await;
    let token = stage(&it.api).await;
    it.redis.freeze();
    let cases = unavailable("outcome-unknown");
    let answers = join_all(cases.iter().map(|case| provoke(&it.api, case, &token))).await;
    it.redis.thaw();
    cases.iter().zip(&answers).for_each(|(case, answer)| case.check(answer));
}

#[tokio::test]
async fn a_redis_that_is_full_is_503_storage_full() {
    let it = World::start().await;
    let token = stage(&it.api).await;
    it.api.post("/queues/q/tasks/t/nack", json!({"token": token, "dead": true})).await.expect(200);
    it.api.post("/queues/q/tasks", json!({"id": "waits", "payload": 1, "delay": "1h"})).await.expect(201);
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for case in unavailable("storage-full") {
        let target = case.operation.path_to("q", if case.operation.id == "run_task" { "t" } else { "waits" });
        case.check(&call_lawfully(&it.api, &case.operation, &target, "").await);
    }
}

#[tokio::test]
async fn a_service_with_too_many_calls_is_503_overloaded() {
    let it = World::start().await;
    let service = Service::builder(&it.redis).flag("--max-requests", "1").flag("--max-claims", "1").start().await;
    let api = service.client();
    let token = stage(&api).await;
    // One call waits for its body, one claim for a task, and as many tests as there may be for a receiver.
    let gate = Gate::new();
    it.receiver.on("/hangs", Answer::status(200).held_by(&gate));
    let hook = json!({"id": "hangs", "url": it.receiver.url("/hangs"), "timeout": "1h", "enabled": false});
    api.post("/queues/idle/webhooks", hook).await.expect(201);
    let keep_calling = |path: &'static str, body: Value| {
        let api = api.clone();
        // again, should one of our own looks below have had the place
        tokio::spawn(async move { while api.post(path, &body).await.status == 503 {} })
    };
    let mut waiting = vec![keep_calling("/queues/idle/claim", json!({"wait": "60s"}))];
    waiting.extend((0..32).map(|_| keep_calling("/queues/idle/webhooks/hangs/test", json!({}))));
    it.receiver.wait_for(32, secs(20)).await;
    let mut slow = TcpStream::connect(service.address()).await.expect("the service listens");
    let head = "PUT /queues/slow HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\
                expect: 100-continue\r\n\r\n";
    slow.write_all(head.as_bytes()).await.expect("the service reads");
    let mut waits_for_it = [0; 12];
    slow.read_exact(&mut waits_for_it).await.expect("the service asks for the body");
    assert_eq!(&waits_for_it, b"HTTP/1.1 100");
    eventually(secs(10), async || api.post("/queues/q/claim", "").await.status == 503).await;
    for case in unavailable("overloaded") {
        case.check(&provoke(&api, &case, &token).await);
    }
    gate.open();
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}
