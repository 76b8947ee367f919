//! C190, S15: what is secret is in no output: not at debug level, not in a failure, not in the metrics.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use duepost::keys::{Glob, Role, create};
use futures_util::future::join_all;
use serde_json::json;

use crate::support::{
    Answer, Client, Receiver, RedisServer, Service, client::encoded, eventually, secs, service::Builder,
};

/// One for each place, so that a hit says which leaks.
const CANARIES: [&str; 8] = [
    "canary-redis-pw/1",
    "canary-token-2",
    "canary-header-3",
    "canary-payload-4",
    "canary-secret-5-of-24-bytes",
    "canary-userinfo-6",
    "canary-query-7",
    "canary-answer-8",
];

/// As it is, percent-encoded, and in base64.
fn forms(canary: &str) -> [String; 4] {
    [canary.to_owned(), encoded(canary, true), encoded(canary, false), STANDARD.encode(canary)]
}

#[track_caller]
fn silent(place: &str, text: &str, key: &str) {
    for canary in CANARIES {
        for form in forms(canary) {
            if let Some(at) = text.find(&form) {
                let from = text[..at].rfind('\n').map_or(0, |n| n + 1);
                panic!("{canary} in {place}: {}", text[from..].lines().next().unwrap_or_default());
            }
        }
    }
    assert!(!text.contains(key), "the key in {place}");
}

/// Every call that has a secret in it, good and bad.
async fn calls(api: &Client, receiver: &Receiver, key: &str) {
    let bearer = format!("Bearer {key}");
    let call = async |method: &str, path: &str, body: String| {
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        api.request(method.parse().unwrap(), path, &headers, Some(body.into())).await.unwrap()
    };
    let secret = format!("whsec_{}", STANDARD.encode(CANARIES[4]));
    let hook = |id: &str, url: &str| {
        json!({"id": id, "url": url, "secret": secret, "headers": {"authorization": CANARIES[2]}}).to_string()
    };
    let at = |path: &str| receiver.url(&format!("{path}?token={}", CANARIES[1]));
    call("POST", "/queues/q/webhooks", hook("good", &at("/good"))).await.expect(201);
    call("POST", "/queues/bad/webhooks", hook("bad", &at("/bad"))).await.expect(201);
    let nobody = format!("http://127.0.0.1:1/?token={}", CANARIES[1]);
    call("POST", "/queues/gone/webhooks", hook("gone", &nobody)).await.expect(201);
    let userinfo = format!("http://{0}:{0}@h/", CANARIES[5]);
    call("POST", "/queues/q/webhooks", hook("u", &userinfo)).await.problem(400, "invalid-request");
    for queue in ["q", "bad", "gone"] {
        let task = json!({"id": "t", "payload": CANARIES[3], "headers": {"x-secret": CANARIES[2]},
                          "retry": {"max_attempts": 1}});
        call("POST", &format!("/queues/{queue}/tasks"), task.to_string()).await.expect(201);
    }
    for bad in [format!("{{\"payload\":\"{}\"", CANARIES[3]), format!("{{\"payload\":1,\"id\":\"{}/\"}}", CANARIES[3])]
    {
        call("POST", "/queues/q/tasks", bad).await.problem(400, "invalid-request");
    }
    call("GET", &format!("/queues?token={}", CANARIES[6]), String::new()).await.problem(400, "invalid-request");
    let wrong = format!("Bearer {key}x");
    let wrong = [("authorization", wrong.as_str())];
    api.request(axum::http::Method::GET, "/queues", &wrong, None).await.unwrap().problem(401, "unauthorized");
    receiver.wait_until(secs(10), |journal| journal.len() >= 2).await;
    eventually(secs(10), async || {
        let task = call("GET", "/queues/gone/tasks/t", String::new()).await.expect(200).json();
        task["state"] == "dead"
    })
    .await;
    let metrics = call("GET", "/metrics", String::new()).await.expect(200).text();
    silent("/metrics", &metrics, key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c190_no_secret_in_any_output() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start().await);
    receiver.on("/bad", Answer::status(500).body(CANARIES[7]));
    redis.command::<()>(&["CONFIG", "SET", "requirepass", CANARIES[0]]).await;
    let url = format!("redis://:{}@127.0.0.1:{}", encoded(CANARIES[0], true), redis.port());
    let made = create("ci", &[Role::Admin], &[Glob::every()], [7; 32]).unwrap();
    let (key, entries) = (made["key"].as_str().unwrap(), format!("[{}]", made["entry"]));
    let args = ["serve", "--listen", "127.0.0.1:0", "--allow-private-targets", "--log", "debug", "--request-log"];
    let builder = |url: &str| Builder::bare(&args).env("DUEPOST_REDIS", url).env("DUEPOST_KEYS", &entries);
    let mut service: Service = builder(&url).start().await;

    calls(&service.client(), &receiver, key).await;
    redis.freeze(); // and again with trouble below
    let _ = tokio::time::timeout(secs(1), service.client().get("/readyz")).await;
    redis.thaw();
    service.sigterm();
    service.wait_exit(secs(40)).await;
    assert!(service.stderr().contains("answered"), "the log is at work: {}", service.stderr());
    silent("the log", &service.stderr(), key);
    silent("standard output", &service.stdout(), key);

    let wrong = format!("redis://:{}x@127.0.0.1:{}", encoded(CANARIES[0], true), redis.port());
    let unparsable = format!("redis://:{}@127.0.0.1:x", CANARIES[0]);
    let unreachable = format!("redis://:{}@127.0.0.1:1", encoded(CANARIES[0], false));
    let starts = [wrong, unreachable, unparsable].map(|url| builder(&url).try_start(secs(3)));
    for started in join_all(starts).await {
        let Err(failed) = started else { panic!("let in") };
        assert!(!failed.stderr.is_empty());
        silent("a start that failed", &(failed.stderr + &failed.stdout), key);
    }
}
