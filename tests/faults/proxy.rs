//! A TCP proxy that makes trouble: latency, jitter, black holes, slices of one byte, resets in mid-answer, answers eaten.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Chunks on their way in one direction of one connection.
const IN_FLIGHT: usize = 256;

/// How the proxy carries bytes.
#[derive(Debug, Clone, Default)]
pub struct Ways {
    /// Each way takes so long, and up to `jitter` more.
    pub latency: Duration,
    pub jitter: Duration,
    /// One byte at a time.
    pub slices: bool,
    /// Nothing is carried; what was sent meanwhile arrives when it is over.
    pub black_hole: bool,
    /// So many of a hundred answers are eaten, and their connection is reset.
    pub eats: u8,
    /// So many of a hundred answers are cut in the middle by a reset.
    pub cuts: u8,
}

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

struct Shared {
    ways: watch::Sender<Ways>,
    rng: Mutex<fastrand::Rng>,
    broken: AtomicUsize,
}

impl Proxy {
    /// In front of `127.0.0.1:port`.
    pub async fn to(port: u16, rng: fastrand::Rng) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (ways, rng) = (watch::Sender::new(Ways::default()), Mutex::new(rng));
        let shared = Arc::new(Shared { ways, rng, broken: AtomicUsize::new(0) });
        let stop = CancellationToken::new();
        let (theirs, until) = (Arc::clone(&shared), stop.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(until.clone().run_until_cancelled_owned(carry(client, port, Arc::clone(&theirs))));
            }
        }));
        Self { address, shared, stop }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on.
    pub fn set(&self, ways: Ways) {
        self.shared.ways.send_replace(ways);
    }

    /// How many connections were broken on purpose.
    pub fn broken(&self) -> usize {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Shared {
    fn rng(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.rng.lock().expect("no panic under this lock")
    }

    fn hits(&self, percent: u8) -> bool {
        percent > 0 && self.rng().u8(0..100) < percent
    }
}

async fn carry(client: TcpStream, port: u16, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pump(from_client, to_server, &shared, false) => {}
        () = pump(from_server, to_client, &shared, true) => {}
    }
}

/// Carries one direction until either end closes, or an answer is broken on purpose.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, answers: bool) {
    let (queue, mut waiting) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let reading = async move {
        let mut bytes = vec![0; 16 * 1024];
        while let Ok(n @ 1..) = from.read(&mut bytes).await {
            let ways = shared.ways.borrow().clone();
            let jitter = ways.jitter.mul_f64(shared.rng().f64());
            if queue.send((Instant::now() + ways.latency + jitter, bytes[..n].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let writing = async {
        let mut ways = shared.ways.subscribe();
        while let Some((at, bytes)) = waiting.recv().await {
            sleep_until(at).await;
            let Ok(now) = ways.wait_for(|ways| !ways.black_hole).await.map(|ways| ways.clone()) else { break };
            let (eaten, cut) = (answers && shared.hits(now.eats), answers && shared.hits(now.cuts));
            if eaten || cut {
                if !eaten {
                    let _ = to.write_all(&bytes[..bytes.len() / 2]).await;
                }
                shared.broken.fetch_add(1, Ordering::Relaxed);
                let stream: &TcpStream = to.as_ref();
                let _ = stream.set_zero_linger();
                return;
            }
            if !write(&mut to, &bytes, now.slices).await {
                return;
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = async { reading.await; std::future::pending().await } => {}
    }
}

async fn write(to: &mut OwnedWriteHalf, bytes: &[u8], slices: bool) -> bool {
    let pieces = if slices { 1 } else { bytes.len().max(1) };
    for piece in bytes.chunks(pieces) {
        if to.write_all(piece).await.is_err() {
            return false;
        }
    }
    true
}
