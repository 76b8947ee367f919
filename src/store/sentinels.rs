//! Asks the Sentinels who the primary is. Only the newest word counts (the highest configuration epoch), and only once
//! the node itself says that it is a primary: a Sentinel that was cut off, or an old primary that was, may say otherwise.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use deadpool_redis::redis::{self, Client, ConnectionInfo, RedisError, Value, aio::MultiplexedConnection};

use super::{Reply, error::StoreError, node};

/// Longest wait for one Sentinel. The others do not wait for it longer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The Sentinels of one primary.
pub struct Sentinels {
    peers: Vec<Peer>,
    master: String,
    /// User, password, database and TLS of the nodes.
    pub template: ConnectionInfo,
}

/// One Sentinel; it knows no `UNWATCH`, so deadpool's check would throw each connection away.
struct Peer {
    client: Client,
    held: Mutex<Option<MultiplexedConnection>>,
}

/// What a Sentinel says.
struct Word {
    epoch: i64,
    host: String,
    port: u16,
}

impl Sentinels {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// An address is not one of Redis.
    pub fn new(sentinels: &[String], master: &str, template: ConnectionInfo) -> Result<Self, RedisError> {
        let peer = |url: &String| Ok(Peer { client: Client::open(url.as_str())?, held: Mutex::new(None) });
        let peers = sentinels.iter().map(peer).collect::<Result<_, RedisError>>()?;
        Ok(Self { peers, master: master.to_owned(), template })
    }

    /// Where the primary is by the newest word.
    ///
    /// # Errors
    /// No Sentinel knows.
    pub async fn primary(&self) -> Result<ConnectionInfo, StoreError> {
        let words = self.peers.iter().map(|peer| peer.ask(&self.master));
        let (mut newest, mut trouble) = (None::<Word>, None);
        for word in futures_util::future::join_all(words).await {
            match word {
                Ok(Some(word)) if newest.as_ref().is_none_or(|old| old.epoch < word.epoch) => newest = Some(word),
                Ok(Some(_)) => {}
                Ok(None) => trouble = Some(StoreError::NoPrimary { why: "no Sentinel knows a primary of this name" }),
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        match (newest, trouble) {
            (Some(word), _) => Ok(node::at(&self.template, &word.host, word.port)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(StoreError::NoPrimary { why: "there is no Sentinel to ask" }),
        }
    }
}

impl Peer {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<MultiplexedConnection>> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn ask(&self, master: &str) -> Result<Option<Word>, StoreError> {
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let asked = tokio::time::timeout(ANSWER_WITHIN, self.try_ask(master)).await.unwrap_or_else(|_| Err(late()));
        let asked = asked.and_then(|answer| match answer {
            Value::Array(items) if items.iter().all(|i| matches!(i, Value::ServerError(_))) => {
                items.into_iter().next().map_or_else(|| Err(late()), Value::extract_error)
            }
            answer => Ok(answer),
        });
        match asked {
            Ok(answer) => read_word(answer),
            Err(cause) => {
                *self.held() = None;
                Err(StoreError::Call { call: "sentinel", cause, unknown: false })
            }
        }
    }

    async fn try_ask(&self, master: &str) -> Result<Value, RedisError> {
        let held = self.held().clone();
        let mut connection = match held {
            Some(connection) => connection,
            None => self.client.get_multiplexed_async_connection_with_config(&node::connection_config()).await?,
        };
        let mut commands = redis::pipe();
        commands.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        commands.cmd("SENTINEL").arg("MASTER").arg(master).ignore_errors();
        let answer = commands.query_async(&mut connection).await?;
        *self.held() = Some(connection);
        Ok(answer)
    }
}

/// The address by the one command, which follows a failover as soon as it may; the epoch by the other.
fn read_word(answer: Value) -> Result<Option<Word>, StoreError> {
    let mut reply = Reply::new("sentinel", answer)?;
    let Ok(mut address) = reply.list() else { return Ok(None) };
    let (host, port) = (address.text()?, address.int()?);
    let port = u16::try_from(port).map_err(|_| StoreError::Answer { call: "sentinel", what: "a port" })?;
    let fields = reply.list().and_then(Reply::pairs).unwrap_or_default();
    let epoch = fields.iter().find(|(name, _)| name == "config-epoch").and_then(|(_, n)| n.parse().ok());
    Ok(Some(Word { epoch: epoch.unwrap_or(0), host, port }))
}

/// Whether a node says of itself that it is a primary. One that may not be asked is believed: READONLY will tell.
///
/// # Errors
/// It does not answer.
pub async fn is_primary(node: &Arc<node::Node>) -> Result<bool, StoreError> {
    let late = || StoreError::Call {
        call: "role",
        cause: std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        unknown: false,
    };
    let mut commands = redis::pipe();
    commands.cmd("ROLE").ignore_errors();
    let answer = tokio::time::timeout(node::CONNECT_TIMEOUT, node.ask("role", &commands)).await;
    let answer = answer.map_err(|_| late())??;
    let mut reply = Reply::new("role", answer)?;
    match reply.list() {
        Ok(mut role) => Ok(role.text()? == "master"),
        Err(_) => Ok(true),
    }
}
