//! Real cases, group D: cancel against everything that moves.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Gate, World,
    client::encoded,
    now_ms, secs,
    wait::{format_ms, sleep_until_ms},
    world::{assert_balanced, figure},
};

fn retry_after(delay: &str, max_attempts: u32) -> Value {
    json!({"max_attempts": max_attempts, "backoff": {"kind": "fixed", "delay": delay, "jitter": 0}})
}

#[tokio::test]
async fn c054_cancel_reaches_a_task_in_every_set() {
    let it = World::start().await;
    it.webhook_with("q", "/hook", json!({"max_in_flight": 1})).await;
    let gate = Gate::new();
    it.receiver.when(|request| ["c", "d"].contains(&request.task()), Answer::status(500));
    it.receiver.when(|request| request.task() == "a", Answer::status(200).held_by(&gate));
    it.schedule("q", json!({"id": "c", "payload": 1, "retry": retry_after("1h", 5)})).await;
    it.receiver.wait_for_task("c", secs(5)).await;
    it.in_state("q", "c", "scheduled").await;
    it.schedule("q", json!({"id": "d", "payload": 1, "retry": {"max_attempts": 1}})).await;
    it.in_state("q", "d", "dead").await;
    // The only slot is taken: B is due, and nobody can have claimed it.
    it.schedule("q", json!({"id": "a", "payload": 1})).await;
    it.receiver.wait_for_task("a", secs(5)).await;
    it.schedule("q", json!({"id": "b", "payload": 1})).await;
    assert_eq!(figure(&it.stats("q").await, "due"), 1);

    for id in ["b", "c", "d"] {
        let task = it.api.delete(&format!("/queues/q/tasks/{id}")).await.expect(200).json();
        assert_eq!((&task["state"], &task["cancelling"]), (&json!("cancelled"), &json!(false)), "{id}");
        it.api.delete(&format!("/queues/q/tasks/{id}")).await.expect(200);
    }

    gate.open();
    it.in_state("q", "a", "completed").await;
    it.sentinel("q", "sentinel").await;
    let mut came: Vec<String> = it.receiver.journal().iter().map(|request| request.task().to_owned()).collect();
    came.sort_unstable();
    assert_eq!(came, ["a", "c", "d", "sentinel"]);
    let stats = it.stats("q").await;
    // D was dead: its life was counted when it died.
    let totals = ["delivered_total", "dead_total", "cancelled_total", "cancelled", "dead"].map(|f| figure(&stats, f));
    assert_eq!(totals, [2, 1, 2, 3, 0], "{stats}");
    it.at_rest("q").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c055_a_cancel_at_the_due_instant_is_either_or() {
    const TASKS: usize = 1000;
    const CLIENTS: usize = 20;
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let due = now_ms() + 6000;
    let schedule = async |n: usize| {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n, "run_at": format_ms(due)})).await;
    };
    for chunk in (0..TASKS).collect::<Vec<_>>().chunks(50) {
        join_all(chunk.iter().map(|&n| schedule(n))).await;
    }
    assert!(now_ms() < due - 200, "this machine is too slow for the case: the tasks were not in before their time");

    // Each client spreads its cancels from 100 ms before the instant to 100 ms after it.
    let client = async |c: usize| {
        let mine: Vec<usize> = (c..TASKS).step_by(CLIENTS).collect();
        let mut answers = Vec::new();
        for (step, n) in mine.iter().enumerate() {
            sleep_until_ms(due - 100 + (200 * step / mine.len()) as i64).await;
            let answer = it.api.delete(&format!("/queues/q/tasks/t{n}")).await;
            answers.push((*n, answer.status));
        }
        answers
    };
    let answers: Vec<(usize, u16)> = join_all((0..CLIENTS).map(client)).await.into_iter().flatten().collect();

    it.sentinel("q", "sentinel").await;
    it.at_rest("q").await;
    for &(n, status) in &answers {
        let arrived = it.receiver.of_task(&format!("t{n}")).len();
        match status {
            200 => assert_eq!(arrived, 0, "t{n} was cancelled"),
            202 | 409 => assert_eq!(arrived, 1, "t{n} was under way or delivered ({status})"),
            _ => panic!("t{n}: {status}"),
        }
    }
    let cancelled = answers.iter().filter(|(_, status)| *status == 200).count() as i64;
    let stats = it.stats("q").await;
    assert_eq!(figure(&stats, "cancelled_total"), cancelled, "{stats}");
    assert_eq!(figure(&stats, "delivered_total"), TASKS as i64 + 1 - cancelled, "{stats}");
    println!("cancelled {cancelled} of {TASKS} around their instant");
}

#[tokio::test]
async fn c057_a_cancel_under_way_ends_the_task_after_the_attempt() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let (fails, succeeds) = (Gate::new(), Gate::new());
    it.receiver.when(|request| request.task() == "fails", Answer::status(500).held_by(&fails));
    it.receiver.when(|request| request.task() == "succeeds", Answer::status(200).held_by(&succeeds));
    for id in ["fails", "succeeds"] {
        it.schedule("q", json!({"id": id, "payload": 1, "retry": retry_after("10ms", 5)})).await;
        it.receiver.wait_for_task(id, secs(5)).await;

        for _ in 0..2 {
            let task = it.api.delete(&format!("/queues/q/tasks/{id}")).await.expect(202).json();
            assert_eq!((&task["state"], &task["cancelling"]), (&json!("active"), &json!(true)));
        }
        // The id is not free yet.
        it.api.post("/queues/q/tasks", json!({"id": id, "payload": 2})).await.problem(409, "task-active");
    }

    fails.open();
    succeeds.open();

    it.in_state("q", "fails", "cancelled").await;
    it.in_state("q", "succeeds", "completed").await;
    let problem = it.api.delete("/queues/q/tasks/succeeds").await.problem(409, "task-finished");
    assert_eq!(problem["state"], "completed");
    it.sentinel("q", "sentinel").await;
    assert_eq!(it.receiver.count(), 3);
    let stats = it.stats("q").await;
    let totals = ["delivered_total", "cancelled_total", "failed_attempts_total"].map(|f| figure(&stats, f));
    assert_eq!(totals, [2, 1, 1], "{stats}");
    it.at_rest("q").await;
}

#[tokio::test]
async fn c059_every_dead_task_that_is_listed_can_be_removed() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(404).header("duepost-retry", "false"));
    for n in 0..30 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
    }
    it.receiver.wait_for(30, secs(10)).await;
    for n in 0..30 {
        it.in_state("q", &format!("t{n}"), "dead").await;
    }

    let mut removed = 0;
    let mut path = "/queues/q/tasks?state=dead&limit=7".to_owned();
    loop {
        let page = it.api.get(&path).await.expect(200).json();
        for task in page["items"].as_array().expect("items") {
            assert_eq!((&task["state"], &task["reason"]), (&json!("dead"), &json!("refused")));
            let id = task["id"].as_str().expect("id");
            it.api.delete(&format!("/queues/q/tasks/{id}")).await.expect(200);
            removed += 1;
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/queues/q/tasks?state=dead&limit=7&cursor={}", encoded(cursor, true)),
            None => break,
        }
    }

    assert_eq!(removed, 30);
    let dead = it.api.get("/queues/q/tasks?state=dead").await.expect(200).json();
    assert_eq!((&dead["items"], &dead["next_cursor"]), (&json!([]), &Value::Null));
    it.api.delete("/queues/q/tasks/never").await.problem(404, "task-not-found");
    it.api.delete("/queues/nowhere/tasks/never").await.problem(404, "queue-not-found");
    let stats = it.stats("q").await;
    assert_eq!((figure(&stats, "dead"), figure(&stats, "dead_total"), figure(&stats, "cancelled")), (0, 30, 30));
    assert_balanced(&stats);
}
