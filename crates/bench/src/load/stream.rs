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

/// The format of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BodyFormat {
    /// As objects are stored
    #[default]
    Json,
    /// As Go clients ask for built-in kinds
    Protobuf,
}

impl BodyFormat {
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            BodyFormat::Json => "application/json",
            BodyFormat::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// What a watch requests.
#[derive(Clone, Debug)]
pub(crate) struct WatchTarget {
    pub(crate) path: String,
    pub(crate) accept: &'static str,
}

impl From<String> for WatchTarget {
    fn from(path: String) -> WatchTarget {
        WatchTarget { path, accept: BodyFormat::Json.media_type() }
    }
}

impl WatchTarget {
    fn format(&self) -> BodyFormat {
        match self.accept == BodyFormat::Protobuf.media_type() {
            true => BodyFormat::Protobuf,
            false => BodyFormat::Json,
        }
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

/// Appends the bytes up to the end of the next event to `event`. Returns their number, and whether the
/// event is complete.
fn take_event(format: BodyFormat, there: &[u8], event: &mut Vec<u8>) -> (usize, bool) {
    match format {
        BodyFormat::Json => take_line(there, event),
        BodyFormat::Protobuf => take_frame(there, event),
    }
}

/// The same for an event after its length as four bytes.
fn take_frame(there: &[u8], event: &mut Vec<u8>) -> (usize, bool) {
    let mut taken = 0;
    let mut take = |event: &mut Vec<u8>, upto: usize| {
        let count = upto.saturating_sub(event.len()).min(there.len() - taken);
        event.extend_from_slice(&there[taken..taken + count]);
        taken += count;
    };
    take(event, 4);
    let Some((length, _)) = event.split_first_chunk() else { return (taken, false) };
    let end = 4 + u32::from_be_bytes(*length) as usize;
    take(event, end);
    (taken, event.len() == end)
}

/// The same for an event that is a line.
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
    if event.first() != Some(&b'{') {
        return protobuf_revision(event).context("event without resourceVersion");
    }
    let key = if Delta::is(event) { &SECOND } else { &KEY };
    let start = key.find(event).context("event without resourceVersion")?;
    let rest = &event[start + key.needle().len()..];
    let end = memchr(b'"', rest).context("truncated event")?;
    Ok(std::str::from_utf8(&rest[..end])?.parse()?)
}

/// The resourceVersion in an event as protobuf: the field after the uid.
fn protobuf_revision(event: &[u8]) -> Option<u64> {
    const UID: usize = 36;
    static KEY: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(&[0x2a, UID as u8]));
    KEY.find_iter(event).find_map(|at| {
        let after = event.get(at + 2 + UID..)?;
        let [0x32, length, rest @ ..] = after else { return None };
        std::str::from_utf8(rest.get(..usize::from(*length))?).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_however_it_arrives() {
        let uid = [&[0x2a, 36][..], &[b'u'; 36], &[0x32, 3], b"417"].concat();
        let frame = [&(uid.len() as u32).to_be_bytes()[..], &uid].concat();
        let wire = [&frame[..], &frame].concat();
        for size in 1..wire.len() {
            let (mut event, mut events) = (Vec::new(), 0);
            for mut piece in wire.chunks(size) {
                while !piece.is_empty() {
                    let (taken, is_complete) = take_event(BodyFormat::Protobuf, piece, &mut event);
                    piece = &piece[taken..];
                    if is_complete {
                        assert_eq!(revision(&event).unwrap(), 417);
                        event.clear();
                        events += 1;
                    }
                }
            }
            assert_eq!(events, 2);
        }
    }

    #[test]
    fn an_event_tells_its_revision() {
        let event = br#"{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"417"}}}"#;
        assert_eq!(revision(event).unwrap(), 417);
        assert_eq!(revision(br#"{"delta":["99","417",5,"x","y"]}"#).unwrap(), 417);
        assert!(revision(br#"{"type":"ERROR"}"#).is_err());
        assert!(revision(br#"{"resourceVersion":"41"#).is_err());
    }
}
