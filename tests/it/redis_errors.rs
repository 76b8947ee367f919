//! The error table, on a real Redis that is brought to say so: what became of the call, and that all goes on afterwards.
//! What only a Cluster says is in the table's own test (`src/store/error.rs`), by line.

use std::future::Future;

use deadpool_redis::redis;
use duepost::store::{Enqueued, Fate, StoreError};

use crate::{
    store_kit::{Kit, store_at, task},
    support::{eventually, ms, secs},
};

impl Kit {
    async fn config(&self, name: &str, value: &str) {
        let _: String = self.ask("CONFIG", &[b"SET", name.as_bytes(), value.as_bytes()]).await;
    }

    async fn enqueue(&self, id: &str) -> Result<Enqueued, StoreError> {
        self.store.enqueue(task(id)).await
    }

    #[track_caller]
    fn refuses(&self, fate: Fate) -> impl Future<Output = ()> {
        let from = std::panic::Location::caller();
        async move {
            let error = self.enqueue("refused").await.expect_err("Redis refuses");
            assert_eq!(error.fate(), fate, "{from}: {error:?}");
        }
    }

    /// What was refused was not done, and now it is.
    async fn goes_on(&self) {
        eventually(secs(10), async || match self.enqueue("refused").await {
            Ok(Enqueued::Created(_)) => true,
            Ok(other) => panic!("it was done: {other:?}"),
            Err(_) => false,
        })
        .await;
        assert_eq!(self.size("due").await, 1);
        self.assert_sound().await;
    }
}

#[tokio::test]
async fn noscript_is_seen_by_nobody() {
    let kit = Kit::start().await;
    let _: String = kit.ask("SCRIPT", &[b"FLUSH"]).await;
    kit.goes_on().await;
}

#[tokio::test]
async fn loading_did_not_happen() {
    let mut kit = Kit::start().await;
    for n in 0..1000 {
        let _: i64 = kit.ask("RPUSH", &[format!("filler{n}").as_bytes(), b"x"]).await;
    }
    kit.config("appendonly", "yes").await;
    eventually(secs(10), async || {
        let info: String = kit.ask("INFO", &[b"persistence"]).await;
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_enabled:1")
    })
    .await;
    kit.redis.kill9();
    // a minute, unless the delay is lifted; events are looked at after each key
    let slow = ["--key-load-delay", "60000", "--loading-process-events-interval-bytes", "1024"];
    kit.redis.restart_loading(&[&["--appendonly", "yes"], &slow[..]].concat()).await;
    let _ = kit.enqueue("refused").await; // meets the broken connection, which is another row
    kit.refuses(Fate::NotDone).await;
    // a bare connection: the client library's greeting takes too long while keys are loaded so slowly
    let lifted = async || kit.redis.ask("CONFIG SET key-load-delay 0").await.is_some_and(|a| a.starts_with("+OK"));
    eventually(secs(10), lifted).await;
    eventually(secs(10), async || kit.store.ping().await.is_ok()).await;
    kit.con = kit.connect().await;
    kit.goes_on().await;
}

#[tokio::test]
async fn readonly_did_not_happen() {
    let kit = Kit::start().await;
    let _: String = kit.ask("REPLICAOF", &[b"127.0.0.1", b"1"]).await;
    kit.refuses(Fate::NotDone).await;
    let _: String = kit.ask("REPLICAOF", &[b"NO", b"ONE"]).await;
    kit.goes_on().await;
}

#[tokio::test]
async fn masterdown_did_not_happen() {
    let kit = Kit::start().await;
    kit.config("replica-serve-stale-data", "no").await;
    let _: String = kit.ask("REPLICAOF", &[b"127.0.0.1", b"1"]).await;
    kit.refuses(Fate::NotDone).await;
    let _: String = kit.ask("REPLICAOF", &[b"NO", b"ONE"]).await;
    kit.goes_on().await;
}

#[tokio::test]
async fn oom_is_full() {
    let kit = Kit::start().await;
    kit.config("maxmemory", "1").await;
    kit.refuses(Fate::Full).await;
    let put = kit.store.put(&task("refused"), false).await.expect_err("no memory");
    assert_eq!(put.fate(), Fate::Full, "{put:?}");
    kit.config("maxmemory", "0").await;
    kit.goes_on().await;
}

#[tokio::test]
async fn noreplicas_did_not_happen() {
    let kit = Kit::start().await;
    kit.config("min-replicas-to-write", "1").await;
    kit.refuses(Fate::NotDone).await;
    kit.config("min-replicas-to-write", "0").await;
    kit.goes_on().await;
}

#[tokio::test]
async fn misconf_did_not_happen() {
    let kit = Kit::start().await;
    // a snapshot cannot take the place of a directory
    std::fs::create_dir_all(kit.redis.dir().join("dump.rdb/in-the-way")).expect("a directory");
    kit.config("save", "3600 1000000").await;
    let _: String = kit.ask("BGSAVE", &[]).await;
    eventually(secs(10), async || {
        let info: String = kit.ask("INFO", &[b"persistence"]).await;
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    kit.refuses(Fate::NotDone).await;
    kit.config("save", "").await;
    kit.goes_on().await;
}

#[tokio::test]
async fn busy_did_not_happen() {
    let kit = Kit::start().await;
    kit.config("lua-time-limit", "50").await;
    let mut other = kit.connect().await;
    let foreign = tokio::spawn(async move {
        let mut endless = redis::cmd("EVAL");
        let _: Result<String, _> = endless.arg("while true do end").arg(0).query_async(&mut other).await;
    });
    // Redis answers others with BUSY once the limit is over, and until then nobody
    eventually(secs(10), async || {
        let answer: Result<String, _> = redis::cmd("GET").arg("x").query_async(&mut kit.con.clone()).await;
        answer.is_err_and(|e| e.code() == Some("BUSY"))
    })
    .await;
    kit.refuses(Fate::NotDone).await;
    let _: String = kit.ask("SCRIPT", &[b"KILL"]).await;
    foreign.await.expect("it ends");
    kit.goes_on().await;
}

#[tokio::test]
async fn a_refused_connection_did_not_happen() {
    let mut kit = Kit::start().await;
    kit.config("appendonly", "yes").await;
    eventually(secs(10), async || {
        let info: String = kit.ask("INFO", &[b"persistence"]).await;
        info.contains("aof_rewrite_in_progress:0") && info.contains("aof_enabled:1")
    })
    .await;
    kit.redis.kill9();
    // the first call meets the broken connection, which is another row
    let _ = kit.enqueue("refused").await;
    kit.refuses(Fate::NotDone).await;
    kit.redis.restart_with(&["--appendonly", "yes"]).await;
    kit.con = kit.connect().await;
    kit.goes_on().await;
}

#[tokio::test]
async fn without_credentials_or_permissions_the_service_is_not_ready() {
    let kit = Kit::start().await;
    let url = kit.redis.url();
    let with = |user: &str| url.replace("redis://", &format!("redis://{user}@"));
    let acl = async |rules: &str| {
        let mut args: Vec<&[u8]> = vec![b"SETUSER", b"app", b"on", b">pw"];
        args.extend(rules.split(' ').map(str::as_bytes));
        let _: String = kit.ask("ACL", &args).await;
    };
    let fate = async |url: String, name: &str| {
        let error = store_at(&url, ms(0)).0.enqueue(task("x")).await.expect_err("refused");
        assert_eq!(error.fate(), Fate::NotReady, "{name}: {error:?}");
    };
    acl("~* &* +@all").await;
    fate(with("app:wrong"), "WRONGPASS").await;
    acl("-evalsha -eval").await;
    fate(with("app:pw"), "NOPERM").await;
    acl("+evalsha +eval -hset").await;
    fate(with("app:pw"), "NOPERM in a script").await;
    kit.config("requirepass", "secret").await;
    fate(url.clone(), "NOAUTH").await;
    kit.goes_on().await;
}

#[tokio::test]
async fn a_call_without_an_answer_in_time_is_unknown() {
    let kit = Kit::start().await;
    kit.given(task("first")).await;
    kit.redis.freeze();
    kit.refuses(Fate::Unknown).await;
    kit.redis.thaw();
    // it was in the socket: it was done, and its repeat by the same client would be a replay
    eventually(secs(10), async || kit.size("due").await == 2).await;
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_call_leaves_it_unknown() {
    let mut kit = Kit::start().await;
    kit.redis.freeze();
    let store = kit.store.clone();
    let call = tokio::spawn(async move { store.enqueue(task("lost")).await });
    kit.redis.until_unread(secs(5)).await;
    kit.redis.kill9();
    let error = call.await.expect("it ends").expect_err("nobody answers");
    assert_eq!(
        error.fate(),
        Fate::Unknown,
        "repeating met a refused connection, which says nothing of the first: {error:?}"
    );
}

#[tokio::test]
async fn a_key_of_another_type_and_a_fault_in_a_script_are_bugs() {
    let kit = Kit::start().await;
    let _: String = kit.on("SET", "due", &[b"x"]).await;
    kit.refuses(Fate::Bug).await;
    let _: i64 = kit.on("DEL", "due", &[]).await;
    let _: i64 = kit.on("HSET", "gate", &[b"max_size", b"many"]).await;
    kit.refuses(Fate::Bug).await;
    let _: i64 = kit.on("HDEL", "gate", &[b"max_size"]).await;
    kit.goes_on().await;
}
