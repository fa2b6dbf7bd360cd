//! A buffer that joins redb's page writes between two syncs into few large writes.
//!
//! River: data file → **page buffer** → disk. redb writes its pages one by one in hash order: each
//! would be one system call.
//! Promise: flushes the newest version of every added page, in the order of the file. The file
//! flushes it before every read and sync (see `MonitoredFile`).

use std::collections::BTreeMap;
use std::io;

/// Pages are handed on before there are more bytes.
const BYTES_MAX: usize = 8 << 20;

/// The largest write.
const WRITE_MAX: usize = 1 << 20;

/// Pages that are not on their way to the disk yet.
#[derive(Debug, Default)]
pub(super) struct PageBuffer {
    /// By where they begin. No two overlap.
    pages: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl PageBuffer {
    /// Whether some of these bytes of the file are here.
    pub(super) fn has_some_of(&self, offset: u64, len: usize) -> bool {
        let before = self.pages.range(..offset + len as u64).next_back();
        before.is_some_and(|(start, page)| start + page.len() as u64 > offset)
    }

    /// Adds a page, unless the others have to be handed on first.
    pub(super) fn add(&mut self, offset: u64, page: &[u8]) -> bool {
        if let Some(older) = self.pages.get_mut(&offset)
            && older.len() == page.len()
        {
            older.copy_from_slice(page);
            return true;
        }
        if self.has_some_of(offset, page.len()) || self.bytes + page.len() > BYTES_MAX {
            return false;
        }
        self.bytes += page.len();
        self.pages.insert(offset, page.to_owned());
        true
    }

    /// Hands everything on; whatever becomes of it, it is not here any more.
    pub(super) fn hand_on(
        &mut self,
        mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let PageBuffer { pages, .. } = std::mem::take(self);
        let (mut start, mut run) = (0, Vec::new());
        for (offset, page) in pages {
            let follows = offset == start + run.len() as u64 && run.len() + page.len() <= WRITE_MAX;
            if !follows && !run.is_empty() {
                write(start, &run)?;
                run.clear();
            }
            if run.is_empty() {
                start = offset;
            }
            run.extend_from_slice(&page);
        }
        if run.is_empty() { Ok(()) } else { write(start, &run) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handed_on(together: &mut PageBuffer) -> Vec<(u64, Vec<u8>)> {
        let mut writes = Vec::new();
        let done = together.hand_on(|offset, bytes| {
            writes.push((offset, bytes.to_owned()));
            Ok(())
        });
        done.unwrap();
        writes
    }

    #[test]
    fn pages_that_follow_each_other_are_one_write() {
        let mut together = PageBuffer::default();
        for (offset, page) in [(8, b"cc"), (4, b"aa"), (20, b"dd"), (6, b"bb"), (8, b"CC")] {
            assert!(together.add(offset, page));
        }
        assert!(together.has_some_of(0, 5) && together.has_some_of(21, 9));
        assert!(!together.has_some_of(0, 4) && !together.has_some_of(10, 10));
        assert_eq!(handed_on(&mut together), [(4, b"aabbCC".to_vec()), (20, b"dd".to_vec())]);
        assert!(together.pages.is_empty());
    }

    #[test]
    fn a_page_that_overlaps_others_waits_until_they_are_handed_on() {
        let mut together = PageBuffer::default();
        assert!(together.add(4, b"aaaa"));
        for (offset, page) in [(4, &b"b"[..]), (4, b"bbbbb"), (0, b"bbbbb"), (7, b"b"), (5, b"b")] {
            assert!(!together.add(offset, page), "{offset}");
        }
        assert!(together.add(0, b"bbbb") && together.add(8, b"bbbb"));
    }

    #[test]
    fn no_write_is_very_large_and_not_much_waits() {
        let (mut together, page) = (PageBuffer::default(), vec![7; WRITE_MAX / 4]);
        let places = (0..).map(|at| at * page.len() as u64);
        let added = places.take_while(|offset| together.add(*offset, &page)).count();
        assert_eq!(added * page.len(), BYTES_MAX);
        let writes = handed_on(&mut together);
        assert!(writes.iter().all(|(_, bytes)| bytes.len() == WRITE_MAX));
        assert_eq!(writes.len(), BYTES_MAX / WRITE_MAX);
    }

    #[test]
    fn what_could_not_be_written_is_told_and_forgotten() {
        let mut together = PageBuffer::default();
        assert!(together.add(0, b"a"));
        assert!(together.hand_on(|_, _| Err(io::Error::other("full"))).is_err());
        assert!(together.pages.is_empty());
    }

    proptest! {
        /// As `MonitoredFile` does it: a file is what it would be had each page been written at
        /// once.
        #[test]
        fn a_file_is_what_was_written(
            pages in prop::collection::vec((0..60_usize, 1..20_usize, any::<u8>()), 0..60),
        ) {
            let (mut expected, mut file) = (vec![0; 80], vec![0; 80]);
            let mut together = PageBuffer::default();
            let mut hand_on = |together: &mut PageBuffer| {
                for (offset, bytes) in handed_on(together) {
                    file[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
            };
            for (offset, len, byte) in pages {
                let page = vec![byte; len];
                expected[offset..offset + len].copy_from_slice(&page);
                if !together.add(offset as u64, &page) {
                    hand_on(&mut together);
                    prop_assert!(together.add(offset as u64, &page));
                }
            }
            hand_on(&mut together);
            prop_assert_eq!(file, expected);
        }
    }
}
