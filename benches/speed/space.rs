//! The rows about what it costs: Redis's CPU, memory, growth, rest and start.

use std::time::{Duration, Instant};

use crate::{
    Size,
    http::{Until, closed},
    parts::Service,
    rows::{PATIENCE, PAYLOAD, batch, constant, empty, pile_up, webhook},
    sink::Sink,
    table::{Goal, Row},
};

fn micros_each(cpu: Duration, tasks: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / tasks as f64
}

/// Redis's CPU for a whole life in batches of 64, without retention or with the default settings.
pub fn redis_cpu(size: Size) -> Vec<Row> {
    let rows = [(r#"{"retain_completed":"0s"}"#, "nothing kept", 25.0), ("{}", "default settings", 32.0)];
    let measure = |(settings, what, goal): (&str, &str, f64)| {
        let (service, sink) = (Service::start("memory"), Sink::start());
        service.call("PUT", "/queues/bench", settings);
        webhook(&service, "bench", &sink);
        let mut row =
            Row::new(&format!("Redis CPU of a life in batches of 64, {what}"), "µs a task", Goal::AtMost(goal));
        for _ in 0..size.rounds {
            let (before, arrived, tasks) = (service.redis_cpu(), sink.count(), size.tasks / 64 * 64);
            service.call("POST", "/queues/bench/pause", "{}");
            let request = batch("bench", 64, r#""delay":"0s""#);
            closed(service.address(), 4, Until::Calls(tasks / 64), None, constant(request));
            service.call("POST", "/queues/bench/resume", "{}");
            sink.wait_for(arrived + tasks, PATIENCE);
            std::thread::sleep(Duration::from_millis(50)); // the last ones are settled
            row.round(micros_each(service.redis_cpu() - before, tasks));
        }
        row
    };
    rows.into_iter().map(measure).chain([one_at_a_time(size)]).collect()
}

/// A task that nothing shares a call with, against a SET. Both come alone, to a Redis that has slept for half a millisecond.
fn one_at_a_time(size: Size) -> Row {
    const TASKS: u64 = 500;
    const PAUSE: Duration = Duration::from_micros(500);
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let mut row = Row::new("Redis CPU of a life, one task at a time", "SETs", Goal::AtMost(12.0));
    let body = format!(r#"{{"payload":{PAYLOAD}}}"#);
    for _ in 0..size.rounds {
        let before = service.redis_cpu();
        service.redis_many(&format!("SET bench:x {}\r\n", PAYLOAD.replace('"', "")), TASKS * 4, PAUSE);
        let set = micros_each(service.redis_cpu() - before, TASKS * 4);
        let (before, calls) = (service.redis_cpu(), service.redis_calls());
        for _ in 0..TASKS {
            let arrived = sink.count();
            service.call("POST", "/queues/bench/tasks", &body);
            sink.wait_for(arrived + 1, PATIENCE); // looks every half millisecond
        }
        let each = micros_each(service.redis_cpu() - before, TASKS);
        let calls = (service.redis_calls() - calls) as f64 / TASKS as f64;
        row.round(each / set);
        row.tell(format!("{each:.0} µs in {calls:.1} script calls, a SET {set:.1} µs"));
    }
    row
}

/// What a pending task takes in Redis beyond its payload.
pub fn memory(size: Size) -> Vec<Row> {
    let service = Service::start("memory");
    let tasks = if size.full { 1_000_000 } else { 100_000 };
    service.call("PUT", "/queues/bench", "{}");
    let before = service.info("memory", "used_memory");
    fill(&service, tasks);
    let mut row = Row::new("memory of a pending task beyond its payload", "bytes", Goal::AtMost(260.0));
    row.round((service.info("memory", "used_memory") - before) / tasks as f64 - PAYLOAD.len() as f64);
    vec![row]
}

fn fill(service: &Service, tasks: u64) {
    closed(service.address(), 4, Until::Calls(tasks / 1000), None, constant(batch("bench", 1000, r#""delay":"30m""#)));
}

/// Costs with many tasks pending, against those with 10,000. Also right after they came, while Redis rewrites its append-only file
/// or moves a step of its tables to larger ones with each command.
pub fn growth(size: Size) -> Vec<Row> {
    let many: u64 = if size.full { 10_000_000 } else { 300_000 };
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let rows = |when: &str, goal: fn() -> Goal| {
        let named = |part: &str, unit| {
            let many = crate::table::number(many as f64);
            Row::new(&format!("{part}, {many} {when}, against 10,000"), unit, goal())
        };
        let of_cpu = "of Redis's CPU";
        [named("enqueue", of_cpu), named("visit and settle", of_cpu), named("list and stats", "of their time")]
    };
    let measure = || {
        let before = service.redis_cpu();
        closed(service.address(), 4, Until::Calls(200), None, constant(batch("bench", 100, r#""delay":"30m""#)));
        let enqueue = service.redis_cpu() - before;
        pile_up(&service, "bench", 20_000);
        let (before, arrived) = (service.redis_cpu(), sink.count());
        service.call("POST", "/queues/bench/resume", "{}");
        sink.wait_for(arrived + 20_000, PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
        let deliver = service.redis_cpu() - before;
        let began = Instant::now();
        for _ in 0..50 {
            service.call("GET", "/queues/bench/tasks?limit=100", "");
            service.call("GET", "/queues/bench/stats", "");
        }
        [enqueue, deliver, began.elapsed()].map(|took| took.as_secs_f64())
    };
    let few = [0; 6].map(|_| {
        empty(&service);
        fill(&service, 10_000);
        measure()
    });
    // without the first, in which all is new
    let few: [f64; 3] = std::array::from_fn(|i| few[1..].iter().map(|round| round[i]).sum::<f64>() / 5.0);
    fill(&service, many - 30_000);
    let measured = |mut rows: [Row; 3]| {
        for _ in 0..size.rounds {
            let rewriting = service.info("persistence", "aof_rewrite_in_progress") > 0.0;
            let now = measure();
            for (i, row) in rows.iter_mut().enumerate() {
                row.round(now[i] / few[i]);
                row.tell(format!(
                    "{:.1} ms, {:.1} before{}",
                    now[i] * 1000.0,
                    few[i] * 1000.0,
                    if rewriting { "; the append-only file is being rewritten" } else { "" }
                ));
            }
        }
        rows
    };
    let fresh = measured(rows("that just came", || Goal::None));
    let_grow(&service, many);
    let grown = measured(rows("pending", || Goal::AtMost(1.3)));
    grown.into_iter().chain(fresh.into_iter().take(2)).collect()
}

/// Waits for the rewriting of the append-only file: until then no table begins to grow, and pages that are written to are copied.
/// Then a task more lets the tables grow, and so many look-ups of what is not there take every entry along.
fn let_grow(service: &Service, tasks: u64) {
    let began = Instant::now();
    while service.info("persistence", "aof_rewrite_in_progress") > 0.0 {
        assert!(began.elapsed() < Duration::from_secs(180), "the append-only file is rewritten at some time");
        std::thread::sleep(Duration::from_millis(100));
    }
    fill(service, 1000);
    let look = "local function key(of) return redis.call('KEYS', 'dp:*:bench:' .. of)[1] end \
                local tasks, due, none = key('tasks'), key('due'), {} \
                for i = 1, 100 do none[i] = 'none' end \
                for i = 1, 1000 do redis.call('HMGET', tasks, unpack(none)) redis.call('ZMSCORE', due, unpack(none)) end \
                return 'grown'";
    for _ in 0..=tasks / 100_000 {
        assert!(service.redis(&format!("EVAL \"{look}\" 0")).contains("grown"));
    }
}

/// Calls of Redis a second and CPU of a service that has nothing to do.
pub fn at_rest(service: &Service, span: Duration) -> (f64, f64) {
    let (calls, cpu, began) = (service.redis_calls(), service.part.cpu(), Instant::now());
    std::thread::sleep(span);
    let took = began.elapsed().as_secs_f64();
    let (calls, cpu) = (service.redis_calls() - calls, service.part.cpu().saturating_sub(cpu));
    (calls as f64 / took, 100.0 * cpu.as_secs_f64() / took)
}

/// Nothing to do, and how soon it could do something.
pub fn idle(size: Size) -> Vec<Row> {
    let service = Service::start("memory");
    let mut calls = Row::new("idle: calls of Redis", "a second", Goal::AtMost(3.0));
    let mut cpu = Row::new("idle: CPU", "% of a core", Goal::AtMost(0.2));
    let mut rss = Row::new("idle: resident memory", "MiB", Goal::AtMost(25.0));
    let mut start = Row::new("start to ready on an existing Redis", "ms", Goal::AtMost(100.0));
    std::thread::sleep(Duration::from_secs(1));
    let (per_second, share) = at_rest(&service, size.span());
    calls.round(per_second);
    cpu.round(share);
    rss.round(service.part.rss_kib() as f64 / 1024.0);
    for _ in 0..size.rounds {
        start.round(service.another().start.as_secs_f64() * 1000.0);
    }
    vec![calls, cpu, rss, start]
}
