//! A watch stream that is cheap to read, because the bench shares the machine with the server it
//! measures.

use std::sync::LazyLock;

use anyhow::{Context, Result};
use headwater_api::delta::Delta;
use memchr::memchr;
use memchr::memmem::Finder;

use crate::kubeconfig::Endpoint;

mod http1;
mod http2;

use http1::Http1Stream;
use http2::Http2Stream;

/// The protocol of a watch. Each watch has its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// What a watch requests.
#[derive(Clone, Debug)]
pub(crate) struct WatchTarget {
    pub(crate) path: String,
    pub(crate) accept: &'static str,
}

impl From<String> for WatchTarget {
    fn from(path: String) -> WatchTarget {
        WatchTarget { path, accept: "application/json" }
    }
}

impl From<&str> for WatchTarget {
    fn from(path: &str) -> WatchTarget {
        path.to_owned().into()
    }
}

/// An open watch.
pub(crate) enum WatchStream {
    Http1(Http1Stream),
    Http2(Box<Http2Stream>),
}

impl WatchStream {
    /// Opens a watch and waits for the head of the response.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        target: &WatchTarget,
        protocol: Protocol,
    ) -> Result<WatchStream> {
        Ok(match protocol {
            Protocol::Http1 => WatchStream::Http1(Http1Stream::open(endpoint, target).await?),
            Protocol::Http2 => {
                WatchStream::Http2(Box::new(Http2Stream::open(endpoint, target).await?))
            }
        })
    }

    /// A watch that receives these bytes.
    #[cfg(test)]
    pub(crate) async fn answering(wire: &'static [u8]) -> WatchStream {
        WatchStream::Http1(Http1Stream::answering(wire).await)
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> Result<&[u8]> {
        match self {
            WatchStream::Http1(stream) => stream.next().await,
            WatchStream::Http2(stream) => stream.next().await,
        }
    }
}

/// Appends the bytes up to and including the next newline to `line`. Returns their number, and
/// whether the line is complete.
fn take_line(there: &[u8], line: &mut Vec<u8>) -> (usize, bool) {
    let (taken, is_whole) = match memchr(b'\n', there) {
        Some(end) => (end + 1, true),
        None => (there.len(), false),
    };
    line.extend_from_slice(&there[..taken]);
    (taken, is_whole)
}

/// The resourceVersion in an event, or the second one of a delta.
pub(crate) fn revision(event: &[u8]) -> Result<u64> {
    // Prepared once for millions of events.
    static KEY: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\"resourceVersion\":\""));
    static SECOND: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("\",\""));
    let key = if Delta::is(event) { &SECOND } else { &KEY };
    let start = key.find(event).context("event without resourceVersion")?;
    let rest = &event[start + key.needle().len()..];
    let end = memchr(b'"', rest).context("truncated event")?;
    Ok(std::str::from_utf8(&rest[..end])?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_tells_its_revision() {
        let event = br#"{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"417"}}}"#;
        assert_eq!(revision(event).unwrap(), 417);
        assert_eq!(revision(br#"{"delta":["99","417",5,"x","y"]}"#).unwrap(), 417);
        assert!(revision(br#"{"type":"ERROR"}"#).is_err());
        assert!(revision(br#"{"resourceVersion":"41"#).is_err());
    }
}
