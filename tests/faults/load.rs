//! The load: open (its pace does not follow the answers), seeded, by clients that behave as users do: what goes
//! unanswered or is refused for now is sent again.

use std::{
    collections::HashSet,
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::Method;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    journal::{Claimed, Refusal, Told, Writer, number, payload},
    support::{ApiAnswer, Client, ms, now_ms, parse_ms, secs},
};

/// How long a client repeats a call.
const GIVES_UP: Duration = secs(60);
/// Calls under way at once, at most: past it the load is late, as a client's own pool would be.
const AT_ONCE: usize = 192;
/// Ends of paths that are told in the journal.
const NAMED: [&str; 4] = ["tasks", "claim", "ack", "nack"];
/// A consumer's lease.
const LEASE: Duration = secs(3);
/// Consumers of each pull queue.
const CONSUMERS: usize = 2;

#[derive(Debug, Clone)]
pub struct Load {
    pub tasks: usize,
    /// The POSTs are spread evenly over it.
    pub span: Duration,
    pub push_queues: usize,
    pub pull_queues: usize,
    pub longest_delay: Duration,
    /// Bytes in a payload beside its number.
    pub pad: usize,
    /// Shares of the tasks, in percent: cancelled; with an id of the client's; whose first attempt is refused.
    pub cancels: u8,
    pub own_ids: u8,
    pub failing: u8,
    /// How long a client waits for an answer.
    pub patience: Duration,
    /// Whether every record is kept until the end; Redis may be too full for it.
    pub all_kept: bool,
    /// How often a consumer gives back or forgets a task, in percent.
    pub careless: u8,
}

impl Load {
    pub fn new(tasks: usize, span: Duration) -> Self {
        Self {
            tasks,
            span,
            push_queues: 4,
            pull_queues: 1,
            longest_delay: secs(2),
            pad: 60,
            cancels: 8,
            own_ids: 60,
            failing: 4,
            patience: secs(4),
            all_kept: true,
            careless: 3,
        }
    }

    pub fn queues(&self) -> Vec<String> {
        (0..self.push_queues + self.pull_queues).map(|q| self.queue(q)).collect()
    }

    fn queue(&self, q: usize) -> String {
        if q < self.push_queues { format!("push-{q}") } else { format!("pull-{}", q - self.push_queues) }
    }
}

/// What is going to be done with one task.
#[derive(Debug, Clone)]
pub struct Plan {
    n: usize,
    at: Duration,
    queue: String,
    own_id: bool,
    delay_ms: u64,
    cancel_after: Option<Duration>,
    reads: bool,
}

/// The whole script of a load, and which tasks are refused at first.
pub fn plans(load: &Load, rng: &mut fastrand::Rng) -> (Vec<Plan>, HashSet<usize>) {
    let queues = load.queues();
    let (mut plans, mut failing) = (Vec::new(), HashSet::new());
    let longest = u64::try_from(load.longest_delay.as_millis()).expect("fits");
    for n in 0..load.tasks {
        let delay_ms = rng.u64(0..=longest);
        let cancel = rng.u8(0..100) < load.cancels;
        if rng.u8(0..100) < load.failing {
            failing.insert(n);
        }
        plans.push(Plan {
            n,
            at: load.span.mul_f64(n as f64 / load.tasks as f64),
            queue: queues[rng.usize(0..queues.len())].clone(),
            own_id: rng.u8(0..100) < load.own_ids,
            delay_ms,
            // Up to a little after the task's instant.
            cancel_after: cancel.then(|| ms(rng.u64(0..=delay_ms + 60))),
            reads: rng.u8(0..100) < 3,
        });
    }
    (plans, failing)
}

/// The services that clients may ask; a client takes them in turn.
#[derive(Clone, Default)]
pub struct Targets {
    clients: Arc<RwLock<Vec<Client>>>,
    turn: Arc<AtomicUsize>,
}

impl Targets {
    pub fn set(&self, addresses: impl IntoIterator<Item = String>) {
        let clients = addresses.into_iter().map(|address| Client::new(&address)).collect();
        *self.clients.write().expect("no panic under this lock") = clients;
    }

    fn next(&self) -> Option<Client> {
        let clients = self.clients.read().expect("no panic under this lock");
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (!clients.is_empty()).then(|| clients[turn % clients.len()].clone())
    }
}

/// The last cause of an error.
fn root(mut error: &(dyn std::error::Error + 'static)) -> String {
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What all clients share.
#[derive(Clone)]
pub struct Clients {
    pub targets: Targets,
    pub journal: Writer,
    at_once: Arc<Semaphore>,
    pad: usize,
    patience: Duration,
    all_kept: bool,
}

pub struct Running {
    jobs: JoinHandle<()>,
    consumers: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Running {
    /// Until every POST and every cancel is answered.
    pub async fn sent(&mut self) {
        (&mut self.jobs).await.expect("clients end");
    }

    /// Consumers end after what they have in hand.
    pub async fn stop(self) {
        self.stop.cancel();
        for consumer in join_all(self.consumers).await {
            consumer.expect("a consumer ends");
        }
    }
}

pub fn start(load: &Load, targets: Targets, journal: Writer, plans: Vec<Plan>, rng: &mut fastrand::Rng) -> Running {
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let (pad, patience, all_kept) = (load.pad, load.patience, load.all_kept);
    let clients = Clients { targets, journal, at_once, pad, patience, all_kept };
    let (began, stop) = (Instant::now(), CancellationToken::new());
    let posting = clients.clone();
    let jobs = tokio::spawn(async move {
        let mut under_way = JoinSet::new();
        for plan in plans {
            sleep_until(began + plan.at).await;
            under_way.spawn(posting.clone().one_task(plan));
            while let Some(done) = under_way.try_join_next() {
                done.expect("a client ends");
            }
        }
        while let Some(done) = under_way.join_next().await {
            done.expect("a client ends");
        }
    });
    let mut consumers = Vec::new();
    for q in 0..load.pull_queues * CONSUMERS {
        let queue = load.queue(load.push_queues + q / CONSUMERS);
        consumers.push(tokio::spawn(clients.clone().consume(queue, load.careless, rng.fork(), stop.clone())));
    }
    Running { jobs, consumers, stop }
}

impl Clients {
    /// One call; `None` and a line in the journal when it is to be repeated.
    async fn call(&self, method: &Method, path: &str, body: Option<&str>) -> Option<ApiAnswer> {
        let sent = now_ms();
        let call =
            format!("{method} {}", path.rsplit('/').next().filter(|last| NAMED.contains(last)).unwrap_or("task"));
        let what = match self.targets.next() {
            None => "no service".to_owned(),
            Some(client) => {
                match timeout(self.patience, client.try_call(method.clone(), path, body.map(Into::into))).await {
                    Ok(Ok(answer)) if answer.status < 500 => return Some(answer),
                    Ok(Ok(answer)) => {
                        let slug = answer.json()["type"].as_str().unwrap_or("?").replace("/problems/", "");
                        self.refused(sent, format!("{call} {} {slug}", answer.status));
                        return (slug == "outcome-unknown").then_some(answer);
                    }
                    Ok(Err(e)) => format!("no answer: {}", root(e.as_ref())),
                    Err(_) => "no answer in time".to_owned(),
                }
            }
        };
        self.refused(sent, format!("{call} {what}"));
        None
    }

    fn refused(&self, sent: i64, what: String) {
        self.journal.open().refusals.push(Refusal { sent, at: now_ms(), what });
    }

    fn wrong(&self, what: String) {
        self.journal.open().wrong.push(what);
    }

    /// Repeats a call until it is answered for good; `None` when it never is.
    async fn insist(&self, method: Method, path: &str, body: Option<&str>) -> Option<ApiAnswer> {
        let end = Instant::now() + GIVES_UP;
        while Instant::now() < end {
            let answer = self.call(&method, path, body).await;
            if let Some(answer) = answer.filter(|answer| answer.status < 500) {
                return Some(answer);
            }
            sleep(ms(60)).await;
        }
        self.journal.open().given_up += 1;
        None
    }

    async fn one_task(self, plan: Plan) {
        let permit = Arc::clone(&self.at_once).acquire_owned().await.expect("never closed");
        let Some((mut told, repeated)) = self.post(&plan).await else { return };
        drop(permit);
        let path = format!("/queues/{}/tasks/{}", told.queue, told.id);
        if plan.reads {
            self.read(&path, &told).await;
        }
        // A POST that went unanswered may still be on its way; after a cancel its id is free, and it would make the task
        // anew, as the contract says.
        if let Some(after) = plan.cancel_after.filter(|_| !repeated) {
            sleep(after).await;
            if let Some(answer) = self.insist(Method::DELETE, &path, None).await {
                if ![200, 202, 409].contains(&answer.status) && (self.all_kept || answer.status != 404) {
                    self.wrong(format!("DELETE {path}: {} {}", answer.status, answer.text()));
                }
                told.cancel = Some((answer.status, now_ms()));
            }
        }
        self.journal.open().told.push(told);
    }

    /// Schedules until it is known that the task is there; tells whether a POST went unanswered before.
    async fn post(&self, plan: &Plan) -> Option<(Told, bool)> {
        let (n, payload) = (plan.n, payload(plan.n, self.pad));
        let path = format!("/queues/{}/tasks", plan.queue);
        let mut id = plan.own_id.then(|| format!("task-{n}"));
        let end = Instant::now() + GIVES_UP;
        let mut repeated = false;
        while Instant::now() < end {
            let with_id = id.as_ref().map(|id| format!(r#""id":"{id}","#)).unwrap_or_default();
            let body = format!(r#"{{{with_id}"delay_ms":{},"payload":{payload}}}"#, plan.delay_ms);
            match self.call(&Method::POST, &path, Some(&body)).await {
                Some(answer) if [200, 201].contains(&answer.status) => {
                    return self.told(plan, id, &answer, payload).map(|told| (told, repeated));
                }
                // The service made an id: repeating with it is safe.
                Some(answer) if answer.status == 503 => match answer.json()["task_id"].as_str() {
                    Some(made) => id = Some(made.to_owned()),
                    None => self.wrong(format!("outcome-unknown without a task_id: {}", answer.text())),
                },
                Some(answer) => {
                    self.wrong(format!("POST of {n}: {} {}", answer.status, answer.text()));
                    return None;
                }
                None => {}
            }
            repeated = true;
            self.journal.open().unanswered.insert(n);
            sleep(ms(60)).await;
        }
        self.journal.open().given_up += 1;
        None
    }

    /// An answer must be about the task that was asked for.
    fn told(&self, plan: &Plan, id: Option<String>, answer: &ApiAnswer, payload: String) -> Option<Told> {
        let task = answer.json();
        let text = |name: &str| task[name].as_str().unwrap_or("").to_owned();
        let (run_at, created_at) = (parse_ms(&text("run_at")), parse_ms(&text("created_at")));
        let other_id = id.is_some_and(|id| id != text("id"));
        if other_id || task["queue"] != plan.queue.as_str() || run_at != created_at + plan.delay_ms as i64 {
            self.wrong(format!("the answer to POST of {plan:?} is about another: {task}"));
            return None;
        }
        let queue = plan.queue.clone();
        let (id, uid) = (text("id"), text("uid"));
        Some(Told { n: plan.n, queue, id, uid, run_at, known: now_ms(), payload, cancel: None })
    }

    async fn read(&self, path: &str, told: &Told) {
        let Some(answer) = self.insist(Method::GET, path, None).await else { return };
        if answer.status == 404 && !self.all_kept {
            return;
        }
        let same = answer.status == 200 && answer.raw_field("payload").as_deref() == Some(&told.payload);
        if !same || answer.json()["id"] != told.id.as_str() {
            self.wrong(format!("GET {path}: {} {}", answer.status, answer.text()));
        }
    }

    /// A consumer: acks most, gives some back, forgets some.
    async fn consume(self, queue: String, careless: u8, mut rng: fastrand::Rng, stop: CancellationToken) {
        let path = format!("/queues/{queue}/claim");
        let body = json!({"max": 10, "lease": format!("{}s", LEASE.as_secs()), "wait": "500ms"}).to_string();
        while !stop.is_cancelled() {
            let asked = now_ms();
            let Some(answer) = self.call(&Method::POST, &path, Some(&body)).await.filter(|a| a.status == 200) else {
                sleep(ms(100)).await;
                continue;
            };
            let answer = answer.json();
            let tasks = answer["tasks"].as_array().map_or(&[][..], Vec::as_slice);
            let work = tasks.iter().map(|task| self.handle(&queue, task, asked, rng.u8(0..100) < careless, rng.bool()));
            join_all(work.collect::<Vec<_>>()).await;
        }
    }

    async fn handle(&self, queue: &str, task: &Value, asked: i64, careless: bool, forgets: bool) {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let (id, token) = (text(&task["id"]), text(&task["lease"]["token"]));
        let mut claimed = Claimed {
            id: id.clone(),
            uid: text(&task["uid"]),
            asked,
            at: now_ms(),
            lease_ends: parse_ms(&text(&task["lease"]["expires_at"])),
            acked: None,
            nacked: None,
        };
        if number(&task["payload"].to_string()).is_none() {
            self.wrong(format!("a claim gave {task}"));
        }
        let end = |what: &str| format!("/queues/{queue}/tasks/{id}/{what}");
        let token = json!({ "token": token }).to_string();
        match (careless, forgets) {
            (true, true) => {}
            (true, false) => {
                claimed.nacked = Some(now_ms());
                self.insist(Method::POST, &end("nack"), Some(&token)).await;
            }
            (false, _) => {
                let answer = self.insist(Method::POST, &end("ack"), Some(&token)).await;
                claimed.acked = answer.filter(|a| a.status == 200).map(|_| now_ms());
            }
        }
        self.journal.open().claims.push(claimed);
    }
}
