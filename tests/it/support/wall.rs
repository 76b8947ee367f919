//! A wall clock that a test moves for chosen processes, by a shim that is preloaded into them (Linux). The monotonic
//! clock is never moved.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, process::Command};

use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/shim/clock.c");

/// Processes started with [`Self::env`] see the machine's clock plus this one's offset, from now on and as it changes.
pub struct WallClock {
    dir: TempDir,
    offset: File,
}

impl WallClock {
    /// The machine's own time, until it is shifted.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("duepost-clock-").tempdir().expect("a temporary directory");
        let library = library(&dir);
        let built = Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(SOURCE).output();
        let built = built.expect("cc can be executed");
        assert!(built.status.success(), "{SOURCE}: {}", String::from_utf8_lossy(&built.stderr));
        let offset = File::create(dir.path().join("offset")).expect("a file in it");
        let it = Self { dir, offset };
        it.shift_to(0);
        it
    }

    /// From now on the clock is so many milliseconds ahead of the machine's, or behind it if negative.
    pub fn shift_to(&self, offset_ms: i64) {
        self.offset.write_all_at(&offset_ms.to_ne_bytes(), 0).expect("the file can be written");
    }

    /// The environment of a process that is to live by this clock.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let text = |path: PathBuf| path.into_os_string().into_string().expect("a path in UTF-8");
        [("LD_PRELOAD", text(library(&self.dir))), ("CLOCK_SHIM", text(self.dir.path().join("offset")))]
    }
}

fn library(dir: &TempDir) -> PathBuf {
    dir.path().join("clock.so")
}
