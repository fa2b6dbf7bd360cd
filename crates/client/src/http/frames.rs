//! Splits the body of a watch into frames, one per line.
//!
//! River: response body → **frames** → event decoder.
//! Promise: a frame within one chunk is not copied; no frame exceeds the maximum length.

use bytes::{Buf, Bytes};
use memchr::memchr;

use crate::list_watch::Error;

/// Splits a body into frames.
pub(crate) struct Frames {
    chunk: Bytes,
    /// The beginning of an incomplete frame.
    partial: Vec<u8>,
    max: usize,
}

impl Frames {
    pub(crate) fn new(max: usize) -> Frames {
        Frames { chunk: Bytes::new(), partial: Vec::new(), max }
    }

    /// Adds the next chunk; all frames of the previous chunk must have been read.
    pub(crate) fn feed(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "frames are taken before the next chunk");
        self.chunk = chunk;
    }

    /// The next complete frame, without its newline. Empty lines are ignored.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(end) = memchr(b'\n', &self.chunk) {
            if self.partial.len() + end > self.max {
                return Err(Error::TooLong { max: self.max });
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
            return Err(Error::TooLong { max: self.max });
        }
        self.partial.extend_from_slice(&self.chunk);
        self.chunk.clear();
        Ok(None)
    }

    /// Ends the body; an error if a frame is incomplete.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.partial.trim_ascii().is_empty() { Ok(()) } else { Err(Error::Cut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(chunks: &[&[u8]], max: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut frames = Frames::new(max);
        let mut found = Vec::new();
        for chunk in chunks {
            frames.feed(Bytes::copy_from_slice(chunk));
            while let Some(frame) = frames.next()? {
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
        assert!(matches!(split(&[b"{\"a\":1}\n{\"b"], 100), Err(Error::Cut)));
    }

    /// C1.15, B241
    #[test]
    fn a_frame_without_end_stops_at_the_limit() {
        let mut frames = Frames::new(1000);
        let mut fed = 0;
        let error = loop {
            frames.feed(Bytes::from_static(&[b'x'; 300]));
            fed += 300;
            match frames.next() {
                Ok(None) => assert!(frames.partial.len() <= 1000),
                other => break other,
            }
        };
        assert!(matches!(error, Err(Error::TooLong { max: 1000 })));
        assert!(fed <= 1500);
    }

    /// C15.7
    #[test]
    fn a_frame_inside_a_chunk_shares_its_memory() {
        let chunk = Bytes::from_static(b"{\"a\":1}\n{\"b\":2}\n");
        let mut frames = Frames::new(100);
        frames.feed(chunk.clone());
        let first = frames.next().unwrap().unwrap();
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
    }
}
