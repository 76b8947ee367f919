//! Real cases, groups O and P: odd names and odd text through lists and errors; compressed bodies.

use axum::http::Method;
use serde_json::{Value, json};

use crate::support::{
    Answer, World,
    client::encoded,
    secs,
    world::{assert_balanced, figure},
};

const STATES: [&str; 6] = ["scheduled", "active", "completed", "dead", "cancelled", "expired"];

#[tokio::test]
async fn c185_counts_and_lists_agree_for_every_name() {
    let it = World::start().await;
    it.receiver
        .when(|r| r.task().starts_with("dead"), Answer::status(500).header("duepost-retry", "false").body(MARKUP));
    it.receiver.when(|r| r.task().starts_with("active"), Answer::hang());
    let longest = "x".repeat(128);
    let names = ["0", "a.b", "A_-.", "a..", "tasks", "queues", "batch", "a.tasks", "con", "Orders", "orders", &longest];
    for queue in names {
        it.webhook(queue, "/hook").await;
        let odd = "~:@-._";
        for state in ["active", "completed", "dead"] {
            it.schedule(queue, json!({"id": format!("{state}{odd}"), "payload": MARKUP})).await;
        }
        for (state, more) in [("scheduled", None), ("cancelled", None), ("expired", Some("350ms"))] {
            let mut task = json!({"id": format!("{state}{odd}"), "payload": MARKUP, "delay": "1h"});
            if let Some(expires) = more {
                (task["delay"], task["expires_after"]) = (json!("300ms"), json!(expires));
                it.api.post(&format!("/queues/{queue}/pause"), "").await.expect(200);
            }
            it.schedule(queue, task).await;
        }
        it.api
            .delete(&format!("/queues/{queue}/tasks/{}", encoded(&format!("cancelled{odd}"), true)))
            .await
            .expect(200);
    }
    for queue in names {
        it.in_state(queue, "expired~:@-._", "expired").await;
        for state in STATES {
            let settled = async || figure(&it.stats(queue).await, state) == 1;
            crate::support::eventually(secs(10), settled).await;
            for path in [queue.to_owned(), encoded(queue, false)] {
                let page = it.api.get(&format!("/queues/{path}/tasks?state={state}&full=true")).await.expect(200);
                assert_eq!(page.header("content-type"), Some("application/json"));
                let page = page.json();
                let ids: Vec<&Value> =
                    page["items"].as_array().expect("items").iter().map(|task| &task["id"]).collect();
                assert_eq!(ids, [&json!(format!("{state}~:@-._"))], "{queue} {state}");
                assert_eq!(page["items"][0]["payload"], MARKUP);
            }
        }
        assert_balanced(&it.stats(queue).await);
    }
    let listed = it.api.get("/queues").await.expect(200).json();
    let listed: Vec<&str> =
        listed["items"].as_array().expect("items").iter().filter_map(|q| q["name"].as_str()).collect();
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    assert_eq!(listed, sorted);
}

/// Text that a browser would run.
const MARKUP: &str = "<img src=x onerror=alert(1)>";

#[tokio::test]
async fn c185_markup_is_refused_as_a_name_and_is_only_ever_text() {
    let it = World::start().await;
    it.webhook("q", "/hook").await;
    it.receiver.on("/hook", Answer::status(500).header("duepost-retry", "false").body(MARKUP));
    it.schedule("q", json!({"id": "t", "payload": MARKUP})).await;
    it.in_state("q", "t", "dead").await;
    let markup = encoded(MARKUP, true);
    for (path, status) in [
        (format!("/queues/{markup}/tasks"), 400),
        (format!("/queues/q/tasks/{markup}"), 400),
        (format!("/queues/q/tasks?state={markup}"), 400),
        (format!("/{markup}"), 404),
        ("/queues/q/tasks/t".to_owned(), 200),
        ("/queues/q/tasks?state=dead&full=true".to_owned(), 200),
    ] {
        let answer = it.api.get(&path).await.expect(status);
        let json =
            answer.header("content-type").is_some_and(|t| t == "application/json" || t == "application/problem+json");
        assert!(json, "{path}: {:?}", answer.headers);
    }
    it.api.post("/queues/q/tasks", json!({"id": MARKUP, "payload": 1})).await.refuses("id");
}

/// A gzip stream (its checksum left out) of nothing but zeros, about 150 times its size.
fn bomb(bytes: usize) -> Vec<u8> {
    // one block of fixed codes: a zero, then again and again "258 bytes, one back" in 13 bits
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let (mut buffer, mut filled) = (0_u32, 0);
    let mut put = |out: &mut Vec<u8>, code: u32, bits: u32| {
        buffer |= code << filled;
        filled += bits;
        while filled >= 8 {
            out.push(buffer.to_le_bytes()[0]);
            (buffer, filled) = (buffer >> 8, filled - 8);
        }
    };
    put(&mut out, 0b011, 3);
    put(&mut out, 0b0000_1100, 8); // literal 0: 00110000, its first bit first
    while out.len() < bytes {
        put(&mut out, 0b1010_0011, 8); // length 258: 11000101
        put(&mut out, 0, 5); // distance 1
    }
    put(&mut out, 0, 7);
    put(&mut out, 0, 7);
    out
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn c196_a_compressed_body_is_refused_and_never_unpacked() {
    let it = World::start().await;
    let send = async |encoding: &str, body: Vec<u8>| {
        let headers = [("content-type", "application/json"), ("content-encoding", encoding)];
        it.api.request(Method::POST, "/queues/q/tasks", &headers, Some(body.into())).await.expect("an answer")
    };
    send("identity", br#"{"payload":1,"delay":"1h"}"#.to_vec()).await.expect(201);
    let before = crate::support::vitals::memory_kib(it.service.pid());
    let small = bomb(300 << 10); // some 48 MiB
    for encoding in
        ["gzip", "x-gzip", "GZIP", "br", "zstd", "deflate", "compress", "gzip, gzip", "gzip, identity", "foo"]
    {
        for body in [small.clone(), b"broken".to_vec(), Vec::new()] {
            send(encoding, body).await.problem(415, "unsupported-media-type");
        }
    }
    let answer = send("gzip", bomb(6 << 20)).await; // a gigabyte
    assert!([413, 415].contains(&answer.status), "{}", answer.status);
    let grown = crate::support::vitals::memory_kib(it.service.pid()) - before;
    println!("{grown} KiB more after compressed bodies");
    assert!(grown < 16 * 1024, "{grown} KiB");
    assert_eq!(figure(&it.stats("q").await, "enqueued_total"), 1);
}
