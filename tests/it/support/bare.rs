//! What this machine can do with nothing in between: figures to hold the service's own against, from the same run.

use std::time::Instant;

use axum::{Json, Router, http::StatusCode, routing::post};
use futures_util::future::join_all;
use serde_json::Value;

use super::{client::Client, receiver::Receiver};

/// JSON POSTs a second that a bare axum handler answers to so many clients, in this process.
pub async fn handler_rate(clients: usize, calls: usize) -> f64 {
    let echo = async |Json(body): Json<Value>| (StatusCode::CREATED, Json(body));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = tokio::spawn(async move { axum::serve(listener, Router::new().route("/", post(echo))).await });
    let rate = post_rate(&Client::new(&address), clients, calls).await;
    server.abort();
    rate
}

/// POSTs a second that a bare client loop sends to a receiver of its own.
pub async fn client_rate(clients: usize, calls: usize) -> f64 {
    let receiver = Receiver::start().await;
    post_rate(&Client::new(&receiver.addr().to_string()), clients, calls).await
}

async fn post_rate(client: &Client, clients: usize, calls: usize) -> f64 {
    let start = Instant::now();
    let loops = (0..clients).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..calls / clients {
                let answer = client.post("/", r#"{"payload":{"order_id":1042},"delay_ms":1000}"#).await;
                assert!(answer.status < 300, "{}", answer.status);
            }
        })
    });
    for done in join_all(loops).await {
        done.expect("a client loop ends");
    }
    (calls / clients * clients) as f64 / start.elapsed().as_secs_f64()
}
