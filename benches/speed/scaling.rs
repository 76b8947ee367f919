//! Whether the model of docs/scaling.md holds: what a task takes of a core in each part is measured on one core and on two,
//! and the rate that follows from it is held against the rate that was reached there.
//!
//! Each round is a process of its own, pinned before it starts anything: the service (which counts the cores that it may
//! use), its Redis, the load generator and the receiver all inherit that. Whatever hangs in a round is killed with it.

use std::{
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::{
    Size,
    http::{Pace, Until, closed, post},
    parts::Service,
    rows::{CONNECTIONS, PAYLOAD, thousands, webhook},
    sink::Sink,
    table::{Costs, Goal, Row},
};

/// The role of a round in the command line.
pub const ROLE: &str = "scaling-round";
const WARM_UP: Duration = Duration::from_millis(400);
const MEASURED: Duration = Duration::from_millis(1300);
/// A task that is not delivered by then is not on its way.
const DRAINED: Duration = Duration::from_secs(10);
/// A round takes two seconds. One that takes so long has failed.
const DEADLINE: Duration = Duration::from_secs(20);
/// So many may fail of what takes turns, then it is given up.
const FAILURES_MAX: usize = 2;
/// Queues among which a load is spread.
const SPREAD: u64 = 16;
/// More than the append-only file of a round comes to.
const ROOM: u64 = 1 << 30;

/// Tasks a second, and what one took of a core in each part, in seconds.
#[derive(Clone, Copy)]
struct Figure {
    rate: f64,
    service: f64,
    redis: f64,
    /// Load generator and receiver.
    ours: f64,
}

impl Figure {
    /// What the model says of so many cores.
    fn model(&self, cores: usize) -> f64 {
        let threads = cores.saturating_sub(1).max(1) as f64; // beside a private Redis
        let all = cores as f64 / (self.service + self.redis + self.ours);
        all.min(threads / self.service).min(1.0 / self.redis)
    }
}

/// Rounds on one core and on two take turns.
pub fn scaling(size: Size) -> Vec<Row> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if !size.full {
        return Vec::new();
    }
    if cores < 2 || !cfg!(target_os = "linux") {
        eprintln!("no check of the scaling model: it takes two cores, and Linux to keep processes on them");
        return Vec::new();
    }
    let mut table = Vec::new();
    for (what, life) in [("enqueue", false), ("whole life", true)] {
        let mut rows = [1, 2].map(|n| {
            let name = format!("{what} on {n} core{}", if n == 1 { "" } else { "s" });
            Row::new(&name, "of the model's rate", Goal::None)
        });
        let mut hot = life
            .then(|| Row::new(&format!("one hot queue, on 2 cores, against {SPREAD}"), "of their rate", Goal::None));
        let mut failures = 0;
        for _ in 0..size.rounds {
            let mut turn = |row: &mut Row, cores, queues| {
                let figure = round(cores, life, queues).map_err(|reason| row.tell(format!("failed: {reason}"))).ok();
                failures += usize::from(figure.is_none());
                figure
            };
            let (one, two) = (turn(&mut rows[0], 1, 1), turn(&mut rows[1], 2, 1));
            if let Some((one, two)) = one.zip(two) {
                tell(&mut rows[0], 1, one, two);
                tell(&mut rows[1], 2, two, one);
            }
            if let Some(row) = &mut hot
                && let Some((all, spread)) = two.zip(turn(row, 2, SPREAD))
            {
                row.round(all.rate / spread.rate);
                row.tell(format!("{} of {}; of theirs {}", thousands(all.rate), thousands(spread.rate), each(&spread)));
            }
            if failures >= FAILURES_MAX {
                break;
            }
        }
        table.extend(rows);
        table.extend(hot);
    }
    table
}

fn tell(row: &mut Row, cores: usize, here: Figure, there: Figure) {
    let (model, by_the_other) = (here.model(cores), there.model(cores));
    row.costs(
        here.rate / model,
        Costs { parts: [here.service, here.redis, here.ours], model, by_the_other, rate: here.rate },
    );
    row.tell(format!(
        "{} of {}, or of {} by the other's costs; {}",
        thousands(here.rate),
        thousands(model),
        thousands(by_the_other),
        each(&here)
    ));
}

fn each(figure: &Figure) -> String {
    let us = |seconds: f64| seconds * 1e6;
    format!(
        "a task: service {:.1} µs, Redis {:.1} µs, our side {:.1} µs",
        us(figure.service),
        us(figure.redis),
        us(figure.ours)
    )
}

/// Runs a round in a process group of its own.
fn round(cores: usize, life: bool, queues: u64) -> Result<Figure, String> {
    let dir = TempDir::with_prefix_in("duepost-bench-", workplace()).map_err(|e| e.to_string())?;
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.args([ROLE, &cores.to_string(), if life { "life" } else { "enqueue" }, &queues.to_string()]);
    command.arg(dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let (mut out, (tell, told)) = (child.stdout.take().expect("piped"), mpsc::channel());
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        let _ = tell.send(text);
    });
    let text = told.recv_timeout(DEADLINE);
    if text.is_err() {
        // the service is in the group, its Redis goes with it
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
    let ended = child.wait().map_err(|e| e.to_string())?;
    let text = text.map_err(|_| format!("not over within {DEADLINE:?}"))?;
    let numbers: Vec<f64> = text.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let [rate, service, redis, ours] = numbers[..] else { return Err(format!("it ended with {ended}")) };
    Ok(Figure { rate, service, redis, ours })
}

/// In memory where there is room. To delete the file of a round may take a virtual machine's core a minute, where the
/// file system has the disk discard its blocks; nothing else on that core runs meanwhile.
fn workplace() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    if room < ROOM { std::env::temp_dir() } else { memory.to_owned() }
}

/// Keeps this process, and whatever it starts from now on, on the first of the cores that it may use.
#[cfg(target_os = "linux")]
fn keep_to(cores: usize) -> rustix::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let (may, mut set) = (sched_getaffinity(None)?, CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).take(cores).for_each(|core| set.set(core));
    sched_setaffinity(None, &set)
}

#[cfg(not(target_os = "linux"))]
fn keep_to(_cores: usize) -> rustix::io::Result<()> {
    Err(rustix::io::Errno::NOSYS)
}

/// A round: prints the rate, and what a task took of a core in each part.
pub fn play(cores: &str, what: &str, queues: &str, dir: &str) {
    keep_to(cores.parse().expect("a number")).expect("it may choose its cores");
    let (life, queues): (bool, u64) = (what == "life", queues.parse().expect("a number"));
    let dir = TempDir::with_prefix_in("round-", dir).expect("a temporary directory");
    let (service, sink) = (Service::start_in(dir, "memory"), Sink::start());
    if life {
        (0..queues).for_each(|n| webhook(&service, &format!("q{n}"), &sink));
    }
    load(&service, &sink, life, queues, WARM_UP);
    let cpu = || [service.part.cpu(), service.redis_cpu(), sink.cpu()];
    let before = cpu();
    let (tasks, took, generator) = load(&service, &sink, life, queues, MEASURED);
    let [service, redis, receiver] = cpu();
    let receiver = receiver.saturating_sub(before[2]) + generator;
    let parts = [service.saturating_sub(before[0]), redis.saturating_sub(before[1]), receiver];
    let [service, redis, ours] = parts.map(|cpu| cpu.as_secs_f64() / tasks as f64);
    println!("{} {service} {redis} {ours}", tasks as f64 / took.as_secs_f64());
}

/// A closed loop, of enqueues alone or until all is delivered: how many tasks, in what time, and the generator's CPU.
fn load(service: &Service, sink: &Sink, life: bool, queues: u64, time: Duration) -> (u64, Duration, Duration) {
    let delay = if life { "0s" } else { "30m" };
    let body = format!(r#"{{"payload":{PAYLOAD},"delay":"{delay}"}}"#);
    let requests: Vec<Vec<u8>> = (0..queues).map(|n| post(&format!("/queues/q{n}/tasks"), &body)).collect();
    let make = move |n: u64, buffer: &mut Vec<u8>| buffer.extend_from_slice(&requests[(n % queues) as usize]);
    let before = sink.count();
    let pace = Pace { arrived: sink.arrived.clone(), before, in_the_works: 2000, each: 1 };
    let began = Instant::now();
    let load = closed(service.address(), CONNECTIONS, Until::Over(time), life.then_some(pace), make);
    if !life {
        return (load.calls, load.took, load.cpu);
    }
    let end = sink.wait_for(before + load.calls, DRAINED);
    (sink.count() - before, end - began, load.cpu)
}
