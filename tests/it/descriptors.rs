//! File descriptors: each client and each call needs one. What `/proc` and `prlimit` show.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use crate::support::{Receiver, RedisServer, Service, World, eventually, ms, secs, world::figure};

/// The soft limit is often 1024.
#[tokio::test]
async fn the_service_takes_all_the_file_descriptors_that_it_may_have() {
    let redis = RedisServer::start().await;
    let it = Service::builder(&redis).descriptors(100).start().await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", it.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let [soft, hard] = [3, 4].map(|n| files.split_whitespace().nth(n));
    assert!(soft == hard && soft != Some("100"), "{files}");
}

/// A lack of them is ours and not the receiver's.
#[tokio::test]
async fn a_call_waits_for_a_file_descriptor() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.schedule("q", json!({"id": "first", "payload": 0})).await;
    it.in_state("q", "first", "completed").await;
    let other = Receiver::start().await; // who needs a connection of its own
    it.api.post("/queues/r/webhooks", json!({"id": "main", "url": other.url("/hook")})).await.expect(201);
    let pid = Pid::from_raw(i32::try_from(it.service.pid()).unwrap());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap().current;

    let before = limit(Some(1)); // those that are open stay
    it.schedule("r", json!({"id": "second", "payload": 0})).await;
    eventually(secs(5), async || it.task("r", "second").await["state"] == "active").await;
    tokio::time::sleep(ms(200)).await; // long enough for a failure to be on record
    limit(before);

    it.in_state("r", "second", "completed").await;
    assert_eq!(figure(&it.stats("r").await, "failed_attempts_total"), 0);
}
