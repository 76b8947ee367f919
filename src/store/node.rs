//! One Redis process: where it is, and the pool that makes and checks connections to it. Pools are by node, so deadpool's
//! plain manager serves every topology; which node is whose primary is the [topology](super::topology)'s to know.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use deadpool_redis::{
    Connection, Manager, Pool, PoolConfig, PoolError, Runtime, TimeoutType, Timeouts,
    redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, Pipeline, RedisError, Value},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::StoreError;

/// Longest wait for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for an answer. A foreign script may block Redis for seconds; past this the outcome is unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections to a node at most: the lanes, and a few beside them.
const MAX_CONNECTIONS: usize = 8;
/// After a connection that could not be made, none is tried for so long, growing from the first to the second. Calls that
/// want one meanwhile get the same error: they are many, and Redis may be just coming up.
const NOT_AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// How every connection is made.
pub fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT))
}

/// `host:port`; the last colon is the port's, as in `::1:6379`.
pub fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
}

/// The same user, password, database and TLS at another address.
pub fn at(template: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match template.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    template.clone().set_addr(addr)
}

/// A Redis process.
pub struct Node {
    /// `host:port`, or the path of a socket.
    pub name: String,
    /// For a subscription, which no pool can hold.
    pub client: Client,
    /// It is nobody's primary any more: what is under way there is worth nothing.
    pub gone: CancellationToken,
    pool: Pool,
    refused: Mutex<Option<Refused>>,
}

/// The last connection could not be made.
struct Refused {
    why: Arc<PoolError>,
    until: Instant,
    pause: Duration,
}

impl Node {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// The address is not one of Redis.
    pub fn new(info: ConnectionInfo) -> Result<Arc<Self>, RedisError> {
        let manager = Manager::new_with_config(info.clone(), connection_config())?;
        let mut pool = PoolConfig::new(MAX_CONNECTIONS);
        pool.timeouts =
            Timeouts { wait: Some(CONNECT_TIMEOUT), create: Some(CONNECT_TIMEOUT), recycle: Some(CONNECT_TIMEOUT) };
        let pool = Pool::builder(manager).config(pool).runtime(Runtime::Tokio1).build();
        let pool = pool.map_err(|e| RedisError::from(std::io::Error::other(e.to_string())))?;
        let name = info.addr().to_string();
        Ok(Arc::new(Self {
            name,
            client: Client::open(info)?,
            gone: CancellationToken::new(),
            pool,
            refused: Mutex::default(),
        }))
    }

    /// Takes a connection out of the pool.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn checkout(&self) -> Result<Connection, StoreError> {
        if let Some(refused) = &*self.refused.lock().unwrap_or_else(PoisonError::into_inner)
            && Instant::now() < refused.until
        {
            return Err(StoreError::Connect(Arc::clone(&refused.why)));
        }
        let taken = self.pool.get().await.map_err(Arc::new);
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match &taken {
            Ok(_) => *refused = None,
            Err(why) if matches!(**why, PoolError::Backend(_) | PoolError::Timeout(TimeoutType::Create)) => {
                let pause = refused.as_ref().map_or(NOT_AGAIN.0, |last| (last.pause * 2).min(NOT_AGAIN.1));
                *refused = Some(Refused { why: Arc::clone(why), until: Instant::now() + pause, pause });
            }
            Err(_) => {} // all are in use
        }
        taken.map_err(StoreError::Connect)
    }

    /// Sends plain commands on a connection of the pool.
    ///
    /// # Errors
    /// See [`StoreError::fate`].
    pub async fn ask(&self, call: &'static str, commands: &Pipeline) -> Result<Value, StoreError> {
        let mut connection = self.checkout().await?;
        let answer = commands.query_async(&mut connection).await;
        answer.map_err(|cause| {
            drop(Connection::take(connection)); // whatever state it is in
            StoreError::Call { call, cause, unknown: false }
        })
    }
}
