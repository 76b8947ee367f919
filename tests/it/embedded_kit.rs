//! What the stories about the private Redis stand on: data directories, and processes that hold one.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use deadpool_redis::redis::{Client, FromRedisValue, RedisResult, cmd};
use duepost::store::embedded::{AppendFsync, Embedded, EmbeddedConfig, EmbeddedError};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

/// Set for a process that this test binary starts from itself: the directory to hold.
pub const HOLD: &str = "HOLD_DATA_DIR";
const SERVER_BIN: &str = "DUEPOST_REDIS_SERVER_BIN";

/// A data directory of a test. Whatever still runs on it at the end is killed.
pub struct Place {
    pub root: TempDir,
    pub data: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().canonicalize().unwrap().join("data");
        Self { root, data }
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    pub fn run_json(&self) -> PathBuf {
        self.data.join("run.json")
    }

    pub fn recorded_pid(&self) -> Option<u32> {
        let run: serde_json::Value = serde_json::from_slice(&fs::read(self.run_json()).ok()?).ok()?;
        run["pid"].as_u64()?.try_into().ok()
    }

    pub fn config(&self) -> EmbeddedConfig {
        EmbeddedConfig {
            data_dir: self.data.clone(),
            appendfsync: AppendFsync::EverySec,
            server_bin: None,
            launcher: launcher(),
        }
    }

    pub async fn start(&self) -> Result<Embedded, EmbeddedError> {
        Embedded::start(self.config()).await
    }

    pub async fn start_with(&self, server: PathBuf) -> Result<Embedded, EmbeddedError> {
        Embedded::start(EmbeddedConfig { server_bin: Some(server), ..self.config() }).await
    }

    /// An executable that answers `--version` as the real server does, unless `body` does it.
    /// Another process writes it: a file that some thread of ours has open for writing cannot be run.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.root.path().join(name);
        let mut cat = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(cat.stdin.take().unwrap(), "#!/bin/sh\n{body}").unwrap();
        assert!(cat.wait().unwrap().success());
        path
    }

    /// As on a system that has no parent death signal: all the same, and then the signal is taken back.
    pub fn server_that_outlives_its_parent(&self) -> PathBuf {
        let body =
            "[ \"$(uname)\" = Linux ] || exec redis-server \"$@\"; exec setpriv --pdeathsig clear redis-server \"$@\"";
        self.script("server", body)
    }

    pub fn write_append_only_file(&self, keys: usize, tail: &str) {
        let dir = self.data.join("redis");
        fs::create_dir_all(&dir).unwrap();
        let mut text = String::new();
        for n in 0..keys {
            let key = format!("key:{n:08}");
            text.push_str(&format!("*3\r\n$3\r\nSET\r\n$12\r\n{key}\r\n$5\r\nvalue\r\n"));
        }
        fs::write(dir.join("appendonly.aof"), text + tail).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(left) = self.recorded_pid().and_then(pid) {
            let _ = kill_process(left, Signal::KILL);
        }
    }
}

/// A process that holds a private Redis until it is killed, or until the test process is gone.
pub struct Parent {
    pub process: Child,
    pub server: u32,
    pub url: String,
}

impl Parent {
    pub fn holding(place: &Place, server: Option<PathBuf>) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "embedded::a_killed_parent_takes_its_server_along", "--nocapture", "--test-threads=1"])
            .env(HOLD, place.data())
            .envs(server.map(|server| (SERVER_BIN, server)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let held = lines.find_map(|line| line.split_once("held ").map(|(_, rest)| rest.to_owned()));
        let Some((server, url)) = held.as_deref().and_then(|held| held.split_once(' ')) else {
            panic!("the parent did not start: {:?}", process.wait());
        };
        Self { server: server.parse().unwrap(), url: url.to_owned(), process }
    }

    pub fn ask<T: FromRedisValue>(&self, line: &str) -> T {
        ask(&self.url, line).unwrap()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let socket = self.url.strip_prefix("redis+unix://").unwrap_or("?");
        let command_line = fs::read(format!("/proc/{}/cmdline", self.server)).unwrap_or_default();
        if String::from_utf8_lossy(&command_line).contains(socket) {
            signal(self.server, Signal::KILL); // the test failed, or ours to end anyway
        }
    }
}

pub async fn hold(data_dir: PathBuf) {
    let it = Embedded::start(EmbeddedConfig {
        data_dir,
        appendfsync: AppendFsync::Always, // what is answered must survive kill -9 at any moment
        server_bin: env::var_os(SERVER_BIN).map(PathBuf::from),
        launcher: launcher(),
    })
    .await
    .unwrap();
    println!("held {} {}", it.pid(), it.url());
    let _ = std::io::stdin().read(&mut [0]);
    it.stop().await;
}

pub fn launcher() -> PathBuf {
    env!("CARGO_BIN_EXE_duepost").into()
}

pub fn ask<T: FromRedisValue>(url: &str, line: &str) -> RedisResult<T> {
    let mut connection = Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(&mut connection)
}

pub fn pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(pid.try_into().unwrap())
}

pub fn signal(to: u32, signal: Signal) {
    kill_process(pid(to).unwrap(), signal).unwrap();
}

/// A process that has ended but whom no one has reaped counts as dead.
pub fn is_alive(process: u32) -> bool {
    let zombie = || fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    test_kill_process(pid(process).unwrap()).is_ok() && !zombie()
}

pub async fn gone(process: u32) {
    eventually("the process is gone", || (!is_alive(process)).then_some(())).await;
}

pub async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
