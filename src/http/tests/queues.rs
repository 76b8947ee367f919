//! Queues: settings, figures, the list.

use serde_json::{Value, json};

use super::It;
use crate::domain::id::QueueName;

fn defaults() -> Value {
    json!({
        "retry": {"max_attempts": 20, "backoff":
            {"kind": "exponential", "base": "1s", "factor": 4.0, "max": "6h", "jitter": 0.2}},
        "timeout": "30s", "max_in_flight": null, "rate": null, "max_size": null,
        "retain_completed": "1h", "retain_completed_max": 10_000, "retain_dead": "30d",
    })
}

#[tokio::test]
async fn put_sets_all_and_patch_some() {
    let it = It::start().await;
    let made = it.call("PUT", "/queues/q", "").await.expect(201).json();
    assert_eq!((&made["name"], &made["settings"]), (&json!("q"), &defaults()));
    assert_eq!(
        (&made["paused"], &made["paused_until"], &made["stats"]["scheduled"]),
        (&json!(false), &Value::Null, &json!(0))
    );

    let all = json!({
        "retry": {"backoff": {"kind": "schedule", "delays": ["1s", "1m"], "jitter": 0}}, "timeout": "1m",
        "max_in_flight": 5, "rate": {"limit": 10}, "max_size": 100, "retain_completed": "0s",
        "retain_completed_max": 0, "retain_dead": "1d",
    });
    let set = it.call("PUT", "/queues/q", all.to_string()).await.expect(200).json();
    let mut want = all.clone();
    want["retry"]["max_attempts"] = json!(20);
    want["retry"]["backoff"]["jitter"] = json!(0.0);
    want["rate"] = json!({"limit": 10, "per": "1s", "burst": 10});
    assert_eq!(set["settings"], want);
    assert_eq!(set["created_at"], made["created_at"]);

    let patch = json!({"retry": {"max_attempts": 3}, "rate": null, "timeout": null, "max_size": 7});
    let patched = it.call("PATCH", "/queues/q", patch.to_string()).await.expect(200).json();
    want["retry"] = json!({"max_attempts": 3, "backoff": defaults()["retry"]["backoff"]});
    (want["rate"], want["timeout"], want["max_size"]) = (Value::Null, json!("30s"), json!(7));
    assert_eq!(patched["settings"], want);
    assert_eq!(it.get("/queues/q").await.expect(200).json()["settings"], want);
    assert_eq!(it.call("PATCH", "/queues/q", "{}").await.expect(200).json()["settings"], want);

    let task = it.post("/queues/q/tasks", r#"{"payload":1,"delay":"1h"}"#).await.expect(201).json();
    assert_eq!((&task["max_attempts"], &task["retry"]), (&json!(3), &Value::Null));
    it.call("PATCH", "/queues/q", r#"{"retry":{"max_attempts":4}}"#).await.expect(200);
    let task = it.post("/queues/q/tasks", r#"{"payload":1,"delay":"1h"}"#).await.expect(201).json();
    assert_eq!(task["max_attempts"], 4);

    assert_eq!(it.call("PUT", "/queues/q", "{}").await.expect(200).json()["settings"], defaults());
    it.call("PATCH", "/queues/r", "{}").await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn limits_of_settings() {
    let it = It::start().await;
    for (body, field) in [
        (r#"{"timeout":"99ms"}"#, "timeout"),
        (r#"{"timeout":30}"#, "timeout"),
        (r#"{"timeout":null}"#, "timeout"),
        (r#"{"max_in_flight":0}"#, "max_in_flight"),
        (r#"{"max_in_flight":100001}"#, "max_in_flight"),
        (r#"{"max_in_flight":"5"}"#, "max_in_flight"),
        (r#"{"rate":{}}"#, "rate.limit"),
        (r#"{"rate":{"limit":0}}"#, "rate.limit"),
        (r#"{"rate":{"limit":1,"per":"25h"}}"#, "rate.per"),
        (r#"{"rate":{"limit":1,"burst":1000001}}"#, "rate.burst"),
        (r#"{"rate":{"limit":1,"Burst":1}}"#, "rate.Burst"),
        (r#"{"rate":"10/s"}"#, "rate"),
        (r#"{"max_size":1000000001}"#, "max_size"),
        (r#"{"retain_completed":"3651d"}"#, "retain_completed"),
        (r#"{"retain_completed_max":10000001}"#, "retain_completed_max"),
        (r#"{"retain_dead":null}"#, "retain_dead"),
        (r#"{"retain":"1h"}"#, "retain"),
        (r#"{"paused":true}"#, "paused"),
    ] {
        it.call("PUT", "/queues/q", body).await.refuses(field);
    }
    it.get("/queues/q").await.problem(404, "queue-not-found");
    it.call("PATCH", "/queues/q", r#"{"timeout":"99ms"}"#).await.refuses("timeout");
}

#[tokio::test]
async fn c186_one_damaged_queue_does_not_spoil_the_list() {
    let it = It::start().await;
    for queue in ["a", "b", "c"] {
        it.post(&format!("/queues/{queue}/tasks"), r#"{"payload":1,"delay":"1h"}"#).await.expect(201);
    }
    let key = crate::store::keys::Keys::new("dp").of_queue(&QueueName::parse("b").unwrap());
    let due = key.iter().find(|k| k.ends_with(":due")).expect("the key of due tasks").clone();
    let mut redis = deadpool_redis::redis::Client::open(it.redis.url()).unwrap().get_connection().unwrap();
    deadpool_redis::redis::cmd("SET").arg(due).arg("not a set").exec(&mut redis).unwrap();

    let list = it.get("/queues").await.expect(200).json();

    let row = |n: usize| (list["items"][n]["name"].clone(), list["items"][n]["scheduled"].clone());
    assert_eq!([row(0), row(1), row(2)], [(json!("a"), json!(1)), (json!("b"), Value::Null), (json!("c"), json!(1))]);
    assert!(it.get("/metrics").await.expect(200).text().contains(r#"duepost_tasks{queue="c",state="scheduled"} 1"#));
    it.get("/readyz").await.expect(200);
    let problem = it.get("/queues/b/stats").await.problem(500, "internal");
    assert!(!problem.to_string().contains("WRONGTYPE"), "no text of Redis: {problem}");
}

#[tokio::test]
async fn queues_are_listed_by_name_in_pages() {
    let it = It::start().await;
    for n in 0..7 {
        it.call("PUT", &format!("/queues/q{n}"), "").await.expect(201);
    }
    let (mut names, mut path) = (Vec::new(), "/queues?limit=3".to_owned());
    loop {
        let page = it.get(&path).await.expect(200).json();
        names.extend(page["items"].as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/queues?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(names, ["q0", "q1", "q2", "q3", "q4", "q5", "q6"]);
    it.get("/queues?cursor=%00").await.refuses("cursor");
}

#[tokio::test]
async fn stats_tell_how_late_the_head_is() {
    let it = It::start().await;
    let past = r#"{"payload":1,"run_at":"2020-01-01T00:00:00Z"}"#;
    it.post("/queues/q/tasks", past).await.expect(201);
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let stats = it.get("/queues/q/stats").await.expect(200).json();
    assert_eq!((&stats["scheduled"], &stats["due"], &stats["enqueued_total"]), (&json!(1), &json!(1), &json!(1)));
    let late = stats["oldest_due_ms"].as_u64().unwrap();
    assert!((20..10_000).contains(&late), "from acceptance, not from the time asked for: {stats}");
    assert_eq!((&stats["lateness_ms"], &stats["duration_ms"]), (&Value::Null, &Value::Null));
    assert!(stats["next_attempt_at"].is_string());

    let ms = std::time::Duration::from_millis;
    it.metrics.queue("q").attempt(crate::domain::attempt::Outcome::Delivered, ms(2), ms(30), std::time::Instant::now());
    let stats = it.get("/queues/q").await.expect(200).json()["stats"].clone();
    assert_eq!((&stats["lateness_ms"]["max"], &stats["duration_ms"]["max"]), (&json!(2), &json!(30)));
}
