//! The thread that keeps the server: starts it, restarts it, ends it.
//!
//! It waits for events, not for time: the child's end, and the word to stop. A child is reaped only here, so that its
//! pid cannot have become another process's when we send it a signal.

use std::{
    collections::VecDeque,
    io::{self, Write},
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::sync::{oneshot, watch};

use super::{
    EmbeddedConfig, EmbeddedError, child,
    data_dir::DataDir,
    link::{Identity, Link, Probe},
    log::{Log, Pump},
    server::{self, APPEND_ONLY_DIR_SINCE, Server},
};

/// An empty server is ready in about 10 ms; one that loads is asked less often.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(200);
const TELL_PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How long `SHUTDOWN` may take (it writes the append-only file), and then `TERM`, before `KILL`.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(10);
const TERM_WITHIN: Duration = Duration::from_secs(5);

const MAX_RESTARTS: usize = 5;
const RESTARTS_WITHIN: Duration = Duration::from_secs(60);
/// Doubles with each restart in the window.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub enum Event {
    Exited,
    Stop,
}

/// The keeper's lines to the outside.
pub struct Lines {
    pub inbox: Receiver<Event>,
    pub events: Sender<Event>,
    pub ready: oneshot::Sender<Result<Facts, EmbeddedError>>,
    pub give_up: watch::Sender<Option<String>>,
    pub pid: Arc<AtomicU32>,
}

pub struct Facts {
    pub url: String,
    pub data_dir: PathBuf,
    pub server: String,
}

/// Body of the thread. Returns when the server is down and the directory is free.
pub fn keep(config: EmbeddedConfig, lines: Lines) {
    let Lines { inbox, events, ready, give_up, pid } = lines;
    let give_up = GiveUp(give_up);

    let first = Keeper::new(config, inbox, events, pid).and_then(|mut keeper| {
        let up = keeper.bring_up()?;
        Ok((keeper, up))
    });
    let (mut keeper, running) = match first {
        Ok((keeper, Some((running, identity)))) => {
            let data_dir = keeper.home.path().to_owned();
            // if no one waits any more, the word to stop is in the inbox
            let _ = ready.send(Ok(Facts { url: keeper.url.clone(), data_dir, server: identity.server }));
            (keeper, running)
        }
        Ok((_, None)) => return, // stopped while it loaded
        Err(error) => {
            let _ = ready.send(Err(error)); // the directory is free again: who waits may try once more
            return;
        }
    };
    if let Some(reason) = keeper.supervise(running) {
        drop(keeper);
        give_up.tell(reason);
    }
}

struct Keeper {
    config: EmbeddedConfig,
    server: Server,
    home: DataDir,
    url: String,
    link: Link,
    log: Log,
    inbox: Receiver<Event>,
    events: Sender<Event>,
    pid: Arc<AtomicU32>,
}

struct Running {
    child: Child,
    output: Pump,
}

impl Keeper {
    fn new(
        config: EmbeddedConfig,
        inbox: Receiver<Event>,
        events: Sender<Event>,
        pid: Arc<AtomicU32>,
    ) -> Result<Self, EmbeddedError> {
        let server = server::find(config.server_bin.as_deref()).map_err(EmbeddedError::NotFound)?;
        let home = DataDir::open(&config.data_dir)?;
        if server.version < APPEND_ONLY_DIR_SINCE && home.append_only_dir().exists() {
            let Server { path: server, version } = server;
            return Err(EmbeddedError::Downgrade { server, version, path: home.redis_dir() });
        }
        let no_place = || EmbeddedError::SocketPlace { path: home.socket().to_owned() };
        let url = Link::url_of(home.socket()).ok_or_else(no_place)?;
        let link = Link::new(&url).map_err(|_| no_place())?;
        Ok(Self { config, server, home, url, link, log: Log::default(), inbox, events, pid })
    }

    /// Serves until the word to stop, or until restarts are in vain: then the reason.
    fn supervise(&mut self, mut running: Running) -> Option<String> {
        let mut deaths = Deaths::default();
        loop {
            let mut trouble = match self.serve(running) {
                Some(status) => format!("the private Redis ended ({status})"),
                None => return None,
            };
            running = loop {
                let Some(backoff) = deaths.next_restart(Instant::now()) else {
                    return Some(format!("{trouble}; {MAX_RESTARTS} restarts within a minute were in vain"));
                };
                tracing::error!(?backoff, "{trouble}: restarting it");
                if let Ok(Event::Stop) = self.inbox.recv_timeout(backoff) {
                    return None;
                }
                match self.bring_up() {
                    Ok(Some((running, identity))) => {
                        tracing::info!(pid = running.child.id(), server = identity.server, "the private Redis is back");
                        break running;
                    }
                    Ok(None) => return None,
                    Err(error) => trouble = error.to_string(),
                }
            };
        }
    }

    /// Starts the server and waits until it is ready; nothing if the word to stop came first.
    fn bring_up(&mut self) -> Result<Option<(Running, Identity)>, EmbeddedError> {
        let mut running =
            self.spawn().map_err(|cause| EmbeddedError::Spawn { server: self.server.path.clone(), cause })?;
        let mut pause = FIRST_LOOK;
        let mut told = Instant::now();
        let identity = loop {
            match self.inbox.recv_timeout(pause) {
                Ok(Event::Exited) => return Err(self.ended_early(&mut running)),
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.take_down(running);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let tell = told.elapsed() >= TELL_PROGRESS_EVERY;
            match self.link.probe() {
                Probe::Ready(identity) => break identity,
                Probe::Loading { percent, seconds_left } if tell => {
                    tracing::info!(percent, seconds_left, "the private Redis reads its append-only file");
                }
                Probe::Silent(error) if tell => tracing::info!(%error, "the private Redis does not answer yet"),
                Probe::Loading { .. } | Probe::Silent(_) => {}
            }
            if tell {
                told = Instant::now();
            }
            pause = (pause * 2).min(LAST_LOOK);
        };
        // a binary may be a wrapper around another one: the server's own word counts
        if identity.version.is_some_and(|version| version < server::OLDEST) {
            self.take_down(running);
            return Err(EmbeddedError::TooOld { server: identity.server });
        }
        self.record(running.child.id(), identity.run_id.clone());
        self.log.serving(true);
        Ok(Some((running, identity)))
    }

    fn spawn(&self) -> io::Result<Running> {
        let (output, input) = io::pipe()?;
        let mut command = child::command(&self.config.launcher, &self.server, self.home.server_lock()?, input);
        let mut child = command.spawn()?;
        drop(command); // holds our copy of the pipe, which would never end
        let pid = child.id();
        self.pid.store(pid, Ordering::Relaxed);
        self.record(pid, String::new());
        if let Some(mut stdin) = child.stdin.take() {
            let config = child::config(&self.home, self.config.appendfsync);
            let _ = stdin.write_all(config.as_bytes()); // a child that does not listen is about to end
        }
        let output = self.log.pump(output).and_then(|output| self.watch(pid).map(|()| output));
        match output {
            Ok(output) => Ok(Running { child, output }),
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
        }
    }

    /// Sends [`Event::Exited`] once, and leaves the reaping to the keeper.
    fn watch(&self, pid: u32) -> io::Result<()> {
        let Some(pid) = as_pid(pid) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let events = self.events.clone();
        thread::Builder::new().name("redis-exit".into()).spawn(move || {
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), ended) {}
            let _ = events.send(Event::Exited); // no one there: the keeper has reaped it
        })?;
        Ok(())
    }

    fn record(&self, pid: u32, run_id: String) {
        if let Err(error) = self.home.record(pid, run_id) {
            tracing::warn!(%error, "run.json was not written: if we are killed, the next start cannot find the server");
        }
    }

    /// Waits for the end of the child; how it ended, or nothing if we ended it.
    fn serve(&mut self, mut running: Running) -> Option<ExitStatus> {
        match self.inbox.recv() {
            Ok(Event::Exited) => Some(self.reap(&mut running)),
            Ok(Event::Stop) | Err(_) => {
                self.take_down(running);
                None
            }
        }
    }

    fn reap(&self, running: &mut Running) -> ExitStatus {
        self.log.serving(false);
        running.output.finish();
        running.child.wait().unwrap_or_default()
    }

    fn ended_early(&self, running: &mut Running) -> EmbeddedError {
        let status = self.reap(running);
        let repair = self
            .home
            .append_only_file()
            .filter(|_| !status.success())
            .map(|file| format!("{} --fix {}", self.server.check_aof(), file.display()));
        EmbeddedError::Exited { server: self.server.path.clone(), status, lines: self.log.last_lines(), repair }
    }

    fn take_down(&self, mut running: Running) {
        self.log.serving(false);
        let asked = self.link.shutdown(SHUTDOWN_WITHIN);
        if let Err(error) = &asked {
            tracing::warn!(%error, "the private Redis did not take SHUTDOWN: sending TERM");
        }
        let gone = (asked.is_ok() && self.exits_within(SHUTDOWN_WITHIN))
            || (self.signal(&running, Signal::TERM) && self.exits_within(TERM_WITHIN));
        if !gone {
            tracing::error!("the private Redis does not leave: killing it");
            let _ = running.child.kill();
            self.exits_within(TERM_WITHIN);
        }
        let status = self.reap(&mut running);
        tracing::info!(%status, "the private Redis was shut down");
    }

    fn exits_within(&self, patience: Duration) -> bool {
        let give_up = Instant::now() + patience;
        loop {
            match self.inbox.recv_timeout(give_up.saturating_duration_since(Instant::now())) {
                Ok(Event::Exited) => return true,
                Ok(Event::Stop) => {}
                Err(_) => return false,
            }
        }
    }

    fn signal(&self, running: &Running, signal: Signal) -> bool {
        as_pid(running.child.id()).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.home.clear();
    }
}

fn as_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// A keeper that panics has given up too.
struct GiveUp(watch::Sender<Option<String>>);

impl GiveUp {
    fn tell(&self, reason: String) {
        self.0.send_replace(Some(reason));
    }
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell("the thread that keeps the private Redis panicked".into());
        }
    }
}

/// When the server died lately.
#[derive(Debug, Default)]
struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// How long to wait before the next restart; nothing if there were too many.
    fn next_restart(&mut self, now: Instant) -> Option<Duration> {
        self.0.retain(|death| now.duration_since(*death) < RESTARTS_WITHIN);
        let restarts = self.0.len();
        self.0.push_back(now);
        (restarts < MAX_RESTARTS).then(|| FIRST_BACKOFF * (1 << restarts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_come_ever_later_and_then_no_more() {
        let (mut deaths, now) = (Deaths::default(), Instant::now());
        let backoffs: Vec<_> = std::iter::from_fn(|| deaths.next_restart(now)).collect();
        assert_eq!(backoffs, [100, 200, 400, 800, 1600].map(Duration::from_millis));
    }

    #[test]
    fn a_death_is_forgiven_after_a_minute() {
        let (mut deaths, start) = (Deaths::default(), Instant::now());
        for n in 0..100 {
            let now = start + n * Duration::from_secs(13); // at most four others in the minute before
            assert!(deaths.next_restart(now).is_some_and(|backoff| backoff <= 16 * FIRST_BACKOFF), "death {n}");
        }
    }
}
