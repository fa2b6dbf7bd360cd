//! Traces: the spans of a request, and the `traceparent` header that names them (W3C Trace Context).
//!
//! River: pipeline, store, watches → **trace** → the exporter.

use std::fmt::Write;

/// The request of a client within a trace: the value of a `traceparent` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span of the client.
    pub span_id: [u8; 8],
    /// Whether the client records its spans.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads a header; `None` if it is not valid.
    pub fn parse(header: &str) -> Option<TraceContext> {
        let mut parts = header.split('-');
        let version: [u8; 1] = hex(parts.next()?)?;
        let context = TraceContext {
            trace_id: hex(parts.next()?)?,
            span_id: hex(parts.next()?)?,
            is_sampled: hex::<1>(parts.next()?)?[0] & 1 == 1,
        };
        // Later versions may add parts; this one has four.
        let is_known = version[0] != 0xff && (version[0] != 0 || parts.next().is_none());
        let is_set = context.trace_id != [0; 16] && context.span_id != [0; 8];
        (is_known && is_set).then_some(context)
    }

    /// The header for requests that are made within this span.
    pub fn header(&self) -> String {
        let mut text = String::from("00-");
        let (trace, span) = (&self.trace_id[..], &self.span_id[..]);
        for (bytes, end) in [(trace, "-"), (span, "-"), (&[u8::from(self.is_sampled)], "")] {
            for byte in bytes {
                let _ = write!(text, "{byte:02x}"); // a String accepts everything
            }
            text.push_str(end);
        }
        text
    }
}

/// Bytes as lower case hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// A finished part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span.
    pub id: [u8; 8],
    /// The span that contains or caused this one.
    pub parent: Option<[u8; 8]>,
    /// A trace that belongs to this one and does not contain it.
    pub link: Option<TraceContext>,
    /// What happened.
    pub name: String,
    /// Whether it is a request that was received.
    pub is_server: bool,
    /// The beginning, in nanoseconds since 1970.
    pub start: u64,
    /// The end, in nanoseconds since 1970.
    pub end: u64,
    /// Figures and names, by OpenTelemetry's keys where it has them.
    pub attributes: Vec<(&'static str, TraceValue)>,
    /// Whether it failed by the fault of the server.
    pub is_failed: bool,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceValue {
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
}

impl From<&str> for TraceValue {
    fn from(text: &str) -> TraceValue {
        TraceValue::Text(text.to_owned())
    }
}

impl From<u64> for TraceValue {
    fn from(number: u64) -> TraceValue {
        TraceValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_header_is_read_and_written() {
        let context = TraceContext::parse(HEADER).unwrap();
        assert!(context.is_sampled);
        assert_eq!(context.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!(context.header(), HEADER);
        let later = HEADER.replacen("00", "cc", 1) + "-what-follows";
        assert_eq!(TraceContext::parse(&later), Some(context));
    }

    #[test]
    fn headers_that_are_not_valid_are_ignored() {
        for header in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c8031é-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::parse(header), None, "{header}");
        }
    }
}
