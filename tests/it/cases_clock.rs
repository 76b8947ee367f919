//! Real cases, group A: clocks that are moved, time zones, and processes that stand still.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Gate, Receiver, RedisServer, Service, eventually, ms, now_ms, parse_ms, secs, size,
    vitals::cpu,
    wait::{format_ms, sleep_until_ms},
    wall::WallClock,
    world::{TOLERANCE_MS, at_rest, figure},
};

const HOUR_MS: i64 = 3_600_000;
const LEASE_S: u64 = 3;
/// Late, but not by the hour that these tests are about.
const LATE_MS: i64 = 3 * TOLERANCE_MS;

async fn register(api: &Client, receiver: &Receiver) {
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
}

async fn given(api: &Client, id: &str, delay: &str) -> Value {
    api.post("/queues/q/tasks", json!({"id": id, "payload": 1, "delay": delay})).await.expect(201).json()
}

async fn redis_time(redis: &RedisServer) -> i64 {
    let (s, us): (i64, i64) = redis.command(&["TIME"]).await;
    s * 1000 + us / 1000
}

#[tokio::test]
async fn the_clock_of_a_redis_can_be_moved() {
    let clock = WallClock::new();
    let redis = RedisServer::start_by(&clock).await;
    for offset in [0, HOUR_MS, -HOUR_MS, -1, 86_400_500] {
        clock.shift_to(offset);
        let off = redis_time(&redis).await - now_ms() - offset;
        assert!(off.abs() < TOLERANCE_MS, "{off} ms off after a shift by {offset}");
    }
}

/// Steps the clock of the service, and that of Redis if both are on one machine, while a task waits.
async fn step(with_redis: bool, by_ms: i64) {
    let what = format!("with Redis: {with_redis}, by {by_ms} ms");
    let clock = WallClock::new();
    let redis = if with_redis { RedisServer::start_by(&clock).await } else { RedisServer::start().await };
    let service = Service::builder(&redis).by(&clock).start().await;
    let (api, receiver) = (service.client(), Receiver::start().await);
    register(&api, &receiver).await;
    let began = now_ms();
    given(&api, "before", "3s").await;
    tokio::time::sleep(ms(500)).await;

    clock.shift_to(by_ms);
    // a jump of Redis's clock is followed with the next answer that this process's wall clock agrees with
    eventually(secs(5), async || {
        let probe = api.post("/queues/probe/tasks", json!({"payload": 1, "delay": "1h"})).await.expect(201).json();
        let shown = parse_ms(probe["created_at"].as_str().expect("an instant"));
        (shown - now_ms() - if with_redis { by_ms } else { 0 }).abs() < LATE_MS
    })
    .await;
    let posted = now_ms();
    given(&api, "after", "1s").await;
    let late = receiver.wait_for_task("after", secs(20)).await.at_ms - posted - 1000;
    assert!((0..LATE_MS).contains(&late), "{what}: {late} ms late");

    let used = cpu(service.pid());
    if !with_redis {
        let late = receiver.wait_for_task("before", secs(20)).await.at_ms - began - 3000;
        assert!((0..LATE_MS).contains(&late), "{what}: {late} ms late");
    } else if by_ms > 0 {
        receiver.wait_for_task("before", secs(20)).await;
    } else {
        sleep_until_ms(began + 3500).await;
        assert!(receiver.of_task("before").is_empty(), "{what}: due in an hour, by the clock of Redis");
        clock.shift_to(0);
        receiver.wait_for_task("before", secs(20)).await;
    }
    tokio::time::sleep(ms(1000)).await;
    let used = cpu(service.pid()) - used;
    assert!(used < secs(1), "{what}: {used:?} of a core in a few seconds of nothing");
    let stats = at_rest(&redis, &api, "q").await;
    assert_eq!((figure(&stats, "delivered_total"), receiver.count()), (2, 2), "{what}: once each");
}

#[tokio::test]
async fn c012_a_step_of_the_clock_loses_nothing_and_starts_no_long_sleep() {
    let steps = [(false, HOUR_MS), (false, -HOUR_MS), (true, HOUR_MS), (true, -HOUR_MS)];
    futures_util::future::join_all(steps.map(|(with_redis, by)| step(with_redis, by))).await;
}

/// 2031-03-09 and 2031-11-02: when clocks in New York go forward, and when they go back.
const SWITCHES: [&str; 2] = ["2031-03-09T07:00:00Z", "2031-11-02T06:00:00Z"];
/// As a rule, so that the machine needs no table of zones.
const NEW_YORK: &str = "EST5EDT,M3.2.0,M11.1.0";

#[tokio::test]
async fn c017_a_switch_of_daylight_saving_moves_no_task() {
    let around = SWITCHES.map(async |switch| {
        let (clock, switch) = (WallClock::new(), parse_ms(switch));
        let offset = switch - 2_500 - now_ms();
        clock.shift_to(offset);
        let redis = RedisServer::start_by(&clock).await;
        let service = Service::builder(&redis).by(&clock).env("TZ", NEW_YORK).start().await;
        let (api, receiver) = (service.client(), Receiver::start().await);
        register(&api, &receiver).await;
        let shown = redis_time(&redis).await;
        assert!((0..10_000).contains(&(shown - switch + 3_000)), "the clock of Redis is near the switch: {shown}");

        let due = [-500, 1, 1_500].map(|after| switch + after);
        for (n, due) in due.iter().enumerate() {
            let task = json!({"id": format!("t{n}"), "payload": n, "run_at": format_ms(*due)});
            let answer = api.post("/queues/q/tasks", task).await.expect(201).json();
            assert_eq!(answer["run_at"], format_ms(*due));
        }
        let by_offset = json!({"id": "t3", "payload": 3, "run_at": local(switch + 1_000, "-04:00")});
        api.post("/queues/q/tasks", by_offset).await.expect(201);
        for without_offset in ["2031-03-09T02:30:00", "2031-11-02T01:30:00", "2031-03-09T03:00:00[America/New_York]"] {
            api.post("/queues/q/tasks", json!({"payload": 1, "run_at": without_offset})).await.refuses("run_at");
        }

        let posted = now_ms() + offset; // a slow start makes nothing late
        let due = [due[0], due[1], due[2], switch + 1_000];
        for (n, due) in due.into_iter().enumerate() {
            let came = receiver.wait_for_task(&format!("t{n}"), secs(15)).await.at_ms + offset;
            let late = came - due.max(posted);
            assert!(came >= due && late < LATE_MS, "task {n} came {} ms after its instant", came - due);
        }
        at_rest(&redis, &api, "q").await;
        assert_eq!(receiver.count(), 4, "once each");
    });
    futures_util::future::join_all(around).await;
}

/// The instant as a clock with that offset (-04:00) shows it.
fn local(instant: i64, offset: &str) -> String {
    format_ms(instant - 4 * HOUR_MS).replace('Z', offset)
}

#[tokio::test]
async fn c021_a_process_that_stood_still_makes_up_for_nothing() {
    let redis = RedisServer::start().await;
    let service = Service::serve(&redis).await;
    let (api, receiver) = (service.client(), Receiver::start().await);
    register(&api, &receiver).await;
    let idle = redis.calls_during(secs(2)).await;
    for n in 0..5 {
        given(&api, &format!("t{n}"), "1s").await;
    }

    service.signal(Signal::STOP);
    tokio::time::sleep(size(secs(8), secs(60))).await;
    assert_eq!(receiver.count(), 0);
    let (calls, ()) = tokio::join!(redis.calls_during(secs(2)), async {
        tokio::time::sleep(ms(100)).await;
        service.signal(Signal::CONT);
    });

    println!("{idle} calls in two idle seconds, {calls} in the two after it went on, with 5 tasks due");
    assert!(calls <= idle + 10, "{calls} calls, {idle} when idle: missed rounds are made up for");
    let stats = at_rest(&redis, &api, "q").await;
    assert_eq!((figure(&stats, "delivered_total"), receiver.count()), (5, 5), "once each");
}

#[tokio::test]
async fn c021_who_comes_back_late_finds_its_leases_taken() {
    let lease = format!("{LEASE_S}s");
    let redis = RedisServer::start().await;
    let stands = Service::builder(&redis).flag("--lease", &lease).start().await;
    let (api, receiver, gate) = (stands.client(), Receiver::start().await, Gate::new());
    register(&api, &receiver).await;
    receiver.when(|r| r.attempt() == 1, Answer::status(500).held_by(&gate));
    let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "1h"}});
    for n in 0..5 {
        let task = json!({"id": format!("t{n}"), "payload": n, "retry": retry});
        api.post("/queues/q/tasks", task).await.expect(201);
    }
    receiver.wait_for(5, secs(10)).await;

    stands.signal(Signal::STOP);
    let goes_on = Service::builder(&redis).flag("--lease", &lease).start().await;
    receiver.wait_for(10, secs(20)).await;
    let api = goes_on.client();
    eventually(secs(10), async || figure(&api.get("/queues/q/stats").await.expect(200).json(), "delivered_total") == 5)
        .await;
    gate.open();
    stands.signal(Signal::CONT);
    // it has read its 500s and said so once it is idle again
    eventually(secs(10), async || receiver.connections().1 == 0).await;

    let stats = at_rest(&redis, &api, "q").await;
    let figures = ["delivered_total", "failed_attempts_total", "dead_total"].map(|name| figure(&stats, name));
    assert_eq!(figures, [5, 0, 0], "late failures have no effect: {stats}");
    assert_eq!(receiver.count(), 10);
    for n in 0..5 {
        let attempts: Vec<u32> = receiver.of_task(&format!("t{n}")).iter().map(|r| r.attempt()).collect();
        assert_eq!(attempts, [1, 2]);
    }
}
