//! A connection with a fault: stands between a service and its Redis, and eats answers when told to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Whose answers are eaten. A connection that loses one is closed, so nobody waits for it.
#[derive(Default)]
enum Eats {
    #[default]
    Nothing,
    /// From the first request on that has this text.
    From(Vec<u8>),
    All,
}

pub struct Proxy {
    port: u16,
    eats: Arc<Mutex<Eats>>,
    _links: JoinSet<()>,
}

impl Proxy {
    /// To this port of 127.0.0.1.
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("an address").port();
        let eats = Arc::new(Mutex::new(Eats::Nothing));
        let (mut links, theirs) = (JoinSet::new(), Arc::clone(&eats));
        links.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                open.spawn(link(near, far, Arc::clone(&theirs)));
            }
        });
        Self { port: own, eats, _links: links }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on what is sent is done, and nobody hears of it.
    pub fn eat_answers(&self) {
        *lock(&self.eats) = Eats::All;
    }

    /// The same, from the first request on that has this text.
    pub fn eat_answers_from(&self, text: &str) {
        *lock(&self.eats) = Eats::From(text.as_bytes().to_vec());
    }

    /// From now on everything gets through.
    pub fn heal(&self) {
        *lock(&self.eats) = Eats::Nothing;
    }

    /// Whether the fault has begun.
    pub fn is_eating(&self) -> bool {
        matches!(*lock(&self.eats), Eats::All)
    }
}

fn lock(eats: &Mutex<Eats>) -> MutexGuard<'_, Eats> {
    eats.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn link(mut near: TcpStream, mut far: TcpStream, eats: Arc<Mutex<Eats>>) {
    let (mut sent, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            n = near.read(&mut sent) => {
                let Ok(n @ 1..) = n else { return };
                {
                    let mut eats = lock(&eats);
                    if let Eats::From(text) = &*eats && sent[..n].windows(text.len()).any(|part| part == text) {
                        *eats = Eats::All;
                    }
                }
                if far.write_all(&sent[..n]).await.is_err() {
                    return;
                }
            }
            n = far.read(&mut answered) => {
                let Ok(n @ 1..) = n else { return };
                if matches!(*lock(&eats), Eats::All) || near.write_all(&answered[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}
