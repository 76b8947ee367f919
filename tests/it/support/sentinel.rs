//! Three Sentinels over a primary and two replicas, all of the test's own, on loopback, gone with the test.

use std::{
    process::{Child, Stdio},
    time::Duration,
};

use deadpool_redis::redis;
use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    process,
    redis::{RedisServer, free_port, server_program},
    secs,
    wait::{eventually, until},
};

/// What the Sentinels call the primary.
pub const MASTER: &str = "mymaster";
/// A primary that does not answer for so long is down for a Sentinel.
pub const DOWN_AFTER: Duration = Duration::from_millis(1000);
/// How long a failover may take on a busy machine.
const FAILOVER: Duration = Duration::from_secs(60);

pub struct Sentinels {
    /// At start 0 is the primary.
    pub nodes: Vec<RedisServer>,
    pub sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    child: Option<Child>,
    port: u16,
    password: Option<String>,
    dir: TempDir,
}

impl Sentinels {
    /// With append-only files flushed every second.
    pub async fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "everysec"], None, None).await
    }

    /// With these options for the nodes, a password for them, and one for the Sentinels.
    pub async fn start_with(options: &[&str], password: Option<&str>, sentinel_password: Option<&str>) -> Self {
        let mut all = vec!["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        all.extend(options);
        if let Some(password) = password {
            all.extend(["--requirepass", password, "--masterauth", password]);
        }
        let mut nodes = vec![RedisServer::start_with(&all).await];
        let port = nodes[0].port().to_string();
        all.extend(["--replicaof", "127.0.0.1", &port]);
        for _ in 0..2 {
            nodes.push(RedisServer::start_with(&all).await);
        }
        let sentinels = (0..3).map(|_| Sentinel::start(nodes[0].port(), password, sentinel_password)).collect();
        let all = Self { nodes, sentinels };
        all.settled().await;
        all
    }

    /// Waits until every Sentinel knows the other two and all replicas and can act, and all nodes but one are replicas in step.
    pub async fn settled(&self) {
        for sentinel in self.sentinels.iter().filter(|s| s.child.is_some()) {
            eventually(FAILOVER, async || {
                let Some(info) = sentinel.ask::<String>(&["INFO", "sentinel"]).await else { return false };
                let Some(line) = info.lines().find(|l| l.starts_with("master0:")) else { return false };
                line.contains("status=ok") && line.contains("slaves=2") && line.contains("sentinels=3")
            })
            .await;
        }
        // A primary of before comes back as one, until a Sentinel tells it; only then it has what the others have.
        eventually(FAILOVER, async || {
            let mut primaries = 0;
            for node in &self.nodes {
                let info = node.ask("INFO replication").await.unwrap_or_default();
                let primary = info.contains("role:master");
                primaries += usize::from(primary);
                let in_step = info.contains("master_link_status:up") && info.contains("master_sync_in_progress:0");
                if !primary && !in_step {
                    return false;
                }
            }
            primaries == 1
        })
        .await;
    }

    /// For `--redis-sentinel`.
    pub fn list(&self) -> String {
        let list: Vec<String> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
        list.join(",")
    }

    /// Who is the primary by the word of the Sentinels and its own; waits while there is none.
    pub async fn primary(&self) -> usize {
        until(FAILOVER, async || {
            for sentinel in &self.sentinels {
                let asked = sentinel.ask::<Vec<String>>(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await;
                let Some(port) = asked.and_then(|a| a.get(1)?.parse::<u16>().ok()) else { continue };
                let at = self.nodes.iter().position(|node| node.port() == port).expect("one of ours");
                let info = self.nodes[at].ask("INFO replication").await.unwrap_or_default();
                return info.contains("role:master").then_some(at);
            }
            None
        })
        .await
    }

    /// Waits until another node than this one is the primary, and gives it.
    pub async fn primary_other_than(&self, old: usize) -> usize {
        until(FAILOVER, async || Some(self.primary().await).filter(|now| *now != old)).await
    }

    /// Another node takes over in order (`SENTINEL FAILOVER`); gives it. On a busy machine a Sentinel may give up, so it
    /// is told again until it has.
    pub async fn fail_over(&self) -> usize {
        let old = self.primary().await;
        let told = async {
            loop {
                let _ = self.sentinels[0].ask::<String>(&["SENTINEL", "FAILOVER", MASTER]).await; // INPROG is fine
                tokio::time::sleep(secs(1)).await;
            }
        };
        tokio::select! {
            now = self.primary_other_than(old) => now,
            () = told => unreachable!("it tells for ever"),
        }
    }
}

impl Sentinel {
    fn start(master: u16, password: Option<&str>, own: Option<&str>) -> Self {
        let dir = tempfile::Builder::new().prefix("duepost-sentinel-").tempdir().expect("a temporary directory");
        let port = free_port();
        let mut lines = vec![
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", dir.path().display()),
            "logfile sentinel.log".to_owned(),
            format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"),
            format!("sentinel down-after-milliseconds {MASTER} {}", DOWN_AFTER.as_millis()),
            format!("sentinel failover-timeout {MASTER} 6000"),
        ];
        lines.extend(password.map(|password| format!("sentinel auth-pass {MASTER} {password}")));
        lines.extend(own.map(|own| format!("requirepass {own}\nsentinel sentinel-pass {own}")));
        std::fs::write(dir.path().join("sentinel.conf"), lines.join("\n") + "\n").expect("the directory is there");
        let mut sentinel = Self { child: None, port, password: own.map(str::to_owned), dir };
        sentinel.restart();
        sentinel
    }

    pub fn restart(&mut self) {
        self.kill9();
        let spawned = process::tied(server_program())
            .arg(self.dir.path().join("sentinel.conf"))
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(spawned.expect("redis-server can be executed"));
    }

    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::kill9(&mut child);
        }
    }

    pub fn freeze(&self) {
        self.child.iter().for_each(|child| process::signal(child, Signal::STOP));
    }

    pub fn thaw(&self) {
        self.child.iter().for_each(|child| process::signal(child, Signal::CONT));
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// One command; `None` if there is no answer, or an error.
    pub async fn ask<T: redis::FromRedisValue>(&self, args: &[&str]) -> Option<T> {
        let auth = self.password.as_ref().map(|p| format!(":{p}@")).unwrap_or_default();
        let client = redis::Client::open(format!("redis://{auth}127.0.0.1:{}", self.port)).expect("a valid URL");
        let asked = async {
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            redis::cmd(args[0]).arg(&args[1..]).query_async(&mut connection).await.ok()
        };
        tokio::time::timeout(secs(1), asked).await.ok()?
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill9();
    }
}
