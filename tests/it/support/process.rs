//! Child processes that do not outlive the test, however the test ends.

use std::{
    ffi::OsStr,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// A command whose process the kernel kills when the thread that spawned it ends (`setpriv --pdeathsig`). Where
/// setpriv is missing it is the plain command: then only a test killed with -9 leaves something behind.
///
/// Spawn it from the test's own thread, never from `spawn_blocking`: those threads end when idle.
pub fn tied(program: impl AsRef<OsStr>) -> Command {
    if !can_tie() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn can_tie() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let probe = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        probe.is_ok_and(|status| status.success())
    })
}

/// The first of these programs that is on the PATH.
pub fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|file| is_file(file)))
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file())
}

/// Sends a signal; a process that has ended already is fine.
pub fn signal(child: &Child, signal: Signal) {
    let _ = kill_process(Pid::from_child(child), signal);
}

/// Kills with -9 and waits until the process is gone.
pub fn kill9(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Waits for the end of the process; `None` when it still runs at the deadline.
pub async fn wait_exit(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a process wrote so far to one of its streams.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    /// Collects a stream in a thread of its own, so that the writer never blocks on a full pipe.
    pub fn collect(mut stream: impl Read + Send + 'static) -> Self {
        let output = Self::default();
        let into = output.clone();
        std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                into.push(&chunk[..n]);
            }
        });
        output
    }

    pub fn push(&self, bytes: &[u8]) {
        self.0.lock().expect("no panic under this lock").extend_from_slice(bytes);
    }

    /// Waits for the end of the stream; not for long, as a grandchild may hold it.
    pub async fn whole(&self) {
        for _ in 0..200 {
            if Arc::strong_count(&self.0) == 1 {
                return; // the thread has let go of its share
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic under this lock")).into_owned()
    }

    /// The last lines, for failure messages.
    pub fn tail(&self, lines: usize) -> String {
        let text = self.text();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}
