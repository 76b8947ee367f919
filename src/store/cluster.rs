//! Asks nodes of a Cluster who holds which shard. Views may differ, for a moment or for long, and a node that was cut off
//! believes in itself: for each slot the claim with the highest configuration epoch counts, as among the nodes themselves.
//! What others say of a node counts for nothing where it has denied it: a node that did not hear of a slot's move goes on to
//! name the old holder, whose epoch has grown since by other slots that came to it.

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

/// That a node holds a slot, as somebody says.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    slot: u16,
    epoch: i64,
    /// The holder.
    id: String,
    address: String,
}

/// What one node says.
#[derive(Debug, Default)]
struct Said {
    /// Its own id.
    by: String,
    claims: Vec<Claim>,
    known: HashSet<String>,
}

impl Said {
    /// Whether this is the holder's own word, that it is not.
    fn denies(&self, claim: &Claim) -> bool {
        self.by == claim.id && !self.claims.iter().any(|own| own.slot == claim.slot && own.id == self.by)
    }
}

/// Asks these nodes and puts their views together.
///
/// # Errors
/// None of them has a view.
pub async fn view(asked: &[Arc<Node>]) -> Result<View, StoreError> {
    let answers = futures_util::future::join_all(asked.iter().map(ask)).await;
    let (mut said, mut trouble) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(one) => said.push(one),
            Err(error) => trouble = Some(error),
        }
    }
    match trouble {
        _ if !said.is_empty() => Ok(join(said)),
        Some(error) => Err(error),
        None => Err(StoreError::NoPrimary { why: "there is no node of the Cluster to ask" }),
    }
}

fn join(said: Vec<Said>) -> View {
    let mut best: HashMap<u16, &Claim> = HashMap::new();
    for claim in said.iter().flat_map(|one| &one.claims) {
        if best.get(&claim.slot).is_none_or(|other| other.epoch < claim.epoch)
            && !said.iter().any(|one| one.denies(claim))
        {
            best.insert(claim.slot, claim);
        }
    }
    let of_shard = (0..SHARDS).map(|shard| best.get(&slot_of(shard)).map(|claim| claim.address.clone())).collect();
    View { of_shard, known: said.into_iter().flat_map(|one| one.known).collect() }
}

async fn ask(node: &Arc<Node>) -> Result<Said, StoreError> {
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

/// SLOTS has the addresses that clients are meant to use, NODES the epochs and who it is that says so; the ids join them.
fn read_view(answer: Value, asked_host: &str) -> Result<Said, StoreError> {
    let mut reply = Reply::new("cluster", answer)?;
    let (mut ranges, nodes) = (reply.list()?, reply.text()?);
    let (mut epochs, mut said) = (HashMap::<&str, i64>::new(), Said::default());
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').take(7).collect();
        let &[id, _, flags, _, _, _, epoch] = words.as_slice() else { continue };
        epochs.insert(id, epoch.parse().unwrap_or(0));
        if flags.split(',').any(|flag| flag == "myself") {
            id.clone_into(&mut said.by);
        }
    }
    let wanted: HashSet<u16> = (0..SHARDS).map(slot_of).collect();
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
                let claim = |slot: &u16| Claim { slot: *slot, epoch, id: id.clone(), address: address.clone() };
                said.claims.extend(held.map(claim));
            }
            said.known.insert(address);
        }
    }
    Ok(said)
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
            let said = read_view(answer, "h").unwrap();
            let first = said.claims.iter().find(|claim| claim.slot == slot_of(0)).unwrap();
            assert_eq!((first.epoch, first.address.as_str(), first.id.as_str()), (7, want, "aa"));
            let slots = (0..SHARDS).map(slot_of).collect::<HashSet<_>>().len();
            assert!(said.known.contains(want) && said.claims.len() == slots && said.by.is_empty());
        }
        let nodes = "aa h:7000@17000 myself,master - 0 0 7 connected 0-16383\n";
        assert_eq!(read_view(Value::Array(vec![slots(Value::Nil, 7000, "aa"), text(nodes)]), "h").unwrap().by, "aa");
    }

    #[test]
    fn the_highest_epoch_counts_unless_the_holder_itself_denies_it() {
        let slot = slot_of(0);
        let said = |by: &str, holder: &str, epoch: i64| Said {
            by: by.to_owned(),
            claims: vec![Claim { slot, epoch, id: holder.to_owned(), address: format!("{holder}:1") }],
            known: HashSet::new(),
        };
        let holder = |said: Vec<Said>| join(said).of_shard[0].clone().unwrap();
        assert_eq!(holder(vec![said("a", "a", 3), said("b", "b", 4)]), "b:1", "a was replaced and does not know it");
        assert_eq!(holder(vec![said("a", "a", 3), said("c", "b", 4)]), "b:1", "b itself was not asked");
        let stale = || said("c", "a", 9);
        assert_eq!(
            holder(vec![stale(), said("b", "b", 4), said("a", "b", 4)]),
            "b:1",
            "a knows that it has it no more"
        );
        assert_eq!(holder(vec![stale()]), "a:1", "nobody knows better");
    }
}
