//! A receiver that follows a script per connection, byte by byte.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Notify, watch},
    time::{sleep, timeout},
};

/// One step on one connection. After the last one the receiver closes.
#[derive(Clone)]
pub enum Step {
    /// Reads a whole request.
    Request,
    /// Reads the head of a request, and what came with it.
    Head,
    Says(Vec<u8>),
    /// Sends this again and again, with a pause in between, until the caller closes.
    Drip(&'static str, Duration),
    /// Waits for the test.
    Until(Arc<Notify>),
    /// Says that it will send no more.
    Shut,
    /// Reads until the caller closes.
    Rest,
    /// Closes with a reset.
    Reset,
}

use Step::*;

pub fn send(text: impl Into<Vec<u8>>) -> Step {
    Says(text.into())
}

/// An answer with a body and its length.
pub fn answer(status: u16, body: &str) -> Step {
    send(format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
}

/// What the receiver has seen so far.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub accepted: usize,
    /// Connections whose script is at its end.
    pub ended: usize,
    /// What came with `Request` and `Head`.
    pub requests: Vec<Vec<u8>>,
    /// Bytes that came with `Rest`.
    pub rest: usize,
}

pub struct Receiver {
    pub addr: SocketAddr,
    seen: watch::Receiver<Seen>,
}

impl Receiver {
    /// Plays the n-th script on the n-th connection, and the last one on all further ones.
    pub fn start(scripts: Vec<Vec<Step>>) -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), scripts).unwrap()
    }

    pub fn start_on(addr: SocketAddr, scripts: Vec<Vec<Step>>) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(16 * 1024)?; // so that a request that is not read gets stuck
        socket.bind(addr)?;
        let listener = socket.listen(1024)?;
        let addr = listener.local_addr()?;
        let (tell, seen) = watch::channel(Seen::default());
        tokio::spawn(accept(listener, scripts, Arc::new(tell)));
        Ok(Self { addr, seen })
    }

    /// One script for every connection.
    pub fn always(script: Vec<Step>) -> Self {
        Self::start(vec![script])
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.addr)
    }

    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until the receiver has seen something.
    pub async fn until(&self, what: impl FnMut(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.clone();
        let result = timeout(Duration::from_secs(20), seen.wait_for(what)).await;
        result.unwrap_or_else(|_| panic!("still {:?}", self.seen())).unwrap().clone()
    }
}

async fn accept(listener: TcpListener, scripts: Vec<Vec<Step>>, tell: Arc<watch::Sender<Seen>>) {
    for n in 0.. {
        let Ok((tcp, _)) = listener.accept().await else { return };
        tell.send_modify(|seen| seen.accepted += 1);
        let (script, tell) = (scripts[n.min(scripts.len() - 1)].clone(), Arc::clone(&tell));
        tokio::spawn(async move {
            let _ = play(tcp, script, &tell).await;
            tell.send_modify(|seen| seen.ended += 1);
        });
    }
}

async fn play(mut tcp: TcpStream, script: Vec<Step>, tell: &watch::Sender<Seen>) -> std::io::Result<()> {
    for step in script {
        match step {
            Request => {
                let request = read_request(&mut tcp, true).await?;
                tell.send_modify(|seen| seen.requests.push(request));
            }
            Head => {
                let request = read_request(&mut tcp, false).await?;
                tell.send_modify(|seen| seen.requests.push(request));
            }
            Says(bytes) => tcp.write_all(&bytes).await?,
            Drip(text, pause) => loop {
                tcp.write_all(text.as_bytes()).await?;
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            },
            Until(go) => go.notified().await,
            Shut => tcp.shutdown().await?,
            Rest => {
                let mut buf = [0; 16 * 1024];
                loop {
                    let n = tcp.read(&mut buf).await?;
                    if n == 0 {
                        break;
                    }
                    tell.send_modify(|seen| seen.rest += n);
                }
            }
            Reset => return tcp.set_zero_linger(),
        }
    }
    Ok(())
}

/// Up to the end of the head, or of the body by its `content-length`.
async fn read_request(tcp: &mut TcpStream, whole: bool) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if !whole || bytes.len() >= head + 4 + length.unwrap_or(0) {
                return Ok(bytes);
            }
        }
        let n = tcp.read(&mut buf).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&buf[..n]);
    }
}
