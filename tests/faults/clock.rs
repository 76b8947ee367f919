//! F15: a clock is wrong by an hour, that of Redis or that of one service.

use tokio::time::sleep;

use crate::{
    load::Load,
    rig::{Outcome, Rig, Setup},
    support::{RedisServer, now_ms, secs, wall::WallClock},
    trial::Trial,
};

const HOUR_MS: i64 = 3_600_000;
/// So far a jump of Redis's clock is followed.
const BRAKE_MS: i64 = 2_000;

/// The clock is an hour ahead for a while, right, and an hour behind.
async fn steps(rig: &mut Rig, clock: &WallClock, cause: &'static str) {
    for _ in 0..rig.trial.size(1) {
        for shift in [HOUR_MS, -HOUR_MS] {
            sleep(secs(2)).await;
            let from = now_ms();
            clock.shift_to(shift);
            sleep(secs(3)).await;
            clock.shift_to(0);
            rig.fault(cause, from - 1_000..=now_ms() + 1_000);
        }
    }
}

fn load(trial: &Trial) -> Load {
    // No consumers: the ends of their leases are instants of the clock that is moved.
    Load { pull_queues: 0, ..Load::new(trial.size(2_500), secs(11) * trial.size(1) as u32) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_the_clock_of_redis_is_wrong() {
    let trial = Trial::of("F15 redis", "the clock of Redis jumps an hour ahead and back, then behind and back");
    let (clock, load) = (WallClock::new(), load(&trial));
    let redis = RedisServer::start_by(&clock).await;
    let mut rig = Rig::start(trial, Setup::on(&redis.url()), 2, load).await;
    rig.tolerance_ms = BRAKE_MS;
    rig.begin();
    steps(&mut rig, &clock, "redis's clock jumped").await;
    let outcome = rig.finish().await;
    outcome.passes();
}

async fn one_service_is_wrong(trial: Trial) -> Outcome {
    let (clock, load) = (WallClock::new(), load(&trial));
    let redis = RedisServer::start().await;
    let mut setup = Setup::on(&redis.url());
    let right = setup.clone();
    setup.env.extend(clock.env().map(|(name, value)| (name.to_owned(), value)));
    let mut rig = Rig::start(trial, setup, 1, load).await;
    rig.services.push(right.start().await);
    rig.retarget();
    rig.begin();
    steps(&mut rig, &clock, "none").await;
    rig.windows.clear(); // it may double nothing
    rig.finish().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f15_the_clock_of_one_service_is_wrong() {
    let trial =
        Trial::of("F15 service", "the clock of one of two services jumps an hour ahead and back, then behind and back");
    let outcome = one_service_is_wrong(trial).await;
    outcome.passes();
    assert_eq!(outcome.findings.doubled(), 0);
}
