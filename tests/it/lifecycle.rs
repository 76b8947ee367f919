//! Start, stop, rest, and Redis going away under it.

use deadpool_redis::redis::{Client, Value, cmd};
use serde_json::json;

use crate::support::{
    Answer, Gate, RedisServer, Service, World, eventually, ms, secs, service::Builder, vitals, world::figure,
};

/// What only another set-up can cure is said at once, and ends the start if it lasts.
#[tokio::test]
async fn a_redis_that_refuses_for_good_ends_the_start() {
    let redis = RedisServer::start().await;
    redis.command::<()>(&["CONFIG", "SET", "requirepass", "right"]).await;
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}", redis.port());
    let args = |url: &str| Builder::bare(&["serve", "--listen", "127.0.0.1:0", "--redis", url]);
    for (user, told) in [("", "refuses the service"), (":wrong@", "refuses the service"), ("who:right@", "refuses")] {
        let Err(failed) = args(&url(user)).try_start(secs(20)).await else { panic!("{user} is let in") };
        assert!(failed.stderr.contains(told) && !failed.stderr.contains("waiting for Redis"), "{failed:#?}");
        assert_eq!(failed.status.and_then(|s| s.code()), Some(78), "{failed:#?}");
        assert!(!failed.stderr.contains("wrong") && !failed.stderr.contains("right@"), "no password: {failed:#?}");
    }
    // one that is set up a moment later lets the service in
    let late = url("who:late@");
    let (started, ()) = tokio::join!(args(&late).start(), async {
        let client = Client::open(url(":right@")).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut acl =
            async |args: &[&str]| -> Value { cmd("ACL").arg(args).query_async(&mut connection).await.unwrap() };
        acl(&["LOG", "RESET"]).await;
        while !format!("{:?}", acl(&["LOG"]).await).contains("who") {
            tokio::time::sleep(ms(10)).await; // until it has knocked in vain
        }
        acl(&["SETUSER", "who", "on", ">late", "~*", "&*", "+@all"]).await;
    });
    assert!(started.stderr().contains("refuses the service"));
    started.client().get("/readyz").await.expect(200);
}

/// A start that fails after its private Redis is up stops it in order.
#[tokio::test]
async fn a_failed_start_stops_its_private_redis() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let data = dir.path().join("data");
    let args = ["dev", "--listen", "127.0.0.1:0"];
    let builder = Builder::bare(&args).flag("--data-dir", &data).env("SSL_CERT_FILE", empty.to_str().unwrap());
    let Err(failed) = builder.try_start(secs(20)).await else { panic!("let in") };
    assert_eq!(failed.status.and_then(|s| s.code()), Some(78), "{failed:#?}");
    assert!(failed.stderr.contains("no certificate in"), "{failed:#?}");
    assert!(failed.stderr.contains("the private Redis was shut down"), "it ended by itself: {failed:#?}");
    Service::dev(&data).await.client().get("/readyz").await.expect(200);
}

#[tokio::test]
async fn sigterm_lets_attempts_finish_and_takes_no_new_ones() {
    let mut it = World::start().await;
    it.webhook("q", "/hook").await;
    let gate = Gate::new();
    it.receiver.on("/hook", Answer::status(200).held_by(&gate));
    for n in 0..20 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
    }
    it.schedule("q", json!({"id": "later", "payload": 1, "delay": "1s"})).await;
    it.receiver.wait_for(20, secs(5)).await;

    it.service.sigterm();
    eventually(secs(5), async || tokio::net::TcpStream::connect(it.service.address()).await.is_err()).await;
    assert!(it.service.is_running(), "attempts are under way");
    tokio::time::sleep(ms(1200)).await; // past the instant of `later`
    gate.open();

    assert!(it.service.wait_exit(secs(10)).await.success());
    assert_eq!(it.receiver.count(), 20);
    it.service = Service::serve(&it.redis).await;
    it.api = it.service.client();
    it.in_state("q", "later", "completed").await;
    assert_eq!((it.receiver.count(), figure(&it.stats("q").await, "delivered_total")), (21, 21));
    it.at_rest("q").await;
}

/// C170: the second SIGTERM. The rest of it is in `cases_shutdown.rs`.
#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_the_task_comes_again() {
    let mut it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on_in_turn("/hook", vec![Answer::hang(), Answer::status(200).into()]);
    it.schedule("q", json!({"id": "t", "payload": 1, "timeout": "1m"})).await;
    it.receiver.wait_for(1, secs(5)).await;

    it.service.sigterm();
    eventually(secs(5), async || tokio::net::TcpStream::connect(it.service.address()).await.is_err()).await;
    it.service.sigterm();
    it.service.wait_exit(secs(5)).await;

    it.service = Service::serve(&it.redis).await;
    it.api = it.service.client();
    it.receiver.wait_for(2, secs(14)).await;
    it.in_state("q", "t", "completed").await;
    assert_eq!(it.receiver.count(), 2);
}

#[tokio::test]
async fn a_restart_of_redis_is_survived_without_one_of_ours() {
    let mut it = World::start().await;
    it.webhook("q", "/hook").await;
    for n in 0..100 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n, "delay_ms": 1000 + n * 10})).await;
    }

    it.redis.kill9();
    let down = it.api.post("/queues/q/tasks", json!({"id": "down", "payload": 1})).await;
    assert_eq!(down.status, 503, "{}", down.text());
    assert!(down.header("retry-after").is_some());
    eventually(secs(5), async || it.api.get("/readyz").await.status == 503).await;
    it.api.get("/livez").await.expect(200);
    it.redis.restart().await;

    eventually(secs(10), async || it.api.get("/readyz").await.status == 200).await;
    it.receiver.wait_for(100, secs(10)).await;
    it.at_rest("q").await;
    assert_eq!(it.receiver.count(), 100);
    assert!(it.service.is_running());
}

/// C143: at rest. The rest of it is in `cases_redis.rs`.
#[tokio::test]
async fn an_idle_service_leaves_redis_alone() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.schedule("q", json!({"payload": 1, "delay": "1h"})).await;
    it.sentinel("q", "sentinel").await;

    // at most 3 a second, once what the work before left to do is done
    eventually(secs(30), async || {
        let calls = it.redis.calls_during(secs(4)).await;
        println!("{calls} calls to Redis in 4 s at rest");
        calls <= 12
    })
    .await;
}

/// What it needs is a few MiB; whole huge pages for them are three times that of the binary.
#[tokio::test]
async fn an_idle_service_takes_little_memory() {
    let redis = RedisServer::start().await;
    let service = Service::builder(&redis).env("TOKIO_WORKER_THREADS", "2").start().await;
    service.client().get("/queues").await.expect(200);
    let kib = vitals::anonymous_kib(service.pid());
    assert!(kib < 14 << 10, "{kib} KiB beside the binary");
}
