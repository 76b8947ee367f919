//! A Redis that Sentinels watch: the service follows the primary, wherever it goes.

use std::time::{Duration, Instant};

use axum::http::Method;

use crate::{
    support::{Receiver, Sentinels, Service, eventually, load::Load, secs},
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
