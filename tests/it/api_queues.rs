//! Pause, resume, purge, replay and deletion, with each status that the contract gives them.

use serde_json::{Value, json};

use crate::support::{
    Answer, ApiAnswer, Gate, Service, World, ms, now_ms, parse_ms, secs,
    wait::{eventually, format_ms},
    world::{assert_balanced, figure},
};

impl World {
    /// A POST without a body.
    async fn bare(&self, path: &str) -> ApiAnswer {
        self.api.request(axum::http::Method::POST, path, &[], None).await.expect("an answer")
    }

    async fn pause(&self, queue: &str) {
        let paused = self.bare(&format!("/queues/{queue}/pause")).await.expect(200).json();
        assert_eq!((&paused["paused"], &paused["paused_until"]), (&json!(true), &Value::Null));
    }

    async fn resume(&self, queue: &str) {
        assert_eq!(self.bare(&format!("/queues/{queue}/resume")).await.expect(200).json()["paused"], false);
    }
}

#[tokio::test]
async fn a_pause_holds_until_it_is_over() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.pause("q").await;
    it.pause("q").await;
    assert_eq!(it.api.get("/queues").await.json()["items"][0]["paused"], true);
    it.schedule("q", json!({"id": "a", "payload": 1})).await;
    it.webhook("elsewhere", "/other").await;
    it.sentinel("elsewhere", "s").await;
    assert_eq!(it.task("q", "a").await["state"], "scheduled");
    it.resume("q").await;
    it.in_state("q", "a", "completed").await;
    it.resume("q").await;

    let until = now_ms() + 700;
    let body = json!({"until": format_ms(until)});
    let paused = it.api.post("/queues/q/pause", body).await.expect(200).json();
    assert_eq!(parse_ms(paused["paused_until"].as_str().unwrap()), until);
    it.schedule("q", json!({"id": "b", "payload": 1})).await;
    let came = it.receiver.wait_for_task("b", secs(5)).await;
    assert!((until..until + 500).contains(&came.at_ms), "{} ms after the end of the pause", came.at_ms - until);
    assert_eq!(it.api.get("/queues/q").await.json()["paused"], false);
    it.at_rest("q").await;
}

#[tokio::test]
async fn pause_and_resume_refuse() {
    let it = World::start().await;
    it.api.put("/queues/q", json!({})).await.expect(201);
    for (body, field) in [
        (json!({"until": null}), "until"),
        (json!({"until": "1h"}), "until"),
        (json!({"until": format_ms(now_ms() - 1000)}), "until"),
        (json!({"for": "1h"}), "for"),
    ] {
        it.api.post("/queues/q/pause", body).await.refuses(field);
    }
    assert_eq!(it.api.get("/queues/q").await.json()["paused"], false);
    let text = it.api.request(axum::http::Method::POST, "/queues/q/pause", &[], Some(json!({}).into())).await.unwrap();
    text.problem(415, "unsupported-media-type");
    for call in ["pause", "resume", "replay"] {
        it.bare(&format!("/queues/none/{call}")).await.problem(404, "queue-not-found");
        it.bare(&format!("/queues/q/{call}?x=1")).await.refuses("x");
    }
}

/// What is answered as paused starts nothing any more, whichever replica is asked.
#[tokio::test]
async fn a_pause_holds_at_once_on_every_replica() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let second = Service::serve(&it.redis).await;
    for round in 0..20 {
        let api = if round % 2 == 0 { it.api.clone() } else { second.client() };
        api.post("/queues/q/pause", json!({})).await.expect(200);
        let id = format!("t{round}");
        it.schedule("q", json!({"id": id, "payload": 1})).await;
        tokio::time::sleep(ms(30)).await;
        assert!(it.receiver.of_task(&id).is_empty(), "round {round}");
        api.post("/queues/q/resume", json!({})).await.expect(200);
        it.receiver.wait_for_task(&id, secs(5)).await;
    }
    it.at_rest("q").await;
}

/// After a pause the limits hold in the burst, and the receiver sees the time that was asked for.
#[tokio::test]
async fn c159_what_became_due_in_a_pause_goes_out_within_the_limits() {
    const TASKS: usize = 200;
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.api.put("/queues/q", json!({"max_in_flight": 4})).await.expect(200);
    it.receiver.on("/hook", Answer::status(200).after(ms(10)));
    it.pause("q").await;
    let began = now_ms();
    for n in 0..TASKS {
        let run_at = format_ms(began + 2 * n as i64);
        it.schedule("q", json!({"id": format!("t{n:03}"), "payload": n, "run_at": run_at})).await;
    }
    eventually(secs(5), async || figure(&it.stats("q").await, "due") == TASKS as i64).await;
    assert_eq!(it.receiver.count(), 0);
    it.resume("q").await;
    let came = it.receiver.wait_for(TASKS, secs(30)).await;
    for five in came.windows(5) {
        assert!(five[4].at_ms - five[0].at_ms >= 9, "five at once of at most four");
    }
    for request in &came {
        let n: i64 = request.text().parse().unwrap();
        assert_eq!(parse_ms(request.header("duepost-run-at").unwrap()), began + 2 * n);
    }
    assert_eq!(it.receiver.count(), TASKS);
    it.at_rest("q").await;
}

/// The lease of a crashed worker ends in the pause: its task waits too.
#[tokio::test]
async fn c160_a_crashed_attempt_waits_for_the_end_of_the_pause() {
    let mut it = World::start().await;
    let short = async |it: &World| Service::builder(&it.redis).flag("--lease", "3s").start().await;
    it.service.kill9();
    it.service = short(&it).await;
    it.api = it.service.client();
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::hang());
    it.schedule("q", json!({"id": "a", "payload": 1})).await;
    it.receiver.wait_for_task("a", secs(5)).await;
    it.service.kill9();
    it.service = short(&it).await;
    it.api = it.service.client();
    it.pause("q").await;
    it.receiver.forget_rules();
    eventually(secs(20), async || it.task("q", "a").await["state"] == "scheduled").await;
    tokio::time::sleep(ms(500)).await;
    assert_eq!(it.receiver.count(), 1);
    it.resume("q").await;
    it.in_state("q", "a", "completed").await;
    assert_eq!(it.receiver.count(), 2);
    it.at_rest("q").await;
}

#[tokio::test]
async fn c162_paused_tasks_are_listed_counted_and_cancelled() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.pause("q").await;
    for n in 0..100 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": n})).await;
    }
    let listed = it.api.get("/queues/q/tasks?limit=1000").await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 100);
    assert_eq!(figure(&it.stats("q").await, "scheduled"), 100);
    for n in 0..10 {
        it.api.delete(&format!("/queues/q/tasks/t{n}")).await.expect(200);
    }
    it.resume("q").await;
    let stats = it.at_rest("q").await;
    assert_eq!((figure(&stats, "delivered_total"), figure(&stats, "cancelled_total")), (90, 10));
    assert_eq!(it.receiver.count(), 90);
}

/// C045 with a purge: the id is free at once.
#[tokio::test]
async fn c045_a_purge_frees_ids_and_keeps_the_books() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.when(|r| r.task() == "dead", Answer::status(400).header("duepost-retry", "false"));
    let gate = Gate::new();
    it.receiver.when(|r| r.task() == "active", Answer::status(200).held_by(&gate));
    for id in ["done", "dead"] {
        it.schedule("q", json!({"id": id, "payload": 1})).await;
    }
    it.in_state("q", "done", "completed").await;
    it.in_state("q", "dead", "dead").await;
    it.schedule("q", json!({"id": "active", "payload": 1})).await;
    it.receiver.wait_for_task("active", secs(5)).await;
    for n in 0..3 {
        it.schedule("q", json!({"id": format!("t{n}"), "payload": 1, "delay": "1h"})).await;
    }
    let purge = async |states: Value| it.api.post("/queues/q/purge", json!({"states": states})).await;
    assert_eq!(purge(json!(["scheduled", "dead"])).await.expect(200).json(), json!({"purged": 4}));
    assert_eq!(purge(json!(["scheduled", "dead", "cancelled", "expired"])).await.expect(200).json()["purged"], 0);
    it.api.get("/queues/q/tasks/t0").await.problem(404, "task-not-found");
    for id in ["t0", "dead"] {
        it.receiver.when(|r| r.task() == "dead", Answer::status(200));
        it.schedule("q", json!({"id": id, "payload": 2})).await;
        it.in_state("q", id, "completed").await;
    }
    gate.open();
    it.in_state("q", "active", "completed").await;
    let stats = it.at_rest("q").await;
    assert_eq!((figure(&stats, "purged_total"), figure(&stats, "dead_total")), (3, 1));
    assert_eq!(purge(json!(["completed"])).await.expect(200).json()["purged"], 4);
    assert_eq!(figure(&it.at_rest("q").await, "delivered_total"), 4);

    for (body, field) in [
        (json!({}), "states"),
        (json!({"states": []}), "states"),
        (json!({"states": ["active"]}), "states"),
        (json!({"states": ["dead", "dead"]}), "states"),
        (json!({"states": ["alive"]}), "states"),
        (json!({"states": "dead"}), "states"),
        (json!({"states": ["dead"], "x": 1}), "x"),
    ] {
        it.api.post("/queues/q/purge", body).await.refuses(field);
    }
    it.bare("/queues/q/purge").await.problem(415, "unsupported-media-type");
    it.api.post("/queues/none/purge", json!({"states": ["dead"]})).await.problem(404, "queue-not-found");
}

#[tokio::test]
async fn replay_brings_dead_tasks_back() {
    let it = World::start().await;
    it.webhook_with("q", "/main", json!({"id": "main"})).await;
    it.receiver.on("/main", Answer::status(400).header("duepost-retry", "false"));
    for n in 0..6 {
        let id = format!("t{n}");
        it.schedule("q", json!({"id": id, "payload": n})).await;
        it.in_state("q", &id, "dead").await;
    }
    let ended = async |id: &str| it.task("q", id).await["ended_at"].clone();
    let (first, fourth) = (ended("t0").await, ended("t3").await);
    let uid = it.task("q", "t0").await["uid"].clone();
    let replay = async |body: Value| it.api.post("/queues/q/replay", body).await.expect(200).json();
    assert_eq!(replay(json!({"dry_run": true})).await, json!({"replayed": 6}));
    let span = json!({"ended_after": first, "ended_before": fourth, "dry_run": true});
    assert_eq!(replay(span).await["replayed"], 2);
    assert_eq!(replay(json!({"webhook": "main", "dry_run": true})).await["replayed"], 6);
    assert_eq!(replay(json!({"webhook": "audit", "dry_run": true})).await["replayed"], 0);
    assert_eq!(figure(&it.stats("q").await, "dead"), 6);
    // they die again while it goes on, and it ends all the same
    assert_eq!(it.bare("/queues/q/replay").await.expect(200).json()["replayed"], 6);
    eventually(secs(5), async || figure(&it.stats("q").await, "dead") == 6).await;
    it.receiver.forget_rules();
    assert_eq!(replay(json!({"limit": 2})).await["replayed"], 2);
    eventually(secs(5), async || figure(&it.stats("q").await, "delivered_total") == 2).await;
    assert_eq!(replay(json!({"webhook": "main"})).await["replayed"], 4);
    let stats = it.at_rest("q").await;
    assert_eq!(["revived_total", "dead_total", "delivered_total"].map(|f| figure(&stats, f)), [12, 12, 6]);
    assert!(it.receiver.of_task("t0").iter().all(|r| r.header("webhook-id") == uid.as_str()), "the uid stays");
    for (body, field) in [
        (json!({"webhook": "a b"}), "webhook"),
        (json!({"ended_after": "yesterday"}), "ended_after"),
        (json!({"limit": 0}), "limit"),
        (json!({"dry_run": 1}), "dry_run"),
        (json!({"state": "dead"}), "state"),
    ] {
        it.api.post("/queues/q/replay", body).await.refuses(field);
    }
}

#[tokio::test]
async fn a_queue_is_deleted_under_its_workers() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let gate = Gate::new();
    it.receiver.on("/hook", Answer::status(200).held_by(&gate));
    it.schedule("q", json!({"id": "active", "payload": 1})).await;
    it.receiver.wait_for_task("active", secs(5)).await;
    it.schedule("q", json!({"id": "later", "payload": 1, "delay": "200ms"})).await;
    it.api.delete("/queues/q").await.problem(409, "queue-not-empty");
    it.api.delete("/queues/q?force=false").await.problem(409, "queue-not-empty");
    it.api.delete("/queues/q?force=1").await.refuses("force");
    assert_eq!(it.api.delete("/queues/q?force=true").await.expect(204).body.len(), 0);
    for path in ["/queues/q", "/queues/q/stats", "/queues/q/tasks", "/queues/q/webhooks", "/queues/q/tasks/active"] {
        it.api.get(path).await.problem(404, "queue-not-found");
    }
    it.api.delete("/queues/q").await.problem(404, "queue-not-found");
    gate.open();
    tokio::time::sleep(ms(400)).await;
    assert_eq!(it.receiver.count(), 1, "what was scheduled is gone");
    let keys: Vec<String> = it.redis.command(&["KEYS", "*"]).await;
    assert!(keys.iter().all(|key| key.ends_with(":seq")), "ghosts: {keys:?}");
    let scrape = it.api.get("/metrics").await.expect(200).text();
    assert!(!scrape.contains(r#"duepost_enqueued_total{queue="q"}"#), "{scrape}");
    assert!(!scrape.contains(r#"duepost_tasks{queue="q""#), "{scrape}");

    it.webhook("q", "/hook").await;
    it.schedule("q", json!({"id": "active", "payload": 2})).await;
    it.in_state("q", "active", "completed").await;
    assert_eq!(figure(&it.at_rest("q").await, "enqueued_total"), 1);
    it.api.delete("/queues/q").await.expect(204);
}

#[tokio::test]
async fn c149_totals_outlive_the_records() {
    let mut it = World::start().await;
    it.webhook("q", "/hook").await;
    let settings = json!({"retain_completed": "0s", "retain_dead": "0s", "retry": {"max_attempts": 1}});
    it.api.put("/queues/q", settings).await.expect(200);
    it.receiver.when(|r| r.task().starts_with('f'), Answer::status(500));
    for n in 0..35 {
        let id = ["d", "d", "d", "f", "c"][n % 5].to_owned() + &n.to_string();
        let delay = if n % 5 == 4 { "1h" } else { "0s" };
        it.schedule("q", json!({"id": id, "payload": n, "delay": delay})).await;
        if n % 5 == 4 {
            it.api.delete(&format!("/queues/q/tasks/{id}")).await.expect(200);
        }
    }
    let totals = |stats: &Value| {
        ["enqueued_total", "delivered_total", "dead_total", "cancelled_total", "failed_attempts_total"]
            .map(|name| figure(stats, name))
    };
    let stats = it.at_rest("q").await;
    assert_eq!(totals(&stats), [35, 21, 7, 7, 7]);
    assert_eq!(["completed", "dead", "cancelled"].map(|name| figure(&stats, name)), [0; 3]);
    it.service.sigterm();
    it.service.wait_exit(secs(10)).await;
    it.service = Service::serve(&it.redis).await;
    it.api = it.service.client();
    let stats = it.stats("q").await;
    assert_eq!(totals(&stats), [35, 21, 7, 7, 7]);
    assert_balanced(&stats);
    it.schedule("q", json!({"id": "d0", "payload": "the id is free"})).await;
}
