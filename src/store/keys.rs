//! The names of Redis keys, in one place; docs/design.md says what each holds.
//!
//! 64 shards are a constant of the key format: a queue and its agenda share a hash tag, so data can move from one
//! Redis to a Cluster unchanged. Names cannot forge a key or a tag, because no name contains `{`, `}` or starts one.

use crate::domain::id::{QueueName, TaskId};

/// Shards of the key format; it cannot be changed for existing data.
pub const SHARDS: u16 = 64;

/// Parts of the keys that a script gets, in KEYS order; the first three belong to the shard.
const PARTS: [&str; 16] = [
    "agenda",
    "queues",
    "seq",
    "gate",
    "holds",
    "due",
    "active",
    "dead",
    "completed",
    "cancelled",
    "expired",
    "expiry",
    "tasks",
    "runs",
    "hooks",
    "totals",
];

/// A key that never exists. Scripts get it in a Cluster: with one key missing, a slot that is on its way from one node to
/// another takes no script at all (TRYAGAIN). With all keys there it would, and the script would break off half-way at
/// the first key that it had emptied itself.
pub const NEVER: &str = "never";

/// Slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// The shard of a queue: CRC16 (as Redis Cluster computes it) mod [`SHARDS`].
#[must_use]
pub fn shard_of(queue: &QueueName) -> u16 {
    crc16(queue.as_str()) % SHARDS
}

/// The slot of a Redis Cluster in which all keys of a shard are.
#[must_use]
pub fn slot_of(shard: u16) -> u16 {
    crc16(&shard.to_string()) % SLOTS
}

fn crc16(text: &str) -> u16 {
    text.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |c, _| if c & 0x8000 == 0 { c << 1 } else { (c << 1) ^ 0x1021 })
    })
}

/// Builds keys under the configured prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` has no `{` or `}`; the configuration checks it.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// KEYS of every script that works on one queue.
    #[must_use]
    pub fn of_queue(&self, queue: &QueueName) -> [String; 16] {
        self.of_queue_in(shard_of(queue), queue)
    }

    /// The same for one who knows the shard.
    pub(super) fn of_queue_in(&self, shard: u16, queue: &QueueName) -> [String; 16] {
        let of_shard = self.of_shard(shard, "");
        let of_queue = format!("{of_shard}{queue}:");
        let mut at = 0;
        PARTS.map(|part| {
            at += 1;
            [if at <= 3 { &of_shard } else { &of_queue }, part].concat()
        })
    }

    /// One key of a queue, by its last part.
    #[must_use]
    pub fn of_part(&self, queue: &QueueName, part: &str) -> String {
        format!("{}:{{{}}}:{queue}:{part}", self.prefix, shard_of(queue))
    }

    /// A glob that all our keys match.
    #[must_use]
    pub fn pattern(&self) -> String {
        format!("{}:{{*", self.prefix)
    }

    /// The queue that a key belongs to, if it is one of ours and in its place.
    #[must_use]
    pub fn queue_of(&self, key: &[u8]) -> Option<QueueName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?.strip_prefix(":{")?;
        let (shard, rest) = rest.split_once("}:")?;
        let (queue, part) = rest.rsplit_once(':')?;
        let queue = QueueName::parse(queue).ok()?;
        (PARTS[3..].contains(&part) && shard.parse() == Ok(shard_of(&queue))).then_some(queue)
    }

    /// A key of a shard: `agenda`, `queues` or `seq`; or [`NEVER`].
    #[must_use]
    pub fn of_shard(&self, shard: u16, part: &str) -> String {
        format!("{}:{{{shard}}}:{part}", self.prefix)
    }

    /// The channel on which scripts ring.
    #[must_use]
    pub fn bell(&self) -> String {
        format!("{}:bell", self.prefix)
    }
}

/// An id as a member of a set: a canonical UUID is 0x00 and its 16 bytes (text ids never contain 0x00), any other its text.
#[must_use]
pub fn raw_id(id: &TaskId) -> Vec<u8> {
    match id.as_uuid() {
        Some(uuid) => raw_uid(uuid).to_vec(),
        None => id.as_str().as_bytes().to_vec(),
    }
}

/// The same of an id that is the text of a UUID.
#[must_use]
pub fn raw_uid(uuid: uuid::Uuid) -> [u8; 17] {
    let mut raw = [0; 17];
    raw[1..].copy_from_slice(uuid.as_bytes());
    raw
}

/// The id that a member of a set stands for.
#[must_use]
pub fn parse_raw_id(raw: &[u8]) -> Option<TaskId> {
    match raw {
        [0, bytes @ ..] => uuid::Uuid::from_slice(bytes).ok().map(|u| TaskId::from_uid(crate::domain::id::Uid(u))),
        text => std::str::from_utf8(text).ok().and_then(|t| TaskId::parse(t).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_those_of_redis_cluster() {
        // CLUSTER KEYSLOT 123456789 = 12739 = 0x31C3, the check value of CRC16/XMODEM
        assert_eq!(shard_of(&QueueName::parse("123456789").unwrap()), 0x31C3 % 64);
        assert_eq!(shard_of(&QueueName::parse("foo").unwrap()), 44950 % 64);
    }

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!((slot_of(0), slot_of(1), slot_of(63)), (13_907, 9_842, 10_499)); // CLUSTER KEYSLOT {0}, {1}, {63}
    }

    #[test]
    fn keys_of_a_queue_share_one_tag() {
        let keys = Keys::new("dp").of_queue(&QueueName::parse("orders").unwrap());
        let shard = shard_of(&QueueName::parse("orders").unwrap());
        assert_eq!(keys[0], format!("dp:{{{shard}}}:agenda"));
        assert_eq!(keys[3], format!("dp:{{{shard}}}:orders:gate"));
        assert_eq!(keys[15], format!("dp:{{{shard}}}:orders:totals"));
        let queue_of = |key: &str| Keys::new("dp").queue_of(key.as_bytes()).map(|queue| queue.as_str().to_owned());
        assert!(keys[3..].iter().all(|key| queue_of(key).as_deref() == Some("orders")));
        assert!(keys[..3].iter().all(|key| queue_of(key).is_none()));
        let elsewhere = format!("dp:{{{}}}:orders:due", (shard + 1) % SHARDS);
        for foreign in [elsewhere.as_str(), "dp:{1}:orders", "dp:{x}:orders:due", "other:{1}:orders:due", "dp:bell"] {
            assert_eq!(queue_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn ids_survive_their_raw_form() {
        for text in ["order-1", "01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60", "01A22D7D-0de0-7c3a-9f00-1b2c3d4e5f60", "1"] {
            let id = TaskId::parse(text).unwrap();
            assert_eq!(parse_raw_id(&raw_id(&id)), Some(id));
        }
        assert_eq!(raw_id(&TaskId::parse("01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60").unwrap()).len(), 17);
        assert_eq!(parse_raw_id(&[0, 1, 2]), None);
    }
}
