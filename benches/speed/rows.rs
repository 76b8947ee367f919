//! The rows of the table about rates: each against its limit, in rounds that take turns.

use std::time::{Duration, Instant};

use crate::{
    Size,
    http::{Load, Pace, Until, closed, post},
    parts::{Part, Service},
    sink::Sink,
    table::{Goal, Row},
};

/// 106 bytes, as one that names an order and a little more.
pub const PAYLOAD: &str =
    r#"{"order_id":1042,"customer":"c-77120","event":"payment_timeout","amount":129.90,"currency":"EUR","try":12}"#;
/// Connections of a closed loop.
pub const CONNECTIONS: usize = 64;
/// No measurement waits longer for what is to arrive.
pub const PATIENCE: Duration = Duration::from_secs(120);

fn one(delay: &str) -> Vec<u8> {
    post("/queues/bench/tasks", &format!(r#"{{"payload":{PAYLOAD},"delay":"{delay}"}}"#))
}

pub fn batch(queue: &str, tasks: usize, time: &str) -> Vec<u8> {
    let task = format!(r#"{{"payload":{PAYLOAD},{time}}}"#);
    post(&format!("/queues/{queue}/batch"), &format!(r#"{{"tasks":[{}]}}"#, vec![task; tasks].join(",")))
}

pub fn constant(request: Vec<u8>) -> impl Fn(u64, &mut Vec<u8>) + Send + Sync + 'static {
    move |_, buffer| buffer.extend_from_slice(&request)
}

pub fn thousands(rate: f64) -> String {
    format!("{:.1}k/s", rate / 1000.0)
}

fn share(cpu: Duration, of: Duration) -> String {
    format!("{:.0} %", 100.0 * cpu.as_secs_f64() / of.as_secs_f64())
}

/// What each part took of the machine during a load.
struct Shares {
    began: Instant,
    service: Duration,
    redis: Duration,
    calls: u64,
}

impl Shares {
    fn begin(service: &Service) -> Self {
        let (cpu, redis, calls) = (service.part.cpu(), service.redis_cpu(), service.redis_calls());
        Self { began: Instant::now(), service: cpu, redis, calls }
    }

    fn tell(&self, service: &Service, own: Duration) -> String {
        let took = self.began.elapsed();
        let (service, redis) =
            (service.part.cpu().saturating_sub(self.service), service.redis_cpu().saturating_sub(self.redis));
        format!(
            "of a core: service {}, Redis {}, our side {}",
            share(service, took),
            share(redis, took),
            share(own, took)
        )
    }

    /// The same a task.
    fn tell_each(&self, service: &Service, own: Duration, tasks: u64) -> String {
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / tasks as f64;
        let (ours, redis) =
            (service.part.cpu().saturating_sub(self.service), service.redis_cpu().saturating_sub(self.redis));
        let shares = self.tell(service, own);
        let calls = (service.redis_calls() - self.calls) as f64;
        format!(
            "{shares}; a task: service {:.1} µs, Redis {:.1} µs; {:.1} tasks a script call",
            each(ours),
            each(redis),
            tasks as f64 / calls
        )
    }
}

/// Enqueue, one task a call, against a bare handler.
pub fn enqueue(size: Size) -> Vec<Row> {
    let (service, bare) = (Service::start("memory"), Part::own(&["bare-handler"]));
    let load = |to| closed(to, CONNECTIONS, Until::Over(size.round), None, constant(one("30m")));
    load(service.address());
    load(bare.address);
    let mut row = Row::new("enqueue, 64 connections", "of a bare handler", Goal::AtLeast(0.60));
    for _ in 0..size.rounds {
        let limit = load(bare.address);
        let shares = Shares::begin(&service);
        let ours = load(service.address());
        row.round(ours.rate() / limit.rate());
        row.tell(format!(
            "{} of {}; {}; the generator against the bare handler {:.0} %",
            thousands(ours.rate()),
            thousands(limit.rate()),
            shares.tell_each(&service, ours.cpu, ours.calls),
            100.0 * limit.share()
        ));
        empty(&service);
    }
    vec![row]
}

/// Batches of 100.
pub fn batches(size: Size) -> Vec<Row> {
    let service = Service::start("memory");
    let mut row = Row::new("enqueue in batches of 100", "tasks/s", Goal::AtLeast(120_000.0));
    for round in 0..=size.rounds {
        let shares = Shares::begin(&service);
        let ours = closed(
            service.address(),
            8,
            Until::Over(size.round),
            None,
            constant(batch("bench", 100, r#""delay":"30m""#)),
        );
        if round > 0 {
            row.round(ours.rate() * 100.0);
            row.tell(shares.tell_each(&service, ours.cpu, ours.calls * 100));
        }
        empty(&service);
    }
    vec![row]
}

/// Each write flushed to the disk, against not.
pub fn disk(size: Size) -> Vec<Row> {
    let (disk, memory) = (Service::start("disk"), Service::start("memory"));
    let load = |service: &Service| {
        let load = closed(service.address(), CONNECTIONS, Until::Over(size.round), None, constant(one("30m")));
        empty(service);
        load
    };
    load(&memory);
    let mut row = Row::new("enqueue at `disk`", "of that at `memory`", Goal::AtLeast(0.60));
    for _ in 0..size.rounds {
        let (limit, ours) = (load(&memory), load(&disk));
        row.round(ours.rate() / limit.rate());
        row.tell(format!("{} of {}", thousands(ours.rate()), thousands(limit.rate())));
    }
    vec![row]
}

/// Takes the tasks away, so that each round finds the same.
pub fn empty(service: &Service) {
    service.call("POST", "/queues/bench/purge", r#"{"states":["scheduled","completed"]}"#);
}

pub fn webhook(service: &Service, queue: &str, sink: &Sink) {
    let body = format!(r#"{{"id":"sink","url":"http://{}/"}}"#, sink.address);
    service.call("POST", &format!("/queues/{queue}/webhooks"), &body);
}

/// Puts so many due tasks into the paused queue.
pub fn pile_up(service: &Service, queue: &str, tasks: u64) {
    service.call("POST", &format!("/queues/{queue}/pause"), "{}");
    closed(
        service.address(),
        4,
        Until::Calls(tasks.div_ceil(100)),
        None,
        constant(batch(queue, 100, r#""delay":"0s""#)),
    );
}

/// Delivery of due tasks, against a bare loop over the same client.
pub fn delivery(size: Size) -> Vec<Row> {
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let mut row = Row::new("delivery, 64 slots", "of a bare client loop", Goal::AtLeast(0.55));
    for round in 0..=size.rounds {
        let limit = {
            let bare = Part::own(&["bare-client", &sink.address.to_string()]);
            std::thread::sleep(Duration::from_millis(200));
            let (before, began) = (sink.count(), Instant::now());
            std::thread::sleep(size.round);
            let rate = (sink.count() - before) as f64 / began.elapsed().as_secs_f64();
            drop(bare);
            rate
        };
        std::thread::sleep(Duration::from_millis(100)); // what was on the wire has arrived
        let tasks = size.tasks;
        pile_up(&service, "bench", tasks);
        let (before, cpu) = (sink.count(), sink.cpu());
        let shares = Shares::begin(&service);
        service.call("POST", "/queues/bench/resume", "{}");
        let first = sink.wait_for(before + tasks / 10, PATIENCE);
        let last = sink.wait_for(before + tasks, PATIENCE);
        let rate = (tasks - tasks / 10) as f64 / (last - first).as_secs_f64();
        if round > 0 {
            row.round(rate / limit);
            let own = sink.cpu().saturating_sub(cpu);
            row.tell(format!(
                "{} of {}; {}",
                thousands(rate),
                thousands(limit),
                shares.tell_each(&service, own, tasks)
            ));
        }
    }
    vec![row]
}

/// From the enqueue to the end, as fast as deliveries keep up.
pub fn whole_life(size: Size, each: usize) -> Vec<Row> {
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let what = if each == 1 { "whole life, one task a call" } else { "whole life, batches of 100" };
    let goal = if each == 1 { Goal::None } else { Goal::AtLeast(15_000.0) };
    let mut row = Row::new(what, "tasks/s", goal);
    for round in 0..=size.rounds {
        let (before, cpu) = (sink.count(), sink.cpu());
        let shares = Shares::begin(&service);
        let request = if each == 1 { one("0s") } else { batch("bench", each, r#""delay":"0s""#) };
        let pace = Pace { arrived: sink.arrived.clone(), before, in_the_works: 2000, each: each as u64 };
        let connections = if each == 1 { CONNECTIONS } else { 8 };
        let ours: Load = closed(service.address(), connections, Until::Over(size.round), Some(pace), constant(request));
        let rate = (sink.count() - before) as f64 / ours.took.as_secs_f64();
        let own = ours.cpu + sink.cpu().saturating_sub(cpu);
        sink.wait_for(before + ours.calls * each as u64, PATIENCE);
        if round > 0 {
            row.round(rate);
            row.tell(shares.tell_each(&service, own, ours.calls * each as u64));
        }
    }
    vec![row]
}
