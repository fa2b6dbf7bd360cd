//! The messages of OTLP traces.
//!
//! They are declared by hand, with the field numbers of OpenTelemetry's `trace.proto`, so that the build
//! generates no code. Fields that are not used are left out.

use prost::{Message, Oneof};

/// The path of the call that exports spans.
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The kind of a span within a process.
pub const KIND_INTERNAL: i32 = 1;
/// The kind of a span for a received request.
pub const KIND_SERVER: i32 = 2;
/// The status code of a span that failed.
pub const STATUS_ERROR: i32 = 2;

/// Exports spans.
#[derive(Clone, PartialEq, Message)]
pub struct ExportTraces {
    /// One for each process.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// The response.
#[derive(Clone, PartialEq, Message)]
pub struct ExportedTraces {
    /// What was not accepted, if so.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// What was not accepted.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// How many spans.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Why.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// The spans of a process.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// The process.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<TracedProcess>,
    /// The spans, by the library that made them.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct TracedProcess {
    /// Its names.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<SpanAttribute>,
}

/// The spans of a library.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// The library.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<SpanScope>,
    /// The spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<SpanMessage>,
}

/// A library.
#[derive(Clone, PartialEq, Message)]
pub struct SpanScope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// A span.
#[derive(Clone, PartialEq, Message)]
pub struct SpanMessage {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or none.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What happened.
    #[prost(string, tag = "5")]
    pub name: String,
    /// [`KIND_INTERNAL`] or [`KIND_SERVER`].
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// The beginning.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// The end.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// Figures and names.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<SpanAttribute>,
    /// Spans of other traces.
    #[prost(message, repeated, tag = "13")]
    pub links: Vec<SpanLink>,
    /// The outcome; none if it is not known to be a failure.
    #[prost(message, optional, tag = "15")]
    pub status: Option<SpanStatus>,
}

/// A span of another trace.
#[derive(Clone, PartialEq, Message)]
pub struct SpanLink {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

/// The outcome of a span.
#[derive(Clone, PartialEq, Message)]
pub struct SpanStatus {
    /// [`STATUS_ERROR`].
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// A figure or a name.
#[derive(Clone, PartialEq, Message)]
pub struct SpanAttribute {
    /// Its key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<SpanValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Message)]
pub struct SpanValue {
    /// One of several types.
    #[prost(oneof = "ScalarValue", tags = "1, 3")]
    pub value: Option<ScalarValue>,
}

/// A value of one of several types.
#[derive(Clone, PartialEq, Oneof)]
pub enum ScalarValue {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A whole number.
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl SpanAttribute {
    /// A text with a key.
    pub fn text(key: &str, text: &str) -> SpanAttribute {
        let value = Some(SpanValue { value: Some(ScalarValue::Text(text.to_owned())) });
        SpanAttribute { key: key.to_owned(), value }
    }
}
