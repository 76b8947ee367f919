//! Real cases, groups H and M: services that are stopped or killed with work in hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use axum::http::Method;
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{
    Answer, Client, Gate, RedisServer, Service, World, eventually, ms, secs, size, until,
    world::{at_rest, figure},
};

/// So many tasks that are due now.
async fn given(api: &Client, tasks: usize) {
    const PIECE: usize = 500;
    for from in (0..tasks).step_by(PIECE) {
        let piece: Vec<Value> =
            (from..tasks.min(from + PIECE)).map(|n| json!({"id": format!("t{n}"), "payload": n})).collect();
        api.post("/queues/q/batch", json!({"tasks": piece})).await.expect(200);
    }
}

/// How often each task arrived.
fn arrivals(it: &World) -> BTreeMap<String, usize> {
    let mut arrivals = BTreeMap::new();
    for request in it.receiver.journal() {
        *arrivals.entry(request.task().to_owned()).or_default() += 1;
    }
    arrivals
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c132_what_a_killed_worker_had_taken_is_delivered() {
    let (tasks, kills) = size((2_000, 5), (100_000, 20));
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(200).after(ms(50)));
    it.api.post("/queues/q/pause", "").await.expect(200);
    given(&it.api, tasks).await;
    let start = async || Service::builder(&it.redis).flag("--lease", "3s").start().await;
    let mut workers = [start().await, start().await];
    let World { service, receiver, redis, .. } = it;
    drop(service);
    workers[0].client().post("/queues/q/resume", "").await.expect(200);
    let mut dice = fastrand::Rng::with_seed(132);
    for kill in 1..=kills {
        receiver.wait_for(kill * tasks / (kills + 1), secs(60)).await;
        let victim = dice.usize(0..2);
        workers[victim].kill9();
        workers[victim] = Service::builder(&redis).flag("--lease", "3s").start().await;
    }
    let [service, _other] = workers;
    let it = World { api: service.client(), service, receiver, redis };
    let all = async || arrivals(&it).len() == tasks;
    eventually(size(secs(60), secs(600)), all).await;
    let stats = until(secs(60), async || {
        let stats = it.stats("q").await;
        (figure(&stats, "delivered_total") == tasks as i64).then_some(stats)
    });
    assert_eq!(figure(&stats.await, "dead_total"), 0);
    // what was in hand comes again once its lease has ended, and is delivered only then
    let twice = it.receiver.count() - tasks;
    println!("{tasks} tasks through {kills} kills, {twice} of them twice");
    assert!(twice > 0, "none was killed with work in hand");
    it.at_rest("q").await;
}

/// A service with `--drain`, whose receiver takes its time, and a hundred attempts under way.
async fn in_flight(drain: &str, takes: Answer, more: usize) -> World {
    let flags = ["--slots-per-webhook", "100", "--lease", "60s", "--drain", drain];
    let redis = RedisServer::start().await;
    let it = World::with(redis, |b| flags.chunks(2).fold(b, |b, flag| b.flag(flag[0], flag[1]))).await;
    it.receiver.when(|r| r.attempt() == 1, takes);
    it.webhook("q", "/hook").await;
    given(&it.api, 100 + more).await;
    it.receiver.wait_for(100, secs(30)).await;
    it
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c170_with_a_long_grace_everything_under_way_is_acknowledged_and_nothing_is_begun() {
    const MORE: usize = 20;
    for signal in [Signal::TERM, Signal::INT] {
        let gate = Gate::new();
        let mut it = in_flight("20s", Answer::status(200).held_by(&gate), MORE).await;
        // somebody who posts all the time: what is answered 201 is there, and in the end nobody answers
        let posting = tokio::spawn({
            let api = it.api.clone();
            async move {
                let mut made = 0;
                while let Ok(answer) = post(&api, &format!("made{made}"), "1h").await {
                    made += usize::from(answer == 201);
                }
                made
            }
        });
        it.service.signal(signal);
        let made = posting.await.expect("it ends with the listener");
        tokio::time::sleep(size(secs(1), secs(4))).await; // the receivers take their time
        assert!(it.service.is_running(), "attempts are under way");
        gate.open();
        assert_eq!(it.service.wait_exit(secs(20)).await.code(), Some(0), "{}", it.service.stderr());
        assert_eq!(it.receiver.count(), 100, "nothing was begun");

        it.turn_to(Service::serve(&it.redis).await);
        it.receiver.wait_for(100 + MORE, secs(20)).await;
        let stats = until(secs(20), async || {
            Some(it.stats("q").await).filter(|stats| figure(stats, "delivered_total") == 100 + MORE as i64)
        })
        .await;
        assert!(arrivals(&it).values().all(|n| *n == 1), "{:?}", arrivals(&it));
        // the last call may have been done, and its answer cut off with the connection
        let waiting = figure(&stats, "scheduled") as usize;
        assert!((made..=made + 1).contains(&waiting), "{made} were answered 201: {stats}");
    }
}

async fn post(api: &Client, id: &str, delay: &str) -> Result<u16, crate::support::client::NoAnswer> {
    let task = json!({"id": id, "payload": id, "delay": delay});
    let answer = api.try_call(Method::POST, "/queues/q/tasks", Some(task.into())).await?;
    Ok(answer.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c170_with_a_short_grace_what_is_under_way_is_given_back() {
    let never = Gate::new();
    let mut it = in_flight("500ms", Answer::status(200).held_by(&never), 0).await;
    let (first, told) = (it.receiver.count(), Instant::now());
    it.service.sigterm();
    assert_eq!(it.service.wait_exit(secs(20)).await.code(), Some(0), "{}", it.service.stderr());
    println!("ended after {:?} with a grace of 500 ms", told.elapsed());
    it.receiver.forget_rules();
    it.turn_to(Service::serve(&it.redis).await);
    // by the end of their leases it would take a minute
    it.receiver.wait_for(first + 100, secs(30)).await;
    let stats = it.at_rest("q").await;
    assert_eq!((figure(&stats, "delivered_total"), figure(&stats, "failed_attempts_total")), (100, 0), "{stats}");
    assert!(arrivals(&it).values().all(|n| *n == 2), "{:?}", arrivals(&it));
    never.open();
}

/// Sends these bytes and gives the connection.
async fn sent(service: &Service, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(service.address()).await.expect("the service listens");
    stream.write_all(bytes.as_bytes()).await.expect("it reads");
    stream
}

/// Connections that have had their answer and stay.
async fn idle(service: &Service) -> Vec<TcpStream> {
    join_all((0..50).map(|_| async {
        let mut stream = sent(service, "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let n = stream.read(&mut [0; 1024]).await.expect("an answer");
        assert!(n > 0);
        stream
    }))
    .await
}

/// Ends the service; gives how long it took, and how long until nobody was let in.
async fn ends(it: &mut World) -> (Duration, Duration) {
    let told = Instant::now();
    it.service.sigterm();
    let address = it.service.address().to_owned();
    eventually(secs(10), async || TcpStream::connect(&address).await.is_err()).await;
    let closed = told.elapsed();
    assert_eq!(it.service.wait_exit(secs(40)).await.code(), Some(0), "{}", it.service.stderr());
    (told.elapsed(), closed)
}

#[tokio::test]
async fn c171_clients_that_say_nothing_hold_up_no_stop() {
    let mut it = World::start().await; // with a grace of 25 s
    let _idle = idle(&it.service).await;
    let (ended, _) = ends(&mut it).await;
    println!("50 idle connections: ended after {ended:?}");
    assert!(ended < secs(15), "{ended:?}");

    it.turn_to(Service::builder(&it.redis).flag("--drain", "2s").start().await);
    let payload = "x".repeat(250_000);
    for n in 0..40 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": payload, "delay": "1h"})).await;
    }
    let _idle = idle(&it.service).await;
    let head = "POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n";
    let _half_a_head = sent(&it.service, head).await;
    let _half_a_body = sent(&it.service, &format!("{head}\r\n{{\"id\":")).await;
    let list = "GET /queues/q/tasks?state=scheduled&full=true&limit=40 HTTP/1.1\r\nhost: x\r\n\r\n";
    let unread = sent(&it.service, list).await;
    unread.readable().await.expect("its answer begins");
    let (ended, closed) = ends(&mut it).await;
    println!("with some in mid-call: nobody let in after {closed:?}, ended after {ended:?} with a grace of 2 s");
    assert!(closed + secs(1) < ended, "the listener closes first: {closed:?}, {ended:?}");
    assert!(ended < secs(10), "{ended:?}");
}

/// Says again what nobody answered, then posts on until the service is gone; gives what was answered and what was not.
async fn posts(api: Client, mut open: Vec<String>, name: String) -> (Vec<String>, Vec<String>) {
    let (mut done, mut new) = (Vec::new(), 0);
    loop {
        let id = open.pop().unwrap_or_else(|| {
            new += 1;
            format!("{name}-{new}")
        });
        match post(&api, &id, "0s").await {
            Ok(200 | 201) => done.push(id),
            Ok(503) => open.push(id), // a machine that stands still for seconds makes Redis look gone
            Ok(status) => panic!("{id}: {status}"),
            Err(_) => {
                open.push(id);
                return (done, open);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c172_a_killed_api_leaves_nothing_half_done_and_a_repeat_makes_one_task() {
    const CLIENTS: usize = 8;
    let rounds = size(5, 50);
    let mut it = World::with(RedisServer::start().await, |b| b.flag("--lease", "3s")).await;
    it.webhook("q", "/hook").await;
    let (mut dice, mut accepted, mut open) = (fastrand::Rng::with_seed(172), BTreeSet::new(), Vec::<String>::new());
    for round in 0..rounds {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let repeat = open.iter().skip(client).step_by(CLIENTS).cloned().collect();
                tokio::spawn(posts(it.api.clone(), repeat, format!("r{round}-{client}")))
            })
            .collect();
        tokio::time::sleep(ms(dice.u64(100..500))).await;
        it.service.kill9();
        open.clear();
        for client in clients {
            let (done, unanswered) = client.await.expect("it ends");
            accepted.extend(done);
            open.extend(unanswered);
        }
        it.turn_to(Service::builder(&it.redis).flag("--lease", "3s").start().await);
    }
    for id in &open {
        let status = post(&it.api, id, "0s").await.expect("an answer");
        assert!(matches!(status, 200 | 201), "{id}: {status}");
        accepted.insert(id.clone());
    }
    println!("{} tasks through {rounds} kills", accepted.len());
    assert!(accepted.len() > rounds, "{}", accepted.len());
    let all = async || {
        let arrived = arrivals(&it);
        accepted.iter().all(|id| arrived.contains_key(id))
    };
    eventually(secs(60), all).await;
    let stats = at_rest(&it.redis, &it.api, "q").await;
    let made = [figure(&stats, "enqueued_total"), figure(&stats, "delivered_total")];
    assert_eq!(made, [accepted.len() as i64; 2], "one task for each id: {stats}");
    let (code, told) = it.fsck(&[]);
    assert_eq!(code, Some(0), "half done: {told}");
}
