//! When workers visit a queue: on a Redis that is far away, so that it shows what happens during a visit.

use std::time::Duration;

use duepost::store::Promise;

use crate::support::{
    inside::{self, Inside},
    link::Link,
    ms,
    receiver::Answer,
    secs,
};

/// How long what is sent takes to Redis, and as long back.
const FAR: Duration = ms(100);

/// The instants at which visits took tasks, in s, until so many tasks were delivered.
async fn visits(it: &Inside, tasks: usize) -> Vec<f64> {
    let delivered = async {
        it.receiver.wait_for(tasks, secs(30)).await;
    };
    let seen = it.redis.monitored(delivered).await;
    let took = seen.iter().filter(|line| line.contains("\"ZREM\"") && line.contains(":orders:due\""));
    took.map(|line| line.split(' ').next().and_then(|at| at.parse().ok()).expect("an instant")).collect()
}

#[tokio::test]
async fn a_queue_with_more_due_tasks_is_visited_again_before_the_answer_is_here() {
    const TASKS: usize = 300;
    let it = Inside::start().await;
    it.webhook("main").await;
    // a half of what a visit took makes room for the next, the other half, which comes later, for the one meanwhile
    it.receiver.when(|r| r.task().ends_with(['1', '3', '5', '7', '9']), Answer::status(200).after(ms(50)));
    for n in 0..TASKS {
        it.given_due(&format!("t{n}")).await;
    }
    let link = Link::to(&it.redis).await;
    let store = inside::store_at(&link.url(), Promise::default()).await;
    link.delay(FAR);
    let worker = Inside::worker_on(&store, |_| {});

    let visits = visits(&it, TASKS).await;

    let shortest = visits.windows(2).map(|two| two[1] - two[0]).fold(f64::INFINITY, f64::min);
    assert!(shortest < 2.0 * FAR.as_secs_f64(), "one after the other: {visits:?}");
    worker.stop(secs(1)).await;
}
