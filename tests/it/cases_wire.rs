//! Real cases, group G: connections to receivers, seen from outside.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    Answer, World, eventually, ms, now_ms, secs, size, vitals,
    wait::format_ms,
    world::{assert_balanced, figure},
};

/// How long the service keeps an idle connection.
const POOL_IDLE: Duration = secs(4);

/// Reads one request; false at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<bool> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next()?.parse().ok());
            if bytes.len() >= head + 4 + length.unwrap_or(0) {
                return Ok(true);
            }
        }
        match stream.read(&mut piece).await? {
            0 => return Ok(false),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
}

/// A receiver on a port of its own that answers 200 and closes a connection that has been idle for so long.
async fn receiver_that_closes(idle: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(Ok(true)) = tokio::time::timeout(idle, read_request(&mut stream)).await {
                    if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c091_a_receiver_that_closes_as_the_request_comes_loses_nothing() {
    const HOSTS: usize = 40;
    const EVERY: Duration = ms(1000);
    let rounds = size(5, 25);
    let it = World::start().await;
    let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "100ms"}});
    for host in 0..HOSTS {
        let url = format!("http://{}/hook", receiver_that_closes(EVERY).await);
        it.api.post(&format!("/queues/q{host}/webhooks"), json!({"url": url})).await.expect(201);
    }
    // each connection is idle for a second, give or take 5 ms, when the next request for it is written
    let start = now_ms() + 2_000;
    for host in 0..HOSTS {
        let task = |round: usize| {
            let off = i64::try_from((host * 7 + round * 3) % 11).expect("small") - 5;
            let at = start + i64::try_from(round).expect("small") * 1000 + off;
            json!({"id": format!("t{round}"), "payload": round, "run_at": format_ms(at), "retry": retry})
        };
        let tasks: Vec<Value> = (0..rounds).map(task).collect();
        it.api.post(&format!("/queues/q{host}/batch"), json!({"tasks": tasks})).await.expect(200);
    }

    let (mut delivered, mut repeated) = (0, HashMap::<String, usize>::new());
    for host in 0..HOSTS {
        let queue = format!("q{host}");
        let stats = async || it.stats(&queue).await;
        let all = i64::try_from(rounds).expect("small");
        eventually(secs(60), async || figure(&stats().await, "delivered_total") == all).await;
        let stats = stats().await;
        assert_balanced(&stats);
        delivered += figure(&stats, "delivered_total");
        if figure(&stats, "failed_attempts_total") > 0 {
            for round in 0..rounds {
                for attempt in it.task(&queue, &format!("t{round}")).await["attempts"].as_array().expect("attempts") {
                    if attempt["outcome"] != "delivered" {
                        assert_eq!(attempt["outcome"], "unreachable", "{attempt}");
                        *repeated.entry(attempt["error"].to_string()).or_default() += 1;
                    }
                }
            }
        }
    }
    println!("{delivered} delivered, of which tried again: {repeated:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c092_connections_to_hosts_used_once_are_closed_and_few_descriptors_do() {
    let (hosts, limit) = size((90, 70), (3000, 1024));
    let it = World::start().await;
    let pid = it.service.pid();
    let receivers = join_all((0..hosts).map(|_| receiver_that_closes(Duration::MAX))).await;
    for (n, receiver) in receivers.iter().enumerate() {
        let path = format!("/queues/q{n}/webhooks");
        it.api.post(&path, json!({"url": format!("http://{receiver}/hook")})).await.expect(201);
    }
    it.stats("q0").await;
    let before = vitals::descriptors(pid);
    let of_service = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid"));
    let rlimit = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    rustix::process::prlimit(of_service, rustix::process::Resource::Nofile, rlimit).expect("the limit can be set");

    let retry = json!({"max_attempts": 50, "backoff": {"kind": "fixed", "delay": "1s"}});
    let task = json!({"id": "t", "payload": 1, "delay": "500ms", "retry": retry});
    for n in 0..hosts {
        it.api.post(&format!("/queues/q{n}/tasks"), &task).await.expect(201);
    }
    let mut failed = 0;
    for n in 0..hosts {
        let queue = format!("q{n}");
        eventually(size(secs(40), secs(120)), async || figure(&it.stats(&queue).await, "delivered_total") == 1).await;
        failed += figure(&it.stats(&queue).await, "failed_attempts_total");
    }
    println!("{hosts} hosts with {limit} descriptors: {failed} attempts found none");
    eventually(4 * POOL_IDLE, async || vitals::descriptors(pid) <= before + 5).await;
}

#[tokio::test]
async fn c093_a_redirect_is_a_failed_attempt_and_never_followed() {
    let it = World::start().await;
    let retry = json!({"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "20ms"}});
    let mut cases = Vec::new();
    for status in [301, 302, 303, 307, 308] {
        for location in [Some("/elsewhere"), Some("/q"), Some("http://127.0.0.1:1/"), None] {
            let queue = format!("q{}", cases.len());
            let path = format!("/{queue}");
            it.webhook(&queue, &path).await;
            let redirect = Answer::status(status);
            let redirect = match location {
                Some("/q") => redirect.header("location", &path), // to itself
                Some(location) => redirect.header("location", location),
                None => redirect,
            };
            it.receiver.on(&path, redirect);
            it.schedule(&queue, json!({"id": queue, "payload": 1, "retry": retry})).await;
            cases.push((queue, status));
        }
    }
    for (queue, status) in &cases {
        it.in_state(queue, queue, "dead").await;
        let task = it.task(queue, queue).await;
        let attempts = task["attempts"].as_array().expect("attempts");
        assert_eq!(attempts.len(), 2, "{task}");
        for attempt in attempts {
            assert_eq!((&attempt["outcome"], &attempt["status"]), (&json!("rejected"), &json!(status)), "{task}");
        }
        assert_eq!(it.receiver.of_task(queue).len(), 2, "{status}");
    }
    for request in it.receiver.journal() {
        assert_eq!((request.method(), request.text().as_str()), ("POST", "1"), "{}", request.head);
        assert_ne!(request.path(), "/elsewhere");
    }
}
