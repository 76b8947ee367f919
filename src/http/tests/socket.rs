//! The accept loop over real sockets: what a router alone cannot bound.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, routing};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::It;
use crate::http::{ServeOptions, serve};

const MS: Duration = Duration::from_millis(1);

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    ended: JoinHandle<()>,
}

impl Server {
    async fn start(router: Router, options: ServeOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let ended = tokio::spawn(serve(listener, router, options, stop.clone()));
        Self { address, stop, ended }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

fn slow(takes: Duration) -> Router {
    let answer = move || async move {
        tokio::time::sleep(takes).await;
        "done"
    };
    Router::new().route("/slow", routing::get(answer)).route("/", routing::get(|| async { "hi" }))
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// All until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut all)).await;
    read.expect("closed in time").expect("closed and not reset");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn a_body_far_too_large_is_answered_and_not_reset() {
    let it = It::start().await;
    let server = Server::start(it.router.clone(), ServeOptions::default()).await;
    for framing in ["content-length: 16777216", "transfer-encoding: chunked"] {
        let mut stream = server.connect().await;
        let head =
            format!("POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = if framing.starts_with('c') {
            vec![b'x'; 65_536]
        } else {
            [b"10000\r\n".as_slice(), &vec![b'x'; 65_536], b"\r\n"].concat()
        };
        for _ in 0..256 {
            stream.write_all(&piece).await.expect("whoever still sends is not cut off");
        }
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("/problems/too-large"), "{answer}");
    }
}

#[tokio::test]
async fn a_head_that_dribbles_is_cut() {
    let options = ServeOptions { head: 300 * MS, ..ServeOptions::default() };
    let server = Server::start(slow(MS), options).await;
    let (mut fresh, mut used) = (server.connect().await, server.connect().await);
    used.write_all(GET).await.unwrap();
    let mut some = [0; 256];
    assert!(used.read(&mut some).await.unwrap() > 0);
    for stream in [&mut fresh, &mut used] {
        let began = Instant::now();
        // each byte comes soon after the one before, but the head is never whole
        for byte in b"GET / HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'y')) {
            let gone = stream.write_all(&[*byte]).await.is_err();
            match tokio::time::timeout(20 * MS, stream.read(&mut some)).await {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(_)) => panic!("no answer to half a head"),
                Err(_) => assert!(!gone && began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed()),
            }
        }
        assert!(began.elapsed() >= 250 * MS, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn an_idle_connection_may_rest_for_longer_than_a_head_may_take() {
    let options = ServeOptions { head: 100 * MS, idle: 1000 * MS, ..ServeOptions::default() };
    let server = Server::start(slow(MS), options).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        tokio::time::sleep(300 * MS).await;
        stream.write_all(GET).await.expect("still open");
        let mut some = [0; 256];
        let n = stream.read(&mut some).await.unwrap();
        assert!(some[..n].starts_with(b"HTTP/1.1 200"));
    }
    let began = Instant::now();
    assert_eq!(rest(&mut stream).await, "");
    assert!((800 * MS..5000 * MS).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_connection_does_not_rest_while_its_answer_is_being_taken() {
    const LARGE: usize = 24 << 20;
    let router = Router::new().route("/", routing::get(|| async { vec![b'x'; LARGE] }));
    let server = Server::start(router, ServeOptions { idle: 200 * MS, ..ServeOptions::default() }).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let (mut some, mut taken) = (vec![0; 1 << 20], 0);
    loop {
        let n = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut some)).await.expect("in time").unwrap();
        if n == 0 {
            break;
        }
        taken += n;
        tokio::time::sleep(MS * u32::try_from(n >> 14).unwrap()).await; // about 1.5 s in all
    }
    assert!(taken > LARGE, "cut off after {taken} bytes");
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_closes_what_rests() {
    let server = Server::start(slow(400 * MS), ServeOptions::default()).await;
    let (mut rests, mut waits) = (server.connect().await, server.connect().await);
    rests.write_all(GET).await.unwrap();
    waits.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(100 * MS).await;
    let began = Instant::now();

    server.stop.cancel();

    // what is just being sent on a connection at rest is answered, and told that it is the last
    rests.write_all(GET).await.unwrap();
    let closed = rest(&mut rests).await;
    assert_eq!(closed.matches("hi").count(), 2, "{closed}");
    assert_eq!(closed.matches("connection: close").count(), 1, "{closed}");
    assert!(began.elapsed() < 5_000 * MS, "{:?}", began.elapsed());
    let answer = rest(&mut waits).await;
    assert!(answer.contains("200 OK") && answer.ends_with("done"), "{answer}");
    tokio::time::timeout(Duration::from_secs(5), server.ended).await.expect("it ends").unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let server =
        Server::start(slow(Duration::from_secs(60)), ServeOptions { drain: 200 * MS, ..ServeOptions::default() }).await;
    let mut waits = server.connect().await;
    waits.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(50 * MS).await;
    server.stop.cancel();
    tokio::time::timeout(Duration::from_secs(5), server.ended).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_their_turn() {
    let server = Server::start(slow(MS), ServeOptions { connections: 2, ..ServeOptions::default() }).await;
    let (first, _second, mut third) = (server.connect().await, server.connect().await, server.connect().await);
    third.write_all(GET).await.unwrap();
    let mut some = [0; 16];
    assert!(tokio::time::timeout(200 * MS, third.read(&mut some)).await.is_err(), "no place yet");
    drop(first);
    let n = tokio::time::timeout(Duration::from_secs(5), third.read(&mut some)).await.expect("its turn").unwrap();
    assert!(some[..n].starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn a_head_with_too_much_in_it_is_431() {
    let server = Server::start(slow(MS), ServeOptions::default()).await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "y".repeat(70_000));
    for headers in [many, long] {
        let mut stream = server.connect().await;
        stream.write_all(format!("GET / HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }
}
