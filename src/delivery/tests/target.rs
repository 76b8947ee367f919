//! Who is dialled, and who never is.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
};

use super::{
    receiver::{Receiver, Step, Step::*, answer, send},
    *,
};

const ALLOWED: [u8; 4] = [127, 0, 0, 1];
/// Loopback too, but not in the list that [`guarded`] allows.
const REFUSED: [u8; 4] = [127, 0, 0, 2];

/// Two receivers on one port: the allowed one, and one that must never be reached.
fn pair(script: Vec<Step>) -> (Receiver, Receiver) {
    for _ in 0..100 {
        let allowed = Receiver::always(script.clone());
        let refused = SocketAddr::from((REFUSED, allowed.addr.port()));
        if let Ok(refused) = Receiver::start_on(refused, vec![vec![Request, answer(200, "secret")]]) {
            return (allowed, refused);
        }
    }
    panic!("no port that is free on both addresses");
}

#[tokio::test]
async fn s3_a_name_that_changes_its_address_is_judged_at_each_dial_by_the_one_look_up() {
    let (allowed, refused) = pair(vec![Request, send("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")]);
    let asked = Arc::new(AtomicUsize::new(0));
    let rebinding = Names({
        let asked = Arc::clone(&asked);
        move |_: &str| Ok(vec![IpAddr::from(if asked.fetch_add(1, SeqCst) == 0 { ALLOWED } else { REFUSED })])
    });
    let delivery = guarded(rebinding);
    let url = format!("http://rebind.example:{}/", allowed.addr.port());

    assert_eq!(delivery.call(call(&url)).await.outcome, Outcome::Delivered);
    assert_eq!(asked.load(SeqCst), 1);
    let second = delivery.call(call(&url)).await;

    assert_eq!((second.outcome, error(&second)), (Outcome::Blocked, "the target's address is not allowed"));
    assert_eq!((allowed.seen().accepted, refused.seen().accepted, asked.load(SeqCst)), (1, 0, 2));
}

#[tokio::test]
async fn s3_of_mixed_records_only_the_allowed_are_dialled() {
    let (allowed, refused) = pair(vec![Request, answer(200, "")]);
    let mixed = ["169.254.169.254", "127.0.0.2", "::1", "10.0.0.1", "127.0.0.1", "::ffff:127.0.0.1"];
    let delivery = guarded(Names(move |_: &str| Ok(mixed.map(|ip| ip.parse().unwrap()).to_vec())));

    let report = delivery.call(call(&format!("http://mixed.example:{}/", allowed.addr.port()))).await;

    assert_eq!((report.outcome, allowed.seen().accepted, refused.seen().accepted), (Outcome::Delivered, 1, 0));
}

#[tokio::test]
async fn s3_literals_in_any_spelling_go_through_the_same_guard() {
    let receiver = Receiver::always(vec![Request, answer(200, "")]);
    let public_only = DeliveryConfig { policy: AddressPolicy::default(), ..config() };
    let delivery = Delivery::new(public_only).unwrap();
    for host in ["127.0.0.1", "0x7f.1", "2130706433", "127.1", "[::ffff:127.0.0.1]", "[::1]", "localhost"] {
        let report = delivery.call(call(&format!("http://{host}:{}/", receiver.addr.port()))).await;
        assert_eq!(report.outcome, Outcome::Blocked, "{host}: {report:?}");
        assert_eq!((report.status, report.response.as_deref()), (None, None));
    }
    assert_eq!(receiver.seen().accepted, 0);
}

#[tokio::test]
async fn s3_a_zone_is_no_part_of_a_target() {
    let guard = super::super::guard::Guard::new(
        AddressPolicy { allowed: vec!["::/0".parse().unwrap()], ..AddressPolicy::default() },
        Arc::new(SystemResolver),
    );
    assert_eq!(guard.dial("fe80::1%lo", 9).await.unwrap_err().to_string(), "the target's address is not allowed");
}

#[tokio::test]
async fn s6_c093_a_redirect_is_a_failure_that_leads_nowhere() {
    let (allowed, refused) = pair(vec![Request, answer(200, "")]);
    let delivery = guarded(SystemResolver);
    let port = refused.addr.port();
    for status in [300, 301, 302, 303, 307, 308] {
        for location in [
            format!("location: http://127.0.0.2:{port}/latest/meta-data\r\n"),
            format!("location: http://127.0.0.1:{port}/\r\n"),
            "location: /hook\r\n".to_owned(),
            String::new(),
        ] {
            let redirect = send(format!("HTTP/1.1 {status} X\r\n{location}content-length: 0\r\n\r\n"));
            let receiver = Receiver::always(vec![Request, redirect, Rest]);
            let report = delivery.call(call(&receiver.url())).await;
            assert_eq!((report.outcome, report.status), (Outcome::Rejected, Some(status)), "{location}");
            assert!(error(&report).ends_with("redirects are not followed"), "{report:?}");
            assert_eq!(receiver.seen().requests.len(), 1, "{location}");
        }
    }
    assert_eq!((allowed.seen().accepted, refused.seen().accepted), (0, 0));
}

#[tokio::test]
async fn c097_names_that_only_look_like_refused_addresses_are_delivered_to() {
    let receiver = Receiver::always(vec![Request, answer(200, "")]);
    let delivery = guarded(Names(|_: &str| Ok(vec![IpAddr::from(ALLOWED)])));
    for host in ["fcshop.example", "fd-news.example", "10.example", "localhost.example", "hook.example."] {
        let report = delivery.call(call(&format!("http://{host}:{}/", receiver.addr.port()))).await;
        assert_eq!(report.outcome, Outcome::Delivered, "{host}: {report:?}");
    }
}

#[tokio::test]
async fn c087_each_kind_of_no_answer_can_be_tried_again_and_says_what_it_was() {
    let down = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = delivery().call(call(&format!("http://{down}/"))).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "connection refused"));

    let unknown = guarded(Names(|_: &str| Err(io::Error::other("no such name"))));
    let report = unknown.call(call("http://gone.example/")).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "DNS: no such name"));

    let empty = guarded(Names(|_: &str| Ok(Vec::new())));
    let report = empty.call(call("http://empty.example/")).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "DNS: the name has no address"));

    let receiver = Receiver::always(vec![Request, Reset]);
    let report = delivery().call(call(&receiver.url())).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Unreachable, "connection reset"));
}

#[tokio::test]
async fn c087_an_address_that_refuses_does_not_keep_the_next_one_from_being_tried() {
    let receiver = Receiver::always(vec![Request, answer(200, "")]);
    let both = Names(|_: &str| Ok(vec![IpAddr::from(REFUSED), IpAddr::from(ALLOWED)]));
    let delivery = Delivery::with_resolver(config(), Arc::new(both)).unwrap();

    let report = delivery.call(call(&format!("http://two.example:{}/", receiver.addr.port()))).await;

    assert_eq!(report.outcome, Outcome::Delivered, "{report:?}");
}

#[tokio::test]
async fn c087_a_look_up_that_hangs_ends_with_the_attempt() {
    struct Hangs;
    impl Resolve for Hangs {
        fn resolve(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::pending())
        }
    }
    let limit = Duration::from_millis(200);
    let report = guarded(Hangs).call(Call { timeout: limit, ..call("http://slow.example/") }).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Timeout, "no answer within 200ms"));

    tokio::time::pause();
    let report = guarded(Hangs).call(call("http://slow.example/")).await;
    assert_eq!((report.outcome, error(&report)), (Outcome::Timeout, "no connection within 5s"));
}

/// Run by itself it is an ordinary delivery; the next test runs it under the environment of a proxy.
#[tokio::test]
async fn c099_child_delivers() {
    let receiver = Receiver::always(vec![Request, answer(200, "")]);
    let report = delivery().call(call(&receiver.url())).await;
    assert_eq!(report.outcome, Outcome::Delivered, "{report:?}");
}

#[test]
fn c099_a_proxy_of_the_environment_is_not_used() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "delivery::tests::target::c099_child_delivers"]);
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, format!("http://{dead}"));
    }
    let output = child.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Two receivers on one port, and a name that leads to the first until it is moved.
fn movable(first: Vec<Step>, second: Vec<Step>) -> (Receiver, Receiver, Delivery, Arc<AtomicUsize>) {
    let moved = Arc::new(AtomicUsize::new(0));
    let names = Names({
        let moved = Arc::clone(&moved);
        move |_: &str| Ok(vec![IpAddr::from(if moved.load(SeqCst) == 0 { ALLOWED } else { REFUSED })])
    });
    let delivery = Delivery::with_resolver(config(), Arc::new(names)).unwrap();
    for _ in 0..100 {
        let old = Receiver::always(first.clone());
        let new = SocketAddr::from((REFUSED, old.addr.port()));
        if let Ok(new) = Receiver::start_on(new, vec![second.clone()]) {
            return (old, new, delivery, moved);
        }
    }
    panic!("no port that is free on both addresses");
}

#[tokio::test]
async fn c110_a_name_that_moves_is_followed_within_the_age_of_a_connection() {
    let go = Arc::new(tokio::sync::Notify::new());
    // one request after the other on one connection: it is never idle for long
    let first =
        vec![Request, answer(200, ""), Request, Until(Arc::clone(&go)), answer(200, ""), Request, answer(500, "")];
    let (old, new, delivery, moved) = movable(first, vec![Request, answer(204, "")]);
    let call =
        || Call { timeout: Duration::from_secs(3600), ..call(&format!("http://x.example:{}/", old.addr.port())) };
    assert_eq!(delivery.call(call()).await.status, Some(200));
    moved.store(1, SeqCst);
    let under_way = tokio::spawn({
        let (delivery, call) = (delivery.clone(), call());
        async move { delivery.call(call).await }
    });
    old.until(|seen| seen.requests.len() == 2).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(61)).await;
    tokio::time::resume();
    go.notify_one();

    assert_eq!(under_way.await.unwrap().status, Some(200), "the old one may have what is on its way");
    assert_eq!(delivery.call(call()).await.status, Some(204), "the next one goes where the name leads");
    assert_eq!((old.seen().accepted, new.seen().accepted), (1, 1));
}

#[tokio::test]
async fn c110_a_receiver_that_goes_dark_costs_one_timeout() {
    let dark = vec![Request, answer(200, ""), Request, Rest];
    let (old, new, delivery, moved) = movable(dark, vec![Request, answer(204, "")]);
    let short = Duration::from_millis(500);
    let call = || Call { timeout: short, ..call(&format!("http://x.example:{}/", old.addr.port())) };
    assert_eq!(delivery.call(call()).await.status, Some(200));
    moved.store(1, SeqCst);

    assert_eq!(delivery.call(call()).await.outcome, Outcome::Timeout);
    assert_eq!(delivery.call(call()).await.status, Some(204));
    assert_eq!((old.seen().accepted, new.seen().accepted), (1, 1));
}
