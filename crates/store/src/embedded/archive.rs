//! Backup files: the state at one revision, in one file that can be verified.
//!
//! Promise: a changed, missing, added or moved byte is found before anything is restored.
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
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bytes::Buf;
use headwater_api::Revision;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::format::Identity;
use super::log::Edges;
use super::row::Row;
use crate::change::ChangeKind;
use crate::key::collection_of;
use crate::store::Error;

const MAGIC: &[u8; 16] = b"headwater backup";

/// The number of the backup format that this code reads and writes.
const FORMAT: u32 = 1;

/// A frame is written once it has this many bytes.
const FRAME_BYTES: usize = 256 << 10;

/// The largest frame: a greater length is damage.
const FRAME_MAX: usize = 64 << 20;

const HEAD: u8 = 1;
const OBJECTS: u8 = 2;
const MANIFEST: u8 = 3;

/// The content of a backup, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format of the file.
    pub format: u32,
    /// The store it was taken from.
    pub cluster: Uuid,
    /// The store's incarnation.
    pub incarnation: Uuid,
    /// The revision of the state.
    pub revision: u64,
    /// The compacted revision of the store.
    pub compacted: u64,
    /// The number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Both by type, as in `/registry/<group>/<resource>/`.
    pub types: BTreeMap<String, Count>,
    /// The number of frames before the manifest.
    pub frames: u64,
    /// The checksum of the last frame, which depends on all others.
    pub digest: u32,
}

/// Objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The number of objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Appends an object, given as its row:
///
/// ```text
/// 8 revision, 8 time, 8 expires, 2 key length, 4 value length, key, value
/// ```
fn encode(row: &Row<'_>, out: &mut Vec<u8>) {
    let key_len = u16::try_from(row.key.len()).expect("keys are at most KEY_MAX bytes");
    let value_len = u32::try_from(row.value.len()).expect("values are far below 4 GiB");
    out.extend_from_slice(&row.revision.0.to_le_bytes());
    out.extend_from_slice(&row.time.to_le_bytes());
    out.extend_from_slice(&row.expires.to_le_bytes());
    out.extend_from_slice(&key_len.to_le_bytes());
    out.extend_from_slice(&value_len.to_le_bytes());
    out.extend_from_slice(row.key.as_bytes());
    out.extend_from_slice(row.value);
}

/// The row of an object, as a restored store writes it.
fn decode<'a>(rest: &mut &'a [u8]) -> Option<Row<'a>> {
    let revision = Revision(rest.try_get_u64_le().ok()?);
    let (time, expires) = (rest.try_get_i64_le().ok()?, rest.try_get_i64_le().ok()?);
    let key_len = usize::from(rest.try_get_u16_le().ok()?);
    let value_len = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    let key = std::str::from_utf8(rest.split_off(..key_len)?).ok()?;
    let value = rest.split_off(..value_len)?;
    let (kind, prev) = (ChangeKind::Created, Revision::ZERO);
    Some(Row { kind, revision, prev, time, expires, key, value })
}

impl Manifest {
    fn new(identity: &Identity, edges: Edges) -> Manifest {
        Manifest {
            format: FORMAT,
            cluster: identity.cluster,
            incarnation: identity.incarnation,
            revision: edges.newest.0,
            compacted: edges.compacted.0,
            ..Manifest::default()
        }
    }

    fn count(&mut self, key: &str, bytes: usize) {
        let count = self.types.entry(collection_of(key).to_owned()).or_default();
        count.objects += 1;
        count.bytes += bytes as u64;
        self.objects += 1;
        self.bytes += bytes as u64;
    }
}

/// Passes on the bytes of a backup.
pub(super) type SendPart<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<(), Error>;

/// Writes a backup.
pub(super) struct BackupWriter<'a> {
    send: SendPart<'a>,
    manifest: Manifest,
    /// Objects of the next frame.
    frame: Vec<u8>,
}

impl<'a> BackupWriter<'a> {
    pub(super) fn new(
        send: SendPart<'a>,
        identity: &Identity,
        edges: Edges,
    ) -> Result<BackupWriter<'a>, Error> {
        send(MAGIC.to_vec())?;
        let manifest = Manifest::new(identity, edges);
        let mut frames = BackupWriter { send, manifest, frame: Vec::with_capacity(FRAME_BYTES) };
        let head = json(&frames.manifest);
        frames.write(HEAD, &head)?;
        Ok(frames)
    }

    pub(super) fn add(&mut self, row: &Row<'_>) -> Result<(), Error> {
        self.manifest.count(row.key, row.value.len());
        encode(row, &mut self.frame);
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let objects = std::mem::replace(&mut self.frame, Vec::with_capacity(FRAME_BYTES));
        if objects.is_empty() { Ok(()) } else { self.write(OBJECTS, &objects) }
    }

    fn write(&mut self, what: u8, payload: &[u8]) -> Result<(), Error> {
        let len = u32::try_from(payload.len() + 1).expect("a frame is far below 4 GiB");
        let sum = frame_sum(self.manifest.digest, what, payload);
        (self.send)([&len.to_le_bytes(), &sum.to_le_bytes(), [what].as_slice(), payload].concat())?;
        self.manifest.digest = sum;
        self.manifest.frames += 1;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), Error> {
        self.flush()?;
        let manifest = json(&self.manifest);
        self.write(MANIFEST, &manifest)
    }
}

fn frame_sum(before: u32, what: u8, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &[what]), payload)
}

fn json(manifest: &Manifest) -> Vec<u8> {
    serde_json::to_vec(manifest).expect("a manifest is plain data")
}

/// Reads a backup and checks all of it.
pub fn verify_backup(file: &Path) -> Result<Manifest, Error> {
    read_backup(file, |_| Ok(()))
}

/// Reads a backup frame by frame and checks each before it passes its objects on. Only when it
/// returns is the backup known to be complete.
pub(super) fn read_backup(
    file: &Path,
    mut each: impl FnMut(&Row<'_>) -> Result<(), Error>,
) -> Result<Manifest, Error> {
    let opened = File::open(file).map_err(|error| unreadable(file, &error))?;
    let mut reader = FrameReader { input: BufReader::new(opened), file, offset: 0, digest: 0 };
    // A short file of something else is not a truncated backup.
    let start = reader.input.fill_buf().unwrap_or_default();
    if !MAGIC.starts_with(&start[..start.len().min(MAGIC.len())]) {
        return Err(reader.damaged("the file is not a Headwater backup"));
    }
    reader.read(&mut [0; MAGIC.len()])?;
    let head = match reader.frame()?.split_first() {
        Some((&HEAD, text)) => reader.manifest(text)?,
        _ => return Err(reader.damaged("the first frame is not the header")),
    };
    let mut seen = Manifest { frames: 1, digest: reader.digest, ..head.clone() };
    let mut last_key = String::new();
    loop {
        let frame = reader.frame()?;
        match frame.split_first() {
            Some((&OBJECTS, mut rows)) => {
                while !rows.is_empty() {
                    let row = decode(&mut rows);
                    let row = row.ok_or_else(|| reader.damaged("an object is truncated"))?;
                    if last_key.as_str() >= row.key {
                        return Err(reader.damaged("the keys are not in order"));
                    }
                    if row.revision.0 > head.revision {
                        return Err(reader.damaged("an object is newer than the backup"));
                    }
                    seen.count(row.key, row.value.len());
                    row.key.clone_into(&mut last_key);
                    each(&row)?;
                }
                seen.frames += 1;
                seen.digest = reader.digest;
            }
            Some((&MANIFEST, text)) => {
                let manifest = reader.manifest(text)?;
                let end = reader.input.fill_buf().map_err(|error| unreadable(file, &error))?;
                return match end {
                    [] if manifest == seen => Ok(manifest),
                    [] => Err(reader.damaged("the manifest does not match the content")),
                    _ => Err(reader.damaged("there is data after the manifest")),
                };
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
    /// The next payload, with its checksum verified.
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
        self.input.read_exact(out).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("the file is truncated"),
            _ => unreadable(self.file, &error),
        })?;
        self.offset += out.len() as u64;
        Ok(())
    }

    fn manifest(&self, text: &[u8]) -> Result<Manifest, Error> {
        let manifest: Manifest = serde_json::from_slice(text)
            .map_err(|error| self.damaged(&format!("the manifest cannot be parsed: {error}")))?;
        let (file, format) = (self.file.display(), manifest.format);
        if format != FORMAT {
            return Err(Error::Unavailable(format!(
                "{file} has backup format {format}; this version reads format {FORMAT}"
            )));
        }
        Ok(manifest)
    }

    fn damaged(&self, why: &str) -> Error {
        let place = format!("{}, byte {}", self.file.display(), self.offset);
        Error::Damaged { place, why: why.into() }
    }
}

fn unreadable(file: &Path, error: &io::Error) -> Error {
    Error::Unavailable(format!("{}: {error}", file.display()))
}
