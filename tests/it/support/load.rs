//! Calls that go on while something breaks: every task is posted until it is answered 201 or the load ends, and the
//! journal says what was answered when.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::http::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Client, Receiver, ms, secs};

/// Pause of a client between two calls.
const PACE: Duration = ms(4);

/// Before and after a kill: replicas are this far behind at most, on loopback and a busy machine.
const LAST_MOMENT: Duration = secs(1);

/// What happened.
#[derive(Default, Debug)]
pub struct Journal {
    /// Ids answered 201 (or 200, when repeated), with their queue, and when that call began and was answered.
    pub accepted: HashMap<String, (String, Instant, Instant)>,
    /// How often each status came, and each without an answer as 0.
    pub statuses: BTreeMap<u16, usize>,
    /// The `type` of each problem.
    pub problems: BTreeMap<String, usize>,
    /// The longest time without a 201, over all queues and clients.
    pub gap: Duration,
    /// The longest call.
    pub slowest: Duration,
    last: Option<Instant>,
}

/// Clients that post tasks, due at once, to these queues in turn.
pub struct Load {
    stop: CancellationToken,
    clients: Vec<tokio::task::JoinHandle<()>>,
    journal: Arc<Mutex<Journal>>,
}

impl Load {
    /// One client for each queue, so that one that does not answer holds up none of the others.
    pub fn start(api: &Client, queues: &[String]) -> Self {
        Self::start_as("load", api, queues)
    }

    /// The same with ids of another name, for a second one in a test.
    pub fn start_as(name: &str, api: &Client, queues: &[String]) -> Self {
        let (stop, journal) = (CancellationToken::new(), Arc::<Mutex<Journal>>::default());
        let clients = queues.iter().map(|queue| {
            let (api, queue, stop, journal) = (api.clone(), queue.clone(), stop.clone(), Arc::clone(&journal));
            let name = format!("{name}-{queue}");
            tokio::spawn(async move {
                for n in 0.. {
                    let id = format!("{name}-{n}");
                    loop {
                        if stop.is_cancelled() {
                            return;
                        }
                        let done = post(&api, &queue, &id, &journal).await;
                        tokio::time::sleep(PACE).await;
                        if done {
                            break;
                        }
                    }
                }
            })
        });
        let clients = clients.collect();
        Self { stop, clients, journal }
    }

    /// How many tasks have been accepted so far.
    pub fn accepted(&self) -> usize {
        self.journal.lock().expect("no panic under this lock").accepted.len()
    }

    /// Whether every one of these queues has had a task accepted from now on.
    pub async fn goes_on(&self, queues: &[String], deadline: Duration) {
        let count = |queue: &String| {
            self.journal
                .lock()
                .expect("no panic under this lock")
                .accepted
                .values()
                .filter(|(q, ..)| q == queue)
                .count()
        };
        for queue in queues {
            let before = count(queue);
            super::eventually(deadline, async || count(queue) > before).await;
        }
    }

    /// Ends the calls and gives the journal.
    pub async fn stop(self) -> Journal {
        self.stop.cancel();
        futures_util::future::join_all(self.clients).await;
        std::mem::take(&mut *self.journal.lock().expect("no panic under this lock"))
    }
}

async fn post(api: &Client, queue: &str, id: &str, journal: &Mutex<Journal>) -> bool {
    let began = Instant::now();
    let body = json!({"id": id, "payload": id, "delay": "0s"});
    let answer = api.try_call(Method::POST, &format!("/queues/{queue}/tasks"), Some(body.into())).await;
    let mut journal = journal.lock().expect("no panic under this lock");
    journal.slowest = journal.slowest.max(began.elapsed());
    let status = answer.as_ref().map_or(0, |answer| answer.status);
    *journal.statuses.entry(status).or_default() += 1;
    let done = matches!(status, 200 | 201);
    if done {
        let gap = journal.last.map_or(Duration::ZERO, |last| last.elapsed());
        journal.gap = journal.gap.max(gap);
        journal.last = Some(Instant::now());
        journal.accepted.insert(id.to_owned(), (queue.to_owned(), began, Instant::now()));
    } else if let Ok(answer) = answer {
        let kind = answer.json()["type"].as_str().unwrap_or_default().to_owned();
        *journal.problems.entry(kind).or_default() += 1;
    }
    done
}

impl Journal {
    /// Asserts that clients saw nothing but success and 503.
    #[track_caller]
    pub fn only_503(&self) {
        assert!(self.statuses.keys().all(|status| matches!(status, 200 | 201 | 503)), "{:?}", self.told());
    }

    /// Waits until each task that was accepted has arrived.
    #[track_caller]
    pub fn all_arrive(&self, receiver: &Receiver) -> impl Future<Output = ()> {
        self.arrive(receiver, |_, _| false)
    }

    /// The same where a primary was killed and nobody waited for its replicas: what it took in its last moment may be
    /// gone with it, as it answers before they have it. All else has to arrive.
    #[track_caller]
    pub fn all_arrive_but(&self, killed: Instant, receiver: &Receiver) -> impl Future<Output = ()> {
        self.all_arrive_but_between(killed, killed, receiver)
    }

    /// The same where two took writes for a while.
    #[track_caller]
    pub fn all_arrive_but_between(&self, from: Instant, to: Instant, receiver: &Receiver) -> impl Future<Output = ()> {
        self.arrive(receiver, move |began, answered| answered + LAST_MOMENT > from && began < to + LAST_MOMENT)
    }

    #[track_caller]
    fn arrive(&self, receiver: &Receiver, may_be_lost: impl Fn(Instant, Instant) -> bool) -> impl Future<Output = ()> {
        let from = std::panic::Location::caller();
        let must = self.accepted.iter().filter(|(_, (_, began, answered))| !may_be_lost(*began, *answered));
        let mut missing: HashSet<&str> = must.map(|(id, _)| id.as_str()).collect();
        let end = Instant::now() + secs(40);
        async move {
            loop {
                for request in receiver.journal() {
                    missing.remove(request.task());
                }
                if missing.is_empty() {
                    return;
                }
                let few: Vec<_> = missing.iter().take(5).collect();
                assert!(Instant::now() < end, "{from}: {} tasks are lost, as {few:?}", missing.len());
                tokio::time::sleep(ms(50)).await;
            }
        }
    }

    /// The figures, for people.
    pub fn told(&self) -> String {
        format!(
            "{} accepted, statuses {:?}, problems {:?}, longest gap {:?}, slowest call {:?}",
            self.accepted.len(),
            self.statuses,
            self.problems,
            self.gap,
            self.slowest
        )
    }
}
