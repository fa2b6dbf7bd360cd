//! Compressed lists: runs of objects, each compressed once for all lists that contain it.
//!
//! River: snapshot → **gzip** → HTTP body. Compression is most of the cost of such a list, and the
//! next list contains nearly the same objects. So a list is a gzip stream of byte-aligned blocks:
//! one for each run of objects, without references to earlier blocks. The end of a run depends only
//! on the objects in it, so a change affects only the runs around it.
//! Promise: a block is reused only for exactly the same objects, and the cache of blocks is bounded.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Crc, FlushCompress};
use headwater_api::Object;

use super::{ChunkState, Chunks};
use crate::answer::blocks::{Block, Blocks};

/// The minimum and the maximum size of a run: long enough that a restart of the compressor costs
/// little, short enough that compressing one does not delay other tasks.
const RUN_MIN: usize = 64 * 1024;
const RUN_MAX: usize = 192 * 1024;
/// The approximate size of a chunk of compressed bytes.
const CHUNK: usize = 16 * 1024;

/// deflate, no name, no time, unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];
/// The last block, which is empty.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// The body of a list, compressed.
pub(super) struct Gzipped {
    list: Chunks,
    blocks: Arc<Blocks>,
    crc: Crc,
    compress: Option<Compress>,
}

impl Gzipped {
    pub(super) fn new(list: Chunks, blocks: Arc<Blocks>) -> Gzipped {
        Gzipped { list, blocks, crc: Crc::new(), compress: None }
    }

    /// The objects of the next block; none at the end of the list.
    fn run(&mut self) -> Vec<Arc<Object>> {
        let (mut run, mut size) = (Vec::new(), 0);
        while size < RUN_MAX {
            let Some(object) = self.list.objects.next() else { break };
            size += object.as_slice().len();
            let may_end = size >= RUN_MIN && is_landmark(&object);
            run.push(object);
            if may_end {
                break;
            }
        }
        run
    }

    fn block(&mut self, objects: &[Arc<Object>], is_first: bool) -> Arc<Block> {
        if let Some(block) = self.blocks.find(objects, is_first) {
            return block;
        }
        let size = objects.iter().map(|object| object.as_slice().len() + 1).sum();
        let mut text = BytesMut::with_capacity(size);
        for (at, object) in objects.iter().enumerate() {
            if at > 0 || !is_first {
                text.put_slice(b",");
            }
            self.list.item(object, &mut text);
        }
        let mut crc = Crc::new();
        crc.update(&text);
        let compress =
            self.compress.get_or_insert_with(|| Compress::new(Compression::fast(), false));
        let block = Arc::new(Block {
            objects: objects.iter().map(Arc::downgrade).collect(),
            bytes: compressed(compress, &text).into(),
            crc,
        });
        self.blocks.keep(objects, is_first, block.clone());
        block
    }

    /// Adds text without compression.
    fn stored(&mut self, text: &[u8], out: &mut BytesMut) {
        self.crc.update(text);
        for part in text.chunks(usize::from(u16::MAX)) {
            let length = part.len() as u16;
            out.put_u8(0);
            out.put_u16_le(length);
            out.put_u16_le(!length);
            out.put_slice(part);
        }
    }
}

/// Whether a run may end here: at one object in four, decided by its revision.
fn is_landmark(object: &Object) -> bool {
    object.revision().0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}

/// Compresses a text into byte-aligned blocks without references to earlier ones.
fn compressed(compress: &mut Compress, text: &[u8]) -> Vec<u8> {
    compress.reset();
    let mut out = Vec::with_capacity(text.len() / 8 + 64);
    loop {
        let done = compress.total_in() as usize;
        compress
            .compress_vec(&text[done..], &mut out, FlushCompress::Full)
            .expect("there is room for more");
        // With room left, the output is complete.
        if out.len() < out.capacity() && compress.total_in() as usize == text.len() {
            out.shrink_to_fit();
            return out;
        }
        out.reserve(out.capacity());
    }
}

impl Iterator for Gzipped {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::with_capacity(CHUNK + CHUNK / 2);
        while out.len() < CHUNK {
            match self.list.state {
                ChunkState::Head => {
                    let mut head = BytesMut::new();
                    self.list.head(&mut head);
                    out.put_slice(&HEADER);
                    self.stored(&head, &mut out);
                    self.list.state = ChunkState::Items { is_first: true };
                }
                ChunkState::Items { is_first } => {
                    let objects = self.run();
                    if objects.is_empty() {
                        self.stored(b"]}\n", &mut out);
                        out.put_slice(&LAST_BLOCK);
                        out.put_u32_le(self.crc.sum());
                        out.put_u32_le(self.crc.amount());
                        self.list.state = ChunkState::End;
                        break;
                    }
                    let block = self.block(&objects, is_first);
                    self.crc.combine(&block.crc);
                    out.put_slice(&block.bytes);
                    self.list.state = ChunkState::Items { is_first: false };
                }
                ChunkState::End => break,
            }
        }
        (!out.is_empty()).then(|| out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_kind_is_compressed_to_its_end() {
        let mut compress = Compress::new(Compression::fast(), false);
        let mut noise = 1_u32;
        let random = (0..RUN_MAX).map(|_| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        });
        let texts = [b"x".to_vec(), vec![b'x'; RUN_MAX], random.collect()];
        // Blocks of several texts are one stream.
        let mut stream: Vec<u8> =
            texts.iter().flat_map(|text| compressed(&mut compress, text)).collect();
        stream.extend(LAST_BLOCK);
        let mut read = Vec::new();
        let mut decoder = flate2::read::DeflateDecoder::new(stream.as_slice());
        std::io::Read::read_to_end(&mut decoder, &mut read).unwrap();
        assert!(read == texts.concat());
    }
}
