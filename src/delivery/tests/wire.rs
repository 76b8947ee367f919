//! The bytes that a receiver sees.

use hyper::{Uri, header::HeaderMap};

use super::{
    receiver::{Receiver, Step::*, answer},
    *,
};

/// Sends a call and returns the head's lines, the first one apart, and the body.
async fn seen(make: impl FnOnce(&Receiver) -> Call<'static>, delivery: &Delivery) -> (String, Vec<String>, Vec<u8>) {
    let receiver = Receiver::always(vec![Request, answer(200, "")]);
    let report = delivery.call(make(&receiver)).await;
    assert_eq!(report.outcome, Outcome::Delivered, "{report:?}");
    let request = receiver.seen().requests.remove(0);
    let end = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(request[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n").map(str::to_owned);
    (lines.next().unwrap(), lines.collect(), request[end + 4..].to_vec())
}

#[tokio::test]
async fn a_delivery_is_exactly_what_the_contract_shows() {
    let mut authority = String::new();
    let (line, headers, body) = seen(
        |receiver| {
            authority = receiver.addr.to_string();
            let traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap());
            Call { traceparent, attempt: 3, ..call(&receiver.url()) }
        },
        &delivery(),
    )
    .await;
    let mut signature = String::new();
    Signers::new(&[Secret::from_bytes(&[7; 32]).unwrap()]).sign(
        "01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60",
        1_796_059_500,
        br#"{"order_id": 1042}"#,
        &mut signature,
    );

    assert_eq!(line, "POST /hook HTTP/1.1");
    assert_eq!(
        headers,
        [
            "content-type: application/json",
            "user-agent: duepost/test",
            "webhook-id: 01a22d7d-0de0-7c3a-9f00-1b2c3d4e5f60",
            "webhook-timestamp: 1796059500",
            &format!("webhook-signature: {signature}"),
            "duepost-queue: orders",
            "duepost-task-id: order-1042-timeout",
            "duepost-attempt: 3",
            "duepost-run-at: 2026-11-30T17:25:00.000Z",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &format!("host: {authority}"),
            "content-length: 18",
        ]
    );
    assert_eq!(body, br#"{"order_id": 1042}"#);
}

#[tokio::test]
async fn s13_what_arrived_verifies_with_the_official_library_under_either_secret() {
    let [old, new] = [[1; 32], [2; 32]].map(|key| Secret::from_bytes(&key).unwrap());
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let body = "{\"a\":\t1.00, \"a\": \"\\u00fc ü\"}\n";
    let (_, headers, arrived) = seen(
        |receiver| Call {
            signers: Signers::new(&[new.clone(), old.clone()]),
            started_at: UnixMs(now),
            body: body.into(),
            ..call(&receiver.url())
        },
        &delivery(),
    )
    .await;
    let headers = headers.iter().map(|line| line.split_once(": ").unwrap());
    let headers: HeaderMap = headers.map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();

    assert_eq!(arrived, body.as_bytes());
    for secret in [old, new] {
        standardwebhooks::Webhook::new(&secret.to_text()).unwrap().verify(&arrived, &headers).unwrap();
    }
}

#[tokio::test]
async fn s7_custom_headers_arrive_and_owned_ones_cannot_be_replaced() {
    let custom = [
        ("x-tenant", "acme"),
        ("authorization", "Bearer a\tb ~"),
        ("webhook-signature", "v1,forged"),
        ("webhook-id", "forged"),
        ("duepost-attempt", "9"),
        ("content-type", "text/plain"),
        ("content-length", "1"),
        ("transfer-encoding", "chunked"),
        ("host", "forged.example"),
        ("connection", "close"),
    ];
    let custom = custom.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
    let (_, headers, body) = seen(|receiver| Call { headers: custom, ..call(&receiver.url()) }, &delivery()).await;
    let text = headers.join("\n");

    assert!(headers.contains(&"x-tenant: acme".to_owned()), "{text}");
    assert!(headers.contains(&"authorization: Bearer a\tb ~".to_owned()), "{text}");
    assert!(!text.contains("forged") && !text.contains("chunked") && !text.contains("close"), "{text}");
    assert!(text.contains("content-length: 18") && text.contains("duepost-attempt: 1"), "{text}");
    assert_eq!(body.len(), 18);
    let mut names: Vec<_> = headers.iter().map(|line| line.split(':').next().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), headers.len(), "a header twice: {text}");
}

#[tokio::test]
async fn c108_the_url_on_the_wire() {
    let delivery = guarded(Names(|_: &str| Ok(vec!["127.0.0.1".parse().unwrap()])));
    for (url, line, host) in [
        ("http://h:PORT", "POST / HTTP/1.1", "h:PORT"),
        ("http://h:PORT?q", "POST /?q HTTP/1.1", "h:PORT"),
        ("http://H:PORT/a//b/?a=1&a=%zz&&q=ü'[]", "POST /a//b/?a=1&a=%zz&&q=%C3%BC%27[] HTTP/1.1", "h:PORT"),
        ("http://bücher.example:PORT/", "POST / HTTP/1.1", "xn--bcher-kva.example:PORT"),
        ("http://h.example.:PORT/", "POST / HTTP/1.1", "h.example.:PORT"),
        ("http://0x7f.1:PORT/", "POST / HTTP/1.1", "127.0.0.1:PORT"),
    ] {
        let mut port = String::new();
        let make = |receiver: &Receiver| {
            port = receiver.addr.port().to_string();
            call(&url.replace("PORT", &port))
        };
        let (seen_line, headers, _) = seen(make, &delivery).await;
        assert_eq!(seen_line, line, "{url}");
        assert!(headers.contains(&format!("host: {}", host.replace("PORT", &port))), "{url}: {headers:?}");
    }
}

proptest::proptest! {
    #[test]
    fn every_url_that_registers_can_be_sent(text in "http://[!-~]{1,12}[/?][!-~\\u{a1}-\\u{300}]{0,30}") {
        if let Ok(url) = parse_target(&text) {
            let uri: Uri = url.as_str().parse().unwrap();
            let sent = uri.path_and_query().unwrap().as_str();
            let meant = &url[url::Position::BeforePath..];
            proptest::prop_assert!(sent == meant || format!("{sent}?") == meant, "{} is not {}", sent, meant);
        }
    }
}
