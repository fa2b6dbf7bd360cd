//! A chunk of a streamed response under construction.
//!
//! Promise: large objects are not copied. They are sent from shared memory, with the bytes that
//! are written for this response between them.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::answer::body::{CHUNK, Data};

/// A chunk under construction: bytes that are written for this response, and shared bytes of
/// objects between them.
#[derive(Default)]
pub(super) struct Chunk {
    pieces: Data,
    /// The bytes after the pieces.
    written: BytesMut,
}

/// Objects from this size on are shared; smaller ones are copied, because vectored writes of many
/// small pieces would transfer too little at once.
pub(super) const PIECE_MIN: usize = 2048;

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.pieces.remaining() + self.written.len()
    }

    /// The buffer, with room for a chunk or for the remainder, whichever is less: growing it may copy
    /// its content.
    pub(super) fn written(&mut self, left: usize) -> &mut BytesMut {
        if self.written.capacity() < CHUNK {
            self.written.reserve(left.min(CHUNK + CHUNK / 4));
        }
        &mut self.written
    }

    /// Adds a piece, and a few bytes before it.
    pub(super) fn push(&mut self, before: &'static [u8], piece: Bytes) {
        if !self.written.is_empty() {
            self.written.put_slice(before);
            self.pieces.push(self.written.split().freeze());
        } else {
            self.pieces.push(Bytes::from_static(before));
        }
        self.pieces.push(piece);
    }

    pub(super) fn some(mut self) -> Option<Data> {
        self.pieces.push(self.written.freeze());
        self.pieces.has_remaining().then_some(self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_stay_where_they_lie_between_what_is_written() {
        let large = Bytes::from(vec![b'x'; PIECE_MIN]);
        let mut chunk = Chunk::default();
        chunk.written(10).put_slice(b"[");
        chunk.push(b"<", large.clone());
        chunk.push(b",", large.clone());
        chunk.written(10).put_slice(b"]");
        assert_eq!(chunk.len(), 2 * PIECE_MIN + 4);
        let mut pieces = chunk.some().unwrap();
        pieces.advance(2);
        assert_eq!(pieces.chunk().as_ptr(), large.as_ptr());
        pieces.advance(PIECE_MIN);
        assert_eq!(pieces.chunk(), b",");
        pieces.advance(1);
        assert_eq!(pieces.chunk().as_ptr(), large.as_ptr());
        pieces.advance(PIECE_MIN);
        assert_eq!(pieces.chunk(), b"]");
    }

    #[test]
    fn a_chunk_without_pieces_is_one() {
        let mut chunk = Chunk::default();
        assert!(Chunk::default().some().is_none());
        chunk.written(0).put_slice(b"ab");
        assert_eq!(chunk.some().unwrap().chunk(), b"ab");
    }
}
