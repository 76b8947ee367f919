//! S9, F18: clients that are slow on purpose are cut, and cost the others nothing.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{Service, World, eventually, ms, secs};

const SLOW: usize = 100;

/// Sends a byte of a head now and then; gives how long it was let.
async fn dribble(address: String) -> Duration {
    let mut stream = TcpStream::connect(address).await.expect("the service listens");
    let began = Instant::now();
    let mut some = [0; 64];
    let head = b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ";
    for byte in head.iter().chain(std::iter::repeat(&b'y')) {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        match tokio::time::timeout(ms(200), stream.read(&mut some)).await {
            Ok(Ok(0) | Err(_)) => break,
            Ok(Ok(_)) => panic!("no answer to half a head"),
            Err(_) => assert!(began.elapsed() < secs(20), "still open"),
        }
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_slow_heads_are_cut_and_slow_bodies_take_nobody_s_place() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let address = it.service.address().to_owned();
    let slow: Vec<_> = (0..SLOW).map(|_| tokio::spawn(dribble(address.clone()))).collect();
    let mut bodies = Vec::new();
    for _ in 0..SLOW {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        let head =
            "POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        bodies.push(stream);
    }

    let mut took = Vec::new();
    for n in 0..100 {
        let began = Instant::now();
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
        took.push(began.elapsed());
        tokio::time::sleep(ms(20)).await;
    }
    took.sort();
    println!("calls beside {} slow clients: p50 {:?} p99 {:?}", 2 * SLOW, took[50], took[98]);
    assert!(took[98] < secs(1), "{:?}", took[98]);
    it.receiver.wait_for(100, secs(10)).await;

    for open in join_all(slow).await {
        let open = open.expect("the client ends");
        assert!((secs(9)..secs(13)).contains(&open), "a head may take 10 s, not {open:?}");
    }
    drop(bodies);
}

#[tokio::test]
async fn past_max_requests_calls_are_refused_quickly_and_deliveries_go_on() {
    let it = World::start().await;
    let service = Service::builder(&it.redis).flag("--max-requests", "3").start().await;
    let api = service.client();
    let hook = json!({"url": it.receiver.url("/hook")});
    api.post("/queues/q/webhooks", hook).await.expect(201);
    api.post("/queues/q/tasks", json!({"id": "t", "payload": 1, "delay": "1s"})).await.expect(201);
    let mut held = Vec::new();
    while held.len() < 3 || api.get("/queues").await.status != 503 {
        // a look that was under way may have had the place of one of these, which was refused then: another follows
        assert!(held.len() < 1000, "the three are let in, and nothing is refused");
        let mut stream = TcpStream::connect(service.address()).await.unwrap();
        let head =
            "POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }

    let began = Instant::now();
    let refused = api.get("/queues").await;
    refused.problem(503, "overloaded");
    assert!(refused.header("retry-after").is_some() && began.elapsed() < ms(500), "{:?}", began.elapsed());
    for path in ["/livez", "/readyz", "/metrics"] {
        api.get(path).await.expect(200);
    }
    it.receiver.wait_for_task("t", secs(10)).await;
    drop(held);
    eventually(secs(5), async || api.get("/queues").await.status == 200).await;
}
