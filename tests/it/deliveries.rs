//! The answer table of the contract: what each answer of a receiver does to its task.

use serde_json::{Value, json};

use crate::support::{
    Answer, World, eventually, ms, secs,
    world::{assert_balanced, figure},
};

/// Two attempts, the second one soon.
fn twice() -> Value {
    json!({"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "50ms", "jitter": 0}})
}

#[tokio::test]
async fn each_failure_is_retried_and_named() {
    let it = World::start().await;
    let status = |status| Answer::from(Answer::status(status));
    let failures = [
        (status(400), "rejected", json!(400)),
        (status(404), "rejected", json!(404)),
        (status(500), "rejected", json!(500)),
        (Answer::status(301).header("location", "/elsewhere").into(), "rejected", json!(301)),
        (Answer::status(503).header("retry-after", "soon").into(), "rejected", json!(503)),
        (Answer::hang(), "timeout", Value::Null),
        (Answer::close(), "unreachable", Value::Null),
        (Answer::reset(), "unreachable", Value::Null),
        (Answer::raw_then_close("NOT HTTP\r\n\r\n"), "unreachable", Value::Null),
    ];
    for (n, (answer, _, _)) in failures.iter().enumerate() {
        let path = format!("/{n}");
        it.webhook_with(&format!("q{n}"), &path, json!({"id": "main", "timeout": "300ms"})).await;
        it.receiver.on_in_turn(&path, vec![answer.clone(), status(204)]);
        it.schedule(&format!("q{n}"), json!({"id": "t", "payload": n, "retry": twice()})).await;
    }

    for (n, (_, outcome, status)) in failures.iter().enumerate() {
        let queue = format!("q{n}");
        it.in_state(&queue, "t", "completed").await;
        let task = it.task(&queue, "t").await;
        let attempts = task["attempts"].as_array().expect("attempts");
        assert_eq!(attempts.len(), 2, "{task}");
        assert_eq!((&attempts[0]["outcome"], &attempts[0]["status"]), (&json!(outcome), status), "{task}");
        assert_eq!((&attempts[1]["outcome"], &attempts[1]["status"]), (&json!("delivered"), &json!(204)), "{task}");
        assert_eq!(attempts[0]["webhook"], "main");
        let stats = it.stats(&queue).await;
        assert_eq!((figure(&stats, "failed_attempts_total"), figure(&stats, "delivered_total")), (1, 1));
    }
    assert!(it.receiver.journal().iter().all(|request| request.path() != "/elsewhere"), "redirects are not followed");
}

#[tokio::test]
async fn a_success_is_known_by_its_status_alone() {
    let it = World::start().await;
    let successes = [
        Answer::status(200).into(),
        Answer::status(204).into(),
        Answer::status(299).body("x".repeat(200 * 1024)).into(),
        Answer::raw_then_close("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\ncut short"),
        Answer::raw("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nnever ends"),
        Answer::raw("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        Answer::status(200).drip(ms(1)),
    ];
    for (n, answer) in successes.iter().enumerate() {
        let path = format!("/{n}");
        it.webhook_with(&format!("q{n}"), &path, json!({"timeout": "1s"})).await;
        it.receiver.on(&path, answer.clone());
        it.schedule(&format!("q{n}"), json!({"id": "t", "payload": n, "retry": {"max_attempts": 1}})).await;
    }
    for n in 0..successes.len() {
        it.in_state(&format!("q{n}"), "t", "completed").await;
    }
    assert_eq!(it.receiver.count(), successes.len());
}

#[tokio::test]
async fn a_receiver_can_refuse_for_good() {
    let it = World::start().await;
    it.webhook_with("refused", "/refused", json!({})).await;
    it.receiver.on("/refused", Answer::status(422).header("duepost-retry", "false"));
    it.webhook_with("gone", "/gone", json!({"id": "main"})).await;
    it.receiver.on("/gone", Answer::status(410));

    for queue in ["refused", "gone"] {
        it.schedule(queue, json!({"id": "t", "payload": 1, "retry": twice()})).await;
        it.in_state(queue, "t", "dead").await;
        let task = it.task(queue, "t").await;
        assert_eq!((&task["reason"], &task["attempt"]), (&json!(queue), &json!(1)));
        assert_balanced(&it.stats(queue).await);
    }

    let webhook = it.api.get("/queues/gone/webhooks/main").await.expect(200).json();
    assert_eq!((&webhook["enabled"], &webhook["disabled_reason"]), (&json!(false), &json!("gone")));
    // Without an enabled webhook a due task waits; enabled again, it gets it.
    it.schedule("gone", json!({"id": "waits", "payload": 2})).await;
    it.sentinel_elsewhere().await;
    assert_eq!(it.task("gone", "waits").await["attempt"], 0);
    it.receiver.forget_rules();
    it.api.patch("/queues/gone/webhooks/main", json!({"enabled": true})).await.expect(200);
    it.in_state("gone", "waits", "completed").await;
    assert_eq!(it.receiver.of_task("t").len(), 2, "one each");
}

impl World {
    /// A task of a queue of its own, scheduled now, has arrived: others that could have been taken would have been too.
    async fn sentinel_elsewhere(&self) {
        self.webhook("elsewhere", "/sentinel").await;
        self.sentinel("elsewhere", "sentinel").await;
    }
}

#[tokio::test]
async fn every_enabled_webhook_gets_the_task_and_only_failed_ones_again() {
    let it = World::start().await;
    for id in ["main", "audit", "off"] {
        it.webhook_with("q", &format!("/{id}"), json!({"id": id, "enabled": id != "off"})).await;
    }
    let failed = Answer::status(500).into();
    it.receiver.on_in_turn("/audit", vec![failed, Answer::status(200).into()]);
    let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "500ms", "jitter": 0}});
    it.schedule("q", json!({"id": "t", "payload": 1, "retry": retry})).await;

    eventually(secs(5), async || {
        it.task("q", "t").await["webhooks"] == json!({"main": "delivered", "audit": "waiting"})
    })
    .await;
    it.in_state("q", "t", "completed").await;

    let mut paths: Vec<_> = it.receiver.journal().iter().map(|r| (r.path().to_owned(), r.attempt())).collect();
    paths.sort();
    assert_eq!(paths, [("/audit".to_owned(), 1), ("/audit".to_owned(), 2), ("/main".to_owned(), 1)]);
    let stats = it.stats("q").await;
    assert_eq!((figure(&stats, "delivered_total"), figure(&stats, "failed_attempts_total")), (1, 1));
    it.at_rest("q").await;
}

#[tokio::test]
async fn a_slow_receiver_does_not_hold_up_another_queue() {
    let it = World::start().await;
    it.webhook_with("slow", "/slow", json!({"max_in_flight": 2, "timeout": "20s"})).await;
    it.receiver.on("/slow", Answer::hang());
    it.webhook("quick", "/quick").await;
    for n in 0..200 {
        it.schedule("slow", json!({"id": format!("s{n}"), "payload": n})).await;
    }
    it.receiver.wait_for(2, secs(5)).await;

    it.schedule("quick", json!({"id": "t", "payload": 1})).await;

    let _ = tokio::time::timeout(secs(1), it.receiver.wait_for_task("t", secs(5))).await.expect("within a second");
    assert_eq!(it.receiver.count(), 3, "no more than its slots");
}
