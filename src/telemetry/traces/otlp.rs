//! Spans by the OpenTelemetry SDK, which reads sampler, names, queue and batch sizes from the standard variables itself. Its
//! queue is bounded and drops what does not fit; a thread of its own sends batches, so a slow collector slows nobody.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
        Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider, Span},
};

use super::{Delivering, ENQUEUES};
use crate::{
    domain::attempt::{Outcome, Report},
    telemetry::chain,
};

/// Bytes of its answer, at most.
const ANSWER_MAX: usize = 64 << 10;
/// What the service is called unless a variable says otherwise.
const SERVICE: &str = "duepost";

/// Where spans are made; off by default. Clones share one exporter.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<On>>);

struct On {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Traces(on)" } else { "Traces(off)" })
    }
}

impl Traces {
    /// Begins to export, to where the standard variables say; `timeout` is the whole time of one call. Needs a Tokio runtime.
    ///
    /// # Errors
    /// A variable is no good; the text repeats no value.
    pub fn start(tls: rustls::ClientConfig, timeout: Duration) -> Result<Self, &'static str> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Caller::new(tls, timeout))
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|_| "the endpoint or the compression of the OTEL_EXPORTER_OTLP variables cannot be used")?;
        let named = Resource::builder().build();
        let name = named.get(&"service.name".into()).map(|name| name.to_string()).unwrap_or_default();
        let mut resource = Resource::builder();
        if name.is_empty() || name.starts_with("unknown_service") {
            resource = resource.with_service_name(SERVICE);
        }
        if named.get(&"service.version".into()).is_none() {
            resource = resource.with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        }
        let provider =
            SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build();
        Ok(Self(Some(Arc::new(On { tracer: provider.tracer("duepost"), provider }))))
    }

    /// A request begins; a span only if it is one that enqueues.
    #[must_use]
    pub fn request(
        &self,
        operation: &'static str,
        path: &str,
        parent: impl FnOnce() -> Option<String>,
    ) -> Option<RequestSpan> {
        let on = self.0.as_ref()?;
        if !ENQUEUES.contains(&operation) {
            return None;
        }
        let mut attributes = vec![KeyValue::new("messaging.system", SERVICE)];
        attributes.push(KeyValue::new("messaging.operation.name", operation));
        if let Some(queue) = path.split('/').nth(2) {
            attributes.push(KeyValue::new("messaging.destination.name", queue.to_owned()));
        }
        let parent = parent().as_deref().and_then(context_of);
        let is_root = parent.is_none();
        let context = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let builder = on.tracer.span_builder(operation).with_kind(SpanKind::Server).with_attributes(attributes);
        Some(RequestSpan { span: on.tracer.build_with_context(builder, &context), is_root })
    }

    /// An attempt begins.
    #[must_use]
    pub fn attempt(&self, it: &Delivering<'_>) -> Option<AttemptSpan> {
        let on = self.0.as_ref()?;
        let mut attributes = vec![
            KeyValue::new("messaging.system", SERVICE),
            KeyValue::new("messaging.operation.name", "deliver"),
            KeyValue::new("messaging.destination.name", it.queue.to_owned()),
            KeyValue::new("messaging.message.id", it.uid.to_string()),
            KeyValue::new("duepost.task.id", it.task.to_owned()),
            KeyValue::new("duepost.webhook.id", it.webhook.to_owned()),
            KeyValue::new("duepost.attempt", i64::from(it.number)),
            KeyValue::new("duepost.lateness_ms", i64::try_from(it.lateness.as_millis()).unwrap_or(i64::MAX)),
        ];
        attributes.extend(it.host.map(|host| KeyValue::new("server.address", host.to_owned())));
        let links = it.link.and_then(context_of).map(Link::with_context).into_iter().collect();
        let builder = on.tracer.span_builder("deliver").with_kind(SpanKind::Client);
        let builder = builder.with_attributes(attributes).with_links(links);
        Some(AttemptSpan(on.tracer.build_with_context(builder, &Context::new())))
    }

    /// Sends what is left, for so long at most.
    pub async fn stop(&self, patience: Duration) {
        let Some(on) = self.0.clone() else { return };
        let flushed = tokio::task::spawn_blocking(move || on.provider.shutdown_with_timeout(patience)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the last traces did not reach their collector");
        }
    }
}

/// A request that enqueues. Dropped unended (its client has gone), it ends without a status.
pub struct RequestSpan {
    span: Span,
    is_root: bool,
}

impl RequestSpan {
    /// What the task is to store if the request brought none of its own.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let it = self.span.span_context();
        (self.is_root && it.is_sampled())
            .then(|| format!("00-{}-{}-{:02x}", it.trace_id(), it.span_id(), it.trace_flags().to_u8()))
    }

    /// It was answered.
    pub fn end(mut self, status: u16) {
        self.span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            self.span.set_status(Status::error(""));
        }
        self.span.end();
    }
}

/// An attempt under way. Dropped unended (it was given back), it ends without an outcome.
pub struct AttemptSpan(Span);

impl AttemptSpan {
    /// It came to this.
    pub fn end(mut self, report: &Report) {
        let outcome = report.outcome.as_str();
        self.0.set_attribute(KeyValue::new("duepost.outcome", outcome));
        if let Some(status) = report.status {
            self.0.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if report.outcome != Outcome::Delivered {
            self.0.set_attribute(KeyValue::new("error.type", outcome));
            self.0.set_status(Status::error(outcome));
        }
        self.0.end();
    }
}

/// The context that a well-formed `traceparent` names.
fn context_of(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let (trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    context.is_valid().then_some(context)
}

/// Calls the collector on the service's runtime, whatever thread asks, and says once that it does not answer.
struct Caller {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: tokio::runtime::Handle,
    timeout: Duration,
    is_down: AtomicBool,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caller")
    }
}

impl Caller {
    fn new(tls: rustls::ClientConfig, timeout: Duration) -> Self {
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, runtime: tokio::runtime::Handle::current(), timeout, is_down: AtomicBool::new(false) }
    }

    fn tell(&self, answer: &Result<Response<Bytes>, HttpError>) {
        let why = match answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(chain(error.as_ref())),
        };
        let was_down = self.is_down.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was_down => tracing::warn!("traces are lost: their collector does not take them: {why}"),
            None if was_down => tracing::info!("the collector of traces takes them again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Caller {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, timeout) = (self.client.clone(), self.timeout);
        let exchange = async move {
            let (head, body) = client.request(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // the timer too belongs to the runtime, and this thread does not
        let timed = async move { tokio::time::timeout(timeout, exchange).await };
        let answer = match self.runtime.spawn(timed).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("no answer in time".into()),
            Err(_) => return Err("the service has ended".into()),
        };
        self.tell(&answer);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn off_makes_no_spans_and_stops_at_once() {
        let off = Traces::default();
        assert!(off.request("create_task", "/queues/orders/tasks", || None).is_none());
        off.stop(Duration::from_secs(60)).await;
    }

    #[test]
    fn a_traceparent_names_its_context() {
        let it = context_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(it.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(it.span_id().to_string(), "b7ad6b7169203331");
        assert!(it.is_sampled() && it.is_remote());
        for bad in ["", "00", "00-x-y-z", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
            assert!(context_of(bad).is_none(), "{bad}");
        }
    }
}
