//! F15: a jump of Redis's clock makes nothing early, wakes nobody again and again, and is told. Redis runs on a wall clock
//! that the test moves; this process keeps the machine's.

use std::time::Duration;

use duepost::domain::{
    task::{NewTask, Task, TaskState, When},
    time::UnixMs,
};
use serde_json::json;

use crate::support::{
    RedisServer, Service, eventually, inside::Inside, ms, now_ms, receiver::Receiver, secs, wait::until,
    wall::WallClock,
};

const HOUR: i64 = 3_600_000;
/// What an idle service may ask of Redis in a second, and a visit a second to each of the few queues.
const FEW_CALLS: usize = 20;

async fn with_clock() -> (WallClock, Inside) {
    let clock = WallClock::new();
    let it = Inside::on(RedisServer::start_by(&clock).await).await;
    it.webhook("main").await;
    (clock, it)
}

fn after(it: &Inside, id: &str, delay: Duration) -> NewTask {
    NewTask { when: When::After(delay), ..it.new_task(id) }
}

/// Waits until a process that looks at Redis sees its clock as it now is.
async fn braked(it: &Inside, is: bool) {
    eventually(secs(10), async || {
        it.store.agenda().await.unwrap();
        it.store.clock().ahead_ms().is_some() == is
    })
    .await;
}

#[tokio::test]
async fn f15_a_clock_that_jumps_ahead_makes_nothing_early() {
    let (clock, it) = with_clock().await;
    let expires = Some(When::After(secs(1800)));
    it.given(NewTask { expires, ..after(&it, "far", secs(1200)) }).await;
    let near = it.given(after(&it, "near", secs(4))).await;
    let worker = it.worker();

    clock.shift_to(HOUR);
    braked(&it, true).await;
    let told = it.store.clock().ahead_ms().unwrap();
    assert!((HOUR - 2000..HOUR + 2000).contains(&told), "{told} ms ahead");

    // what is due by the time that is trusted goes out, old and new
    it.receiver.wait_for_task("near", secs(20)).await;
    let early = near.run_at.0 - now_ms();
    assert!(early <= 2000, "{early} ms early");
    it.given_due("new").await;
    it.receiver.wait_for_task("new", secs(20)).await;
    it.in_state("new", TaskState::Completed).await;
    let calls = it.redis.calls_during(secs(1)).await;
    assert!(calls < FEW_CALLS, "{calls} calls a second while nothing may begin");
    let far = it.task("far").await;
    assert_eq!((far.state, it.receiver.count()), (TaskState::Scheduled, 2), "neither early nor expired");
    assert!(it.store.clock().ahead_ms().is_some(), "the jump stood all the while");

    clock.shift_to(0);
    braked(&it, false).await;
    it.given_due("last").await;
    it.receiver.wait_for_task("last", secs(10)).await;
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn f15_a_delay_given_while_the_clock_is_behind_counts_from_the_time_that_is_trusted() {
    let (clock, it) = with_clock().await;
    let worker = it.worker();
    clock.shift_to(-HOUR);
    braked(&it, true).await;

    let sent = now_ms();
    let task = it.given(after(&it, "delayed", secs(1800))).await;
    let early = sent + 1_800_000 - task.run_at.0;
    assert!((0..=4000).contains(&early), "{early} ms early");
    assert_eq!(task.run_at, task.created_at.plus(secs(1800)));
    let soon = it.given(after(&it, "soon", ms(1500))).await;
    tokio::time::sleep(secs(2)).await; // its time comes, by this process's clock; not by Redis's
    let calls = it.redis.calls_during(secs(1)).await;
    assert!(calls < FEW_CALLS, "{calls} calls a second while Redis says that it is not time");
    assert!(it.store.clock().ahead_ms().is_some_and(|ms| ms < 0));

    clock.shift_to(0);
    braked(&it, false).await;
    it.receiver.wait_for_task("soon", secs(10)).await;
    assert!(now_ms() >= soon.run_at.0);
    assert_eq!(it.task("delayed").await.state, TaskState::Scheduled);
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_clock_that_is_set_right_is_followed() {
    let clock = WallClock::new();
    clock.shift_to(-HOUR);
    let it = Inside::on(RedisServer::start_by(&clock).await).await;
    let trusts = || it.store.clock().now().0 - now_ms();
    assert!((trusts() + HOUR).abs() < 2000, "a fresh process believes Redis: {}", trusts());

    clock.shift_to(0);
    until(secs(10), async || {
        it.store.agenda().await.unwrap();
        (trusts().abs() < 2000).then_some(())
    })
    .await;
    assert_eq!(it.store.clock().ahead_ms(), None, "no alarm: this machine's clock agrees");
}

#[tokio::test]
async fn what_run_makes_due_is_due_by_the_time_that_is_trusted() {
    let (clock, it) = with_clock().await;
    let task: Task = it.given(after(&it, "moved", secs(7200))).await;
    clock.shift_to(HOUR);
    braked(&it, true).await;
    it.store.run(&it.queue, &task.id).await.unwrap();
    let due = it.task("moved").await.score;
    assert!(due <= UnixMs(now_ms() + 4000), "due in {} ms", due.0 - now_ms());
    let worker = it.worker();
    it.receiver.wait_for_task("moved", secs(20)).await;
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_jump_is_told_by_log_metric_and_readiness() {
    let clock = WallClock::new();
    let redis = RedisServer::start_by(&clock).await;
    let service = Service::serve(&redis).await;
    let (api, _receiver) = (service.client(), Receiver::start().await);
    let figure = async || {
        let text = api.get("/metrics").await.expect(200).text();
        let line = text.lines().find_map(|l| l.strip_prefix("duepost_redis_clock_ahead_seconds ").map(str::to_owned));
        line.expect("the figure is there").parse::<f64>().expect("a number")
    };
    assert!(figure().await.abs() < f64::EPSILON);

    clock.shift_to(HOUR);
    eventually(secs(10), async || figure().await > 3590.0).await;
    let ready = api.get("/readyz").await.expect(200).json();
    let warnings = ready["warnings"].to_string();
    assert!(warnings.contains("ahead of what is trusted"), "{ready}");
    api.post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await.expect(201);
    eventually(secs(10), async || service.stderr().contains("ALARM")).await;
    assert_eq!(service.stderr().matches("ALARM").count(), 1, "said once:\n{}", service.stderr());

    clock.shift_to(0);
    eventually(secs(10), async || figure().await.abs() < f64::EPSILON).await;
    assert_eq!(api.get("/readyz").await.expect(200).json()["warnings"], json!([]));
}
