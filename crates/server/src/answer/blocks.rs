//! A cache of compressed blocks of lists.
//!
//! Promise: a block is reused only for exactly the objects it was made of, and the cache has a size
//! limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use flate2::Crc;
use headwater_api::Object;

use crate::lock::lock;

/// The maximum size of a generation of blocks in bytes.
const KEPT_MAX: usize = 32 << 20;

/// A run of objects, compressed.
pub(crate) struct Block {
    /// The objects of the block. Weak references do not keep objects alive, but prevent the reuse of
    /// their addresses.
    pub(crate) objects: Box<[Weak<Object>]>,
    pub(crate) bytes: Bytes,
    pub(crate) crc: Crc,
}

impl Block {
    fn is_of(&self, objects: &[Arc<Object>]) -> bool {
        self.objects.len() == objects.len()
            && self.objects.iter().zip(objects).all(|(had, has)| had.as_ptr() == Arc::as_ptr(has))
    }

    /// The approximate size in bytes.
    fn size(&self) -> usize {
        size_of::<Block>() + self.bytes.len() + self.objects.len() * size_of::<Weak<Object>>()
    }
}

/// A cache of blocks.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Generations>);

/// Blocks by the address of their first object and whether the list begins with it. When the young
/// generation is full, the old one, unused since the last time, is dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<BlockKey, Arc<Block>>,
    old: HashMap<BlockKey, Arc<Block>>,
    young_bytes: usize,
}

type BlockKey = (usize, bool);

fn place(objects: &[Arc<Object>], is_first: bool) -> BlockKey {
    (objects.first().map_or(0, |first| Arc::as_ptr(first).addr()), is_first)
}

impl Blocks {
    pub(crate) fn find(&self, objects: &[Arc<Object>], is_first: bool) -> Option<Arc<Block>> {
        let place = place(objects, is_first);
        let mut kept = lock(&self.0);
        if let Some(block) = kept.young.get(&place) {
            return block.is_of(objects).then(|| block.clone());
        }
        let block = kept.old.remove(&place).filter(|block| block.is_of(objects))?;
        kept.keep(place, block.clone());
        Some(block)
    }

    pub(crate) fn keep(&self, objects: &[Arc<Object>], is_first: bool, block: Arc<Block>) {
        let mut kept = lock(&self.0);
        kept.keep(place(objects, is_first), block);
    }
}

impl Generations {
    fn keep(&mut self, place: BlockKey, block: Arc<Block>) {
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
}
