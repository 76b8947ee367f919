//! Connections, and where they rest between two calls.
//!
//! A connection has no task of its own: whoever makes a call drives it, and nobody is woken on the way but that call. So a
//! call that is dropped, or that did not end cleanly, takes its connection along, whatever state that is in; a receiver
//! that stops reading holds nothing longer than its call.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, SendRequest},
    },
};
use tokio::{task::coop::unconstrained, time::Instant};
use tower::Service as _;

use super::guard::{DialError, Dialed, Dialer};

/// Connections at rest are given up before the receiver does: many close after five seconds, and a request that meets a
/// connection just closed is a failed attempt.
const REST_MAX: Duration = Duration::from_secs(4);
/// Connections at rest that are kept for one origin.
const RESTING_PER_ORIGIN: usize = 1024;
/// A connection is used for this long: then its name is looked up, and its address judged, again.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Bytes of an answer's head, at most. (That it has at most 100 fields is hyper's default; to say so costs an allocation.)
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// A request as it is sent.
pub type Outgoing = Request<Full<Bytes>>;

/// A connection that one call has for itself.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Boxed, so that a connection moves cheaply. `None` once it has ended: dropped, it gives back a request that it had
    /// not taken up yet, which would be waited for in vain otherwise.
    driver: Option<Box<http1::Connection<Dialed, Full<Bytes>>>>,
    born: Instant,
}

impl Connection {
    /// Dials.
    pub async fn open(mut dialer: Dialer, to: hyper::Uri) -> Result<Self, Trouble> {
        let stream = dialer.call(to).await.map_err(Trouble::Dial)?;
        let (sender, driver) =
            http1::Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(stream).await.map_err(Trouble::Http)?;
        Ok(Self { sender, driver: Some(Box::new(driver)), born: Instant::now() })
    }

    fn poll_driver(&mut self, cx: &mut Context<'_>) {
        if self.driver.as_mut().is_some_and(|driver| Pin::new(&mut **driver).poll(cx).is_ready()) {
            self.driver = None; // what went wrong is told where the answer is waited for
        }
    }

    /// Runs the connection until `what` is there, which the connection alone makes come.
    pub async fn drive<T>(&mut self, what: impl Future<Output = T>) -> T {
        // looked at after each step of the connection anyway: it need not wake us, nor ever wait for the scheduler's sake
        let mut what = pin!(unconstrained(what));
        poll_fn(|cx| {
            self.poll_driver(cx);
            what.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await
    }

    /// Sends the request and waits for the head of the answer. A request of which no byte has left comes back with the
    /// error.
    pub async fn send(&mut self, request: Outgoing) -> Result<Response<Incoming>, Box<TrySendError<Outgoing>>> {
        let answer = self.sender.try_send_request(request);
        self.drive(answer).await.map_err(Box::new)
    }

    /// Whether it could take a request now: all of the last one was taken, its answer was read to the end, nothing came
    /// behind it, and nobody has closed.
    fn is_ready(&mut self) -> bool {
        // nobody waits, so nobody is woken: not even the call that goes on with it
        let step = poll_fn(|cx| {
            self.poll_driver(cx);
            Poll::Ready(())
        });
        unconstrained(step).now_or_never();
        self.is_idle()
    }

    /// Whether it could take a request as far as the last step of it showed.
    fn is_idle(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }
}

/// Why there is no answer.
pub enum Trouble {
    /// No connection.
    Dial(DialError),
    /// A connection that was lost, or an answer that is none.
    Http(hyper::Error),
}

struct Resting {
    connection: Connection,
    since: Instant,
}

type ByOrigin = HashMap<Arc<str>, Vec<Resting>>;

/// Connections at rest.
#[derive(Default)]
pub struct Pool(Mutex<ByOrigin>);

impl Pool {
    fn lock(&self) -> MutexGuard<'_, ByOrigin> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to this origin that was used last and still can be.
    pub fn take(&self, origin: &str, now: Instant) -> Option<Connection> {
        loop {
            let mut rested = self.lock().get_mut(origin)?.pop()?;
            if now.saturating_duration_since(rested.since) < REST_MAX && rested.connection.is_ready() {
                return Some(rested.connection);
            }
        }
    }

    /// Puts one back after an exchange that ended cleanly, if it can be used again.
    pub fn put(self: &Arc<Self>, origin: &Arc<str>, mut connection: Connection) {
        let since = Instant::now();
        if since - connection.born > AGE_MAX || !(connection.is_idle() || connection.is_ready()) {
            return;
        }
        let mut resting = self.lock();
        if resting.is_empty() {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let of_origin = match resting.get_mut(origin) {
            Some(of_origin) => of_origin,
            None => resting.entry(Arc::clone(origin)).or_default(),
        };
        if of_origin.len() < RESTING_PER_ORIGIN {
            of_origin.push(Resting { connection, since });
        }
    }
}

/// Closes what rests for too long, until there is nothing left.
async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(REST_MAX).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut resting = pool.lock();
        resting.retain(|_, of_origin| {
            of_origin.retain(|rested| rested.since.elapsed() < REST_MAX);
            !of_origin.is_empty()
        });
        if resting.is_empty() {
            return; // the next one that comes to rest starts another sweep
        }
    }
}
