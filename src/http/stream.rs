//! A connection that cannot be held for ever: deadlines that hyper does not have, and an end that does not cut an answer
//! off.
//!
//! hyper knows one deadline for "no request's head came", and makes a timer for each request. Here are two: how long a
//! connection may rest, and the shorter one from the first byte of a head to its last; so is that of a client that does not
//! read its answer. At the end
//! what the client still sends is read and dropped for a moment: closing over unread bytes would reset the connection,
//! and a client that is still sending would never see why it was refused.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

/// Requests of a connection: how many are being answered, how many ever began.
#[derive(Debug, Clone, Default)]
pub struct InHand(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    ever: AtomicUsize,
}

impl InHand {
    /// One more, until the guard goes.
    #[must_use]
    pub fn begin(&self) -> Guard {
        self.0.now.fetch_add(1, Ordering::Relaxed);
        self.0.ever.fetch_add(1, Ordering::Relaxed);
        Guard(Arc::clone(&self.0))
    }

    fn is_none(&self) -> bool {
        self.0.now.load(Ordering::Relaxed) == 0
    }

    fn ever(&self) -> usize {
        self.0.ever.load(Ordering::Relaxed)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Guard(Arc<Counts>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Deadlines of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Without a request.
    pub idle: Duration,
    /// From the first byte of a head to its last.
    pub head: Duration,
    /// For the client to take some bytes of an answer.
    pub write: Duration,
    /// What is read and dropped after the last answer: so long, and so many bytes.
    pub linger: (Duration, usize),
}

/// A connection with deadlines.
#[derive(Debug)]
pub struct Patient<T> {
    io: T,
    in_hand: InHand,
    patience: Patience,
    /// When a head that has begun must be whole, and how many requests had begun by then.
    head: Option<(Instant, usize)>,
    head_sleep: Option<Pin<Box<Sleep>>>,
    /// Until when the connection may rest, and how many requests had begun by then.
    rest: Option<(Instant, usize)>,
    /// Is left to run when requests come: it ends too early then, and is set anew.
    rest_sleep: Option<Pin<Box<Sleep>>>,
    write: Option<Pin<Box<Sleep>>>,
    linger: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<T> Patient<T> {
    /// Wraps a connection.
    pub fn new(io: T, in_hand: InHand, patience: Patience) -> Self {
        Self {
            io,
            in_hand,
            patience,
            head: None,
            head_sleep: None,
            rest: None,
            rest_sleep: None,
            write: None,
            linger: None,
        }
    }

    /// Ready once the connection has rested for too long.
    fn watch_rest(&mut self, cx: &mut Context<'_>, ever: usize) -> Poll<()> {
        let until = match self.rest {
            Some((until, before)) if before == ever => until,
            _ => Instant::now() + self.patience.idle,
        };
        self.rest = Some((until, ever));
        let sleep = self.rest_sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= until {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(until);
        }
    }

    fn watch_write(&mut self, cx: &mut Context<'_>, done: bool) -> Poll<io::Result<()>> {
        if done {
            self.rest = None; // it does not rest while its answer is being taken
            self.write = None;
            return Poll::Pending;
        }
        let sleep = self.write.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.patience.write)));
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Patient<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.io).poll_read(cx, buf);
        let ever = this.in_hand.ever();
        if !this.in_hand.is_none() || this.head.is_some_and(|(_, before)| before != ever) {
            this.head = None; // that head was whole
        }
        if !this.in_hand.is_none() {
            return polled;
        }
        match polled {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                // the head's first bytes; its others do not move the deadline
                this.head.get_or_insert_with(|| (Instant::now() + this.patience.head, ever));
                polled
            }
            Poll::Ready(_) => polled,
            Poll::Pending => {
                let Some((end, _)) = this.head else {
                    ready!(this.watch_rest(cx, ever));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                };
                let sleep = this.head_sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
                if sleep.deadline() != end {
                    sleep.as_mut().reset(end);
                }
                ready!(sleep.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        match self.watch_write(cx, polled.is_ready()) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => polled,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        match self.watch_write(cx, polled.is_ready()) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => polled,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
        }
        let (time, bytes) = this.patience.linger;
        let (sleep, left) = this.linger.get_or_insert_with(|| (Box::pin(tokio::time::sleep(time)), bytes));
        let mut scratch = [0; 16 * 1024];
        loop {
            if sleep.as_mut().poll(cx).is_ready() || *left == 0 {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.io).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => *left = left.saturating_sub(buf.filled().len()),
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
