//! F1 to F3: the services are killed, stopped and restarted.

use rustix::process::Signal;
use tokio::time::sleep;

use crate::{
    check::LAPSED,
    load::Load,
    rig::{Rig, Setup},
    support::{RedisServer, ms, now_ms, secs},
    trial::Trial,
};

/// The receiver may read so long after it what a worker sent before it vanished.
const READS_MS: i64 = 1_000;
/// Calls at once to one webhook from one process, by default.
const SLOTS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_services_are_killed() {
    let trial = Trial::of("F1", "SIGKILL of a random service every 0.5 to 2 s");
    let (tasks, kills) = (trial.size(3_000), trial.size(8));
    let mut rng = trial.rng("faults");
    let redis = RedisServer::start().await;
    let load = Load::new(tasks, secs(1) * kills as u32);
    let webhooks = load.push_queues;
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 3, load).await;
    rig.begin();
    for _ in 0..kills {
        sleep(ms(rng.u64(500..2_000))).await;
        let victim = rng.usize(0..3);
        let killed = now_ms();
        rig.services[victim].kill9();
        rig.vanished("service killed", killed..=now_ms() + READS_MS);
        rig.services[victim] = rig.setup.start().await;
        rig.retarget();
    }
    let outcome = rig.finish().await;
    outcome.passes();
    assert!(outcome.findings.doubled() <= kills * webhooks * SLOTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_service_stands_still() {
    const LEASE: u64 = 3_000;
    let trial = Trial::of("F2", "SIGSTOP of a random service for 1 to 3 leases, then SIGCONT");
    let (tasks, stops) = (trial.size(3_000), trial.size(3));
    let mut rng = trial.rng("faults");
    let redis = RedisServer::start().await;
    let load = Load { cancels: 25, ..Load::new(tasks, secs(7) * stops as u32) };
    let mut rig = Rig::start(trial, Setup::on(&redis.url()).flag("--lease", "3s"), 3, load).await;
    rig.begin();
    for _ in 0..stops {
        sleep(ms(rng.u64(300..1_000))).await;
        let victim = rng.usize(0..3);
        let from = now_ms();
        rig.services[victim].signal(Signal::STOP);
        sleep(ms(rng.u64(LEASE..3 * LEASE))).await;
        rig.services[victim].signal(Signal::CONT);
        rig.fault("service stood still", from - READS_MS..=now_ms() + READS_MS);
    }
    let outcome = rig.finish().await;
    // No attempt after a cancel, and no settle of a stale fence: the checker and the books would tell.
    outcome.passes();
    assert!(outcome.findings.cancelled > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_services_are_replaced_one_by_one() {
    let trial = Trial::of("F3", "SIGTERM of one service after the other, each replaced before");
    let (tasks, restarts) = (trial.size(2_500), trial.size(6));
    let redis = RedisServer::start().await;
    let load = Load { patience: secs(25), ..Load::new(tasks, secs(2) * restarts as u32) };
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 3, load).await;
    rig.begin();
    for n in 0..restarts {
        sleep(ms(500)).await;
        let fresh = rig.setup.start().await;
        let mut old = std::mem::replace(&mut rig.services[n % 3], fresh);
        rig.retarget();
        old.sigterm();
        let status = old.wait_exit(secs(40)).await;
        assert!(status.success(), "{status}");
        if rig.journal.open().refusals.iter().any(|r| r.what.contains("503")) {
            println!("{}", old.stderr());
        }
        rig.fault("none", 0..=0);
    }
    let outcome = rig.finish().await;
    outcome.passes();
    let lapsed = outcome.findings.doubles.get(LAPSED).copied().unwrap_or(0);
    assert_eq!(outcome.findings.doubled(), lapsed, "{:?}", outcome.findings.doubles);
    // A client that chose the old service and comes to its door when it is closed asks another one; nothing was sent.
    let refused: Vec<_> = outcome.refusals.keys().filter(|what| !what.contains("Connection refused")).collect();
    assert!(refused.is_empty(), "{:?}", outcome.refusals);
}
