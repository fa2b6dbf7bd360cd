//! Traces of requests: Kubernetes' configuration file, and the exporter.
//!
//! River: flags → **traces** → the server's tracer, the exporter.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use headwater_api::Clock;
use headwater_api::trace::TraceSpan;
use headwater_otlp::{Exporter, ExporterOptions};
use headwater_schema::decode::{self, Format};
use headwater_server::metrics::Metrics;
use headwater_server::trace::Tracer;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::flags::TraceFlags;

/// The collector of a configuration that names none, as in Kubernetes.
const ENDPOINT: &str = "localhost:4317";

/// The samples in a million requests if every request is traced.
const ALL: u32 = 1_000_000;

/// Kubernetes' file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TracingConfiguration {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

/// The exporter and its queue.
pub(crate) struct TraceExport {
    exporter: Exporter,
    queue: mpsc::Receiver<TraceSpan>,
}

impl TraceExport {
    /// The tracer of the server, and what sends its spans, if traces are wanted.
    pub(crate) fn open(
        flags: &TraceFlags,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Result<(Tracer, Option<TraceExport>)> {
        let (endpoint, sampled, flag) = match (&flags.tracing_config_file, &flags.otlp_endpoint) {
            (Some(path), _) => {
                let (endpoint, sampled) = read(path).with_context(|| {
                    format!("--tracing-config-file: cannot use {}", path.display())
                })?;
                (endpoint, sampled, "--tracing-config-file")
            }
            (None, Some(endpoint)) => (endpoint.clone(), ALL, "--otlp-endpoint"),
            (None, None) => return Ok((Tracer::default(), None)),
        };
        let variable = |name| std::env::var(name).unwrap_or_default();
        let options = ExporterOptions {
            endpoint,
            headers: variable("OTEL_EXPORTER_OTLP_HEADERS"),
            attributes: variable("OTEL_RESOURCE_ATTRIBUTES"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let count = |result| metrics.trace_spans.with(&[result]);
        let exporter = Exporter::new(&options, count("exported"), count("lost")).context(flag)?;
        let (tracer, queue) = Tracer::new(sampled, clock, metrics);
        Ok((tracer, Some(TraceExport { exporter, queue })))
    }

    /// Sends spans until the server stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        self.exporter.run(self.queue, stop).await;
    }
}

fn read(path: &Path) -> Result<(String, u32)> {
    parse(&std::fs::read_to_string(path)?)
}

/// The endpoint, and how many requests of a million are traced.
fn parse(text: &str) -> Result<(String, u32)> {
    const GROUP: &str = "apiserver.config.k8s.io/";
    let parsed = decode::parse(Format::Yaml, text.as_bytes()).context("it is not valid YAML")?;
    let file: TracingConfiguration = serde_json::from_slice(parsed.value.to_string().as_bytes())?;
    let version = file.api_version.strip_prefix(GROUP).unwrap_or_default();
    ensure!(
        matches!(version, "v1alpha1" | "v1beta1" | "v1") && file.kind == "TracingConfiguration",
        "it must have apiVersion {GROUP}v1beta1 and kind TracingConfiguration"
    );
    let rate = file.sampling_rate_per_million.unwrap_or_default();
    let rate = u32::try_from(rate).ok().filter(|rate| *rate <= ALL);
    let rate = rate.context("samplingRatePerMillion must be between 0 and 1000000")?;
    Ok((file.endpoint.unwrap_or_else(|| ENDPOINT.to_owned()), rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";

    #[test]
    fn a_file_for_kube_apiserver_is_read() {
        let text = format!("{HEAD}endpoint: collector:4317\nsamplingRatePerMillion: 100\n");
        assert_eq!(parse(&text).unwrap(), ("collector:4317".to_owned(), 100));
        assert_eq!(parse(HEAD).unwrap(), (ENDPOINT.to_owned(), 0));
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused() {
        for (text, why) in [
            ("kind: TracingConfiguration\n".to_owned(), "apiVersion"),
            (HEAD.replace("v1beta1", "v9"), "apiVersion"),
            (format!("{HEAD}sampling: 1\n"), "unknown field"),
            (format!("{HEAD}samplingRatePerMillion: 1000001\n"), "between 0 and 1000000"),
            (format!("{HEAD}samplingRatePerMillion: -1\n"), "between 0 and 1000000"),
            ("{".to_owned(), "YAML"),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
