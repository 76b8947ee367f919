//! A queue as plain commands read it, by a reader of records and run rows that is not the service's own.

use std::collections::BTreeMap;

use deadpool_redis::redis;
use duepost::{
    domain::{id::TaskId, task::TaskState},
    store::keys::parse_raw_id,
};

use crate::store_kit::Kit;

pub const CANCELLING: u8 = 1;
pub const RETRIED: u8 = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub fence: u32,
    pub reclaims: u16,
    pub lapses: u32,
    pub marks: u8,
    pub uid: [u8; 16],
    pub done: Vec<String>,
}

impl Run {
    /// Of a task that was never claimed.
    pub fn fresh(uid: [u8; 16]) -> Self {
        Self { fence: 0, reclaims: 0, lapses: 0, marks: 0, uid, done: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub state: TaskState,
    pub score: i64,
    pub uid: [u8; 16],
    pub expires: Option<i64>,
    pub run: Option<Run>,
}

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub now: i64,
    pub rows: BTreeMap<TaskId, Row>,
    pub expiry: BTreeMap<TaskId, i64>,
    pub totals: BTreeMap<String, i64>,
    pub holds: BTreeMap<String, i64>,
    pub agenda: Option<i64>,
    pub seq: i64,
}

type Members = Vec<(Vec<u8>, f64)>;
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

const SETS: [(&str, TaskState); 6] = [
    ("due", TaskState::Scheduled),
    ("active", TaskState::Active),
    ("completed", TaskState::Completed),
    ("dead", TaskState::Dead),
    ("cancelled", TaskState::Cancelled),
    ("expired", TaskState::Expired),
];

impl Snapshot {
    /// Reads all; each id must be in one set and have one record, and each run row and expiry must have its task.
    pub async fn take(kit: &Kit) -> Self {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for part in SETS.map(|s| s.0).into_iter().chain(["expiry"]) {
            pipe.cmd("ZRANGE").arg(kit.key(part)).arg(0).arg(-1).arg("WITHSCORES");
        }
        for part in ["tasks", "runs"] {
            pipe.cmd("HGETALL").arg(kit.key(part));
        }
        for part in ["totals", "holds"] {
            pipe.cmd("HGETALL").arg(kit.key(part));
        }
        pipe.cmd("ZSCORE").arg(kit.key("agenda")).arg(kit.queue.as_str());
        pipe.cmd("GET").arg(kit.key("seq")).cmd("TIME");
        let values: Vec<redis::Value> = pipe.query_async(&mut kit.con.clone()).await.expect("Redis answers");
        let mut values = values.into_iter();
        let mut next = || values.next().expect("an answer a command");
        let mut sets: Vec<Members> = (0..7).map(|_| redis::from_redis_value(next()).expect("members")).collect();
        let (records, runs): (Fields, Fields) =
            (redis::from_redis_value(next()).expect("fields"), redis::from_redis_value(next()).expect("fields"));
        let mut all = Self {
            totals: redis::from_redis_value(next()).expect("counters"),
            holds: redis::from_redis_value(next()).expect("instants"),
            ..Self::default()
        };
        all.agenda = redis::from_redis_value::<Option<f64>>(next()).expect("a score").map(whole);
        all.seq = redis::from_redis_value::<Option<i64>>(next()).expect("a number").unwrap_or(0);
        let (s, us): (i64, i64) = redis::from_redis_value(next()).expect("a time");
        all.now = s * 1000 + us / 1000 + kit.clock.offset_ms();

        let records: BTreeMap<TaskId, Vec<u8>> = records.into_iter().map(|(id, r)| (id_of(&id), r)).collect();
        let mut runs: BTreeMap<TaskId, Run> = runs.into_iter().map(|(id, r)| (id_of(&id), read_run(&r))).collect();
        let expiry = sets.pop().expect("seven sets");
        for ((part, state), members) in SETS.into_iter().zip(sets) {
            for (id, score) in members {
                let id = id_of(&id);
                let record = records.get(&id).unwrap_or_else(|| panic!("{id} in {part} has no record"));
                let (uid, expires) = read_record(&id, record);
                let run = runs.remove(&id);
                if let Some(run) = &run {
                    assert_eq!(run.uid, uid, "the run row of {id} is about other content");
                } else if state == TaskState::Scheduled {
                    let instant = |at: usize| i64::from_be_bytes(record[at..at + 8].try_into().unwrap());
                    let recorded = instant(2).max(instant(10));
                    assert_eq!(whole(score), recorded, "{id} has no run row, so `visit` goes by its record");
                }
                let twice = all.rows.insert(id.clone(), Row { state, score: whole(score), uid, expires, run });
                assert!(twice.is_none(), "{id} is in {part} and in {twice:?}");
            }
        }
        assert_eq!(records.len(), all.rows.len(), "a record is in no set");
        assert!(runs.is_empty(), "orphan run rows: {:?}", runs.keys());
        for (id, at) in expiry {
            let id = id_of(&id);
            let row = all.rows.get(&id).unwrap_or_else(|| panic!("the expiry of {id} is an orphan"));
            assert!(!row.state.is_ended(), "{id} has ended and still has an expiry");
            assert_eq!(row.expires, Some(whole(at)));
            all.expiry.insert(id, whole(at));
        }
        all
    }

    pub fn count(&self, state: TaskState) -> usize {
        self.rows.values().filter(|r| r.state == state).count()
    }

    pub fn head(&self, state: TaskState) -> Option<i64> {
        self.rows.values().filter(|r| r.state == state).map(|r| r.score).min()
    }

    pub fn total(&self, counter: &str) -> i64 {
        self.totals.get(counter).copied().unwrap_or(0)
    }

    /// Lives begun are lives ended plus tasks alive; the gauge counts the waiting ones that had an attempt.
    pub fn assert_books(&self, replaced: i64) {
        let ended: i64 = ["delivered", "dead", "cancelled", "expired", "purged"].iter().map(|c| self.total(c)).sum();
        let alive = self.count(TaskState::Scheduled) + self.count(TaskState::Active);
        let begun = self.total("enqueued") + self.total("revived");
        assert_eq!(begun, ended + i64::try_from(alive).unwrap(), "the books: {:?}", self.totals);
        assert_eq!(self.total("enqueued") + replaced, self.seq, "the shard's counter");
        assert_eq!(self.total("ghosts"), 0);
        let retried =
            |r: &&Row| r.state == TaskState::Scheduled && r.run.as_ref().is_some_and(|run| run.marks & RETRIED != 0);
        let retrying = self.rows.values().filter(retried).count();
        assert_eq!(self.total("retrying"), i64::try_from(retrying).unwrap(), "the gauge of retrying tasks");
    }
}

#[allow(clippy::cast_possible_truncation)]
fn whole(score: f64) -> i64 {
    assert!(score.fract() == 0.0, "{score} is not whole");
    score as i64
}

fn id_of(raw: &[u8]) -> TaskId {
    parse_raw_id(raw).unwrap_or_else(|| panic!("{raw:?} is no id"))
}

fn read_record(id: &TaskId, raw: &[u8]) -> ([u8; 16], Option<i64>) {
    assert_eq!(raw[0], 1, "the version of the record of {id}");
    let expires = (raw[1] & 4 != 0).then(|| i64::from_be_bytes(raw[18..26].try_into().unwrap()));
    let at = if expires.is_some() { 26 } else { 18 };
    let uid = if raw[1] & 1 == 0 { *id.as_uuid().unwrap().as_bytes() } else { raw[at..at + 16].try_into().unwrap() };
    (uid, expires)
}

fn read_run(raw: &[u8]) -> Run {
    assert_eq!(raw[0], 1, "the version of a run row");
    let length = usize::from(u16::from_be_bytes([raw[37], raw[38]]));
    let done = std::str::from_utf8(&raw[39..39 + length]).expect("names");
    Run {
        fence: u32::from_be_bytes(raw[1..5].try_into().unwrap()),
        reclaims: u16::from_be_bytes([raw[6], raw[7]]),
        lapses: u32::from_be_bytes(raw[8..12].try_into().unwrap()),
        marks: raw[12],
        uid: raw[21..37].try_into().unwrap(),
        done: done.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect(),
    }
}
