//! A redis-server on a disk that loses what was not flushed, and that can be full: see `tests/support/shim/disk.c`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::support::RedisServer;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/shim/disk.c");

pub struct Disk {
    dir: TempDir,
}

impl Disk {
    pub fn new() -> Self {
        let disk = Self { dir: tempfile::Builder::new().prefix("duepost-disk-").tempdir().expect("a directory") };
        let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(disk.library()).arg(SOURCE).output();
        let built = built.expect("cc can be executed");
        assert!(built.status.success(), "{SOURCE}: {}", String::from_utf8_lossy(&built.stderr));
        disk
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("disk.so")
    }

    fn full(&self) -> PathBuf {
        self.dir.path().join("full")
    }

    /// A server whose append-only file is on this disk.
    pub async fn redis(&self, fsync: &str) -> RedisServer {
        self.redis_with(&["--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"]).await
    }

    pub async fn redis_with(&self, options: &[&str]) -> RedisServer {
        let text = |path: PathBuf| path.into_os_string().into_string().expect("a path in UTF-8");
        let env = vec![("LD_PRELOAD", text(self.library())), ("DISK_SHIM_FULL", text(self.full()))];
        RedisServer::start_in(options, env).await
    }

    /// From now on there is no space, or there is again.
    pub fn is_full(&self, full: bool) {
        if full {
            std::fs::write(self.full(), "").expect("a file in a temporary directory");
        } else {
            let _ = std::fs::remove_file(self.full());
        }
    }
}

/// The power is cut: the server is gone, and with it what was not flushed. Gives how many bytes that were.
pub fn cut_power(redis: &mut RedisServer) -> u64 {
    redis.kill9();
    let mut gone = 0;
    for log in logs(redis.dir()) {
        let note = std::fs::read_to_string(log.with_extension("aof.flushed")).unwrap_or_default();
        let flushed: u64 = note.trim_start_matches('0').parse().unwrap_or(0);
        let file = std::fs::OpenOptions::new().write(true).open(&log).expect("an append-only file");
        let written = file.metadata().expect("a length").len();
        if !log.to_string_lossy().ends_with(".base.aof") {
            file.set_len(flushed.min(written)).expect("a file that can be cut");
            gone += written.saturating_sub(flushed);
        }
    }
    gone
}

fn logs(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(logs(&path));
        } else if path.extension().is_some_and(|e| e == "aof") {
            found.push(path);
        }
    }
    assert!(!dir.ends_with("appendonlydir") || !found.is_empty(), "no append-only file in {}", dir.display());
    found
}
