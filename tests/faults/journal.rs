//! What the clients, the consumers and the receiver saw. The checker knows nothing else of a run.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use serde_json::Value;

use crate::support::Request;

/// A task that was acknowledged.
#[derive(Debug, Clone)]
pub struct Told {
    pub n: usize,
    pub queue: String,
    pub id: String,
    pub uid: String,
    pub run_at: i64,
    /// When its 200 or 201 had come.
    pub known: i64,
    pub payload: String,
    /// The answer to its DELETE, and when that had come.
    pub cancel: Option<(u16, i64)>,
}

/// A task in the hands of a consumer.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub id: String,
    pub uid: String,
    /// When the claim was sent, and when its answer had come.
    pub asked: i64,
    pub at: i64,
    pub lease_ends: i64,
    /// When a 200 to its ack had come.
    pub acked: Option<i64>,
    /// When its nack was sent.
    pub nacked: Option<i64>,
}

/// A POST as the receiver saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: i64,
    pub n: usize,
    pub id: String,
    pub uid: String,
    /// What the receiver answered.
    pub status: u16,
    /// The body, if it is not the one that [`payload`] makes.
    pub odd_body: Option<String>,
}

/// A call that was not answered, or answered with an error that a client is expected to repeat.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "`sent` is for those who read a failure")]
pub struct Refusal {
    pub sent: i64,
    pub at: i64,
    /// `no answer`, or as `503 unavailable`.
    pub what: String,
}

/// A task as the service shows it in the end.
#[derive(Debug, Clone)]
pub struct Ended {
    pub state: String,
    pub reason: Option<String>,
    /// Attempts on record whose worker vanished.
    pub lost: usize,
}

/// A span in which a fault may have caused a second delivery of what was delivered first within it.
#[derive(Debug, Clone)]
pub struct Window {
    pub cause: &'static str,
    /// Whether the task's record must tell of the lost attempt: so it is when a worker vanished.
    pub on_record: bool,
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, Default)]
pub struct Journal {
    pub told: Vec<Told>,
    pub claims: Vec<Claimed>,
    pub refusals: Vec<Refusal>,
    /// Numbers of tasks of which at least one POST went unanswered: it may have made a task.
    pub unanswered: HashSet<usize>,
    /// Answers that should not be.
    pub wrong: Vec<String>,
    /// Calls that were never answered, however often they were repeated.
    pub given_up: usize,
}

/// The journal while the run goes on.
#[derive(Clone, Default)]
pub struct Writer(Arc<Mutex<Journal>>);

impl Writer {
    pub fn open(&self) -> MutexGuard<'_, Journal> {
        self.0.lock().expect("no panic under this lock")
    }
}

impl Journal {
    pub fn refusals_by_kind(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for refusal in &self.refusals {
            *kinds.entry(refusal.what.as_str()).or_default() += 1;
        }
        kinds
    }
}

/// The body of task `n`: it says who it is.
pub fn payload(n: usize, pad: usize) -> String {
    format!(r#"{{"n":{n},"pad":"{}"}}"#, "x".repeat(pad))
}

/// The number in a body that [`payload`] made.
pub fn number(body: &str) -> Option<usize> {
    body.strip_prefix(r#"{"n":"#)?.split(',').next()?.parse().ok()
}

impl Seen {
    /// `status` is what the receiver's rule answers to this request.
    pub fn of(request: &Request, status: u16, pad: usize) -> Self {
        let body = request.text();
        let n = number(&body).unwrap_or(usize::MAX);
        let header = |name: &str| request.header(name).unwrap_or("").to_owned();
        Self {
            at: request.at_ms,
            n,
            id: request.task().to_owned(),
            uid: header("webhook-id"),
            status,
            odd_body: (body != payload(n, pad)).then_some(body),
        }
    }
}

impl Ended {
    pub fn of(task: &Value) -> Self {
        let attempts = task["attempts"].as_array().map_or(&[][..], Vec::as_slice);
        Self {
            state: task["state"].as_str().unwrap_or("?").to_owned(),
            reason: task["reason"].as_str().map(str::to_owned),
            lost: attempts.iter().filter(|attempt| attempt["outcome"] == "lost").count(),
        }
    }
}

pub type Ends = HashMap<String, Ended>;
