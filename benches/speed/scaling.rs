//! Whether the model of docs/scaling.md holds: what each part takes of a core for a task is measured on two cores, the rate
//! that follows is worked out for one core and for two, and held against what is measured there.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{
    Size,
    http::{Load, Pace, Until, closed},
    parts::{Part, Service},
    rows::{self, CONNECTIONS, constant, empty, one, thousands},
    sink::Sink,
    table::{Goal, Row},
};

/// A rate, and what a task took of a core in all parts, the load generator and the receiver among them.
struct Figure {
    rate: f64,
    service: f64,
    redis: f64,
    ours: f64,
}

impl Figure {
    fn of(rate: f64, tasks: u64, service: Duration, redis: Duration, ours: Duration) -> Self {
        let each = |cpu: Duration| cpu.as_secs_f64() / tasks as f64;
        Self { rate, service: each(service), redis: each(redis), ours: each(ours) }
    }

    /// What so many cores could do if none of them ever waited.
    fn bound(&self, cores: usize) -> f64 {
        cores as f64 / (self.service + self.redis + self.ours)
    }
}

/// Keeps this thread, and whatever it starts from now on, on the first cores.
fn keep_to(cores: usize) {
    let mut set = CpuSet::new();
    (0..cores).for_each(|core| set.set(core));
    sched_setaffinity(None, &set).expect("this machine has the cores");
}

fn measured<T>(service: &Service, run: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (cpu, redis) = (service.part.cpu(), service.redis_cpu());
    let outcome = run();
    (outcome, service.part.cpu().saturating_sub(cpu), service.redis_cpu().saturating_sub(redis))
}

fn enqueue(service: &Service, time: Duration) -> Figure {
    let load = || closed(service.address(), CONNECTIONS, Until::Over(time), None, constant(one("30m")));
    let (load, cpu, redis) = measured(service, load);
    empty(service);
    Figure::of(load.rate(), load.calls, cpu, redis, load.cpu)
}

fn whole_life(service: &Service, sink: &Sink, time: Duration) -> Figure {
    let (before, receiver) = (sink.count(), sink.cpu());
    let pace = Pace { arrived: sink.arrived.clone(), before, in_the_works: 2000, each: 1 };
    let (began, request) = (Instant::now(), constant(one("0s")));
    let (load, cpu, redis) = measured(service, || {
        let load = closed(service.address(), CONNECTIONS, Until::Over(time), Some(pace), request);
        sink.wait_for(before + load.calls, rows::PATIENCE);
        load
    });
    let (rate, ours) =
        (load.calls as f64 / began.elapsed().as_secs_f64(), load.cpu + sink.cpu().saturating_sub(receiver));
    Figure::of(rate, load.calls, cpu, redis, ours)
}

/// Rounds on one core and on two take turns; the parts are started anew for each, since they count the cores that they have.
pub fn scaling(size: Size) -> Vec<Row> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores < 2 {
        return Vec::new();
    }
    let mut table = Vec::new();
    for (what, with_deliveries) in [("enqueue", false), ("whole life, one task a call", true)] {
        let mut turns =
            [1, 2].map(|n| Row::new(&format!("{what} on {n} of {cores} cores"), "of the model's", Goal::None));
        let mut replicas = Row::new(&format!("{what}, two replicas on 2 cores"), "of one's", Goal::None);
        for _ in 0..size.rounds {
            let [on_one, on_two] = [1, 2].map(|n| {
                keep_to(n);
                let (service, sink) = (Service::start("memory"), Sink::start());
                rows::webhook(&service, "bench", &sink);
                let round =
                    |time| if with_deliveries { whole_life(&service, &sink, time) } else { enqueue(&service, time) };
                round(size.round / 2);
                let figure = round(size.round);
                if n == 2 && !with_deliveries {
                    let both = two_replicas(&service, size.round);
                    replicas.round(both / figure.rate);
                    replicas.tell(format!("{} by two, {} by one", thousands(both), thousands(figure.rate)));
                }
                figure
            });
            for (row, (n, figure)) in turns.iter_mut().zip([(1, &on_one), (2, &on_two)]) {
                row.round(figure.rate / on_two.bound(n));
                row.tell(format!(
                    "{} of {}; a task here: service {:.1} µs, Redis {:.1} µs, our side {:.1} µs",
                    thousands(figure.rate),
                    thousands(on_two.bound(n)),
                    figure.service * 1e6,
                    figure.redis * 1e6,
                    figure.ours * 1e6,
                ));
            }
        }
        keep_to(cores);
        table.extend(turns);
        if !with_deliveries {
            table.push(replicas);
        }
    }
    table
}

/// The same load on two processes that share a Redis.
fn two_replicas(service: &Service, time: Duration) -> f64 {
    let second: Part = service.another();
    let load = |to| closed(to, CONNECTIONS / 2, Until::Over(time), None, constant(one("30m")));
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| load(second.address));
        let one: Load = load(service.address());
        (one, other.join().expect("the load generator ends"))
    });
    empty(service);
    one.rate() + other.rate()
}
