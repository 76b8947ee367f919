//! A Redis Cluster of the test's own: three primaries with a replica each, on loopback, gone with the test.

use std::time::{Duration, Instant};

use deadpool_redis::redis::Value;
use duepost::{
    domain::id::QueueName,
    store::keys::{shard_of, slot_of},
};

use super::{
    redis::RedisServer,
    secs,
    wait::{eventually, until},
};

/// A node that does not answer for so long is failed by the others.
pub const NODE_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long meeting, electing and the first copy may take on a busy machine.
const SETTLE: Duration = Duration::from_secs(30);
const SLOTS: usize = 16_384;

pub struct Cluster {
    /// At start 0 to 2 are primaries, and 3 to 5 their replicas, in the same order.
    pub nodes: Vec<RedisServer>,
    ids: Vec<String>,
}

impl Cluster {
    /// 3 + 3, with append-only files flushed every second.
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"]).await
    }

    /// With these options for each node.
    pub async fn start_with(options: &[&str]) -> Self {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        let mut all = vec!["--cluster-enabled", "yes", "--cluster-node-timeout", &timeout];
        all.extend(["--cluster-replica-validity-factor", "0", "--cluster-allow-replica-migration", "no"]);
        all.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
        all.extend(options);
        let nodes = futures_util::future::join_all((0..6).map(|_| RedisServer::start_with(&all))).await;
        let mut ids = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            ids.push(node.command::<String>(&["CLUSTER", "MYID"]).await);
            let _: String = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).await;
        }
        for node in &nodes[1..] {
            let _: String = nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]).await;
        }
        for (i, node) in nodes[..3].iter().enumerate() {
            let slots: Vec<String> = (SLOTS * i / 3..SLOTS * (i + 1) / 3).map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            let _: String = node.command(&command).await;
        }
        let cluster = Self { nodes, ids };
        for (i, replica) in cluster.nodes[3..].iter().enumerate() {
            eventually(SETTLE, async || cluster.knows(replica, &cluster.ids[i]).await).await;
            let _: String = replica.command(&["CLUSTER", "REPLICATE", &cluster.ids[i]]).await;
        }
        cluster.settled().await;
        cluster
    }

    async fn knows(&self, node: &RedisServer, id: &str) -> bool {
        let nodes: String = node.command(&["CLUSTER", "NODES"]).await;
        nodes.lines().any(|line| line.starts_with(id) && !line.contains("handshake"))
    }

    /// Waits until every node that runs says that the Cluster is whole, and every replica has its copy.
    pub async fn settled(&self) {
        for node in &self.nodes {
            eventually(SETTLE, async || {
                let Some(info) = node.ask("CLUSTER INFO").await else { return true };
                let replication = node.ask("INFO replication").await.unwrap_or_default();
                let copied = replication.contains("role:master") || replication.contains("master_link_status:up");
                let known = node.ask("CLUSTER NODES").await.unwrap_or_default();
                let known = self.ids.iter().all(|id| known.contains(id.as_str())) && !known.contains("handshake");
                info.contains("cluster_state:ok") && copied && known
            })
            .await;
        }
    }

    /// For `--redis-cluster`: two of the nodes, so that the others must be found.
    pub fn seeds(&self) -> String {
        format!("127.0.0.1:{},127.0.0.1:{}", self.nodes[1].port(), self.nodes[3].port())
    }

    /// The slot of all keys of a queue.
    pub fn slot_of(queue: &str) -> u16 {
        slot_of(shard_of(&QueueName::parse(queue).expect("a queue name")))
    }

    /// Where a slot's primary is, by the word of the nodes that run; waits while there is none.
    pub async fn primary_of(&self, slot: u16) -> usize {
        until(secs(20), async || {
            for node in &self.nodes {
                let Some(ids) = self.holders(node, slot).await else { continue };
                for id in ids {
                    let at = self.ids.iter().position(|known| *known == id).expect("one of ours");
                    if self.role(at).await.as_deref() == Some("master") {
                        return Some(at);
                    }
                }
            }
            None
        })
        .await
    }

    /// Who is a primary for the slot in this node's view; `None` if it does not run.
    async fn holders(&self, node: &RedisServer, slot: u16) -> Option<Vec<String>> {
        node.ask("PING").await?;
        let ranges: Vec<Vec<Value>> = node.command(&["CLUSTER", "SLOTS"]).await;
        let slot = i64::from(slot);
        let hit = ranges.into_iter().filter(
            |range| matches!(range[..], [Value::Int(first), Value::Int(last), ..] if (first..=last).contains(&slot)),
        );
        let id = |range: Vec<Value>| match &range[2] {
            Value::Array(node) => match &node[2] {
                Value::BulkString(id) => String::from_utf8(id.clone()).ok(),
                _ => None,
            },
            _ => None,
        };
        Some(hit.filter_map(id).collect())
    }

    /// `master` or `slave`, if it runs.
    pub async fn role(&self, at: usize) -> Option<String> {
        let info = self.nodes[at].ask("INFO replication").await?;
        info.lines().find_map(|line| line.strip_prefix("role:")).map(|role| role.trim().to_owned())
    }

    pub fn id(&self, at: usize) -> &str {
        &self.ids[at]
    }

    /// A replica takes over in order (`CLUSTER FAILOVER`); waits until it has. Redis gives it up after five seconds, which a busy
    /// machine may need: then it is asked again.
    pub async fn promote(&self, replica: usize) {
        let _: String = self.nodes[replica].command(&["CLUSTER", "FAILOVER"]).await;
        let mut asked = Instant::now();
        eventually(secs(20), async || {
            if self.role(replica).await.as_deref() == Some("master") {
                return true;
            }
            if asked.elapsed() > secs(6) {
                asked = Instant::now();
                let _ = self.nodes[replica].ask("CLUSTER FAILOVER").await;
            }
            false
        })
        .await;
    }

    /// Puts a slot on its way: both nodes know, no key has moved.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let _: String = self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]).await;
        let _: String = self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]).await;
    }

    /// Moves up to `most` keys of a slot that is on its way; gives how many there were.
    pub async fn move_keys(&self, slot: u16, from: usize, to: usize, most: usize) -> usize {
        let (slot, most) = (slot.to_string(), most.to_string());
        let keys: Vec<String> = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, &most]).await;
        let port = self.nodes[to].port().to_string();
        for key in &keys {
            let _: String = self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
        keys.len()
    }

    /// The slot has arrived.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        for at in [to, from] {
            let _: String = self.nodes[at].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]).await;
        }
    }

    /// How often the running nodes have answered with an error of this code.
    pub async fn errors(&self, code: &str) -> u64 {
        let mut sum = 0;
        for node in &self.nodes {
            let stats = node.ask("INFO errorstats").await.unwrap_or_default();
            let line = stats.lines().find_map(|l| l.strip_prefix(&format!("errorstat_{code}:count=")));
            sum += line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        sum
    }
}
