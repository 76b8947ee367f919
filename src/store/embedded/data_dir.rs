//! The data directory and the two locks on it.
//!
//! ```text
//! <data>/lock           held by the one service that uses the directory; its pid is in it
//! <data>/run.json       which server was started: how the next start finds an orphan
//! <data>/redis.sock     (elsewhere if the path is too long for a socket)
//! <data>/redis/         what the server writes
//! <data>/redis/lock     held by the service *and* by the server: free only when no one writes there
//! ```
//!
//! Two servers on one directory both start, and one's keys are lost without a word at the next rewrite of the
//! append-only file; on one socket path the second steals the socket. Hence the locks come before anything else.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    EmbeddedError,
    link::{Identity, Link},
};

/// The kernel's limit is 108 on Linux and 104 on macOS.
const MAX_SOCKET_PATH_BYTES: usize = 100;
/// For a predecessor that is just leaving.
const GRACE: Duration = Duration::from_millis(500);
/// For an orphan that was asked to shut down, and writes what it has.
const ORPHAN_LEAVES: Duration = Duration::from_secs(30);
/// For an orphan that does not answer; it may be leaving already.
const ORPHAN_SILENT: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Contents of `run.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub pid: u32,
    pub socket: PathBuf,
    /// The server's own name for this run; empty until it was ready once.
    pub run_id: String,
}

/// A directory that is ours while this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    socket: PathBuf,
    server_lock: File,
    _owner_lock: File,
}

impl DataDir {
    /// Makes, checks and locks the directory; ends the server of an earlier run if one is left.
    pub fn open(path: &Path) -> Result<Self, EmbeddedError> {
        let unusable = |cause| EmbeddedError::DataDir { path: path.to_owned(), cause };
        make_private(path).map_err(unusable)?;
        let path = path.canonicalize().map_err(unusable)?;
        let mode = path.metadata().map_err(unusable)?.mode() & 0o7777;
        if mode & 0o002 != 0 {
            return Err(EmbeddedError::WorldWritable { path, mode });
        }

        let owner_lock = own(&path, unusable)?;
        make_private(&path.join("redis")).map_err(unusable)?;
        let server_lock = take_over(&path, unusable)?;
        let socket = place_socket(&path)?;
        Ok(Self { path, socket, server_lock, _owner_lock: owner_lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn redis_dir(&self) -> PathBuf {
        self.path.join("redis")
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The lock for the server to inherit: the same lock, not a second one.
    pub fn server_lock(&self) -> io::Result<File> {
        self.server_lock.try_clone()
    }

    pub fn record(&self, pid: u32, run_id: String) -> io::Result<()> {
        let run = Run { pid, socket: self.socket.clone(), run_id };
        let (whole, part) = (self.path.join("run.json"), self.path.join("run.json.part"));
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&part)?
            .write_all(&serde_json::to_vec(&run)?)?;
        fs::rename(part, whole)
    }

    /// The append-only file of an earlier run, as `redis-check-aof` wants it.
    pub fn append_only_file(&self) -> Option<PathBuf> {
        [self.append_only_dir().join("appendonly.aof.manifest"), self.redis_dir().join("appendonly.aof")]
            .into_iter()
            .find(|path| path.exists())
    }

    /// Where servers from 7.0 on write.
    pub fn append_only_dir(&self) -> PathBuf {
        self.redis_dir().join("appendonlydir")
    }

    /// Removes what only a running server needs. The locks stay files, and are free when `self` is dropped.
    pub fn clear(&self) {
        let _ = fs::remove_file(self.path.join("run.json"));
        let _ = fs::remove_file(&self.socket);
        if let Some(dir) = self.socket.parent().filter(|dir| *dir != self.path) {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn lock_within(file: &File, patience: Duration) -> io::Result<bool> {
    let give_up = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= give_up => return Ok(false),
            Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
        }
    }
}

/// No other service from here on.
fn own(path: &Path, unusable: impl Fn(io::Error) -> EmbeddedError) -> Result<File, EmbeddedError> {
    let mut file = open_lock(&path.join("lock")).map_err(&unusable)?;
    if !lock_within(&file, GRACE).map_err(&unusable)? {
        let mut pid = String::new();
        let _ = file.read_to_string(&mut pid); // only to say who
        return Err(EmbeddedError::InUse { path: path.to_owned(), pid: pid.trim().parse().ok() });
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(&unusable)?;
    Ok(file)
}

/// No other server from here on. That of a service which died is asked to leave: it has no one left to serve.
fn take_over(path: &Path, unusable: impl Fn(io::Error) -> EmbeddedError) -> Result<File, EmbeddedError> {
    let file = open_lock(&path.join("redis/lock")).map_err(&unusable)?;
    if lock_within(&file, GRACE).map_err(&unusable)? {
        return Ok(file);
    }
    let run = last_run(path);
    let asked = run.as_ref().is_some_and(ask_to_leave);
    if lock_within(&file, if asked { ORPHAN_LEAVES } else { ORPHAN_SILENT }).map_err(&unusable)? {
        return Ok(file);
    }
    Err(EmbeddedError::Orphan { path: path.to_owned(), pid: run.map(|run| run.pid) })
}

fn last_run(path: &Path) -> Option<Run> {
    fs::read(path.join("run.json")).ok().and_then(|json| serde_json::from_slice(&json).ok())
}

/// The way to the server of this run, if it is there. It must be the one that we started: the socket could be anyone's
/// by now.
fn reach(run: &Run) -> Option<(String, Link)> {
    let url = Link::url_of(&run.socket)?;
    let link = Link::new(&url).ok()?;
    let ours = |it: Identity| it.pid == Some(run.pid) && (run.run_id.is_empty() || it.run_id == run.run_id);
    link.identity().is_ok_and(ours).then_some((url, link))
}

/// The URL of the private Redis that serves this directory now; `None` if none does.
#[must_use]
pub fn running(path: &Path) -> Option<String> {
    last_run(path).and_then(|run| reach(&run)).map(|(url, _)| url)
}

fn ask_to_leave(run: &Run) -> bool {
    let link = reach(run);
    if let Some((_, link)) = &link {
        tracing::info!(pid = run.pid, "the private Redis of an earlier run is still there: shutting it down");
        if let Err(error) = link.shutdown(ORPHAN_LEAVES) {
            tracing::warn!(%error, pid = run.pid, "it did not shut down");
        }
    }
    link.is_some()
}

/// In the data directory if the path is short enough, else in a directory of our own whose name the same data
/// directory always gives.
fn place_socket(data: &Path) -> Result<PathBuf, EmbeddedError> {
    let fits = |path: &PathBuf| path.as_os_str().len() < MAX_SOCKET_PATH_BYTES;
    let near = data.join("redis.sock");
    if fits(&near) {
        return Ok(near);
    }
    let hash: String = Sha256::digest(data.as_os_str().as_bytes())[..8].iter().map(|b| format!("{b:02x}")).collect();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute() && dir.is_dir());
    let bases = runtime.into_iter().chain([env::temp_dir(), "/tmp".into()]);
    bases
        .map(|base| base.join(format!("duepost-{hash}")).join("redis.sock"))
        .filter(fits)
        .find(|socket| socket.parent().is_some_and(ours_alone))
        .ok_or(EmbeddedError::SocketPlace { path: near })
}

/// The parent may be writable by everyone, so the name may have been taken by someone else.
fn ours_alone(dir: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(dir); // there already, or the check below fails
    let us = rustix::process::geteuid().as_raw();
    dir.symlink_metadata().is_ok_and(|it| it.is_dir() && it.uid() == us && it.mode() & 0o077 == 0)
}
