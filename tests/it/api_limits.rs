//! `max_in_flight` and `rate` over two replicas, what a queue at its limit costs, and its neighbours.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    Answer, Gate, Service, World, eventually, ms, now_ms, secs,
    world::{assert_balanced, figure},
};

impl World {
    /// Schedules so many tasks that are due at once, by batches.
    async fn flood(&self, queue: &str, tasks: usize) {
        for chunk in (0..tasks).collect::<Vec<_>>().chunks(1000) {
            let tasks: Vec<Value> = chunk.iter().map(|n| json!({"id": format!("{queue}{n}"), "payload": n})).collect();
            self.api.post(&format!("/queues/{queue}/batch"), json!({"tasks": tasks})).await.expect(200);
        }
    }
}

/// Each answer takes `hold` at the receiver, so no more than three can arrive within any such span.
async fn never_more_than_three(tasks: usize) {
    let hold = ms(10);
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.api.put("/queues/q", json!({"max_in_flight": 3})).await.expect(200);
    it.receiver.on("/hook", Answer::status(200).after(hold));
    let second = Service::serve(&it.redis).await;
    let began = now_ms();
    it.flood("q", tasks).await;
    let came = it.receiver.wait_for(tasks, secs(30) + ms(20) * u32::try_from(tasks).unwrap()).await;
    let took = now_ms() - began;
    let closest = came.windows(4).map(|four| four[3].at_ms - four[0].at_ms).min().unwrap();
    println!("{tasks} deliveries in {took} ms; the closest four came within {closest} ms");
    assert!(closest >= 9, "four arrived within {closest} ms");
    it.at_rest("q").await;
    assert_eq!(it.receiver.count(), tasks, "each once");
    let by_second = second.client().get("/metrics").await.text();
    assert!(
        by_second.contains(r#"duepost_attempts_total{outcome="delivered",queue="q"}"#)
            || by_second.contains(r#"duepost_attempts_total{queue="q",outcome="delivered"}"#),
        "both took part"
    );
}

#[tokio::test]
async fn max_in_flight_is_exact_over_two_replicas() {
    never_more_than_three(1000).await;
}

#[tokio::test]
#[ignore = "a minute: 10,000 deliveries"]
async fn max_in_flight_is_exact_in_ten_thousand_deliveries() {
    never_more_than_three(10_000).await;
}

/// 100/s with a burst of 10 over `span`. What is exact at Redis arrives with the jitter of this machine.
async fn rate_is_kept(span: Duration, tolerance_ms: i64, jitter_ms: i64) {
    let seconds = usize::try_from(span.as_secs()).unwrap();
    let tasks = 10 + 100 * seconds;
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.api.put("/queues/q", json!({"rate": {"limit": 100, "burst": 10}})).await.expect(200);
    let second = Service::serve(&it.redis).await;
    it.flood("q", tasks).await;
    let came = it.receiver.wait_for(tasks, span * 2 + secs(10)).await;
    let at: Vec<i64> = came.iter().map(|r| r.at_ms).collect();
    let took = at[tasks - 1] - at[0];
    println!("{tasks} deliveries in {took} ms: {:.2}/s", 1000.0 * (tasks - 10) as f64 / took as f64);
    let exact = 1000 * i64::try_from(seconds).unwrap();
    assert!((exact - tolerance_ms..=exact + tolerance_ms).contains(&took), "{took} ms, {exact} would be exact");
    for first in 0..tasks {
        for last in (first + 10..tasks).step_by(7) {
            let count = i64::try_from(last - first).unwrap() + 1;
            let most = 10 + (at[last] - at[first] + jitter_ms) / 10 + 1;
            assert!(count <= most, "{count} in {} ms", at[last] - at[first]);
        }
    }
    // after a rest the burst is there again, and no more
    tokio::time::sleep(ms(300)).await;
    it.flood("r", 0).await;
    let tasks: Vec<Value> = (0..20).map(|n| json!({"payload": n})).collect();
    let before = it.receiver.count();
    let began = now_ms();
    it.api.post("/queues/q/batch", json!({"tasks": tasks})).await.expect(200);
    let came = it.receiver.wait_for(before + 20, secs(5)).await;
    let tenth = came[before + 9].at_ms - began;
    let last = came[before + 19].at_ms - came[before].at_ms;
    assert!(tenth < 150 + jitter_ms && last >= 90, "a burst of ten within {tenth} ms, twenty within {last} ms");
    drop(second);
    it.at_rest("q").await;
}

#[tokio::test]
async fn rate_is_exact_over_two_replicas() {
    rate_is_kept(secs(5), 1_500, 600).await;
}

#[tokio::test]
#[ignore = "half a minute: 2 % over 30 s"]
async fn rate_is_exact_over_thirty_seconds() {
    rate_is_kept(secs(30), 600, 150).await;
}

/// A queue at its limit is not asked again and again, and goes on as soon as the limit lifts.
#[tokio::test]
async fn a_queue_at_its_limit_costs_no_busy_loop() {
    let it = World::start().await;
    it.webhook("mif", "/held").await;
    it.webhook("rate", "/hook").await;
    it.api.put("/queues/mif", json!({"max_in_flight": 2})).await.expect(200);
    it.api.put("/queues/rate", json!({"rate": {"limit": 1, "per": "1h"}})).await.expect(200);
    let gate = Gate::new();
    it.receiver.on("/held", Answer::status(200).held_by(&gate));
    it.flood("mif", 200).await;
    it.flood("rate", 200).await;
    it.receiver.wait_for(3, secs(5)).await;
    tokio::time::sleep(ms(500)).await;
    let calls = it.redis.calls_during(secs(4)).await;
    println!("{calls} calls in 4 s");
    assert!(calls < 60, "{calls} calls in 4 s with two queues at their limits");
    assert_eq!(it.receiver.count(), 3);

    let lifted = now_ms();
    it.api.patch("/queues/rate", json!({"rate": null})).await.expect(200);
    let came = it.receiver.wait_for(4, secs(5)).await;
    let rest = came[3].at_ms - lifted;
    assert!(rest < 2_000, "{rest} ms after the limit was lifted");
    it.receiver.wait_for(202, secs(10)).await;
    it.at_rest("rate").await;
    it.api.delete("/queues/rate").await.expect(204);
    let opened = now_ms();
    gate.open();
    let came = it.receiver.wait_for(203, secs(5)).await;
    println!("{rest} ms after the rate was lifted, {} ms after a place came free", came[202].at_ms - opened);
    assert!(came[202].at_ms - opened < 2_000, "{} ms after a place came free", came[202].at_ms - opened);
    eventually(secs(20), async || figure(&it.stats("mif").await, "completed") == 200).await;
    it.at_rest("mif").await;
}

/// A hot queue beside small ones.
async fn small_queues_stay_punctual(hot: usize, small: usize, bound_ms: i64) {
    let it = World::start().await;
    it.webhook("hot", "/hot").await;
    it.receiver.on("/hot", Answer::status(200).after(ms(20)));
    for n in 0..small {
        it.webhook(&format!("small{n}"), "/small").await;
    }
    it.flood("hot", hot).await;
    for round in 0..20 {
        for n in 0..small {
            let id = format!("s{n}-{round}");
            it.schedule(&format!("small{n}"), json!({"id": id, "payload": 1, "delay": "20ms"})).await;
        }
        tokio::time::sleep(ms(20)).await;
    }
    let busy = figure(&it.stats("hot").await, "due");
    let mut late = Vec::new();
    for n in 0..small {
        for round in 0..20 {
            let (queue, id) = (format!("small{n}"), format!("s{n}-{round}"));
            it.in_state(&queue, &id, "completed").await;
            late.push(it.task(&queue, &id).await["attempts"][0]["lateness_ms"].as_i64().unwrap());
        }
    }
    late.sort_unstable();
    let p99 = late[late.len() * 99 / 100];
    println!(
        "{busy} of the hot queue were left; the small ones' p50 {} p99 {p99} max {} ms",
        late[late.len() / 2],
        late[late.len() - 1]
    );
    assert!(busy > 0, "the hot queue was not hot for long enough");
    assert!(p99 < bound_ms, "p99 {p99} ms");
    let stats = crate::support::until(secs(120), async || {
        let stats = it.stats("hot").await;
        (figure(&stats, "delivered_total") == hot as i64).then_some(stats)
    });
    assert_balanced(&stats.await);
}

#[tokio::test]
async fn c164_a_hot_queue_does_not_delay_small_ones() {
    small_queues_stay_punctual(6000, 5, 1000).await;
}

#[tokio::test]
#[ignore = "minutes: 100,000 due tasks beside 20 queues, for a release build"]
async fn a_hundred_thousand_due_tasks_do_not_delay_twenty_small_queues() {
    small_queues_stay_punctual(100_000, 20, 100).await;
}
