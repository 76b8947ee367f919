//! F7, F8: the network between clients and services, and between services and Redis.

use tokio::time::sleep;

use crate::{
    check::LAPSED,
    load::Load,
    proxy::{Proxy, Ways},
    rig::{Rig, Setup},
    support::{RedisServer, ms, now_ms, secs, world::figure},
    trial::Trial,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_answers_to_clients_are_eaten() {
    let trial = Trial::of("F7", "a fifth of the answers to clients is eaten, and their connections reset");
    let tasks = trial.size(2_500);
    let load = Load { own_ids: 100, ..Load::new(tasks, secs(8) * trial.size(1) as u32) };
    let redis = RedisServer::start().await;
    let proxy_rng = trial.rng("proxy");
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 1, load).await;
    let port = rig.services[0].address().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let proxy = Proxy::to(port, proxy_rng).await;
    rig.targets.set([proxy.address()]);
    proxy.set(Ways { eats: 20, ..Ways::default() });
    rig.begin();
    let outcome = rig.finish().await;
    println!("{} answers were eaten", proxy.broken());
    outcome.passes();
    assert_eq!(outcome.findings.doubled() - outcome.findings.doubles.get(LAPSED).unwrap_or(&0), 0);
    let created: i64 = outcome.stats.iter().map(|stats| figure(stats, "enqueued_total")).sum();
    assert_eq!(created, tasks as i64, "one task for each id");
    assert!(proxy.broken() > tasks / 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_the_way_to_redis_is_bad() {
    let trial =
        Trial::of("F8", "to Redis: latency, jitter, resets in mid-answer, answers eaten, a 5 s black hole, slices");
    let (tasks, events) = (trial.size(3_000), trial.size(12));
    let mut rng = trial.rng("faults");
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.port(), trial.rng("proxy")).await;
    let setup = Setup::on(&format!("redis://{}", proxy.address()));
    let mut rig = Rig::start(trial, setup, 2, Load::new(tasks, secs(2) * events as u32)).await;
    rig.begin();
    for n in 0..events {
        sleep(ms(rng.u64(100..600))).await;
        let from = now_ms();
        let (name, ways, lasts) = match n % 6 {
            0 => ("latency to redis", Ways { latency: ms(200), ..Ways::default() }, 1_000),
            1 => ("jitter to redis", Ways { jitter: ms(300), ..Ways::default() }, 1_000),
            2 => ("answers of redis cut", Ways { cuts: 10, ..Ways::default() }, 1_500),
            3 => ("answers of redis sliced", Ways { slices: true, ..Ways::default() }, 500),
            4 => ("answers of redis eaten", Ways { eats: 10, ..Ways::default() }, 1_500),
            _ => ("black hole to redis", Ways { black_hole: true, ..Ways::default() }, 5_000),
        };
        proxy.set(ways);
        sleep(ms(lasts)).await;
        proxy.set(Ways::default());
        rig.fault(name, from - 500..=now_ms() + 3_000);
    }
    let outcome = rig.finish().await;
    println!("{} answers of Redis were broken", proxy.broken());
    // Answers about another task than the one asked for are wrong answers: the clients look.
    outcome.passes();
    assert!(proxy.broken() > 0);
}
