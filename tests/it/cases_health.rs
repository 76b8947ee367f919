//! C189: health says what is. Readiness falls with Redis and with a loop that is stuck; liveness never does.

use std::time::Instant;

use serde_json::json;

use crate::support::{World, eventually, secs};

/// The status of `/readyz`, asked in passing whether everything answers fast and the process says that it lives.
async fn readiness(it: &World) -> (u16, String) {
    let began = Instant::now();
    let ready = it.api.get("/readyz").await;
    let took = began.elapsed();
    assert!(took < secs(1), "/readyz took {took:?}: {}", ready.text());
    it.api.get("/livez").await.expect(200);
    (ready.status, ready.text())
}

#[track_caller]
fn becomes<'a>(it: &'a World, status: u16, word: &'a str, within: u64) -> impl Future<Output = ()> + 'a {
    eventually(secs(within), async move || {
        let (now, text) = readiness(it).await;
        now == status && text.contains(word)
    })
}

#[tokio::test]
async fn c189_readiness_falls_with_redis_and_rises_again() {
    let mut it = World::start().await;
    becomes(&it, 200, "ready", 5).await;

    it.redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    becomes(&it, 503, "takes no writes", 5).await;
    it.redis.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    becomes(&it, 200, "ready", 5).await;

    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1mb"]).await;
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]).await;
    becomes(&it, 503, "no memory", 5).await;
    it.api.post("/queues/q/tasks", json!({"payload": 1})).await.problem(503, "storage-full");
    it.redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]).await;
    becomes(&it, 200, "ready", 5).await;

    it.redis.freeze();
    becomes(&it, 503, "does not answer", 5).await;
    it.redis.thaw();
    becomes(&it, 200, "ready", 10).await;

    it.redis.kill9();
    becomes(&it, 503, "does not answer", 5).await;
    it.redis.restart().await;
    becomes(&it, 200, "ready", 10).await;
}

#[tokio::test]
async fn c189_a_wedged_loop_is_not_ready() {
    let it = World::start().await;
    it.schedule("q", json!({"id": "t", "payload": 1, "delay": "1h"})).await;
    let keys: Vec<String> = it.redis.command(&["KEYS", "*agenda*"]).await;
    assert!(!keys.is_empty(), "there is an agenda");
    for key in &keys {
        it.redis.command::<()>(&["RENAME", key, &format!("away:{key}")]).await;
        it.redis.command::<()>(&["SET", key, "wrong type"]).await;
    }

    becomes(&it, 503, "cannot be read", 10).await;

    for key in &keys {
        it.redis.command::<()>(&["RENAME", &format!("away:{key}"), key]).await;
    }
    becomes(&it, 200, "ready", 5).await;
}
