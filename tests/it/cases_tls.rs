//! C182, S12: Redis over TLS is verified, by the name asked for and the roots given; and C179: the database of the URL.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{RedisServer, Service, process, secs, service::Builder, until};

/// Certificates in a directory: `ca.pem`, `other.pem` (of nobody here), and a server's for `localhost`.
struct Papers(TempDir);

impl Papers {
    fn new() -> Self {
        let it = Self(tempfile::tempdir().unwrap());
        let ca = it.authority("ca.pem");
        it.authority("other.pem");
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &ca).unwrap();
        it.write("server.pem", "CERTIFICATE", cert.der());
        it.write("server.key", "PRIVATE KEY", &key.serialize_der());
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, kind: &str, der: &[u8]) {
        use base64::{Engine as _, engine::general_purpose::STANDARD};
        let text = STANDARD.encode(der);
        let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        let pem = format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", lines.join("\n"));
        std::fs::write(self.path(name), pem).unwrap();
    }

    fn authority(&self, file: &str) -> Issuer<'static, KeyPair> {
        let (key, mut params) = (KeyPair::generate().unwrap(), CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, "the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        self.write(file, "CERTIFICATE", params.self_signed(&key).unwrap().der());
        Issuer::new(params, key)
    }
}

/// Whether the redis-server here was built with TLS.
fn speaks_tls() -> bool {
    let program = process::on_path(&["redis-server", "valkey-server"]).expect("the tests need redis-server");
    let output = std::process::Command::new(program).args(["--port", "0", "--tls-port", "1"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    !told.contains("Bad directive")
}

fn serve(url: &str, roots: &Path) -> Builder {
    let args = ["serve", "--listen", "127.0.0.1:0", "--redis", url, "--allow-private-targets"];
    Builder::bare(&args).env("SSL_CERT_FILE", roots.to_str().unwrap())
}

#[tokio::test]
async fn c182_redis_over_tls_is_verified_and_reconnected_to() {
    if !speaks_tls() {
        eprintln!("skipped: this redis-server speaks no TLS");
        return;
    }
    let papers = Papers::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = |name: &str| papers.path(name).to_str().unwrap().to_owned();
    let mut redis = RedisServer::start_with(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always", // with a slow disk `everysec` puts its writes off, so that even kill -9 loses some
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ])
    .await;
    let ca = papers.path("ca.pem");

    let service = serve(&format!("rediss://localhost:{port}"), &ca).start().await;
    let api = service.client();
    // a TLS connection of its own may take its time on a busy machine
    let post = async || api.post("/queues/q/tasks", json!({"id": "t", "payload": 1, "delay": "1h"})).await;
    until(secs(10), async || Some(post().await).filter(|a| a.status != 503)).await.expect(201);
    redis.restart().await;
    let answer = until(secs(10), async || Some(api.get("/queues/q/tasks/t").await).filter(|a| a.status != 503)).await;
    answer.expect(200);

    let plain = redis.port();
    let wrong = [
        (format!("rediss://localhost:{port}"), papers.path("other.pem"), "refuses the service: "),
        (format!("rediss://127.0.0.1:{port}"), ca.clone(), "refuses the service: "),
        (format!("rediss://localhost:{plain}"), ca.clone(), "waiting for redis"),
        (format!("redis://localhost:{port}"), ca.clone(), "waiting for redis"),
    ];
    let starts = wrong.iter().map(|(url, roots, _)| serve(url, roots).try_start(secs(4)));
    for ((url, _, told), started) in wrong.iter().zip(join_all(starts).await) {
        let Err(failed) = started else { panic!("{url} is let in") };
        let log = failed.stderr.to_lowercase();
        assert!(log.contains(told), "{url}: {failed:#?}");
        assert!(told.starts_with("waiting") || log.contains("certificate"), "{url}: {failed:#?}");
    }
}

#[tokio::test]
async fn c179_the_database_of_the_url_is_the_one_in_use() {
    let redis = RedisServer::start().await;
    for (path, database) in [("/5", "5"), ("/15/", "15"), ("//", "0")] {
        let url = format!("{}{path}", redis.url());
        let service = Builder::bare(&["serve", "--listen", "127.0.0.1:0", "--redis", &url]).start().await;
        service.client().post("/queues/q/tasks", json!({"payload": 1, "delay": "1h"})).await.expect(201);
        drop::<Service>(service);
        let space: String = redis.command(&["INFO", "keyspace"]).await;
        let used: Vec<&str> = space.lines().filter_map(|l| l.strip_prefix("db")?.split(':').next()).collect();
        assert_eq!(used, [database], "{path}: {space}");
        redis.command::<()>(&["FLUSHALL"]).await;
    }
    // there are 16: the server says so, and the start does
    let url = format!("{}/16", redis.url());
    let args = ["serve", "--listen", "127.0.0.1:0", "--redis", &url];
    let Err(failed) = Builder::bare(&args).try_start(Duration::from_secs(20)).await else { panic!("let in") };
    assert!(failed.stderr.contains("refuses the service: "), "{failed:#?}");
    assert_eq!(failed.status.and_then(|s| s.code()), Some(78), "{failed:#?}");
}
