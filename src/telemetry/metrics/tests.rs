//! Names, labels, and what queues share.

use super::*;

fn lines(text: &str, start: &str) -> Vec<String> {
    text.lines().filter(|l| l.starts_with(start)).map(str::to_owned).collect()
}

#[test]
fn outcomes_stand_where_their_number_says() {
    for (at, outcome) in OUTCOMES.into_iter().enumerate() {
        assert_eq!(outcome as usize, at, "{outcome:?}");
    }
}

#[test]
fn names_and_labels_are_those_of_the_contract() {
    let metrics = Metrics::new(10);
    let (queue, now) = (metrics.queue("orders"), Instant::now());
    queue.enqueued(3);
    queue.attempt(Outcome::Rejected, Duration::from_millis(2), Duration::from_millis(30), now);
    queue.attempt_untimed(Outcome::Lost);
    queue.dead("gone");
    queue.dead("no such reason");
    metrics.redis_call("visit", Duration::from_micros(300));
    metrics.http_request("create_task", 201);
    let depth = QueueDepth {
        queue: "orders".to_owned(),
        scheduled: 4,
        dead: 1,
        oldest_due_ms: 1_500,
        paused: true,
        webhooks_held: 1,
        webhooks_disabled: 2,
        ..QueueDepth::default()
    };
    let text = metrics.encode(&[depth]);
    for line in [
        "# TYPE duepost_enqueued_total counter".to_owned(),
        r#"duepost_enqueued_total{queue="orders"} 3"#.to_owned(),
        r#"duepost_attempts_total{queue="orders",outcome="rejected"} 1"#.to_owned(),
        r#"duepost_attempts_total{queue="orders",outcome="lost"} 1"#.to_owned(),
        r#"duepost_attempts_total{queue="orders",outcome="delivered"} 0"#.to_owned(),
        r#"duepost_dead_total{queue="orders",reason="gone"} 1"#.to_owned(),
        r#"duepost_lateness_seconds_count{queue="orders"} 1"#.to_owned(),
        r#"duepost_lateness_seconds_bucket{queue="orders",le="0.0025"} 1"#.to_owned(),
        r#"duepost_attempt_seconds_bucket{queue="orders",le="0.025"} 0"#.to_owned(),
        r#"duepost_attempt_seconds_bucket{queue="orders",le="+Inf"} 1"#.to_owned(),
        r#"duepost_redis_call_seconds_bucket{call="visit",le="0.0005"} 1"#.to_owned(),
        r#"duepost_http_requests_total{operation="create_task",status="201"} 1"#.to_owned(),
        format!(r#"duepost_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
        r#"duepost_tasks{queue="orders",state="scheduled"} 4"#.to_owned(),
        r#"duepost_tasks{queue="orders",state="expired"} 0"#.to_owned(),
        r#"duepost_oldest_due_seconds{queue="orders"} 1.5"#.to_owned(),
        r#"duepost_queue_paused{queue="orders"} 1"#.to_owned(),
        r#"duepost_webhooks_held{queue="orders"} 1"#.to_owned(),
        r#"duepost_webhooks_disabled{queue="orders"} 2"#.to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert_eq!(lines(&text, "duepost_dead_total").len(), DEATHS.len());
    let types = lines(&text, "# TYPE");
    assert_eq!(types.len(), 15, "each name once: {types:?}");
}

#[test]
fn queues_beyond_the_cap_share_one_label() {
    let metrics = Metrics::new(2);
    for queue in ["a", "b", "c", "d", "a"] {
        metrics.queue(queue).enqueued(1);
    }
    let depth = |queue: &str, n| QueueDepth {
        queue: queue.to_owned(),
        active: n,
        oldest_due_ms: n * 1_000,
        paused: true,
        ..QueueDepth::default()
    };
    let text = metrics.encode(&[depth("d", 4), depth("c", 8), depth("b", 1), depth("a", 1)]);
    assert_eq!(
        {
            let mut all = lines(&text, "duepost_enqueued_total");
            all.sort();
            all
        },
        [
            r#"duepost_enqueued_total{queue="_other"} 2"#,
            r#"duepost_enqueued_total{queue="a"} 2"#,
            r#"duepost_enqueued_total{queue="b"} 1"#
        ]
    );
    for line in [
        r#"duepost_tasks{queue="_other",state="active"} 12"#,
        r#"duepost_oldest_due_seconds{queue="_other"} 8.0"#,
        r#"duepost_queue_paused{queue="_other"} 2"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains(r#"queue="c""#));
    let now = Instant::now();
    metrics.queue("c").attempt(Outcome::Delivered, Duration::ZERO, Duration::ZERO, now);
    assert_eq!(metrics.queue("d").lateness_window(now), None, "the attempts of others are not shown as its own");
}

#[test]
fn a_removed_queue_leaves_nothing_and_makes_room() {
    let metrics = Metrics::new(1);
    metrics.queue("a").enqueued(1);
    metrics.remove_queue("a");
    metrics.remove_queue("never seen");
    assert!(!metrics.encode(&[]).contains(r#"queue="a""#));

    metrics.queue("b").enqueued(1);
    assert_eq!(lines(&metrics.encode(&[]), "duepost_enqueued_total"), [r#"duepost_enqueued_total{queue="b"} 1"#]);
    metrics.remove_queue("b");
    metrics.queue("b");
    assert_eq!(lines(&metrics.encode(&[]), "duepost_enqueued_total"), [r#"duepost_enqueued_total{queue="b"} 0"#]);
}

#[test]
fn a_queues_windows_are_its_own_and_timed_attempts_only() {
    let (metrics, now) = (Metrics::new(10), Instant::now());
    metrics.queue("a").attempt(Outcome::Delivered, Duration::from_millis(7), Duration::from_millis(9), now);
    metrics.queue("b").attempt_untimed(Outcome::Lost);
    assert_eq!(metrics.queue("a").lateness_window(now).map(|p| p.p99), Some(7));
    assert_eq!(metrics.queue("a").duration_window(now).map(|p| p.max), Some(9));
    assert_eq!(metrics.queue("b").lateness_window(now), None);
    assert_eq!(metrics.queue("a").duration_window(now + Duration::from_secs(301)), None);
}
