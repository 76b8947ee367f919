//! F16: writes that Redis lost again are noticed within two seconds, told with their number, and nothing stops.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{World, eventually, secs, until};

/// What is promised, and a busy machine.
const NOTICED: Duration = secs(4);

async fn rolled_back(it: &World) -> u64 {
    let text = it.api.get("/metrics").await.expect(200).text();
    let line = text.lines().find_map(|l| l.strip_prefix("duepost_rolled_back_total ").map(str::to_owned));
    line.expect("the figure is there").parse().expect("a number")
}

/// Waits until so many lost tasks are told of in all, by metric, `/readyz` and log, then that work goes on.
async fn is_told(it: &World, lost: u64, id: &str) {
    let began = Instant::now();
    until(NOTICED, async || (rolled_back(it).await == lost).then_some(())).await;
    println!("noticed after {:?}", began.elapsed());
    let ready = it.api.get("/readyz").await.expect(200).json();
    assert!(ready["warnings"].to_string().contains(&format!("lost {lost} accepted tasks")), "{ready}");
    eventually(secs(5), async || it.service.stderr().contains("lost writes that it had acknowledged")).await;

    it.webhook("new", &format!("/{id}")).await;
    it.schedule("new", json!({"id": id, "payload": 1})).await;
    it.receiver.wait_for_task(id, secs(10)).await;
    it.in_state("new", id, "completed").await;
}

#[tokio::test]
async fn f16_flushall_is_noticed() {
    let it = World::start().await;
    for n in 0..7 {
        it.schedule("orders", json!({"id": format!("t{n}"), "payload": n, "delay": "1h"})).await;
    }
    for n in 0..3 {
        it.schedule("other", json!({"id": format!("t{n}"), "payload": n, "delay": "1h"})).await;
    }
    assert_eq!(rolled_back(&it).await, 0);

    it.redis.command::<()>(&["FLUSHALL"]).await;
    is_told(&it, 10, "after").await;
    assert_eq!(rolled_back(&it).await, 10, "told once");
}

#[tokio::test]
async fn f16_tasks_taken_right_after_a_flush_do_not_hide_it() {
    let it = World::start().await;
    for n in 0..3 {
        it.schedule("orders", json!({"id": format!("t{n}"), "payload": n, "delay": "1h"})).await;
    }
    it.redis.command::<()>(&["FLUSHALL"]).await;
    for n in 0..5 {
        it.schedule("orders", json!({"id": format!("u{n}"), "payload": n, "delay": "1h"})).await;
    }
    // the first of them answered a count of 1 where 3 was known
    until(NOTICED, async || (rolled_back(&it).await > 0).then_some(())).await;
}

#[tokio::test]
async fn f16_an_old_backup_is_noticed() {
    let mut it = World::start().await;
    it.schedule("orders", json!({"id": "kept", "payload": 1, "delay": "1h"})).await;
    it.redis.shutdown().await;
    let backup = it.redis.copy_data();
    it.redis.restart().await;
    for n in 0..4 {
        let task = json!({"id": format!("t{n}"), "payload": n, "delay": "1h"});
        until(secs(10), async || {
            let answer = it.api.post("/queues/orders/tasks", task.clone()).await;
            [200, 201].contains(&answer.status).then_some(())
        })
        .await;
    }
    it.redis.kill9();
    it.redis.restore(&backup);
    it.redis.restart().await;
    is_told(&it, 4, "after").await;
    assert_eq!(it.task("orders", "kept").await["state"], "scheduled");
    it.api.get("/queues/orders/tasks/t0").await.problem(404, "task-not-found");
}
