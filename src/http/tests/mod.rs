//! The router on a real Redis, without sockets; `wire` has those of the accept loop.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, http::Request};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use serde_json::Value;
use tower::ServiceExt;

use super::{Api, Auth, Ids, Limits, Receiver, router};
use crate::{
    domain::{address::AddressPolicy, id::Uid},
    health::Health,
    store::{Clock, Promise, Seal, Store, StoreConfig},
    telemetry::Metrics,
};

mod access;
mod frame;
mod queues;
mod socket;
mod tasks;
mod webhooks;

struct Redis {
    child: Child,
    dir: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("dp-http-").tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--dir"]).arg(dir.path());
        command.arg("--unixsocket").arg(dir.path().join("s")).stdout(Stdio::null()).stderr(Stdio::null());
        Self { child: command.spawn().expect("the tests need redis-server"), dir }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.dir.path().join("s").display())
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A router on a Redis of its own.
struct It {
    router: Router,
    store: Store,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    redis: Redis,
}

fn ids() -> Ids {
    let count = AtomicU64::new(0);
    let uid = move || {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let mut random = [7; 10];
        random[2..].copy_from_slice(&n.to_be_bytes());
        Uid(uuid::Builder::from_unix_timestamp_millis(1_796_061_300_000 + n, &random).into_uuid())
    };
    Ids { uid: Box::new(uid), secret: Box::new(|| [9; 32]), dice: Box::new(|| 0.5) }
}

impl It {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Api)) -> Self {
        let redis = Redis::start();
        let metrics = Arc::new(Metrics::new(100));
        let config = StoreConfig {
            servers: redis.url().into(),
            prefix: "dp".to_owned(),
            auto_create: true,
            lease_grace: Duration::from_secs(1),
            promise: Promise::default(),
            seal: Seal::default(),
        };
        let store = Store::new(config, Arc::new(Clock::default()), Arc::clone(&metrics)).unwrap();
        let end = tokio::time::Instant::now() + Duration::from_secs(20);
        while let Err(error) = store.ping().await {
            assert!(tokio::time::Instant::now() < end, "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let health = Arc::new(Health::default());
        health.beat();
        let mut api = Api {
            store: store.clone(),
            metrics: Arc::clone(&metrics),
            traces: crate::telemetry::Traces::default(),
            health: Arc::clone(&health),
            auth: Auth::open(),
            limits: Limits {
                max_payload: 256 << 10,
                max_batch: 4 << 20,
                max_delay: Duration::from_secs(3650 * 86_400),
                max_requests: 1024,
                max_claims: 1024,
            },
            policy: AddressPolicy::default(),
            auto_create: true,
            ids: ids(),
            request_log: false,
            probe: super::Prober::for_tests(),
            dev: Some(Receiver::new(|_| {})),
        };
        change(&mut api);
        Self { router: router(api), store, health, metrics, redis }
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        Answer::of(self.router.clone(), request).await
    }

    async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        let body: Bytes = body.into();
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        self.send(request.body(Body::from(body)).unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    async fn post(&self, path: &str, body: impl ToString) -> Answer {
        self.call("POST", path, body.to_string()).await
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    async fn of(router: Router, request: Request<Body>) -> Self {
        let answer = router.oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        assert!(parts.headers.contains_key("x-request-id"), "{parts:?}");
        Self { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    #[track_caller]
    fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    #[track_caller]
    fn problem(&self, status: u16, slug: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["type"], format!("/problems/{slug}"), "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        assert_eq!(problem["request_id"], self.header("x-request-id"), "{problem}");
        assert!(["title", "detail"].iter().all(|f| problem[*f].as_str().is_some_and(|t| !t.is_empty())), "{problem}");
        assert_eq!(status == 503, self.header("retry-after") == "1", "{problem}");
        problem
    }

    #[track_caller]
    fn refuses(&self, field: &str) {
        let problem = self.problem(400, "invalid-request");
        let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("no errors: {problem}"));
        assert!(errors.iter().any(|e| e["field"] == field), "{field}: {problem}");
    }
}
