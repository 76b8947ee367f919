//! A small HTTP client of the service: keep-alive for calls, raw bytes for what no client would send.

use std::{collections::HashMap, time::Duration};

use axum::http::{HeaderMap, Method, Request};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, value::RawValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// No call of a test may take longer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why there is no answer: refused, reset, closed, or too late.
pub type NoAnswer = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone)]
pub struct Client {
    http: legacy::Client<HttpConnector, Full<Bytes>>,
    address: String,
}

/// A JSON body: a value, or a text that goes out byte for byte.
pub struct Json(Bytes);

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        Self(value.to_string().into())
    }
}

impl From<&Value> for Json {
    fn from(value: &Value) -> Self {
        Self(value.to_string().into())
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self(text.to_owned().into())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<Vec<u8>> for Json {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl Client {
    /// Of the service at `127.0.0.1:port`.
    pub fn new(address: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self { http: legacy::Client::builder(TokioExecutor::new()).build(connector), address: address.to_owned() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Json>) -> Answer {
        self.call(Method::POST, path, Some(body.into())).await
    }

    pub async fn put(&self, path: &str, body: impl Into<Json>) -> Answer {
        self.call(Method::PUT, path, Some(body.into())).await
    }

    pub async fn patch(&self, path: &str, body: impl Into<Json>) -> Answer {
        self.call(Method::PATCH, path, Some(body.into())).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, None).await
    }

    async fn call(&self, method: Method, path: &str, body: Option<Json>) -> Answer {
        let answer = self.try_call(method.clone(), path, body).await;
        answer.unwrap_or_else(|e| panic!("{method} {path}: {e:?}"))
    }

    /// A call that may go unanswered, as when the service is killed. A body is sent as `application/json`.
    pub async fn try_call(&self, method: Method, path: &str, body: Option<Json>) -> Result<Answer, NoAnswer> {
        let content_type = body.is_some().then_some(("content-type", "application/json"));
        self.request(method, path, content_type.as_slice(), body).await
    }

    /// A call with exactly these headers.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Json>,
    ) -> Result<Answer, NoAnswer> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.map(|b| b.0).unwrap_or_default()))?;
        let exchange = async {
            let (head, body) = self.http.request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, NoAnswer>(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(DEADLINE, exchange).await?
    }

    /// Sends these bytes on a connection of their own and gives all that comes back until the service closes it.
    /// Say `connection: close` where the request is a valid one.
    pub async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let stream = TcpStream::connect(&self.address).await.expect("the service listens");
        let (mut read, mut write) = stream.into_split();
        let mut answer = Vec::new();
        // A service may answer and close before it has read all: neither half's error says that no answer came.
        let sending = async {
            let _ = write.write_all(bytes).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = sending => unreachable!("waits for ever once sent"),
            _ = read.read_to_end(&mut answer) => {}
            () = tokio::time::sleep(DEADLINE) => panic!("the service did not close: {}", String::from_utf8_lossy(&answer)),
        }
        answer
    }

    /// One request with this method and target exactly as written, on a connection of its own.
    pub async fn raw_call(&self, method: &str, target: &str, body: &str) -> Answer {
        let head = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        Answer::parse(&self.raw(format!("{head}{body}").as_bytes()).await)
    }
}

/// A path segment or query value with everything but letters and digits percent-encoded.
pub fn encoded(segment: &str, upper: bool) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ if upper => format!("%{byte:02X}"),
        _ => format!("%{byte:02x}"),
    };
    segment.bytes().map(encode).collect()
}

/// An answer of the service.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// From the bytes of one whole answer that is not chunked.
    #[track_caller]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let end = text.find("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        let mut lines = text[..end].split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|s| s.parse().ok());
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.parse().expect("a header name"), value.trim().parse().expect("a header value")));
        let headers: HeaderMap = headers.collect();
        Self { status: status.expect("a status"), headers, body: bytes[end + 4..].to_vec().into() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {} {:?}", self.status, self.text()))
    }

    /// The object without one field: for payloads that are JSON but more than a tree of values can hold.
    #[track_caller]
    pub fn json_without(&self, name: &str) -> Value {
        let fields = self.raw_fields();
        let parse = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).expect("JSON");
        fields.iter().filter(|(field, _)| *field != name).map(|(field, raw)| (field.clone(), parse(raw))).collect()
    }

    /// A field of the object exactly as it is written in the answer; `None` when it is not there.
    #[track_caller]
    pub fn raw_field(&self, name: &str) -> Option<String> {
        self.raw_fields().get(name).map(|raw| raw.get().to_owned())
    }

    #[track_caller]
    fn raw_fields(&self) -> HashMap<String, Box<RawValue>> {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {} {:?}", self.status, self.text()))
    }

    /// Goes on only with this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Goes on only with this status and problem type, in the form that every error has; gives the problem.
    #[track_caller]
    pub fn problem(&self, status: u16, slug: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["type"], format!("/problems/{slug}"), "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
        for text in ["title", "detail", "request_id"] {
            assert!(problem[text].as_str().is_some_and(|t| !t.is_empty()), "no {text} in {problem}");
        }
        assert_eq!(self.header("x-request-id"), problem["request_id"].as_str(), "{problem}");
        problem
    }

    /// Goes on only with a 400 whose `errors` name this field.
    #[track_caller]
    pub fn refuses(&self, field: &str) -> Value {
        let problem = self.problem(400, "invalid-request");
        let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("no errors in {problem}"));
        let named = errors.iter().any(|e| e["field"] == field && e["message"].as_str().is_some_and(|m| !m.is_empty()));
        assert!(named, "{field} is not named in {problem}");
        problem
    }
}
