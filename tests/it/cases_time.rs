//! Real cases, group A: scheduling and time.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{
    Answer, World, ms, now_ms, parse_ms, secs,
    wait::format_ms,
    world::{TOLERANCE_MS, assert_balanced, figure},
};

const DAY_MS: i64 = 86_400_000;

/// When the task was due, by its answer.
#[track_caller]
fn run_at(task: &Value) -> i64 {
    parse_ms(task["run_at"].as_str().expect("run_at"))
}

#[track_caller]
fn created_at(task: &Value) -> i64 {
    parse_ms(task["created_at"].as_str().expect("created_at"))
}

#[tokio::test]
async fn c001_long_delays_do_not_fire_at_once() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let long = [
        (json!({"delay": "2147483s647ms"}), 2_147_483_647),
        (json!({"delay_ms": 2_147_483_648_i64}), 2_147_483_648),
        (json!({"delay": "30d"}), 30 * DAY_MS),
        (json!({"delay": "365d"}), 365 * DAY_MS),
    ];

    for (mut body, delay_ms) in long {
        body["payload"] = json!("far");
        let task = it.schedule("q", body).await;
        assert_eq!(run_at(&task), created_at(&task) + delay_ms);
        let read = it.task("q", task["id"].as_str().expect("id")).await;
        assert_eq!((&read["run_at"], &read["state"]), (&task["run_at"], &json!("scheduled")));
    }

    // A task of a second later arrives: the clockwork ran, and took none of the four.
    it.schedule("q", json!({"id": "soon", "payload": null, "delay": "1s"})).await;
    it.receiver.wait_for_task("soon", secs(5)).await;
    it.in_state("q", "soon", "completed").await;
    assert_eq!(it.receiver.count(), 1);
    assert_eq!(figure(&it.stats("q").await, "scheduled"), 4);
}

#[tokio::test]
async fn c004_a_past_time_means_now_and_blocks_nothing() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let now = now_ms();
    let past = [("a", format_ms(now - 30 * DAY_MS)), ("b", format_ms(now - 1000)), ("c", format_ms(0))];

    for (id, at) in &past {
        let task = it.schedule("q", json!({"id": id, "payload": 1, "run_at": at})).await;
        assert_eq!(task["run_at"], at.as_str(), "the time is shown as given");
    }
    let later = it.schedule("q", json!({"id": "later", "payload": 1, "delay": "2s"})).await;

    let journal = it.receiver.wait_for(3, ms(TOLERANCE_MS as u64)).await;
    let mut first: Vec<&str> = journal.iter().map(|request| request.task()).collect();
    first.sort_unstable();
    assert_eq!(first, ["a", "b", "c"]);
    let late = it.receiver.wait_for_task("later", secs(5)).await.at_ms - run_at(&later);
    assert!((0..TOLERANCE_MS).contains(&late), "{late} ms late");
    assert_eq!(it.receiver.count(), 4);
}

#[tokio::test]
async fn c005_a_misplaced_or_misspelt_time_is_never_now() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let at = format_ms(now_ms() + DAY_MS);
    let refused = [
        (json!({"payload": 1, "dealy": "1h"}), "dealy"),
        (json!({"payload": 1, "Delay": "1h"}), "Delay"),
        (json!({"payload": 1, "runAt": at}), "runAt"),
        (json!({"payload": 1, "schedule": {"delay": "1h"}}), "schedule"),
        (json!({"payload": 1, "delay": null}), "delay"),
        (json!({"payload": 1, "delay": true}), "delay"),
        (json!({"payload": 1, "delay": {}}), "delay"),
        (json!({"payload": 1, "delay": 3600}), "delay"),
        (json!({"payload": 1, "delay": "3600"}), "delay"),
        (json!({"payload": 1, "delay": "-1s"}), "delay"),
        (json!({"payload": 1, "delay_ms": "3600"}), "delay_ms"),
        (json!({"payload": 1, "delay_ms": -1}), "delay_ms"),
        (json!({"payload": 1, "run_at": 12}), "run_at"),
        (json!({"payload": 1, "run_at": null}), "run_at"),
        (json!({"payload": 1, "run_at": "tomorrow"}), "run_at"),
        (json!({}), "payload"),
    ];

    for (body, field) in refused {
        it.api.post("/queues/q/tasks", body).await.refuses(field);
    }
    let both = json!({"payload": 1, "delay": "1h", "run_at": at});
    let problem = it.api.post("/queues/q/tasks", both).await.problem(400, "invalid-request");
    let fields: Vec<&str> =
        problem["errors"].as_array().expect("errors").iter().filter_map(|e| e["field"].as_str()).collect();
    assert!(fields.contains(&"delay") || fields.contains(&"run_at"), "{problem}");

    it.sentinel("q", "sentinel").await;
    assert_eq!(it.receiver.count(), 1);
    assert_eq!(figure(&it.stats("q").await, "enqueued_total"), 1);
}

#[tokio::test]
async fn c007_every_form_of_an_instant_is_honoured() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    // A whole second, two to three seconds ahead: every form can name it.
    let at = (now_ms() / 1000 + 3) * 1000;
    let utc = format_ms(at);
    let second = &utc[..19];
    let in_india = format_ms(at + 330 * 60_000);
    let instants = [
        (utc.clone(), at),
        (format!("{second}Z"), at),
        (format!("{second}z").replace('T', "t"), at),
        (format!("{}+05:30", &in_india[..19]), at),
        (format!("{second}-00:00"), at),
        (format!("{second}+00:00"), at),
        (format!("{second}.25Z"), at + 250),
        (format!("{second}.000001Z"), at + 1),
        (format!("{second}.000000001Z"), at + 1),
        (format!("{second}.999999999Z"), at + 1000),
    ];
    let mut due = BTreeMap::new();
    for (text, ms) in instants {
        let task = it.schedule("q", json!({"payload": text, "run_at": text})).await;
        assert_eq!(run_at(&task), ms, "{text}");
        due.insert(task["id"].as_str().expect("id").to_owned(), ms);
    }
    let delays =
        [json!({"delay": "2s"}), json!({"delay": "1s1000ms"}), json!({"delay": "PT2S"}), json!({"delay_ms": 2000})];
    for mut body in delays {
        body["payload"] = json!("delay");
        let task = it.schedule("q", body).await;
        assert_eq!(run_at(&task), created_at(&task) + 2000);
        due.insert(task["id"].as_str().expect("id").to_owned(), run_at(&task));
    }

    let local = format!("{second}.000");
    let unsupported = [
        (json!({"payload": 1, "delay": "2.5s"}), "delay"),
        (json!({"payload": 1, "delay": "2 s"}), "delay"),
        (json!({"payload": 1, "delay": "P1W"}), "delay"),
        (json!({"payload": 1, "delay": "1s1m"}), "delay"),
        (json!({"payload": 1, "delay_ms": 2000.5}), "delay_ms"),
        (json!({"payload": 1, "run_at": local}), "run_at"),
        (json!({"payload": 1, "run_at": at}), "run_at"),
        (json!({"payload": 1, "run_at": format!("{second}Z[UTC]")}), "run_at"),
        (json!({"payload": 1, "run_at": format!("{second}[Europe/Berlin]")}), "run_at"),
    ];
    for (body, field) in unsupported {
        it.api.post("/queues/q/tasks", body).await.refuses(field);
    }

    let journal = it.receiver.wait_for(due.len(), secs(10)).await;
    assert_eq!(journal.len(), due.len());
    for request in journal {
        let late = request.at_ms - due.remove(request.task()).expect("once each");
        assert!((0..TOLERANCE_MS).contains(&late), "{late} ms late: {}", request.text());
    }
}

#[tokio::test]
async fn c010_far_instants_keep_their_millisecond_and_order() {
    let it = World::start().await;
    let first = now_ms() + 3649 * DAY_MS;
    // The later one of each pair is posted first, and its id sorts first.
    for pair in 0..5_i64 {
        for step in [1, 0] {
            let at = first + pair * 1000 + step;
            let body = json!({"id": format!("p{pair}-{}", 1 - step), "payload": 1, "run_at": format_ms(at)});
            let task = it.schedule("q", body).await;
            assert_eq!(run_at(&task), at);
            let read = it.task("q", task["id"].as_str().expect("id")).await;
            assert_eq!((run_at(&read), parse_ms(read["next_attempt_at"].as_str().expect("an instant"))), (at, at));
        }
    }

    let list = it.api.get("/queues/q/tasks?state=scheduled").await.expect(200).json();

    let ids: Vec<&str> = list["items"].as_array().expect("items").iter().filter_map(|t| t["id"].as_str()).collect();
    assert_eq!(ids, ["p0-1", "p0-0", "p1-1", "p1-0", "p2-1", "p2-0", "p3-1", "p3-0", "p4-1", "p4-0"]);
    for beyond in ["9999-12-31T23:59:59.999Z", &format_ms(now_ms() + 3700 * DAY_MS)] {
        it.api.post("/queues/q/tasks", json!({"payload": 1, "run_at": beyond})).await.refuses("run_at");
    }
    it.api.post("/queues/q/tasks", json!({"payload": 1, "delay": "3700d"})).await.refuses("delay");
}

#[tokio::test]
async fn c018_edges_of_the_calendar_are_refused_or_stay_as_echoed() {
    let it = World::start().await;
    let no_such_instant = [
        "2031-03-09T10:00:60Z".to_owned(),
        "2031-06-15T23:59:60Z".to_owned(),
        "2031-03-09T24:00:00Z".to_owned(),
        "2031-03-09T10:60:00Z".to_owned(),
        "2031-02-29T10:00:00Z".to_owned(),
        "2031-02-30T10:00:00Z".to_owned(),
        "2031-13-01T10:00:00Z".to_owned(),
        "2031-00-10T10:00:00Z".to_owned(),
        "2031-03-09T10:00:00+24:00".to_owned(),
        "2031-03-09T10:00:00-12:60".to_owned(),
        "10000-01-01T00:00:00Z".to_owned(),
        "+02031-03-09T10:00:00Z".to_owned(),
        " 2031-03-09T10:00:00Z".to_owned(),
        "2031-03-09T10:00:00Z ".to_owned(),
        "2031-03-09".to_owned(),
        String::new(),
    ];
    for text in no_such_instant {
        it.api.post("/queues/q/tasks", json!({"payload": 1, "run_at": text})).await.refuses("run_at");
    }

    let documented_either_way = [
        "2031-12-31T23:59:60Z".to_owned(),
        "0000-01-01T00:00:00Z".to_owned(),
        format!("2031-03-09T10:00:00.{}Z", "1".repeat(300)),
    ];
    for text in documented_either_way {
        let answer = it.api.post("/queues/q/tasks", json!({"payload": 1, "run_at": text})).await;
        if answer.status != 201 {
            answer.refuses("run_at");
            continue;
        }
        let task = answer.json();
        let read = it.task("q", task["id"].as_str().expect("id")).await;
        assert_eq!(read["run_at"], task["run_at"], "{text}");
    }
}

#[tokio::test]
async fn c020_a_far_task_alone_does_not_break_the_sleep() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    let far = it.schedule("q", json!({"payload": "far", "delay": "3650d"})).await;
    assert_eq!(run_at(&far), created_at(&far) + 3650 * DAY_MS);
    // Long enough for the loops to have seen it as the only thing to sleep for: they look at least once a second.
    tokio::time::sleep(ms(1500)).await;

    let soon = it.schedule("q", json!({"id": "soon", "payload": 1, "delay": "1s"})).await;

    let late = it.receiver.wait_for_task("soon", secs(5)).await.at_ms - run_at(&soon);
    assert!((0..TOLERANCE_MS).contains(&late), "{late} ms late");
    it.api.get("/readyz").await.expect(200);
}

#[tokio::test]
async fn c023_equal_instants_go_by_id_and_starve_nobody() {
    let it = World::start().await;
    it.webhook_with("tie", "/tie", json!({"max_in_flight": 1})).await;
    let at = format_ms(now_ms() + 1000);
    let mut ids: Vec<String> = (1..=25).map(|n| format!("t{n}")).collect();
    for id in &ids {
        it.schedule("tie", json!({"id": id, "payload": 1, "run_at": at})).await;
    }

    let journal = it.receiver.wait_for(25, secs(10)).await;
    let came: Vec<&str> = journal.iter().map(|request| request.task()).collect();
    ids.sort_unstable();
    assert_eq!(came, ids, "one at a time they start in the order of their ids");

    // A receiver that takes 50 a second, and a client that keeps adding more, all due at the same past instant.
    it.webhook_with("crowd", "/crowd", json!({"max_in_flight": 1})).await;
    it.receiver.on("/crowd", Answer::status(200).after(ms(20)));
    let post = async |id: String| it.schedule("crowd", json!({"id": id, "payload": 1, "run_at": at})).await;
    for n in 0..50 {
        post(format!("a{n}")).await;
    }
    post("z1".to_owned()).await;
    let mut n = 50;
    let crowd = async {
        loop {
            post(format!("a{n}")).await;
            n += 1;
            tokio::time::sleep(ms(10)).await;
        }
    };
    tokio::select! {
        () = crowd => {}
        _ = it.receiver.wait_for_task("z1", secs(6)) => {}
    }
    let stats = it.stats("crowd").await;
    assert!(figure(&stats, "scheduled") > 0, "z1 overtook those that came after it: {stats}");
    assert_balanced(&stats);
}
