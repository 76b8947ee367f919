//! The processes that a measurement is made of, and the CPU that each takes.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// One of our threads, to those who ask what it took.
#[derive(Clone)]
pub struct Thread(PathBuf);

impl Thread {
    /// The calling one.
    pub fn this() -> Self {
        Self(Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap_or_default()))
    }

    /// CPU that it took so far.
    pub fn cpu(&self) -> Duration {
        schedstat(&self.0.join("schedstat"))
    }
}

/// CPU that the threads of a process took so far.
fn cpu_of_process(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().filter_map(Result::ok);
    threads.map(|thread| schedstat(&thread.path().join("schedstat"))).sum()
}

fn schedstat(file: &Path) -> Duration {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// A child that prints `listening on http://<address>` once it is ready.
pub struct Part {
    child: Child,
    pub address: SocketAddr,
    /// From its start to that line.
    pub start: Duration,
}

impl Part {
    pub fn start(mut command: Command) -> Self {
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it can be executed");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let address = line.trim().strip_prefix("listening on http://")?;
            address.parse().ok()
        });
        let address = address.expect("it says where it listens");
        let start = began.elapsed();
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, start }
    }

    /// One of our own roles in a process of its own.
    pub fn own(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(arguments);
        Self::start(command)
    }

    pub fn cpu(&self) -> Duration {
        cpu_of_process(self.child.id())
    }

    /// Resident memory in KiB.
    pub fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The service with a private Redis of its own.
pub struct Service {
    pub part: Part,
    dir: TempDir,
}

impl Service {
    /// `memory` or `disk`.
    pub fn start(durability: &str) -> Self {
        Self::start_in(TempDir::with_prefix("duepost-bench-").expect("a temporary directory"), durability)
    }

    pub fn start_in(dir: TempDir, durability: &str) -> Self {
        let mut command = serve();
        command.args(["--durability", durability, "--data-dir"]).arg(dir.path()).current_dir(dir.path());
        Self { part: Part::start(command), dir }
    }

    /// One more process on this one's Redis.
    pub fn another(&self) -> Part {
        let mut command = serve();
        command.arg("--redis").arg(self.redis_url()).current_dir(self.dir.path());
        Part::start(command)
    }

    pub fn redis_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn address(&self) -> SocketAddr {
        self.part.address
    }

    /// One command of Redis, given as one line; the answer's bytes.
    pub fn redis(&self, command: &str) -> String {
        let mut socket = UnixStream::connect(self.socket()).expect("Redis listens");
        socket.write_all(format!("{command}\r\n").as_bytes()).expect("Redis reads");
        let (mut answer, mut chunk) = (Vec::new(), [0; 65_536]);
        loop {
            let n = socket.read(&mut chunk).expect("Redis answers");
            answer.extend_from_slice(&chunk[..n]);
            let Some(end) = answer.iter().position(|b| *b == b'\n') else { continue };
            let head = String::from_utf8_lossy(&answer[..end]).trim().to_owned();
            let length = head.strip_prefix('$').and_then(|n| n.parse::<usize>().ok());
            if length.is_none_or(|length| answer.len() >= end + 1 + length + 2) {
                return String::from_utf8_lossy(&answer[end + 1..]).into_owned() + &head;
            }
        }
    }

    /// The same command again and again, each after the answer of the one before and a pause; the answer is `+OK`.
    pub fn redis_many(&self, line: &str, times: u64, pause: Duration) {
        let mut socket = UnixStream::connect(self.socket()).expect("Redis listens");
        let mut answer = [0; 5];
        for _ in 0..times {
            socket.write_all(line.as_bytes()).expect("Redis reads");
            socket.read_exact(&mut answer).expect("Redis answers");
            assert_eq!(&answer, b"+OK\r\n");
            std::thread::sleep(pause);
        }
    }

    /// A number of Redis's INFO.
    pub fn info(&self, section: &str, field: &str) -> f64 {
        let text = self.redis(&format!("INFO {section}"));
        let line = text.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':').map(str::to_owned));
        line.and_then(|n| n.trim().parse().ok()).unwrap_or(0.0)
    }

    /// CPU that Redis took so far.
    pub fn redis_cpu(&self) -> Duration {
        Duration::from_secs_f64(self.info("cpu", "used_cpu_user") + self.info("cpu", "used_cpu_sys"))
    }

    /// Calls that the service sent to Redis so far; what a script does inside is not counted.
    pub fn redis_calls(&self) -> u64 {
        let text = self.redis("INFO commandstats");
        let of = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            ["evalsha", "eval", "ping"].contains(&name).then(|| rest.split(',').next()?.parse::<u64>().ok())?
        };
        text.lines().filter_map(of).sum()
    }

    pub fn call(&self, method: &str, path: &str, body: &str) -> String {
        crate::http::call(self.address(), method, path, body)
    }
}

fn serve() -> Command {
    let mut command = Command::new(binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--allow-private-targets"]).stderr(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DUEPOST_")) {
        command.env_remove(name);
    }
    command.env_remove("TOKIO_WORKER_THREADS"); // as many as the cores that it may use
    command
}

/// The service beside us, or the one of `DUEPOST_BENCH_BIN`.
#[allow(clippy::disallowed_methods)] // a bench has no Config
fn binary() -> PathBuf {
    std::env::var_os("DUEPOST_BENCH_BIN").map_or_else(|| env!("CARGO_BIN_EXE_duepost").into(), PathBuf::from)
}
