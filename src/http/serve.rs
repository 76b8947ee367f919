//! Accepts connections and serves a router on them, with a limit on everything that a client can hold open.
//!
//! Stopping: no new connections at once; a request gets its answer, and its connection is closed behind it, also one that
//! was just being sent on a connection at rest; those at rest are closed a second later; and what is left at the deadline
//! is dropped.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::FutureExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

use super::stream::{InHand, Patience, Patient};

/// Bytes of a request's head. (That it has at most 100 headers is hyper's default; to say so costs an allocation.)
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after an accept that failed for lack of something, as file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection at rest is kept once the service stops: a client may be sending on it at this moment, and would
/// not know what became of its call.
const PARTING: Duration = Duration::from_secs(1);

/// What a server allows its clients.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// Connections at once; others wait in the kernel's queue.
    pub connections: usize,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// How long the head of a request may take from its first byte.
    pub head: Duration,
    /// How long a client may take nothing of its answer.
    pub write: Duration,
    /// How long answers may take once the service stops.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            connections: 10_000,
            idle: Duration::from_secs(75),
            head: Duration::from_secs(10),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(25),
        }
    }
}

/// Serves until `stop`, then until the last answer is out or the drain's time is over.
pub async fn serve(listener: TcpListener, router: Router, options: ServeOptions, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(options.connections));
    let connections = TaskTracker::new();
    let end = CancellationToken::new();
    let take = |stream, place: Place| {
        let (router, stop, end) = (router.clone(), stop.clone(), end.clone());
        connections.spawn(async move {
            connection(stream, router, options, stop, end).await;
            drop(place);
        });
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        let (stream, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error, &stop).await;
                continue;
            }
        };
        take(stream, place);
    }
    // Whom the kernel has told that it is connected.
    while let Some(Ok((stream, place))) = accept(&listener, &places).now_or_never() {
        take(stream, place);
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(options.drain, connections.wait()).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections are cut: their answers took too long");
        end.cancel();
        connections.wait().await;
    }
}

type Place = tokio::sync::OwnedSemaphorePermit;

/// The place before the connection: without one the kernel keeps it, and nobody is refused.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, Place)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

/// A client that went away again is no reason to wait; a lack of descriptors would spin.
async fn pause_after(error: &io::Error, stop: &CancellationToken) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted) {
        return;
    }
    tracing::warn!(%error, "no connection can be accepted");
    tokio::select! {
        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
        () = stop.cancelled() => {}
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    options: ServeOptions,
    stop: CancellationToken,
    end: CancellationToken,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let in_hand = InHand::default();
    let ServeOptions { idle, head, write, .. } = options;
    let patience = Patience { idle, head, write, linger: (Duration::from_secs(2), 64 << 20) };
    let io = TokioIo::new(Patient::new(stream, in_hand.clone(), patience));
    let stopping = stop.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (guard, stopping) = (in_hand.begin(), stopping.clone());
        let answer = router.clone().call(request.map(Body::new)); // a router is always ready
        async move {
            let mut answer: Result<Response, std::convert::Infallible> = answer.await;
            if let (Ok(answer), true) = (&mut answer, stopping.is_cancelled()) {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            drop(guard);
            answer
        }
    });
    let mut builder = http1::Builder::new();
    builder.header_read_timeout(None).max_header_size(HEAD_BYTES_MAX).max_buf_size(2 * HEAD_BYTES_MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(io, service));
    // one thing to look out for at each of its steps; the end comes after the stop
    let before = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stop.cancelled() => None,
    };
    let part = async {
        if let Ok(ended) = tokio::time::timeout(PARTING, connection.as_mut()).await {
            return ended;
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    let ended = match before {
        Some(ended) => ended,
        None => tokio::select! {
            ended = part => ended,
            () = end.cancelled() => return,
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
