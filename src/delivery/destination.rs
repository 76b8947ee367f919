//! Where a webhook is, as a request needs it: worked out once, not with each call.

use std::sync::Arc;

use hyper::{Uri, header::HeaderValue, http::uri::PathAndQuery};
use url::Url;

/// A webhook's URL, ready to be called. Cheap to clone. It has no `Debug`: its query may hold secrets.
#[derive(Clone)]
pub struct Destination(Option<Arc<Parts>>);

/// The parts of a URL that different hands need.
pub(super) struct Parts {
    /// Scheme, host and port: what shares connections.
    pub origin: Arc<str>,
    /// The whole of it, for those who dial.
    pub uri: Uri,
    /// What the request line shows.
    pub target: Uri,
    /// The `host` header.
    pub host: HeaderValue,
}

impl Destination {
    /// Takes a URL apart. One that cannot be written as HTTP fails when it is called.
    #[must_use]
    pub fn new(url: &Url) -> Self {
        Self(parts(url).map(Arc::new))
    }

    pub(super) fn parts(&self) -> Option<&Arc<Parts>> {
        self.0.as_ref()
    }
}

fn parts(url: &Url) -> Option<Parts> {
    let uri: Uri = url.as_str().parse().ok()?;
    let host = match url.port() {
        Some(port) => format!("{}:{port}", uri.host()?),
        None => uri.host()?.to_owned(),
    };
    let target = Uri::from(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    let origin = format!("{}://{}:{}", url.scheme(), uri.host()?, url.port_or_known_default()?);
    Some(Parts { origin: origin.into(), target, host: HeaderValue::try_from(host).ok()?, uri })
}
