//! Claims that wait: they wake in time, cost nothing meanwhile, are served in turn, and end with their client.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    Client, World, eventually, ms, now_ms, parse_ms, secs, size, wait::sleep_until_ms, world::figure,
};

fn waiting(api: Client, queue: &'static str, body: Value) -> tokio::task::JoinHandle<(i64, Vec<Value>)> {
    tokio::spawn(async move {
        let answer = api.post(&format!("/queues/{queue}/claim"), body).await.expect(200).json();
        (now_ms(), answer["tasks"].as_array().expect("tasks").clone())
    })
}

/// A claim on a connection of its own, which the test can cut.
async fn raw_claim(it: &World, queue: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(it.service.address()).await.expect("the service listens");
    let head = format!(
        "POST /queues/{queue}/claim HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("the service reads");
    stream
}

#[tokio::test]
async fn a_waiting_claim_wakes_when_its_task_is_due() {
    let it = World::start().await;
    let mut late = Vec::new();
    for n in 0..100 {
        let task = it.schedule("q", json!({"id": format!("t{n}"), "payload": n, "delay": "60ms"})).await;
        let (woke, tasks) = waiting(it.service.client(), "q", json!({"wait": "10s"})).await.expect("an answer");
        assert_eq!(tasks.len(), 1);
        assert!(woke >= parse_ms(task["run_at"].as_str().expect("an instant")), "not early");
        late.push(woke - parse_ms(task["run_at"].as_str().expect("an instant")));
    }
    late.sort_unstable();
    println!("late by p50 {} ms, p99 {} ms", late[50], late[98]);
    assert!(late[50] <= size(500, 50), "{late:?}");
}

#[tokio::test]
async fn a_waiting_claim_costs_redis_nothing() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "later", "payload": 1, "delay": "1h"})).await;
    tokio::time::sleep(ms(500)).await;
    let before = it.redis.calls_during(secs(3)).await;
    let waiters: Vec<_> = (0..50).map(|_| waiting(it.service.client(), "q", json!({"wait": "6s"}))).collect();
    tokio::time::sleep(ms(1000)).await;
    let during = it.redis.calls_during(secs(3)).await;
    println!("{before} calls in 3 s without waiters, {during} with 50");
    assert!(during <= before + 3, "{before} calls before, {during} during");
    for waiter in waiters {
        assert!(waiter.await.expect("an answer").1.is_empty());
    }
}

/// Visits that the service has made.
async fn looks(it: &World) -> u64 {
    let text = it.api.get("/metrics").await.expect(200).text().to_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(r#"duepost_redis_call_seconds_count{call="visit"} "#));
    line.map_or(0, |number| number.parse().expect("a count"))
}

#[tokio::test]
async fn waiting_claims_are_served_in_turn() {
    let it = World::start().await;
    let mut waiters = Vec::new();
    for came in 1..=50 {
        waiters.push(waiting(it.service.client(), "q", json!({"wait": "30s"})));
        eventually(secs(10), async || looks(&it).await >= came).await; // it stands in line: a look was made for it
    }
    for n in 0..50 {
        it.schedule("q", json!({"id": format!("t{n:02}"), "payload": n})).await;
    }
    let mut got = Vec::new();
    for waiter in waiters {
        let (_, tasks) = waiter.await.expect("an answer");
        assert_eq!(tasks.len(), 1);
        got.push(tasks[0]["id"].as_str().expect("id").to_owned());
    }
    assert_eq!(got, (0..50).map(|n| format!("t{n:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_wait_ends_empty_in_time_whatever_becomes_of_the_task() {
    let it = World::start().await;
    for (id, more) in [("cancelled", json!({})), ("expired", json!({"expires_after": "700ms"}))] {
        let mut task = json!({"id": id, "payload": 1, "delay": "600ms"});
        task.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        it.schedule("q", task).await;
    }
    it.api.post("/queues/q/claim", "{}").await.expect(200);
    let from = Instant::now();
    let waiter = waiting(it.service.client(), "none", json!({"wait": "1s"}));
    it.api.delete("/queues/q/tasks/cancelled").await.expect(200);
    assert!(waiter.await.expect("an answer").1.is_empty());
    assert!((ms(990)..secs(4)).contains(&from.elapsed()), "{:?}", from.elapsed());
    it.in_state("q", "expired", "expired").await;
    assert!(waiting(it.service.client(), "q", json!({"wait": "1s"})).await.expect("an answer").1.is_empty());
}

#[tokio::test]
async fn a_waiting_claim_survives_a_restart_of_redis() {
    let mut it = World::start().await;
    let soon = waiting(it.service.client(), "none", json!({"wait": "3s"}));
    let waiter = waiting(it.service.client(), "q", json!({"wait": "25s"}));
    tokio::time::sleep(ms(300)).await;
    it.redis.restart().await;
    assert!(soon.await.expect("an answer").1.is_empty());
    crate::support::until(secs(10), async || {
        let body = Some(json!({"id": "t", "payload": 1}).into());
        it.api.try_call(axum::http::Method::POST, "/queues/q/tasks", body).await.ok().filter(|a| a.status < 300)
    })
    .await;
    let (_, tasks) = waiter.await.expect("an answer");
    assert_eq!(tasks[0]["id"], "t");

    it.redis.kill9();
    let from = Instant::now();
    let answer = it.api.post("/queues/q/claim", json!({"wait": "1s"})).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(from.elapsed() < secs(10));
}

#[tokio::test]
async fn a_stop_ends_waiting_claims_at_once() {
    let mut it = World::start().await;
    let waiters: Vec<_> = (0..20).map(|_| waiting(it.service.client(), "q", json!({"wait": "50s"}))).collect();
    tokio::time::sleep(ms(300)).await;
    let from = Instant::now();
    it.service.sigterm();
    for waiter in waiters {
        assert!(waiter.await.expect("an answer").1.is_empty());
    }
    assert!(from.elapsed() < secs(3), "{:?}", from.elapsed());
    assert!(it.service.wait_exit(secs(10)).await.success());
}

/// Resident memory in KiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("a figure");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}

#[tokio::test]
async fn clients_that_go_away_leave_nothing_behind() {
    let it = World::start().await;
    let mut grown = Vec::new();
    for _ in 0..4 {
        let mut streams = Vec::new();
        for _ in 0..125 {
            streams.push(raw_claim(&it, "q", &json!({"wait": "60s"})).await);
        }
        tokio::time::sleep(ms(300)).await;
        drop(streams);
        tokio::time::sleep(ms(300)).await;
        grown.push(memory(it.service.pid()));
    }
    println!("KiB after each 125 clients that went away: {grown:?}");
    assert!(grown[3] < grown[0] + 8 * 1024, "{grown:?}");

    // none of them is served any more: the task goes to the one that is there
    it.schedule("q", json!({"id": "t", "payload": 1})).await;
    let (_, tasks) = waiting(it.service.client(), "q", json!({"wait": "10s"})).await.expect("an answer");
    assert_eq!((&tasks[0]["id"], &tasks[0]["attempt"]), (&json!("t"), &json!(1)));
    assert_eq!(figure(&it.stats("q").await, "failed_attempts_total"), 0);
}

#[tokio::test]
async fn a_client_that_goes_as_its_task_comes_due_loses_nothing() {
    let it = World::start().await;
    for n in 0..16_u64 {
        let id = format!("t{n}");
        let task = it.schedule("q", json!({"id": id, "payload": "x".repeat(100_000), "delay": "50ms"})).await;
        let due = parse_ms(task["run_at"].as_str().expect("an instant"));
        let mut stream = raw_claim(&it, "q", &json!({"wait": "20s", "lease": "2s"})).await;
        sleep_until_ms(due + i64::try_from(n % 4).expect("fits") - 1).await;
        let mut first = [0];
        let began = tokio::time::timeout(Duration::from_micros(n * 50), stream.read(&mut first)).await;
        drop(stream);
        // given back at once as it was, or after the end of the lease as a lost attempt
        let answered = matches!(began, Ok(Ok(1)));
        let task = it.claim_id(&id).await;
        let attempt = task["attempt"].as_u64().expect("a number");
        assert!(attempt == 1 || attempt == 2, "{task}");
        assert!(!answered || attempt == 2, "an answer that came was a claim");
    }
}

impl World {
    async fn claim_id(&self, id: &str) -> Value {
        let (_, mut tasks) =
            waiting(self.service.client(), "q", json!({"wait": "20s", "lease": "10m"})).await.expect("an answer");
        assert_eq!(tasks[0]["id"], id);
        let task = tasks.remove(0);
        let ack = json!({"token": task["lease"]["token"]});
        self.api.post(&format!("/queues/q/tasks/{id}/ack"), ack).await.expect(200);
        eventually(secs(5), async || figure(&self.stats("q").await, "active") == 0).await;
        task
    }
}
