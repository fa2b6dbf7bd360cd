//! The journal of one resource: its state at some revision, and the changes since, on disk.
//!
//! River: upstream → **journal** → the cache of a restarted relay.
//! A generation is a state file and the log of the batches after it. Two are kept, so that a restarted
//! relay replays at least one complete log and its clients resume. Nothing is synced: what a crash loses
//! is asked of the upstream again.
//! Promise: what is read back is what was written, up to the first damage; a state is used only if it is
//! complete.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Batch, Change, ChangeKind, Key, Record};

/// The log size at which a new generation begins.
const LOG_MAX: u64 = 64 << 20;

/// The largest frame that is read back.
const FRAME_MAX: usize = 64 << 20;

const HEAD: u8 = 0;
const RECORD: u8 = 1;
const CREATED: u8 = 2;
const UPDATED: u8 = 3;
const DELETED: u8 = 4;
/// Ends a batch, or a state.
const END: u8 = 5;

/// One entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    tag: u8,
    revision: Revision,
    key: String,
    value: Bytes,
}

/// The journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    /// What the journal is about: another cluster or selection needs another journal.
    subject: String,
    generation: u64,
    /// That of the oldest state that is kept, and of the newest one.
    states: (u64, u64),
    log: Option<BufWriter<File>>,
    log_bytes: u64,
    log_max: u64,
}

/// A state that is being written. It counts once it was finished.
#[derive(Debug)]
pub(crate) struct StateWriter {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
}

/// What a journal contains.
pub(crate) struct RecoveredState {
    /// The subject that was written.
    pub(crate) subject: String,
    /// The revision of the state.
    pub(crate) revision: Revision,
    state: BufReader<File>,
    logs: Vec<PathBuf>,
}

/// The batches after a recovered state.
pub(crate) struct RecoveredLogs {
    after: Revision,
    logs: std::vec::IntoIter<PathBuf>,
    log: Option<BufReader<File>>,
}

impl Journal {
    /// Opens the journal in a folder, and what it contains.
    pub(crate) fn open(
        folder: &Path,
        log_max: Option<u64>,
    ) -> io::Result<(Journal, Option<RecoveredState>)> {
        fs::create_dir_all(folder)?;
        let mut states = Vec::new();
        let mut newest = 0;
        for entry in fs::read_dir(folder)? {
            let name = entry?.file_name();
            let Some((kind, number)) = name.to_str().and_then(|name| name.split_once('-')) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else { continue };
            newest = newest.max(number);
            if kind == "state" {
                states.push(number);
            }
        }
        states.sort_unstable();
        let found =
            states.iter().find_map(|number| Some((*number, recover(folder, *number, newest)?)));
        let first = found.as_ref().map_or(newest, |(number, _)| *number);
        let recovered = found.map(|(_, recovered)| recovered);
        let journal = Journal {
            folder: folder.to_owned(),
            subject: recovered.as_ref().map(|state| state.subject.clone()).unwrap_or_default(),
            generation: newest,
            states: (first, first),
            log: None,
            log_bytes: 0,
            log_max: log_max.unwrap_or(LOG_MAX),
        };
        Ok((journal, recovered))
    }

    /// Begins a new history: the state follows. Forgets all earlier generations.
    pub(crate) fn begin(&mut self, subject: &str, revision: Revision) -> io::Result<StateWriter> {
        subject.clone_into(&mut self.subject);
        let first = self.generation + 1;
        self.generation = first;
        self.states = (first, first);
        let state = self.state(first, revision)?;
        self.open_log(revision)?;
        self.forget_before(first)?;
        Ok(state)
    }

    /// Continues after what was recovered, in a log of its own.
    pub(crate) fn resume(&mut self, after: Revision) -> io::Result<()> {
        self.generation += 1;
        self.open_log(after)
    }

    /// Appends a batch. Returns whether the log is so long that a new generation should begin.
    pub(crate) fn append(&mut self, batch: &Batch) -> io::Result<bool> {
        let Some(log) = &mut self.log else { return Ok(false) };
        for change in &batch.changes {
            let tag = match change.kind {
                ChangeKind::Created => CREATED,
                ChangeKind::Updated => UPDATED,
                ChangeKind::Deleted => DELETED,
            };
            let key = change.key.as_str();
            self.log_bytes += write(log, tag, change.revision, key, &change.value)?;
        }
        self.log_bytes += write(log, END, batch.complete_to, "", &[])?;
        log.flush()?;
        Ok(self.log_bytes > self.log_max)
    }

    /// Begins a new generation: later batches go to a new log. Returns its number.
    pub(crate) fn rotate_log(&mut self, revision: Revision) -> io::Result<u64> {
        self.generation += 1;
        self.open_log(revision)?;
        Ok(self.generation)
    }

    /// Removes what is older than the state before this one, which is complete.
    pub(crate) fn keep_two(&mut self, generation: u64) -> io::Result<()> {
        let (oldest, before) = self.states;
        if generation < oldest {
            return self.forget_before(oldest); // a new history began meanwhile
        }
        self.states = (before, generation);
        self.forget_before(before)
    }

    fn forget_before(&self, generation: u64) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let number = name.split_once('-').and_then(|(_, number)| number.parse::<u64>().ok());
            if number.is_some_and(|number| number < generation) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn open_log(&mut self, after: Revision) -> io::Result<()> {
        let path = self.folder.join(format!("log-{}", self.generation));
        let mut log = BufWriter::new(File::create(path)?);
        self.log_bytes = write(&mut log, HEAD, after, "", &[])?;
        self.log = Some(log);
        Ok(())
    }

    /// Writes the state of a generation, at or after the revision at which its log begins.
    pub(crate) fn state(&self, generation: u64, revision: Revision) -> io::Result<StateWriter> {
        let path = self.folder.join(format!("state-{generation}"));
        let temporary = path.with_extension("part");
        let mut file = BufWriter::new(File::create(&temporary)?);
        write(&mut file, HEAD, revision, &self.subject, &[])?;
        Ok(StateWriter { file, temporary, path })
    }
}

impl StateWriter {
    pub(crate) fn add(&mut self, key: &str, revision: Revision, value: &[u8]) -> io::Result<()> {
        write(&mut self.file, RECORD, revision, key, value).map(drop)
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        write(&mut self.file, END, Revision::ZERO, "", &[])?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_data()?;
        fs::rename(self.temporary, self.path)
    }
}

impl RecoveredState {
    /// The next records, at most so many; fewer at the end.
    pub(crate) fn records(&mut self, count: usize) -> Vec<Record> {
        let mut records = Vec::new();
        while records.len() < count {
            match read(&mut self.state) {
                Some(Entry { tag: RECORD, revision, key, value }) => {
                    records.push(Record { key: Key::new(key), revision, value });
                }
                _ => break,
            }
        }
        records
    }

    /// The batches after the state.
    pub(crate) fn logs(&self) -> RecoveredLogs {
        RecoveredLogs { after: self.revision, logs: self.logs.clone().into_iter(), log: None }
    }
}

impl RecoveredLogs {
    /// The next batch; `None` at the end, or at the first damage.
    pub(crate) fn next(&mut self) -> Option<Batch> {
        loop {
            let Some(log) = &mut self.log else {
                let path = self.logs.next()?;
                let mut log = File::open(path).ok().map(BufReader::new);
                let head = log.as_mut().and_then(read).filter(|entry| entry.tag == HEAD);
                // One that begins later follows a log whose end was lost.
                self.log = log.filter(|_| head.is_some_and(|head| head.revision <= self.after));
                continue;
            };
            let mut batch = Batch::default();
            let end = loop {
                match read(log) {
                    Some(Entry { tag: END, revision, .. }) => break Some(revision),
                    Some(entry) => batch.changes.extend(change(entry)),
                    None => break None,
                }
            };
            // The state may be newer than the start of its log.
            batch.changes.retain(|change| change.revision > self.after);
            match end {
                Some(end) if end > self.after => {
                    self.after = end;
                    return Some(Batch { complete_to: end, ..batch });
                }
                Some(_) => {}
                None => self.log = None,
            }
        }
    }
}

fn change(entry: Entry) -> Option<Change> {
    let kind = match entry.tag {
        CREATED => ChangeKind::Created,
        UPDATED => ChangeKind::Updated,
        DELETED => ChangeKind::Deleted,
        _ => return None,
    };
    let Entry { revision, key, value, .. } = entry;
    Some(Change { revision, key: Key::new(key), kind, value, prev: None })
}

/// The content from a state on, if that state is complete and readable.
fn recover(folder: &Path, first: u64, newest: u64) -> Option<RecoveredState> {
    let open = || File::open(folder.join(format!("state-{first}"))).ok().map(BufReader::new);
    let mut check = open()?;
    let head = read(&mut check).filter(|entry| entry.tag == HEAD)?;
    loop {
        match read(&mut check)?.tag {
            RECORD => {}
            END => break,
            _ => return None,
        }
    }
    let mut state = open()?;
    read(&mut state)?;
    let logs: Vec<PathBuf> = (first..=newest)
        .map(|number| folder.join(format!("log-{number}")))
        .filter(|path| path.exists())
        .collect();
    Some(RecoveredState { subject: head.key, revision: head.revision, state, logs })
}

/// Writes an entry: its length, its checksum, its content. Returns the number of bytes.
fn write(
    into: &mut impl Write,
    tag: u8,
    revision: Revision,
    key: &str,
    value: &[u8],
) -> io::Result<u64> {
    let mut head = Vec::with_capacity(13 + key.len());
    head.push(tag);
    head.extend_from_slice(&revision.0.to_le_bytes());
    head.extend_from_slice(&(key.len() as u32).to_le_bytes());
    head.extend_from_slice(key.as_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&head), value);
    let length = head.len() + value.len();
    into.write_all(&(length as u32).to_le_bytes())?;
    into.write_all(&checksum.to_le_bytes())?;
    into.write_all(&head)?;
    into.write_all(value)?;
    Ok(8 + length as u64)
}

/// Reads an entry; `None` at the end or if it is damaged.
fn read(from: &mut impl Read) -> Option<Entry> {
    let mut word = [0; 4];
    from.read_exact(&mut word).ok()?;
    let length = usize::try_from(u32::from_le_bytes(word)).ok().filter(|len| *len <= FRAME_MAX)?;
    from.read_exact(&mut word).ok()?;
    let checksum = u32::from_le_bytes(word);
    let mut content = Vec::new();
    from.take(length as u64).read_to_end(&mut content).ok()?;
    if content.len() != length || crc32c::crc32c(&content) != checksum {
        return None;
    }
    let content = Bytes::from(content);
    let revision = u64::from_le_bytes(content.get(1..9)?.try_into().ok()?);
    let key_len = u32::from_le_bytes(content.get(9..13)?.try_into().ok()?) as usize;
    let key = String::from_utf8(content.get(13..13 + key_len)?.to_vec()).ok()?;
    let value = content.slice(13 + key_len..);
    Some(Entry { tag: *content.first()?, revision: Revision(revision), key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(revision: u64) -> Batch {
        let change = Change {
            revision: Revision(revision),
            key: Key::new(format!("/registry/core/pods/a/{revision}")),
            kind: ChangeKind::Created,
            value: Bytes::from(revision.to_string()),
            prev: None,
        };
        Batch { changes: vec![change], complete_to: Revision(revision) }
    }

    fn state(journal: &mut Journal, revision: u64) {
        let mut state = journal.begin("subject", Revision(revision)).unwrap();
        state.add("/registry/core/pods/a/0", Revision(1), b"zero").unwrap();
        state.finish().unwrap();
    }

    /// The revision of the state and the last revisions of the batches.
    fn recovered(folder: &Path) -> Option<(u64, Vec<u64>)> {
        let (_, recovered) = Journal::open(folder, None).unwrap();
        let mut recovered = recovered?;
        assert_eq!(recovered.subject, "subject");
        assert!(!recovered.records(10).is_empty());
        let mut logs = recovered.logs();
        let batches = std::iter::from_fn(|| logs.next()).map(|batch| {
            assert!(
                batch.changes.iter().all(|change| change.value == change.revision.0.to_string())
            );
            batch.complete_to.0
        });
        Some((recovered.revision.0, batches.collect()))
    }

    #[test]
    fn a_journal_returns_its_state_and_every_batch_across_generations() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, nothing) = Journal::open(folder.path(), None).unwrap();
        assert!(nothing.is_none());
        state(&mut journal, 10);
        (11..14).for_each(|revision| assert!(!journal.append(&batch(revision)).unwrap()));
        assert_eq!(recovered(folder.path()), Some((10, vec![11, 12, 13])));

        let (mut journal, _) = Journal::open(folder.path(), None).unwrap();
        journal.resume(Revision(13)).unwrap();
        journal.append(&batch(14)).unwrap();
        let generation = journal.rotate_log(Revision(14)).unwrap();
        let mut state = journal.state(generation, Revision(14)).unwrap();
        journal.append(&batch(15)).unwrap();
        assert_eq!(recovered(folder.path()), Some((10, vec![11, 12, 13, 14, 15])));
        state.add("/registry/core/pods/a/14", Revision(14), b"14").unwrap();
        state.finish().unwrap();
        assert_eq!(recovered(folder.path()), Some((10, vec![11, 12, 13, 14, 15])));
        journal.keep_two(generation).unwrap();
        assert_eq!(recovered(folder.path()), Some((10, vec![11, 12, 13, 14, 15])));
        let generation = journal.rotate_log(Revision(15)).unwrap();
        let mut state = journal.state(generation, Revision(15)).unwrap();
        state.add("/registry/core/pods/a/14", Revision(14), b"14").unwrap();
        state.finish().unwrap();
        journal.keep_two(generation).unwrap();
        assert_eq!(recovered(folder.path()), Some((14, vec![15])));
    }

    /// Damage costs what follows it, up to a log that begins where the damaged one ends.
    #[test]
    fn a_damaged_log_is_never_a_hole() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(folder.path(), None).unwrap();
        state(&mut journal, 10);
        let first = journal.generation;
        (11..14).for_each(|revision| assert!(!journal.append(&batch(revision)).unwrap()));
        journal.rotate_log(Revision(13)).unwrap();
        journal.append(&batch(14)).unwrap();
        drop(journal);
        let path = folder.path().join(format!("log-{first}"));
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let (at, found) = recovered(folder.path()).unwrap();
            let expected: Vec<u64> = (11..11 + found.len() as u64).collect();
            assert_eq!((at, &found), (10, &expected), "{length}");
            assert!(!found.contains(&14), "{length}: {found:?}");
        }
        let path = folder.path().join(format!("state-{first}"));
        let complete = fs::read(&path).unwrap();
        fs::write(&path, &complete[..complete.len() - 1]).unwrap();
        assert_eq!(recovered(folder.path()), None);
    }
}
