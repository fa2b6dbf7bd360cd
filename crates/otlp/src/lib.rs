//! Sends traces to an OpenTelemetry collector, by OTLP over gRPC.
//!
//! River: the server's queue of spans → **otlp** → the collector.
//! Promise: the queue is read in batches; a collector that is away costs spans, which are counted, and
//! nothing else.

pub mod proto;
pub mod exporter;

pub use exporter::{Exporter, ExporterOptions, InvalidExporter};
