//! The one place that dials. Whatever is called, by name or by literal, goes through [`Guard::dial`]: it resolves
//! once, drops the addresses that the policy refuses, connects to what is left, and looks at whom it really reached.
//! There is no second look-up between check and connect, so a name that changes its address in between gains nothing.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use hyper::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use rustix::io::Errno;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tower::Service;

use super::{
    resolve::{OneAtATime, Resolve},
    stream::Stream,
};
use crate::domain::address::AddressPolicy;

/// Look-up and TCP handshake together, over all addresses of a name.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// The same and the TLS handshake. The deadline of the attempt may end it sooner.
const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// A dial waits so long for a file descriptor. The lack of one is ours and not the receiver's, and passes when somebody gives one
/// back; it looks this often.
const DESCRIPTOR_WITHIN: Duration = Duration::from_secs(3);
const DESCRIPTOR_LOOK: Duration = Duration::from_millis(50);
/// After this long without a connection the next address is tried beside the first (RFC 8305).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Why there is no connection. The texts name no address that the user did not give.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Only refused addresses behind the name.
    #[error("the target's address is not allowed")]
    Blocked,
    /// No such name, or nobody who knows.
    #[error("DNS: {0}")]
    Dns(String),
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// Closed while it was being made.
    #[error("connection reset")]
    Reset,
    /// Not the receiver's fault.
    #[error("the service has no file descriptor left to call with")]
    NoDescriptor,
    /// Any other trouble on the way, such as no route.
    #[error("no connection: {0}")]
    Unreachable(io::ErrorKind),
    /// No handshake, or a certificate that does not verify.
    #[error("TLS: {0}")]
    Tls(String),
    /// Too slow.
    #[error("no connection within {}s", .0.as_secs())]
    Timeout(Duration),
}

/// Dials what the policy permits.
#[derive(Clone)]
pub struct Guard {
    policy: Arc<AddressPolicy>,
    resolver: OneAtATime,
}

impl Guard {
    /// A guard of this policy.
    pub fn new(policy: AddressPolicy, resolver: Arc<dyn Resolve>) -> Self {
        Self { policy: Arc::new(policy), resolver: OneAtATime::new(resolver) }
    }

    /// Connects to a permitted address of this host, an IPv6 literal without its brackets.
    pub async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, DialError> {
        let found = match host.parse::<IpAddr>() {
            Ok(literal) => vec![literal],
            // a zone names an interface of ours; no URL may choose one
            Err(_) if host.contains('%') => return Err(DialError::Blocked),
            Err(_) => self.resolver.resolve(host).await.map_err(DialError::Dns)?,
        };
        if found.is_empty() {
            return Err(DialError::Dns("the name has no address".to_owned()));
        }
        let permitted = found.into_iter().filter(|ip| self.policy.permits(*ip).is_ok()).take(ADDRESSES_MAX);
        let permitted: Vec<_> = permitted.map(|ip| SocketAddr::new(ip, port)).collect();
        if permitted.is_empty() {
            return Err(DialError::Blocked);
        }
        let tcp = connect(&permitted).await.map_err(|error| match error.kind() {
            _ if lacks_descriptor(&error) => DialError::NoDescriptor,
            io::ErrorKind::ConnectionRefused => DialError::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => DialError::Reset,
            io::ErrorKind::TimedOut => DialError::Timeout(CONNECT_DEADLINE),
            other => DialError::Unreachable(other),
        })?;
        match tcp.peer_addr() {
            Ok(peer) if self.policy.permits(peer.ip()).is_ok() => {}
            Ok(_) => return Err(DialError::Blocked),
            Err(_) => return Err(DialError::Reset),
        }
        tcp.set_nodelay(true).map_err(|error| DialError::Unreachable(error.kind()))?;
        Ok(tcp)
    }
}

/// Connects to one of these addresses, once there is a descriptor for it.
async fn connect(addrs: &[SocketAddr]) -> io::Result<TcpStream> {
    let until = Instant::now() + DESCRIPTOR_WITHIN;
    loop {
        match connect_first(addrs).await {
            Err(error) if lacks_descriptor(&error) && Instant::now() < until => sleep(DESCRIPTOR_LOOK).await,
            done => return done,
        }
    }
}

/// Of this process, or of the whole machine.
fn lacks_descriptor(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// The first of these addresses that answers; each is tried when the one before failed or takes its time.
async fn connect_first(addrs: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut waiting = addrs.iter();
    let mut under_way = FuturesUnordered::new();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let more = match waiting.next() {
            Some(addr) => {
                under_way.push(TcpStream::connect(*addr));
                waiting.len() > 0
            }
            None if under_way.is_empty() => return Err(last_error),
            None => false,
        };
        tokio::select! {
            Some(result) = under_way.next() => match result {
                Ok(tcp) => return Ok(tcp),
                Err(error) => last_error = error,
            },
            () = sleep(NEXT_ADDRESS_AFTER), if more => {}
        }
    }
}

impl Service<Uri> for Guard {
    type Response = Stream;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Stream, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let guard = self.clone();
        Box::pin(async move {
            let host = target.host().unwrap_or_default();
            let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            let default_port = if target.scheme_str() == Some("https") { 443 } else { 80 };
            let tcp = timeout(CONNECT_DEADLINE, guard.dial(host, target.port_u16().unwrap_or(default_port))).await;
            tcp.map_err(|_| DialError::Timeout(CONNECT_DEADLINE))?.map(Stream::new)
        })
    }
}

/// A stream to a receiver, with TLS or without.
pub type Dialed = MaybeHttpsStream<Stream>;

/// The guard with TLS on top for `https`.
#[derive(Clone)]
pub struct Dialer {
    https: HttpsConnector<Guard>,
}

impl Dialer {
    /// Dials through this guard, and verifies by this configuration.
    pub fn new(guard: Guard, tls: rustls::ClientConfig) -> Self {
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        Self { https: builder.enable_http1().wrap_connector(guard) }
    }
}

impl Service<Uri> for Dialer {
    type Response = Dialed;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<Self::Response, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let dialling = self.https.call(target);
        Box::pin(async move {
            let dialled = timeout(DIAL_DEADLINE, dialling).await.map_err(|_| DialError::Timeout(DIAL_DEADLINE))?;
            // what the guard did not say, the handshake did
            dialled.map_err(|error| match error.downcast::<DialError>() {
                Ok(of_guard) => *of_guard,
                Err(of_tls) => DialError::Tls(of_tls.to_string()),
            })
        })
    }
}
