//! The codec of watch frames: one line of JSON per event, `{"type":"ADDED","object":…}`.
//!
//! River: object → **frame** → HTTP stream → **frame** → reflector.
//! Promise: decoding returns what was encoded; a frame within one chunk is not copied; no frame
//! exceeds the maximum length.

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use headwater_json::scan::{Malformed, Scanner};
use memchr::memchr;

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The object is new to the watcher.
    Added,
    /// The object changed.
    Modified,
    /// The object was deleted, or no longer matches the selector.
    Deleted,
    /// All changes up to this resourceVersion were sent.
    Bookmark,
    /// The stream ends; the object is a Status.
    Error,
}

impl EventType {
    /// Every type.
    const ALL: [EventType; 5] = [
        EventType::Added,
        EventType::Modified,
        EventType::Deleted,
        EventType::Bookmark,
        EventType::Error,
    ];

    /// The type with this word on the wire.
    pub fn parse(word: &str) -> Option<EventType> {
        EventType::ALL.into_iter().find(|event| event.as_str() == word)
    }

    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
            EventType::Bookmark => "BOOKMARK",
            EventType::Error => "ERROR",
        }
    }

    /// The part of a frame before the object.
    pub fn prefix(self) -> &'static str {
        match self {
            EventType::Added => r#"{"type":"ADDED","object":"#,
            EventType::Modified => r#"{"type":"MODIFIED","object":"#,
            EventType::Deleted => r#"{"type":"DELETED","object":"#,
            EventType::Bookmark => r#"{"type":"BOOKMARK","object":"#,
            EventType::Error => r#"{"type":"ERROR","object":"#,
        }
    }
}

/// The part of a frame after the object.
pub const FRAME_END: &str = "}\n";

/// Encodes an object as a watch frame.
pub fn encode(event: EventType, object: &[u8]) -> Bytes {
    let mut buffer = BytesMut::with_capacity(event.prefix().len() + object.len() + FRAME_END.len());
    buffer.put_slice(event.prefix().as_bytes());
    buffer.put_slice(object);
    buffer.put_slice(FRAME_END.as_bytes());
    buffer.freeze()
}

/// A decoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The word for the type; see [`EventType::parse`].
    pub event: Cow<'a, str>,
    /// The JSON of the object.
    pub object: &'a str,
}

impl<'a> Frame<'a> {
    /// Decodes a frame; the object is not parsed.
    pub fn decode(frame: &'a str) -> Result<Frame<'a>, Malformed> {
        let bytes = frame.as_bytes();
        let (mut event, mut object) = (None, None);
        let mut scanner = Scanner::new(bytes);
        scanner.object::<Malformed>(|key, at| {
            if at.is(key, "type") {
                at.peek();
                let span = at.string()?;
                event = Some(at.text(span)?);
            } else if at.is(key, "object") {
                object = Some(at.value()?);
            } else {
                at.value()?;
            }
            Ok(())
        })?;
        let end = scanner.offset();
        let rest = bytes.get(end..).unwrap_or_default();
        match (event, object) {
            (Some(event), Some(span)) if rest.trim_ascii().is_empty() => {
                let object = frame.get(span.start as usize..span.end as usize);
                Ok(Frame { event, object: object.ok_or(Malformed { at: 0 })? })
            }
            _ => Err(Malformed { at: end }),
        }
    }
}

/// Why a body cannot be split into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame exceeds the maximum length.
    #[error("a frame is longer than {max} bytes")]
    TooLong {
        /// The maximum length.
        max: usize,
    },
    /// The body ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
}

/// Splits the body of a watch into frames, one per line.
#[derive(Debug)]
pub struct FrameSplitter {
    chunk: Bytes,
    /// The beginning of an incomplete frame.
    partial: Vec<u8>,
    max: usize,
}

impl FrameSplitter {
    /// A splitter that rejects frames longer than `max` bytes.
    pub fn new(max: usize) -> FrameSplitter {
        FrameSplitter { chunk: Bytes::new(), partial: Vec::new(), max }
    }

    /// Adds the next chunk; all frames of the previous chunk must have been read.
    pub fn feed(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "frames are taken before the next chunk");
        self.chunk = chunk;
    }

    /// The next complete frame, without its newline. Empty lines are ignored.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        while let Some(end) = memchr(b'\n', &self.chunk) {
            if self.partial.len() + end > self.max {
                return Err(FrameError::TooLong { max: self.max });
            }
            let mut frame = self.chunk.split_to(end);
            self.chunk.advance(1);
            if !self.partial.is_empty() {
                self.partial.extend_from_slice(&frame);
                frame = Bytes::from(std::mem::take(&mut self.partial));
            }
            if !frame.trim_ascii().is_empty() {
                return Ok(Some(frame));
            }
        }
        if self.partial.len() + self.chunk.len() > self.max {
            return Err(FrameError::TooLong { max: self.max });
        }
        self.partial.extend_from_slice(&self.chunk);
        self.chunk.clear();
        Ok(None)
    }

    /// Ends the body; an error if a frame is incomplete.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.partial.trim_ascii().is_empty() { Ok(()) } else { Err(FrameError::Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;
    use proptest::prelude::*;

    use super::*;

    fn split(chunks: &[&[u8]], max: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut frames = FrameSplitter::new(max);
        let mut found = Vec::new();
        for chunk in chunks {
            frames.feed(Bytes::copy_from_slice(chunk));
            while let Some(frame) = frames.next_frame()? {
                found.push(frame.to_vec());
            }
        }
        frames.finish()?;
        Ok(found)
    }

    /// C1.15
    #[test]
    fn frames_are_found_across_chunks_and_several_in_one() {
        let frames = split(&[b"{\"a\":", b"1}\n{\"b\"", b":2}\n\n\r\n{\"c\":3}\n"], 100).unwrap();
        assert_eq!(frames, [&b"{\"a\":1}"[..], b"{\"b\":2}", b"{\"c\":3}"]);
        assert!(matches!(split(&[b"{\"a\":1}\n{\"b"], 100), Err(FrameError::Truncated)));
    }

    /// C1.15, B241
    #[test]
    fn a_frame_without_end_stops_at_the_limit() {
        let mut frames = FrameSplitter::new(1000);
        let mut fed = 0;
        let error = loop {
            frames.feed(Bytes::from_static(&[b'x'; 300]));
            fed += 300;
            match frames.next_frame() {
                Ok(None) => assert!(frames.partial.len() <= 1000),
                other => break other,
            }
        };
        assert!(matches!(error, Err(FrameError::TooLong { max: 1000 })));
        assert!(fed <= 1500);
    }

    /// C15.7
    #[test]
    fn a_frame_inside_a_chunk_shares_its_memory() {
        let chunk = Bytes::from_static(b"{\"a\":1}\n{\"b\":2}\n");
        let mut frames = FrameSplitter::new(100);
        frames.feed(chunk.clone());
        let first = frames.next_frame().unwrap().unwrap();
        assert!(std::ptr::eq(first.as_ptr(), chunk.as_ptr()));
    }

    proptest! {
        /// C31.11
        #[test]
        fn any_bytes_in_any_chunks_give_the_same_frames(
            body in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            cuts in prop::collection::vec(1..20usize, 0..20),
        ) {
            let mut chunks = Vec::new();
            let mut rest = &body[..];
            for cut in cuts {
                let (chunk, after) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            let whole = split(&[&body], 1000).ok();
            prop_assert_eq!(split(&chunks, 1000).ok(), whole);
        }

        #[test]
        fn decoding_returns_what_was_encoded(
            events in prop::collection::vec((0..5usize, any::<String>()), 0..4),
            size in 1..20usize,
        ) {
            let events: Vec<(EventType, String)> = events
                .into_iter()
                .map(|(event, text)| (EventType::ALL[event], json!({ "a": text }).to_string()))
                .collect();
            let encode = |(event, object): &(EventType, String)| encode(*event, object.as_bytes());
            let body: Vec<u8> = events.iter().flat_map(encode).collect();
            let frames = split(&body.chunks(size).collect::<Vec<_>>(), 10_000).unwrap();
            prop_assert_eq!(frames.len(), events.len());
            for (frame, (event, object)) in frames.iter().zip(&events) {
                let frame = Frame::decode(std::str::from_utf8(frame).unwrap()).unwrap();
                prop_assert_eq!(EventType::parse(&frame.event), Some(*event));
                prop_assert_eq!(frame.object, object);
            }
        }
    }
}
