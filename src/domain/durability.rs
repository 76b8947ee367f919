//! What an answered change survives.

use std::fmt;

/// Levels of durability, each with all that the one before it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing: Redis keeps no append-only file.
    None,
    /// The death of any process; a power cut may take the last second.
    Memory,
    /// A power cut too.
    Disk,
    /// The loss of the primary too.
    Replica,
}

impl Durability {
    /// Those that can be asked for.
    pub const NAMED: [Self; 3] = [Self::Memory, Self::Disk, Self::Replica];

    /// Its name in settings and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Replica => "replica",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
