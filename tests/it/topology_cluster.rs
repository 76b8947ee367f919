//! A Redis Cluster: all primaries do their share, and one that goes, in whatever way, is noticed.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use duepost::{domain::id::QueueName, store::keys::Keys};
use futures_util::future::join_all;
use serde_json::json;

use crate::{
    support::{Cluster, Receiver, RedisServer, Service, eventually, load::Load, now_ms, secs, until},
    topology_kit::{queues, register, whole_life},
};

/// Until calls are answered again after a primary has gone: noticed, elected, found. On a busy machine.
const BACK_WITHIN: Duration = secs(15);

#[tokio::test]
async fn c124_the_whole_life_of_tasks_on_every_primary() {
    let (cluster, receiver) = (Cluster::start().await, Receiver::start().await);
    let service = Service::on_cluster(&cluster).start().await;
    let api = service.client();
    register(&api, &receiver).await;

    whole_life(&api, &receiver).await;

    for primary in 0..3 {
        let keys: usize = cluster.nodes[primary].command(&["DBSIZE"]).await;
        assert!(keys > 20, "primary {primary} has its share: {keys}");
    }
    assert_eq!(cluster.errors("CROSSSLOT").await, 0);
    let told = service.stderr();
    assert!(!told.contains("CROSSSLOT") && !told.contains("non local key"), "{told}");
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_nothing_is_lost() {
    let (mut cluster, receiver) = (Cluster::start().await, Receiver::start().await);
    let service = Service::on_cluster(&cluster).start().await;
    let api = service.client();
    register(&api, &receiver).await;
    let load = Load::start(&api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;
    let others: Vec<String> = queues().into_iter().filter(|q| slot_at(q) != 0).collect();

    let killed = Instant::now();
    cluster.nodes[0].kill9();
    // nobody waits for the dead one but those whose tasks it has
    load.goes_on(&others, secs(5)).await;
    load.goes_on(&queues(), BACK_WITHIN).await;
    eprintln!("all queues go on {:?} after the kill", killed.elapsed());

    let journal = load.stop().await;
    eprintln!("{}", journal.told());
    journal.only_503();
    journal.all_arrive_but(killed, &receiver).await;
    api.get("/readyz").await.expect(200);
    // and back again: the old primary returns as a replica, and takes over in order
    cluster.nodes[0].restart().await;
    cluster.settled().await;
    let load = Load::start_as("again", &api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;
    cluster.promote(0).await;
    load.goes_on(&queues(), BACK_WITHIN).await;
    let journal = load.stop().await;
    eprintln!("CLUSTER FAILOVER: {}", journal.told());
    journal.only_503();
    journal.all_arrive(&receiver).await;
}

/// Which of the first three primaries has a queue at start.
fn slot_at(queue: &str) -> usize {
    (0..3).rev().find(|i| usize::from(Cluster::slot_of(queue)) >= 16_384 * i / 3).expect("from 0")
}

#[tokio::test]
async fn a_primary_that_hangs_is_replaced() {
    let (cluster, receiver) = (Cluster::start().await, Receiver::start().await);
    let service = Service::on_cluster(&cluster).start().await;
    let api = service.client();
    register(&api, &receiver).await;
    let load = Load::start(&api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;
    let others: Vec<String> = queues().into_iter().filter(|q| slot_at(q) != 1).collect();

    let frozen = Instant::now();
    cluster.nodes[1].freeze();
    load.goes_on(&others, secs(5)).await;
    load.goes_on(&queues(), BACK_WITHIN).await;
    cluster.nodes[1].thaw(); // a zombie for a moment; nobody listens to it any more
    load.goes_on(&queues(), BACK_WITHIN).await;

    let journal = load.stop().await;
    eprintln!("{}", journal.told());
    journal.only_503();
    journal.all_arrive_but(frozen, &receiver).await;
}

#[tokio::test]
async fn slots_move_under_load() {
    let (cluster, receiver) = (Cluster::start().await, Receiver::start().await);
    let service = Service::on_cluster(&cluster).start().await;
    let api = service.client();
    register(&api, &receiver).await;
    let load = Load::start(&api, &queues());
    eventually(secs(20), async || load.accepted() > 100).await;

    let slots: BTreeSet<u16> = queues().iter().map(|queue| Cluster::slot_of(queue)).collect();
    let slots = slots.iter().copied().filter(|slot| usize::from(*slot) < 16_384 / 3);
    let mut moved = 0;
    for slot in slots {
        cluster.begin_move(slot, 0, 2).await;
        let (try_again, ask) = (cluster.errors("TRYAGAIN").await, cluster.errors("ASK").await);
        cluster.move_keys(slot, 0, 2, 1).await;
        if moved == 0 {
            // some keys here, some there
            eventually(secs(5), async || cluster.errors("TRYAGAIN").await > try_again).await;
        }
        while cluster.move_keys(slot, 0, 2, 100).await > 0 {}
        if moved == 0 {
            // all there, and the slot is still this one's
            eventually(secs(5), async || cluster.errors("ASK").await > ask).await;
        }
        cluster.end_move(slot, 0, 2).await;
        moved += 1;
    }
    load.goes_on(&queues(), secs(10)).await;
    assert!(moved > 3 && cluster.errors("MOVED").await > 0);

    let journal = load.stop().await;
    eprintln!("{moved} slots moved: {}", journal.told());
    journal.only_503();
    let refused = journal.statuses.get(&503).copied().unwrap_or(0);
    assert!(refused * 100 <= journal.accepted.len(), "{}", journal.told());
    journal.all_arrive(&receiver).await;
    api.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn the_bell_is_heard_from_every_primary_and_moves_on_when_its_node_goes() {
    let mut cluster = Cluster::start().await;
    let (here, there) = tokio::join!(Service::on_cluster(&cluster).start(), Service::on_cluster(&cluster).start());
    rings(&here, &there, "first").await;

    let mut heard_at = None;
    for (at, node) in cluster.nodes.iter().enumerate() {
        let (_, subscribers): (String, usize) = node.command(&["PUBSUB", "NUMSUB", "dp:bell"]).await;
        heard_at = heard_at.or(Some(at).filter(|_| subscribers > 0));
    }
    let slot = Cluster::slot_of("q0");
    cluster.nodes[heard_at.expect("one has the subscriptions")].kill9();
    let replaced = cluster.primary_of(slot).await;
    assert!(replaced < 6);
    for service in [&here, &there] {
        let ready = async || service.client().get("/readyz").await.status == 200;
        eventually(BACK_WITHIN, ready).await;
    }
    rings(&here, &there, "second").await;
}

/// Claims wait here in every queue, tasks come there: without a ring they would be looked for after 10 s.
async fn rings(here: &Service, there: &Service, id: &str) {
    let (api, other, queues) = (here.client(), there.client(), queues());
    let visits = async || {
        let metrics = api.get("/metrics").await.expect(200).text();
        let line = "duepost_redis_call_seconds_count{call=\"visit\"} ";
        metrics.lines().find_map(|l| l.strip_prefix(line)?.parse::<usize>().ok()).unwrap_or(0)
    };
    let before = visits().await;
    let claims = join_all(queues.iter().map(async |queue| {
        let body = json!({"max": 1, "lease": "30s", "wait": "30s"});
        let answer = api.post(&format!("/queues/{queue}/claim"), body).await.expect(200).json();
        assert_eq!(answer["tasks"][0]["id"], id, "{answer}");
        let token = json!({"token": answer["tasks"][0]["lease"]["token"]});
        api.post(&format!("/queues/{queue}/tasks/{id}/ack"), token).await.expect(200);
    }));
    let ring = async {
        eventually(secs(10), async || visits().await >= before + queues.len()).await;
        let rung = Instant::now();
        join_all(queues.iter().map(async |queue| {
            other.post(&format!("/queues/{queue}/tasks"), json!({"id": id, "payload": 1})).await.expect(201);
        }))
        .await;
        rung
    };
    let (_, rung) = tokio::join!(claims, ring);
    assert!(rung.elapsed() < secs(6), "{:?}", rung.elapsed());
}

#[tokio::test]
async fn a_slot_on_its_way_takes_no_script_so_that_none_breaks_off_half_way() {
    let cluster = Cluster::start().await;
    let service = Service::on_cluster(&cluster).start().await;
    let api = service.client();
    api.post("/queues/q0/tasks", json!({"id": "t", "payload": 1, "delay": "0s"})).await.expect(201);
    let slot = Cluster::slot_of("q0");
    let (from, to) = (slot_at("q0"), (slot_at("q0") + 1) % 3);
    // a queue that has each of its keys, as a busy one may
    let far = (now_ms() + 3_600_000).to_string();
    for key in Keys::new("dp").of_queue(&QueueName::parse("q0").unwrap()) {
        let kind: String = cluster.nodes[from].command(&["TYPE", &key]).await;
        let part = key.rsplit(':').next().unwrap();
        match part {
            _ if kind != "none" => {}
            "holds" | "runs" | "hooks" | "totals" => {
                let _: i64 = cluster.nodes[from].command(&["HSET", &key, "x", "1"]).await;
            }
            _ => {
                let _: i64 = cluster.nodes[from].command(&["ZADD", &key, &far, "x"]).await;
            }
        }
    }
    cluster.begin_move(slot, from, to).await;
    let claim = async || api.post("/queues/q0/claim", json!({"max": 1, "lease": "30s"})).await;

    claim().await.problem(503, "unavailable");
    let due = &Keys::new("dp").of_queue(&QueueName::parse("q0").unwrap())[5];
    let left: i64 = cluster.nodes[from].command(&["EXISTS", due]).await;
    assert_eq!(left, 1, "nothing was taken by a script that could not end: {}", service.stderr());

    while cluster.move_keys(slot, from, to, 100).await > 0 {}
    cluster.end_move(slot, from, to).await;
    let claimed = until(secs(10), async || Some(claim().await).filter(|answer| answer.status == 200)).await.json();
    assert_eq!((&claimed["tasks"][0]["id"], &claimed["tasks"][0]["attempt"]), (&json!("t"), &json!(1)), "{claimed}");
}

#[tokio::test]
async fn c180_a_node_of_a_cluster_is_not_the_one_redis() {
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    let failed = Service::builder(&node).try_start(secs(20)).await.err().expect("it does not start");
    assert!(failed.stderr.contains("use --redis-cluster"), "{failed:?}");
    assert_eq!(failed.status.and_then(|status| status.code()), Some(78));
}
