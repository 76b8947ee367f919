//! Real cases, group F: retries, backoff, Retry-After.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::{
    Answer, World, ms, now_ms, parse_ms, secs,
    world::{TOLERANCE_MS, figure},
};

#[tokio::test]
async fn c084_max_attempts_is_the_number_of_requests() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(500).body("no"));
    for max in [1, 2, 3] {
        let retry = json!({"max_attempts": max, "backoff": {"kind": "fixed", "delay": "20ms"}});
        it.schedule("q", json!({"id": format!("t{max}"), "payload": max, "retry": retry})).await;
    }

    for max in [1_usize, 2, 3] {
        let id = format!("t{max}");
        it.in_state("q", &id, "dead").await;
        let task = it.task("q", &id).await;
        assert_eq!((&task["attempt"], &task["max_attempts"]), (&json!(max), &json!(max)), "{task}");
        assert_eq!((&task["reason"], &task["next_attempt_at"]), (&json!("max_attempts"), &Value::Null));
        let attempts = task["attempts"].as_array().expect("attempts");
        assert_eq!(attempts.len(), max);
        for (n, attempt) in attempts.iter().enumerate() {
            assert_eq!((&attempt["number"], &attempt["outcome"]), (&json!(n + 1), &json!("rejected")));
            assert_eq!((&attempt["status"], &attempt["response"]), (&json!(500), &json!("no")));
            assert!(attempt["lateness_ms"].as_i64().is_some_and(|late| late >= 0), "{attempt}");
        }
    }
    it.sentinel_dead().await;
    for max in [1_u32, 2, 3] {
        let numbers: Vec<u32> = it.receiver.of_task(&format!("t{max}")).iter().map(|r| r.attempt()).collect();
        assert_eq!(numbers, (1..=max).collect::<Vec<_>>());
    }
    let stats = it.stats("q").await;
    assert_eq!((figure(&stats, "failed_attempts_total"), figure(&stats, "dead_total")), (1 + 2 + 3 + 1, 4), "{stats}");

    for bad in ["0", "-1", "1.5", r#""3""#, "1000000000000", "1e2", "true"] {
        let body = format!(r#"{{"payload":1,"retry":{{"max_attempts":{bad}}}}}"#);
        it.api.post("/queues/q/tasks", body).await.refuses("retry.max_attempts");
        let settings = format!(r#"{{"retry":{{"max_attempts":{bad}}}}}"#);
        it.api.put("/queues/q", settings).await.refuses("retry.max_attempts");
    }
}

impl World {
    /// A last task that fails like all others: what was due before it has been tried.
    async fn sentinel_dead(&self) {
        self.schedule("q", json!({"id": "last", "payload": 1, "retry": {"max_attempts": 1}})).await;
        self.in_state("q", "last", "dead").await;
    }
}

/// One receiver that fails the first attempt with this status and header, and takes the second.
struct Wait {
    status: u16,
    header: String,
    /// The second attempt comes no earlier than this after the first, in milliseconds; `None`: only the backoff counts.
    at_least: Option<i64>,
}

#[tokio::test]
async fn c080_retry_after_is_waited_for_or_ignored() {
    let it = World::start().await;
    let wait = |status, header: &str, at_least| Wait { status, header: header.to_owned(), at_least };
    let date = |ahead| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(ahead));
    let mut waits = vec![
        wait(503, "1", Some(1000)),
        wait(429, "2", Some(2000)),
        wait(429, &date(3), None),
        wait(503, "0", None),
        wait(503, "-5", None),
        wait(503, "1.5", None),
        wait(503, "Wed, 99 Foo", None),
        wait(503, "", None),
        wait(503, &date(0), None),
        wait(500, "3600", None),
        wait(302, "3600", None),
    ];
    // An HTTP date has whole seconds: compare with the date itself, below.
    let date_at = waits[2].header.clone();
    for (n, wait) in waits.iter().enumerate() {
        let path = format!("/{n}");
        it.webhook(&format!("q{n}"), &path).await;
        let first = Answer::status(wait.status).header("retry-after", &wait.header).header("location", "/elsewhere");
        it.receiver.on_in_turn(&path, vec![first.into(), Answer::status(200).into()]);
    }

    let retry = json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "100ms", "jitter": 0}});
    for n in 0..waits.len() {
        it.schedule(&format!("q{n}"), json!({"id": format!("t{n}"), "payload": n, "retry": retry})).await;
    }

    for (n, wait) in waits.drain(..).enumerate() {
        let id = format!("t{n}");
        let name = format!("{} with {:?}", wait.status, wait.header);
        it.in_state(&format!("q{n}"), &id, "completed").await;
        let came = it.receiver.of_task(&id);
        assert_eq!(came.len(), 2, "{name}: no storm, and no more");
        let pause = came[1].at_ms - came[0].at_ms;
        if wait.header == date_at {
            let at = httpdate::parse_http_date(&date_at).expect("just made");
            let at = at.duration_since(SystemTime::UNIX_EPOCH).expect("past 1970").as_millis() as i64;
            assert!((0..TOLERANCE_MS).contains(&(came[1].at_ms - at)), "{name}: {} past it", came[1].at_ms - at);
            continue;
        }
        let least = wait.at_least.unwrap_or(100);
        assert!((least..least + TOLERANCE_MS).contains(&pause), "{name}: {pause} ms");
    }
    assert!(it.receiver.journal().iter().all(|request| request.path() != "/elsewhere"), "redirects are not followed");
}

/// The same instant as an HTTP date of the two obsolete forms.
fn old_dates(at: SystemTime) -> [String; 2] {
    let text = httpdate::fmt_http_date(at); // Sun, 06 Nov 1994 08:49:37 GMT
    let [weekday, day, month, year, time, _] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let weekday = weekday.trim_end_matches(',');
    let long = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let long = long.iter().find(|name| name.starts_with(weekday)).expect("a weekday");
    let blank_padded = format!("{:>2}", day.trim_start_matches('0'));
    [
        format!("{long}, {day}-{month}-{} {time} GMT", &year[2..]),
        format!("{weekday} {month} {blank_padded} {time} {year}"),
    ]
}

#[tokio::test]
async fn c080_old_dates_count_and_two_headers_only_if_they_agree() {
    let it = World::start().await;
    let at = SystemTime::now() + Duration::from_secs(3);
    let at_ms = at.duration_since(SystemTime::UNIX_EPOCH).expect("past 1970").as_millis() as i64 / 1000 * 1000;
    let [rfc850, asctime] = old_dates(at);
    let far = httpdate::fmt_http_date(at + Duration::from_secs(600));
    let answers: [(&[&str], bool); 6] = [
        (&[&rfc850], true),
        (&[&asctime], true),
        (&[&rfc850, &rfc850], true),
        (&["600", "601"], false),
        (&["600", "nonsense"], false),
        (&[&far, "600"], false),
    ];
    let retry = json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "100ms", "jitter": 0}});
    for (n, (values, _)) in answers.iter().enumerate() {
        let path = format!("/{n}");
        it.webhook(&format!("q{n}"), &path).await;
        let busy = values.iter().fold(Answer::status(429), |answer, value| answer.header("retry-after", value));
        it.receiver.on_in_turn(&path, vec![busy.into(), Answer::status(200).into()]);
        it.schedule(&format!("q{n}"), json!({"id": format!("t{n}"), "payload": n, "retry": retry})).await;
    }
    for (n, (values, heard)) in answers.iter().enumerate() {
        let id = format!("t{n}");
        it.in_state(&format!("q{n}"), &id, "completed").await;
        let came = it.receiver.of_task(&id);
        assert_eq!(came.len(), 2, "{values:?}");
        let (from, least) = if *heard { (at_ms, 0) } else { (came[0].at_ms, 100) };
        let late = came[1].at_ms - from;
        assert!((least..least + TOLERANCE_MS).contains(&late), "{values:?}: {late} ms");
    }
}

#[tokio::test]
async fn c080_a_long_retry_after_is_capped_and_shown() {
    const HOUR_MS: i64 = 3_600_000;
    let it = World::start().await;
    let retry = json!({"max_attempts": 5, "backoff": {"kind": "fixed", "delay": "100ms", "jitter": 0}});
    for (n, seconds) in ["1800", "7200", "99999999999"].iter().enumerate() {
        let (queue, path) = (format!("q{n}"), format!("/{n}"));
        it.webhook(&queue, &path).await;
        it.receiver.on(&path, Answer::status(503).header("retry-after", seconds));
        it.schedule(&queue, json!({"id": "t", "payload": n, "retry": retry})).await;
    }
    for (n, wanted) in [HOUR_MS / 2, HOUR_MS, HOUR_MS].iter().enumerate() {
        let queue = format!("q{n}");
        let next = crate::support::until(secs(5), async || {
            let task = it.task(&queue, "t").await;
            (task["attempt"] == 1).then(|| task["next_attempt_at"].as_str().map(parse_ms)).flatten()
        });
        let ahead = next.await - now_ms();
        assert!((wanted - 10_000..=wanted + TOLERANCE_MS).contains(&ahead), "{queue}: {ahead} ms ahead");
    }
    tokio::time::sleep(ms(500)).await; // Five times the backoff: who ignored the header would have come again.
    assert_eq!(it.receiver.count(), 3);
}

#[tokio::test]
async fn each_kind_of_backoff_paces_the_attempts() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(500));
    let kinds = [
        ("fixed", json!({"kind": "fixed", "delay": "300ms", "jitter": 0}), [300, 300, 300]),
        (
            "exponential",
            json!({"kind": "exponential", "base": "200ms", "factor": 3.0, "max": "1s", "jitter": 0}),
            [200, 600, 1000],
        ),
        ("schedule", json!({"kind": "schedule", "delays": ["100ms", "500ms"], "jitter": 0}), [100, 500, 500]),
    ];
    for (id, backoff, _) in &kinds {
        let retry = json!({"max_attempts": 4, "backoff": backoff});
        it.schedule("q", json!({"id": id, "payload": 1, "retry": retry})).await;
    }

    for (id, _, pauses) in kinds {
        it.in_state("q", id, "dead").await;
        let came = it.receiver.of_task(id);
        assert_eq!(came.len(), 4, "{id}");
        for (n, wanted) in pauses.iter().enumerate() {
            let pause = came[n + 1].at_ms - came[n].at_ms;
            assert!((*wanted..wanted + TOLERANCE_MS).contains(&pause), "{id}, pause {n}: {pause} ms");
        }
        let uids: Vec<_> = came.iter().map(|request| request.header("webhook-id")).collect();
        assert!(uids.iter().all(|uid| *uid == uids[0]), "one webhook-id through all retries");
    }
}
