//! Real cases, group C: ids, names, deduplication.

use std::collections::{BTreeSet, HashMap};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Service, World,
    client::encoded,
    now_ms, secs,
    wait::format_ms,
    world::{assert_balanced, figure},
};

fn ids(list: &Value) -> BTreeSet<String> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|task| task["id"].as_str().expect("id").to_owned()).collect()
}

#[tokio::test]
async fn c038_an_id_counts_in_every_form_of_a_task() {
    let it = World::start().await;
    let at = format_ms(now_ms() + 3_600_000);
    let first = it.schedule("q", json!({"id": "x", "payload": 1, "delay": "1h"})).await;

    for other in [
        json!({"id": "x", "payload": 1}),
        json!({"id": "x", "payload": 1, "delay": "2h"}),
        json!({"id": "x", "payload": 1, "delay_ms": 1}),
        json!({"id": "x", "payload": 1, "run_at": at}),
        json!({"id": "x", "payload": 1, "delay": "1h", "headers": {"x-a": "b"}}),
        json!({"id": "x", "payload": 1, "delay": "1h", "timeout": "5s"}),
        json!({"id": "x", "payload": 1, "delay": "1h", "retry": {"max_attempts": 2}}),
        json!({"id": "x", "payload": 1, "delay": "1h", "expires_after": "3h"}),
    ] {
        let problem = it.api.post("/queues/q/tasks", &other).await.problem(409, "task-exists");
        assert_eq!((&problem["state"], &problem["task"]["uid"]), (&json!("scheduled"), &first["uid"]), "{other}");
    }

    assert_eq!(figure(&it.stats("q").await, "enqueued_total"), 1);
    it.schedule("other", json!({"id": "x", "payload": 1, "delay": "1h"})).await;
}

#[tokio::test]
async fn c039_a_duplicate_answers_with_what_is_stored() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let a = r#"{"id":"x","payload":{"v":"A"},"delay":"1s"}"#;
    let first = it.api.post("/queues/q/tasks", a).await.expect(201);
    assert_eq!(first.header("location"), Some("/queues/q/tasks/x"));

    let again = it.api.post("/queues/q/tasks", a).await.expect(200);
    let other = it.api.post("/queues/q/tasks", r#"{"id":"x","payload":{"v":"B"},"delay":"1m"}"#).await;

    assert_eq!((first.header("duepost-replayed"), again.header("duepost-replayed")), (None, Some("true")));
    assert_eq!((&again.json()["uid"], &again.json()["run_at"]), (&first.json()["uid"], &first.json()["run_at"]));
    let problem = other.problem(409, "task-exists");
    assert_eq!(problem["task"]["run_at"], first.json()["run_at"]);
    let read = it.api.get("/queues/q/tasks/x").await.expect(200);
    assert_eq!(read.raw_field("payload").as_deref(), Some(r#"{"v":"A"}"#));
    it.in_state("q", "x", "completed").await;
    // Delivered and still on record: the same content is a replay, other content a conflict.
    let replay = it.api.post("/queues/q/tasks", a).await.expect(200);
    assert_eq!(replay.json()["state"], "completed");
    let conflict = it.api.post("/queues/q/tasks", r#"{"id":"x","payload":{"v":"C"}}"#).await;
    assert_eq!(conflict.problem(409, "task-exists")["state"], "completed");
    it.sentinel("q", "sentinel").await;
    let bodies: Vec<String> = it.receiver.of_task("x").iter().map(|request| request.text()).collect();
    assert_eq!(bodies, [r#"{"v":"A"}"#]);
}

#[tokio::test]
async fn c040_numeric_ids_and_uuids_are_ids_like_others() {
    let it = World::start().await;
    let post = async |body: Value| it.schedule("q", body).await;
    let made = join_all((0..200).map(|n| post(json!({"payload": n, "delay": "1h"})))).await;
    let numbers: Vec<String> = (1..=200).map(|n| n.to_string()).collect();
    join_all(numbers.iter().map(|id| post(json!({"id": id, "payload": 1, "delay": "1h"})))).await;
    for id in ["00123", "1e3", "-1", "0", "~", "@:", "_", "A", "a"] {
        post(json!({"id": id, "payload": 1, "delay": "1h"})).await;
    }

    let uuid = made[0]["id"].as_str().expect("id").to_owned();
    assert_eq!((uuid.len(), &uuid[14..15]), (36, "7"), "a UUIDv7: {uuid}");
    let taken = json!({"id": uuid, "payload": "other", "delay": "1h"});
    it.api.post("/queues/q/tasks", taken).await.problem(409, "task-exists");
    // Case counts, also where the text reads as a UUID.
    post(json!({"id": uuid.to_uppercase(), "payload": "upper", "delay": "1h"})).await;

    assert_eq!(figure(&it.stats("q").await, "scheduled"), 200 + 200 + 9 + 1);
    let mut seen = BTreeSet::new();
    let mut path = "/queues/q/tasks?limit=100".to_owned();
    loop {
        let page = it.api.get(&path).await.expect(200).json();
        seen.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/queues/q/tasks?limit=100&cursor={}", encoded(cursor, true)),
            None => break,
        }
    }
    assert_eq!(seen.len(), 410);
    assert_eq!(it.task("q", &uuid).await["id"], uuid.as_str());
    assert_eq!(it.task("q", &uuid.to_uppercase()).await["id"], uuid.to_uppercase());
}

#[tokio::test]
async fn c043_odd_ids_address_nothing_but_themselves() {
    let it = World::start().await;
    for id in ["a", "a:b", "user"] {
        it.schedule("q", json!({"id": id, "payload": 1, "delay": "1h"})).await;
    }
    let odd = [
        "user/234", "a%2Fb", "a%252Fb", ".", "..", "../x", "a b", "é", "ｅ", "💥", "%", "%zz", "?", "#", ";v=1",
        "a\\b", "a/", "/a", "a\n", "",
    ];

    for id in odd {
        it.api.post("/queues/q/tasks", json!({"id": id, "payload": 1})).await.refuses("id");
        for upper in [true, false] {
            if id.is_empty() {
                continue;
            }
            let target = format!("/queues/q/tasks/{}", encoded(id, upper));
            it.api_raw("GET", &target).await.problem(400, "invalid-request");
            it.api_raw("DELETE", &target).await.problem(400, "invalid-request");
            let queue = format!("/queues/{}/tasks", encoded(id, upper));
            it.api.raw_call("POST", &queue, r#"{"payload":1}"#).await.problem(400, "invalid-request");
        }
    }
    it.api_raw("GET", "/queues/q/tasks/%zz").await.problem(400, "invalid-request");
    it.api_raw("GET", "/queues/q/tasks/%FF").await.problem(400, "invalid-request");
    it.api.post("/queues/q/tasks", json!({"id": "x".repeat(129), "payload": 1})).await.refuses("id");
    it.schedule("q", json!({"id": "x".repeat(128), "payload": 1, "delay": "1h"})).await;

    // Either case of the hex digits, and letters that needed no encoding, name the same task.
    for target in ["/queues/q/tasks/a:b", "/queues/q/tasks/a%3Ab", "/queues/q/tasks/%61%3ab", "/queues/%71/tasks/a%3ab"]
    {
        assert_eq!(it.api_raw("GET", target).await.expect(200).json()["id"], "a:b", "{target}");
    }
    let stats = it.stats("q").await;
    assert_eq!((figure(&stats, "scheduled"), figure(&stats, "cancelled_total")), (4, 0));
    let queues = it.api.get("/queues").await.expect(200).json();
    assert_eq!(queues["items"].as_array().map(Vec::len), Some(1), "{queues}");
}

#[tokio::test]
async fn c045_a_cancelled_id_is_free_at_once() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let first = it.schedule("q", json!({"id": "x", "payload": 1, "delay": "1h"})).await;
    it.api.delete("/queues/q/tasks/x").await.expect(200);
    let second = it.schedule("q", json!({"id": "x", "payload": 1, "delay": "1h"})).await;
    assert_ne!(first["uid"], second["uid"], "a new task, although the content is the same");
    it.api.delete("/queues/q/tasks/x").await.expect(200);
    it.schedule("q", json!({"id": "x", "payload": 2, "delay_ms": 200})).await;
    assert_eq!(it.receiver.wait_for_task("x", secs(5)).await.text(), "2");

    // Cancelled while it waits for its retry.
    it.receiver.on_in_turn("/hook", vec![Answer::status(500).into(), Answer::status(200).into()]);
    let retry = json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "1h", "jitter": 0}});
    it.schedule("q", json!({"id": "y", "payload": 1, "retry": retry})).await;
    it.receiver.wait_for_task("y", secs(5)).await;
    it.in_state("q", "y", "scheduled").await;
    it.api.delete("/queues/q/tasks/y").await.expect(200);
    let again = it.schedule("q", json!({"id": "y", "payload": 3})).await;
    assert_eq!(again["attempt"], 0, "{again}");
    it.in_state("q", "y", "completed").await;

    let journal = it.receiver.of_task("y");
    assert_eq!((journal.len(), journal[1].text(), journal[1].attempt()), (2, "3".to_owned(), 1));
    assert_balanced(&it.stats("q").await);
}

#[tokio::test]
async fn c046_a_dead_task_holds_its_id_until_it_is_removed() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(500));
    let retry = json!({"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "10ms"}});
    let body = json!({"id": "x", "payload": 1, "retry": retry});
    it.schedule("q", &body).await;
    it.in_state("q", "x", "dead").await;
    assert_eq!(it.task("q", "x").await["reason"], "max_attempts");

    for duplicate in [&body, &json!({"id": "x", "payload": 2})] {
        let problem = it.api.post("/queues/q/tasks", duplicate).await.problem(409, "task-exists");
        assert_eq!((&problem["state"], &problem["task"]["state"]), (&json!("dead"), &json!("dead")));
    }
    it.receiver.forget_rules();
    it.api.delete("/queues/q/tasks/x").await.expect(200);
    it.schedule("q", &body).await;

    it.in_state("q", "x", "completed").await;
    assert_eq!(it.receiver.of_task("x").len(), 3);
    let stats = it.stats("q").await;
    assert_eq!((figure(&stats, "dead_total"), figure(&stats, "cancelled_total"), figure(&stats, "dead")), (1, 0, 0));
    assert_balanced(&stats);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c051_parallel_duplicates_make_one_task() {
    const ROUNDS: usize = 25;
    const POSTS: usize = 200;
    let it = World::start().await;
    let second = Service::serve(&it.redis).await;
    it.webhook("q", "/hook").await;
    let nodes = [it.api.clone(), second.client()];

    for round in 0..ROUNDS {
        // Half of the posts say one thing, half another, from either node: who loses sees a replay or a conflict, never a second 201.
        let posts = (0..POSTS).map(|n| {
            let body = json!({"id": format!("x{round}"), "payload": n / 2 % 2});
            let node = &nodes[n % 2];
            async move { node.post("/queues/q/tasks", body).await.status }
        });
        let mut counts = HashMap::new();
        for status in join_all(posts).await {
            *counts.entry(status).or_insert(0) += 1;
        }
        assert_eq!(counts, HashMap::from([(201, 1), (200, POSTS / 2 - 1), (409, POSTS / 2)]), "round {round}");
    }

    it.receiver.wait_for(ROUNDS, secs(10)).await;
    it.sentinel("q", "sentinel").await;
    let journal = it.receiver.journal();
    let tasks: BTreeSet<&str> = journal.iter().map(|request| request.task()).collect();
    assert_eq!((journal.len(), tasks.len()), (ROUNDS + 1, ROUNDS + 1));
    let stats = it.stats("q").await;
    assert_eq!(figure(&stats, "enqueued_total"), (ROUNDS + 1) as i64);
    it.at_rest("q").await;
}
