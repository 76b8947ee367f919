//! Redis has done what it was asked, and the answer is lost on the way: what a client may rely on then.

use duepost::{
    domain::{task::TaskState, time::UnixMs},
    store::{Promise, Store, Want},
};
use serde_json::json;

use crate::support::{
    RedisServer, Service,
    inside::{Inside, store_at},
    link::Link,
    ms, secs,
    wait::eventually,
};

/// Half a day, the longest that a consumer may ask for; its milliseconds as they go over the wire.
const WANT: Want = Want { max: 5, lease: secs(43_200), wait: ms(0) };
const WANT_ON_THE_WIRE: &str = "43200000";

/// A store behind the link that has its connections, and a task that is due for it.
async fn given(it: &Inside, link: &Link) -> Store {
    let far = store_at(&link.url(), Promise::default()).await;
    it.given_due("first").await;
    for store in [&it.store, &far] {
        store.clock().advance(ms(2));
    }
    far.pull(&it.queue, WANT).await.unwrap().handed_over();
    assert_eq!(it.task("first").await.state, TaskState::Active);
    it.given_due("t").await;
    for store in [&it.store, &far] {
        store.clock().advance(ms(2));
    }
    far
}

fn ends(it: &Inside, task: UnixMs) -> std::time::Duration {
    task.since(it.store.clock().now())
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_comes_back_soon_whatever_lease_was_asked_for() {
    let it = Inside::start().await;
    let link = Link::to(&it.redis).await;
    let far = given(&it, &link).await;
    let first = it.task("first").await;
    assert!(ends(&it, first.score) > secs(43_000), "one that was handed out is held for as long as was asked for");

    link.eat_answers();
    assert!(far.pull(&it.queue, WANT).await.is_err(), "the answer was to be lost");

    let task = it.task("t").await;
    assert_eq!(task.state, TaskState::Active, "Redis has done it");
    assert!(ends(&it, task.score) <= secs(60), "nobody knows of it, so it is not held for long");
    it.advance(secs(61));
    eventually(secs(10), async || {
        let mut taken = it.store.pull(&it.queue, WANT).await.unwrap();
        let ids: Vec<String> = taken.tasks().into_iter().map(|p| p.task.id.as_str().to_owned()).collect();
        taken.handed_over();
        ids == ["t"]
    })
    .await;
    assert_eq!(it.task("first").await.state, TaskState::Active);
}

#[tokio::test]
async fn claims_that_cannot_be_held_for_as_long_as_was_asked_for_go_back() {
    let it = Inside::start().await;
    let link = Link::to(&it.redis).await;
    let far = given(&it, &link).await;

    link.eat_answers_from(WANT_ON_THE_WIRE.as_bytes());
    assert!(far.pull(&it.queue, WANT).await.is_err(), "the second answer was to be lost");
    assert!(link.eats_all());
    let task = it.task("t").await;
    assert_eq!(task.state, TaskState::Active);
    assert!(ends(&it, task.score) > secs(43_000), "Redis has done it, and nobody knows");

    link.eat_nothing();
    let task = it.in_state("t", TaskState::Scheduled).await;
    assert_eq!(task.attempt(), 0, "it has been in nobody's hands");
}

#[tokio::test]
async fn a_lost_batch_names_the_ids_to_repeat_it_with() {
    let redis = RedisServer::start().await;
    let link = Link::to(&redis).await;
    let args = ["serve", "--listen", "127.0.0.1:0", "--redis", &link.url()];
    let service = crate::support::service::Builder::bare(&args).start().await;
    let near = Service::serve(&redis).await;
    let (api, other) = (service.client(), near.client());
    api.put("/queues/q", json!({})).await.expect(201);
    let task = |payload: u32| json!({"payload": payload, "delay": "1h"});
    api.post("/queues/q/tasks", task(0)).await.expect(201); // so that Redis has the script

    link.eat_answers();
    let batch = json!({"atomic": true, "tasks": [task(1), {"id": "mine", "payload": 2, "delay": "1h"}, task(3)]});
    let problem = api.post("/queues/q/batch", batch).await.problem(503, "outcome-unknown");
    let ids: Vec<&str> = problem["task_ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert!(ids.len() == 3 && ids[1] == "mine", "{problem}");

    // Redis has them all; repeated with these ids, each is found
    let mut again: Vec<_> =
        ids.iter().zip(1u32..).map(|(id, n)| json!({"id": id, "payload": n, "delay": "1h"})).collect();
    let answer = other.post("/queues/q/batch", json!({"atomic": true, "tasks": &again})).await.expect(200).json();
    for (result, id) in answer["results"].as_array().unwrap().iter().zip(&ids) {
        assert_eq!((&result["status"], &result["task"]["id"]), (&json!(200), &json!(id)), "{answer}");
    }
    // and those that were there do not stand in the way of a new one
    again.push(task(4));
    let answer = other.post("/queues/q/batch", json!({"atomic": true, "tasks": &again})).await.expect(200).json();
    let statuses: Vec<_> =
        answer["results"].as_array().unwrap().iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 200, 201], "{answer}");
    // other content does
    again[0]["payload"] = json!("other");
    let answer = other.post("/queues/q/batch", json!({"atomic": true, "tasks": &again})).await;
    let problem = answer.problem(409, "batch-refused");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 1, "{problem}");
    let stats = other.get("/queues/q/stats").await.expect(200).json();
    assert_eq!(stats["scheduled"], 5, "{stats}");
}
