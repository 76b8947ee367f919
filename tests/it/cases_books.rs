//! Real cases, group I: figures that stay right under everything at once.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::http::Method;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{
    Answer, Client, Gate, Receiver, RedisServer, Service, World,
    client::{Json, encoded},
    ms, secs, size, until,
    world::{assert_balanced, at_rest, figure},
};

#[tokio::test]
async fn c147_the_attempt_number_is_the_same_everywhere() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let gates = [Gate::new(), Gate::new()];
    let answers = vec![Answer::status(500).held_by(&gates[0]), Answer::status(200).held_by(&gates[1])];
    it.receiver.on_in_turn("/hook", answers);
    let retry = json!({"max_attempts": 3, "backoff": {"kind": "fixed", "delay": "1s", "jitter": 0}});
    // attempt, state and the numbers on record
    let shown = async || {
        let task = it.task("q", "t").await;
        let numbers = task["attempts"].as_array().expect("attempts").iter().map(|a| a["number"].clone());
        (task["state"].clone(), task["attempt"].clone(), numbers.collect::<Vec<_>>())
    };
    it.schedule("q", json!({"id": "t", "payload": 1, "delay": "300ms", "retry": retry})).await;
    assert_eq!(shown().await, (json!("scheduled"), json!(0), vec![]), "none has begun");

    let first = it.receiver.wait_for(1, secs(5)).await[0].attempt();
    assert_eq!((first, shown().await), (1, (json!("active"), json!(1), vec![])), "the first is under way");
    gates[0].open();
    it.in_state("q", "t", "scheduled").await;
    assert_eq!(shown().await, (json!("scheduled"), json!(1), vec![json!(1)]), "the first has failed");

    let second = it.receiver.wait_for(2, secs(5)).await[1].attempt();
    assert_eq!((second, shown().await), (2, (json!("active"), json!(2), vec![json!(1)])), "the second is under way");
    gates[1].open();
    it.in_state("q", "t", "completed").await;
    assert_eq!(shown().await, (json!("completed"), json!(2), vec![json!(1), json!(2)]));
}

const QUEUES: usize = 3;
const CLIENTS: usize = 8;

/// Two processes, one of which is killed now and then, and what the clients know to have been accepted.
struct Shop {
    redis: RedisServer,
    receiver: Receiver,
    nodes: Mutex<[Client; 2]>,
    /// A task was accepted.
    accepted: [AtomicUsize; QUEUES],
    /// It may have been: the answer was lost, and asking again does not tell.
    unsure: [AtomicUsize; QUEUES],
    over: AtomicBool,
}

impl Shop {
    /// The call at one node or the other until there is an answer, and whether one was lost before.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (u16, bool) {
        let mut lost = false;
        for turn in fastrand::usize(..2).. {
            let node = self.nodes.lock().expect("no panic under this lock")[turn % 2].clone();
            match node.try_call(method.clone(), path, body.as_ref().map(Json::from)).await {
                Ok(answer) if answer.status != 503 => return (answer.status, lost),
                Ok(answer) => lost |= answer.json()["type"] == "/problems/outcome-unknown",
                Err(_) => lost = true,
            }
            tokio::time::sleep(ms(20)).await;
        }
        unreachable!("goes on until there is an answer")
    }

    async fn client(self: Arc<Self>, client: usize, operations: usize) {
        let mut own = Vec::new();
        for n in 0..operations {
            let queue = fastrand::usize(..QUEUES);
            let path = format!("/queues/q{queue}");
            let some = |own: &Vec<(usize, String, Value)>| {
                (!own.is_empty()).then(|| own[fastrand::usize(..own.len())].clone())
            };
            match fastrand::u8(..100) {
                0..60 => {
                    let kind = ["fine", "fine", "fine", "fails", "slow", "late"][fastrand::usize(..6)];
                    let id = format!("{kind}-{client}-{n}");
                    let mut task =
                        json!({"id": id, "payload": n, "delay_ms": fastrand::u32(..400), "timeout": "150ms"});
                    if kind == "late" {
                        task["expires_after"] = json!("1s");
                        task["delay_ms"] = json!(900);
                    }
                    let (status, _) = self.call(Method::POST, &format!("{path}/tasks"), Some(task.clone())).await;
                    assert!([200, 201].contains(&status), "{status} for {task}"); // 200: an answer was lost before
                    self.accepted[queue].fetch_add(1, Ordering::Relaxed);
                    own.push((queue, id, task));
                }
                60..75 => {
                    let Some((queue, id, mut task)) = some(&own) else { continue };
                    if fastrand::bool() {
                        task["payload"] = json!("other");
                    }
                    let (status, lost) = self.call(Method::POST, &format!("/queues/q{queue}/tasks"), Some(task)).await;
                    match (status, lost) {
                        (201, _) => drop(self.accepted[queue].fetch_add(1, Ordering::Relaxed)), // its id was free again
                        (200 | 409, true) => drop(self.unsure[queue].fetch_add(1, Ordering::Relaxed)),
                        (200 | 409, false) => {}
                        _ => panic!("{status} for a second {id}"),
                    }
                }
                75..90 => {
                    let Some((queue, id, _)) = some(&own) else { continue };
                    let (status, _) = self.call(Method::DELETE, &format!("/queues/q{queue}/tasks/{id}"), None).await;
                    assert!([200, 202, 404, 409].contains(&status), "{status} for DELETE of {id}");
                }
                90..94 => drop(self.call(Method::POST, &format!("{path}/replay"), Some(json!({"limit": 5}))).await),
                94..98 => {
                    self.call(Method::POST, &format!("{path}/pause"), Some(json!({}))).await;
                    tokio::time::sleep(ms(50)).await;
                    self.call(Method::POST, &format!("{path}/resume"), None).await;
                }
                _ => {
                    let state = ["scheduled", "dead", "completed", "cancelled"][fastrand::usize(..4)];
                    let states = json!({"states": [state]});
                    self.call(Method::POST, "/queues/q0/purge", Some(states)).await;
                }
            }
        }
    }

    /// Kills one of the two every now and then, and puts another one in its place.
    async fn crash(&self, mut services: [Service; 2]) -> [Service; 2] {
        let mut turn = 0;
        while !self.over.load(Ordering::Relaxed) {
            tokio::time::sleep(ms(1500)).await;
            services[turn % 2].kill9();
            services[turn % 2] = start(&self.redis).await;
            self.nodes.lock().expect("no panic under this lock")[turn % 2] = services[turn % 2].client();
            turn += 1;
        }
        println!("{turn} crashes");
        services
    }
}

async fn start(redis: &RedisServer) -> Service {
    Service::builder(redis).flag("--lease", "3s").start().await
}

/// How many tasks of each state a walk over the lists finds.
async fn listed(api: &Client, queue: &str) -> BTreeMap<&'static str, i64> {
    let mut found = BTreeMap::new();
    for state in ["scheduled", "active", "completed", "dead", "cancelled", "expired"] {
        let (mut count, mut cursor) = (0, String::new());
        loop {
            let path = format!("/queues/{queue}/tasks?state={state}&limit=500{cursor}");
            let page = api.get(&path).await.expect(200).json();
            let items = page["items"].as_array().expect("items");
            assert!(items.iter().all(|task| task["state"] == state), "{page}");
            count += items.len();
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", encoded(next, true)),
                None => break,
            }
        }
        found.insert(state, i64::try_from(count).expect("fits"));
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c146_the_books_are_right_after_everything_at_once() {
    let operations = size(800, 30_000);
    let redis = RedisServer::start().await;
    let services = [start(&redis).await, start(&redis).await];
    let (nodes, receiver) = ([services[0].client(), services[1].client()], Receiver::start().await);
    receiver.when(|r| r.task().starts_with("fails"), Answer::status(500));
    receiver.when(|r| r.task().starts_with("slow") && r.attempt() == 1, Answer::status(200).after(ms(300)));
    for queue in 0..QUEUES {
        let retry = json!({"max_attempts": 2, "backoff": {"kind": "fixed", "delay": "100ms"}});
        let api = &nodes[0];
        api.put(&format!("/queues/q{queue}"), json!({"retry": retry})).await.expect(201);
        let hook = json!({"url": receiver.url(&format!("/{queue}"))});
        api.post(&format!("/queues/q{queue}/webhooks"), hook).await.expect(201);
    }
    let shop = Arc::new(Shop {
        redis,
        receiver,
        nodes: Mutex::new(nodes),
        accepted: Default::default(),
        unsure: Default::default(),
        over: AtomicBool::new(false),
    });

    let clients = (0..CLIENTS).map(|client| tokio::spawn(Arc::clone(&shop).client(client, operations / CLIENTS)));
    let work = async {
        for client in join_all(clients).await {
            client.expect("a client ends");
        }
        shop.over.store(true, Ordering::Relaxed);
    };
    let (services, ()) = tokio::join!(shop.crash(services), work);

    let api = services[0].client();
    for queue in 0..QUEUES {
        let name = format!("q{queue}");
        api.post(&format!("/queues/{name}/resume"), "").await.expect(200);
        // what the dead processes held comes back when its leases end
        until(secs(60), async || {
            let stats = api.get(&format!("/queues/{name}/stats")).await.expect(200).json();
            assert_balanced(&stats);
            (figure(&stats, "scheduled") + figure(&stats, "active") == 0).then_some(())
        })
        .await;
        let stats = at_rest(&shop.redis, &api, &name).await;
        for (state, count) in listed(&api, &name).await {
            assert_eq!(count, figure(&stats, state), "{state} of {name} by the lists and by {stats}");
        }
        let (accepted, unsure) = (&shop.accepted[queue], &shop.unsure[queue]);
        let (accepted, unsure) = (accepted.load(Ordering::Relaxed) as i64, unsure.load(Ordering::Relaxed) as i64);
        let enqueued = figure(&stats, "enqueued_total");
        assert!((accepted..=accepted + unsure).contains(&enqueued), "{accepted} (+{unsure}) by the clients: {stats}");
        println!("{name}: {accepted} accepted (+{unsure} unsure) {stats}");
    }
    println!("{} arrivals", shop.receiver.count());
}
