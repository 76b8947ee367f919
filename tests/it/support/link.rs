//! A TCP link in front of a Redis that loses answers, is slow or goes silent, on command.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::redis::RedisServer;

/// How a subscription begins, on the wire.
const SUBSCRIBE: &[u8] = b"SUBSCRIBE\r\n";

pub struct Link {
    port: u16,
    state: Arc<State>,
    stop: CancellationToken,
}

/// Whose answers are lost. A connection that loses one is closed, so that nobody waits for it.
#[derive(Default, Clone)]
enum Eats {
    #[default]
    Nothing,
    /// Those to requests with these bytes in them.
    To(Vec<u8>),
    /// All, from the first request on that has these bytes in it.
    From(Vec<u8>),
    All,
}

struct State {
    to: u16,
    eats: Mutex<Eats>,
    eaten: AtomicUsize,
    silent: watch::Sender<bool>,
    latency: Mutex<Duration>,
    /// Subscriptions that were ever made, and how many of them have gone deaf since.
    subscriptions: AtomicUsize,
    deaf: AtomicUsize,
}

impl Link {
    /// A link that passes everything on.
    pub async fn to(redis: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let silent = watch::Sender::new(false);
        let state = Arc::new(State {
            to: redis.port(),
            eats: Mutex::default(),
            eaten: AtomicUsize::new(0),
            silent,
            latency: Mutex::default(),
            subscriptions: AtomicUsize::new(0),
            deaf: AtomicUsize::new(0),
        });
        let stop = CancellationToken::new();
        let (theirs, until) = (Arc::clone(&state), stop.clone());
        tokio::spawn(until.run_until_cancelled_owned(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, Arc::clone(&theirs)));
            }
        }));
        Self { port, state, stop }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on what is sent reaches Redis, but the connection breaks before the answer.
    pub fn eat_answers(&self) {
        self.state.eat(Eats::All);
    }

    /// The same for requests with these bytes in them.
    pub fn eat_answers_to(&self, bytes: &[u8]) {
        self.state.eat(Eats::To(bytes.to_vec()));
    }

    /// The same for everything, from the first request on that has these bytes in it.
    pub fn eat_answers_from(&self, bytes: &[u8]) {
        self.state.eat(Eats::From(bytes.to_vec()));
    }

    /// From now on answers come through again.
    pub fn eat_nothing(&self) {
        self.state.eat(Eats::Nothing);
    }

    /// Whether all answers are lost now.
    pub fn eats_all(&self) -> bool {
        matches!(self.state.eats(), Eats::All)
    }

    /// How often a connection was broken.
    pub fn eaten(&self) -> usize {
        self.state.eaten.load(Ordering::Relaxed)
    }

    /// Carries nothing in either direction, and closes nothing; what was sent meanwhile arrives when it ends.
    pub fn silence(&self, silent: bool) {
        self.state.silent.send_replace(silent);
    }

    /// From now on what is sent takes so long, in each direction.
    pub fn delay(&self, latency: Duration) {
        *self.state.latency.lock().unwrap_or_else(PoisonError::into_inner) = latency;
    }

    /// Subscriptions that were ever made through it.
    pub fn subscriptions(&self) -> usize {
        self.state.subscriptions.load(Ordering::Relaxed)
    }

    /// From now on connections with a subscription lose all that is sent, in both directions, and stay open. New ones work.
    pub fn deafen_subscriptions(&self) {
        self.state.deaf.store(self.subscriptions(), Ordering::Relaxed);
    }
}

impl State {
    fn eat(&self, eats: Eats) {
        *self.eats.lock().unwrap_or_else(PoisonError::into_inner) = eats;
    }

    fn eats(&self) -> Eats {
        self.eats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
        self.state.silent.send_replace(false);
    }
}

async fn carry(client: TcpStream, state: Arc<State>) {
    let Ok(redis) = TcpStream::connect(("127.0.0.1", state.to)).await else { return };
    let _ = (client.set_nodelay(true), redis.set_nodelay(true));
    let ((mut from_client, mut to_client), (mut from_redis, mut to_redis)) = (client.into_split(), redis.into_split());
    let doomed = AtomicBool::new(false);
    let subscription = AtomicUsize::new(0); // counted from 1
    let is_deaf = || (1..=state.deaf.load(Ordering::Relaxed)).contains(&subscription.load(Ordering::Relaxed));
    let there = async {
        let mut tail = Vec::new();
        while let Some(bytes) = next(&mut from_client, &state).await {
            if bytes.windows(SUBSCRIBE.len()).any(|w| w == SUBSCRIBE) {
                subscription.store(1 + state.subscriptions.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            }
            if is_deaf() {
                continue;
            }
            let eats = state.eats();
            if let Eats::To(pattern) | Eats::From(pattern) = &eats {
                tail.extend_from_slice(&bytes);
                if tail.windows(pattern.len()).any(|w| w == pattern) {
                    doomed.store(true, Ordering::Relaxed);
                    if matches!(eats, Eats::From(_)) {
                        state.eat(Eats::All);
                    }
                }
                tail.drain(..tail.len().saturating_sub(pattern.len()));
            }
            if to_redis.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    let back = async {
        while let Some(bytes) = next(&mut from_redis, &state).await {
            if is_deaf() {
                continue;
            }
            if doomed.load(Ordering::Relaxed) || matches!(state.eats(), Eats::All) {
                state.eaten.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if to_client.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
    // Redis shall still read and do all that was sent: no reset, but the end of what it reads
    drop((from_client, to_client));
    let _ = to_redis.shutdown().await;
    let mut sink = [0; 4096];
    while let Ok(1..) = from_redis.read(&mut sink).await {}
}

/// What came, held back while the link is silent; `None` at the end.
async fn next(from: &mut OwnedReadHalf, state: &State) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 64 * 1024];
    let n = from.read(&mut bytes).await.ok().filter(|n| *n > 0)?;
    bytes.truncate(n);
    let latency = *state.latency.lock().unwrap_or_else(PoisonError::into_inner);
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let _ = state.silent.subscribe().wait_for(|silent| !silent).await;
    Some(bytes)
}
