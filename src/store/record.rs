//! What is kept of a task from the start: the record, written once; `run_row` has what comes with the first claim. Layouts are
//! those at the head of `lua/_lib.lua`; every one starts with a version, so that two releases can share one Redis.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{form, keys::parse_raw_id, run_row::Run, seal::KeyName};
use crate::domain::{
    id::{QueueName, TaskId, Uid},
    payload::Payload,
    task::{Edit, NewTask, Task, TaskOptions, TaskState, When},
    time::UnixMs,
};

/// The version that this release writes.
pub const VERSION: u8 = 1;

const UID: u8 = 1;
const FINGERPRINT: u8 = 2;
const EXPIRES: u8 = 4;
const OPTIONS: u8 = 8;
/// The client gave a delay, not an instant.
const DELAYED: u8 = 16;
/// The client gave `expires_after`, not `expires_at`.
const EXPIRES_AFTER: u8 = 32;

/// Why stored bytes are not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Written by a newer release.
    #[error("version {0} is not known to this release")]
    Version(u8),
    /// Cut short or changed.
    #[error("damaged at the {0}")]
    Damaged(&'static str),
    /// Its secrets are sealed, and what this process has does not open them.
    #[error("its secrets are sealed with key {sealed_with}, and this service has {}", .have.map_or_else(|| "no secret_key".to_owned(), |k| format!("key {k}")))]
    Sealed {
        /// Name of the key that is needed.
        sealed_with: KeyName,
        /// Name of the key that is there.
        have: Option<KeyName>,
    },
}

/// A new record as the `enqueue` script wants it: it fills in the instants between the two parts.
pub struct NewRecord {
    /// Version and flags.
    pub head: [u8; 2],
    /// Uid, fingerprint, options, payload.
    pub rest: Vec<u8>,
}

/// Puts a new task's record together.
#[must_use]
pub fn encode(task: &NewTask) -> NewRecord {
    let mut flags = 0;
    let mut rest = Vec::with_capacity(36 + task.payload.bytes().len());
    if task.id.is_some() {
        flags |= UID | FINGERPRINT;
        rest.extend_from_slice(task.uid.0.as_bytes());
        rest.extend_from_slice(&fingerprint(task));
    }
    push_options(&mut rest, &mut flags, &task.options);
    rest.extend_from_slice(task.payload.bytes());
    if matches!(task.when, When::After(_)) {
        flags |= DELAYED;
    }
    match task.expires {
        Some(When::After(_)) => flags |= EXPIRES | EXPIRES_AFTER,
        Some(When::At(_)) => flags |= EXPIRES,
        None => {}
    }
    NewRecord { head: [VERSION, flags], rest }
}

fn push_options(rest: &mut Vec<u8>, flags: &mut u8, options: &TaskOptions) {
    if let Some(options) = form::encode_options(options) {
        *flags |= OPTIONS;
        rest.extend_from_slice(&u32::try_from(options.len()).unwrap_or(u32::MAX).to_be_bytes());
        rest.extend_from_slice(&options);
    }
}

/// 16 bytes that stand for a task's content as sent: a delay counts as a duration, the payload byte for byte. The
/// trace of the request is not content.
fn fingerprint(task: &NewTask) -> [u8; 16] {
    fingerprint_of(task.when, task.expires, &task.options, task.payload.bytes())
}

fn fingerprint_of(when: When, expires: Option<When>, options: &TaskOptions, payload: &[u8]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for when in [Some(when), expires] {
        let (kind, ms) = match when {
            None => (0_u8, 0),
            Some(When::After(d)) => (1, i64::try_from(d.as_millis()).unwrap_or(i64::MAX)),
            Some(When::At(at)) => (2, at.0),
        };
        hash.update([kind]);
        hash.update(ms.to_be_bytes());
    }
    let options = form::encode_options(&untraced(options)).unwrap_or_default();
    hash.update((options.len() as u64).to_be_bytes());
    hash.update(options);
    hash.update(payload);
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

fn untraced(options: &TaskOptions) -> TaskOptions {
    TaskOptions { traceparent: None, ..options.clone() }
}

/// A record as read back.
#[derive(Debug, Clone)]
pub struct Record {
    flags: u8,
    /// When it was accepted.
    pub created_at: UnixMs,
    /// The time asked for.
    pub run_at: UnixMs,
    /// When it is no longer wanted.
    pub expires_at: Option<UnixMs>,
    /// Names the content.
    pub uid: Uid,
    /// Its own options.
    pub options: TaskOptions,
    fingerprint: Option<[u8; 16]>,
    /// Bytes before the payload.
    head_length: usize,
    /// What is delivered; empty where only the head was read.
    pub payload: Bytes,
}

/// Takes bytes from the front.
pub(super) struct Cursor(pub Bytes);

impl Cursor {
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<Bytes, RecordError> {
        if self.0.len() < n { Err(RecordError::Damaged(what)) } else { Ok(self.0.split_to(n)) }
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], RecordError> {
        let bytes = self.take(N, what)?;
        bytes.as_ref().try_into().map_err(|_| RecordError::Damaged(what))
    }

    pub fn instant(&mut self, what: &'static str) -> Result<UnixMs, RecordError> {
        Ok(UnixMs(i64::from_be_bytes(self.array(what)?)))
    }
}

impl Record {
    /// Reads a record, or only its head.
    ///
    /// # Errors
    /// Damaged, or from a newer release.
    pub fn decode(id: &TaskId, raw: Bytes) -> Result<Self, RecordError> {
        let length = raw.len();
        let mut raw = Cursor(raw);
        let [version, flags] = raw.array("head")?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let (created_at, run_at) = (raw.instant("created_at")?, raw.instant("run_at")?);
        let expires_at = if flags & EXPIRES == 0 { None } else { Some(raw.instant("expires_at")?) };
        let uid = if flags & UID == 0 {
            id.as_uuid().ok_or(RecordError::Damaged("uid"))?
        } else {
            Uuid::from_bytes(raw.array("uid")?)
        };
        let fingerprint = if flags & FINGERPRINT == 0 { None } else { Some(raw.array("fingerprint")?) };
        let mut options = TaskOptions::default();
        if flags & OPTIONS != 0 {
            let length = u32::from_be_bytes(raw.array("options")?);
            options = form::decode_options(&raw.take(usize::try_from(length).unwrap_or(usize::MAX), "options")?)?;
        }
        let head_length = length - raw.0.len();
        let uid = Uid(uid);
        Ok(Self { flags, created_at, run_at, expires_at, uid, options, fingerprint, head_length, payload: raw.0 })
    }

    /// Bytes before the payload: what a change of the content compares, so that none is lost to another.
    #[must_use]
    pub fn head_length(&self) -> usize {
        self.head_length
    }

    /// The record with other content. The fingerprint stays, or is made where there was none: it is of what was POSTed.
    #[must_use]
    pub fn edited(&self, edit: &Edit) -> NewRecord {
        let mut flags = self.flags & (EXPIRES | DELAYED | EXPIRES_AFTER);
        match edit.when {
            Some(When::After(_)) => flags |= DELAYED,
            Some(When::At(_)) => flags &= !DELAYED,
            None => {}
        }
        match edit.expires {
            Some(None) => flags &= !(EXPIRES | EXPIRES_AFTER),
            Some(Some(When::At(_))) => flags = (flags | EXPIRES) & !EXPIRES_AFTER,
            Some(Some(When::After(_))) => flags |= EXPIRES | EXPIRES_AFTER,
            None => {}
        }
        flags |= UID | FINGERPRINT;
        let uid = if edit.is_new_content() { edit.uid } else { self.uid };
        let mut rest = uid.0.as_bytes().to_vec();
        rest.extend_from_slice(&self.fingerprint.unwrap_or_else(|| {
            let (when, expires) = self.asked_for();
            fingerprint_of(when, expires, &self.options, &self.payload)
        }));
        let mut options = self.options.clone();
        options.retry = edit.retry.clone().unwrap_or(options.retry);
        options.timeout = edit.timeout.unwrap_or(options.timeout);
        options.headers = edit.headers.clone().unwrap_or(options.headers);
        push_options(&mut rest, &mut flags, &options);
        let payload = edit.payload.as_ref().map_or(&self.payload, |payload| payload.bytes());
        rest.extend_from_slice(payload);
        NewRecord { head: [VERSION, flags], rest }
    }

    /// The times as the client gave them, for a record that nobody has edited.
    fn asked_for(&self) -> (When, Option<When>) {
        let when = if self.flags & DELAYED == 0 {
            When::At(self.run_at)
        } else {
            When::After(self.run_at.since(self.created_at))
        };
        let expires = self.expires_at.map(|at| {
            if self.flags & EXPIRES_AFTER == 0 { When::At(at) } else { When::After(at.since(self.created_at)) }
        });
        (when, expires)
    }

    /// Whether a new task has the same content, for a record without a fingerprint (the service made its id).
    #[must_use]
    pub fn has_same_content(&self, task: &NewTask) -> bool {
        let (when, expires) = self.asked_for();
        self.flags & FINGERPRINT == 0
            && (when, expires) == (task.when, task.expires)
            && untraced(&self.options) == untraced(&task.options)
            && self.payload == task.payload.bytes()
    }
}

/// The uid of a record, also of one that cannot be read: as the scripts find it.
#[must_use]
pub fn uid_of(member: &[u8], record: &[u8]) -> Uid {
    let flags = record.get(1).copied().unwrap_or(0);
    let bytes = match (flags & UID != 0, flags & EXPIRES != 0) {
        (false, _) => member.get(1..17),
        (true, true) => record.get(26..42),
        (true, false) => record.get(18..34),
    };
    Uid(bytes.and_then(|bytes| Uuid::from_slice(bytes).ok()).unwrap_or_default())
}

/// A task as a script's view shows it.
pub struct View {
    /// The member of the set.
    pub id: Vec<u8>,
    /// The record, or its head.
    pub record: Vec<u8>,
    /// The run row, or nothing.
    pub run: Vec<u8>,
    /// The word of its state.
    pub state: String,
    /// The set's score.
    pub score: i64,
    /// Whether the record was read whole.
    pub whole: bool,
}

impl View {
    /// The task that these bytes stand for.
    ///
    /// # Errors
    /// Damaged, or from a newer release.
    pub fn into_task(self, queue: &QueueName) -> Result<Task, RecordError> {
        let id = parse_raw_id(&self.id).ok_or(RecordError::Damaged("id"))?;
        let record = Record::decode(&id, self.record.into())?;
        let run = Run::decode(self.run.into())?;
        let state = TaskState::parse(&self.state).ok_or(RecordError::Damaged("state"))?;
        Ok(Task {
            id,
            uid: record.uid,
            queue: queue.clone(),
            state,
            created_at: record.created_at,
            run_at: record.run_at,
            score: UnixMs(self.score),
            expires_at: if run.waived { None } else { record.expires_at },
            cancelling: run.cancelling && state == TaskState::Active,
            options: record.options,
            lost: run.reclaims.saturating_add(run.lapses),
            delivered_to: run.done,
            progress: run.progress,
            payload: self.whole.then(|| Payload::stored(record.payload)),
        })
    }
}
