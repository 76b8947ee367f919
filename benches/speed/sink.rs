//! The receiver: takes POSTs on raw sockets in a thread of its own, counts them, and notes how late each is by its own
//! clock, if the payload begins with the instant it was due at.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use crate::{http::message, parts::Thread};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// What a payload begins with that says when it was due.
pub const DUE: &str = "{\"due_ms\":";

/// Its thread and sockets go when it is dropped: none is left to take from the measurements that follow.
pub struct Sink {
    pub address: SocketAddr,
    pub arrived: Arc<AtomicU64>,
    late_us: Arc<Mutex<Vec<i64>>>,
    thread: Thread,
    stop: CancellationToken,
    end: Option<JoinHandle<()>>,
}

impl Sink {
    pub fn start() -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let (arrived, late_us) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<i64>>>::default());
        let (sink, stop) = ((Arc::clone(&arrived), Arc::clone(&late_us)), CancellationToken::new());
        let stopped = stop.clone().cancelled_owned();
        let end = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(tokio::task::LocalSet::new().run_until(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                tell.send((listener.local_addr().expect("bound"), Thread::this())).expect("somebody waits");
                let accept = async {
                    while let Ok((tcp, _)) = listener.accept().await {
                        tokio::task::spawn_local(serve(tcp, Arc::clone(&sink.0), Arc::clone(&sink.1)));
                    }
                };
                tokio::select! {
                    () = stopped => {}
                    () = accept => {}
                }
            }));
        });
        let (address, thread) = told.recv().expect("the receiver starts");
        Self { address, arrived, late_us, thread, stop, end: Some(end) }
    }

    pub fn count(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// CPU that it took so far.
    pub fn cpu(&self) -> Duration {
        self.thread.cpu()
    }

    /// How late each arrival since the last call of this was, in µs, sorted.
    pub fn lateness(&self) -> Vec<i64> {
        let mut late = std::mem::take(&mut *self.late_us.lock().expect("no panic under this lock"));
        late.sort_unstable();
        late
    }

    /// Waits until so many have arrived in all; the instant.
    pub fn wait_for(&self, arrived: u64, most: Duration) -> Instant {
        let began = Instant::now();
        while self.count() < arrived {
            assert!(began.elapsed() < most, "{} of {arrived} arrived within {most:?}", self.count());
            std::thread::sleep(Duration::from_micros(500));
        }
        Instant::now()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.end.take().map(JoinHandle::join);
    }
}

async fn serve(mut tcp: TcpStream, arrived: Arc<AtomicU64>, late_us: Arc<Mutex<Vec<i64>>>) {
    let _ = tcp.set_nodelay(true);
    let mut bytes = Vec::with_capacity(4096);
    while let Ok(1..) = tcp.read_buf(&mut bytes).await {
        while let Some((body, length)) = message(&bytes).filter(|(body, length)| bytes.len() >= body + length) {
            arrived.fetch_add(1, Ordering::Relaxed);
            let digits = bytes[body..].strip_prefix(DUE.as_bytes()).unwrap_or_default();
            if !digits.is_empty() {
                let digits = digits.iter().take_while(|b| b.is_ascii_digit());
                let due_ms = digits.fold(0_i64, |n, b| n * 10 + i64::from(b - b'0'));
                late_us.lock().expect("no panic under this lock").push(now_us() - due_ms * 1000);
            }
            bytes.drain(..body + length);
            if tcp.write_all(OK).await.is_err() {
                return;
            }
        }
    }
}

/// The wall clock, which Redis on the same machine has too.
#[allow(clippy::disallowed_methods)] // this is the other side
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_micros()).expect("before 292,277")
}
