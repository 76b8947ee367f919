//! Instructions of the three paths that every task takes, counted by callgrind: in the service's store, which puts calls
//! together and reads answers, and in Redis, which runs the scripts. A busy machine changes nothing about them.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use duepost::{
    domain::{
        id::{QueueName, Uid, WebhookId},
        payload::Payload,
        queue::Settings,
        round::{Progress, Verdict},
        secret::Secret,
        task::{NewTask, TaskOptions, When},
        time::UnixMs,
        webhook::Webhook,
    },
    store::{Change, ClaimKind, Clock, HookChange, Promise, Seal, Settlement, Store, StoreConfig, Visit},
    telemetry::Metrics,
};
use futures_util::future::join_all;
use tempfile::TempDir;

use crate::rows::PAYLOAD;

/// Tasks that share a call.
const BATCH: usize = 64;
/// Each path is walked with so many tasks and with twice as many; the difference is what they cost.
const TASKS: u64 = 1280;
const PATHS: [&str; 3] = ["enqueue", "visit", "settle"];

/// Takes so many tasks through the store, up to this path.
pub fn walk(redis: &str, path: &str, tasks: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = StoreConfig {
            servers: redis.to_owned().into(),
            prefix: "dp".to_owned(),
            auto_create: true,
            lease_grace: Duration::ZERO,
            promise: Promise::default(),
            seal: Seal::default(),
        };
        let store = Store::new(config, Arc::new(Clock::default()), Arc::new(Metrics::new(10))).expect("a URL of Redis");
        let queue = QueueName::parse("bench").expect("a name");
        store.create_queue(&queue, &Settings::default()).await.expect("Redis answers");
        // claims of consumers end otherwise: their records are read for the answer
        let change = || Change { hooks: vec![HookChange::Set(Box::new(webhook()))], ..Change::default() };
        store.change(&queue, false, |_| Ok::<_, ()>(change())).await.expect("Redis answers");
        let rounds = usize::try_from(tasks).expect("few") / BATCH;
        for _ in 0..rounds {
            let new = || NewTask {
                queue: queue.clone(),
                id: None,
                uid: Uid(uuid::Uuid::now_v7()),
                when: When::After(Duration::ZERO),
                expires: None,
                options: TaskOptions::default(),
                payload: Payload::new(PAYLOAD.into(), 1 << 20).expect("small"),
            };
            let enqueued = join_all((0..BATCH).map(|_| store.enqueue(new()))).await;
            assert!(enqueued.iter().all(Result::is_ok));
        }
        if path == PATHS[0] {
            return;
        }
        for _ in 0..rounds {
            let visit = Visit { tasks: BATCH, bytes: 1 << 20, lease: Duration::from_secs(60), kind: ClaimKind::Push };
            let visited = store.visit(&queue, visit).await.expect("Redis answers");
            assert_eq!(visited.claims.len(), BATCH);
            if path == PATHS[1] {
                continue;
            }
            let done =
                |lease| Settlement { progress: Some(Progress::default()), ..Settlement::new(lease, Verdict::Done) };
            let settled = join_all(visited.claims.into_iter().map(|claim| store.settle(done(claim.lease)))).await;
            assert!(settled.iter().all(Result::is_ok));
        }
    });
}

/// Nobody calls it, but with it workers may claim.
fn webhook() -> Webhook {
    Webhook {
        id: WebhookId::parse("sink").expect("an id"),
        url: "https://example.com/".parse().expect("a URL"),
        enabled: true,
        description: None,
        headers: Vec::new(),
        timeout: None,
        max_in_flight: None,
        created_at: UnixMs(0),
        secret: Secret::from_bytes(&[7; 32]).expect("a secret"),
        previous_secret: None,
        disabled_reason: None,
    }
}

/// Instructions a task of each path, in the store and in Redis. Nothing where there is no valgrind.
pub fn measure() -> Vec<(String, u64)> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("no instruction counts: valgrind is missing");
        return Vec::new();
    }
    let mut counts = Vec::new();
    for (what, in_redis) in [("store", false), ("Redis", true)] {
        let mut walked = 0;
        for path in PATHS {
            let each = (count(path, 2 * TASKS, in_redis) - count(path, TASKS, in_redis)) / TASKS;
            counts.push((format!("{path}, {what}"), each - walked)); // a walk goes through the paths before it too
            walked = each;
        }
    }
    counts
}

/// Instructions of one walk, of the walker or of Redis.
fn count(path: &str, tasks: u64, in_redis: bool) -> u64 {
    let dir = TempDir::with_prefix("duepost-counts-").expect("a temporary directory");
    let (socket, out) = (dir.path().join("redis.sock"), dir.path().join("callgrind.out"));
    let under = |program: &std::path::Path, counted: bool| {
        if !counted {
            return Command::new(program);
        }
        let mut command = Command::new("valgrind");
        command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display())).arg(program);
        command
    };
    let quiet = |mut command: Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be executed")
    };
    let mut command = under(std::path::Path::new("redis-server"), in_redis);
    command.args(["--port", "0", "--save", "", "--hz", "1", "--unixsocket"]).arg(&socket).current_dir(dir.path());
    let mut redis = quiet(command);
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let own = std::env::current_exe().expect("a path");
    let mut command = under(&own, !in_redis);
    command.args(["paths", &format!("unix://{}", socket.display()), path, &tasks.to_string()]);
    assert!(quiet(command).wait().expect("it ends").success(), "the walk along {path} ends well");
    end(&mut redis);
    let text = std::fs::read_to_string(&out).expect("callgrind wrote what it counted");
    let total = text.lines().find_map(|l| l.strip_prefix("totals: ").or_else(|| l.strip_prefix("summary: ")));
    total.and_then(|n| n.trim().parse().ok()).expect("a total")
}

fn end(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = child.wait();
}
