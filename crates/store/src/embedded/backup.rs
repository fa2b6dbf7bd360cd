//! Backups: the state at one revision in one verifiable file, and how to restore it.
//!
//! Promise: a backup is taken while the store serves and has exactly the state at its revision. A
//! changed, missing, added or moved byte is found before anything is restored. A start refuses the
//! directory of an incomplete restore. A restored store starts 10^9 revisions later with everything
//! before compacted, so that no old revision gets a new meaning.
//!
//! ```text
//! "headwater backup"   16 bytes
//! frames, each:
//!   length     4  of the payload
//!   checksum   4  CRC32C of the payload, started from the checksum of the frame before
//!   payload       its first byte says what it is: 1 head, 2 objects, 3 manifest
//! ```
//! One head, any number of frames with objects in key order, one manifest, and nothing after it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use headwater_api::Revision;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::disk::Directory;
use super::file::{LIVE, LOG, trouble, write_state};
use super::row::{Identity, LiveRow, LogRow, RowReader, State};
use super::snapshot::StoreSnapshot;
use super::undo::Undos;
use super::{Embedded, Options, Shared, start};
use crate::change::ChangeKind;
use crate::store::{Error, Range};

const MAGIC: &[u8; 16] = b"headwater backup";

/// The number of the backup format this code reads and writes.
const FORMAT: u32 = 1;

/// How far a restore raises the revision.
const RAISE: u64 = 1_000_000_000;

/// Objects read at a time.
const PAGE: usize = 500;

/// A frame is written once it has this many bytes.
const FRAME_BYTES: usize = 256 << 10;

/// No frame is larger: a length beyond it is damage, not a reason to take memory.
const FRAME_MAX: usize = 64 << 20;

/// Frames a slow reader of a backup may be behind; beyond it the backup waits.
const STREAM_BACKLOG: usize = 4;

const HEAD: u8 = 1;
const OBJECTS: u8 = 2;
const MANIFEST: u8 = 3;

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the file.
    pub format: u32,
    /// The store it was taken from.
    pub cluster: Uuid,
    /// The store's incarnation.
    pub incarnation: Uuid,
    /// The revision of the state.
    pub revision: u64,
    /// The oldest state the store could still show.
    pub compacted: u64,
    /// How many objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Both by type, as in `/registry/<group>/<resource>/`.
    pub types: BTreeMap<String, Count>,
    /// How many frames came before the manifest.
    pub frames: u64,
    /// The checksum of the last of them, which depends on all.
    pub digest: u32,
}

/// Objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// How many objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Embedded {
    /// Writes a backup to a file that must not be there yet. The file appears when it is complete.
    /// Blocks; the store goes on serving.
    pub fn backup(&self, file: &Path) -> Result<Manifest, Error> {
        let failed = |error: io::Error| Error::Unavailable(format!("{}: {error}", file.display()));
        let beside = beside(file);
        let written = new_file(&beside).map_err(failed).and_then(|out| {
            let mut out = BufWriter::new(out);
            let manifest = self.backup_to(&mut out)?;
            out.into_inner()
                .map_err(|error| failed(error.into_error()))?
                .sync_all()
                .map_err(failed)?;
            // A link, unlike a rename, does not replace what is there.
            fs::hard_link(&beside, file).and_then(|()| sync_parent(file)).map_err(failed)?;
            Ok(manifest)
        });
        // Complete or not, only the name that was asked for stays.
        let _ = fs::remove_file(&beside);
        written
    }

    /// Writes a backup of the newest state. Blocks; the store goes on serving.
    pub fn backup_to(&self, out: &mut dyn Write) -> Result<Manifest, Error> {
        self.shared.backup_to(out)
    }

    /// A backup of the newest state as it is made. It waits for a slow reader and ends when it is
    /// dropped; an error is the last thing it yields.
    pub fn backup_stream(&self) -> BoxStream<'static, Result<Bytes, Error>> {
        let (sender, receiver) = mpsc::channel(STREAM_BACKLOG);
        let shared = self.shared.clone();
        let made = tokio::task::spawn_blocking(move || {
            let out = Sender { parts: &sender, release: shared.release.subscribe() };
            let mut out = BufWriter::with_capacity(FRAME_BYTES, out);
            let done = shared.backup_to(&mut out).and_then(|_| out.flush().map_err(|e| broken(&e)));
            if let Err(error) = done {
                // A reader that is gone does not need the reason.
                let _ = sender.blocking_send(Err(error));
            }
        });
        stream::unfold((receiver, made), |(mut receiver, made)| async move {
            Some((receiver.recv().await?, (receiver, made)))
        })
        .boxed()
    }
}

/// Writes into a channel. Waits while it is full, but not while the file must be closed.
struct Sender<'a> {
    parts: &'a mpsc::Sender<Result<Bytes, Error>>,
    release: watch::Receiver<bool>,
}

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = Ok(Bytes::copy_from_slice(bytes));
        let sent = tokio::runtime::Handle::current().block_on(async {
            tokio::select! {
                biased;
                _ = self.release.wait_for(|release| *release) => false,
                sent = self.parts.send(part) => sent.is_ok(),
            }
        });
        if sent { Ok(bytes.len()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn backup_to(&self, out: &mut dyn Write) -> Result<Manifest, Error> {
        self.with_file(|file| {
            let snapshot = self.published().snapshot(file)?;
            let state = snapshot.state()?;
            let mut frames = FrameWriter::new(out, &self.identity, &state)?;
            let mut frame = Vec::with_capacity(FRAME_BYTES + FRAME_BYTES / 4);
            each_object(&snapshot, state.newest, |object| {
                frames.manifest.count(object.key, object.value.len());
                object.encode(&mut frame);
                if frame.len() >= FRAME_BYTES {
                    frames.write(OBJECTS, &frame)?;
                    frame.clear();
                }
                Ok(())
            })?;
            if !frame.is_empty() {
                frames.write(OBJECTS, &frame)?;
            }
            frames.finish()
        })
    }
}

/// Every object of a state in key order.
fn each_object(
    snapshot: &StoreSnapshot,
    at: Revision,
    mut each: impl FnMut(Object<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let undos = Undos::default();
    let mut range = Range { limit: Some(PAGE), ..Range::default() };
    loop {
        let (positions, more) = undos.positions(snapshot, at, &range)?;
        for (key, revision) in &positions {
            snapshot.row(*revision, |row| {
                each(Object {
                    key: key.as_str(),
                    revision: *revision,
                    time: row.time,
                    expires: row.expires,
                    value: row.value,
                })
            })??;
        }
        match positions.into_iter().next_back() {
            Some((last, _)) if more => range.after = Some(last),
            _ => return Ok(()),
        }
    }
}

/// One object in a backup.
///
/// ```text
/// 8 revision, 8 time, 8 expires, 2 key length, 4 value length, key, value
/// ```
struct Object<'a> {
    key: &'a str,
    revision: Revision,
    time: i64,
    expires: i64,
    value: &'a [u8],
}

impl<'a> Object<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.revision.0.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.expires.to_le_bytes());
        let key_len = u16::try_from(self.key.len()).expect("keys are at most KEY_MAX bytes");
        out.extend_from_slice(&key_len.to_le_bytes());
        let value_len = u32::try_from(self.value.len()).expect("values are far below 4 GiB");
        out.extend_from_slice(&value_len.to_le_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.extend_from_slice(self.value);
    }

    fn decode(fields: &mut RowReader<'a>) -> Option<Object<'a>> {
        let revision = Revision(fields.u64().ok()?);
        let time = fields.i64().ok()?;
        let expires = fields.i64().ok()?;
        let key_len = usize::from(fields.u16().ok()?);
        let value_len = usize::try_from(fields.u32().ok()?).ok()?;
        let key = std::str::from_utf8(fields.take(key_len).ok()?).ok()?;
        let value = fields.take(value_len).ok()?;
        Some(Object { key, revision, time, expires, value })
    }
}

impl Manifest {
    fn new(identity: &Identity, state: &State) -> Manifest {
        Manifest {
            format: FORMAT,
            cluster: identity.cluster,
            incarnation: identity.incarnation,
            revision: state.newest.0,
            compacted: state.compacted.0,
            objects: 0,
            bytes: 0,
            types: BTreeMap::new(),
            frames: 0,
            digest: 0,
        }
    }

    fn count(&mut self, key: &str, bytes: usize) {
        let bytes = bytes as u64;
        self.objects += 1;
        self.bytes += bytes;
        let name = type_of(key);
        if !self.types.contains_key(name) {
            self.types.insert(name.to_owned(), Count::default());
        }
        if let Some(count) = self.types.get_mut(name) {
            count.objects += 1;
            count.bytes += bytes;
        }
    }

    /// The first frame says whose backup it is; it holds no sums yet.
    fn same_store(&self, head: &Manifest) -> bool {
        (head.format, head.cluster, head.incarnation, head.revision, head.compacted)
            == (self.format, self.cluster, self.incarnation, self.revision, self.compacted)
    }
}

/// The part of a key that names its type: `/registry/<group>/<resource>/`.
fn type_of(key: &str) -> &str {
    let end = key.match_indices('/').nth(3).map_or(key.len(), |(at, _)| at + 1);
    &key[..end]
}

struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    manifest: Manifest,
}

impl<'a> FrameWriter<'a> {
    fn new(
        out: &'a mut dyn Write,
        identity: &Identity,
        state: &State,
    ) -> Result<FrameWriter<'a>, Error> {
        out.write_all(MAGIC).map_err(|error| broken(&error))?;
        let mut frames = FrameWriter { out, manifest: Manifest::new(identity, state) };
        let head = json(&frames.manifest);
        frames.write(HEAD, &head)?;
        Ok(frames)
    }

    fn write(&mut self, what: u8, payload: &[u8]) -> Result<(), Error> {
        let len = u32::try_from(payload.len() + 1).expect("a frame is far below 4 GiB");
        let sum = frame_sum(self.manifest.digest, what, payload);
        let mut head = [0; 9];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[4..8].copy_from_slice(&sum.to_le_bytes());
        head[8] = what;
        self.out
            .write_all(&head)
            .and_then(|()| self.out.write_all(payload))
            .map_err(|error| broken(&error))?;
        self.manifest.digest = sum;
        self.manifest.frames += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<Manifest, Error> {
        let manifest = self.manifest.clone();
        self.write(MANIFEST, &json(&manifest))?;
        Ok(manifest)
    }
}

fn frame_sum(before: u32, what: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &[what]), payload)
}

fn json(manifest: &Manifest) -> Vec<u8> {
    serde_json::to_vec(manifest).expect("a manifest is plain data")
}

fn broken(error: &io::Error) -> Error {
    Error::Unavailable(format!("the backup is incomplete: {error}"))
}

/// Reads a whole backup and checks everything in it.
pub fn verify_backup(file: &Path) -> Result<Manifest, Error> {
    read_backup(file, |_| Ok(()))
}

/// Reads a backup, frame by frame, each checked before its objects are shown. The objects are only
/// known to be all there when it returns.
fn read_backup(
    file: &Path,
    mut each: impl FnMut(Object<'_>) -> Result<(), Error>,
) -> Result<Manifest, Error> {
    let opened = File::open(file);
    let opened = opened.map_err(|e| Error::Unavailable(format!("{}: {e}", file.display())))?;
    let mut reader = FrameReader { input: BufReader::new(opened), file, offset: 0, digest: 0 };
    reader.magic()?;
    let head = reader.frame()?;
    let Some((&HEAD, text)) = head.split_first() else {
        return Err(reader.damaged("the first frame is not the header"));
    };
    let head = reader.manifest(text)?;
    let mut seen = Manifest { frames: 1, digest: reader.digest, ..head.clone() };
    let mut last_key: Option<String> = None;
    loop {
        let frame = reader.frame()?;
        match frame.split_first() {
            Some((&OBJECTS, rows)) => {
                let mut fields = RowReader(rows);
                while !fields.0.is_empty() {
                    let object = Object::decode(&mut fields)
                        .ok_or_else(|| reader.damaged("an object is truncated"))?;
                    reader.check_object(&object, &head, last_key.as_deref())?;
                    seen.count(object.key, object.value.len());
                    last_key = Some(object.key.to_owned());
                    each(object)?;
                }
                seen.frames += 1;
                seen.digest = reader.digest;
            }
            Some((&MANIFEST, text)) => {
                let manifest = reader.manifest(text)?;
                if manifest != seen || !manifest.same_store(&head) {
                    return Err(reader.damaged("the manifest does not match the content"));
                }
                reader.end()?;
                return Ok(manifest);
            }
            _ => return Err(reader.damaged("unknown frame type")),
        }
    }
}

struct FrameReader<'a> {
    input: BufReader<File>,
    file: &'a Path,
    offset: u64,
    digest: u32,
}

impl FrameReader<'_> {
    fn magic(&mut self) -> Result<(), Error> {
        let mut magic = [0; MAGIC.len()];
        self.read(&mut magic)?;
        if &magic == MAGIC {
            Ok(())
        } else {
            Err(self.damaged("the file is not a Headwater backup"))
        }
    }

    /// The next payload, once its checksum was compared.
    fn frame(&mut self) -> Result<Vec<u8>, Error> {
        let (mut len, mut sum) = ([0; 4], [0; 4]);
        self.read(&mut len)?;
        self.read(&mut sum)?;
        let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
        if len == 0 || len > FRAME_MAX {
            return Err(self.damaged("a frame has an impossible length"));
        }
        let mut payload = vec![0; len];
        self.read(&mut payload)?;
        let found = frame_sum(self.digest, payload[0], &payload[1..]);
        if found != u32::from_le_bytes(sum) {
            return Err(self.damaged("the checksum of a frame does not match"));
        }
        self.digest = found;
        Ok(payload)
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.input.read_exact(out) {
            Ok(()) => {
                self.offset += out.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("the file is truncated"))
            }
            Err(error) => Err(Error::Unavailable(format!("{}: {error}", self.file.display()))),
        }
    }

    fn manifest(&self, text: &[u8]) -> Result<Manifest, Error> {
        let manifest: Manifest = serde_json::from_slice(text)
            .map_err(|error| self.damaged(&format!("the manifest cannot be parsed: {error}")))?;
        if manifest.format != FORMAT {
            let (file, format) = (self.file.display(), manifest.format);
            let why =
                format!("{file} has backup format {format}; this version reads format {FORMAT}");
            return Err(Error::Unavailable(why));
        }
        Ok(manifest)
    }

    fn check_object(
        &self,
        object: &Object<'_>,
        head: &Manifest,
        last_key: Option<&str>,
    ) -> Result<(), Error> {
        if last_key.is_some_and(|last| last >= object.key) {
            return Err(self.damaged("the keys are not in order"));
        }
        if object.revision.0 > head.revision {
            return Err(self.damaged("an object is newer than the backup"));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("there is data after the manifest")),
            Err(error) => Err(Error::Unavailable(format!("{}: {error}", self.file.display()))),
        }
    }

    fn damaged(&self, why: &str) -> Error {
        let place = format!("{}, byte {}", self.file.display(), self.offset);
        Error::Damaged { place, why: why.into() }
    }
}

/// Makes a store from a backup in a directory that is new or empty. The backup is checked as a
/// whole first. Revisions start 10^9 after the backup's, and everything before is compacted, so
/// that clients of the old store list again instead of going on.
pub fn restore(file: &Path, dir: &Path) -> Result<Identity, Error> {
    let manifest = verify_backup(file)?;
    check_empty(dir)?;
    let unavailable = |error: io::Error| Error::Unavailable(error.to_string());
    let disk = Directory::lock(dir).map_err(unavailable)?;
    start::write_unfinished(&disk)?;
    let newest = Revision(manifest.revision.saturating_add(RAISE));
    let identity =
        Identity { cluster: manifest.cluster, incarnation: Uuid::new_v4(), first: newest };
    let state =
        State { newest, compacted: newest, trimmed: newest, live_at: newest, ..State::default() };
    let new = start::create_file(&disk, &Options::default(), identity, state)?;
    let mut rows = Rows { identity, state, row: Vec::new() };
    let txn = new.begin_write()?;
    {
        let mut log = txn.open_table(LOG).map_err(trouble)?;
        let mut live = txn.open_table(LIVE).map_err(trouble)?;
        let again = read_backup(file, |object| {
            let (row, live_row) = rows.of(&object);
            log.insert(object.revision.0, row).map_err(trouble)?;
            live.insert(object.key.as_bytes(), &live_row).map_err(trouble)?;
            Ok(())
        })?;
        if again != manifest {
            let place = file.display().to_string();
            return Err(Error::Damaged { place, why: "the file changed while it was read".into() });
        }
    }
    write_state(&txn, identity.seed(), &rows.state)?;
    txn.commit().map_err(trouble)?;
    drop(new);
    start::install(&disk)?;
    start::write_format(&disk)?;
    Ok(identity)
}

/// Makes the rows of a restored store and their sums.
struct Rows {
    identity: Identity,
    state: State,
    row: Vec<u8>,
}

impl Rows {
    fn of(&mut self, object: &Object<'_>) -> (&[u8], [u8; super::row::LIVE_LEN]) {
        let seed = self.identity.seed();
        let row = LogRow {
            kind: ChangeKind::Created,
            key: object.key,
            prev: Revision::ZERO,
            time: object.time,
            expires: object.expires,
            value: object.value,
        };
        self.row.clear();
        row.encode(seed, object.revision, &mut self.row);
        let live = LiveRow { revision: object.revision, expires: object.expires };
        let state = &mut self.state;
        state.log_rows += 1;
        state.log_bytes += row.len();
        state.objects += 1;
        state.object_bytes += row.len();
        state.live_rows += 1;
        state.live_digest = state.live_digest.wrapping_add(live.digest(seed, object.key));
        (&self.row, live.encode(seed, object.key))
    }
}

fn check_empty(dir: &Path) -> Result<(), Error> {
    let refused = |why: &str| Err(Error::Refused(format!("{} {why}", dir.display())));
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => refused("is not empty; a restore needs a new directory"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => refused(&error.to_string()),
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn beside(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", Uuid::new_v4().simple()))
}

fn sync_parent(file: &Path) -> io::Result<()> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_from_keys() {
        assert_eq!(type_of("/registry/core/pods/default/a"), "/registry/core/pods/");
        assert_eq!(type_of("/registry/core/nodes/a"), "/registry/core/nodes/");
        assert_eq!(type_of("/odd"), "/odd");
    }
}
