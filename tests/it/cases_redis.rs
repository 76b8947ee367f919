//! Real cases, group H: what Redis does to its clients, and that none of it needs a restart of ours.

use std::time::Instant;

use deadpool_redis::redis::{self, FromRedisValue};
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{
    Answer, Client, Gate, Receiver, RedisServer, Service, World, eventually,
    link::Link,
    load::Load,
    ms, parse_ms, secs, size, until, vitals,
    world::{TOLERANCE_MS, at_rest},
};

/// One command as a user who is let in whatever becomes of the service's own.
async fn as_admin<T: FromRedisValue>(redis: &RedisServer, args: &[&str]) -> T {
    let client = redis::Client::open(format!("redis://admin:admin@127.0.0.1:{}", redis.port())).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("the admin is let in");
    let answer = redis::cmd(args[0]).arg(&args[1..]).query_async(&mut connection).await;
    answer.unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

#[tokio::test]
async fn c115_a_service_that_was_refused_is_let_in_again() {
    let held = size(ms(1_500), secs(20));
    let redis =
        RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "no", "--requirepass", "right"]).await;
    redis.command::<()>(&["ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all"]).await;
    let it = World::on(redis).await;
    it.webhook("q", "/hook").await;
    it.sentinel("q", "before").await;
    let gates: Vec<String> = it.redis.command(&["KEYS", "dp:*:q:gate"]).await;
    let agenda = gates[0].replace("q:gate", "agenda");

    let faults: [(&str, &[&str], &[&str], bool); 3] = [
        ("password", &["CONFIG", "SET", "requirepass", "other"], &["CONFIG", "SET", "requirepass", "right"], true),
        ("user", &["ACL", "SETUSER", "default", "off"], &["ACL", "SETUSER", "default", "on"], true),
        ("command", &["ACL", "SETUSER", "default", "-zadd"], &["ACL", "SETUSER", "default", "+zadd"], false),
    ];
    for (fault, begins, ends, kills) in faults {
        let (due, down) = (format!("{fault}-due"), json!({"id": format!("{fault}-down"), "payload": 1}));
        it.schedule("q", json!({"id": due, "payload": 1, "delay": "1s"})).await;
        as_admin::<()>(&it.redis, begins).await;
        if kills {
            as_admin::<i64>(&it.redis, &["CLIENT", "KILL", "TYPE", "normal"]).await;
            as_admin::<i64>(&it.redis, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        }
        let ready = async || it.api.get("/readyz").await;
        as_admin::<i64>(&it.redis, &["ZADD", &agenda, "0", "q"]).await; // whose visit is refused
        let post = async || it.api.post("/queues/q/tasks", &down).await;
        // the first may meet a connection that was cut, of which nothing is known
        eventually(secs(10), async || post().await.text().contains("/problems/unavailable")).await;
        eventually(secs(10), async || ready().await.text().contains("refuses the service")).await;
        let end = Instant::now() + held;
        while Instant::now() < end {
            post().await.problem(503, "unavailable");
            ready().await.problem(503, "unavailable");
            tokio::time::sleep(ms(50)).await;
        }

        // in the words of Redis, or of Valkey
        let told = if kills { ["AuthenticationFailed"; 2] } else { ["run this command", "no permissions to run"] };
        eventually(secs(15), async || told.iter().any(|told| it.service.stderr().contains(told))).await;

        as_admin::<()>(&it.redis, ends).await;
        eventually(secs(30), async || ready().await.status == 200).await;
        post().await.expect(201); // what was refused was not done
        it.receiver.wait_for_task(&due, secs(30)).await;
        it.sentinel("q", &format!("{fault}-after")).await;
        pulled_by_ring(&it.api, &it.api, fault).await;
    }
    it.at_rest("q").await;
}

/// A claim that waits here gets what is posted there. Without a ring it would look again after ten seconds.
async fn pulled_by_ring(here: &Client, there: &Client, queue: &str) {
    let post = async {
        tokio::time::sleep(ms(300)).await; // the claim waits; if not yet, it finds the task at once
        there.post(&format!("/queues/{queue}/tasks"), json!({"id": "pulled", "payload": 1})).await.expect(201);
        Instant::now()
    };
    let claim = async {
        let answer = here.post(&format!("/queues/{queue}/claim"), json!({"wait": "20s"})).await.expect(200).json();
        assert_eq!(answer["tasks"][0]["id"], "pulled", "{answer}");
        let token = json!({"token": answer["tasks"][0]["lease"]["token"]});
        here.post(&format!("/queues/{queue}/tasks/pulled/ack"), token).await.expect(200);
    };
    let (posted, ()) = tokio::join!(post, claim);
    assert!(posted.elapsed() < secs(6), "heard of after {:?}", posted.elapsed());
}

/// How late a task arrived, in milliseconds.
async fn lateness(receiver: &Receiver, task: &Value) -> i64 {
    let arrived = receiver.wait_for_task(task["id"].as_str().expect("an id"), secs(60)).await;
    arrived.at_ms - parse_ms(task["run_at"].as_str().expect("an instant"))
}

/// Away for longer than a task may be late, so that one that waits for as much longer is seen.
#[tokio::test]
async fn c117_an_outage_before_its_time_makes_a_task_no_later() {
    let (due, from, away) = size((secs(11), ms(500), secs(9)), (secs(60), secs(20), secs(10)));
    let task = json!({"id": "t", "payload": 1, "delay_ms": u64::try_from(due.as_millis()).expect("fits")});
    let silent = async {
        let redis = RedisServer::start().await;
        let link = Link::to(&redis).await;
        let service = Service::builder_at(&link.url()).start().await;
        let it = World { api: service.client(), service, receiver: Receiver::start().await, redis };
        it.webhook("q", "/hook").await;
        let task = it.schedule("q", &task).await;
        tokio::time::sleep(from).await;
        link.silence(true);
        tokio::time::sleep(away).await;
        link.silence(false);
        lateness(&it.receiver, &task).await
    };
    let restarted = async {
        let mut it = World::start().await;
        it.webhook("q", "/hook").await;
        let task = it.schedule("q", &task).await;
        tokio::time::sleep(from).await;
        it.redis.kill9();
        tokio::time::sleep(away).await;
        it.redis.restart().await;
        lateness(&it.receiver, &task).await
    };
    let (silent, restarted) = tokio::join!(silent, restarted);
    println!("{silent} ms late after a silence, {restarted} ms after a restart");
    for late in [silent, restarted] {
        assert!((0..3 * TOLERANCE_MS).contains(&late), "{late} ms");
    }
}

#[tokio::test]
async fn c118_without_its_subscription_a_service_looks_and_subscribes_again() {
    let it = World::start().await;
    let link = Link::to(&it.redis).await;
    let service = Service::builder_at(&link.url()).start().await;
    let api = service.client();
    let subscribed = async |n: usize| {
        let told: (String, usize) = it.redis.command(&["PUBSUB", "NUMSUB", "dp:bell"]).await;
        told.1 >= n
    };
    it.webhook("q", "/hook").await;
    it.sentinel("q", "before").await;
    eventually(secs(10), async || link.subscriptions() > 0 && subscribed(2).await).await;

    for fault in ["deaf", "killed"] {
        let before = link.subscriptions();
        if fault == "deaf" {
            link.deafen_subscriptions();
        } else {
            it.redis.command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        }
        // the one that knows of the task stands still, so the other has to find it
        let task = it.schedule("q", json!({"id": fault, "payload": 1, "delay": "1s"})).await;
        it.service.signal(Signal::STOP);
        let late = lateness(&it.receiver, &task).await;
        it.service.signal(Signal::CONT);
        println!("{fault}: {late} ms late");
        assert!(late >= 0, "{fault}: {late} ms");
        eventually(secs(15), async || link.subscriptions() > before && subscribed(2).await).await;
        pulled_by_ring(&api, &it.api, fault).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c135_calls_that_clients_gave_up_mix_up_nothing() {
    let (clients, rounds) = size((100, 4), (500, 20));
    let redis = RedisServer::start().await;
    let link = Link::to(&redis).await;
    let service = Service::builder_at(&link.url()).start().await;
    let (api, mut dice) = (service.client(), fastrand::Rng::with_seed(135));
    let one = async |id: String| {
        let began = Instant::now();
        let task = json!({"id": id, "payload": {"of": id}, "delay": "1h"});
        let made = api.post("/queues/q/tasks", task).await.expect(201).json();
        assert_eq!(made["id"], id, "somebody else's answer");
        let read = api.get(&format!("/queues/q/tasks/{id}")).await.expect(200).json();
        assert_eq!((&read["id"], &read["payload"]["of"]), (&json!(id), &json!(id)), "somebody else's answer");
        began.elapsed()
    };
    let many = async |name: &str| {
        let mut took = Vec::new();
        for piece in 0..10 {
            took.extend(join_all((0..20).map(|n| one(format!("{name}-{piece}-{n}")))).await);
        }
        took.sort();
        took[took.len() / 2]
    };
    let before = many("before").await;
    link.delay(ms(200));
    for round in 0..rounds {
        let given_up = (0..clients).map(|n| (n, ms(dice.u64(1..=100)))).map(async |(n, patience)| {
            let body = format!(r#"{{"id":"gone-{round}-{n}","payload":"gone","delay":"1h"}}"#);
            let head = "POST /queues/q/tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length:";
            let mut stream = TcpStream::connect(service.address()).await.expect("the service listens");
            stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).await.expect("it reads");
            tokio::time::sleep(patience).await;
            stream.set_zero_linger().expect("a socket"); // a reset when it is dropped
        });
        join_all(given_up).await;
    }
    link.delay(ms(0));
    let mut round = 0;
    let after = until(secs(60), async || {
        round += 1;
        Some(many(&format!("after{round}")).await).filter(|after| *after < 3 * before + ms(200))
    });
    let after = after.await;
    println!("a POST and a GET take {before:?}, after {} calls that were given up {after:?}", clients * rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c142_connections_that_break_again_and_again_stop_nobody_from_working() {
    let (kills, restarts) = size((8, 2), (57, 5));
    let mut redis = RedisServer::start().await;
    let (service, receiver) = (Service::serve(&redis).await, Receiver::start().await);
    let api = service.client();
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    let load = Load::start(&api, &["q".to_owned()]);
    for _ in 0..kills {
        tokio::time::sleep(ms(700)).await;
        redis.command::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        redis.command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    }
    for _ in 0..restarts {
        redis.restart().await;
        tokio::time::sleep(size(ms(1_500), secs(6))).await;
    }
    let broken = Instant::now();
    let journal = load.stop().await;
    journal.only_503();
    journal.all_arrive(&receiver).await;
    println!("{}; all there {:?} after the last break", journal.told(), broken.elapsed());
    // not a lease: what was claimed on a connection that broke may have to wait for its end
    assert!(broken.elapsed() < secs(25), "{:?}", broken.elapsed());
    assert!(journal.accepted.len() > kills, "{}", journal.told());
    at_rest(&redis, &api, "q").await;
}

/// At rest: `an_idle_service_leaves_redis_alone`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c143_without_redis_a_service_is_quiet_and_knocks_now_and_then() {
    const QUEUES: usize = 20;
    let span = size(secs(8), secs(60));
    let mut it = World::start().await;
    let gate = Gate::new();
    it.receiver.on("/held", Answer::status(200).held_by(&gate));
    for n in 0..QUEUES {
        let (queue, path) = (format!("q{n}"), if n == 0 { "/held" } else { "/hook" });
        it.webhook(&queue, path).await;
        it.schedule(&queue, json!({"id": "due", "payload": 1, "delay": "2s"})).await;
    }
    // outcomes that cannot be settled, leases that cannot be renewed, and tasks that come due meanwhile
    for n in 0..50 {
        it.schedule("q0", json!({"id": format!("held{n}"), "payload": n})).await;
    }
    it.receiver.wait_for(50, secs(30)).await;
    let waiting = tokio::spawn({
        let api = it.api.clone();
        async move { api.post("/queues/pulled/claim", json!({"wait": "1s"})).await.status }
    });
    it.redis.kill9();
    // somebody who counts those who knock, and sends them away
    let door = tokio::net::TcpListener::bind(("127.0.0.1", it.redis.port())).await.expect("its port");
    gate.open();
    let (lines, cpu) = (it.service.stderr().lines().count(), vitals::cpu(it.service.pid()));
    let (end, mut knocks) = (tokio::time::Instant::now() + span, 0);
    while let Ok(Ok(_)) = tokio::time::timeout_at(end, door.accept()).await {
        knocks += 1;
    }
    drop(door);
    let cpu = vitals::cpu(it.service.pid()) - cpu;
    let lines = it.service.stderr().lines().count() - lines;
    println!("in {span:?} without Redis: {cpu:?} of a core, {lines} lines, {knocks} connections");
    let seconds = span.as_secs() as usize;
    assert!(lines < 2 * seconds, "{lines} lines:\n{}", it.service.stderr());
    assert!(it.service.stderr().contains("left_out="), "what is left out is counted:\n{}", it.service.stderr());
    assert!(cpu < span / 20, "{cpu:?} of {span:?}");
    assert!(knocks < 100 * seconds, "{knocks} connections");
    let _ = waiting.await;

    it.redis.restart().await;
    until(secs(30), async || (it.receiver.count() >= 50 + QUEUES).then_some(())).await;
    for n in 0..QUEUES {
        it.at_rest(&format!("q{n}")).await;
    }
}
