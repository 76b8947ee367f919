//! A private Redis for those who have none: a `redis-server` (or `valkey-server`) child on a unix socket.
//!
//! Invariants:
//! - One service a data directory (`<data>/lock`), one server on its files (`<data>/redis/lock`). The server holds the
//!   second lock itself, so that it outlives us only visibly.
//! - The child dies with its parent, however that dies, and never by the terminal's Ctrl-C: the service drains first.
//! - What was acknowledged survives `kill -9` of either; [`AppendFsync`] says whether it also survives a power cut.
//!
//! Everything that blocks is done by one std thread, the keeper. It spawns the child, because Linux sends the death
//! signal when the spawning *thread* ends: a thread of the runtime would not do.
//!
//! The child is started through our own binary, which must hand over before it does anything else:
//!
//! ```no_run
//! # use duepost::store::embedded;
//! fn main() -> std::process::ExitCode {
//!     let mut args = std::env::args_os().skip(1);
//!     if args.next().is_some_and(|first| first == embedded::CHILD_COMMAND) {
//!         embedded::run_child(args); // becomes redis-server
//!     }
//!     // the command line, the settings, the runtime
//!     std::process::ExitCode::SUCCESS
//! }
//! ```
#![allow(clippy::disallowed_methods)] // of the process, not of the service: PATH, XDG_RUNTIME_DIR, and what a child must not inherit

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use tokio::sync::{oneshot, watch};

mod child;
mod data_dir;
mod keeper;
mod link;
mod log;
#[cfg(target_os = "linux")]
mod rewrite;
mod server;

pub use child::{CHILD_COMMAND, run_child};
pub use data_dir::running;
pub use server::{NotFound, Version};

use keeper::Event;

/// When the server's append-only file reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFsync {
    /// Before each answer: what was acknowledged survives a power cut.
    Always,
    /// Once a second: a power cut may take the last second, the death of a process nothing.
    EverySec,
}

impl AppendFsync {
    /// As Redis spells it, and as the banner and `/readyz` show it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySec => "everysec",
        }
    }
}

#[derive(Debug, Clone)]
pub struct EmbeddedConfig {
    /// Made with mode 0700 if it is missing.
    pub data_dir: PathBuf,
    pub appendfsync: AppendFsync,
    /// `DUEPOST_REDIS_SERVER_BIN`; if it is set, nothing else is tried.
    pub server_bin: Option<PathBuf>,
    /// Our own binary ([`std::env::current_exe`]), whose `main` calls [`run_child`] on [`CHILD_COMMAND`].
    pub launcher: PathBuf,
}

/// The running private Redis. Dropped without [`stop`](Self::stop), it shuts down in the background.
#[derive(Debug)]
pub struct Embedded {
    url: String,
    data_dir: PathBuf,
    server: String,
    pid: Arc<AtomicU32>,
    gave_up: watch::Receiver<Option<String>>,
    keeper: thread::JoinHandle<()>,
    stop: StopOnDrop,
}

/// Why there is no private Redis. The text is for a person at a terminal and may have several lines.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error("{0}")]
    NotFound(NotFound),
    #[error("data directory {} cannot be used", path.display())]
    DataDir {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("data directory {} may be written by everyone (mode {mode:o}): chmod o-w it, or choose another", path.display())]
    WorldWritable { path: PathBuf, mode: u32 },
    #[error("data directory {} is in use by another duepost{}", path.display(), with_pid(*pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "the Redis server of an earlier run{} still holds {} and does not leave: end it, then start again",
        with_pid(*pid), path.display()
    )]
    Orphan { path: PathBuf, pid: Option<u32> },
    #[error("no place for a unix socket: {} is too long or not ours alone", path.display())]
    SocketPlace { path: PathBuf },
    #[error("{server} {version} cannot read the data in {}, which Redis 7 or later wrote", path.display())]
    Downgrade { server: PathBuf, version: Version, path: PathBuf },
    #[error("{server} is too old: at least {} is needed", server::OLDEST)]
    TooOld { server: String },
    #[error("{} cannot be started", server.display())]
    Spawn {
        server: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{} ended before it was ready ({status}){}{}", server.display(), last_lines(lines), repair_hint(repair.as_deref()))]
    Exited { server: PathBuf, status: ExitStatus, lines: Vec<String>, repair: Option<String> },
    #[error("the thread that keeps the private Redis could not be started")]
    Thread(#[source] io::Error),
    #[error("the thread that keeps the private Redis panicked")]
    Keeper,
}

impl Embedded {
    /// Locks the data directory, ends an orphan of an earlier run, starts the server and waits until it answers
    /// `PING`. There is no time limit: a long append-only file takes its time, and the log tells how far it is. To give
    /// up, drop the future.
    ///
    /// # Errors
    /// See [`EmbeddedError`]; nothing is left running.
    pub async fn start(config: EmbeddedConfig) -> Result<Self, EmbeddedError> {
        let (events, inbox) = mpsc::channel();
        let (ready, started) = oneshot::channel();
        let (give_up, gave_up) = watch::channel(None);
        let pid = Arc::new(AtomicU32::new(0));

        let stop = StopOnDrop(events.clone());
        let lines = keeper::Lines { inbox, events, ready, give_up, pid: Arc::clone(&pid) };
        let keeper = thread::Builder::new()
            .name("redis-keeper".into())
            .spawn(move || keeper::keep(config, lines))
            .map_err(EmbeddedError::Thread)?;

        let keeper::Facts { url, data_dir, server } = started.await.map_err(|_| EmbeddedError::Keeper)??;
        Ok(Self { url, data_dir, server, pid, gave_up, keeper, stop })
    }

    /// `redis+unix:///…/redis.sock`, as the redis crate takes it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The directory, absolute and without symbolic links.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// What the server says it is, as `redis-server 7.0.15`.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The process of the moment; another one after a restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// Resolves, with the reason, when restarts were in vain: the service cannot go on. Pending for ever otherwise.
    pub fn gave_up(&self) -> impl Future<Output = String> + Send + use<> {
        let mut word = self.gave_up.clone();
        async move {
            match word.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
                Ok(Some(reason)) => reason,
                Ok(None) | Err(_) => std::future::pending().await, // the keeper was told to stop
            }
        }
    }

    /// Shuts the server down, with ever less patience, and clears up behind it. To be called after the last write.
    pub async fn stop(self) {
        let Self { keeper, stop, .. } = self;
        drop(stop);
        let joined = tokio::task::spawn_blocking(move || keeper.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            tracing::error!("the thread that keeps the private Redis panicked");
        }
    }
}

/// Tells the keeper to stop, also when a start is given up half-way.
#[derive(Debug)]
struct StopOnDrop(mpsc::Sender<Event>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Stop); // no one there: it has stopped already
    }
}

fn with_pid(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

fn last_lines(lines: &[String]) -> String {
    if lines.is_empty() { String::new() } else { format!("; its last lines:\n  {}", lines.join("\n  ")) }
}

fn repair_hint(command: Option<&str>) -> String {
    command
        .map(|command| format!("\nif the append-only file is damaged, copy it somewhere safe, then:  {command}"))
        .unwrap_or_default()
}
