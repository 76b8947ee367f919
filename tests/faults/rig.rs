//! A rig: Redis, services, receiver and load of one trial, and its verdict.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use axum::http::Method;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    check::{Evidence, Findings, check},
    journal::{Ended, Ends, Journal, Seen, Window, Writer},
    load::{self, Load, Running, Targets},
    report,
    support::{
        Answer, Receiver, Request, Service, ms, now_ms, secs,
        service::Builder,
        world::{assert_balanced, figure},
    },
    trial::Trial,
};

/// A standard pass is drained so long after the last fault; and in CI, where other things run on the same two cores.
const DRAINS_IN: Duration = secs(15);
const DRAINS_IN_CI: Duration = secs(40);
/// How long the rig waits for it: past [`DRAINS_IN`] it is a failure all the same.
const WAITS: Duration = secs(60);
/// How long a worker holds a task.
const LEASE_MS: i64 = 10_000;
/// The pause after a failed attempt.
const BACKOFF_MS: i64 = 200;

/// How services are started.
#[derive(Debug, Clone)]
pub struct Setup {
    pub redis: Vec<String>,
    pub flags: Vec<String>,
    pub env: Vec<(String, String)>,
}

impl Setup {
    pub fn on(url: &str) -> Self {
        Self { redis: vec!["--redis".into(), url.into()], flags: Vec::new(), env: Vec::new() }
    }

    pub fn flag(mut self, name: &str, value: &str) -> Self {
        self.flags.extend([name.to_owned(), value.to_owned()]);
        self
    }

    pub async fn start(&self) -> Service {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--allow-private-targets"];
        args.extend(self.redis.iter().chain(&self.flags).map(String::as_str));
        let mut builder = Builder::bare(&args);
        for (name, value) in &self.env {
            builder = builder.env(name, value);
        }
        builder.start().await
    }
}

pub struct Rig {
    pub trial: Trial,
    pub services: Vec<Service>,
    pub setup: Setup,
    pub receiver: Receiver,
    pub targets: Targets,
    pub journal: Writer,
    pub windows: Vec<Window>,
    pub events: usize,
    /// How early is early: 0 but where Redis's clock is moved.
    pub tolerance_ms: i64,
    /// Whether Redis may forget what was not acknowledged.
    pub forgets: bool,
    last_fault: i64,
    load: Load,
    failing: std::collections::HashSet<usize>,
    running: Option<Running>,
}

/// What a trial came to.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub events: usize,
    pub drained_ms: i64,
    pub refusals: BTreeMap<String, usize>,
    pub findings: Findings,
    /// What `duepost fsck` says of all that is kept in the end; empty if it finds nothing.
    pub fsck: String,
    #[serde(skip)]
    full: bool,
    #[serde(skip)]
    pub journal: Journal,
    #[serde(skip)]
    pub stats: Vec<Value>,
}

impl Rig {
    /// Services and queues, and no load yet.
    pub async fn start(trial: Trial, setup: Setup, services: usize, load: Load) -> Self {
        let (receiver, targets) = (Receiver::start().await, Targets::default());
        let mut running = Vec::new();
        for _ in 0..services {
            running.push(setup.start().await);
        }
        let mut rig = Self {
            trial,
            services: running,
            setup,
            receiver,
            targets,
            journal: Writer::default(),
            windows: Vec::new(),
            events: 0,
            last_fault: 0,
            tolerance_ms: 0,
            forgets: false,
            load,
            failing: std::collections::HashSet::new(),
            running: None,
        };
        rig.retarget();
        rig.queues().await;
        rig
    }

    /// Clients ask the services that there are now.
    pub fn retarget(&self) {
        self.targets.set(self.services.iter().map(|service| service.address().to_owned()));
    }

    async fn queues(&mut self) {
        let api = self.services[0].client();
        let retry = json!({"max_attempts": 100,
            "backoff": {"kind": "fixed", "delay": format!("{BACKOFF_MS}ms"), "jitter": 0.0}});
        for queue in self.load.queues() {
            let settings = json!({"retry": retry, "retain_completed": "7d", "retain_completed_max": 10_000_000});
            api.put(&format!("/queues/{queue}"), settings).await.expect(201);
            if queue.starts_with("push") {
                let hook = json!({"url": self.receiver.url(&format!("/{queue}"))});
                api.post(&format!("/queues/{queue}/webhooks"), hook).await.expect(201);
            }
        }
    }

    /// The load begins.
    pub fn begin(&mut self) {
        let mut rng = self.trial.rng("load");
        let (plans, failing) = load::plans(&self.load, &mut rng);
        self.failing = failing.clone();
        self.receiver.by(move |request| {
            let status = status_of(&failing, request);
            // Some calls are under way at any instant.
            Some(Answer::status(status).after(ms(request.head.len() as u64 % 8)))
        });
        self.running = Some(load::start(&self.load, self.targets.clone(), self.journal.clone(), plans, &mut rng));
    }

    /// A fault was; `may_double` is the span in which it can have cost the news of a delivery.
    pub fn fault(&mut self, cause: &'static str, may_double: RangeInclusive<i64>) {
        self.events += 1;
        self.last_fault = now_ms();
        let (from, to) = may_double.into_inner();
        self.windows.push(Window { cause, on_record: false, from, to });
        // Its settle may have been tried for as long as its lease held; then the record tells of it.
        self.windows.push(Window { cause, on_record: true, from: from - LEASE_MS, to });
    }

    /// The same for a worker that vanished: each task's record must tell of it.
    pub fn vanished(&mut self, cause: &'static str, may_double: RangeInclusive<i64>) {
        self.fault(cause, may_double);
        let at = self.windows.len() - 2;
        self.windows.remove(at);
    }

    /// Waits for the end of the load, then for the last task, and judges.
    pub async fn finish(mut self) -> Outcome {
        let mut running = self.running.take().expect("the load has begun");
        running.sent().await;
        let last_due = self.journal.open().told.iter().map(|told| told.run_at).max().unwrap_or(0);
        let since = self.last_fault.max(last_due).max(now_ms());
        let stats = self.drained().await;
        let drained_ms = now_ms() - since;
        running.stop().await;
        stats.iter().for_each(assert_balanced);
        let ends = self.ends().await;
        let seen: Vec<Seen> = self.receiver.journal().iter().map(|request| self.seen(request)).collect();
        let journal = std::mem::take(&mut *self.journal.open());
        let evidence = Evidence {
            journal: &journal,
            seen: &seen,
            ends: &ends,
            windows: &self.windows,
            backoff_ms: BACKOFF_MS - self.tolerance_ms,
            tolerance_ms: self.tolerance_ms,
            all_kept: self.load.all_kept,
            forgets: self.forgets,
        };
        let findings = check(&evidence);
        let refusals = journal.refusals_by_kind().into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect();
        let (events, fsck, full) = (self.events, self.fsck(), self.trial.full);
        let outcome = Outcome { events, drained_ms, refusals, findings, fsck, full, journal, stats };
        report::keep(&self.trial, &outcome);
        outcome
    }

    fn seen(&self, request: &Request) -> Seen {
        Seen::of(request, status_of(&self.failing, request), self.load.pad)
    }

    fn fsck(&self) -> String {
        let mut args = vec!["fsck"];
        args.extend(self.setup.redis.iter().map(String::as_str));
        let told = crate::support::service::run(&args);
        let words = String::from_utf8_lossy(&told.stdout) + String::from_utf8_lossy(&told.stderr);
        if told.status.success() { String::new() } else { format!("{} {words}", told.status) }
    }

    /// The stats of all queues, once no task lives.
    async fn drained(&self) -> Vec<Value> {
        let end = Instant::now() + WAITS;
        loop {
            let mut stats = Vec::new();
            for queue in self.load.queues() {
                stats.push(self.get(&format!("/queues/{queue}/stats")).await);
            }
            let living: i64 = stats.iter().map(|s| figure(s, "scheduled") + figure(s, "active")).sum();
            if living == 0 || Instant::now() > end {
                return stats;
            }
            sleep(ms(20)).await;
        }
    }

    /// Asks until it is answered: the last fault may be just over.
    async fn get(&self, path: &str) -> Value {
        let end = Instant::now() + WAITS;
        loop {
            for service in &self.services {
                if let Ok(answer) = service.client().try_call(Method::GET, path, None).await
                    && answer.status == 200
                {
                    return answer.json();
                }
            }
            assert!(Instant::now() < end, "no service answers GET {path}");
            sleep(ms(50)).await;
        }
    }

    /// Every task as it is shown.
    async fn ends(&self) -> Ends {
        let mut ends = Ends::new();
        for queue in self.load.queues() {
            for state in ["completed", "cancelled", "dead", "expired", "scheduled", "active"] {
                let mut cursor = String::new();
                loop {
                    let path = format!("/queues/{queue}/tasks?state={state}&limit=1000&full=true{cursor}");
                    let page = self.get(&path).await;
                    for task in page["items"].as_array().expect("items") {
                        ends.insert(task["id"].as_str().expect("an id").to_owned(), Ended::of(task));
                    }
                    let Some(next) = page["next_cursor"].as_str() else { break };
                    cursor = format!("&cursor={next}");
                }
            }
        }
        ends
    }
}

/// The receiver refuses the first attempt of some tasks.
fn status_of(failing: &std::collections::HashSet<usize>, request: &Request) -> u16 {
    let number = crate::journal::number(&request.text());
    if request.attempt() == 1 && number.is_some_and(|n| failing.contains(&n)) { 500 } else { 200 }
}

impl Outcome {
    /// A standard pass: RELIABILITY's five zeros and the drain.
    #[track_caller]
    pub fn passes(&self) {
        let faults = self.findings.faults();
        assert!(faults.is_empty(), "{faults}");
        assert!(self.fsck.is_empty(), "fsck: {}", self.fsck);
        assert!(self.findings.tasks > 0 && self.findings.posts > 0, "nothing was tried");
        let limit = if self.full { DRAINS_IN } else { DRAINS_IN_CI };
        let limit = i64::try_from(limit.as_millis()).expect("fits");
        assert!(self.drained_ms <= limit, "drained {} ms after the last fault", self.drained_ms);
    }
}
