//! The test kit itself: a receiver that lies would prove anything.

use std::time::Instant;

use axum::http::Method;

use crate::support::{Answer, Client, Gate, Receiver, RedisServer, ms, now_ms, secs};

fn client_of(receiver: &Receiver) -> Client {
    Client::new(&receiver.addr().to_string())
}

#[tokio::test]
async fn receiver_keeps_what_arrived() {
    let receiver = Receiver::start().await;
    let before = now_ms();

    client_of(&receiver).post("/hook?x=1", r#"{ "a":  1.0 }"#).await.expect(200);

    let journal = receiver.wait_for(1, secs(5)).await;
    assert_eq!((journal[0].method(), journal[0].path()), ("POST", "/hook?x=1"));
    assert_eq!(journal[0].body, br#"{ "a":  1.0 }"#);
    assert_eq!(journal[0].header("Content-Type"), Some("application/json"));
    assert!((before..=now_ms()).contains(&journal[0].at_ms));
}

#[tokio::test]
async fn receiver_answers_as_told_and_changes_in_mid_test() {
    let receiver = Receiver::start().await;
    let client = client_of(&receiver);
    receiver.on("/a", Answer::status(503).header("retry-after", "1"));
    receiver.on_in_turn("/b", vec![Answer::status(500).into(), Answer::status(204).into()]);
    receiver.when(|request| request.text().contains("slow"), Answer::status(202).after(ms(120)));

    let refused = client.get("/a").await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(
        [client.get("/b").await.status, client.get("/b").await.status, client.get("/b").await.status],
        [500, 204, 204]
    );
    let start = Instant::now();
    client.post("/c", r#""slow""#).await.expect(202);
    assert!(start.elapsed() >= ms(120));

    receiver.forget_rules();
    client.get("/a").await.expect(200);
}

#[tokio::test]
async fn receiver_breaks_connections_as_told() {
    let receiver = Receiver::start().await;
    let client = client_of(&receiver);
    receiver.on("/close", Answer::close());
    receiver.on("/reset", Answer::reset());
    receiver.on("/hang", Answer::hang());
    receiver.on("/raw", Answer::raw_then_close("NOT HTTP\r\n\r\n"));
    receiver.on("/drip", Answer::status(200).body("x").drip(ms(1)));

    for path in ["/close", "/reset", "/raw"] {
        assert!(client.try_call(Method::POST, path, Some("{}".into())).await.is_err(), "{path}");
    }
    client.get("/drip").await.expect(200);
    let hanging = client.try_call(Method::GET, "/hang", None);
    assert!(tokio::time::timeout(ms(200), hanging).await.is_err());
}

#[tokio::test]
async fn receiver_holds_answers_at_a_gate() {
    let receiver = Receiver::start().await;
    let (client, gate) = (client_of(&receiver), Gate::new());
    receiver.on("/held", Answer::status(201).held_by(&gate));

    let call = tokio::spawn(async move { client.get("/held").await.status });
    receiver.wait_for(1, secs(5)).await;
    assert!(!call.is_finished());
    gate.open();

    assert_eq!(call.await.expect("the call ends"), 201);
}

#[tokio::test]
async fn signatures_are_checked_by_the_official_library() {
    let receiver = Receiver::start().await;
    let secret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";
    let now = now_ms() / 1000;
    let signature = standardwebhooks::Webhook::new(secret).expect("a secret").sign("u1", now, b"{}").expect("signed");
    let stamp = now.to_string();
    let headers = [("webhook-id", "u1"), ("webhook-timestamp", &stamp), ("webhook-signature", &signature)];

    let client = client_of(&receiver);
    client.request(Method::POST, "/", &headers, Some("{}".into())).await.expect("an answer");
    client.request(Method::POST, "/", &headers, Some("{ }".into())).await.expect("an answer");

    let journal = receiver.wait_for(2, secs(5)).await;
    assert!(journal[0].signature_ok(secret));
    assert!(!journal[1].signature_ok(secret));
    assert!(!journal[0].signature_ok("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
}

#[tokio::test]
async fn redis_survives_a_kill_with_its_data() {
    let mut redis = RedisServer::start().await;
    redis.command::<()>(&["SET", "k", "v"]).await;

    redis.kill9();
    redis.restart().await;

    assert_eq!(redis.command::<String>(&["GET", "k"]).await, "v");
    assert!(redis.ops_processed().await > 0);
    redis.shutdown().await;
}
