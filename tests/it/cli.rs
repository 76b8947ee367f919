//! The commands that ask a running service.

use std::process::{Command, Output};

use duepost::keys::{Glob, Role, create};
use serde_json::{Value, json};

use crate::support::{Answer, Receiver, RedisServer, Service, eventually, secs, world::figure};

struct It {
    service: Service,
    _redis: RedisServer,
    key: String,
    reader: String,
}

impl It {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let key = |role, random| create("cli", &[role], &[Glob::every()], [random; 32]).unwrap();
        let (admin, reader) = (key(Role::Admin, 1), key(Role::Read, 2));
        let entries = format!("[{},{}]", admin["entry"], reader["entry"]);
        let service = Service::builder(&redis).env("DUEPOST_KEYS", &entries).start().await;
        let text = |made: &Value| made["key"].as_str().unwrap().to_owned();
        Self { service, _redis: redis, key: text(&admin), reader: text(&reader) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.service.address())
    }

    fn run_as(&self, key: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_duepost"));
        command.args(args).env_clear().env("DUEPOST_URL", self.url()).env("DUEPOST_KEY", key).output().unwrap()
    }

    /// Goes on only with this exit code; gives what was printed.
    #[track_caller]
    fn run(&self, code: i32, args: &[&str]) -> String {
        let output = self.run_as(&self.key, args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}{err}");
        assert!(!(out.clone() + &err).contains(&self.key), "the key is in the output");
        if code == 0 { out } else { out + &err }
    }

    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(0, &[args, &["--json"]].concat())).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_s_life_from_the_command_line() {
    let it = It::start().await;
    let said = it.run(0, &["enqueue", "orders", "{\"a\": 1.0}", "--id", "t", "--delay", "1h", "--header", "x-a=b=c"]);
    assert!(said.starts_with("t scheduled (scheduled, next attempt at "), "{said}");
    let again = it.run(0, &["enqueue", "orders", "{\"a\": 1.0}", "--id", "t", "--delay", "1h", "--header", "x-a=b=c"]);
    assert!(again.starts_with("t was there already"), "{again}");
    let whole = it.run(0, &["get", "orders", "t", "--json"]);
    assert!(whole.contains("\"payload\":{\"a\": 1.0}"), "byte for byte: {whole}");
    assert_eq!(it.json(&["get", "orders", "t"])["headers"], json!({"x-a": "b=c"}));
    assert!(it.run(0, &["get", "orders", "t"]).lines().any(|l| l.starts_with("state ") && l.ends_with("scheduled")));

    let table = it.run(0, &["list", "orders"]);
    assert!(table.starts_with("ID ") && table.lines().nth(1).is_some_and(|l| l.starts_with("t ")), "{table}");
    assert_eq!(figure(&it.json(&["stats", "orders"]), "scheduled"), 1);
    assert!(it.run(0, &["queues"]).lines().any(|l| l.starts_with("orders ")));
    assert_eq!(it.json(&["webhooks", "orders"]), json!({"items": [], "next_cursor": null}));

    assert!(it.run(0, &["cancel", "orders", "t"]).starts_with("t cancelled (cancelled)"));
    assert!(it.run(0, &["list", "orders", "--state", "cancelled"]).contains("\nt "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_makes_a_task_due_and_revives_one_that_has_ended() {
    let (it, receiver) = (It::start().await, Receiver::start().await);
    it.run(0, &["enqueue", "q", "1", "--id", "t", "--delay", "1h"]);
    it.run(0, &["enqueue", "q", "2", "--id", "u", "--delay", "1h"]);
    let said = it.run(0, &["run", "q", "t"]);
    assert!(said.starts_with("t is due now (scheduled, next attempt at "), "{said}");
    it.run(0, &["cancel", "q", "u"]);
    let told = it.json(&["run", "q", "u"]);
    assert_eq!(
        (&told["id"], &told["state"], &told["attempt"]),
        (&json!("u"), &json!("scheduled"), &json!(0)),
        "{told}"
    );

    receiver.on("/hook", Answer::status(200));
    let hook = json!({"id": "main", "url": receiver.url("/hook")});
    let headers = [("content-type", "application/json"), ("authorization", &format!("Bearer {}", it.key)[..])];
    let method = axum::http::Method::POST;
    let api = it.service.client();
    api.request(method, "/queues/q/webhooks", &headers, Some(hook.into())).await.unwrap().expect(201);
    for id in ["t", "u"] {
        receiver.wait_for_task(id, secs(10)).await;
        eventually(secs(10), async || it.json(&["get", "q", id])["state"] == "completed").await;
    }
    assert!(it.run(4, &["run", "q", "t"]).contains("409 task-finished"));
    it.run(3, &["run", "q", "none"]);
    let problem: Value = serde_json::from_slice(&it.run_as(&it.key, &["run", "q", "t", "--json"]).stdout).unwrap();
    assert_eq!((&problem["type"], &problem["state"]), (&json!("/problems/task-finished"), &json!("completed")));

    // every other verb as JSON, of a queue that has something
    let listed = it.json(&["list", "q", "--state", "completed"]);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    assert_eq!(it.json(&["queues"])["items"][0]["name"], "q");
    let hooks = it.json(&["webhooks", "q"]);
    assert_eq!((&hooks["items"][0]["id"], hooks["items"][0]["last_success_at"].is_string()), (&json!("main"), true));
    assert!(it.run(0, &["webhooks", "q"]).lines().any(|l| l.starts_with("main ")));
    let made = it.json(&["enqueue", "q", "3", "--delay", "1h"]);
    let id = made["id"].as_str().unwrap();
    assert_eq!(it.json(&["cancel", "q", id])["state"], "cancelled");
    assert_eq!(figure(&it.json(&["stats", "q"]), "delivered_total"), 2);
    let told = it.run(0, &["stats", "q"]);
    assert!(told.lines().any(|l| l.starts_with("delivered_total ") && l.ends_with(" 2")), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_goes_over_its_pages() {
    let it = It::start().await;
    for n in 0..5 {
        it.run(0, &["enqueue", "q", "1", "--id", &format!("t{n}"), "--delay", "1h"]);
    }
    let ids = |value: &Value| value["items"].as_array().unwrap().len();
    let some = it.json(&["list", "q", "--limit", "3"]);
    assert_eq!((ids(&some), some["next_cursor"].is_string()), (3, true));
    assert!(it.run(0, &["list", "q", "--limit", "3"]).ends_with("… and more; see --limit\n"));
    let all = it.json(&["list", "q", "--limit", "0"]);
    assert_eq!((ids(&all), all["next_cursor"].is_null()), (5, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_tell_what_kind_of_failure_it_was() {
    let it = It::start().await;
    it.run(0, &["enqueue", "q", "1", "--id", "t", "--delay", "1h"]);
    let told = it.run(3, &["get", "q", "none"]);
    assert!(told.contains("error: 404 task-not-found: there is no task none (request "), "{told}");
    it.run(3, &["stats", "none"]);
    assert!(it.run(4, &["enqueue", "q", "2", "--id", "t"]).contains("task-exists"));
    assert!(it.run(4, &["enqueue", "q", "1", "--delay", "1w"]).contains("delay"));
    assert!(it.run(2, &["enqueue", "q", "no json"]).contains("the payload is not JSON"));
    it.run(2, &["enqueue", "q", "1", "--delay", "1h", "--at", "2030-01-01T00:00:00Z"]);
    it.run(2, &["enqueue", "q", "1", "--header", "nothing"]);
    it.run(2, &["get", "q"]);
    let problem: Value = serde_json::from_slice(&it.run_as(&it.key, &["get", "q", "none", "--json"]).stdout).unwrap();
    assert_eq!(problem["type"], "/problems/task-not-found");
    let refused = it.run_as(&it.reader, &["cancel", "q", "t"]);
    assert_eq!(
        (refused.status.code(), String::from_utf8_lossy(&refused.stderr).contains("403 forbidden")),
        (Some(4), true)
    );
    assert_eq!(it.run_as("wrong", &["queues"]).status.code(), Some(4));
    assert_eq!(it.run_as(&it.reader, &["queues", "--url", "http://127.0.0.1:1"]).status.code(), Some(1));
    assert_eq!(it.run_as(&it.reader, &["queues", "--url", "http://u:p@127.0.0.1:1"]).status.code(), Some(2));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &it.reader).unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(it.run_as("wrong", &["queues", "--key-file", path]).status.code(), Some(0), "the file that was named");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_of_the_request_reaches_receiver_and_request_log() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start().await);
    let service = Service::builder(&redis).switch("--request-log").flag("--log-format", "json").start().await;
    let api = service.client();
    receiver.on("/hook", Answer::status(200));
    api.post("/queues/q/webhooks", json!({"url": receiver.url("/hook")})).await.expect(201);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", trace),
        ("x-request-id", "mine"),
        ("x-secret", "canary"),
    ];
    let body = Some(json!({"id": "t", "payload": "canary"}).into());
    let method = axum::http::Method::POST;
    api.request(method, "/queues/q/tasks", &headers, body).await.unwrap().expect(201);
    api.get("/nowhere?token=canary").await.problem(404, "not-found");

    assert_eq!(receiver.wait_for_task("t", secs(10)).await.header("traceparent"), Some(trace));

    eventually(secs(5), async || service.stderr().contains("/nowhere")).await;
    let log = service.stderr();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.filter(|l| l["target"] == "duepost::requests").find(|l| l["request_id"] == "mine").unwrap();
    assert_eq!(
        (&line["level"], &line["method"], &line["path"], &line["operation"], &line["status"], &line["trace"]),
        (
            &json!("INFO"),
            &json!("POST"),
            &json!("/queues/q/tasks"),
            &json!("create_task"),
            &json!(201),
            &json!("0af7651916cd43dd8448eb211c80319c")
        )
    );
    assert!(line["took_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{line}");
    assert!(!log.contains("canary"), "{log}");
}

#[test]
fn completions_and_manual_name_every_command() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_duepost")).args(args).env_clear().output().unwrap();
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).contains("enqueue"), "{shell}");
    }
    let page = run(&["man"]);
    for command in ["enqueue", "get", "cancel", "list", "run", "stats", "queues", "webhooks", "serve", "dev"] {
        assert!(page.contains(&format!("duepost\\-{command}(1)")), "{command}\n{page}");
    }
    assert!(run(&["man", "enqueue"]).contains("DURATION"));
}
