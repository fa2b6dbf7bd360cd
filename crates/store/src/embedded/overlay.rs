//! An overlay: a read-only file with writes kept in memory.
//!
//! redb repairs and marks a file when it opens it. With an overlay, the file itself does not
//! change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use crate::lock::lock;
const PAGE: usize = 4096;

/// A file under what was written to it since.
#[derive(Debug)]
pub(super) struct Overlay {
    file: Box<dyn StorageBackend>,
    file_len: u64,
    written: Mutex<Written>,
    /// Reading fails once this is set.
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Written {
    len: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE]>>,
}

impl Overlay {
    pub(super) fn new(file: Box<dyn StorageBackend>, stop: Arc<AtomicBool>) -> io::Result<Overlay> {
        let file_len = file.len()?;
        let written = Mutex::new(Written { len: file_len, pages: BTreeMap::new() });
        Ok(Overlay { file, file_len, written, stop })
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }

    /// A page of the file below; beyond its end it is zero.
    fn page(&self, number: u64) -> io::Result<Box<[u8; PAGE]>> {
        let mut page = Box::new([0; PAGE]);
        let start = number * PAGE as u64;
        let there = self.file_len.saturating_sub(start).min(PAGE as u64);
        if there > 0 {
            self.file.read(start, &mut page[..usize::try_from(there).unwrap_or(PAGE)])?;
        }
        Ok(page)
    }
}

/// The parts of pages that some bytes cover: page number, place in the page, place in the bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let place = usize::try_from(at % PAGE as u64).unwrap_or_default();
        let count = (PAGE - place).min(len - done);
        let part = (at / PAGE as u64, place, done..done + count);
        done += count;
        Some(part)
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("stopped"));
        }
        let written = self.lock();
        let end = offset.saturating_add(out.len() as u64);
        if end > written.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let pages = offset / PAGE as u64..end.div_ceil(PAGE as u64);
        if end <= self.file_len && written.pages.range(pages).next().is_none() {
            drop(written);
            return self.file.read(offset, out);
        }
        for (number, place, range) in parts(offset, out.len()) {
            let count = range.len();
            match written.pages.get(&number) {
                Some(page) => out[range].copy_from_slice(&page[place..place + count]),
                None => out[range].copy_from_slice(&self.page(number)?[place..place + count]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.lock().len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.lock();
        for (number, place, range) in parts(offset, data.len()) {
            let count = range.len();
            let page = match written.pages.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(self.page(number)?),
            };
            page[place..place + count].copy_from_slice(&data[range]);
        }
        written.len = written.len.max(offset + data.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    #[test]
    fn writes_are_read_back_and_the_file_below_stays_as_it_was() {
        let below = InMemoryBackend::new();
        below.set_len(10_000).unwrap();
        below.write(0, &[7; 10_000]).unwrap();
        let overlay = Overlay::new(Box::new(below), Arc::default()).unwrap();
        overlay.write(4_000, &[8; 200]).unwrap();
        overlay.set_len(20_000).unwrap();
        overlay.write(19_999, &[9]).unwrap();
        let mut bytes = vec![0; 20_000];
        overlay.read(0, &mut bytes).unwrap();
        let expected: Vec<u8> = (0..20_000)
            .map(|n| match n {
                4_000..4_200 => 8,
                0..10_000 => 7,
                19_999 => 9,
                _ => 0,
            })
            .collect();
        assert_eq!(bytes, expected);
        let mut below = vec![0; 10_000];
        overlay.file.read(0, &mut below).unwrap();
        assert_eq!(below, vec![7; 10_000]);
        assert!(overlay.read(19_990, &mut [0; 11]).is_err());
    }
}
