//! Who holds which shard. All keys of a shard carry its hash tag, so a shard is in one slot of a Cluster for ever, and the
//! answer is a table of 64 rows whatever the topology: one node for all (standalone), the primary that the Sentinels name,
//! or the primaries of a Cluster. Lanes send by the table and tell when it seems wrong; the keeper then looks again, and
//! now and then by itself, as a primary that was cut off does not say so.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use deadpool_redis::redis::{ConnectionInfo, IntoConnectionInfo as _, RedisError};
use tokio::{sync::Notify, time::Instant};

use super::{
    calm::Calm,
    cluster,
    error::StoreError,
    keys::SHARDS,
    node::{self, Node},
    sentinels::{self, Sentinels},
    table::{Table, same},
};
use crate::telemetry::Metrics;

/// How often the Sentinels are asked without a reason, and the primary whether it is one.
const ASK_SENTINELS_EVERY: Duration = Duration::from_secs(1);
/// How often the Cluster is.
const ASK_CLUSTER_EVERY: Duration = Duration::from_secs(5);
/// Pauses between two looks that have a reason: from, to.
const LOOK_PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(500));
/// Most nodes of a Cluster whose views one look asks for.
const MAX_ASKED: usize = 6;

/// Where Redis is. URLs may hold passwords: `Debug` shows none.
#[derive(Clone)]
pub enum Servers {
    /// One Redis, at this URL.
    Single(String),
    /// The primary that Sentinels name.
    Sentinel {
        /// URLs of the Sentinels, with the credentials for them.
        sentinels: Vec<String>,
        /// What they call the primary.
        master: String,
        /// A URL whose user, password, database and TLS hold for the primary; its host means nothing.
        nodes: String,
    },
    /// A Cluster, of which these URLs are some nodes; the user, password and TLS of the first hold for all.
    Cluster(Vec<String>),
}

impl From<String> for Servers {
    fn from(url: String) -> Self {
        Self::Single(url)
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "Single",
            Self::Sentinel { .. } => "Sentinel",
            Self::Cluster(_) => "Cluster",
        })
    }
}

enum Kind {
    Single,
    Sentinel(Sentinels),
    Cluster { seeds: Vec<Arc<Node>>, template: ConnectionInfo },
}

/// Knows the table and keeps it true.
pub struct Topology {
    kind: Kind,
    version: AtomicU64,
    table: Mutex<Arc<Table>>,
    /// By address, also those that hold nothing.
    known: Mutex<HashMap<String, Arc<Node>>>,
    /// When the last look began, and what came of it. Held while one is under way.
    looked: tokio::sync::Mutex<Option<(Instant, Result<(), StoreError>)>>,
    suspected: Arc<Notify>,
    /// Since when each shard has been no trouble.
    pub calm: Calm,
    pub metrics: Arc<Metrics>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Topology {
    /// Opens nothing yet. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A URL is not one of Redis.
    pub fn start(servers: &Servers, metrics: Arc<Metrics>) -> Result<Arc<Self>, RedisError> {
        let info = |url: &String| url.as_str().into_connection_info();
        let mut holders = vec![None; usize::from(SHARDS)];
        let kind = match servers {
            Servers::Single(url) => {
                holders.fill(Some(Node::new(info(url)?)?));
                Kind::Single
            }
            Servers::Sentinel { sentinels, master, nodes } => {
                Kind::Sentinel(Sentinels::new(sentinels, master, info(nodes)?)?)
            }
            Servers::Cluster(seeds) => {
                let template = info(seeds.first().unwrap_or(&String::new()))?;
                let node = |url| Node::new(node_at(&template, &info(url)?));
                Kind::Cluster { seeds: seeds.iter().map(node).collect::<Result<_, _>>()?, template }
            }
        };
        let topology = Arc::new(Self {
            version: AtomicU64::new(0),
            table: Mutex::new(Arc::new(Table::new(0, &holders))),
            known: Mutex::default(),
            looked: tokio::sync::Mutex::new(None),
            suspected: Arc::default(),
            calm: Calm::new(),
            kind,
            metrics,
        });
        if !topology.is_single() {
            tokio::spawn(keep(Arc::downgrade(&topology), Arc::clone(&topology.suspected)));
        }
        Ok(topology)
    }

    /// One Redis: nothing ever changes.
    pub fn is_single(&self) -> bool {
        matches!(self.kind, Kind::Single)
    }

    /// Keys of several shards may not go into one call.
    pub fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster { .. })
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&lock(&self.table))
    }

    /// The table may be wrong: look soon.
    pub fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Why there is nobody to send to.
    pub async fn nobody(&self) -> StoreError {
        self.suspect();
        let looked = self.looked.lock().await;
        match &*looked {
            Some((_, Err(error))) => error.clone(),
            _ => StoreError::NoPrimary { why: "a shard is not served by anybody now" },
        }
    }

    /// A connection to a primary was made: is it still the one? Sentinels are asked after the connection stands, so that
    /// nobody writes to a primary that came back after its replacement.
    ///
    /// # Errors
    /// It is not, or no Sentinel answers.
    pub async fn confirm(&self, node: &Arc<Node>) -> Result<(), StoreError> {
        if matches!(self.kind, Kind::Sentinel(_)) {
            self.look_since(Instant::now()).await?;
            if !self.table().has(node) {
                return Err(StoreError::NoPrimary { why: "another node has just become the primary" });
            }
        }
        Ok(())
    }

    /// Looks, unless somebody has looked since.
    ///
    /// # Errors
    /// Nobody answered; the table stays as it is.
    pub async fn look_since(&self, since: Instant) -> Result<(), StoreError> {
        let mut looked = self.looked.lock().await;
        if let Some((began, result)) = &*looked
            && *began >= since
        {
            return result.clone();
        }
        let began = Instant::now();
        let result = self.look().await;
        *looked = Some((began, result.clone()));
        result
    }

    async fn look(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Single => {}
            Kind::Sentinel(sentinels) => {
                let node = self.node(sentinels.primary().await?)?;
                let (table, answer) = (self.table(), sentinels::is_primary(&node).await);
                match answer {
                    Ok(true) => self.install(|holders| holders.fill(Some(node)), true),
                    Err(error) if table.has(&node) => return Err(error),
                    // the word is out, but it does not (yet) say so itself: nobody is better than the old one
                    Ok(false) | Err(_) => {
                        self.install(|holders| holders.fill(None), true);
                        answer?;
                        return Err(StoreError::NoPrimary { why: "the node that Sentinel names is no primary (yet)" });
                    }
                }
            }
            Kind::Cluster { seeds, .. } => {
                let view = cluster::view(&self.whom_to_ask(seeds)).await?;
                let holder = |address: &Option<String>| address.as_ref().and_then(|a| self.node_of(a));
                let holders: Vec<_> = view.of_shard.iter().map(holder).collect();
                for address in &view.known {
                    self.node_of(address);
                }
                self.install(|now| *now = holders, true);
                let table = self.table();
                lock(&self.known).retain(|address, node| view.known.contains(address) || table.has(node));
            }
        }
        Ok(())
    }

    /// Some of the nodes known, others each time, and one of the settings. Those that hold shards come first: their word about
    /// themselves is the best.
    fn whom_to_ask(&self, seeds: &[Arc<Node>]) -> Vec<Arc<Node>> {
        let mut asked: Vec<_> = lock(&self.known).values().cloned().collect();
        fastrand::shuffle(&mut asked);
        let table = self.table();
        asked.sort_by_key(|node| !table.has(node));
        asked.truncate(MAX_ASKED - 1);
        let mut others: Vec<_> = seeds.iter().filter(|s| asked.iter().all(|a| a.name != s.name)).cloned().collect();
        fastrand::shuffle(&mut others);
        // at start nobody else is known
        others.truncate(if asked.is_empty() { MAX_ASKED } else { 1 });
        asked.append(&mut others);
        asked
    }

    /// The node at an address, with the credentials that hold for all.
    pub fn node_of(&self, address: &str) -> Option<Arc<Node>> {
        let (host, port) = node::split_address(address)?;
        let template = match &self.kind {
            Kind::Single => return None,
            Kind::Sentinel(sentinels) => &sentinels.template,
            Kind::Cluster { template, .. } => template,
        };
        self.node(node::at(template, host, port)).ok()
    }

    fn node(&self, info: ConnectionInfo) -> Result<Arc<Node>, StoreError> {
        let mut known = lock(&self.known);
        if let Some(node) = known.get(&info.addr().to_string()) {
            return Ok(Arc::clone(node));
        }
        let node = Node::new(info).map_err(|cause| StoreError::Call { call: "connect", cause, unknown: false })?;
        known.insert(node.name.clone(), Arc::clone(&node));
        Ok(node)
    }

    /// A node said that a shard is elsewhere.
    pub fn moved(&self, shard: u16, address: &str, by: &Node) {
        if let Some(node) = self.redirected(address, by) {
            self.install(|holders| holders[usize::from(shard)] = Some(node), false);
        }
        self.suspect();
    }

    /// Where a redirection leads; without a host it is another port of the same one.
    pub fn redirected(&self, address: &str, by: &Node) -> Option<Arc<Node>> {
        match address.rsplit_once(':')? {
            ("?", _) => None,
            ("", port) => self.node_of(&format!("{}:{port}", node::split_address(&by.name)?.0)),
            _ => self.node_of(address),
        }
    }

    /// Puts a new table in place. `cut`: who is in it no more is no primary any more, and what is under way there ends.
    fn install(&self, change: impl FnOnce(&mut Vec<Option<Arc<Node>>>), cut: bool) {
        let mut table = lock(&self.table);
        let old = table.holders();
        let mut holders = old.clone();
        change(&mut holders);
        if holders.iter().flatten().any(|node| node.gone.is_cancelled()) {
            return self.suspect(); // found before it was cut
        }
        let changed: Vec<u16> =
            (0..SHARDS).filter(|s| !same(&old[usize::from(*s)], &holders[usize::from(*s)])).collect();
        if changed.is_empty() && table.version > 0 {
            return;
        }
        let fresh = Arc::new(Table::new(table.version + 1, &holders));
        self.version.store(fresh.version, Ordering::Release);
        let old = std::mem::replace(&mut *table, Arc::clone(&fresh));
        drop(table);
        self.calm.disturb(changed.iter().copied());
        let names: Vec<&str> = fresh.nodes.iter().map(|node| node.name.as_str()).collect();
        tracing::info!(shards = changed.len(), primaries = names.join(" "), "shards have changed their primary");
        for left in old.nodes.iter().filter(|node| cut && !fresh.has(node)) {
            lock(&self.known).remove(&left.name);
            left.gone.cancel();
        }
    }

    fn look_every(&self) -> Duration {
        match self.kind {
            Kind::Cluster { .. } => ASK_CLUSTER_EVERY,
            Kind::Single | Kind::Sentinel(_) => ASK_SENTINELS_EVERY,
        }
    }
}

fn node_at(template: &ConnectionInfo, address: &ConnectionInfo) -> ConnectionInfo {
    match node::split_address(&address.addr().to_string()) {
        Some((host, port)) => node::at(template, host, port),
        None => address.clone(),
    }
}

/// Looks when somebody suspects the table, and now and then; ends with the topology.
async fn keep(topology: std::sync::Weak<Topology>, suspected: Arc<Notify>) {
    let (mut pause, mut well) = (LOOK_PAUSE.0, true);
    loop {
        let Some(topology) = topology.upgrade() else { return };
        let (before, every) = (topology.version(), topology.look_every());
        let result = topology.look_since(Instant::now()).await;
        let is_whole = topology.table().is_whole();
        if let (Err(error), true) = (&result, well) {
            tracing::warn!(%error, "it is not known which Redis is the primary; asking on");
        } else if result.is_ok() && !well {
            tracing::info!("it is known again which Redis is the primary");
        }
        well = result.is_ok();
        let changed = topology.version() != before;
        drop(topology);
        tokio::time::sleep(pause).await;
        // what was suspected meanwhile is a reason to look at once, but each look in vain makes the next one wait longer
        let asked = well && is_whole && tokio::time::timeout(every, suspected.notified()).await.is_err();
        pause = if changed || asked { LOOK_PAUSE.0 } else { (pause * 2).min(LOOK_PAUSE.1) };
    }
}
