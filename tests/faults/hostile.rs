//! F17, F18, F20: receivers and clients that mean harm.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    report,
    support::{Answer, World, ms, parse_ms, secs, until, vitals},
    trial::Trial,
};

const HEALTHY_QUEUES: usize = 12;

/// Says the start, then the rest for ever, to whoever connects.
async fn endless(start: &'static [u8], rest: &'static [u8]) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(start).await;
                while stream.write_all(rest).await.is_ok() {}
            });
        }
    });
    (url, serving)
}

/// Ten mebibytes of zeros, packed.
fn bomb() -> Vec<u8> {
    let packed = std::process::Command::new("sh").args(["-c", "head -c 10485760 /dev/zero | gzip -9"]).output();
    packed.expect("sh and gzip are there").stdout
}

/// Registers a hostile webhook of each kind, for a queue of its own.
async fn hostile_webhooks(it: &World) -> (Vec<String>, Vec<JoinHandle<()>>) {
    let retry_after = |value: &str| Answer::from(Answer::status(503).header("retry-after", value));
    let packed = Answer::status(200).header("content-encoding", "gzip").body(bomb());
    let loops = Answer::status(302).header("location", &it.receiver.url("/redirects"));
    let far = "Fri, 31 Dec 9999 23:59:59 GMT";
    let kinds: Vec<(&str, Answer)> = vec![
        ("hangs", Answer::hang()),
        ("drips", Answer::from(Answer::status(200).body("slow")).drip(secs(1))),
        ("packed", packed.into()),
        ("nonsense", Answer::raw_then_close("NONSENSE\r\n\r\n")),
        ("resets", Answer::reset()),
        ("redirects", loops.into()),
        ("in-an-hour", retry_after("3600")),
        ("before", retry_after("-5")),
        ("far", retry_after("1000000000000000000")),
        ("date", retry_after(far)),
    ];
    let (body, serving_body) =
        endless(b"HTTP/1.1 200 OK\r\ncontent-length: 10737418240\r\n\r\n", &[b'x'; 65_536]).await;
    let (early, serving_early) = endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n").await;
    let mut urls = vec![("no-tls", it.receiver.url("/").replace("http:", "https:")), ("body", body), ("early", early)];
    for (kind, answer) in kinds {
        it.receiver.on(&format!("/{kind}"), answer);
        urls.push((kind, it.receiver.url(&format!("/{kind}"))));
    }
    let mut queues = Vec::new();
    for (kind, url) in urls {
        let queue = format!("hostile-{kind}");
        let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "1s"}});
        it.api.put(&format!("/queues/{queue}"), json!({"retry": retry, "timeout": "2s"})).await.expect(201);
        it.api.post(&format!("/queues/{queue}/webhooks"), json!({ "url": url })).await.expect(201);
        queues.push(queue);
    }
    (queues, vec![serving_body, serving_early])
}

/// Schedules `each` tasks for each healthy queue over the span; gives the 99th percentile of their lateness.
async fn healthy_p99(it: &World, round: &str, each: usize, span: Duration) -> i64 {
    let began = Instant::now();
    let jobs = (0..each * HEALTHY_QUEUES).map(|n| async move {
        tokio::time::sleep_until(began + span.mul_f64(n as f64 / (each * HEALTHY_QUEUES) as f64)).await;
        let (queue, id) = (format!("healthy-{}", n % HEALTHY_QUEUES), format!("{round}-{n}"));
        let task = json!({"id": id, "payload": n, "delay_ms": 500});
        let task = until(secs(30), async || {
            // A machine that stands still for seconds makes Redis look gone.
            let answer = it.api.post(&format!("/queues/{queue}/tasks"), &task).await;
            [200, 201].contains(&answer.status).then(|| answer.json())
        });
        (id, parse_ms(task.await["run_at"].as_str().expect("run_at")))
    });
    let due: std::collections::HashMap<String, i64> = join_all(jobs).await.into_iter().collect();
    let is_ours = |id: &str| due.contains_key(id);
    let arrived = it.receiver.wait_until(secs(60), |journal| {
        journal.iter().filter(|request| request.header("duepost-task-id").is_some_and(is_ours)).count() >= due.len()
    });
    let mut late: Vec<i64> =
        arrived.await.iter().filter_map(|r| Some(r.at_ms - due.get(r.header("duepost-task-id")?)?)).collect();
    late.sort_unstable();
    assert_eq!(late.len(), due.len(), "no task came twice");
    assert!(late[0] >= 0, "{} ms early", -late[0]);
    late[late.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f17_hostile_receivers_harm_only_themselves() {
    const GROWTH_KIB: i64 = 64 << 10;
    let trial = Trial::of("F17", "13 kinds of hostile receivers beside as many healthy ones");
    let (each, span) = (trial.size(50), secs(5));
    let it = World::start().await;
    for q in 0..HEALTHY_QUEUES {
        it.webhook(&format!("healthy-{q}"), &format!("/healthy/{q}")).await;
    }
    let alone = healthy_p99(&it, "alone", 100, span).await;
    let before = vitals::memory_kib(it.service.pid());

    let (queues, serving) = hostile_webhooks(&it).await;
    for queue in &queues {
        let tasks: Vec<_> = (0..each).map(|n| json!({"id": format!("h{n}"), "payload": n})).collect();
        for some in tasks.chunks(500) {
            it.api.post(&format!("/queues/{queue}/batch"), json!({ "tasks": some })).await.expect(200);
        }
    }
    let beside = healthy_p99(&it, "beside", 100, span).await;
    sleep(secs(3)).await; // longer than a timeout: each kind has had its way
    let after = vitals::memory_kib(it.service.pid());

    println!("healthy p99 {alone} ms alone, {beside} ms beside hostile ones; memory {before} KiB, then {after} KiB");
    let figures = json!({"tasks": each * queues.len() + 200 * HEALTHY_QUEUES, "p99_alone_ms": alone, "p99_beside_ms": beside,
        "memory_growth_kib": after - before});
    report::note(&trial, figures);
    assert!(after - before <= GROWTH_KIB, "{} KiB more", after - before);
    // In CI other things run on the same two cores.
    let allowed = if trial.full { 50 } else { 3_000 };
    assert!(beside - alone <= allowed, "p99 of the healthy grew from {alone} to {beside} ms");
    serving.iter().for_each(JoinHandle::abort);
    for queue in &queues {
        let stats = it.stats(queue).await;
        assert_eq!(stats["enqueued_total"], each, "{stats}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f18_with_few_descriptors_and_a_flood_of_clients() {
    const DESCRIPTORS: u64 = 256;
    let trial = Trial::of("F18", "ulimit -n 256 and 500 clients that send half a head");
    let it = Arc::new(World::start().await);
    it.webhook("q", "/hook").await;
    it.schedule("q", json!({"id": "first", "payload": 0})).await;
    it.receiver.wait_for_task("first", secs(10)).await;
    let pid = Pid::from_raw(i32::try_from(it.service.pid()).expect("fits"));
    let few = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
    prlimit(pid, Resource::Nofile, few).expect("our own child");

    let address = it.service.address().to_owned();
    let slow: Vec<_> = (0..500).map(|_| tokio::spawn(half_a_head(address.clone()))).collect();
    let mut took = Vec::new();
    let rounds = trial.size(100);
    for n in 0..rounds {
        let began = Instant::now();
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
        took.push(began.elapsed());
        sleep(ms(50)).await;
    }
    took.sort();
    let p99 = took[took.len() * 99 / 100];
    for open in join_all(slow).await {
        let open = open.expect("the client ends");
        assert!(open < secs(40), "a head was waited for {open:?}");
    }
    it.receiver.wait_for(rounds + 1, secs(30)).await;
    let stats = it.at_rest("q").await;
    println!("calls beside the flood: p99 {p99:?}; failed attempts {}", stats["failed_attempts_total"]);
    report::note(&trial, json!({"tasks": rounds, "p99_ms": p99.as_millis(), "failed": stats["failed_attempts_total"]}));
    assert_eq!((&stats["delivered_total"], &stats["dead_total"]), (&json!(rounds + 1), &json!(0)), "{stats}");
    let allowed = if trial.full { ms(100) } else { secs(2) };
    assert!(p99 < allowed, "{p99:?}");
}

/// Sends half a head and waits to be cut; gives how long that took from the connection on.
async fn half_a_head(address: String) -> Duration {
    let Ok(mut stream) = TcpStream::connect(address).await else { return Duration::ZERO };
    let began = Instant::now();
    let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n").await;
    let mut some = [0; 256];
    let _ = timeout(secs(60), stream.read(&mut some)).await;
    began.elapsed()
}

/// Requests that a client could send, to be damaged.
const BODIES: [&str; 6] = [
    r#"{"id":"a","payload":{"n":1},"delay":"1h30m","retry":{"max_attempts":3,"backoff":{"kind":"fixed","delay":"1s"}}}"#,
    r#"{"payload":[1e400,"\u00e9",null],"run_at":"2027-01-01T00:00:00+01:00","headers":{"x-a":"b"},"timeout":"PT10S"}"#,
    r#"{"payload":null,"delay_ms":3600000,"expires_after":"2h"}"#,
    r#"{"tasks":[{"payload":1,"delay":"1h"},{"payload":2,"id":"b","delay":"1h"}],"atomic":true}"#,
    r#"{"url":"http://[::1]:80/a?b=c","headers":{"authorization":"x"},"secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#,
    r#"{"max":10,"lease":"30s","wait":"0s"}"#,
];
const TARGETS: [&str; 8] = [
    "POST /queues/q/tasks",
    "PUT /queues/q/tasks/a",
    "PATCH /queues/q/tasks/a",
    "POST /queues/q/batch",
    "POST /queues/q/webhooks",
    "PUT /queues/q",
    "POST /queues/q/claim",
    "POST /queues/q/tasks/a/ack",
];

/// Bytes turned, cut, doubled or replaced by what parsers trip over.
fn damaged(text: &str, rng: &mut fastrand::Rng) -> Vec<u8> {
    const TRIPS: [&str; 10] =
        ["\"", "{", "[[[[[[[[", "\\ud800", "1e999", "-0", "999999999999999999999", "\u{0}", "PT99999999999H", "é"];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(0..=bytes.len());
        let to = rng.usize(at..=bytes.len().min(at + 12));
        match rng.u8(0..5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
            1 => drop(bytes.drain(at..to)),
            2 => bytes.truncate(at),
            3 => {
                let piece = bytes[at..to].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => drop(bytes.splice(at..to, TRIPS[rng.usize(0..TRIPS.len())].bytes())),
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f20_damaged_requests_are_refused_or_done() {
    let trial =
        Trial::of("F20", "damaged bodies at every kind of call; no nightly compiler, so no coverage-guided fuzzing");
    let (mut rng, rounds) = (trial.rng("bodies"), trial.size(3_000));
    let it = World::start().await;
    it.webhook("sane", "/hook").await;
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for _ in 0..rounds {
        let (method, target) = TARGETS[rng.usize(0..TARGETS.len())].split_once(' ').expect("two words");
        let body = damaged(BODIES[rng.usize(0..BODIES.len())], &mut rng);
        let shown = String::from_utf8_lossy(&body).into_owned();
        let answer = it.api.try_call(method.parse().expect("a method"), target, Some(body.into())).await;
        let answer = answer.unwrap_or_else(|e| panic!("{method} {target} {shown}: {e}"));
        assert!(answer.status < 500, "{method} {target} {shown}: {} {}", answer.status, answer.text());
        *statuses.entry(answer.status).or_default() += 1;
    }
    it.sentinel("sane", "after").await;
    println!("{statuses:?}");
    report::note(&trial, json!({"tasks": rounds, "statuses": format!("{statuses:?}")}));
    assert!(statuses.keys().filter(|status| **status < 300).count() > 0, "some are not damaged enough to matter");
}
