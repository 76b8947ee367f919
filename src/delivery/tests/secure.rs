//! TLS: verified always. The receivers are plain threads with rustls on top of a socket.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ALL_VERSIONS, HandshakeKind, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
    pki_types::PrivateKeyDer,
};

use super::{
    receiver::{Receiver, Step::*, answer},
    *,
};

/// A certificate authority, and the file that `SSL_CERT_FILE` would name.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

fn authority(name: &str) -> Authority {
    let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
    params.distinguished_name.push(DnType::CommonName, name); // two of one name are told apart by signature only
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let cert = params.self_signed(&key).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let base64 = STANDARD.encode(cert.der());
    write!(file, "-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n").unwrap();
    Authority { issuer: Issuer::new(params, key), file }
}

/// A receiver that speaks TLS, answers one request with 200, and reads on.
fn tls_receiver(authority: &Authority, name: &str, edit: impl FnOnce(&mut CertificateParams)) -> SocketAddr {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    edit(&mut params);
    let cert = params.signed_by(&key, &authority.issuer).unwrap();
    serve(ALL_VERSIONS, cert.der().clone(), key, |mut stream| {
        if read_request(&mut stream) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
            while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
        }
    })
}

type Tls = StreamOwned<ServerConnection, std::net::TcpStream>;

/// Whether a whole one came.
fn read_request(stream: &mut Tls) -> bool {
    let (mut request, mut buf) = (Vec::new(), [0; 4096]);
    while !request.ends_with(br#"{"order_id": 1042}"#) {
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => request.extend_from_slice(&buf[..n]),
            _ => return false,
        }
    }
    true
}

fn serve(
    versions: &[&'static SupportedProtocolVersion],
    cert: rustls::pki_types::CertificateDer<'static>,
    key: KeyPair,
    talk: impl Fn(Tls) + Send + 'static,
) -> SocketAddr {
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    let (listener, config) = (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(config));
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in listener.incoming().map_while(Result::ok) {
            talk(StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), tcp));
        }
    });
    addr
}

fn trusting(authority: Option<&Authority>) -> Delivery {
    let extra_roots = authority.map(|a| a.file.path().to_owned());
    let here = Names(|_: &str| Ok(vec![IpAddr::from([127, 0, 0, 1])]));
    Delivery::with_resolver(DeliveryConfig { extra_roots, ..config() }, Arc::new(here)).unwrap()
}

#[tokio::test]
async fn s12_a_root_of_the_operators_file_is_trusted() {
    let authority = authority("known");
    for name in ["shop.example", "127.0.0.1"] {
        let addr = tls_receiver(&authority, name, |_| {});
        let report = trusting(Some(&authority)).call(call(&format!("https://{name}:{}/", addr.port()))).await;
        assert_eq!((report.outcome, report.response.as_deref()), (Outcome::Delivered, Some("ok")), "{report:?}");
    }
    let addr = tls_receiver(&authority, "shop.example", |_| {});
    let report = trusting(Some(&authority)).call(call(&format!("https://shop.example.:{}/", addr.port()))).await;
    assert_eq!(report.outcome, Outcome::Delivered, "trailing dot: {report:?}");
}

#[tokio::test]
async fn s12_what_does_not_verify_is_not_delivered_to() {
    let (known, unknown) = (authority("known"), authority("unknown"));
    let past = |params: &mut CertificateParams| params.not_after = date_time_ymd(2020, 1, 1);
    for (addr, why) in [
        (tls_receiver(&unknown, "shop.example", |_| {}), "UnknownIssuer"),
        (tls_receiver(&known, "other.example", |_| {}), "not valid for name"),
        (tls_receiver(&known, "shop.example", past), "expired"),
    ] {
        let report = trusting(Some(&known)).call(call(&format!("https://shop.example:{}/", addr.port()))).await;
        assert_eq!(report.outcome, Outcome::Unreachable, "{why}");
        assert!(error(&report).starts_with("TLS: ") && error(&report).contains(why), "{report:?}");
    }
    let addr = tls_receiver(&unknown, "shop.example", |_| {});
    let report = trusting(None).call(call(&format!("https://shop.example:{}/", addr.port()))).await;
    assert!(error(&report).contains("UnknownIssuer"), "{report:?}");
}

#[tokio::test]
async fn c087_a_handshake_that_is_cut_garbage_or_never_ends() {
    let delivery = trusting(None);
    for (script, outcome) in [
        (vec![], Outcome::Unreachable),
        (vec![Reset], Outcome::Unreachable),
        (vec![answer(400, "")], Outcome::Unreachable),
        (vec![Rest], Outcome::Timeout),
    ] {
        let receiver = Receiver::always(script);
        let url = format!("https://shop.example:{}/", receiver.addr.port());
        let report = delivery.call(Call { timeout: Duration::from_millis(500), ..call(&url) }).await;
        assert_eq!((report.outcome, report.status), (outcome, None), "{report:?}");
        let begins = if outcome == Outcome::Timeout { "no answer within" } else { "TLS: " };
        assert!(error(&report).starts_with(begins), "{report:?}");
        receiver.until(|seen| seen.ended == 1).await;
    }
}

#[tokio::test]
async fn a_receiver_that_stops_reading_loses_its_tls_connection_too() {
    let authority = authority("known");
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["shop.example".to_owned()]).unwrap().signed_by(&key, &authority.issuer);
    let (tell, told) = std::sync::mpsc::channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let addr = serve(ALL_VERSIONS, cert.unwrap().der().clone(), key, move |mut stream| {
        let mut buf = [0; 1024];
        let _ = stream.read(&mut buf); // the head; then it reads no more until the call is over
        let _ = wait.lock().unwrap().recv();
        let (mut tcp, mut rest) = (stream.sock, 0);
        let mut buf = [0; 65536];
        while let Ok(n @ 1..) = tcp.read(&mut buf) {
            rest += n;
        }
        let _ = tell.send(rest);
    });
    let body = bytes::Bytes::from(vec![b' '; 16 << 20]);
    let delivery = trusting(Some(&authority)); // kept, so that only a cut closes
    let report = delivery
        .call(Call {
            timeout: Duration::from_millis(1500),
            body: body.clone(),
            ..call(&format!("https://shop.example:{}/", addr.port()))
        })
        .await;
    assert_eq!(report.outcome, Outcome::Timeout, "{report:?}");
    go.send(()).unwrap();
    let rest = tokio::task::spawn_blocking(move || told.recv_timeout(Duration::from_secs(20))).await.unwrap();
    assert!(rest.expect("the connection was kept") < body.len());
}

/// A receiver of any `*.shop.example` that closes after each answer, and how each of its handshakes went.
fn closing_receiver(
    authority: &Authority,
    version: &'static SupportedProtocolVersion,
) -> (SocketAddr, std::sync::mpsc::Receiver<Option<HandshakeKind>>) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["*.shop.example".to_owned()]).unwrap().signed_by(&key, &authority.issuer);
    let (tell, told) = std::sync::mpsc::channel();
    let addr = serve(&[version], cert.unwrap().der().clone(), key, move |mut stream| {
        if read_request(&mut stream) {
            let _ = tell.send(stream.conn.handshake_kind());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    (addr, told)
}

#[tokio::test]
async fn a_further_connection_resumes_the_session_of_one_before() {
    let authority = authority("known");
    for version in ALL_VERSIONS {
        let (delivery, (addr, told)) = (trusting(Some(&authority)), closing_receiver(&authority, version));
        for _ in 0..4 {
            let report = delivery.call(call(&format!("https://a.shop.example:{}/", addr.port()))).await;
            assert_eq!(report.outcome, Outcome::Delivered, "{report:?}");
        }
        let kinds: Vec<_> = told.try_iter().flatten().collect();
        let resumed = HandshakeKind::Resumed;
        assert_eq!(kinds, [HandshakeKind::Full, resumed, resumed, resumed], "{version:?}");
    }
}

#[tokio::test]
async fn sessions_of_more_hosts_are_kept_than_the_library_keeps_by_itself() {
    let authority = authority("known");
    let (delivery, (addr, told)) = (trusting(Some(&authority)), closing_receiver(&authority, ALL_VERSIONS[0]));
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        for host in 0..40 {
            let report = delivery.call(call(&format!("https://h{host}.shop.example:{}/", addr.port()))).await;
            assert_eq!(report.outcome, Outcome::Delivered, "{report:?}");
        }
        let kinds: Vec<_> = told.try_iter().flatten().collect();
        assert_eq!(kinds, [kind; 40]);
    }
}

#[test]
fn a_file_without_roots_is_an_error_at_start() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let with = |path: PathBuf| Delivery::new(DeliveryConfig { extra_roots: Some(path), ..config() }).err().unwrap();
    assert!(with(empty.path().to_owned()).to_string().starts_with("no certificate in "));
    assert!(matches!(with(empty.path().join("gone")), DeliveryError::Roots(_)));
}
