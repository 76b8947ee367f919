//! Asks nodes of a Cluster who holds which shard. Views may differ for a moment, and a node that was cut off believes in
//! itself: for each slot the claim with the highest configuration epoch counts, as among the nodes themselves.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use deadpool_redis::redis::{self, Value};

use super::{
    Reply,
    error::StoreError,
    keys::{SHARDS, slot_of},
    node::Node,
};

/// Longest wait for one node's view.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Who holds what, by address.
#[derive(Debug, Default)]
pub struct View {
    /// The primary of each shard, `host:port`.
    pub of_shard: Vec<Option<String>>,
    /// All nodes heard of, replicas too.
    pub known: HashSet<String>,
}

/// A slot's holder and the epoch of its claim.
type Claims = HashMap<u16, (i64, String)>;

/// Asks these nodes and puts their views together.
///
/// # Errors
/// None of them has a view.
pub async fn view(asked: &[Arc<Node>]) -> Result<View, StoreError> {
    let answers = futures_util::future::join_all(asked.iter().map(ask)).await;
    let (mut claims, mut known, mut heard) = (Claims::new(), HashSet::new(), false);
    let mut trouble = StoreError::NoPrimary { why: "there is no node of the Cluster to ask" };
    for answer in answers {
        match answer {
            Ok(view) => {
                heard = true;
                known.extend(view.1);
                for (slot, claim) in view.0 {
                    match claims.get(&slot) {
                        Some(other) if other.0 >= claim.0 => {}
                        _ => drop(claims.insert(slot, claim)),
                    }
                }
            }
            Err(error) => trouble = error,
        }
    }
    if !heard {
        return Err(trouble);
    }
    let of_shard = (0..SHARDS).map(|shard| claims.get(&slot_of(shard)).map(|(_, address)| address.clone())).collect();
    Ok(View { of_shard, known })
}

async fn ask(node: &Arc<Node>) -> Result<(Claims, HashSet<String>), StoreError> {
    let mut commands = redis::pipe();
    commands.cmd("CLUSTER").arg("SLOTS").cmd("CLUSTER").arg("NODES");
    let late = || StoreError::Call {
        call: "cluster",
        cause: std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        unknown: false,
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, node.ask("cluster", &commands)).await;
    read_view(answer.map_err(|_| late())??, super::node::split_address(&node.name).map_or("", |(host, _)| host))
}

/// SLOTS has the addresses that clients are meant to use, NODES the epochs; the ids join them.
fn read_view(answer: Value, asked_host: &str) -> Result<(Claims, HashSet<String>), StoreError> {
    let mut reply = Reply::new("cluster", answer)?;
    let (mut ranges, nodes) = (reply.list()?, reply.text()?);
    let epochs: HashMap<&str, i64> = nodes
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.nth(5)?.parse().ok()?))
        })
        .collect();
    let wanted: HashSet<u16> = (0..SHARDS).map(slot_of).collect();
    let (mut claims, mut known) = (Claims::new(), HashSet::new());
    while ranges.left() > 0 {
        let mut range = ranges.list()?;
        let (first, last, mut is_primary) = (range.int()?, range.int()?, true);
        while range.left() > 0 {
            let mut node = range.list()?;
            // no host, or an empty one: the host that was asked
            let host = node.text().ok().filter(|host| !host.is_empty()).unwrap_or_else(|| asked_host.to_owned());
            let address = format!("{host}:{}", node.int()?);
            let id = node.text().unwrap_or_default();
            if std::mem::take(&mut is_primary) {
                let epoch = epochs.get(id.as_str()).copied().unwrap_or(0);
                let held = wanted.iter().filter(|slot| (first..=last).contains(&i64::from(**slot)));
                claims.extend(held.map(|slot| (*slot, (epoch, address.clone()))));
            }
            known.insert(address);
        }
    }
    Ok((claims, known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn slots(host: Value, port: i64, id: &str) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), text(id), Value::Array(Vec::new())]);
        Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16_383), node])])
    }

    #[test]
    fn a_view_is_read_with_its_epochs_and_missing_hosts() {
        let nodes = "aa 127.0.0.1:7000@17000,name master - 0 0 7 connected 0-16383\nbb :1@2 slave aa 0 0 3 connected\n";
        for (host, want) in [(text("10.0.0.1"), "10.0.0.1:7000"), (text(""), "h:7000"), (Value::Nil, "h:7000")] {
            let answer = Value::Array(vec![slots(host, 7000, "aa"), text(nodes)]);
            let (claims, known) = read_view(answer, "h").unwrap();
            assert_eq!(claims.get(&slot_of(0)), Some(&(7, want.to_owned())));
            assert!(known.contains(want) && claims.len() == (0..SHARDS).map(slot_of).collect::<HashSet<_>>().len());
        }
    }
}
