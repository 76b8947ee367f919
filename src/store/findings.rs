//! What an audit may find: the faults, each with what a repair makes of it, and the list of those that were seen.

use super::keys::parse_raw_id;
use crate::domain::id::QueueName;

/// Faults that are told one by one; all are counted.
pub const MAX_TOLD: usize = 1000;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A record that stands in no set: nobody will deliver it. Repair: dead, for a person to decide.
    Orphan,
    /// An id in a set without a record. Repair: removed; one that lived counts among the purged.
    Ghost,
    /// An id in several sets. Repair: it stays in the strongest.
    Double,
    /// A run row without a record. Repair: removed.
    StrayRun,
    /// A run row that cannot be read. Repair: removed, and the count of tries with it.
    Run,
    /// The index of expiries lacks it, or has it wrong. Repair: put right.
    Expiry,
    /// A record that cannot be read. Not repaired: it ends dead at its time.
    Record,
    /// An id that no task can have. Not repaired.
    Id,
    /// The queue would be visited too late, or never. Repair: put right.
    Agenda,
    /// The totals do not add up. Repair: what is missing counts as purged, what is too much as enqueued.
    Books,
    /// Which webhooks are enabled is told otherwise to the scripts. Repair: put right.
    Gate,
    /// Data of a queue that is on no list. Repair: listed, with default settings.
    Unlisted,
    /// A counter of tasks between attempts that is wrong. Not repaired: it is a figure for people only.
    Retrying,
}

impl Fault {
    /// The word for machines.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "orphan",
            Self::Ghost => "ghost",
            Self::Double => "double",
            Self::StrayRun => "stray_run",
            Self::Run => "run",
            Self::Expiry => "expiry",
            Self::Record => "record",
            Self::Id => "id",
            Self::Agenda => "agenda",
            Self::Books => "books",
            Self::Gate => "gate",
            Self::Unlisted => "unlisted",
            Self::Retrying => "retrying",
        }
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        [Self::Orphan, Self::Ghost, Self::Double, Self::StrayRun, Self::Run, Self::Expiry]
            .into_iter()
            .find(|fault| fault.as_str() == word)
    }

    /// Whether [`Store::audit`](super::Store::audit) can put it right.
    #[must_use]
    pub const fn can_be_repaired(self) -> bool {
        !matches!(self, Self::Record | Self::Id | Self::Retrying)
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub queue: String,
    /// Which task, where it is about one.
    pub id: Option<String>,
    /// What.
    pub fault: Fault,
    /// More about it, for people.
    pub detail: String,
    /// Whether it was put right.
    pub repaired: bool,
}

/// What an audit saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    /// Queues looked at.
    pub queues: usize,
    /// Ids looked at.
    pub tasks: usize,
    /// The first [`MAX_TOLD`] faults.
    pub findings: Vec<Finding>,
    /// All faults.
    pub faults: usize,
    /// Those among them that were put right.
    pub repaired: usize,
}

impl Audit {
    pub(super) fn found(&mut self, queue: &QueueName, id: Option<&[u8]>, fault: Fault, detail: String, repaired: bool) {
        self.faults += 1;
        self.repaired += usize::from(repaired);
        if self.findings.len() < MAX_TOLD {
            let id = id.map(|raw| {
                parse_raw_id(raw).map_or_else(|| raw.escape_ascii().to_string(), |id| id.as_str().to_owned())
            });
            self.findings.push(Finding { queue: queue.as_str().to_owned(), id, fault, detail, repaired });
        }
    }

    /// Whether nothing is wrong, or no longer.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults == self.repaired
    }
}
