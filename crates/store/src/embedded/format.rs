//! The file FORMAT: the number of the data format and the identity of the store.
//!
//! Promise: it is written last when a store is created or restored, so a directory without it
//! contains no store, or an incomplete one. A start refuses every format but its own.

use std::fmt::Write as _;

use headwater_api::Revision;
use uuid::Uuid;

use super::disk::Disk;
use super::row::Seed;
use super::{damaged, unavailable};
use crate::store::Error;

/// The number of the format that this code reads and writes.
const FORMAT: u32 = 4;

pub(super) const FORMAT_FILE: &str = "FORMAT";

const PREFIX: &str = "headwater data ";

const UNFINISHED: &str = "headwater restore, not finished\n";

/// The longest FORMAT that is read.
const LEN_MAX: u64 = 512;

/// The identity of a store. Written when it is created and never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The same after backup and restore.
    pub cluster: Uuid,
    /// New with every restore.
    pub incarnation: Uuid,
    /// The revision of the empty store: one for a new store, higher after a restore.
    pub first: Revision,
}

impl Identity {
    pub(super) fn seed(&self) -> Seed {
        Seed::of(self.incarnation)
    }

    fn text(&self) -> String {
        let Identity { cluster, incarnation, first } = self;
        let mut text = format!(
            "{PREFIX}{FORMAT}\ncluster {cluster}\nincarnation {incarnation}\nfirst {first}\n"
        );
        let sum = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "sum {sum:08x}");
        text
    }

    fn parse(text: &str) -> Option<Identity> {
        let mut lines = text.lines().skip(1);
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let cluster = field("cluster")?.parse().ok()?;
        let incarnation = field("incarnation")?.parse().ok()?;
        let first = Revision(field("first")?.parse().ok()?);
        let identity = Identity { cluster, incarnation, first };
        (identity.text() == text).then_some(identity)
    }
}

/// The identity in FORMAT; `None` if there is no such file.
pub(super) fn read(disk: &dyn Disk) -> Result<Option<Identity>, Error> {
    let Some(text) = read_text(disk)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    if text == UNFINISHED {
        let why = "a restore did not finish; empty the directory and restore again";
        return Err(damaged(disk, FORMAT_FILE, why));
    }
    let first = text.lines().next().unwrap_or_default();
    match first.strip_prefix(PREFIX).and_then(|number| number.parse().ok()) {
        Some(FORMAT) => match Identity::parse(&text) {
            Some(identity) => Ok(Some(identity)),
            None => Err(damaged(disk, FORMAT_FILE, "the identity of the store is damaged")),
        },
        Some(other) => Err(other_format(disk, other)),
        None => Err(damaged(disk, FORMAT_FILE, "it contains no format number")),
    }
}

/// The identity in a FORMAT of which one bit is wrong: the checksum matches for the right bit only.
pub(super) fn read_repaired(disk: &dyn Disk) -> Result<Option<Identity>, Error> {
    let Some(mut text) = read_text(disk)? else { return Ok(None) };
    for bit in 0..text.len() * 8 {
        text[bit / 8] ^= 1 << (bit % 8);
        if let Some(identity) = std::str::from_utf8(&text).ok().and_then(Identity::parse) {
            return Ok(Some(identity));
        }
        text[bit / 8] ^= 1 << (bit % 8);
    }
    Ok(None)
}

fn read_text(disk: &dyn Disk) -> Result<Option<Vec<u8>>, Error> {
    let read = || {
        if !disk.exists(FORMAT_FILE)? {
            return Ok(None);
        }
        let file = disk.open(FORMAT_FILE)?;
        let mut text = vec![0; usize::try_from(file.len()?.min(LEN_MAX)).unwrap_or_default()];
        file.read(0, &mut text)?;
        Ok(Some(text))
    };
    read().map_err(|error| unavailable(disk, FORMAT_FILE, &error))
}

fn other_format(disk: &dyn Disk, format: u32) -> Error {
    let place = disk.place();
    let why = match format {
        1..FORMAT => format!(
            "{place} has data format {format}, this version has format {FORMAT}; write a backup \
             with the version that wrote the directory (headwater backup) and restore it into a \
             new directory (headwater restore)"
        ),
        _ => format!("{place} has data format {format}; this version reads only format {FORMAT}"),
    };
    Error::Unavailable(why)
}

/// Completes the creation of a store. Without an identity, marks a directory that a restore is
/// filling: until it is done, a start refuses it.
pub(super) fn write(disk: &dyn Disk, identity: Option<&Identity>) -> Result<(), Error> {
    let text = identity.map_or(UNFINISHED.to_owned(), Identity::text);
    let new = format!("{FORMAT_FILE}.new");
    let write = || {
        let file = disk.open(&new)?;
        file.set_len(text.len() as u64)?;
        file.write(0, text.as_bytes())?;
        file.sync_data()?;
        disk.rename(&new, FORMAT_FILE)?;
        disk.sync()
    };
    write().map_err(|error| unavailable(disk, FORMAT_FILE, &error))
}

#[cfg(test)]
mod tests {
    use super::super::disk::Directory;
    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_written_and_damage_is_found() {
        let (cluster, incarnation) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let identity = Identity { cluster, incarnation, first: Revision(3) };
        let text = identity.text();
        assert_eq!(Identity::parse(&text), Some(identity));
        for at in PREFIX.len() + 1..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let found = String::from_utf8(bytes).ok().and_then(|text| Identity::parse(&text));
            assert_eq!(found, None, "byte {at}");
        }
    }

    #[test]
    fn one_wrong_bit_is_repaired_and_two_are_not() {
        let (cluster, incarnation) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let identity = Identity { cluster, incarnation, first: Revision(3) };
        let dir = tempfile::tempdir().unwrap();
        let disk = Directory::lock(dir.path()).unwrap();
        write(&disk, Some(&identity)).unwrap();
        let text = identity.text().into_bytes();
        for bit in (0..text.len() * 8).step_by(7) {
            let mut wrong = text.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(dir.path().join(FORMAT_FILE), &wrong).unwrap();
            assert_eq!(read_repaired(&disk).unwrap(), Some(identity), "bit {bit}");
            wrong[text.len() / 2] ^= 0b110;
            std::fs::write(dir.path().join(FORMAT_FILE), &wrong).unwrap();
            assert_eq!(read_repaired(&disk).unwrap(), None, "bit {bit}");
        }
    }
}
