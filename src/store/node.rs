//! One Redis process: where it is, and the pool that makes and checks connections to it. Pools are by node, so deadpool's
//! plain manager serves every topology; which node is whose primary is the [topology](super::topology)'s to know.

use std::{sync::Arc, time::Duration};

use deadpool_redis::{
    Connection, Manager, Pool, PoolConfig, Runtime, Timeouts,
    redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, Pipeline, RedisError, Value},
};
use tokio_util::sync::CancellationToken;

use super::error::StoreError;

/// Longest wait for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait for an answer. A foreign script may block Redis for seconds; past this the outcome is unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections to a node at most: the lanes, and a few beside them.
const MAX_CONNECTIONS: usize = 8;

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
        Ok(Arc::new(Self { name, client: Client::open(info)?, gone: CancellationToken::new(), pool }))
    }

    /// Takes a connection out of the pool.
    ///
    /// # Errors
    /// There is none to be had.
    pub async fn checkout(&self) -> Result<Connection, StoreError> {
        self.pool.get().await.map_err(|e| StoreError::Connect(Arc::new(e)))
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
