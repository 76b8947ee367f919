//! A Redis that Sentinels watch: the service follows the primary, wherever it goes.

use std::time::{Duration, Instant};

use axum::http::Method;
use futures_util::future::join_all;
use serde_json::json;

use crate::{
    support::{
        Client, Receiver, Sentinels, Service, eventually,
        load::Load,
        secs,
        sentinel::MASTER,
        service, until,
        world::{assert_balanced, figure},
    },
    topology_kit::{queues, register, whole_life},
};

/// Until calls are answered again: down-after and 15 s.
const BACK_WITHIN: Duration = secs(16);

#[tokio::test]
async fn c180_passwords_and_the_database_are_the_nodes_own() {
    let options = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let (sentinels, receiver) =
        tokio::join!(Sentinels::start_with(&options, Some("pw1"), Some("pw2")), Receiver::start());
    let list = format!("redis://:pw1@{}/8", sentinels.list());
    let flags = ["--redis-sentinel", &list, "--redis-sentinel-master", "mymaster"];
    let service = Service::builder_on(&flags).env("DUEPOST_REDIS_SENTINEL_PASSWORD", "pw2").start().await;
    let api = service.client();
    register(&api, &receiver).await;

    whole_life(&api, &receiver).await;
    let load = Load::start(&api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;
    let asked = Instant::now();
    let now = sentinels.fail_over().await;
    // until the service is told, the old primary takes writes that nobody will have: a Sentinel does not stop it first
    let follows = format!("primaries=\"127.0.0.1:{}\"", sentinels.nodes[now].port());
    eventually(secs(5), async || service.stderr().contains(&follows)).await;
    let followed = Instant::now();
    load.goes_on(&queues(), BACK_WITHIN).await;

    let journal = load.stop().await;
    eprintln!("SENTINEL FAILOVER, {:?}: {}", followed - asked, journal.told());
    journal.only_503();
    journal.all_arrive_but_between(asked, followed, &receiver).await;
    let keyspace = sentinels.nodes[now].ask("INFO keyspace").await.expect("it runs");
    let databases: Vec<&str> = keyspace.lines().filter(|line| line.starts_with("db")).collect();
    assert!(matches!(databases[..], [one] if one.starts_with("db8:")), "{databases:?}");
    for secret in ["pw1", "pw2"] {
        assert!(!service.stderr().contains(secret) && !service.stdout().contains(secret));
    }
}

#[tokio::test]
async fn c122_a_killed_primary_is_replaced_though_the_first_sentinel_is_gone_too() {
    let (mut sentinels, receiver) = tokio::join!(Sentinels::start(), Receiver::start());
    let service = Service::on_sentinels(&sentinels).start().await;
    let api = service.client();
    register(&api, &receiver).await;
    let load = Load::start(&api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;

    sentinels.sentinels[0].kill9();
    let killed = Instant::now();
    sentinels.nodes[0].kill9();
    load.goes_on(&queues(), BACK_WITHIN).await;
    eprintln!("all queues go on {:?} after the kill", killed.elapsed());

    // the old primary comes back, believes for a moment that it is still one, and is told
    let now = sentinels.primary_other_than(0).await;
    sentinels.nodes[0].restart().await;
    load.goes_on(&queues(), BACK_WITHIN).await;
    let journal = load.stop().await;
    eprintln!("{}", journal.told());
    journal.only_503();
    journal.all_arrive_but(killed, &receiver).await;

    // c123: nobody is left to ask, and nobody to work; and all come back
    for sentinel in &mut sentinels.sentinels {
        sentinel.kill9();
    }
    for node in &mut sentinels.nodes {
        node.kill9();
    }
    let ready = async || api.try_call(Method::GET, "/readyz", None).await.map_or(0, |answer| answer.status);
    eventually(secs(10), async || ready().await == 503).await;
    for node in &mut sentinels.nodes {
        node.restart().await; // as primary or replica, as their options say: node 0
    }
    let port = sentinels.nodes[now].port().to_string();
    for (at, node) in sentinels.nodes.iter().enumerate() {
        let to: [&str; 3] = if at == now { ["REPLICAOF", "NO", "ONE"] } else { ["REPLICAOF", "127.0.0.1", &port] };
        let _: String = node.command(&to).await;
    }
    for sentinel in &mut sentinels.sentinels {
        sentinel.restart();
    }
    eventually(secs(20), async || ready().await == 200).await;
    let load = Load::start_as("again", &api, &queues());
    load.goes_on(&queues(), BACK_WITHIN).await;
    load.stop().await.all_arrive(&receiver).await;
}

/// A primary that does not answer for so long, in milliseconds, is replaced.
async fn patience(sentinels: &Sentinels, ms: &str) {
    for sentinel in &sentinels.sentinels {
        let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", ms];
        eventually(secs(10), async || sentinel.ask::<String>(&set).await.is_some()).await;
    }
}

/// What the replicas of this node say to be let in.
async fn let_in(sentinels: &Sentinels, primary: usize, password: &str) {
    for (_, node) in sentinels.nodes.iter().enumerate().filter(|(at, _)| *at != primary) {
        node.command::<()>(&["CONFIG", "SET", "masterauth", password]).await;
    }
}

/// What no replica has goes with its primary. Who asks for replicas is told that it is not known; who does not is told 201, by
/// the policy that the documents state.
#[tokio::test]
async fn c140_an_answer_that_replicas_were_not_waited_for_may_be_lost_and_one_that_names_them_is_not() {
    const PASSWORD: &str = "right";
    const TASKS: usize = 100;
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let (mut sentinels, receiver) =
        tokio::join!(Sentinels::start_with(&durable, Some(PASSWORD), None), Receiver::start());
    // nobody takes over before the time comes, also if this machine stands still for a moment
    patience(&sentinels, "60000").await;
    let old = sentinels.primary().await;
    let list = format!("redis://:{PASSWORD}@{}", sentinels.list());
    let flags = ["--redis-sentinel", &list, "--redis-sentinel-master", MASTER];
    let on = || Service::builder_on(&flags);
    let named = on().flag("--durability", "replica").flag("--replica-timeout", "300ms");
    let (plain_service, named_service) = tokio::join!(on().start(), named.start());
    let (plain, named) = (plain_service.client(), named_service.client());
    plain.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    let post = async |api: &Client, id: &str| {
        let delay = if id.starts_with("plain") { "1h" } else { "5s" };
        let task = json!({"id": id, "payload": id, "delay": delay});
        api.try_call(Method::POST, "/queues/q/tasks", Some(task.into())).await.expect("an answer")
    };
    let kept = post(&named, "kept").await.expect(201);
    assert_eq!(kept.header("duepost-durability"), Some("replica"));

    // replicas that are not let in: nothing reaches them, and all else goes on
    let_in(&sentinels, old, "wrong").await;
    sentinels.nodes[old].command::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    eventually(secs(10), async || sentinels.nodes[old].replicas_online().await == 0).await;
    // at once: a replica that was away for ten seconds would not be made the primary
    let plains: Vec<String> = (0..TASKS).map(|n| format!("plain{n}")).collect();
    let nameds = ["named0", "named1", "named2"];
    let (told, unknown) =
        tokio::join!(join_all(plains.iter().map(|id| post(&plain, id))), join_all(nameds.map(|id| post(&named, id))));
    for answer in told {
        let level = answer.header("duepost-durability").map(str::to_owned);
        assert_eq!((answer.expect(201).status, level.as_deref()), (201, Some("disk")), "no more than what is there");
    }
    for answer in unknown {
        assert_eq!(answer.status, 503, "nobody else has it: {}", answer.text());
    }

    sentinels.nodes[old].kill9();
    let_in(&sentinels, old, PASSWORD).await;
    patience(&sentinels, "2000").await;
    let began = Instant::now();
    sentinels.primary_other_than(old).await;
    println!("another primary after {:?}", began.elapsed());
    for id in nameds {
        until(secs(30), async || Some(post(&named, id).await).filter(|a| matches!(a.status, 200 | 201))).await;
    }
    let mut lost = 0;
    for id in &plains {
        let read = async || plain.get(&format!("/queues/q/tasks/{id}")).await;
        let read = until(secs(30), async || Some(read().await).filter(|a| a.status != 503)).await;
        lost += usize::from(read.status == 404);
    }
    println!("{lost} of {TASKS} tasks went with their primary");
    assert_eq!(lost, TASKS, "the replicas had some: nothing is shown");
    for id in nameds.iter().chain(&["kept"]) {
        receiver.wait_for_task(id, secs(60)).await;
    }
    let stats = async || plain.get("/queues/q/stats").await.expect(200).json();
    eventually(secs(30), async || figure(&stats().await, "delivered_total") == 4).await;
    let stats = stats().await;
    assert_balanced(&stats);
    assert_eq!(stats["enqueued_total"], 4, "{stats}");
    let fsck = service::run(&[&["fsck"], &flags[..]].concat());
    assert!(fsck.status.success(), "{}", String::from_utf8_lossy(&fsck.stdout));
}
