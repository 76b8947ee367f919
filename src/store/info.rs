//! What Redis says of itself, for start and readiness. Of several primaries the worst counts.

use std::time::Duration;

use deadpool_redis::redis;
use tokio::time::Instant;

use super::{Reply, Store, StoreError, promise};

/// Longest wait for a primary.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A refusal counts against readiness for so long.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// What Redis says of itself.
#[derive(Debug, Clone)]
pub struct RedisInfo {
    /// Name and version, for people.
    pub version: String,
    /// The version of the Redis protocol features that it has.
    pub redis_version: String,
    /// Whether an append-only file is on.
    pub append_only: bool,
    /// `appendfsync`; `None` where a primary hides it.
    pub appendfsync: Option<String>,
    /// Replicas that are connected.
    pub replicas: usize,
    /// `maxmemory-policy`; anything but `noeviction` may drop tasks.
    pub eviction: String,
    /// Whether the append-only file could be written last time.
    pub last_write_ok: bool,
    /// Whether it is a replica that takes no writes.
    pub read_only: bool,
    /// Whether it has no memory left and refuses writes.
    pub full: bool,
    /// Whether it is a node of a Cluster.
    pub clustered: bool,
}

impl Store {
    /// Whether Redis refused a call for want of credentials or permissions in the last five seconds. Asking for its
    /// version needs less than the work does.
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.inner.topology.calm.was_refused_within(REFUSED_FOR)
    }

    /// Asks each primary for its version and clock, and whether it will keep what it is given. For start and readiness;
    /// writes nothing.
    ///
    /// # Errors
    /// One does not answer, or a shard has none.
    pub async fn ping(&self) -> Result<RedisInfo, StoreError> {
        let commands = |_: &[u16]| {
            let mut commands = redis::pipe();
            commands.cmd("TIME");
            for section in ["server", "persistence", "memory", "replication"] {
                commands.cmd("INFO").arg(section);
            }
            commands
        };
        let mut worst: Option<RedisInfo> = None;
        let sent = Instant::now();
        for (shards, answer) in self.inner.reads.spread("ping", ANSWER_WITHIN, commands).await {
            let mut reply = Reply::new("ping", answer?)?;
            self.observe_time(&mut reply, sent, shards[0])?;
            let info = RedisInfo::read(&(reply.text()? + &reply.text()? + &reply.text()? + &reply.text()?));
            worst = Some(match worst {
                Some(other) => other.and(info),
                None => info,
            });
        }
        let mut info = worst.ok_or(StoreError::NoPrimary { why: "there is none" })?;
        let mut policies = Vec::new();
        for (_, answer) in self.inner.reads.spread("config", ANSWER_WITHIN, |_| promise::ask_config()).await {
            policies.push(promise::read_config(&answer?));
        }
        let other = policies.iter().position(|policy| policy.as_deref() != Some("always")).unwrap_or(0);
        info.appendfsync = policies.into_iter().nth(other).flatten();
        self.note_standing(&info);
        Ok(info)
    }
}

impl RedisInfo {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let number = |name: &str| field(name).parse::<u64>().unwrap_or(0);
        let version = match (field("valkey_version"), field("redis_version")) {
            (valkey, redis) if valkey.is_empty() => format!("redis {redis}"),
            (valkey, _) => format!("valkey {valkey}"),
        };
        Self {
            version,
            redis_version: field("redis_version"),
            appendfsync: None,
            replicas: info.lines().filter(|l| l.starts_with("slave") && l.contains("state=online")).count(),
            append_only: field("aof_enabled") == "1",
            eviction: field("maxmemory_policy"),
            last_write_ok: field("aof_last_write_status") != "err",
            read_only: field("role") == "slave" && field("slave_read_only") != "0",
            full: number("maxmemory") > 0
                && number("used_memory") > number("maxmemory")
                && field("maxmemory_policy") == "noeviction",
            clustered: ["redis_mode", "server_mode"].iter().any(|mode| field(mode) == "cluster"), // Valkey 9 has the second
        }
    }

    /// The worst of both.
    fn and(self, other: Self) -> Self {
        let parts = |version: &str| version.split('.').map(|n| n.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
        let older = parts(&other.redis_version) < parts(&self.redis_version);
        Self {
            version: if self.version.split(", ").any(|v| v == other.version) {
                self.version
            } else {
                format!("{}, {}", self.version, other.version)
            },
            redis_version: if older { other.redis_version } else { self.redis_version },
            append_only: self.append_only && other.append_only,
            appendfsync: None,
            replicas: self.replicas.min(other.replicas),
            eviction: if self.eviction == "noeviction" { other.eviction } else { self.eviction },
            last_write_ok: self.last_write_ok && other.last_write_ok,
            read_only: self.read_only || other.read_only,
            full: self.full || other.full,
            clustered: self.clustered || other.clustered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cluster_says_so_in_its_own_words() {
        for said in ["redis_mode:cluster", "server_mode:cluster"] {
            assert!(RedisInfo::read(&format!("redis_version:7.2.4\r\n{said}\r\n")).clustered, "{said}");
        }
        assert!(!RedisInfo::read("redis_mode:standalone\r\nserver_mode:standalone\r\n").clustered);
    }

    #[test]
    fn of_several_primaries_the_worst_counts() {
        let good = "redis_version:7.0.15\r\naof_enabled:1\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n";
        let bad = "redis_version:6.2.14\r\naof_enabled:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:slave\r\n";
        let bad = format!("{bad}aof_last_write_status:err\r\nredis_mode:cluster\r\nmaxmemory:1\r\nused_memory:2\r\n");
        for (a, b) in [(good, bad.as_str()), (bad.as_str(), good)] {
            let both = RedisInfo::read(a).and(RedisInfo::read(b));
            assert_eq!((both.redis_version.as_str(), both.eviction.as_str()), ("6.2.14", "allkeys-lru"));
            assert!(!both.append_only && !both.last_write_ok && both.read_only && both.clustered);
            assert!(both.version.contains("redis 7.0.15") && both.version.contains("redis 6.2.14"));
        }
        let both = RedisInfo::read(good).and(RedisInfo::read(good));
        assert_eq!((both.version.as_str(), both.eviction.as_str()), ("redis 7.0.15", "noeviction"));
        assert!(both.append_only && both.last_write_ok && !both.read_only && !both.full);
    }
}
