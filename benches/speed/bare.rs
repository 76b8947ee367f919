//! What the same libraries do with nothing in between, each in a process of its own built with the same profile: the
//! limits that the service is held against.

use std::net::SocketAddr;

use axum::{
    Json, Router,
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode},
    routing::post,
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Wanted {
    #[allow(dead_code)]
    payload: Box<RawValue>,
    delay: String,
}

/// What the service answers to an enqueue.
#[derive(Serialize)]
struct Task {
    id: String,
    uid: String,
    queue: String,
    state: &'static str,
    created_at: &'static str,
    run_at: &'static str,
    next_attempt_at: &'static str,
    attempt: u32,
    max_attempts: u32,
    cancelling: bool,
    ended_at: Option<String>,
    reason: Option<String>,
    retry: Option<String>,
    timeout: Option<String>,
    expires_at: Option<String>,
}

/// A bare axum handler: parses the same body, answers the same JSON. Never returns.
pub fn handler() {
    #[allow(clippy::disallowed_methods)] // no rule of the service's applies here
    async fn create(Path(queue): Path<String>, Json(wanted): Json<Wanted>) -> (StatusCode, Json<Task>) {
        assert!(!wanted.delay.is_empty());
        let id = uuid::Uuid::now_v7().to_string();
        let at = "2026-11-30T17:55:00.000Z";
        let task = Task {
            uid: id.clone(),
            id,
            queue,
            state: "scheduled",
            created_at: at,
            run_at: at,
            next_attempt_at: at,
            attempt: 0,
            max_attempts: 20,
            cancelling: false,
            ended_at: None,
            reason: None,
            retry: None,
            timeout: None,
            expires_at: None,
        };
        (StatusCode::CREATED, Json(task))
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        println!("listening on http://{}", listener.local_addr().expect("bound"));
        let router = Router::new().route("/queues/{queue}/tasks", post(create));
        let listener = axum::serve::ListenerExt::tap_io(listener, |tcp| {
            let _ = tcp.set_nodelay(true);
        });
        axum::serve(listener, router).await.expect("it serves");
    });
}

/// A bare loop over the same HTTP client with the headers that a delivery has, 64 at once. Never returns.
pub fn client(to: SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(64).build(connector);
        let uri: hyper::Uri = format!("http://{to}/").parse().expect("a URI");
        println!("listening on http://{to}");
        let loops = (0..64).map(|_| {
            let (client, uri) = (client.clone(), uri.clone());
            tokio::spawn(async move {
                loop {
                    let mut request =
                        hyper::Request::post(uri.clone()).body(Full::from(crate::rows::PAYLOAD)).expect("a request");
                    *request.headers_mut() = headers();
                    let answer = client.request(request).await.expect("the receiver answers");
                    answer.into_body().collect().await.expect("a body");
                }
            })
        });
        futures_util::future::join_all(loops).await;
    });
}

fn headers() -> HeaderMap {
    let fixed = [
        ("content-type", "application/json"),
        ("user-agent", "duepost/0.1.0"),
        ("webhook-id", "01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60"),
        ("webhook-timestamp", "1796061300"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("duepost-queue", "bench"),
        ("duepost-task-id", "01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60"),
        ("duepost-attempt", "1"),
        ("duepost-run-at", "2026-11-30T17:55:00.000Z"),
    ];
    fixed.into_iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value))).collect()
}
