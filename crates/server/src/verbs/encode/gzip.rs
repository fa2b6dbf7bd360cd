//! Compressed lists: runs of objects, each compressed once for all lists that hold it.
//!
//! River: snapshot → **gzip** → HTTP body. Compressing is most of what such a list costs, and the next
//! one holds nearly the same objects. So a list is a gzip stream of blocks that end at whole bytes:
//! one for each run of objects, which refers to nothing before it. Where a run ends depends on the
//! objects in it alone, so a change moves the runs around it and no others.
//! Promise: a block is used again for exactly the objects it was made of, and what is kept has a
//! bound.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Crc, FlushCompress};
use headwater_api::Object;

use super::Chunks;

/// Bytes of a run before it may end, and at which it does: long enough that beginning anew costs
/// little, short enough that compressing one does not hold up others.
const RUN_MIN: usize = 64 * 1024;
const RUN_MAX: usize = 192 * 1024;
/// Compressed bytes that are handed out at once, about.
const CHUNK: usize = 16 * 1024;
/// What is kept of blocks that were made.
const KEPT_MAX: usize = 32 << 20;

/// deflate, no name, no time, unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];
/// The last block, which is empty.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// A run of objects, compressed.
struct Block {
    /// What it was made of. Weak, so that it holds no object that everybody else has forgotten; and
    /// a place in memory is not given to another object as long as one of these points to it.
    objects: Box<[Weak<Object>]>,
    bytes: Bytes,
    crc: Crc,
}

impl Block {
    fn is_of(&self, objects: &[Arc<Object>]) -> bool {
        self.objects.len() == objects.len()
            && self.objects.iter().zip(objects).all(|(had, has)| had.as_ptr() == Arc::as_ptr(has))
    }

    /// About what it takes.
    fn size(&self) -> usize {
        size_of::<Block>() + self.bytes.len() + self.objects.len() * size_of::<Weak<Object>>()
    }
}

/// Blocks that were made, for lists to come.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Generations>);

/// By the place of their first object and whether the list begins with it. When the young are too
/// many, those that nobody asked for since that happened last are forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<Place, Arc<Block>>,
    old: HashMap<Place, Arc<Block>>,
    young_bytes: usize,
}

type Place = (usize, bool);

fn place(objects: &[Arc<Object>], is_first: bool) -> Place {
    (objects.first().map_or(0, |first| Arc::as_ptr(first).addr()), is_first)
}

impl Blocks {
    fn find(&self, objects: &[Arc<Object>], is_first: bool) -> Option<Arc<Block>> {
        let place = place(objects, is_first);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = kept.young.get(&place) {
            return block.is_of(objects).then(|| block.clone());
        }
        let block = kept.old.remove(&place).filter(|block| block.is_of(objects))?;
        kept.keep(place, block.clone());
        Some(block)
    }

    fn keep(&self, objects: &[Arc<Object>], is_first: bool, block: Arc<Block>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.keep(place(objects, is_first), block);
    }
}

impl Generations {
    fn keep(&mut self, place: Place, block: Arc<Block>) {
        if self.young_bytes + block.size() > KEPT_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += block.size();
        if let Some(replaced) = self.young.insert(place, block) {
            self.young_bytes -= replaced.size();
        }
    }
}

/// The body of a list, compressed.
pub(super) struct Gzipped {
    list: Chunks,
    blocks: Arc<Blocks>,
    /// Read from the list and not in a block yet.
    pending: std::vec::IntoIter<Arc<Object>>,
    crc: Crc,
    compress: Option<Compress>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Items { is_first: bool },
    End,
}

impl Gzipped {
    pub(super) fn new(list: Chunks, blocks: Arc<Blocks>, first: Vec<Arc<Object>>) -> Gzipped {
        Gzipped {
            list,
            blocks,
            pending: first.into_iter(),
            crc: Crc::new(),
            compress: None,
            state: State::Head,
        }
    }

    /// The objects of the next block; none at the end of the list.
    fn run(&mut self) -> Vec<Arc<Object>> {
        let (mut run, mut size) = (Vec::new(), 0);
        while size < RUN_MAX {
            let Some(object) = self.pending.next() else {
                self.pending = self.list.source.some().into_iter();
                match self.pending.len() {
                    0 => break,
                    _ => continue,
                }
            };
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

    /// Text that is not worth compressing.
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

/// Whether a run may end here: one object in four, and whichever it is, it stays so until it changes.
fn is_landmark(object: &Object) -> bool {
    object.revision().0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}

/// A text as blocks that end at a whole byte and refer to nothing before them.
fn compressed(compress: &mut Compress, text: &[u8]) -> Vec<u8> {
    compress.reset();
    let mut out = Vec::with_capacity(text.len() / 8 + 64);
    loop {
        let done = compress.total_in() as usize;
        compress
            .compress_vec(&text[done..], &mut out, FlushCompress::Full)
            .expect("there is room for more");
        // With room left, everything is out.
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
            match self.state {
                State::Head => {
                    let mut head = BytesMut::new();
                    self.list.head(&mut head);
                    out.put_slice(&HEADER);
                    self.stored(&head, &mut out);
                    self.state = State::Items { is_first: true };
                }
                State::Items { is_first } => {
                    let objects = self.run();
                    if objects.is_empty() {
                        self.stored(b"]}\n", &mut out);
                        out.put_slice(&LAST_BLOCK);
                        out.put_u32_le(self.crc.sum());
                        out.put_u32_le(self.crc.amount());
                        self.state = State::End;
                        break;
                    }
                    let block = self.block(&objects, is_first);
                    self.crc.combine(&block.crc);
                    out.put_slice(&block.bytes);
                    self.state = State::Items { is_first: false };
                }
                State::End => break,
            }
        }
        (!out.is_empty()).then(|| out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use headwater_api::{EventType, Revision};

    use super::*;

    fn objects(revisions: std::ops::Range<u64>) -> Vec<Arc<Object>> {
        let stored = br#"{"metadata":{"name":"a"}}"#;
        revisions
            .map(|revision| {
                let made = Object::decode(stored, Revision(revision), EventType::Added, &[]);
                Arc::new(made.unwrap())
            })
            .collect()
    }

    fn block(objects: &[Arc<Object>], size: usize) -> Arc<Block> {
        let objects = objects.iter().map(Arc::downgrade).collect();
        Arc::new(Block { objects, bytes: vec![0; size].into(), crc: Crc::new() })
    }

    #[test]
    fn a_block_is_found_for_its_own_objects_only() {
        let blocks = Blocks::default();
        let (mut run, other) = (objects(1..4), objects(1..4));
        blocks.keep(&run, false, block(&run, 10));
        assert!(blocks.find(&run, false).is_some());
        assert!(blocks.find(&run, true).is_none(), "the first of a list has no comma");
        assert!(blocks.find(&run[..2], false).is_none());
        assert!(blocks.find(&other, false).is_none(), "equal is not the same");
        run[2] = other[2].clone();
        assert!(blocks.find(&run, false).is_none());
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten_and_nothing_is_kept_beyond_the_bound() {
        let blocks = Blocks::default();
        let runs: Vec<_> = (0..100).map(|at| objects(at..at + 2)).collect();
        for run in &runs {
            blocks.keep(run, false, block(run, 1 << 20));
            assert!(blocks.find(&runs[0], false).is_some());
        }
        let found: Vec<bool> = runs.iter().map(|run| blocks.find(run, false).is_some()).collect();
        assert!(found[0] && found[99] && !found[1]);
        assert!(found.iter().filter(|found| **found).count() <= KEPT_MAX >> 20);
    }

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
