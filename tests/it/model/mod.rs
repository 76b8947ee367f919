//! Random histories of the store against a model: what must hold of any history, checked after each step by reading
//! Redis directly. A failure names its seed; `DUEPOST_SEED` replays it (as far as
//! the real time between steps allows), `DUEPOST_STEPS` makes it longer.

mod check;
mod clients;
mod edits;
mod snapshot;
mod steps;
mod workers;

use self::steps::World;

/// Histories of a run in CI, and steps of each.
const SEEDS: u64 = 8;
const STEPS: usize = 250;
/// Steps between two looks by `fsck`'s own eyes.
const AUDIT_EVERY: usize = 10;

#[tokio::test]
async fn every_history_keeps_the_invariants() {
    // replaying a failure is the one use of the environment
    #[allow(clippy::disallowed_methods)]
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let steps = number("DUEPOST_STEPS").map_or(STEPS, |n| usize::try_from(n).expect("fits"));
    let seeds: Vec<u64> = match number("DUEPOST_SEED") {
        Some(seed) => vec![seed],
        None => (0..SEEDS).map(|n| n ^ (u64::from(std::process::id()) << 16)).collect(),
    };
    let mut counts = std::collections::BTreeMap::new();
    for seed in seeds {
        println!("DUEPOST_SEED={seed}");
        let mut world = World::start(seed).await;
        for step in 0..steps {
            world.step().await;
            if step % AUDIT_EVERY == 0 {
                world.audit().await;
            }
        }
        world.drain().await;
        for (what, n) in world.counts() {
            *counts.entry(what).or_insert(0) += n;
        }
    }
    println!("{counts:#?}");
}
