//! How fast the service is, held side by side against what the same libraries do bare. `make bench` is quick and prints a
//! table; `make bench-full` takes its time and writes docs/benchmarks.md.
//!
//! Rates come from closed loops (so many connections, each waits for its answer), against a bare limit in rounds that take
//! turns, so that a machine that is busy otherwise slows both. Lateness does not, see `times`.
//!
//! ```text
//! rows, times, space, pull, scaling   what is measured       counts   instructions, under callgrind
//! parts, sink, bare, http             what it is done with   table    how it is told
//! ```

#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // figures for people
#![allow(clippy::disallowed_methods)] // no rule of the service's rooms here

use std::time::{Duration, Instant};

mod bare;
mod counts;
mod http;
mod parts;
mod pull;
mod rows;
mod scaling;
mod sink;
mod space;
mod table;
mod times;

use self::table::{Report, Row};

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Size {
    pub rounds: usize,
    pub round: Duration,
    /// Tasks of a pile.
    pub tasks: u64,
    pub full: bool,
}

impl Size {
    /// How long tasks are spread over, and idleness is watched.
    pub fn span(self) -> Duration {
        Duration::from_secs(if self.full { 20 } else { 4 })
    }
}

const QUICK: Size = Size { rounds: 3, round: Duration::from_secs(1), tasks: 20_000, full: false };
const FULL: Size = Size { rounds: 5, round: Duration::from_secs(4), tasks: 100_000, full: true };

type Measure = fn(Size) -> Vec<Row>;

/// Name for the command line, and how it is measured.
const MEASURES: &[(&str, Measure)] = &[
    ("enqueue", rows::enqueue),
    ("batches", rows::batches),
    ("disk", rows::disk),
    ("delivery", rows::delivery),
    ("life", |size| rows::whole_life(size, 100)),
    ("life-single", |size| rows::whole_life(size, 1)),
    ("redis-cpu", space::redis_cpu),
    ("lateness", times::spread),
    ("half", times::half),
    ("burst", times::burst),
    ("memory", space::memory),
    ("growth", space::growth),
    ("queues", times::queues),
    ("idle", space::idle),
    ("pull", pull::pull),
    ("scaling", scaling::scaling),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bare-handler"] => bare::handler(),
        ["bare-client", to] => bare::client(to.parse().expect("an address")),
        ["paths", redis, path, tasks] => counts::walk(redis, path, tasks.parse().expect("a number")),
        [scaling::ROLE, cores, what, queues, dir] => scaling::play(cores, what, queues, dir),
        ["counts"] => counts::measure().iter().for_each(|(path, count)| println!("{path}: {count}")),
        wanted => measure(wanted),
    }
}

/// Measures what is named, or everything.
fn measure(wanted: &[&str]) {
    let is_full = wanted.contains(&"--full");
    let names: Vec<&&str> = wanted.iter().filter(|w| !w.starts_with("--")).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|n| **n == name);
    let (began, mut report) = (Instant::now(), Report::new(is_full));
    for (name, measure) in MEASURES.iter().filter(|(name, _)| is_wanted(name)) {
        for row in measure(if is_full { FULL } else { QUICK }) {
            report.add(row);
        }
        eprintln!("{name} measured, {} s so far", began.elapsed().as_secs());
    }
    if is_full && names.is_empty() {
        report.write_page(&counts::measure());
    }
    report.keep();
}
