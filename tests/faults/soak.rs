//! The soak: random faults on a Cluster of 3+3 and three services, for `DUEPOST_SOAK_MINUTES` (30).

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{LOSSES, lose_primary, on_cluster},
    load::Load,
    report,
    rig::Rig,
    support::{Cluster, ms, now_ms, secs, vitals},
    trial::Trial,
};

/// So much more memory a service may use in the last third than in the one before.
const GROWTH_KIB: i64 = 32 << 10;
/// Tasks a second: a million in half an hour, and some more. `DUEPOST_SOAK_PACE` for slower machines.
const PACE: u64 = 600;
/// The service that no fault hits, so that its memory can be watched.
const WATCHED: usize = 2;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half an hour: make soak"]
async fn soak() {
    let trial = Trial::of("Soak", "random faults on a Cluster 3+3, durability replica, and three services");
    let span = Duration::from_secs(60 * number("DUEPOST_SOAK_MINUTES", 30));
    let tasks = number("DUEPOST_SOAK_PACE", PACE) * span.as_secs();
    let mut rng = trial.rng("faults");
    let mut cluster = Cluster::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let load = Load { push_queues: 16, pull_queues: 2, ..Load::new(tasks as usize, span) };
    let queues = load.queues();
    let setup = on_cluster(&cluster).flag("--durability", "replica");
    let mut rig = Rig::start(trial.clone(), setup, 3, load).await;
    rig.forgets = true;
    rig.begin();
    let (began, mut memory) = (Instant::now(), Vec::new());
    while began.elapsed() < span {
        sleep(ms(rng.u64(2_000..8_000))).await;
        memory.push(vitals::memory_kib(rig.services[WATCHED].pid()));
        let at = now_ms();
        let victim = rng.usize(0..WATCHED);
        match rng.u8(0..10) {
            0..3 => {
                rig.services[victim].kill9();
                rig.vanished("service killed", at - 1_000..=now_ms() + 1_000);
                rig.services[victim] = rig.setup.start().await;
                rig.retarget();
            }
            3..5 => {
                rig.services[victim].signal(Signal::STOP);
                sleep(ms(rng.u64(5_000..25_000))).await;
                rig.services[victim].signal(Signal::CONT);
                rig.fault("service stood still", at - 1_000..=now_ms() + 1_000);
            }
            5 => {
                let fresh = rig.setup.start().await;
                let mut old = std::mem::replace(&mut rig.services[victim], fresh);
                rig.retarget();
                old.sigterm();
                old.wait_exit(secs(60)).await;
            }
            6 => {
                for node in &cluster.nodes {
                    let _: String = node.command(&["SCRIPT", "FLUSH"]).await;
                    let _: i64 = node.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
                }
                rig.fault("connections killed", at - 1_000..=now_ms() + 6_000);
            }
            kind => {
                let loss = LOSSES[usize::from(kind) % LOSSES.len()];
                let at = lose_primary(&mut cluster, &queues[rng.usize(0..queues.len())], loss).await;
                rig.fault("failover", at - 1_000..=now_ms() + 6_000);
            }
        }
    }
    let outcome = rig.finish().await;
    let third = (memory.len() / 3).max(1);
    let mean = |part: &[i64]| part.iter().sum::<i64>() / part.len().max(1) as i64;
    let (middle, last) = (mean(&memory[third..2 * third]), mean(&memory[2 * third..]));
    println!("memory of the watched service: {middle} KiB in the second third, {last} KiB in the last one");
    let mut row = json!(outcome);
    row["memory_kib"] =
        json!({"first": memory.first(), "second_third": middle, "last_third": last, "most": memory.iter().max()});
    report::note(&trial, row);
    outcome.passes();
    assert!(last - middle <= GROWTH_KIB, "{middle} KiB, then {last} KiB");
}
