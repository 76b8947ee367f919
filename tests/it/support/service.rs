//! The real binary as a child process.

use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::{
    client::Client,
    cluster::Cluster,
    process::{self, Output},
    redis::RedisServer,
    sentinel::{self, Sentinels},
    wall::WallClock,
};

/// How long a start may take on a busy machine.
const START: Duration = Duration::from_secs(20);

/// The binary under test: the one that cargo built beside the tests, or `DUEPOST_TEST_BIN`, as a release build.
fn binary() -> OsString {
    std::env::var_os("DUEPOST_TEST_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_duepost").into())
}

/// What the service prints on stdout, once it is ready, before its address.
const READY: &str = "listening on http://";

pub struct Service {
    child: Child,
    address: String,
    stdout: Output,
    stderr: Output,
    _cwd: TempDir,
}

/// A start in the making.
pub struct Builder {
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    /// A soft limit of file descriptors.
    descriptors: Option<u32>,
}

/// How a start failed.
#[derive(Debug)]
pub struct FailedStart {
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

impl Service {
    /// `duepost serve` on this Redis, on a free port, with loopback receivers allowed.
    #[track_caller]
    pub fn serve(redis: &RedisServer) -> impl Future<Output = Self> {
        Self::builder(redis).start()
    }

    /// The same, with more flags and environment.
    pub fn builder(redis: &RedisServer) -> Builder {
        Self::builder_at(&redis.url())
    }

    /// The same on whatever answers as Redis at this URL.
    pub fn builder_at(redis_url: &str) -> Builder {
        Self::builder_on(&["--redis", redis_url])
    }

    /// The same on whatever these flags say.
    pub fn builder_on(flags: &[&str]) -> Builder {
        let args = ["serve", "--listen", "127.0.0.1:0", "--allow-private-targets"];
        Builder::bare(&[&args, flags].concat())
    }

    pub fn on_cluster(cluster: &Cluster) -> Builder {
        Self::builder_on(&["--redis-cluster", &cluster.seeds()])
    }

    pub fn on_sentinels(sentinels: &Sentinels) -> Builder {
        Self::builder_on(&["--redis-sentinel", &sentinels.list(), "--redis-sentinel-master", sentinel::MASTER])
    }

    /// `duepost dev` with its private Redis in this directory.
    #[track_caller]
    pub fn dev(data_dir: &Path) -> impl Future<Output = Self> {
        Builder::bare(&["dev", "--listen", "127.0.0.1:0"]).flag("--data-dir", data_dir).start()
    }

    /// A client of this process.
    pub fn client(&self) -> Client {
        Client::new(&self.address)
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }

    pub fn kill9(&mut self) {
        process::kill9(&mut self.child);
    }

    pub fn sigterm(&self) {
        process::signal(&self.child, Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub fn wait_exit(&mut self, deadline: Duration) -> impl Future<Output = ExitStatus> {
        let from = std::panic::Location::caller();
        async move {
            let status = process::wait_exit(&mut self.child, deadline).await;
            tokio::join!(self.stdout.whole(), self.stderr.whole());
            status.unwrap_or_else(|| panic!("{from}: the service still runs after {deadline:?}"))
        }
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- the last lines of duepost on {}\n{}\n---", self.address, self.stderr.tail(40));
        }
    }
}

impl Builder {
    /// `duepost` with these arguments alone.
    pub fn bare(args: &[&str]) -> Self {
        Self { args: args.iter().map(OsString::from).collect(), env: Vec::new(), descriptors: None }
    }

    /// One more flag with its value.
    pub fn flag(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.args.push(name.into());
        self.args.push(value.as_ref().into());
        self
    }

    /// One more flag without a value.
    pub fn switch(mut self, name: &str) -> Self {
        self.args.push(name.into());
        self
    }

    /// Without this switch, which the builder gave by itself.
    pub fn without(mut self, name: &str) -> Self {
        self.args.retain(|arg| arg != name);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With so low a soft limit of file descriptors.
    pub fn descriptors(mut self, soft: u32) -> Self {
        self.descriptors = Some(soft);
        self
    }

    /// By this clock.
    pub fn by(mut self, clock: &WallClock) -> Self {
        self.env.extend(clock.env().map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// Starts and waits until the service is ready; panics with what it wrote when it is not.
    #[track_caller]
    pub fn start(self) -> impl Future<Output = Service> {
        let from = std::panic::Location::caller();
        async move {
            let started = self.try_start(START).await;
            started.unwrap_or_else(|failed| panic!("{from}: the service does not start: {failed:#?}"))
        }
    }

    /// Starts and waits until the service is ready, has ended, or the deadline is over (then it is killed).
    pub async fn try_start(self, deadline: Duration) -> Result<Service, FailedStart> {
        let cwd = tempfile::Builder::new().prefix("duepost-cwd-").tempdir().expect("a temporary directory");
        let mut command = match self.descriptors {
            Some(soft) => {
                let mut command = clean(process::tied("sh"));
                command.args(["-c", "ulimit -S -n $0 && exec \"$@\"", &soft.to_string()]).arg(binary());
                command
            }
            None => command(),
        };
        let mut child = command
            .args(&self.args)
            .envs(self.env)
            .current_dir(cwd.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary can be executed");
        let stderr = Output::collect(child.stderr.take().expect("piped"));
        let (stdout, ready) = watch_for_address(child.stdout.take().expect("piped"));
        match tokio::time::timeout(deadline, ready).await {
            Ok(Ok(address)) => Ok(Service { child, address, stdout, stderr, _cwd: cwd }),
            Ok(Err(_)) | Err(_) => {
                let status = process::wait_exit(&mut child, Duration::from_millis(500)).await;
                process::kill9(&mut child);
                tokio::join!(stdout.whole(), stderr.whole());
                Err(FailedStart { status, stdout: stdout.text(), stderr: stderr.text() })
            }
        }
    }
}

/// Collects stdout and gives the address from the line that says so; an error when stdout ends without it.
fn watch_for_address(stdout: std::process::ChildStdout) -> (Output, oneshot::Receiver<String>) {
    let (output, (tell, ready)) = (Output::default(), oneshot::channel());
    let into = output.clone();
    std::thread::spawn(move || {
        let mut tell = Some(tell);
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while let Ok(1..) = lines.read_until(b'\n', &mut line) {
            into.push(&line);
            let address = String::from_utf8_lossy(&line).trim().strip_prefix(READY).map(str::to_owned);
            if let (Some(address), true) = (address, tell.is_some()) {
                let _ = tell.take().expect("just seen").send(address);
            }
            line.clear();
        }
    });
    (output, ready)
}

fn command() -> std::process::Command {
    clean(process::tied(binary()))
}

/// No setting of the tests' own environment gets to it.
fn clean(mut command: std::process::Command) -> std::process::Command {
    for (name, _) in std::env::vars_os() {
        if ["DUEPOST_", "OTEL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `duepost` with these arguments to its end, as for `openapi` or `config show`.
pub fn run(args: &[&str]) -> std::process::Output {
    command().args(args).stdin(Stdio::null()).output().expect("the binary can be executed")
}
