//! Who may call what, and how many at once.

use std::time::Duration;

use axum::{body::Body, http::Request};
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;

use super::{Answer, It};
use crate::{
    http::{Auth, auth, openapi::OPERATIONS, openapi_json},
    keys::{Glob, Keys, Role, create},
};

fn glob(text: &str) -> Glob {
    text.parse().unwrap()
}

/// The contract's words, read off method and path and not off the table.
fn may(role: Role, method: &str, path: &str) -> bool {
    let lease = ["/claim", "/ack", "/nack", "/extend"].iter().any(|end| path.ends_with(end));
    let reads_tasks = method == "GET" && path.starts_with("/queues/{queue}/tasks");
    match role {
        Role::Admin => true,
        Role::Read => method == "GET",
        Role::Consume => lease || reads_tasks,
        Role::Produce => {
            !lease && (path.starts_with("/queues/{queue}/tasks") || path.starts_with("/queues/{queue}/batch"))
        }
    }
}

/// Some keys with the text of each.
struct Ring(Vec<(String, Role, &'static str)>, Keys);

impl Ring {
    /// Each role on each of these globs.
    fn new(globs: &[&'static str]) -> Self {
        let (mut texts, mut entries) = (Vec::new(), Vec::new());
        for text in globs {
            for role in Role::ALL {
                let number = u8::try_from(texts.len()).unwrap();
                let made = create("a", &[role], &[glob(text)], [number; 32]).unwrap();
                texts.push((made["key"].as_str().unwrap().to_owned(), role, *text));
                entries.push(made["entry"].clone());
            }
        }
        Self(texts, Keys::from_json(&Value::from(entries).to_string()).unwrap())
    }

    fn key(&self, role: Role, glob: &str) -> &str {
        self.0.iter().find(|(_, r, g)| (*r, *g) == (role, glob)).map(|(key, ..)| key.as_str()).unwrap()
    }

    async fn world(&self) -> It {
        let keys = Auth::keys(self.1.clone());
        It::with(|api| api.auth = keys).await
    }
}

async fn call(it: &It, key: &str, method: &str, path: &str, body: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
    let request = if body.starts_with('{') { request.header("content-type", "application/json") } else { request };
    it.send(request.body(Body::from(body.to_owned())).unwrap()).await
}

#[test]
fn every_operation_says_who_may_call_it() {
    let document: Value = serde_json::from_str(&openapi_json()).unwrap();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            let open = operation["security"] == serde_json::json!([]);
            assert_eq!(open, auth::OPEN.contains(&id), "{id}");
            let entries = auth::NEEDS.iter().filter(|(name, _)| *name == id).count();
            assert_eq!(entries, usize::from(!open), "{id}: one entry in NEEDS for whatever needs a key");
        }
    }
}

#[tokio::test]
async fn every_route_for_every_role() {
    let ring = Ring::new(&["*", "mine-*"]);
    let it = ring.world().await;
    for (method, path, id) in OPERATIONS.iter().filter(|(.., id)| !auth::OPEN.contains(id)) {
        for (key, role, reach) in &ring.0 {
            let to = |queue: &str| path.replace("{queue}", queue).replace("{id}", "none");
            // no such queue, and no JSON: a refusal comes before either is noticed
            let answer = call(&it, key, method, &to("mine-1"), "nonsense").await;
            let place = format!("{id} as {role:?} on {reach}: {} {}", answer.status, answer.text());
            let of_all = !path.contains("{queue}") && *id != "list_queues";
            if may(*role, method, path) && (!of_all || *reach == "*") {
                assert!(![401, 403].contains(&answer.status), "{place}");
            } else {
                assert_eq!(answer.status, 403, "{place}");
                answer.problem(403, "forbidden");
            }
            if *reach != "*" && path.contains("{queue}") {
                for other in ["other", "mine", "MINE-1", "xmine-1", "bad%20name"] {
                    call(&it, key, method, &to(other), "nonsense").await.problem(403, "forbidden");
                }
            }
        }
        let anybody = Request::builder().method(*method).uri(path.replace("{queue}", "q").replace("{id}", "none"));
        it.send(anybody.body(Body::empty()).unwrap()).await.problem(401, "unauthorized");
    }
    let reader = ring.key(Role::Read, "*");
    call(&it, reader, "HEAD", "/queues", "").await.expect(200);
    call(&it, reader, "GET", "/queues/%ff/tasks", "").await.problem(400, "invalid-request");
    call(&it, ring.key(Role::Admin, "mine-*"), "PUT", "/queues/mine-1", "{}").await.expect(201);
}

#[tokio::test]
async fn only_one_header_with_a_known_key_is_let_in() {
    let ring = Ring::new(&["*", "q"]); // two sets of keys, alive at once
    let it = ring.world().await;
    let with = |path: &str, headers: &[String]| {
        let mut request = Request::get(path);
        for header in headers {
            request = request.header("authorization", header);
        }
        it.send(request.body(Body::empty()).unwrap())
    };
    let (right, second) = (ring.key(Role::Read, "*"), ring.key(Role::Admin, "q"));
    for path in ["/livez", "/readyz", "/version", "/docs", "/openapi.json"] {
        with(path, &[]).await.expect(200);
        with(path, &["Bearer wrong".to_owned()]).await.expect(200);
    }
    let bearer = format!("Bearer {right}");
    for refused in [
        &[][..],
        &[right.to_owned()],
        &[format!("Basic {right}")],
        &["Bearer".to_owned()],
        &[format!("Bearer {right}x")],
        &["Bearer ".to_owned()],
        &[bearer.clone(), bearer.clone()],
        &[bearer.clone(), "Basic x".to_owned()],
    ] {
        let answer = with("/queues", refused).await;
        answer.problem(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert!(!answer.text().contains(right));
        with("/metrics", refused).await.problem(401, "unauthorized");
    }
    for fine in [bearer, format!("bearer  {right}"), format!("Bearer {second}")] {
        with("/queues/q/webhooks", &[fine]).await.problem(404, "queue-not-found");
    }
    assert!(!openapi_json().contains("/dev/"));
}

#[tokio::test]
async fn the_list_shows_the_key_s_own_queues_page_by_page() {
    let ring = Ring::new(&["*", "mine-*"]);
    let it = ring.world().await;
    for queue in ["a", "mine-1", "mine-2", "mine-3", "mineral", "z"] {
        call(&it, ring.key(Role::Admin, "*"), "PUT", &format!("/queues/{queue}"), "{}").await.expect(201);
    }
    let list = async |limit: usize| {
        let (mut seen, mut path) = (Vec::new(), format!("/queues?limit={limit}"));
        loop {
            let page = call(&it, ring.key(Role::Read, "mine-*"), "GET", &path, "").await.expect(200).json();
            let names = page["items"].as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap().to_owned());
            seen.push(names.collect::<Vec<_>>().join(" "));
            match page["next_cursor"].as_str() {
                Some(next) => path = format!("/queues?limit={limit}&cursor={next}"),
                None => return seen,
            }
        }
    };
    assert_eq!(list(2).await, ["mine-1 mine-2", "mine-3"]);
    assert_eq!(list(1).await, ["mine-1", "mine-2", "mine-3"]);
    assert_eq!(list(3).await, ["mine-1 mine-2 mine-3"], "what follows is not the key's: no further page");
    // the place of a list that saw more shows no more
    let all = call(&it, ring.key(Role::Read, "*"), "GET", "/queues?limit=1", "").await.json();
    let path = format!("/queues?cursor={}", all["next_cursor"].as_str().unwrap());
    let page = call(&it, ring.key(Role::Read, "mine-*"), "GET", &path, "").await.json();
    assert_eq!(page["items"].as_array().unwrap().len(), 3, "{page}");
}

#[tokio::test]
async fn another_queue_s_object_is_not_under_ones_own_path() {
    let ring = Ring::new(&["*", "mine-*"]);
    let it = ring.world().await;
    let (admin, own) = (ring.key(Role::Admin, "*"), ring.key(Role::Admin, "mine-*"));
    call(&it, admin, "PUT", "/queues/mine-1", "{}").await.expect(201);
    call(&it, admin, "POST", "/queues/other/tasks", r#"{"id":"t","payload":1,"delay":"1h"}"#).await.expect(201);
    let hook = r#"{"id":"w","url":"https://a.example/"}"#;
    call(&it, admin, "POST", "/queues/other/webhooks", hook).await.expect(201);
    for (method, path, slug) in [
        ("GET", "/queues/mine-1/tasks/t", "task-not-found"),
        ("DELETE", "/queues/mine-1/tasks/t", "task-not-found"),
        ("GET", "/queues/mine-1/webhooks/w", "webhook-not-found"),
        ("DELETE", "/queues/mine-1/webhooks/w", "webhook-not-found"),
    ] {
        call(&it, own, method, path, "").await.problem(404, slug);
    }
    for tricky in ["/queues/mine-1%2f..%2fother/tasks/t", "/queues/other%00/tasks/t", "/queues/mine-1/../other/tasks/t"]
    {
        let answer = call(&it, own, "GET", tricky, "").await;
        assert!([400, 403, 404].contains(&answer.status), "{tricky}: {}", answer.text());
    }
    call(&it, admin, "GET", "/queues/other/tasks/t", "").await.expect(200);
}

/// A call whose body does not come.
async fn hanging(it: &It, path: &str, key: &str) -> tokio::task::JoinHandle<()> {
    let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {key}")).body(body).unwrap();
    let router = it.router.clone();
    let call = tokio::spawn(async move {
        Answer::of(router, request).await;
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    call
}

#[tokio::test]
async fn past_the_bound_calls_are_shed_at_once_and_the_signs_of_life_are_not() {
    let it = It::with(|api| api.limits.max_requests = 2).await;
    let (one, two) = (hanging(&it, "/queues/q/tasks", "").await, hanging(&it, "/queues/q/tasks", "").await);

    let began = std::time::Instant::now();
    for (method, path) in [("GET", "/queues"), ("POST", "/queues/q/tasks"), ("GET", "/queues/q/tasks/t")] {
        it.call(method, path, "{}").await.problem(503, "overloaded");
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    for path in ["/livez", "/readyz", "/metrics", "/version"] {
        it.get(path).await.expect(200);
    }
    it.get("/nowhere").await.problem(404, "not-found");

    one.abort();
    let _ = one.await;
    it.post("/queues/q/tasks", r#"{"payload":1,"delay":"1h"}"#).await.expect(201);
    it.get("/queues").await.expect(200);
    two.abort();
}

#[tokio::test]
async fn who_has_no_key_takes_no_place() {
    let ring = Ring::new(&["*"]);
    let keys = Auth::keys(ring.1.clone());
    let it = It::with(|api| (api.auth, api.limits.max_requests) = (keys, 1)).await;
    let reader = ring.key(Role::Read, "*");
    hanging(&it, "/queues/q/tasks", "wrong").await.await.expect("a 401 does not wait for the body");
    call(&it, reader, "GET", "/queues", "").await.expect(200);

    let full = hanging(&it, "/queues/q/tasks", ring.key(Role::Produce, "*")).await;
    call(&it, "wrong", "GET", "/queues", "").await.problem(401, "unauthorized");
    call(&it, reader, "PUT", "/queues/q", "{}").await.problem(403, "forbidden");
    call(&it, reader, "GET", "/queues", "").await.problem(503, "overloaded");
    full.abort();
}
