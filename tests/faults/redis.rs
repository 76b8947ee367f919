//! F4, F5, F12 to F14: Redis is killed, loses power, is full, or is blocked.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::{
    journal::Refusal,
    load::Load,
    rig::{Outcome, Rig, Setup},
    shim::{Disk, cut_power},
    support::{RedisServer, ms, now_ms, secs, until},
    trial::Trial,
};

/// News of a delivery may be on its way to Redis so long before the fault, and come again so long after it.
const AROUND_MS: i64 = 1_000;
/// A settle whose outcome is not known is repeated so long after Redis is back, at most.
const REPEATS_MS: i64 = 6_000;

/// The longest time without an acknowledged POST that began around a fault, each among the queues of this name's start.
pub fn longest_gap(outcome: &Outcome, faults: &[(i64, String)]) -> i64 {
    const AROUND: std::ops::Range<i64> = -500..3_000;
    let mut longest = 0;
    for (at, queues) in faults {
        let told = outcome.journal.told.iter().filter(|told| told.queue.starts_with(queues));
        let mut known: Vec<i64> = told.map(|told| told.known - at).collect();
        known.sort_unstable();
        let gaps = known.windows(2).filter(|pair| AROUND.contains(&pair[0])).map(|pair| pair[1] - pair[0]);
        longest = longest.max(gaps.max().unwrap_or(0));
    }
    longest
}

async fn redis_is_killed(trial: Trial, fsync: &str) {
    let (tasks, kills, full) = (trial.size(3_000), trial.size(5), trial.full);
    let mut rng = trial.rng("faults");
    let mut redis = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", fsync]).await;
    let load = Load::new(tasks, ms(1_500) * kills as u32);
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, load).await;
    rig.begin();
    let mut killed_at = Vec::new();
    for _ in 0..kills {
        sleep(ms(rng.u64(500..1_500))).await;
        let killed = now_ms();
        redis.kill9();
        sleep(ms(rng.u64(0..300))).await;
        redis.restart().await;
        killed_at.push((killed, String::new()));
        rig.fault("redis restarted", killed - AROUND_MS..=now_ms() + AROUND_MS);
    }
    let outcome = rig.finish().await;
    outcome.passes();
    let gap = longest_gap(&outcome, &killed_at);
    println!("no POST was acknowledged for {gap} ms, at most");
    let allowed = if full { 2_000 } else { 5_000 };
    assert!(gap <= allowed, "{gap} ms");
}

/// Not `everysec`: with that Redis holds writes back for up to two seconds while a flush is under way, so on a slow disk a
/// kill takes what it had answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_is_killed_without_flushes() {
    redis_is_killed(Trial::of("F4 no", "SIGKILL and restart of Redis, appendfsync no"), "no").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_redis_is_killed_with_always() {
    redis_is_killed(Trial::of("F4 always", "SIGKILL and restart of Redis, appendfsync always"), "always").await;
}

/// Gives the outcome and how many bytes of the append-only file were lost.
async fn power_is_cut(trial: Trial, fsync: &str) -> (Outcome, u64) {
    let (tasks, cuts) = (trial.size(3_000), trial.size(4));
    let mut rng = trial.rng("faults");
    let disk = Disk::new();
    let mut redis = disk.redis(fsync).await;
    // Nobody misses a cancel that was rolled back, or counts a delivery twice, in this load: it is about loss.
    let load = Load::new(tasks, ms(1_500) * cuts as u32);
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, load).await;
    rig.begin();
    let mut gone = 0;
    for _ in 0..cuts {
        sleep(ms(rng.u64(800..1_500))).await;
        let cut = now_ms();
        gone += cut_power(&mut redis);
        redis.restart().await;
        rig.fault("redis lost power", cut - AROUND_MS..=now_ms() + REPEATS_MS);
    }
    (rig.finish().await, gone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_power_is_cut() {
    let (outcome, gone) = power_is_cut(Trial::of("F5", "power cut of Redis, appendfsync always"), "always").await;
    println!("{gone} bytes were not flushed");
    outcome.passes();
}

/// The primary loses power and is back before anybody could take over. (That `replica` refuses a Redis that does not flush
/// each write is shown in `tests/it/durability.rs`; the control of F5 shows what it would lose.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f6_power_is_cut_at_a_primary_that_comes_back_at_once() {
    let trial = Trial::of("F6", "power cut of a primary that restarts at once, durability replica");
    let (tasks, cuts) = (trial.size(2_500), trial.size(3));
    let mut rng = trial.rng("faults");
    let disk = Disk::new();
    let mut redis = disk.redis("always").await;
    let _replica = redis.replica().await;
    let setup = Setup::on(&redis.url()).flag("--durability", "replica");
    let mut rig = Rig::start(trial, setup, 2, Load::new(tasks, secs(3) * cuts as u32)).await;
    rig.begin();
    for _ in 0..cuts {
        sleep(ms(rng.u64(800..1_500))).await;
        let cut = now_ms();
        cut_power(&mut redis);
        redis.restart().await;
        until(secs(30), async || (redis.replicas_online().await > 0).then_some(())).await;
        rig.fault("primary lost power", cut - AROUND_MS..=now_ms() + REPEATS_MS);
    }
    rig.finish().await.passes();
}

/// If nothing were lost here, the power cut above would prove nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_control_power_is_cut_with_everysec() {
    let (outcome, gone) =
        power_is_cut(Trial::of("F5 control", "power cut of Redis, appendfsync everysec: must lose"), "everysec").await;
    println!("{gone} bytes were not flushed");
    assert!(gone > 0);
    assert!(!outcome.findings.lost.is_empty(), "a power cut without a flush loses what was acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f14_scripts_are_flushed_and_clients_killed() {
    let trial = Trial::of("F14", "SCRIPT FLUSH every 100 ms, CLIENT KILL every 200 ms, CLIENT PAUSE, BUSY for 3 s");
    let (tasks, span) = (trial.size(3_000), secs(12) * trial.size(1) as u32);
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--busy-reply-threshold", "300"]).await;
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, Load::new(tasks, span)).await;
    rig.begin();
    let (began, mut blocked) = (Instant::now(), Vec::new());
    let mut n = 0_u32;
    // Whatever the machine does, Redis is blocked at least once.
    while began.elapsed() < span || blocked.len() < 2 {
        n += 1;
        sleep(ms(100)).await;
        let at = now_ms();
        let _: String = redis.command(&["SCRIPT", "FLUSH", "ASYNC"]).await;
        if n.is_multiple_of(2) {
            let _: i64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        }
        rig.fault("connections killed", at - AROUND_MS..=now_ms() + AROUND_MS);
        if n % 60 == 30 {
            let at = now_ms();
            let _: String = redis.command(&["CLIENT", "PAUSE", "700", "ALL"]).await;
            sleep(ms(750)).await;
            blocked.push((at, now_ms()));
        }
        if n.is_multiple_of(60) {
            let at = now_ms();
            busy(&redis, secs(3)).await;
            blocked.push((at, now_ms()));
            rig.fault("redis blocked", at - AROUND_MS..=now_ms() + REPEATS_MS);
        }
    }
    let outcome = rig.finish().await;
    outcome.passes();
    // What was under way when Redis stood still may be answered a little later.
    let excused = |at: i64| blocked.iter().any(|(from, to)| (from - 200..=to + 3_000).contains(&at));
    let refused = |r: &&Refusal| r.what.contains(" 503 ") && !excused(r.at);
    let outside: Vec<_> = outcome.journal.refusals.iter().filter(refused).collect();
    println!("{} refusals while Redis was not blocked", outside.len());
    // On a machine so busy that each of a call's tries meets a CLIENT KILL, some are refused.
    assert!(outside.len() <= tasks / 50, "{} refusals, as {:?}", outside.len(), outside[0]);
    assert!(!blocked.is_empty());
}

/// A foreign script keeps Redis busy.
async fn busy(redis: &RedisServer, span: Duration) {
    let script = format!(
        "local t = redis.call('TIME') local e = t[1] * 1000 + t[2] / 1000 + {} \
         repeat local i = 0 while i < 100000 do i = i + 1 end t = redis.call('TIME') \
         until t[1] * 1000 + t[2] / 1000 > e return 1",
        span.as_millis()
    );
    let _: i64 = redis.command(&["EVAL", &script, "0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_the_disk_is_full_with_always() {
    disk_is_full(Trial::of("F13 always", "the disk of Redis is full, then not; appendfsync always"), "always").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f13_the_disk_is_full_with_everysec() {
    let trial = Trial::of("F13 everysec", "the disk of Redis is full, then not; appendfsync everysec");
    disk_is_full(trial, "everysec").await;
}

async fn disk_is_full(trial: Trial, fsync: &str) {
    let (tasks, times) = (trial.size(2_000), trial.size(2));
    let mut rng = trial.rng("faults");
    let disk = Disk::new();
    let mut redis = disk.redis(fsync).await;
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, Load::new(tasks, secs(4) * times as u32)).await;
    rig.begin();
    for _ in 0..times {
        sleep(ms(rng.u64(600..1_200))).await;
        let at = now_ms();
        disk.is_full(true);
        sleep(ms(1_500)).await;
        disk.is_full(false);
        // With `always` a server that cannot write ends, and something starts it again.
        if !redis.is_running() {
            redis.restart().await;
        }
        rig.fault("redis's disk was full", at - AROUND_MS..=now_ms() + REPEATS_MS);
    }
    let outcome = rig.finish().await;
    outcome.passes();
    assert!(!outcome.refusals.is_empty(), "nobody noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f12_redis_is_full() {
    let trial = Trial::of("F12", "Redis reaches maxmemory under load, drains, and has room again");
    let tasks = trial.size(3_000);
    let redis = RedisServer::start_with(&["--appendonly", "yes", "--maxmemory-policy", "noeviction"]).await;
    // While it is full, what ends is not kept: a POST repeated after that would make a new task.
    let (patience, all_kept) = (secs(25), false);
    let load = Load {
        pad: 3_000,
        longest_delay: secs(6),
        patience,
        all_kept,
        ..Load::new(tasks, secs(6) * trial.size(1) as u32)
    };
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, load).await;
    rig.begin();
    let room = format!("{}", used_memory(&redis).await + 4_000_000);
    let _: String = redis.command(&["CONFIG", "SET", "maxmemory", &room]).await;
    until(secs(60), async || rig.journal.open().refusals.iter().any(|r| r.what.contains("storage-full")).then_some(()))
        .await;
    sleep(secs(5)).await;
    let most = used_memory(&redis).await;
    let _: String = redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    rig.fault("none", 0..=0);
    let outcome = rig.finish().await;
    println!("used memory {most} with a limit of {room}");
    outcome.passes();
    // Claims, acks, nacks, cancels and reads go on.
    let drains = outcome.refusals.keys().filter(|what| what.contains("503") && !what.starts_with("POST tasks"));
    assert_eq!(drains.count(), 0, "{:?}", outcome.refusals);
}

async fn used_memory(redis: &RedisServer) -> u64 {
    let info: String = redis.command(&["INFO", "memory"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|n| n.trim().parse().ok()).expect("INFO has the figure")
}
