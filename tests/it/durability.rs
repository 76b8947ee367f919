//! What an acknowledgement stands for: told with each change, enforced where it is named, and never claimed without.

use std::time::{Duration, Instant};

use axum::http::Method;
use duepost::{
    domain::{durability::Durability, task::TaskState},
    store::{Enqueued, Fate, Promise},
};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    store_kit::{Kit, task},
    support::{
        ApiAnswer, Client, Receiver, RedisServer, Service,
        cluster::Cluster,
        eventually,
        inside::{Inside, store_with},
        ms, secs,
        service::Builder,
    },
};

const HEADER: &str = "duepost-durability";

async fn redis(appendonly: &str, appendfsync: &str) -> RedisServer {
    let diskless = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
    let durable = ["--appendonly", appendonly, "--appendfsync", appendfsync];
    RedisServer::start_with(&[durable, diskless].concat()).await
}

async fn config(redis: &RedisServer, name: &str, value: &str) {
    redis.command::<()>(&["CONFIG", "SET", name, value]).await;
}

#[track_caller]
fn tells(answer: &ApiAnswer, level: &str) {
    assert!(answer.status < 300, "{}: {}", answer.status, answer.text());
    assert_eq!(answer.header(HEADER), Some(level), "{}", answer.text());
}

#[tokio::test]
async fn auto_tells_what_redis_gives() {
    for (appendonly, appendfsync, level, line) in [
        ("no", "always", "none", "NOT DURABLE"),
        ("yes", "no", "memory", "durability: memory"),
        ("yes", "everysec", "memory", "durability: memory"),
        ("yes", "always", "disk", "durability: disk"),
    ] {
        let redis = redis(appendonly, appendfsync).await;
        let service = Service::serve(&redis).await;
        let api = service.client();
        tells(&api.post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await, level);
        assert_eq!(api.get("/readyz").await.expect(200).json()["durability"], level);
        assert!(service.stderr().contains(line), "{line}:\n{}", service.stderr());
    }
}

#[tokio::test]
async fn every_change_tells_it_and_nothing_else_does() {
    let redis = redis("yes", "always").await;
    let service = Service::serve(&redis).await;
    let (api, receiver) = (service.client(), Receiver::start().await);
    let later = |id: &str| json!({"id": id, "payload": 1, "delay": "1h"});
    let q = "/queues/q";
    tells(&api.put(q, json!({})).await, "disk");
    tells(&api.patch(q, json!({"timeout": "5s"})).await, "disk");
    tells(&api.post(&format!("{q}/tasks"), later("a")).await, "disk");
    let replayed = api.post(&format!("{q}/tasks"), later("a")).await;
    assert_eq!(replayed.status, 200);
    tells(&replayed, "disk");
    let mut b = later("b");
    b.as_object_mut().unwrap().remove("id");
    tells(&api.put(&format!("{q}/tasks/b"), b).await, "disk");
    tells(&api.patch(&format!("{q}/tasks/b"), json!({"delay": "2h"})).await, "disk");
    tells(&api.post(&format!("{q}/batch"), json!({"tasks": [later("c"), later("d")]})).await, "disk");
    tells(&api.post(&format!("{q}/tasks/c/run"), "").await, "disk");
    let claimed = api.post(&format!("{q}/claim"), json!({"max": 1})).await;
    tells(&claimed, "disk");
    let token = claimed.json_without("payload")["tasks"][0]["lease"]["token"].clone();
    let said = json!({"token": token});
    tells(&api.post(&format!("{q}/tasks/c/extend"), json!({"token": token, "lease": "1m"})).await, "disk");
    tells(&api.post(&format!("{q}/tasks/c/ack"), said.clone()).await, "disk");
    tells(&api.post(&format!("{q}/tasks/d/run"), "").await, "disk");
    let claimed = api.post(&format!("{q}/claim"), json!({"max": 1})).await;
    let token = claimed.json_without("payload")["tasks"][0]["lease"]["token"].clone();
    tells(&api.post(&format!("{q}/tasks/d/nack"), json!({"token": token, "dead": true})).await, "disk");
    tells(&api.post(&format!("{q}/replay"), "").await, "disk");
    tells(&api.delete(&format!("{q}/tasks/a")).await, "disk");
    tells(&api.post(&format!("{q}/pause"), "").await, "disk");
    tells(&api.post(&format!("{q}/resume"), "").await, "disk");
    tells(&api.post(&format!("{q}/webhooks"), json!({"id": "w", "url": receiver.url("/hook")})).await, "disk");
    tells(&api.put(&format!("{q}/webhooks/w"), json!({"url": receiver.url("/hook")})).await, "disk");
    tells(&api.patch(&format!("{q}/webhooks/w"), json!({"enabled": false})).await, "disk");
    tells(&api.post(&format!("{q}/webhooks/w/rotate-secret"), "").await, "disk");
    let probed = api.post(&format!("{q}/webhooks/w/test"), "").await.expect(200);
    assert_eq!(probed.header(HEADER), None, "a test changes nothing");
    tells(&api.delete(&format!("{q}/webhooks/w")).await, "disk");
    tells(&api.post(&format!("{q}/purge"), json!({"states": ["scheduled"]})).await, "disk");
    tells(&api.request(Method::DELETE, &format!("{q}?force=true"), &[], None).await.unwrap(), "disk");
    for path in ["/queues", "/queues/q", "/readyz", "/metrics", "/livez"] {
        assert_eq!(api.get(path).await.header(HEADER), None, "{path}");
    }
    assert_eq!(api.post(&format!("{q}/tasks"), json!({"delay": 1})).await.header(HEADER), None, "a refusal");
}

#[tokio::test]
async fn a_named_level_that_redis_does_not_give_is_not_ready_and_changes_nothing() {
    let redis = redis("yes", "everysec").await;
    let service = Service::builder(&redis).flag("--durability", "disk").start().await;
    let api = service.client();
    let why = api.get("/readyz").await.problem(503, "unavailable");
    assert!(why["detail"].as_str().unwrap_or_default().contains("appendfsync always"), "{why}");
    assert!(service.stderr().contains("NOT READY"), "{}", service.stderr());
    let new = json!({"id": "t", "payload": 1, "delay": "1h"});
    let refused = api.post("/queues/q/tasks", new.clone()).await;
    let problem = refused.problem(503, "unavailable");
    assert!(problem["detail"].as_str().unwrap_or_default().contains("durability"), "{problem}");
    assert!(refused.header("retry-after").is_some() && refused.header(HEADER).is_none());
    api.put("/queues/q", "").await.problem(503, "unavailable");
    api.post("/queues/q/claim", "").await.problem(503, "unavailable");
    assert_eq!(api.get("/queues").await.expect(200).json()["items"], json!([]), "nothing was done");

    config(&redis, "appendfsync", "always").await;
    eventually(secs(10), async || api.get("/readyz").await.status == 200).await;
    tells(&api.post("/queues/q/tasks", new).await, "disk");
}

#[tokio::test]
async fn a_level_that_is_lost_is_noticed_within_the_check_s_period_and_deliveries_go_on() {
    let it = Inside::on(redis("yes", "always").await).await;
    it.webhook("main").await;
    let promise = Promise { named: Some(Durability::Disk), check_every: ms(200), ..Promise::default() };
    let store = store_with(&it.redis, promise).await;
    assert_eq!(store.durability(), Durability::Disk);
    assert!(matches!(store.enqueue(it.new_task("first")).await, Ok(Enqueued::Created(_))));

    config(&it.redis, "appendfsync", "everysec").await;
    let began = Instant::now();
    eventually(secs(10), async || store.standing().short.is_some()).await;
    println!("noticed after {:?}", began.elapsed());
    assert_eq!(store.durability(), Durability::Memory);
    let refused = store.enqueue(it.new_task("second")).await.expect_err("it is named");
    assert_eq!(refused.fate(), Fate::NotReady);
    let worker = Inside::worker_on(&store, |_| {});
    it.receiver.wait_for_task("first", secs(10)).await;
    it.in_state("first", TaskState::Completed).await;

    config(&it.redis, "appendfsync", "always").await;
    eventually(secs(10), async || store.standing().short.is_none()).await;
    assert!(matches!(store.enqueue(it.new_task("second")).await, Ok(Enqueued::Created(_))));
    worker.stop(secs(1)).await;
}

#[tokio::test]
async fn a_redis_that_hides_config_is_unverified_and_says_so() {
    let redis = redis("yes", "always").await;
    redis.command::<()>(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config"]).await;
    let url = redis.url().replace("redis://", "redis://app:pw@");
    let service = Service::builder_at(&url).flag("--durability", "disk").start().await;
    let api = service.client();
    tells(&api.post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await, "disk");
    let ready = api.get("/readyz").await.expect(200).json();
    assert!(ready["warnings"].to_string().contains("hides CONFIG"), "{ready}");
    assert!(service.stderr().contains("UNVERIFIED"), "{}", service.stderr());

    let auto = Service::builder_at(&url).start().await;
    let answer = auto.client().post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await;
    tells(&answer, "memory"); // no more than is seen
}

/// A pair, and a service that promises that both have what it answers.
struct Pair {
    api: Client,
    service: Service,
    replica: RedisServer,
    primary: RedisServer,
}

impl Pair {
    async fn start(timeout: &str) -> Self {
        let primary = redis("yes", "always").await;
        let replica = primary.replica().await;
        let flags = |b: Builder| b.flag("--durability", "replica").flag("--replica-timeout", timeout);
        let service = flags(Service::builder(&primary)).start().await;
        Self { api: service.client(), service, replica, primary }
    }

    async fn post(&self, id: &str) -> ApiAnswer {
        self.api.post("/queues/q/tasks", json!({"id": id, "payload": 1, "delay": "1h"})).await
    }

    /// Calls of WAIT so far.
    async fn waits(&self) -> usize {
        let info: String = self.primary.command(&["INFO", "commandstats"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    async fn blocked(&self) -> bool {
        let info: String = self.primary.command(&["INFO", "clients"]).await;
        info.lines().any(|line| line.strip_prefix("blocked_clients:").is_some_and(|n| n.trim() != "0"))
    }
}

#[tokio::test]
async fn what_is_answered_at_level_replica_is_on_the_replica() {
    let it = Pair::start("1s").await;
    tells(&it.post("a").await, "replica");
    it.primary.freeze(); // whatever the replica has, it has already
    let keys: Vec<String> = it.replica.command(&["KEYS", "*:q:tasks"]).await;
    let there: bool = it.replica.command(&["HEXISTS", &keys[0], "a"]).await;
    assert!(there, "answered, and not there");
    it.primary.thaw();
    tells(&it.api.post("/queues/q/claim", "").await, "disk");
    assert!(it.service.stderr().contains("durability: replica"), "{}", it.service.stderr());
}

#[tokio::test]
async fn short_of_replicas_the_outcome_is_unknown_and_the_repeat_finds_the_task() {
    let it = Pair::start("300ms").await;
    tells(&it.post("a").await, "replica");
    it.replica.freeze();

    let unknown = it.post("b").await;
    let problem = unknown.problem(503, "outcome-unknown");
    assert_eq!((problem["task_id"].as_str(), unknown.header(HEADER)), (Some("b"), None), "{problem}");
    let made = it.api.post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await;
    let made = made.problem(503, "outcome-unknown")["task_id"].as_str().expect("the id to repeat with").to_owned();
    it.post("b").await.problem(503, "outcome-unknown"); // a replay promises the same
    it.post("a").await.problem(503, "outcome-unknown");
    it.api.delete("/queues/q/tasks/a").await.problem(503, "outcome-unknown");
    it.api.put("/queues/q", json!({"timeout": "5s"})).await.problem(503, "outcome-unknown");
    assert_eq!(it.api.get("/queues/q/tasks/b").await.expect(200).json()["state"], "scheduled", "reads need none");

    it.replica.thaw();
    let again = it.post("b").await;
    assert_eq!((again.status, again.header("duepost-replayed")), (200, Some("true")), "{}", again.text());
    tells(&again, "replica");
    let body = json!({"id": made, "payload": 1, "delay": "1h"});
    let again = it.api.post("/queues/q/tasks", body).await;
    assert_eq!(again.status, 200, "{}", again.text());
    tells(&it.api.delete("/queues/q/tasks/a").await, "replica");
}

#[tokio::test]
async fn what_a_consumer_says_is_waited_for_too() {
    let it = Pair::start("300ms").await;
    for id in ["a", "b"] {
        it.api.post("/queues/q/tasks", json!({"id": id, "payload": 1})).await.expect(201);
    }
    let claimed = it.api.post("/queues/q/claim", json!({"max": 2, "lease": "1h", "wait": "5s"})).await;
    let tasks = claimed.expect(200).json_without("payload")["tasks"].clone();
    let mut tasks = tasks.as_array().expect("tasks").clone();
    if tasks.len() == 1 {
        let more = it.api.post("/queues/q/claim", json!({"max": 1, "lease": "1h", "wait": "5s"})).await;
        tasks.push(more.expect(200).json_without("payload")["tasks"][0].clone());
    }
    let token = |task: &Value| json!({"token": task["lease"]["token"]});
    let path = |task: &Value, verb: &str| format!("/queues/q/tasks/{}/{verb}", task["id"].as_str().unwrap());
    it.replica.freeze();
    it.api.post(&path(&tasks[0], "extend"), token(&tasks[0])).await.problem(503, "outcome-unknown");
    it.api.post(&path(&tasks[0], "ack"), token(&tasks[0])).await.problem(503, "outcome-unknown");
    it.api.post(&path(&tasks[1], "nack"), token(&tasks[1])).await.problem(503, "outcome-unknown");
    it.replica.thaw();
    tells(&it.api.post(&path(&tasks[0], "ack"), token(&tasks[0])).await, "replica");
}

#[tokio::test]
async fn a_replica_that_is_gone_makes_the_service_not_ready_until_it_is_back() {
    let mut it = Pair::start("300ms").await;
    it.replica.kill9();
    eventually(secs(10), async || it.primary.replicas_online().await == 0).await;
    let why = it.api.get("/readyz").await.problem(503, "unavailable");
    assert!(why["detail"].as_str().unwrap_or_default().contains("0 are connected"), "{why}");
    it.post("a").await.problem(503, "unavailable"); // known beforehand: nothing was done
    assert_eq!(it.api.get("/queues").await.expect(200).json()["items"], json!([]));
    it.replica.restart().await;
    eventually(secs(20), async || it.post("a").await.status == 201).await;
    it.api.get("/readyz").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_share_a_wait() {
    const CALLS: usize = 60;
    let it = Pair::start("4s").await;
    it.api.put("/queues/q", "").await.expect(201);
    let before = it.waits().await;
    it.replica.freeze();
    let puts = join_all((0..CALLS).map(|n| {
        let api = it.service.client();
        async move { api.put(&format!("/queues/q/tasks/t{n}"), json!({"payload": n, "delay": "1h"})).await }
    }));
    let thaw = async {
        eventually(secs(5), async || it.blocked().await).await;
        tokio::time::sleep(Duration::from_millis(500)).await; // the others come while the first ones wait
        it.replica.thaw();
    };
    let (answers, ()) = tokio::join!(puts, thaw);
    for answer in answers {
        tells(&answer, "replica");
    }
    let waits = it.waits().await - before;
    println!("{CALLS} changes took {waits} waits");
    assert!(waits <= CALLS / 4, "{waits} waits for {CALLS} changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_each_change_is_on_the_replica_of_its_own_primary() {
    let cluster = Cluster::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let flags = |b: Builder| b.flag("--durability", "replica").flag("--replica-timeout", "1s");
    let service = flags(Service::on_cluster(&cluster)).start().await;
    let api = service.client();
    eventually(secs(10), async || api.get("/readyz").await.status == 200).await;
    let queues: Vec<String> = (0..12).map(|n| format!("q{n}")).collect();
    let body = |n: usize| json!({"id": format!("t{n}"), "payload": n, "delay": "1h"});
    let post = async |queue: &str, n| api.post(&format!("/queues/{queue}/tasks"), body(n)).await;
    for answer in join_all(queues.iter().map(|queue| post(queue, 0))).await {
        tells(&answer, "replica");
    }

    // one primary's replica stands still: only what is there is unknown
    let held = cluster.primary_of(Cluster::slot_of(&queues[0])).await;
    let replica = &cluster.nodes[held + 3];
    replica.freeze();
    let (mut unknown, mut told) = (0, 0);
    for queue in &queues {
        let answer = post(queue, 1).await;
        if cluster.primary_of(Cluster::slot_of(queue)).await == held {
            answer.problem(503, "outcome-unknown");
            unknown += 1;
        } else {
            tells(&answer, "replica");
            told += 1;
        }
        if unknown > 0 && told > 0 {
            break; // before the others fail the replica
        }
    }
    replica.thaw();
    assert!(unknown > 0 && told > 0, "{unknown} unknown, {told} told");
    eventually(secs(20), async || post(&queues[0], 1).await.status == 200).await;
}

#[tokio::test]
async fn the_script_cache_may_go_at_any_time() {
    let it = Pair::start("1s").await;
    for n in 0..5 {
        it.primary.command::<()>(&["SCRIPT", "FLUSH"]).await;
        tells(&it.post(&format!("t{n}")).await, "replica");
    }
}

#[tokio::test]
async fn a_repeat_writes_so_that_a_wait_covers_what_it_repeats() {
    let kit = Kit::start().await;
    kit.open("h").await;
    let queue = &kit.queue;
    let new = task("t");
    kit.given(new.clone()).await;
    let writes = async |kit: &Kit| kit.total("replays").await;
    let mut before = writes(&kit).await;
    let mut grown = async |what: &str| {
        let now = writes(&kit).await;
        assert!(now > before, "{what} wrote nothing");
        before = now;
    };
    kit.store.enqueue(new.clone()).await.expect("Redis answers");
    grown("the service's own second POST").await;
    kit.store.put(&new, false).await.expect("Redis answers");
    grown("the service's own second PUT").await;
    kit.advance(10);
    kit.store.run(queue, new.id.as_ref().expect("an id")).await.expect("Redis answers");
    grown("a second run").await;
    let claim = kit.claim_one().await;
    kit.end(&claim, duepost::domain::round::Verdict::Ack).await;
    kit.end(&claim, duepost::domain::round::Verdict::Ack).await;
    grown("a second ack").await;
    let other = kit.given(task("other")).await;
    kit.cancel(&other.id).await;
    kit.cancel(&other.id).await;
    grown("a second cancel").await;
    kit.store.purge(queue, TaskState::Dead).await.expect("Redis answers");
    grown("a second purge").await;
}
