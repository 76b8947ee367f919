//! Connections. deadpool makes and checks them; a [`Lane`] holds one multiplexed connection to each primary, so that a
//! call costs no checkout (two commands) and calls pipeline by themselves. A lane whose connection broke takes a new one,
//! a call that a node sends elsewhere goes there.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use deadpool_redis::{
    Connection, PoolError, TimeoutType,
    redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection},
};
use tokio::time::Instant;

use super::{
    error::{self, Fate, StoreError},
    keys::SHARDS,
    node::{CONNECT_TIMEOUT, Node},
    script::Call,
    table::Table,
    topology::Topology,
};

/// A call that takes longer counts as trouble with Redis: leases are not ended for a while.
const SLOW_CALL: Duration = Duration::from_secs(1);
/// A call follows so many redirections.
const MAX_REDIRECTS: usize = 5;

/// One held connection to each primary. Big reads, calls of clients and the work of delivery have a lane each.
pub struct Lane {
    topology: Arc<Topology>,
    held: Mutex<Held>,
}

struct Held {
    table: Arc<Table>,
    /// By place in the table.
    links: Vec<Link>,
    /// Connections that were ever held.
    turns: u64,
}

#[derive(Default)]
struct Link {
    turn: u64,
    connection: Option<Connection>,
    /// One at a time makes the connection.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

/// A connection to send on.
struct Line {
    connection: MultiplexedConnection,
    turn: u64,
    node: Arc<Node>,
}

enum Peek {
    Here(Line),
    Apart(Arc<Node>, Arc<tokio::sync::Mutex<()>>),
    Nobody { never_looked: bool },
}

impl Held {
    /// Takes over a new table; connections to nodes that are in it no more are closed.
    fn follow(&mut self, table: Arc<Table>) {
        let mut old: Vec<(Arc<Node>, Link)> =
            self.table.nodes.iter().cloned().zip(std::mem::take(&mut self.links)).collect();
        self.links = table
            .nodes
            .iter()
            .map(|node| match old.iter().position(|(of, _)| Arc::ptr_eq(of, node)) {
                Some(at) => old.swap_remove(at).1,
                None => Link::default(),
            })
            .collect();
        for (_, link) in old {
            drop(link.connection.map(Connection::take));
        }
        self.table = table;
    }
}

impl Lane {
    /// Connects at the first call.
    pub fn new(topology: Arc<Topology>) -> Self {
        let table = topology.table();
        let links = table.nodes.iter().map(|_| Link::default()).collect();
        Self { topology, held: Mutex::new(Held { table, links, turns: 0 }) }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.table.version != self.topology.version() {
            held.follow(self.topology.table());
        }
        held
    }

    fn peek(&self, shard: u16) -> Peek {
        let held = self.held();
        let at = held.table.place(shard);
        let (Some(link), Some(node)) = (held.links.get(at), held.table.nodes.get(at)) else {
            return Peek::Nobody { never_looked: held.table.version == 0 };
        };
        let node = Arc::clone(node);
        match &link.connection {
            Some(c) => Peek::Here(Line { connection: c.as_ref().clone(), turn: link.turn, node }),
            None => Peek::Apart(node, Arc::clone(&link.connecting)),
        }
    }

    /// What is rare on the way is boxed: it is big, and each call would be moved about with it.
    async fn line(&self, shard: u16) -> Result<Line, StoreError> {
        let mut looked = false;
        loop {
            match self.peek(shard) {
                Peek::Here(line) => return Ok(line),
                Peek::Apart(node, connecting) => {
                    let Ok(_one) = tokio::time::timeout(CONNECT_TIMEOUT, connecting.lock()).await else {
                        return Err(StoreError::Connect(Arc::new(PoolError::Timeout(TimeoutType::Wait))));
                    };
                    match self.peek(shard) {
                        Peek::Apart(now, _) if Arc::ptr_eq(&now, &node) => return Box::pin(self.connect(node)).await,
                        _ => {} // somebody made it, or the primary changed
                    }
                }
                Peek::Nobody { never_looked: true } if !looked => {
                    looked = true;
                    let _ = Box::pin(self.topology.look_since(Instant::now())).await; // said by `nobody`
                }
                Peek::Nobody { .. } => return Err(Box::pin(self.topology.nobody()).await),
            }
        }
    }

    /// Which primary has a shard.
    pub fn place(&self, shard: u16) -> usize {
        self.topology.table().place(shard)
    }

    async fn connect(&self, node: Arc<Node>) -> Result<Line, StoreError> {
        let fresh = match node.checkout().await {
            Ok(fresh) => fresh,
            Err(error) => {
                self.trouble(&node);
                return Err(error);
            }
        };
        let connection = fresh.as_ref().clone();
        if let Err(error) = self.topology.confirm(&node).await {
            drop(Connection::take(fresh));
            return Err(error);
        }
        let mut held = self.held();
        held.turns += 1;
        let turn = held.turns;
        let at = held.table.nodes.iter().position(|n| Arc::ptr_eq(n, &node));
        if let Some(link) = at.and_then(|at| held.links.get_mut(at)) {
            (link.turn, link.connection) = (turn, Some(fresh));
        }
        Ok(Line { connection, turn, node })
    }

    fn trouble(&self, node: &Arc<Node>) {
        self.topology.calm.disturb(self.topology.table().shards_of(node));
        self.topology.suspect();
    }

    /// Lets go of a connection that broke; it does not go back to the pool.
    fn drop_broken(&self, turn: u64) {
        let mut held = self.held();
        if let Some(link) = held.links.iter_mut().find(|link| link.turn == turn) {
            drop(link.connection.take().map(Connection::take));
        }
    }

    /// Sends a script call once, to where its shard is; a node that sends it elsewhere has not done it.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn send(&self, call: &Call<'_>) -> Result<Value, StoreError> {
        let mut redirects = 0;
        loop {
            let mut line = self.line(call.shard()).await?;
            let sent = Instant::now();
            let answer = if self.topology.is_single() {
                call.send(&mut line.connection).await
            } else {
                tokio::select! {
                    biased;
                    answer = call.send(&mut line.connection) => answer,
                    () = line.node.gone.cancelled() => Err(cut_off()),
                }
            };
            let error = match self.note(call.name(), &line, sent.elapsed(), answer) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            redirects += 1;
            match &error {
                StoreError::Call { cause, .. } if redirects <= MAX_REDIRECTS => match redirect_of(cause) {
                    Some((ServerErrorKind::Moved, address)) => self.topology.moved(call.shard(), address, &line.node),
                    Some((ServerErrorKind::Ask, address)) => {
                        let Some(node) = self.topology.redirected(address, &line.node) else { return Err(error) };
                        return Box::pin(self.send_asking(call, &node)).await;
                    }
                    _ => return Err(error),
                },
                _ => return Err(error),
            }
        }
    }

    /// A slot on its way: its new node takes the call if it is told that it was asked.
    async fn send_asking(&self, call: &Call<'_>, node: &Node) -> Result<Value, StoreError> {
        let mut connection = node.checkout().await?;
        let sent = Instant::now();
        let answer = call.send_asking(connection.as_mut()).await;
        self.topology.metrics.redis_call(call.name(), sent.elapsed());
        answer.map_err(|cause| {
            drop(Connection::take(connection));
            self.topology.suspect();
            StoreError::Call { call: call.name(), cause, unknown: false }
        })
    }

    /// Sends plain commands about keys of one shard in one go; answers are theirs, in order.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn pipe(&self, name: &'static str, shard: u16, commands: &Pipeline) -> Result<Value, StoreError> {
        let mut line = self.line(shard).await?;
        let sent = Instant::now();
        let answer = tokio::select! {
            biased;
            answer = commands.query_async(&mut line.connection) => answer,
            () = line.node.gone.cancelled() => Err(cut_off()),
        };
        let answer = self.note(name, &line, sent.elapsed(), answer)?;
        if let Value::Array(items) = &answer
            && items.iter().any(error::is_elsewhere)
        {
            if items.iter().any(error::tells_demotion) {
                self.drop_broken(line.turn);
            }
            self.topology.suspect();
        }
        Ok(answer)
    }

    /// Sends each primary plain commands about the shards that it holds, side by side; answers with those shards. A
    /// primary that takes longer than `within` counts as one that does not answer.
    pub async fn spread(
        &self,
        name: &'static str,
        within: Duration,
        commands: impl Fn(&[u16]) -> Pipeline,
    ) -> Vec<(Vec<u16>, Result<Value, StoreError>)> {
        if !self.topology.is_single() && self.topology.version() == 0 {
            let _ = Box::pin(self.topology.look_since(Instant::now())).await; // said by each group
        }
        let table = self.topology.table();
        let mut groups: Vec<Vec<u16>> = vec![Vec::new(); table.nodes.len() + 1];
        for shard in 0..SHARDS {
            groups[table.place(shard).min(table.nodes.len())].push(shard);
        }
        groups.retain(|shards| !shards.is_empty());
        let late = || StoreError::Call { call: name, cause: timed_out(), unknown: false };
        let calls = groups.into_iter().map(|shards| {
            let pipeline = commands(&shards);
            async move {
                let answer = tokio::time::timeout(within, self.pipe(name, shards[0], &pipeline)).await;
                (shards, answer.unwrap_or_else(|_| Err(late())))
            }
        });
        futures_util::future::join_all(calls).await
    }

    /// Measures an answer, and remembers trouble.
    fn note(
        &self,
        call: &'static str,
        line: &Line,
        took: Duration,
        answer: Result<Value, RedisError>,
    ) -> Result<Value, StoreError> {
        self.topology.metrics.redis_call(call, took);
        if took > SLOW_CALL {
            self.topology.calm.disturb(self.topology.table().shards_of(&line.node));
        }
        answer.map_err(|cause| {
            if cause.is_unrecoverable_error() || cause.is_io_error() || error::is_demoted(&cause) {
                self.trouble(&line.node);
                self.drop_broken(line.turn);
            } else if matches!(cause.kind(), ErrorKind::Server(kind) if error::is_about_topology(kind)) {
                self.topology.suspect();
            }
            let error = StoreError::Call { call, cause, unknown: false };
            if error.fate() == Fate::NotReady {
                self.topology.calm.refuse();
            }
            error
        })
    }
}

fn cut_off() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn redirect_of(cause: &RedisError) -> Option<(ServerErrorKind, &str)> {
    let ErrorKind::Server(kind) = cause.kind() else { return None };
    Some((kind, cause.redirect_node()?.0))
}
