//! What the tests of topologies share: many queues, so that every primary has some, and the whole life of their tasks.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Answer, Client, Receiver, Request, eventually, secs};

/// Queues in use; their shards are spread over all primaries.
pub const QUEUES: usize = 24;

pub fn queues() -> Vec<String> {
    (0..QUEUES).map(|n| format!("q{n}")).collect()
}

/// Registers a webhook for each queue.
pub async fn register(api: &Client, receiver: &Receiver) {
    join_all(queues().iter().map(async |queue| {
        let body = json!({"id": "w", "url": receiver.url(&format!("/{queue}"))});
        api.post(&format!("/queues/{queue}/webhooks"), body).await.expect(201);
    }))
    .await;
}

/// Everything that can be done with tasks and queues, in every queue; `register` came before.
pub async fn whole_life(api: &Client, receiver: &Receiver) {
    let fails = |request: &Request| request.header("duepost-task-id").is_some_and(|id| id.ends_with("-fails"));
    receiver.when(fails, Answer::status(400));
    join_all(queues().iter().map(|queue| life(api, receiver, queue))).await;
    let names: Vec<Value> =
        api.get("/queues?limit=1000").await.expect(200).json()["items"].as_array().expect("a list").clone();
    let mut names: Vec<&str> = names.iter().filter_map(|item| item["name"].as_str()).collect();
    names.retain(|name| name.starts_with('q'));
    let mut wanted = queues();
    wanted.sort();
    assert_eq!(names, wanted, "the list has the queues of all primaries");
    let metrics = api.get("/metrics").await.expect(200).text();
    assert!(queues().iter().all(|q| metrics.contains(&format!("queue=\"{q}\""))), "depths of all primaries");
    api.get("/readyz").await.expect(200);
}

async fn life(api: &Client, receiver: &Receiver, queue: &str) {
    let path = |rest: &str| format!("/queues/{queue}{rest}");
    let state = async |id: &str| {
        api.get(&path(&format!("/tasks/{id}"))).await.expect(200).json()["state"].as_str().map(str::to_owned)
    };
    let id = |name: &str| format!("{queue}-{name}");
    let (now, later, fails) = (id("now"), id("later"), id("fails"));
    api.post(&path("/tasks"), json!({"id": now, "payload": 1, "delay": "0s"})).await.expect(201);
    api.post(&path("/tasks"), json!({"id": later, "payload": 1, "delay": "1h"})).await.expect(201);
    api.post(&path("/tasks"), json!({"id": later, "payload": 1, "delay": "1h"})).await.expect(200);
    api.patch(&path(&format!("/tasks/{later}")), json!({"delay": "2h"})).await.expect(200);
    api.put(&path(&format!("/tasks/{}", id("put"))), json!({"payload": 2, "delay": "0s"})).await.expect(201);
    let batch = json!({"tasks": [{"id": id("b1"), "payload": 1}, {"id": id("b2"), "payload": 2}], "atomic": true});
    api.post(&path("/batch"), batch).await.expect(200);
    for name in ["now", "put", "b1", "b2"] {
        receiver.wait_for_task(&id(name), secs(20)).await;
        eventually(secs(10), async || state(&id(name)).await.as_deref() == Some("completed")).await;
    }
    api.delete(&path(&format!("/tasks/{later}"))).await.expect(200);
    assert_eq!(state(&later).await.as_deref(), Some("cancelled"));
    api.post(&path(&format!("/tasks/{later}/run")), "{}").await.expect(200);
    receiver.wait_for_task(&later, secs(20)).await;

    let once = json!({"id": fails, "payload": 1, "retry": {"max_attempts": 1}});
    api.post(&path("/tasks"), once).await.expect(201);
    eventually(secs(20), async || state(&fails).await.as_deref() == Some("dead")).await;

    api.post(&path("/pause"), "{}").await.expect(200);
    api.post(&path("/tasks"), json!({"id": id("paused"), "payload": 1})).await.expect(201);
    assert_eq!(api.get(&path("/tasks?state=scheduled")).await.expect(200).json()["items"][0]["id"], id("paused"));
    api.post(&path("/resume"), "{}").await.expect(200);
    receiver.wait_for_task(&id("paused"), secs(20)).await;

    // pulled, as nobody is registered there
    let pull = format!("pull-{queue}");
    let claim = async || {
        let body = json!({"max": 1, "lease": "30s", "wait": "20s"});
        api.post(&format!("/queues/{pull}/claim"), body).await.expect(200).json()["tasks"][0].clone()
    };
    let put = async {
        api.post(&format!("/queues/{pull}/tasks"), json!({"id": "t", "payload": 1})).await.expect(201);
    };
    let (task, ()) = tokio::join!(claim(), put);
    let token = json!({"token": task["lease"]["token"]});
    api.post(&format!("/queues/{pull}/tasks/t/ack"), token).await.expect(200);
    api.post(&format!("/queues/{pull}/purge"), json!({"states": ["completed"]})).await.expect(200);
    api.delete(&format!("/queues/{pull}?force=true")).await.expect(204);
    let stats = api.get(&path("/stats")).await.expect(200).json();
    assert_eq!((stats["active"].as_i64(), stats["dead"].as_i64()), (Some(0), Some(1)), "{stats}");
}
