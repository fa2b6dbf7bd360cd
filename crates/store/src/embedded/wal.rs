//! The write-ahead log: two files that are appended to alternately.
//!
//! River: group → **write-ahead log** → published; later, in large batches, the data file.
//! Promise: a group is one frame, one write and one sync, and is either complete or absent. A frame
//! is written only after the previous one is synced, so an unreadable frame is the last one, which
//! was not acknowledged. A readable frame after it means damage.
//!
//! Files are overwritten from their start and never truncated, and grow ahead of their content, so
//! a sync does not write file metadata. Frames of an older generation after the new end are in the
//! data file already.

use std::io;

use bytes::Bytes;
use headwater_api::Revision;
use redb::StorageBackend;

use super::disk::Disk;
use super::frame::{ALIGN, Edges, Frame, LoggedGroup, next_mark};
use super::row::{Seed, State};
use super::tail::Tail;
use crate::store::Error;

/// The names of the files.
pub(super) const NAMES: [&str; 2] = ["WAL.0", "WAL.1"];

/// A file grows by so many zeros at a time, ahead of its frames.
const FILL: u64 = 512 << 10;

/// The open files, for the writer.
#[derive(Debug)]
pub(super) struct Wal {
    files: [WalFile; 2],
    /// Which one is appended to.
    active: usize,
    generation: u64,
    /// The size of a file at which the other one is used.
    file_bytes: u64,
    sync_failed: bool,
}

#[derive(Debug)]
struct WalFile {
    file: Box<dyn StorageBackend>,
    /// Where the next frame goes; `None` until it is begun anew.
    end: Option<u64>,
    /// How long it is.
    len: u64,
    edges: Edges,
}

impl Wal {
    /// Opens the files behind what was found in them. Nothing is appended to either: the first
    /// frame starts a new generation.
    pub(super) fn open(disk: &dyn Disk, found: &WalContents, file_bytes: u64) -> io::Result<Wal> {
        let open = |name| {
            let file = disk.open(name)?;
            let len = file.len()?;
            Ok::<_, io::Error>(WalFile { file, end: None, len, edges: found.edges })
        };
        let files = [open(NAMES[0])?, open(NAMES[1])?];
        Ok(Wal { files, active: 1, generation: found.generation, file_bytes, sync_failed: false })
    }

    /// Whether a frame of so many bytes fits into the current file. One that is larger
    /// than a file has one for itself.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let fits = |end| end == 0 || end + bytes as u64 <= self.file_bytes;
        self.files[self.active].end.is_some_and(fits)
    }

    /// Whether the other file may be written over: the data file has everything in it.
    pub(super) fn may_switch(&self, absorbed: &State) -> bool {
        let Edges { newest, compacted } = self.files[1 - self.active].edges;
        newest <= absorbed.newest && compacted <= absorbed.compacted
    }

    /// Begins the other file anew.
    pub(super) fn switch(&mut self) {
        self.active = 1 - self.active;
        self.generation += 1;
        self.files[self.active].end = Some(0);
    }

    /// Writes and syncs a frame.
    pub(super) fn append(&mut self, frame: &Frame) -> io::Result<()> {
        let file = &mut self.files[self.active];
        let at = file.end.expect("a file is begun before it is appended to");
        let end = at + frame.bytes.len() as u64;
        file.file.write(at, &frame.bytes)?;
        file.fill(end, self.file_bytes);
        if let Err(error) = file.file.sync_data() {
            self.sync_failed = true;
            return Err(error);
        }
        (file.end, file.edges) = (Some(end), frame.edges);
        Ok(())
    }

    /// Makes what was found durable: a process that was killed may have written it and no more.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.file.sync_data())
    }

    /// Whether what the system shows of the files may not be on the disk.
    pub(super) fn sync_failed(&self) -> bool {
        self.sync_failed
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }
}

impl WalFile {
    /// Makes a file that has just become longer longer still, so that the next syncs need not write
    /// its length. Only that is lost if it fails.
    fn fill(&mut self, end: u64, file_bytes: u64) {
        if end <= self.len {
            return;
        }
        let len = (end + FILL).min(file_bytes).max(end);
        let zeros = vec![0; usize::try_from(len - end).unwrap_or_default()];
        let filled = zeros.is_empty() || self.file.write(end, &zeros).is_ok();
        self.len = if filled { len } else { end };
    }
}

/// Makes the files if they are not there; their names are durable with the next sync of them.
pub(super) fn create(disk: &dyn Disk) -> io::Result<()> {
    NAMES.iter().try_for_each(|name| disk.open(name).map(drop))
}

/// What the files hold.
#[derive(Debug, Default)]
pub(super) struct WalContents {
    /// Whole frames in the order they were written.
    groups: Vec<LoggedGroup>,
    /// What any frame goes to, also one behind a place that cannot be read.
    edges: Edges,
    /// The last generation.
    generation: u64,
}

impl WalContents {
    /// Reads the files of a store.
    pub(super) fn read(disk: &dyn Disk, seed: Seed) -> Result<WalContents, Error> {
        let mut found = WalContents::default();
        for name in NAMES {
            let unavailable =
                |error: io::Error| Error::Unavailable(format!("{}/{name}: {error}", disk.place()));
            if !disk.exists(name).map_err(unavailable)? {
                return Err(damaged(format!("{name} is missing")));
            }
            found.add(seed, &read_file(disk, name).map_err(unavailable)?);
        }
        found.groups.sort_by_key(|group| group.generation);
        Ok(found)
    }

    /// What comes after the data file. All that was ever synced must be there, without a gap.
    pub(super) fn tail(&self, file: &State) -> Result<Tail, Error> {
        let mut tail = Tail::after(file);
        for LoggedGroup { newest, sums, rows, .. } in &self.groups {
            let there = tail.newest();
            let before = Revision(newest.0.saturating_sub(rows.len() as u64));
            if *newest <= there {
                tail.raise_compacted(sums.compacted);
            } else if before == there {
                tail.push(rows.iter().cloned(), *sums);
            } else {
                return Err(damaged(format!(
                    "revisions are missing: {} follows {there}",
                    before.next()
                )));
            }
        }
        let (there, newest) = (tail.newest(), self.edges.newest);
        if newest > there {
            let why =
                format!("it is unreadable after revision {there}, but contains revision {newest}");
            return Err(damaged(why));
        }
        Ok(tail)
    }

    fn add(&mut self, seed: Seed, content: &Bytes) {
        let (mut at, mut generation) = (0, None);
        while let Ok((group, len)) = LoggedGroup::decode(seed, content, at)
            && generation.is_none_or(|generation| generation == group.generation)
        {
            generation = Some(group.generation);
            self.note(&group);
            self.groups.push(group);
            at += len;
        }
        // Frames that follow are of an older generation; otherwise there is damage before them.
        while let Some(place) = content.get(at..).and_then(next_mark) {
            at += place;
            match LoggedGroup::decode(seed, content, at) {
                Ok((group, len)) => {
                    self.note(&group);
                    at += len;
                }
                Err(_) => at += ALIGN,
            }
        }
    }

    fn note(&mut self, group: &LoggedGroup) {
        let compacted = group.sums.compacted;
        self.edges = self.edges.max(Edges { newest: group.newest, compacted });
        self.generation = self.generation.max(group.generation);
    }
}

fn read_file(disk: &dyn Disk, name: &str) -> io::Result<Bytes> {
    let file = disk.open(name)?;
    let mut content = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    file.read(0, &mut content)?;
    Ok(content.into())
}

fn damaged(why: String) -> Error {
    Error::Damaged { place: "WAL".into(), why }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::change::ChangeKind;
    use crate::embedded::disk::Directory;
    use crate::embedded::frame::Draft;
    use crate::embedded::row::LogRow;

    fn seed() -> Seed {
        Seed::of(Uuid::from_u128(7))
    }

    /// A frame of some rows that ends at a revision.
    fn frame(generation: u64, newest: u64, rows: u64) -> Frame {
        let mut draft = Draft::with_capacity(0);
        for revision in newest - rows + 1..=newest {
            let row = LogRow {
                kind: ChangeKind::Created,
                key: "/k",
                prev: Revision::ZERO,
                time: 0,
                expires: 0,
                value: &vec![b'v'; usize::try_from(revision % 50).unwrap()],
            };
            draft.push(seed(), Revision(revision), &row);
        }
        let state = State { newest: Revision(newest), objects: newest, ..State::default() };
        draft.seal(seed(), generation, &state)
    }

    fn content(frames: &[Frame]) -> Vec<u8> {
        frames.iter().flat_map(|frame| frame.bytes.iter().copied()).collect()
    }

    /// What comes after revision 10 in these files.
    fn tail(files: [Vec<u8>; 2]) -> Result<Vec<u64>, Error> {
        let mut found = WalContents::default();
        for content in files {
            found.add(seed(), &content.into());
        }
        found.groups.sort_by_key(|group| group.generation);
        let file = State { newest: Revision(10), ..State::default() };
        let tail = found.tail(&file)?;
        Ok(tail.rows_after(Revision(10)).map(|(revision, _)| revision.0).collect())
    }

    #[track_caller]
    fn check(files: [&[Frame]; 2], expected: &[u64]) {
        assert_eq!(tail(files.map(content)).unwrap(), expected);
    }

    #[test]
    fn frames_of_both_files_follow_each_other_in_the_order_of_their_turns() {
        check([&[], &[]], &[]);
        let old = [frame(4, 10, 2), frame(4, 12, 2)];
        check([&old, &[]], &[11, 12]);
        // A group without rows only forgets.
        check([&[frame(5, 14, 2), frame(5, 14, 0)], &old], &[11, 12, 13, 14]);
        // Frames of an older generation after the end of the new one.
        check([&[frame(5, 11, 1), frame(3, 8, 2), frame(3, 9, 1)], &[]], &[11]);
    }

    #[test]
    fn a_gap_is_damage_wherever_it_is() {
        assert!(tail([content(&[frame(4, 12, 1)]), Vec::new()]).is_err());
        assert!(tail([content(&[frame(4, 11, 1), frame(4, 13, 1)]), Vec::new()]).is_err());
        let (old, new) = (content(&[frame(4, 11, 1)]), content(&[frame(5, 13, 1)]));
        assert!(tail([old, new]).is_err());
        // A group the data file has only a part of.
        assert!(tail([content(&[frame(4, 11, 2)]), Vec::new()]).is_err());
    }

    #[test]
    fn any_changed_bit_is_found_and_only_the_last_frame_may_be_torn() {
        let frames = [frame(4, 11, 1), frame(4, 13, 2), frame(4, 14, 1)];
        let good = content(&frames);
        let last = good.len() - frames[2].bytes.len();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = tail([bad, Vec::new()]);
            match bit / 8 < last {
                true => assert!(found.is_err(), "bit {bit}"),
                false => assert_eq!(found.unwrap(), [11, 12, 13], "bit {bit}"),
            }
        }
        for len in last..good.len() {
            assert_eq!(tail([good[..len].to_vec(), Vec::new()]).unwrap(), [11, 12, 13]);
        }
    }

    #[test]
    fn a_file_is_begun_anew_only_when_the_data_file_has_all_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::lock(directory.path()).unwrap();
        create(&disk).unwrap();
        let mut wal = Wal::open(&disk, &WalContents::default(), 1 << 20).unwrap();
        let at = |newest, compacted| {
            let (newest, compacted) = (Revision(newest), Revision(compacted));
            State { newest, compacted, ..State::default() }
        };
        assert!(wal.may_switch(&at(0, 0)));
        wal.switch();
        // A group without rows only forgets; that, too, must not be lost.
        wal.append(&Draft::with_capacity(0).seal(seed(), wal.generation(), &at(10, 4))).unwrap();
        wal.append(&Draft::with_capacity(0).seal(seed(), wal.generation(), &at(10, 7))).unwrap();
        wal.switch();
        assert!(!wal.may_switch(&at(9, 7)));
        assert!(!wal.may_switch(&at(10, 6)));
        assert!(wal.may_switch(&at(10, 7)));
    }

    #[test]
    fn frames_of_another_store_are_not_there() {
        let other = Seed::of(Uuid::from_u128(8));
        let state = State { newest: Revision(11), ..State::default() };
        let frame = Draft::with_capacity(0).seal(other, 1, &state);
        check([&[frame], &[]], &[]);
    }
}
