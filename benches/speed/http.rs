//! The load generator: HTTP/1.1 on raw sockets in one thread. It does as little as one can, so that it is not what is
//! measured, and it says what CPU it took.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::parts::Thread;

/// One keep-alive connection.
pub struct Connection {
    tcp: TcpStream,
    answer: Vec<u8>,
    body: usize,
}

impl Connection {
    pub async fn open(to: SocketAddr) -> io::Result<Self> {
        let tcp = TcpStream::connect(to).await?;
        tcp.set_nodelay(true)?;
        Ok(Self { tcp, answer: Vec::with_capacity(4096), body: 0 })
    }

    /// Sends a request and reads its answer whole; gives the status.
    pub async fn exchange(&mut self, request: &[u8]) -> io::Result<u16> {
        self.tcp.write_all(request).await?;
        self.answer.clear();
        loop {
            if self.tcp.read_buf(&mut self.answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((body, length)) = message(&self.answer) else { continue };
            if self.answer.len() >= body + length {
                self.body = body;
                let status = self.answer.get(9..12).and_then(|s| std::str::from_utf8(s).ok());
                return Ok(status.and_then(|s| s.parse().ok()).unwrap_or(0));
            }
        }
    }

    /// The body of the last answer.
    pub fn body(&self) -> &[u8] {
        &self.answer[self.body..]
    }
}

/// Where the body of a message begins and how long it is, once its head is whole.
pub fn message(bytes: &[u8]) -> Option<(usize, usize)> {
    const LENGTH: &[u8] = b"\ncontent-length: ";
    let body = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = &bytes[..body];
    let at = head.windows(LENGTH.len()).position(|w| w.eq_ignore_ascii_case(LENGTH));
    let digits = at.map_or(&[][..], |at| &head[at + LENGTH.len()..]);
    let length = digits.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + usize::from(b - b'0'));
    Some((body, length))
}

/// A POST as it goes over the wire.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    request("POST", path, body)
}

pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// What a load came to.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub calls: u64,
    pub took: Duration,
    /// CPU of the load generator itself.
    pub cpu: Duration,
}

impl Load {
    pub fn rate(&self) -> f64 {
        self.calls as f64 / self.took.as_secs_f64()
    }

    /// Its share of one core.
    pub fn share(&self) -> f64 {
        self.cpu.as_secs_f64() / self.took.as_secs_f64()
    }
}

/// Until when a load goes on.
#[derive(Clone, Copy)]
pub enum Until {
    /// So long after the start.
    Over(Duration),
    /// So many calls.
    Calls(u64),
}

/// Stays open while fewer tasks than this are in the works: sent, and not yet counted as arrived.
#[derive(Clone)]
pub struct Pace {
    pub arrived: Arc<AtomicU64>,
    /// What was counted before the load began.
    pub before: u64,
    pub in_the_works: u64,
    pub each: u64,
}

/// Closed loop: so many connections, each sends its next request when it has its answer. `make` writes the how-manieth
/// request of all into the buffer.
pub fn closed<M>(to: SocketAddr, connections: usize, until: Until, pace: Option<Pace>, make: M) -> Load
where
    M: Fn(u64, &mut Vec<u8>) + Send + Sync + 'static,
{
    let made = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(tokio::task::LocalSet::new().run_until(run(to, connections, until, pace, Arc::new(make))))
    });
    made.join().expect("the load generator ends").expect("every call is answered")
}

async fn run<M>(to: SocketAddr, connections: usize, until: Until, pace: Option<Pace>, make: Arc<M>) -> io::Result<Load>
where
    M: Fn(u64, &mut Vec<u8>) + Send + Sync + 'static,
{
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(Connection::open(to).await?);
    }
    let (next, done, stop) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let most = if let Until::Calls(calls) = until { calls } else { u64::MAX };
    let (thread, began) = (Thread::this(), Instant::now());
    let cpu = thread.cpu();
    let loops: Vec<_> = open
        .into_iter()
        .map(|mut connection| {
            let (next, done, stop, make, pace) =
                (Arc::clone(&next), Arc::clone(&done), Arc::clone(&stop), Arc::clone(&make), pace.clone());
            tokio::task::spawn_local(async move {
                let mut request = Vec::with_capacity(1024);
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= most {
                        break;
                    }
                    if let Some(pace) = &pace {
                        while pace.before + number * pace.each
                            > pace.arrived.load(Ordering::Relaxed) + pace.in_the_works
                            && !stop.load(Ordering::Relaxed)
                        {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    request.clear();
                    make(number, &mut request);
                    let status = connection.exchange(&request).await?;
                    if !(200..300).contains(&status) {
                        let told = String::from_utf8_lossy(connection.body()).into_owned();
                        return Err(io::Error::other(format!("{status}: {told}")));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        })
        .collect();
    if let Until::Over(time) = until {
        tokio::time::sleep(time).await;
        stop.store(true, Ordering::Relaxed);
    }
    let (calls, took) = (done.load(Ordering::Relaxed), began.elapsed());
    for one in loops {
        one.await.map_err(io::Error::other)??;
    }
    let (calls, took) =
        if let Until::Calls(_) = until { (done.load(Ordering::Relaxed), began.elapsed()) } else { (calls, took) };
    Ok(Load { calls, took, cpu: thread.cpu().saturating_sub(cpu) })
}

/// One call on a connection of its own, for setting things up.
pub fn call(to: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let request = request(method, path, body);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = Connection::open(to).await.expect("it listens");
        let status = connection.exchange(&request).await.expect("it answers");
        let text = String::from_utf8_lossy(connection.body()).into_owned();
        assert!((200..300).contains(&status), "{method} {path}: {status} {text}");
        text
    })
}
