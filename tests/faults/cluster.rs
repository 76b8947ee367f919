//! F9 to F11: a Cluster loses primaries and moves slots, Sentinels fail over.

use tokio::time::sleep;

use crate::{
    load::Load,
    redis::longest_gap,
    rig::{Outcome, Rig, Setup},
    support::{
        Cluster, Sentinels,
        cluster::NODE_TIMEOUT,
        ms, now_ms, secs,
        sentinel::{DOWN_AFTER, MASTER},
        until,
    },
    trial::Trial,
};

/// News of a delivery may be on its way so long before the fault.
const BEFORE_MS: i64 = 1_000;
/// A settle whose outcome is not known is repeated so long after the fault, at most.
const REPEATS_MS: i64 = 6_000;
/// What electing and finding the new primary may take once the old one is seen to be dead; more in CI, where other things
/// run on the same two cores.
const fn slack(full: bool) -> i64 {
    if full { 3_000 } else { 15_000 }
}

pub fn on_cluster(cluster: &Cluster) -> Setup {
    Setup { redis: vec!["--redis-cluster".into(), cluster.seeds()], ..Setup::on("") }
}

fn on_sentinels(sentinels: &Sentinels) -> Setup {
    let flags = ["--redis-sentinel", &sentinels.list(), "--redis-sentinel-master", MASTER];
    Setup { redis: flags.map(str::to_owned).to_vec(), ..Setup::on("") }
}

/// Who holds the slot by the word of one node.
async fn owner(cluster: &Cluster, asked: usize, slot: u16) -> Option<usize> {
    let nodes = cluster.nodes[asked].ask("CLUSTER NODES").await?;
    let id = nodes.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let holds = |range: &&str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(f), Ok(l)) if (f..=l).contains(&slot))
        };
        let primary = fields.get(2)?.contains("master") && !fields[2].contains("fail");
        (primary && fields[8..].iter().any(holds)).then(|| fields[0].to_owned())
    })?;
    (0..cluster.nodes.len()).find(|at| cluster.id(*at) == id)
}

/// Waits until another node than this one holds the slot.
async fn taken_over(cluster: &Cluster, slot: u16, from: usize) -> usize {
    let asked = (0..cluster.nodes.len()).filter(|at| *at != from);
    let asked: Vec<usize> = asked.collect();
    until(secs(60), async || {
        for at in &asked {
            if let Some(now) = owner(cluster, *at, slot).await.filter(|now| *now != from) {
                return Some(now);
            }
        }
        None
    })
    .await
}

/// How a Cluster loses a primary.
#[derive(Debug, Clone, Copy)]
pub enum Loss {
    /// SIGKILL.
    Killed,
    /// SIGSTOP past the timeout; it wakes up and does not know that it is one no longer.
    Zombie,
    /// SIGKILL while its replica is behind: what only it had is gone.
    Ahead,
}

pub const LOSSES: [Loss; 3] = [Loss::Killed, Loss::Zombie, Loss::Ahead];

/// The replica of a primary, by the word of the primary.
async fn replica_of(cluster: &Cluster, primary: usize) -> usize {
    until(secs(30), async || {
        let nodes = cluster.nodes[primary].ask("CLUSTER NODES").await?;
        let is_its = |line: &&str| line.split_whitespace().nth(3) == Some(cluster.id(primary));
        let id = nodes.lines().find(is_its)?.split_whitespace().next()?.to_owned();
        (0..cluster.nodes.len()).find(|at| cluster.id(*at) == id)
    })
    .await
}

/// The primary of a queue is lost, and comes back as a replica. Gives when that was.
pub async fn lose_primary(cluster: &mut Cluster, queue: &str, loss: Loss) -> i64 {
    let slot = Cluster::slot_of(queue);
    let primary = cluster.primary_of(slot).await;
    let mut lost = now_ms();
    match loss {
        Loss::Killed => cluster.nodes[primary].kill9(),
        Loss::Zombie => cluster.nodes[primary].freeze(),
        Loss::Ahead => {
            let replica = replica_of(cluster, primary).await;
            cluster.nodes[replica].freeze();
            // What is in its socket would still be read.
            let _: i64 = cluster.nodes[primary].command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
            sleep(NODE_TIMEOUT / 2).await;
            lost = now_ms();
            cluster.nodes[primary].kill9();
            cluster.nodes[replica].thaw();
        }
    }
    taken_over(cluster, slot, primary).await;
    if matches!(loss, Loss::Zombie) {
        sleep(ms(500)).await;
        cluster.nodes[primary].thaw();
    } else {
        cluster.nodes[primary].restart().await;
    }
    cluster.settled().await;
    lost
}

/// Gives the outcome and when which queue lost its primary.
async fn primaries_are_lost(trial: Trial, level: &str, losses: &[Loss]) -> (Outcome, Vec<(i64, String)>) {
    let tasks = trial.size(3_000);
    let mut rng = trial.rng("faults");
    let mut cluster = Cluster::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let load = Load { push_queues: 8, ..Load::new(tasks, secs(6) * losses.len() as u32) };
    let queues = load.queues();
    let mut rig = Rig::start(trial, on_cluster(&cluster).flag("--durability", level), 2, load).await;
    rig.forgets = true;
    rig.begin();
    let mut lost = Vec::new();
    for loss in losses {
        sleep(ms(rng.u64(800..1_500))).await;
        let queue = &queues[rng.usize(0..queues.len())];
        let at = lose_primary(&mut cluster, queue, *loss).await;
        lost.push((at, queue.clone()));
        rig.fault("failover", at - BEFORE_MS..=now_ms() + REPEATS_MS);
    }
    (rig.finish().await, lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_a_cluster_loses_primaries() {
    let trial = Trial::of("F9", "Cluster 3+3, durability replica: a primary killed, a zombie, or ahead of its replica");
    let (full, losses) = (trial.full, LOSSES.repeat(trial.size(1)));
    let (outcome, lost) = primaries_are_lost(trial, "replica", &losses).await;
    let gap = longest_gap(&outcome, &lost);
    println!("no POST was acknowledged for {gap} ms, at most");
    outcome.passes();
    // Of those that were ahead of their replica, the clients were told nothing for longer.
    let most = NODE_TIMEOUT.as_millis() as i64 + NODE_TIMEOUT.as_millis() as i64 / 2 + slack(full);
    assert!(gap <= most, "{gap} ms");
}

/// If nothing were lost here, the trial above would prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_control_a_cluster_loses_primaries_and_nobody_waited_for_replicas() {
    let trial =
        Trial::of("F9 control", "Cluster 3+3, durability disk: a primary ahead of its replica is killed: must lose");
    let (outcome, _) = primaries_are_lost(trial, "disk", &[Loss::Ahead; 2]).await;
    assert!(!outcome.findings.lost.is_empty(), "what only the primary had is gone");
}

/// The primary is killed so often, its replicas behind it or not. Gives the outcome and when that was.
async fn sentinels_fail_over(trial: Trial, level: &str, kills: usize, ahead: bool) -> (Outcome, Vec<(i64, String)>) {
    let tasks = trial.size(2_500);
    let mut rng = trial.rng("faults");
    let mut all = Sentinels::start_with(&["--appendonly", "yes", "--appendfsync", "always"], None, None).await;
    // A Sentinel may take either replica, so that only what both have is safe.
    let setup = on_sentinels(&all).flag("--durability", level).flag("--replicas", "2");
    let mut rig = Rig::start(trial, setup, 2, Load::new(tasks, secs(8) * kills as u32)).await;
    rig.begin();
    rig.forgets = true;
    let mut killed = Vec::new();
    for _ in 0..kills {
        sleep(ms(rng.u64(800..1_500))).await;
        let primary = all.primary().await;
        let replicas: Vec<usize> = (0..all.nodes.len()).filter(|at| ahead && *at != primary).collect();
        replicas.iter().for_each(|at| all.nodes[*at].freeze());
        if ahead {
            // What is in their sockets would still be read.
            let _: i64 = all.nodes[primary].command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
            sleep(DOWN_AFTER / 2).await;
        }
        all.nodes[primary].kill9();
        let at = now_ms();
        replicas.iter().for_each(|at| all.nodes[*at].thaw());
        let now = all.primary_other_than(primary).await;
        all.nodes[primary].restart().await;
        // As whoever restarts it does; a Sentinel would wait for ten seconds before.
        let port = all.nodes[now].port().to_string();
        let _: String = all.nodes[primary].command(&["REPLICAOF", "127.0.0.1", &port]).await;
        all.settled().await;
        killed.push((at, String::new()));
        rig.fault("failover", at - BEFORE_MS..=now_ms() + REPEATS_MS);
    }
    (rig.finish().await, killed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_sentinels_fail_over() {
    let trial = Trial::of("F10", "Sentinel trio, durability replica, both waited for: SIGKILL of the primary");
    let (kills, full) = (trial.size(2), trial.full);
    let (outcome, killed) = sentinels_fail_over(trial, "replica", kills, false).await;
    let gap = longest_gap(&outcome, &killed);
    println!("no POST was acknowledged for {gap} ms, at most");
    outcome.passes();
    // With both replicas waited for, the third node must be back too.
    const BACK_MS: i64 = 3_000;
    assert!(gap <= DOWN_AFTER.as_millis() as i64 + slack(full) + BACK_MS, "{gap} ms");
}

/// If nothing were lost here, the trial above would prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_control_sentinels_fail_over_and_nobody_waited_for_replicas() {
    let trial = Trial::of(
        "F10 control",
        "Sentinel trio, durability disk: a primary ahead of its replicas is killed: must lose",
    );
    let (outcome, _) = sentinels_fail_over(trial, "disk", 1, true).await;
    assert!(!outcome.findings.lost.is_empty(), "what only the primary had is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f11_slots_move_under_load() {
    let trial = Trial::of("F11", "200 slots of a Cluster move under load, those of the queues among them");
    let (tasks, slots, full) = (trial.size(3_000), trial.size(200), trial.full);
    let cluster = Cluster::start().await;
    let load = Load { push_queues: 8, ..Load::new(tasks, secs(12) * trial.size(1) as u32) };
    let ours: Vec<u16> = load.queues().iter().map(|queue| Cluster::slot_of(queue)).collect();
    let mut rig = Rig::start(trial, on_cluster(&cluster), 2, load).await;
    rig.begin();
    let at = now_ms();
    let others = (0..16_384).step_by(16_384 / slots).map(|slot| slot as u16);
    for slot in ours.iter().copied().chain(others) {
        let from = cluster.primary_of(slot).await;
        let to = (from + 1) % 3;
        cluster.begin_move(slot, from, to).await;
        move_at_once(&cluster, slot, from, to).await;
        cluster.end_move(slot, from, to).await;
    }
    rig.fault("slot moved", at - BEFORE_MS..=now_ms() + REPEATS_MS);
    let outcome = rig.finish().await;
    outcome.passes();
    let refused: usize = outcome.refusals.iter().filter(|(what, _)| what.contains(" 503 ")).map(|(_, n)| n).sum();
    println!("{refused} of the calls for {tasks} tasks were refused");
    // A tenth of a percent; on a busy CI machine a slot can be on its way longer than a call is patient.
    let allowed = if full { tasks / 1_000 } else { tasks / 50 };
    assert!(refused <= allowed, "{:?}", outcome.refusals);
}

/// All keys of a slot in one command, as redis-cli does with slots that have few.
async fn move_at_once(cluster: &Cluster, slot: u16, from: usize, to: usize) {
    let keys: Vec<String> = cluster.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]).await;
    if keys.is_empty() {
        return;
    }
    let port = cluster.nodes[to].port().to_string();
    let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    command.extend(keys.iter().map(String::as_str));
    let _: String = cluster.nodes[from].command(&command).await;
}
