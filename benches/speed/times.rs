//! The rows about punctuality. The instants are fixed before anything is due, and the receiver's clock judges each arrival:
//! what a stall holds up is late for every task, whether or not somebody waited for it.

use std::time::{Duration, Instant};

use crate::{
    Size,
    http::{Until, closed, post},
    parts::Service,
    rows::{PATIENCE, pile_up, thousands, webhook},
    sink::{DUE, Sink, now_us},
    table::{Goal, Row},
};

/// Tasks in one call that schedules them.
const BATCH: u64 = 100;

/// A batch of the tasks from the how-manieth on, each with the instant that it is due at in its payload.
fn planned(queue: &str, first: u64, due_ms: impl Fn(u64) -> i64) -> Vec<u8> {
    let task = |n| {
        let due_ms = due_ms(n);
        let at = jiff::Timestamp::from_millisecond(due_ms).expect("an instant");
        format!(
            r#"{{"payload":{DUE}{due_ms},"order_id":1042,"event":"payment_timeout","amount":129.90}},"run_at":"{at:.3}"}}"#
        )
    };
    let tasks: Vec<String> = (first..first + BATCH).map(task).collect();
    post(&format!("/queues/{queue}/batch"), &format!(r#"{{"tasks":[{}]}}"#, tasks.join(",")))
}

/// Schedules so many tasks a second, evenly from `start_ms` on, over so many queues.
fn plan(service: &Service, queues: u64, rate: f64, tasks: u64, start_ms: i64) {
    closed(service.address(), 4, Until::Calls(tasks / BATCH), None, move |n, buffer| {
        // every task of a batch goes to one queue; the batches interleave, so that each instant has its own
        let (calls, queue) = (tasks / BATCH, if queues == 1 { "bench".to_owned() } else { format!("q{}", n % queues) });
        let due_ms = |i: u64| start_ms + (((i - n * BATCH) * calls + n) as f64 * 1000.0 / rate) as i64;
        buffer.extend_from_slice(&planned(&queue, n * BATCH, due_ms));
    });
}

fn percentile(sorted: &[i64], of_1000: usize) -> f64 {
    let at = (sorted.len() * of_1000).div_ceil(1000).clamp(1, sorted.len());
    sorted[at - 1] as f64 / 1000.0
}

/// Runs a plan and waits for the last arrival; how late each was, in µs, sorted.
fn run(service: &Service, sink: &Sink, queues: u64, rate: f64, span: Duration) -> Vec<i64> {
    let tasks = ((rate * span.as_secs_f64()) as u64 / BATCH).max(1) * BATCH;
    let lead = Duration::from_secs(2) + Duration::from_micros(tasks * 50);
    let (before, start_ms) = (sink.count(), now_us() / 1000 + i64::try_from(lead.as_millis()).expect("small"));
    plan(service, queues, rate, tasks, start_ms);
    assert!(now_us() / 1000 < start_ms, "the plan took too long to make");
    sink.wait_for(before + tasks, lead + span + PATIENCE);
    std::thread::sleep(Duration::from_millis(20));
    sink.lateness()
}

/// Tasks spread over time.
pub fn spread(size: Size) -> Vec<Row> {
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let mut p50 = Row::new("lateness at 1,000 tasks/s, p50", "ms", Goal::AtMost(1.5));
    let mut p99 = Row::new("lateness at 1,000 tasks/s, p99", "ms", Goal::AtMost(5.0));
    let mut max = Row::new("lateness at 1,000 tasks/s, max", "ms", Goal::AtMost(50.0));
    let mut early = Row::new("of them early", "tasks", Goal::AtMost(0.0));
    for _ in 0..if size.full { size.rounds } else { 1 } {
        let late = run(&service, &sink, 1, 1000.0, size.span());
        p50.round(percentile(&late, 500));
        p99.round(percentile(&late, 990));
        max.round(percentile(&late, 1000));
        early.round(late.iter().filter(|us| **us < 0).count() as f64);
        p50.tell(format!("{} tasks in {} s", late.len(), size.span().as_secs()));
    }
    vec![p50, p99, max, early]
}

/// The rate at which a pile of due tasks is delivered.
fn maximal_rate(service: &Service, sink: &Sink, tasks: u64) -> f64 {
    pile_up(service, "bench", tasks);
    let before = sink.count();
    service.call("POST", "/queues/bench/resume", "{}");
    let first = sink.wait_for(before + tasks / 10, PATIENCE);
    let last = sink.wait_for(before + tasks, PATIENCE);
    (tasks - tasks / 10) as f64 / (last - first).as_secs_f64()
}

/// Tasks spread over time at half the rate of a pile.
pub fn half(size: Size) -> Vec<Row> {
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let mut row = Row::new("lateness at half the maximal rate, p99", "ms", Goal::AtMost(25.0));
    for _ in 0..if size.full { size.rounds } else { 1 } {
        let rate = maximal_rate(&service, &sink, size.tasks) / 2.0;
        sink.lateness();
        let late = run(&service, &sink, 1, rate, size.span());
        row.round(percentile(&late, 990));
        row.tell(format!(
            "at {}: p50 {:.1} ms, max {:.1} ms",
            thousands(rate),
            percentile(&late, 500),
            percentile(&late, 1000)
        ));
    }
    vec![row]
}

/// All at one instant, against the time that the rate of a pile allows for them.
pub fn burst(size: Size) -> Vec<Row> {
    let (service, sink) = (Service::start("memory"), Sink::start());
    webhook(&service, "bench", &sink);
    let mut row =
        Row::new("burst of tasks due at one millisecond", "of their time at the maximal rate", Goal::AtMost(1.3));
    let tasks = if size.full { 100_000 } else { size.tasks };
    for _ in 0..if size.full { size.rounds } else { 1 } {
        let rate = maximal_rate(&service, &sink, size.tasks);
        let before = sink.count();
        let due_ms = now_us() / 1000 + 1500 + i64::try_from(tasks / 20).expect("small");
        closed(service.address(), 4, Until::Calls(tasks / BATCH), None, move |n, buffer| {
            buffer.extend_from_slice(&planned("bench", n * BATCH, |_| due_ms));
        });
        let ahead = u64::try_from(due_ms * 1000 - now_us()).expect("the tasks were in before their instant");
        let due = Instant::now() + Duration::from_micros(ahead);
        let took = sink.wait_for(before + tasks, PATIENCE) - due;
        row.round(took.as_secs_f64() * rate / tasks as f64);
        row.tell(format!("{tasks} in {:.2} s, at {} otherwise", took.as_secs_f64(), thousands(rate)));
    }
    vec![row]
}

/// Many queues, each with a few tasks.
pub fn queues(size: Size) -> Vec<Row> {
    let queues = if size.full { 10_000 } else { 1000 };
    let (service, sink) = (Service::start("memory"), Sink::start());
    let to = format!(r#"{{"id":"sink","url":"http://{}/"}}"#, sink.address);
    closed(service.address(), 32, Until::Calls(queues), None, move |n, buffer| {
        buffer.extend_from_slice(&post(&format!("/queues/q{n}/webhooks"), &to));
    });
    let mut p99 = Row::new(&format!("{queues} queues: lateness at 1,000 tasks/s, p99"), "ms", Goal::AtMost(5.0));
    let mut calls = Row::new(&format!("{queues} queues: idle calls of Redis"), "a second", Goal::AtMost(3.0));
    let mut cpu = Row::new(&format!("{queues} queues: idle CPU"), "% of a core", Goal::AtMost(0.2));
    for _ in 0..if size.full { size.rounds } else { 1 } {
        let late = run(&service, &sink, queues, 1000.0, size.span());
        p99.round(percentile(&late, 990));
        p99.tell(format!("p50 {:.1} ms, max {:.1} ms", percentile(&late, 500), percentile(&late, 1000)));
        std::thread::sleep(Duration::from_secs(12)); // the last step of retention is over
        let (per_second, share) = crate::space::at_rest(&service, size.span());
        calls.round(per_second);
        cpu.round(share);
    }
    vec![p99, calls, cpu]
}
