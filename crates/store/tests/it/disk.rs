//! A disk in memory that records its operations, fails on demand, and reproduces the possible
//! states after a crash.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use headwater_store::embedded::disk::{Disk, DiskFile, Space};

/// An operation on the disk.
#[derive(Clone, Debug)]
pub(crate) enum Done {
    Created {
        name: String,
        inode: usize,
    },
    Wrote {
        inode: usize,
        offset: u64,
        data: Vec<u8>,
    },
    SetLen {
        inode: usize,
        len: u64,
    },
    Synced {
        inode: usize,
    },
    /// A failed sync: its data may be lost for good, even if a later sync succeeds.
    SyncFailed {
        inode: usize,
    },
    Renamed {
        from: String,
        to: String,
    },
    Removed {
        name: String,
    },
    SyncedNames,
}

/// A set of files. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestDisk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    /// All operations, if recorded.
    done: Vec<Done>,
    /// Counts down to the operation that fails.
    fails_in: Option<usize>,
    /// Whether all later operations fail too.
    fails_on: bool,
    failed: usize,
    reads: usize,
    read_fails: bool,
    syncs_fail: bool,
    /// Every write fails for lack of space.
    full: bool,
    /// The free space, if limited.
    free: Option<u64>,
    /// The bytes that all files can have together, if limited.
    capacity: Option<u64>,
    /// The preallocated files and their sizes.
    reserve: Option<(String, u64)>,
}

/// The size of the disk.
const TOTAL: u64 = 100 << 30;

/// Which unsynced writes survive a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
    Nothing,
    Everything,
    /// Each sector at random.
    Some(u64),
    /// Each file completely or not at all, at random.
    Files(u64),
    /// Everything, but the last write only up to a random byte.
    Torn(u64),
    /// Everything, but the last write only up to this byte.
    Cut(usize),
}

impl TestDisk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The number of operations so far.
    pub(crate) fn now(&self) -> usize {
        self.lock().done.len()
    }

    pub(crate) fn history(&self) -> Vec<Done> {
        self.lock().done.clone()
    }

    /// Makes the operation after so many others fail, and all later ones if `on`.
    pub(crate) fn fail_in(&self, operations: usize, on: bool) {
        let mut state = self.lock();
        (state.fails_in, state.fails_on) = (Some(operations), on);
    }

    /// Makes every sync of a file fail, or none.
    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.lock().syncs_fail = fail;
    }

    /// Makes every write fail for lack of space, or none.
    pub(crate) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// Limits the free space.
    pub(crate) fn set_free(&self, bytes: u64) {
        self.lock().free = Some(bytes);
    }

    /// Limits the size of the disk: a write that needs more fails.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.lock().capacity = Some(bytes);
    }

    /// The preallocated bytes.
    pub(crate) fn reserve(&self) -> Option<u64> {
        self.lock().reserve.as_ref().map(|(_, bytes)| *bytes)
    }

    /// Makes the next read fail.
    pub(crate) fn fail_read(&self) {
        self.lock().read_fails = true;
    }

    /// The number of reads so far.
    pub(crate) fn reads(&self) -> usize {
        self.lock().reads
    }

    pub(crate) fn failures(&self) -> usize {
        self.lock().failed
    }

    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        let state = self.lock();
        state.files[state.names[name]].clone()
    }

    pub(crate) fn inode(&self, name: &str) -> usize {
        self.lock().names[name]
    }

    pub(crate) fn put_file(&self, name: &str, content: Vec<u8>) {
        let mut state = self.lock();
        let inode = state.inode(name);
        state.files[inode] = content;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// An independent copy without recorded operations.
    pub(crate) fn copy(&self) -> TestDisk {
        let state = self.lock();
        let (names, files) = (state.names.clone(), state.files.clone());
        TestDisk(Arc::new(Mutex::new(State { names, files, ..State::default() })))
    }
}

impl State {
    fn inode(&mut self, name: &str) -> usize {
        if let Some(inode) = self.names.get(name) {
            return *inode;
        }
        self.files.push(Vec::new());
        let inode = self.files.len() - 1;
        self.names.insert(name.into(), inode);
        self.done.push(Done::Created { name: name.into(), inode });
        inode
    }

    /// What the files can still grow by.
    fn space(&self) -> Space {
        let Some(total) = self.capacity else {
            return Space { free: self.free.unwrap_or(TOTAL), total: TOTAL };
        };
        let files = self.names.values().map(|inode| self.files[*inode].len() as u64);
        let reserve = self.reserve.as_ref().map_or(0, |(_, bytes)| *bytes);
        Space { free: total.saturating_sub(files.sum::<u64>() + reserve), total }
    }

    /// Fails if there is no space for a file of this length.
    fn may_grow(&self, inode: usize, len: u64) -> io::Result<()> {
        let more = len.saturating_sub(self.files[inode].len() as u64);
        match self.full || more > self.space().free {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Counts an operation that can fail.
    fn may_fail(&mut self) -> io::Result<()> {
        match &mut self.fails_in {
            None => Ok(()),
            Some(0) => {
                if !self.fails_on {
                    self.fails_in = None;
                }
                self.failed += 1;
                Err(io::Error::other("injected"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Disk for TestDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let inode = self.lock().inode(name);
        Ok(Box::new(TestFile { disk: self.clone(), inode }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let state = self.lock();
        let reserved = state.reserve.as_ref().is_some_and(|(reserve, _)| reserve == name);
        Ok(reserved || state.names.contains_key(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(TestDisk::names(self))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.may_fail()?;
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.into(), inode);
        state.done.push(Done::Renamed { from: from.into(), to: to.into() });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        if state.reserve.take_if(|(reserve, _)| reserve == name).is_some() {
            return Ok(());
        }
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.done.push(Done::Removed { name: name.into() });
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.may_fail()?;
        state.done.push(Done::SyncedNames);
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(self.lock().space())
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        // Its content is never read; only its existence matters.
        let mut state = self.lock();
        state.reserve = None;
        match bytes > state.space().free {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => {
                state.reserve = Some((name.into(), bytes));
                Ok(())
            }
        }
    }

    fn place(&self) -> String {
        "memory".into()
    }
}

#[derive(Debug)]
struct TestFile {
    disk: TestDisk,
    inode: usize,
}

impl DiskFile for TestFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.inode].len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.reads += 1;
        if std::mem::take(&mut state.read_fails) {
            return Err(io::Error::other("injected"));
        }
        let start = usize::try_from(offset).unwrap();
        let found = state.files[self.inode].get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.may_fail()?;
        state.files[self.inode].resize(usize::try_from(len).unwrap(), 0);
        state.done.push(Done::SetLen { inode: self.inode, len });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        let failed = if state.syncs_fail { Err(io::Error::other("injected")) } else { Ok(()) };
        if let Err(error) = failed.and_then(|()| state.may_fail()) {
            state.done.push(Done::SyncFailed { inode: self.inode });
            return Err(error);
        }
        state.done.push(Done::Synced { inode: self.inode });
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.may_fail()?;
        state.may_grow(self.inode, offset + data.len() as u64)?;
        apply_write(&mut state.files[self.inode], offset, data);
        state.done.push(Done::Wrote { inode: self.inode, offset, data: data.to_vec() });
        Ok(())
    }

    fn drop_cache(&self, _offset: u64, _len: u64) {}
}

fn apply_write(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let start = usize::try_from(offset).unwrap();
    if file.len() < start + data.len() {
        file.resize(start + data.len(), 0);
    }
    file[start..start + data.len()].copy_from_slice(data);
}

/// Replays recorded operations and reproduces the possible states after a crash.
#[derive(Clone, Default)]
pub(crate) struct Replay {
    /// The durable state.
    files: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
    /// The unsynced operations, in order.
    pending: Vec<Done>,
}

impl Replay {
    /// Applies the next operation.
    pub(crate) fn step(&mut self, done: &Done) {
        match done {
            Done::Created { inode, .. } => {
                self.files.resize(self.files.len().max(inode + 1), Vec::new());
                self.pending.push(done.clone());
            }
            Done::Synced { inode } => self.settle(|pending| touches(pending, *inode), true),
            Done::SyncFailed { inode } => self.settle(|pending| touches(pending, *inode), false),
            Done::SyncedNames => self.settle(is_name, true),
            _ => self.pending.push(done.clone()),
        }
    }

    /// Makes some unsynced operations durable and loses the others.
    fn settle(&mut self, which: impl Fn(&Done) -> bool, kept: bool) {
        let (settled, pending) = std::mem::take(&mut self.pending).into_iter().partition(which);
        self.pending = pending;
        let settled: Vec<Done> = settled;
        for done in settled.iter().filter(|_| kept) {
            apply(&mut self.files, &mut self.names, done);
        }
    }

    /// The disk after a crash at this point.
    pub(crate) fn crash(&self, kept: Kept) -> TestDisk {
        let (mut files, mut names) = (self.files.clone(), self.names.clone());
        match kept {
            Kept::Nothing => {}
            Kept::Everything => {
                for done in &self.pending {
                    apply(&mut files, &mut names, done);
                }
            }
            Kept::Some(seed) => {
                let mut chance = Chance(seed);
                for done in &self.pending {
                    apply_some(&mut files, &mut names, done, &mut chance);
                }
            }
            Kept::Files(seed) => {
                let kept = |inode| Chance(seed ^ inode as u64).next().is_multiple_of(2);
                let lost = |done: &Done| (0..files.len()).any(|n| !kept(n) && touches(done, n));
                let pending: Vec<_> = self.pending.iter().filter(|done| !lost(done)).collect();
                for done in pending {
                    apply(&mut files, &mut names, done);
                }
            }
            Kept::Torn(seed) => {
                let cut = usize::try_from(Chance(seed).next()).unwrap();
                self.apply_cut(&mut files, &mut names, |len| cut % len.max(1));
            }
            Kept::Cut(cut) => self.apply_cut(&mut files, &mut names, |len| cut.min(len)),
        }
        TestDisk(Arc::new(Mutex::new(State { names, files, ..State::default() })))
    }

    /// Keeps everything, but the last write only up to `cut` of its length.
    fn apply_cut(
        &self,
        files: &mut [Vec<u8>],
        names: &mut BTreeMap<String, usize>,
        cut: impl Fn(usize) -> usize,
    ) {
        let Some((last, rest)) = self.pending.split_last() else { return };
        for done in rest {
            apply(files, names, done);
        }
        match last {
            Done::Wrote { inode, offset, data } => {
                apply_write(&mut files[*inode], *offset, &data[..cut(data.len())]);
            }
            done => apply(files, names, done),
        }
    }
}

fn touches(done: &Done, file: usize) -> bool {
    matches!(done, Done::Wrote { inode, .. } | Done::SetLen { inode, .. } if *inode == file)
}

fn is_name(done: &Done) -> bool {
    matches!(done, Done::Created { .. } | Done::Renamed { .. } | Done::Removed { .. })
}

fn apply(files: &mut [Vec<u8>], names: &mut BTreeMap<String, usize>, done: &Done) {
    match done {
        Done::Created { name, inode } => drop(names.insert(name.clone(), *inode)),
        Done::Wrote { inode, offset, data } => apply_write(&mut files[*inode], *offset, data),
        Done::SetLen { inode, len } => files[*inode].resize(usize::try_from(*len).unwrap(), 0),
        Done::Renamed { from, to } => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Done::Removed { name } => drop(names.remove(name)),
        Done::Synced { .. } | Done::SyncFailed { .. } | Done::SyncedNames => {}
    }
}

/// Keeps each sector of a write at random; names and lengths completely or not at all.
fn apply_some(
    files: &mut [Vec<u8>],
    names: &mut BTreeMap<String, usize>,
    done: &Done,
    chance: &mut Chance,
) {
    let Done::Wrote { inode, offset, data } = done else {
        // Names change in order, as in a journaling file system, so only lengths are random.
        if matches!(done, Done::SetLen { .. }) && chance.next().is_multiple_of(2) {
            return;
        }
        return apply(files, names, done);
    };
    let grain = if chance.next().is_multiple_of(2) { 512 } else { 4096 };
    for (n, sector) in data.chunks(grain).enumerate() {
        if chance.next().is_multiple_of(2) {
            apply_write(&mut files[*inode], offset + (n * grain) as u64, sector);
        }
    }
}

/// Reproducible random numbers (splitmix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Prints the position of a test when it panics.
pub(crate) struct Context(pub(crate) String);

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}
