//! What became of a task: its run row, from the first claim on.

use bytes::Bytes;

use super::{
    ClaimKind, Lease, form,
    record::{Cursor, RecordError, VERSION},
};
use crate::domain::{round::Progress, time::UnixMs};

const CANCELLING: u8 = 1;
const WAIVED: u8 = 2;
const RETRIED: u8 = 4;

/// The fence of the claim that follows upon this run row, which may be missing or damaged behind its fence.
#[must_use]
pub fn fence_after(run: &[u8]) -> u32 {
    let before = run.get(1..5).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes);
    before.saturating_add(1)
}

/// The run row that a first claim leaves.
pub type FirstRow = [u8; 39];

/// As `visit` writes it.
#[must_use]
pub fn first_row(lease: &Lease) -> Option<FirstRow> {
    let (kind, claimed) = lease.first?;
    let mut row = [0; 39];
    row[0] = VERSION;
    row[1..5].copy_from_slice(&lease.fence.to_be_bytes());
    row[5] = u8::from(kind == ClaimKind::Pull);
    row[13..21].copy_from_slice(&claimed.0.to_be_bytes());
    row[21..37].copy_from_slice(lease.uid.0.as_bytes());
    Some(row)
}

/// The same with webhooks that have the task and with progress; nothing where the names are too long for a row.
#[must_use]
pub fn ended_row(first: &FirstRow, won: &[String], progress: &[u8]) -> Option<Vec<u8>> {
    let mut done = String::new();
    for (i, webhook) in won.iter().enumerate().filter(|(i, webhook)| !won[..*i].contains(webhook)) {
        done.push_str(if i == 0 { "," } else { "" });
        done.push_str(webhook);
        done.push(',');
    }
    let length = u16::try_from(done.len()).ok()?;
    Some([&first[..37], &length.to_be_bytes(), done.as_bytes(), progress].concat())
}

/// A run row as read back.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The last claim's.
    pub fence: u32,
    /// Push attempts whose worker vanished.
    pub reclaims: u32,
    /// Pull leases that ran out.
    pub lapses: u32,
    /// Cancelled while an attempt is under way.
    pub cancelling: bool,
    /// `run` put the expiry aside.
    pub waived: bool,
    /// It had an attempt in this life.
    pub retried: bool,
    /// When the last claim was made.
    pub claimed_at: UnixMs,
    /// Webhooks that have the task.
    pub done: Vec<String>,
    /// What only Rust reads.
    pub progress: Progress,
}

impl Run {
    /// Reads a run row; an empty one is a task that was never claimed.
    ///
    /// # Errors
    /// Damaged, or from a newer release.
    pub fn decode(raw: Bytes) -> Result<Self, RecordError> {
        if raw.is_empty() {
            return Ok(Self::default());
        }
        let mut raw = Cursor(raw);
        let [version] = raw.array("run")?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let fence = u32::from_be_bytes(raw.array("fence")?);
        let [_kind] = raw.array("kind")?;
        let reclaims = u32::from(u16::from_be_bytes(raw.array("reclaims")?));
        let lapses = u32::from_be_bytes(raw.array("lapses")?);
        let [marks] = raw.array("marks")?;
        let claimed_at = raw.instant("claimed_at")?;
        raw.take(16, "uid of the run")?;
        let length = u16::from_be_bytes(raw.array("webhooks")?);
        let done = raw.take(usize::from(length), "webhooks")?;
        let done = std::str::from_utf8(&done).map_err(|_| RecordError::Damaged("webhooks"))?;
        Ok(Self {
            fence,
            reclaims,
            lapses,
            cancelling: marks & CANCELLING != 0,
            waived: marks & WAIVED != 0,
            retried: marks & RETRIED != 0,
            claimed_at,
            done: done.split(',').filter(|w| !w.is_empty()).map(str::to_owned).collect(),
            progress: form::decode_progress(&raw.0),
        })
    }
}
