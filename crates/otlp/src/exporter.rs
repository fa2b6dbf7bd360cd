//! The exporter: takes spans from the queue and sends them in batches.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use headwater_api::metrics::Counter;
use headwater_api::trace::{TraceSpan, TraceValue};
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::proto::{
    EXPORT, ExportTraces, ExportedTraces, KIND_INTERNAL, KIND_SERVER, ResourceSpans, STATUS_ERROR,
    ScalarValue, ScopeSpans, SpanAttribute, SpanLink, SpanMessage, SpanScope, SpanStatus,
    SpanValue, TracedProcess,
};

/// The spans of one call.
const BATCH_MAX: usize = 512;

/// How long spans wait for others of their batch.
const GATHER: Duration = Duration::from_secs(1);

/// The time of one call.
const DEADLINE: Duration = Duration::from_secs(10);

/// The time of the last call when the server stops.
const LAST_DEADLINE: Duration = Duration::from_secs(2);

/// Calls for one batch, and the pause before the second; each later pause is twice as long.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// Where spans are sent.
#[derive(Clone, Debug)]
pub struct ExporterOptions {
    /// The address of the collector: a host and a port, with or without `dns:///` or `http://`.
    pub endpoint: String,
    /// Headers of each call, such as a credential: `name=value` pairs with commas between them.
    pub headers: String,
    /// More names of this process, in the same form.
    pub attributes: String,
    /// The version of this program.
    pub version: String,
}

/// Options that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidExporter {
    /// The endpoint is none.
    #[error(
        "the endpoint {0:?} must be a host and a port, such as localhost:4317; TLS is not supported"
    )]
    Endpoint(String),
    /// A list of pairs is malformed. Its values may be credentials.
    #[error("{0} must have the form name=value,name=value")]
    Pairs(&'static str),
}

/// Sends spans to a collector.
pub struct Exporter {
    endpoint: String,
    channel: Channel,
    headers: Vec<(MetadataKey<Ascii>, MetadataValue<Ascii>)>,
    process: TracedProcess,
    scope: SpanScope,
    exported: Arc<Counter>,
    lost: Arc<Counter>,
    /// Whether the last call failed, so that a failure is logged once.
    is_failing: bool,
}

impl Exporter {
    /// The exporter to a collector. It is connected on demand. `exported` and `lost` count spans.
    pub fn new(
        options: &ExporterOptions,
        exported: Arc<Counter>,
        lost: Arc<Counter>,
    ) -> Result<Exporter, InvalidExporter> {
        let invalid = || InvalidExporter::Endpoint(options.endpoint.clone());
        let given = options.endpoint.as_str();
        let address = ["dns:///", "dns://", "http://"].iter().find_map(|p| given.strip_prefix(p));
        let address = address.unwrap_or(given).trim_end_matches('/');
        if address.is_empty() || address.contains('/') || !address.contains(':') {
            return Err(invalid());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| invalid())?;
        let mut process = vec![
            SpanAttribute::text("service.name", "headwater"),
            SpanAttribute::text("service.version", &options.version),
        ];
        let wrong = InvalidExporter::Pairs("OTEL_RESOURCE_ATTRIBUTES");
        for (key, value) in pairs(&options.attributes).ok_or(wrong)? {
            process.retain(|known| known.key != key);
            process.push(SpanAttribute::text(&key, &value));
        }
        let wrong = || InvalidExporter::Pairs("OTEL_EXPORTER_OTLP_HEADERS");
        let mut headers = Vec::new();
        for (name, value) in pairs(&options.headers).ok_or_else(wrong)? {
            let name = name.to_ascii_lowercase().parse().map_err(|_| wrong())?;
            headers.push((name, value.parse().map_err(|_| wrong())?));
        }
        Ok(Exporter {
            endpoint: given.to_owned(),
            channel: endpoint.connect_timeout(DEADLINE).connect_lazy(),
            headers,
            process: TracedProcess { attributes: process },
            scope: SpanScope { name: "headwater".into(), version: options.version.clone() },
            exported,
            lost,
            is_failing: false,
        })
    }

    /// Sends spans until the server stops, and then those that wait.
    pub async fn run(mut self, mut queue: mpsc::Receiver<TraceSpan>, stop: CancellationToken) {
        let lost = Arc::clone(&self.lost);
        let mut batch = Vec::new();
        while stop.run_until_cancelled(gather(&mut queue, &mut batch)).await.is_some() {
            if batch.is_empty() {
                return stop.cancelled().await; // the server records nothing any more
            }
            let count = batch.len() as u64;
            let mut sending = std::pin::pin!(self.export(std::mem::take(&mut batch)));
            tokio::select! {
                biased;
                () = &mut sending => {}
                () = stop.cancelled() => if timeout(LAST_DEADLINE, sending).await.is_err() {
                    lost.add(count);
                }
            }
        }
        queue.close();
        while let Ok(span) = queue.try_recv() {
            batch.push(span);
        }
        let count = batch.len() as u64;
        let message = self.message(batch);
        let sent = timeout(LAST_DEADLINE, self.send(&message));
        match count > 0 && matches!(sent.await, Ok(Ok(_))) {
            true => self.exported.add(count),
            false => self.lost.add(count),
        }
    }

    /// Sends a batch; repeats a call that failed.
    async fn export(&mut self, batch: Vec<TraceSpan>) {
        let count = batch.len() as u64;
        let message = self.message(batch);
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            match self.send(&message).await {
                Ok(rejected) => {
                    let rejected = u64::try_from(rejected).unwrap_or_default().min(count);
                    self.exported.add(count - rejected);
                    self.lost.add(rejected);
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(endpoint = %self.endpoint, "the collector accepts traces again");
                    }
                    return;
                }
                Err(why) if !std::mem::replace(&mut self.is_failing, true) => {
                    tracing::warn!(endpoint = %self.endpoint, "cannot send traces: {why}");
                }
                Err(_) => {}
            }
            if attempt < TRIES {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        self.lost.add(count);
    }

    /// One call. Returns how many spans the collector rejected.
    async fn send(&self, message: &ExportTraces) -> Result<i64, String> {
        let mut request = Request::new(message.clone());
        for (name, value) in &self.headers {
            request.metadata_mut().insert(name.clone(), value.clone());
        }
        let exchange = async {
            let mut grpc = Grpc::new(self.channel.clone());
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            let codec = ProstCodec::<ExportTraces, ExportedTraces>::default();
            grpc.unary(request, PathAndQuery::from_static(EXPORT), codec).await
        };
        match timeout(DEADLINE, exchange).await {
            Ok(Ok(response)) => Ok(response
                .into_inner()
                .partial_success
                .map_or(0, |partial| partial.rejected_spans)),
            Ok(Err(status)) => Err(cause(&status)),
            Err(_) => Err(format!("no response within {DEADLINE:?}")),
        }
    }

    fn message(&self, batch: Vec<TraceSpan>) -> ExportTraces {
        let spans = batch.into_iter().map(span).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(self.scope.clone()), spans }];
        let resource = Some(self.process.clone());
        ExportTraces { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

/// Takes the next spans; none if the queue is closed. Cancel-safe.
async fn gather(queue: &mut mpsc::Receiver<TraceSpan>, batch: &mut Vec<TraceSpan>) {
    if queue.recv_many(batch, BATCH_MAX).await == 0 {
        return;
    }
    let others = async {
        while batch.len() < BATCH_MAX && queue.recv_many(batch, BATCH_MAX - batch.len()).await > 0 {
        }
    };
    let _ = timeout(GATHER, others).await; // a batch that is not full is sent
}

fn span(span: TraceSpan) -> SpanMessage {
    SpanMessage {
        trace_id: span.trace_id.into(),
        span_id: span.id.into(),
        parent_span_id: span.parent.map(Vec::from).unwrap_or_default(),
        name: span.name,
        kind: if span.is_server { KIND_SERVER } else { KIND_INTERNAL },
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        links: span
            .link
            .map(|link| SpanLink { trace_id: link.trace_id.into(), span_id: link.span_id.into() })
            .into_iter()
            .collect(),
        status: span.is_failed.then_some(SpanStatus { code: STATUS_ERROR }),
    }
}

fn attribute((key, value): (&'static str, TraceValue)) -> SpanAttribute {
    let value = match value {
        TraceValue::Text(text) => ScalarValue::Text(text),
        TraceValue::Number(number) => ScalarValue::Number(number),
    };
    SpanAttribute { key: key.to_owned(), value: Some(SpanValue { value: Some(value) }) }
}

/// `name=value,name=value`, with percent encoding in the values.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then(|| Some((name.to_owned(), decoded(value.trim())?)))?
    };
    parts.map(pair).collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

/// The innermost reason of a failed call.
fn cause(status: &Status) -> String {
    let mut why = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        why = error.to_string();
        cause = error.source();
    }
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> ExporterOptions {
        let (headers, attributes, version) = (String::new(), String::new(), "1".into());
        ExporterOptions { endpoint: endpoint.into(), headers, attributes, version }
    }

    fn exporter(options: &ExporterOptions) -> Result<Exporter, InvalidExporter> {
        Exporter::new(options, Arc::default(), Arc::default())
    }

    #[tokio::test]
    async fn endpoints_are_hosts_with_a_port() {
        for endpoint in ["localhost:4317", "dns:///collector:4317", "http://[::1]:4317/"] {
            assert!(exporter(&options(endpoint)).is_ok(), "{endpoint}");
        }
        for endpoint in ["", "localhost", "https://a:1", "unix:///run/a", "http://a:1/v1/traces"] {
            assert!(exporter(&options(endpoint)).is_err(), "{endpoint}");
        }
    }

    #[tokio::test]
    async fn variables_name_the_process_and_the_headers() {
        let attributes = "service.name=apiserver, deployment.environment=a%20b".into();
        let given =
            ExporterOptions { attributes, headers: "Api-Key=x%3D1".into(), ..options("a:1") };
        let exporter = exporter(&given).unwrap();
        let process = &exporter.process.attributes;
        assert!(process.contains(&SpanAttribute::text("service.name", "apiserver")));
        assert!(process.contains(&SpanAttribute::text("deployment.environment", "a b")));
        assert_eq!(exporter.headers[0].0.as_str(), "api-key");
        assert_eq!(exporter.headers[0].1, "x=1");
        for wrong in ["secret", "=secret", "a=%zz", "a b=1"] {
            let given = ExporterOptions { headers: wrong.into(), ..options("a:1") };
            let why = super::tests::exporter(&given).err().unwrap().to_string();
            assert!(why.contains("OTEL_EXPORTER_OTLP_HEADERS") && !why.contains("secret"), "{why}");
        }
    }
}
