//! A TCP stream on which an answer is still read after a write met a receiver that had closed, and that ends where a
//! receiver sends without end.

use std::{
    io::{Error, ErrorKind, IoSlice, Result},
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::net::TcpStream;

/// Most bytes that may come with nothing sent in between: a head, the part of a body that is read, and interim answers.
/// Who sends those without end would keep a core busy with reading them until the deadline.
pub const UNASKED_BYTES_MAX: usize = 256 << 10;

/// Pieces of a write that are no more than this in all are joined: to copy them costs less than the system does for each.
const JOINED_BYTES_MAX: usize = 1 << 10;

/// Bytes of one read.
const READ_BYTES: usize = 8 << 10;

/// It hides that the receiver closed while it was written to: the receiver may have answered before it closed, and hyper
/// drops an answer that it has not read yet when a write fails. The read side then tells what really happened.
#[derive(Debug)]
pub struct Stream {
    tcp: TokioIo<TcpStream>,
    /// Bytes that came since something was sent.
    unasked: usize,
    /// The receiver takes no more bytes, but an answer may still lie in the receive buffer.
    write_broken: bool,
}

impl Stream {
    pub fn new(tcp: TcpStream) -> Self {
        Self { tcp: TokioIo::new(tcp), unasked: 0, write_broken: false }
    }

    fn write_with(
        &mut self,
        len: usize,
        write: impl FnOnce(Pin<&mut TokioIo<TcpStream>>) -> Poll<Result<usize>>,
    ) -> Poll<Result<usize>> {
        if self.write_broken {
            return Poll::Ready(Ok(len));
        }
        let written = ready!(write(Pin::new(&mut self.tcp)));
        self.unasked = 0;
        match written {
            Err(error) if is_hang_up(&error) => {
                self.write_broken = true;
                Poll::Ready(Ok(len))
            }
            result => Poll::Ready(result),
        }
    }
}

/// Whether the other side closed.
fn is_hang_up(error: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted | NotConnected)
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<Result<()>> {
        if self.unasked > UNASKED_BYTES_MAX {
            return Poll::Ready(Err(ErrorKind::FileTooLarge.into()));
        }
        // hyper's cursor does not tell how much was put into it
        let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
        let room = buf.remaining().min(READ_BYTES);
        let mut part = ReadBuf::uninit(&mut bytes[..room]);
        ready!(Pin::new(&mut self.tcp).poll_read(cx, part.unfilled()))?;
        self.unasked += part.filled().len();
        buf.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        self.write_with(buf.len(), |tcp| tcp.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if len > JOINED_BYTES_MAX {
            return self.write_with(len, |tcp| tcp.poll_write_vectored(cx, bufs));
        }
        let (mut joined, mut end) = ([0; JOINED_BYTES_MAX], 0);
        for buf in bufs {
            joined[end..end + buf.len()].copy_from_slice(buf);
            end += buf.len();
        }
        self.write_with(len, |tcp| tcp.poll_write(cx, &joined[..len]))
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// hyper-rustls asks for it.
impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    async fn pair() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Stream::new(ours), listener.accept().await.unwrap().0)
    }

    async fn read(stream: &mut Stream) -> Result<Vec<u8>> {
        let mut bytes = [0; 100];
        let mut buf = ReadBuf::new(&mut bytes);
        poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, buf.unfilled())).await?;
        Ok(buf.filled().to_vec())
    }

    #[tokio::test]
    async fn c103_an_answer_is_still_read_after_a_write_met_a_reset() {
        let (mut ours, mut theirs) = pair().await;
        poll_fn(|cx| Pin::new(&mut ours).poll_write(cx, b"request")).await.unwrap();
        theirs.readable().await.unwrap();
        theirs.write_all(b"answer").await.unwrap();
        drop(theirs); // with the request unread: a reset

        while !ours.write_broken {
            let written = poll_fn(|cx| Pin::new(&mut ours).poll_write(cx, b"more")).await;
            assert_eq!(written.unwrap(), 4);
            tokio::task::yield_now().await;
        }

        assert_eq!(read(&mut ours).await.unwrap(), b"answer");
    }

    #[tokio::test]
    async fn who_sends_without_end_is_cut_off_and_each_exchange_begins_anew() {
        let (mut ours, mut theirs) = pair().await;
        tokio::spawn(async move { while theirs.write_all(&[b'x'; 1 << 16]).await.is_ok() {} });
        for _ in 0..2 {
            let mut came = 0;
            let refused = loop {
                match read(&mut ours).await {
                    Ok(bytes) => came += bytes.len(),
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
            assert!((UNASKED_BYTES_MAX..UNASKED_BYTES_MAX + 200).contains(&came), "{came}");
            poll_fn(|cx| Pin::new(&mut ours).poll_write(cx, b"request")).await.unwrap();
        }
    }
}
