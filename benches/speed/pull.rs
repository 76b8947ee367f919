//! Consumers that claim a task and acknowledge it, against a bare handler that gets as many calls.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Size,
    http::{Connection, Load, Until, closed, post},
    parts::{Part, Service, Thread},
    rows::{PAYLOAD, batch, constant, thousands},
    table::{Goal, Row},
};

const CONSUMERS: usize = 32;

pub fn pull(size: Size) -> Vec<Row> {
    let (service, bare) = (Service::start("memory"), Part::own(&["bare-handler"]));
    let body = format!(r#"{{"payload":{PAYLOAD},"delay":"30m"}}"#);
    let mut row = Row::new("pull: claim and ack, 32 consumers", "of a bare handler's calls", Goal::AtLeast(0.50));
    for round in 0..=size.rounds {
        let request = constant(post("/queues/bench/tasks", &body));
        let limit = closed(bare.address, CONSUMERS, Until::Over(size.round), None, request);
        let tasks = (size.round.as_secs_f64() * 40_000.0) as u64;
        closed(
            service.address(),
            4,
            Until::Calls(tasks / 1000),
            None,
            constant(batch("bench", 1000, r#""delay":"0s""#)),
        );
        let ours = consume(service.address(), size.round);
        service.call("POST", "/queues/bench/purge", r#"{"states":["scheduled","completed"]}"#);
        if round > 0 {
            row.round(ours.rate() / limit.rate());
            row.tell(format!(
                "{} calls of {}; generator {:.0} %",
                thousands(ours.rate()),
                thousands(limit.rate()),
                100.0 * ours.share()
            ));
        }
    }
    vec![row]
}

fn consume(to: SocketAddr, time: Duration) -> Load {
    let consuming = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(tokio::task::LocalSet::new().run_until(async move {
            let calls = Arc::new(AtomicU64::new(0));
            let (thread, began) = (Thread::this(), Instant::now());
            let cpu = thread.cpu();
            let consumers: Vec<_> =
                (0..CONSUMERS).map(|_| tokio::task::spawn_local(one(to, began + time, Arc::clone(&calls)))).collect();
            for consumer in consumers {
                consumer.await.expect("a consumer ends");
            }
            Load { calls: calls.load(Ordering::Relaxed), took: began.elapsed(), cpu: thread.cpu().saturating_sub(cpu) }
        }))
    });
    consuming.join().expect("the consumers end")
}

async fn one(to: SocketAddr, end: Instant, calls: Arc<AtomicU64>) {
    let mut connection = Connection::open(to).await.expect("it listens");
    let claim = post("/queues/bench/claim", r#"{"max":1}"#);
    while Instant::now() < end {
        assert_eq!(connection.exchange(&claim).await.expect("it answers"), 200);
        let told = String::from_utf8_lossy(connection.body()).into_owned();
        let field = |name: &str| told.split_once(name).and_then(|(_, rest)| rest.split('"').next());
        let (Some(id), Some(token)) = (field(r#""id":""#), field(r#""token":""#)) else { break };
        let ack = post(&format!("/queues/bench/tasks/{id}/ack"), &format!(r#"{{"token":"{token}"}}"#));
        assert_eq!(connection.exchange(&ack).await.expect("it answers"), 200);
        calls.fetch_add(2, Ordering::Relaxed);
    }
}
