//! A scripted HTTP receiver on raw TCP: what arrived, when, and byte for byte; its answers can change in mid-test.
//!
//! It runs in a thread with a runtime of its own, so that a busy test does not delay the stamps of arrival.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

pub use super::receiver_answer::{Answer, Gate};
use super::{
    receiver_answer::How,
    wait::{eventually, now_ms},
};

/// The default answer, a constant so that the fast path copies nothing.
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// When its first bytes were read: milliseconds since 1970 on this machine's clock.
    pub at_ms: i64,
    /// The how-manieth connection it came on, from 1.
    pub connection: usize,
    /// Request line and header lines as sent, without the blank line.
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or("")
    }

    /// The target as sent, with its query.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or("")
    }

    /// The first value of a header, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers in their order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.head.split("\r\n").skip(1);
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim()))
    }

    /// The `duepost-task-id`.
    #[track_caller]
    pub fn task(&self) -> &str {
        self.header("duepost-task-id").unwrap_or_else(|| panic!("no duepost-task-id in {}", self.head))
    }

    /// The `duepost-attempt`.
    #[track_caller]
    pub fn attempt(&self) -> u32 {
        self.header("duepost-attempt").and_then(|n| n.parse().ok()).expect("duepost-attempt is a number")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the official Standard Webhooks library accepts the signature.
    pub fn signature_ok(&self, secret: &str) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers() {
            let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) else {
                return false;
            };
            headers.append(name, value);
        }
        let webhook = standardwebhooks::Webhook::new(secret).expect("a secret in base64");
        webhook.verify(&self.body, &headers).is_ok()
    }
}

/// Decides an answer; `None` leaves it to the rule before.
type Rule = Arc<dyn Fn(&Request) -> Option<Answer> + Send + Sync>;

pub struct Receiver {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    journal: Mutex<Vec<Arc<Request>>>,
    rules: RwLock<Vec<Rule>>,
    has_rules: AtomicBool,
    connections: AtomicUsize,
    open: AtomicUsize,
}

impl Receiver {
    /// Listens on a free port; answers 200 to everything until told otherwise.
    pub async fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener that tokio takes");
        let addr = listener.local_addr().expect("an address");
        let (shared, stop) = (Arc::new(Shared::default()), CancellationToken::new());
        let (theirs, until) = (Arc::clone(&shared), stop.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener that tokio takes");
                tokio::select! {
                    () = until.cancelled() => {}
                    () = accept(&listener, &theirs) => {}
                }
            });
        });
        Self { addr, shared, stop, thread: Some(thread) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on this answer for this path (without its query).
    pub fn on(&self, path: &str, answer: impl Into<Answer>) {
        let (path, answer) = (path.to_owned(), answer.into());
        self.by(move |request| (request.path().split('?').next() == Some(&path)).then(|| answer.clone()));
    }

    /// From now on these answers in turn for this path; the last one repeats.
    pub fn on_in_turn(&self, path: &str, answers: Vec<Answer>) {
        let (path, turn) = (path.to_owned(), AtomicUsize::new(0));
        self.by(move |request| {
            if request.path().split('?').next() != Some(&path) {
                return None;
            }
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            answers.get(turn).or(answers.last()).cloned()
        });
    }

    /// From now on this answer for the requests that the predicate picks.
    pub fn when(&self, picks: impl Fn(&Request) -> bool + Send + Sync + 'static, answer: impl Into<Answer>) {
        let answer = answer.into();
        self.by(move |request| picks(request).then(|| answer.clone()));
    }

    /// From now on whatever this function says; `None` leaves it to the rules before. The newest rule is asked first.
    pub fn by(&self, rule: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static) {
        self.shared.rules.write().expect("no panic under this lock").push(Arc::new(rule));
        self.shared.has_rules.store(true, Ordering::Release);
    }

    /// Back to 200 for everything.
    pub fn forget_rules(&self) {
        self.shared.rules.write().expect("no panic under this lock").clear();
        self.shared.has_rules.store(false, Ordering::Release);
    }

    /// Everything that arrived so far, in the order of arrival.
    pub fn journal(&self) -> Vec<Arc<Request>> {
        self.lock_journal().clone()
    }

    /// How many requests arrived so far.
    pub fn count(&self) -> usize {
        self.lock_journal().len()
    }

    /// What arrived so far for this task id.
    pub fn of_task(&self, id: &str) -> Vec<Arc<Request>> {
        self.lock_journal().iter().filter(|r| r.header("duepost-task-id") == Some(id)).cloned().collect()
    }

    /// How many connections were accepted so far, and how many are open now.
    pub fn connections(&self) -> (usize, usize) {
        (self.shared.connections.load(Ordering::Relaxed), self.shared.open.load(Ordering::Relaxed))
    }

    /// Waits until at least `n` requests have arrived; gives the journal.
    #[track_caller]
    pub fn wait_for(&self, n: usize, deadline: Duration) -> impl Future<Output = Vec<Arc<Request>>> {
        self.wait_until(deadline, move |journal| journal.len() >= n)
    }

    /// Waits until the journal is as the predicate wants it; gives it.
    #[track_caller]
    pub fn wait_until<P>(&self, deadline: Duration, pred: P) -> impl Future<Output = Vec<Arc<Request>>>
    where
        P: Fn(&[Arc<Request>]) -> bool,
    {
        let arrived = eventually(deadline, async move || pred(&self.lock_journal()));
        async move {
            arrived.await;
            self.journal()
        }
    }

    /// Waits until the task has arrived at least once; gives its first request.
    #[track_caller]
    pub fn wait_for_task(&self, id: &str, deadline: Duration) -> impl Future<Output = Arc<Request>> {
        super::until(deadline, async move || self.of_task(id).first().cloned())
    }

    fn lock_journal(&self) -> MutexGuard<'_, Vec<Arc<Request>>> {
        self.shared.journal.lock().expect("no panic under this lock")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        shared.open.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            // How a connection ends is the client's business; what arrived is in the journal.
            let _ = converse(stream, connection, &shared).await;
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

async fn converse(mut stream: TcpStream, connection: usize, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 * 1024);
    while let Some(request) = read_request(&mut stream, &mut buffer, connection).await? {
        let request = Arc::new(request);
        let answer = if shared.has_rules.load(Ordering::Acquire) {
            let rules = shared.rules.read().expect("no panic under this lock").clone();
            rules.iter().rev().find_map(|rule| rule(&request))
        } else {
            None
        };
        shared.journal.lock().expect("no panic under this lock").push(request);
        match answer {
            None => stream.write_all(OK).await?,
            Some(answer) => {
                if !play(&mut stream, answer).await? {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Gives the answer; false when the connection ends with it.
async fn play(stream: &mut TcpStream, answer: Answer) -> std::io::Result<bool> {
    if let Some(gate) = &answer.gate {
        gate.passed().await;
    }
    if !answer.delay.is_zero() {
        tokio::time::sleep(answer.delay).await;
    }
    match answer.how {
        How::Bytes { bytes, close } => {
            stream.write_all(&bytes).await?;
            return Ok(!close);
        }
        How::Drip { bytes, every } => {
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(every).await;
            }
            return Ok(true);
        }
        How::Hang => {
            // Until the client gives up.
            let mut sink = [0; 1024];
            while stream.read(&mut sink).await? > 0 {}
        }
        How::Close => {}
        How::Reset => stream.set_zero_linger()?,
    }
    Ok(false)
}

/// Reads one request; `None` at the end of the connection. What came after it stays in the buffer.
async fn read_request(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    connection: usize,
) -> std::io::Result<Option<Request>> {
    let mut at_ms = None;
    let blank_line = loop {
        if !buffer.is_empty() {
            at_ms = at_ms.or_else(|| Some(now_ms()));
            if let Some(at) = find_blank_line(buffer) {
                break at;
            }
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..blank_line]).into_owned();
    let mut request = Request { at_ms: at_ms.unwrap_or_else(now_ms), connection, head, body: Vec::new() };
    let start = blank_line + 4;
    let length = content_length(&request);
    let chunked = length.is_none() && request.header("transfer-encoding").is_some();
    let length = length.unwrap_or(0);
    let end = loop {
        let end = if chunked { end_of_chunks(&buffer[start..]).map(|n| start + n) } else { Some(start + length) };
        match end {
            Some(end) if buffer.len() >= end => break end,
            _ if stream.read_buf(buffer).await? == 0 => return Ok(None),
            _ => {}
        }
    };
    request.body = if chunked { join_chunks(&buffer[start..end]) } else { buffer[start..end].to_vec() };
    buffer.drain(..end);
    Ok(Some(request))
}

/// Most clients write the name in lower case, and a search is faster than a walk over the lines.
fn content_length(request: &Request) -> Option<usize> {
    const NAME: &str = "\r\ncontent-length: ";
    match request.head.find(NAME) {
        Some(at) => request.head[at + NAME.len()..].split('\r').next()?.parse().ok(),
        None => request.header("content-length")?.parse().ok(),
    }
}

/// Searches as text: the standard library's search is fast also in a debug build, a loop over bytes is not.
fn find_blank_line(bytes: &[u8]) -> Option<usize> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).expect("valid up to there"),
    };
    text.find("\r\n\r\n")
}

fn end_of_chunks(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = bytes[at..].windows(2).position(|w| w == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        at += line + 2 + size + 2;
        if size == 0 {
            return (at <= bytes.len()).then_some(at);
        }
        bytes.get(..at)?;
    }
}

fn join_chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..line]).expect("checked before").split(';').next().unwrap_or("0").trim();
        let size = usize::from_str_radix(size, 16).expect("checked before");
        if size == 0 {
            break;
        }
        body.extend_from_slice(&bytes[line + 2..line + 2 + size]);
        bytes = &bytes[line + 2 + size + 2..];
    }
    body
}
