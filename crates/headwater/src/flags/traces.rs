//! Flags of traces.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TraceFlags {
    /// OpenTelemetry collector, and which requests are traced (TracingConfiguration, as in Kubernetes)
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) tracing_config_file: Option<PathBuf>,

    /// Trace every request, and send the spans to this collector by OTLP over gRPC: localhost:4317
    #[arg(
        long,
        value_name = "ADDR",
        conflicts_with = "tracing_config_file",
        hide_short_help = true
    )]
    pub(crate) otlp_endpoint: Option<String>,
}
