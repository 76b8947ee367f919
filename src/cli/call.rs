//! One call of a running service: whom to ask, with which key, and what came back.
//!
//! The key comes from a file or the environment; on the command line it is taken too, but seen in the list of processes.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Method, Request, header};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::Value;

use super::CliError;
use crate::telemetry::chain;

/// The whole time of a call.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of an answer, at most.
const ANSWER_MAX: usize = 64 << 20;
/// Where a service listens that was told nothing.
const DEFAULT_URL: &str = "http://127.0.0.1:8710";

/// Whom to ask, and how to answer.
#[derive(Debug, Clone, Default, Args)]
pub struct Target {
    /// The service [env: DUEPOST_URL] [default: http://127.0.0.1:8710]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// File with the API key; else the key itself comes from DUEPOST_KEY [env: DUEPOST_KEY_FILE]
    #[arg(long, value_name = "PATH", conflicts_with = "key")]
    key_file: Option<PathBuf>,
    /// The API key itself. Others on this machine can see it: better --key-file or DUEPOST_KEY
    #[arg(long, value_name = "KEY")]
    key: Option<Hidden>,
    /// Print the answer of the API as JSON
    #[arg(long)]
    pub json: bool,
}

/// A text that no `Debug` shows.
#[derive(Clone)]
struct Hidden(String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl std::str::FromStr for Hidden {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The environment, by name.
pub type Env = BTreeMap<String, String>;

/// A service that can be asked.
pub struct Service {
    base: String,
    authorization: Option<header::HeaderValue>,
    roots: Option<PathBuf>,
}

/// An answer with 2xx.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body as it came.
    pub text: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Errors
    /// It is none: somebody else answered.
    pub fn json(&self) -> Result<Value, CliError> {
        serde_json::from_str(&self.text).map_err(|_| CliError::Answer("it is not JSON".to_owned()))
    }
}

impl Service {
    /// From flags and environment.
    ///
    /// # Errors
    /// A URL or a key that is none.
    pub fn of(target: &Target, env: &Env, cwd: &Path) -> Result<Self, CliError> {
        let given = |name: &str| env.get(name).filter(|text| !text.is_empty());
        let base = target.url.as_ref().or_else(|| given("DUEPOST_URL")).map_or(DEFAULT_URL, String::as_str);
        let url = url::Url::parse(base).map_err(|_| CliError::ServiceUrl)?;
        let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        if !matches!(url.scheme(), "http" | "https") || !plain || url.fragment().is_some() {
            return Err(CliError::ServiceUrl);
        }
        let file = target.key_file.clone().or_else(|| given("DUEPOST_KEY_FILE").map(PathBuf::from));
        let key = match (&target.key, target.key_file.is_some(), given("DUEPOST_KEY"), file) {
            (Some(key), ..) => Some(key.0.clone()),
            (None, false, Some(key), _) => Some(key.clone()),
            (None, _, _, Some(path)) => {
                let text = std::fs::read_to_string(cwd.join(&path)).map_err(|e| CliError::KeyFile(path, e))?;
                Some(text)
            }
            (None, _, _, None) => None,
        };
        let header = |key: String| {
            let mut value = header::HeaderValue::try_from(format!("Bearer {}", key.trim())).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        let authorization = key.map(|key| header(key).ok_or(CliError::Key)).transpose()?;
        let roots = given("SSL_CERT_FILE").map(|path| cwd.join(path));
        Ok(Self { base: url.as_str().trim_end_matches('/').to_owned(), authorization, roots })
    }

    /// Calls and waits for the whole answer.
    ///
    /// # Errors
    /// No answer, or one that is not 2xx.
    pub fn call(&self, method: Method, path: &str, body: Option<String>) -> Result<Reply, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| CliError::Silent(self.base.clone(), e.to_string()))?;
        runtime.block_on(async {
            let exchange = tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await;
            exchange.unwrap_or_else(|_| Err(self.silent(format!("none within {} s", PATIENCE.as_secs()))))
        })
    }

    fn silent(&self, why: impl Into<String>) -> CliError {
        CliError::Silent(self.base.clone(), why.into())
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<String>) -> Result<Reply, CliError> {
        let tls = crate::delivery::client_tls(self.roots.as_deref()).map_err(|e| self.silent(e.to_string()))?;
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let client = Client::builder(TokioExecutor::new()).build(connector.enable_http1().build());
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(header::USER_AGENT, concat!("duepost-cli/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body.unwrap_or_default())));
        let request = request.map_err(|_| CliError::ServiceUrl)?;
        let answer = client.request(request).await.map_err(|e| self.silent(chain(&e)))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|e| self.silent(e.to_string()))?.to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if (200..300).contains(&status) { Ok(Reply { status, text }) } else { Err(CliError::Refused { status, text }) }
    }
}

/// A name as one segment of a path.
#[must_use]
pub fn segment(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'~');
    name.bytes().map(|b| if plain(b) || b == b'.' { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(target: &Target, env: &[(&str, &str)]) -> Result<Service, CliError> {
        let env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Service::of(target, &env, Path::new("/"))
    }

    #[test]
    fn the_key_comes_from_the_flag_then_the_file_then_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("key"), dir.path().join("other"));
        std::fs::write(&file, "dp_file\n").unwrap();
        std::fs::write(&other, "dp_other").unwrap();
        let (key, at_file) = (Some(Hidden("dp_flag".to_owned())), Some(file));
        let env = [("DUEPOST_KEY", "dp_env"), ("DUEPOST_KEY_FILE", other.to_str().unwrap())];
        for (target, env, wanted) in [
            (Target { key, ..Target::default() }, &env[..], Some("Bearer dp_flag")),
            (Target { key_file: at_file, ..Target::default() }, &env, Some("Bearer dp_file")),
            (Target::default(), &env, Some("Bearer dp_env")),
            (Target::default(), &env[1..], Some("Bearer dp_other")),
            (Target::default(), &[("DUEPOST_KEY", "")], None),
        ] {
            let got = service(&target, env).unwrap().authorization;
            assert_eq!(got.as_ref().map(|v| v.to_str().unwrap()), wanted);
            assert!(!format!("{target:?} {got:?}").contains("dp_"), "no key in any Debug");
        }
    }

    #[test]
    fn a_url_has_nothing_in_it_that_would_be_dropped() {
        for (url, base) in [("http://h", "http://h"), ("https://h:1/api/", "https://h:1/api")] {
            assert_eq!(service(&Target::default(), &[("DUEPOST_URL", url)]).unwrap().base, base);
        }
        for bad in ["h:8710", "ftp://h", "http://u:p@h", "http://h?x=1", "http://h#x", "nonsense"] {
            assert!(matches!(service(&Target::default(), &[("DUEPOST_URL", bad)]), Err(CliError::ServiceUrl)), "{bad}");
        }
    }

    #[test]
    fn a_name_stays_one_segment() {
        assert_eq!(segment("a/b c?d#e%"), "a%2Fb%20c%3Fd%23e%25");
        assert_eq!(segment("order-1042_x.~:@"), "order-1042_x.~%3A%40");
    }
}
