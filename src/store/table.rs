//! Who holds which shard, as known at one time. Tables are replaced, never changed.

use std::sync::Arc;

use super::{keys::SHARDS, node::Node};

/// Who holds which shard, as known at one time.
pub struct Table {
    /// 0 until the first look.
    pub version: u64,
    /// The primaries that hold a shard.
    pub nodes: Vec<Arc<Node>>,
    /// The place in `nodes`, by shard; beyond its end if nobody is known.
    of_shard: [u8; SHARDS as usize],
}

/// No place in a table; there are no more nodes than shards.
const NOBODY: u8 = u8::MAX;

impl Table {
    pub fn new(version: u64, holders: &[Option<Arc<Node>>]) -> Self {
        let (mut nodes, mut of_shard) = (Vec::<Arc<Node>>::new(), [NOBODY; SHARDS as usize]);
        for (place, holder) in of_shard.iter_mut().zip(holders) {
            let Some(holder) = holder else { continue };
            let at = nodes.iter().position(|node| Arc::ptr_eq(node, holder)).unwrap_or_else(|| {
                nodes.push(Arc::clone(holder));
                nodes.len() - 1
            });
            *place = u8::try_from(at).unwrap_or(NOBODY);
        }
        Self { version, nodes, of_shard }
    }

    /// The place of a shard's primary in `nodes`, or beyond its end.
    #[must_use]
    pub fn place(&self, shard: u16) -> usize {
        usize::from(self.of_shard[usize::from(shard)])
    }

    /// Shards whose primary is this node.
    pub fn shards_of(&self, node: &Arc<Node>) -> impl Iterator<Item = u16> {
        let at = self.nodes.iter().position(|n| Arc::ptr_eq(n, node));
        (0..SHARDS).filter(move |shard| at == Some(self.place(*shard)))
    }

    /// The primary of each shard.
    pub fn holders(&self) -> Vec<Option<Arc<Node>>> {
        (0..SHARDS).map(|shard| self.nodes.get(self.place(shard)).cloned()).collect()
    }

    /// Whether each shard has one.
    pub fn is_whole(&self) -> bool {
        self.of_shard.iter().all(|at| usize::from(*at) < self.nodes.len())
    }

    /// Whether this node is one.
    pub fn has(&self, node: &Arc<Node>) -> bool {
        self.nodes.iter().any(|n| Arc::ptr_eq(n, node))
    }
}

/// Whether two holders are one node, or both nobody.
pub fn same(a: &Option<Arc<Node>>, b: &Option<Arc<Node>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}
