//! A redis-server of the test's own: own port, own directory, gone with the test.

use std::{
    path::Path,
    process::{Child, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use deadpool_redis::redis::{self, FromRedisValue};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{process, wall::WallClock};

/// How long a start may take, also on a busy machine and with a log to load.
const START: Duration = Duration::from_secs(10);

/// How long an answer to a test's own command may take: also those that block, or on a busy machine.
const ANSWER: Duration = Duration::from_secs(20);

/// Where Redis 7 keeps its append-only files.
const DATA: &str = "appendonlydir";

pub struct RedisServer {
    child: Child,
    port: u16,
    options: Vec<String>,
    env: Vec<(&'static str, String)>,
    dir: TempDir,
}

impl RedisServer {
    /// With an append-only file that is written before each answer and never flushed: what was answered survives `kill9`.
    /// (With `everysec` a write waits up to two seconds for a flush under way: on a slow disk `kill9` would lose some.)
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "no"]).await
    }

    /// With these options beside `--port`, `--bind` and `--dir`.
    pub async fn start_with(options: &[&str]) -> Self {
        Self::start_in(options, Vec::new()).await
    }

    /// A replica of this one, and connected to it.
    pub async fn replica(&self) -> Self {
        let port = self.port.to_string();
        let options = ["--appendonly", "yes", "--appendfsync", "always", "--replicaof", "127.0.0.1", &port];
        let replica = Self::start_with(&options).await;
        super::eventually(START, async || self.replicas_online().await > 0).await;
        replica
    }

    /// Replicas that this one has.
    pub async fn replicas_online(&self) -> usize {
        let info: String = self.command(&["INFO", "replication"]).await;
        info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online")).count()
    }

    /// With an append-only file, and by this clock.
    pub async fn start_by(clock: &WallClock) -> Self {
        Self::start_in(&["--appendonly", "yes"], clock.env().to_vec()).await
    }

    /// With this environment too.
    pub async fn start_in(options: &[&str], env: Vec<(&'static str, String)>) -> Self {
        let options: Vec<String> = options.iter().map(|&o| o.to_owned()).collect();
        for _ in 0..10 {
            let dir = tempfile::Builder::new().prefix("duepost-redis-").tempdir().expect("a temporary directory");
            let port = free_port();
            let child = spawn(&dir, port, &options, &env);
            let mut server = Self { child, port, options: options.clone(), env: env.clone(), dir };
            if server.ready().await {
                return server;
            }
            eprintln!("redis-server ended at once on port {port}: {}", server.log());
        }
        panic!("redis-server does not start")
    }

    pub fn url(&self) -> String {
        let auth = self.password().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{auth}127.0.0.1:{}", self.port)
    }

    /// What `--requirepass` among the options says.
    fn password(&self) -> Option<&str> {
        let at = self.options.iter().position(|option| option == "--requirepass")?;
        self.options.get(at + 1).map(String::as_str)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }

    /// Kills the server with -9. Its directory stays for [`Self::restart`].
    pub fn kill9(&mut self) {
        process::kill9(&mut self.child);
    }

    /// Ends the server in order (SIGTERM) and waits for it.
    pub async fn shutdown(&mut self) {
        process::signal(&self.child, Signal::TERM);
        if process::wait_exit(&mut self.child, START).await.is_none() {
            panic!("redis-server did not end within {START:?}");
        }
    }

    /// Stops the process (SIGSTOP): connections stay, nothing is answered.
    pub fn freeze(&self) {
        process::signal(&self.child, Signal::STOP);
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        process::signal(&self.child, Signal::CONT);
    }

    /// Starts the server again on the same port and directory; kills it first if it still runs.
    pub async fn restart(&mut self) {
        self.kill9();
        self.child = spawn(&self.dir, self.port, &self.options, &self.env);
        assert!(self.ready().await, "redis-server does not start again: {}", self.log());
    }

    /// A copy of the append-only files, as a backup would be.
    pub fn copy_data(&self) -> TempDir {
        let backup = tempfile::tempdir().expect("a temporary directory");
        copy_all(&self.dir.path().join(DATA), &backup.path().join(DATA));
        backup
    }

    /// Puts a copy in place of what is there; the server must not run.
    pub fn restore(&self, backup: &TempDir) {
        std::fs::remove_dir_all(self.dir.path().join(DATA)).expect("there is data");
        copy_all(&backup.path().join(DATA), &self.dir.path().join(DATA));
    }

    /// One command over a connection of its own.
    pub async fn command<T: FromRedisValue>(&self, args: &[&str]) -> T {
        let client = redis::Client::open(self.url()).expect("a valid URL");
        let patient =
            redis::AsyncConnectionConfig::new().set_connection_timeout(Some(ANSWER)).set_response_timeout(Some(ANSWER));
        let connected = client.get_multiplexed_async_connection_with_config(&patient).await;
        let mut connection = connected.expect("Redis answers");
        let mut command = redis::cmd(args[0]);
        command.arg(&args[1..]);
        command.query_async(&mut connection).await.unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// Commands since the start, those that scripts call included. Asking counts as one.
    pub async fn ops_processed(&self) -> u64 {
        let info = self.ask("INFO stats").await.expect("Redis answers");
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.expect("INFO has the figure").trim().parse().expect("a number")
    }

    /// What was done meanwhile, a line a command, each with its instant in s in front.
    pub async fn monitored(&self, meanwhile: impl Future<Output = ()>) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("Redis listens");
        stream.write_all(b"MONITOR\r\n").await.expect("Redis reads");
        stream.read_exact(&mut [0; 5]).await.expect("+OK");
        let mut seen = Vec::new();
        tokio::select! {
            end = stream.read_to_end(&mut seen) => panic!("Redis ended it: {end:?}"),
            () = meanwhile => {}
        }
        String::from_utf8_lossy(&seen).lines().filter(|line| line.contains('[')).map(str::to_owned).collect()
    }

    /// Calls that clients send in this span; the commands inside scripts are not counted.
    pub async fn calls_during(&self, span: Duration) -> usize {
        self.monitored(tokio::time::sleep(span)).await.iter().filter(|line| !line.contains(" lua]")).count()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts it again with more options.
    pub async fn restart_with(&mut self, more: &[&str]) {
        self.options.extend(more.iter().map(|&o| o.to_owned()));
        self.restart().await;
    }

    /// The same, and waits only until it says that it is loading.
    pub async fn restart_loading(&mut self, more: &[&str]) {
        self.kill9();
        self.options.extend(more.iter().map(|&o| o.to_owned()));
        self.child = spawn(&self.dir, self.port, &self.options, &self.env);
        super::eventually(START, async || self.ask("GET x").await.is_some_and(|a| a.starts_with("-LOADING"))).await;
    }

    /// Waits until a frozen server has something to read from somebody (Linux).
    pub async fn until_unread(&self, within: Duration) {
        let port = format!(":{:04X}", self.port);
        super::eventually(within, async || {
            let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
            table.lines().skip(1).any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                // local address, state (established), bytes that are not read
                words[1].ends_with(&port) && words[3] == "01" && !words[4].ends_with(":00000000")
            })
        })
        .await;
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default()
    }

    /// Waits for PONG; false when the process ended instead (its port was taken).
    async fn ready(&mut self) -> bool {
        let end = Instant::now() + START;
        loop {
            if let Some(answer) = self.ask("PING").await
                && answer.starts_with("+PONG")
            {
                return self.child.try_wait().expect("the child can be waited for").is_none();
            }
            if self.child.try_wait().expect("the child can be waited for").is_some() {
                return false;
            }
            assert!(Instant::now() < end, "redis-server is not ready within {START:?}: {}", self.log());
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// One inline command on a bare connection, as one command and no more; `None` without an answer within 2 s.
    pub async fn ask(&self, command: &str) -> Option<String> {
        tokio::time::timeout(Duration::from_secs(2), self.try_ask(command)).await.ok()?
    }

    async fn try_ask(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
        if let Some(password) = self.password() {
            stream.write_all(format!("AUTH {password}\r\n").as_bytes()).await.ok()?;
            stream.read_exact(&mut [0; 5]).await.ok()?; // +OK
        }
        stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
        let mut answer = vec![0; 64 * 1024];
        let n = stream.read(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer[..n]).into_owned())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory can be made");
    for file in std::fs::read_dir(from).expect("there is an append-only directory (Redis 7)") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a file can be copied");
    }
}

pub fn server_program() -> std::path::PathBuf {
    process::on_path(&["redis-server", "valkey-server"])
        .unwrap_or_else(|| panic!("the tests need redis-server: apt-get install redis-server (or brew install redis)"))
}

fn spawn(dir: &TempDir, port: u16, options: &[String], env: &[(&str, String)]) -> Child {
    process::tied(server_program())
        .current_dir(dir.path())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(dir.path())
        .args(["--logfile", "redis.log", "--save", "", "--daemonize", "no"])
        .args(options)
        .envs(env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server can be executed")
}

/// A port below the range that outgoing connections take theirs from, so that nobody takes it while the server is down.
pub fn free_port() -> u16 {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let seed = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(COUNT)).expect("below COUNT");
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (seed + step) % COUNT;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
