//! Rows: the byte format of one change.
//!
//! Promise: every row has a CRC32C over its content and the incarnation of the store, so a flipped
//! bit and a row of another store are detected on read, and damage names the object. All numbers
//! are little-endian. The cleaner copies rows from segment to segment unchanged.
//!
//! ```text
//! 0   4  CRC32C over the incarnation and the rest
//! 4   1  kind: 1 created, 2 updated, 3 deleted
//! 5   1  zero
//! 6   2  length of the key
//! 8   4  length of the value
//! 12  8  revision
//! 20  8  the revision of the key's previous row, also if that is a deletion; zero if it has none
//! 28  8  time of the commit, in milliseconds of the wall clock
//! 36  8  expiry, in milliseconds of the wall clock; zero for never
//! 44     the key, the value
//! ```

use bytes::{Buf, TryGetError};
use headwater_api::Revision;
use uuid::Uuid;

use crate::change::ChangeKind;

/// The length of a row before its key and its value.
pub(super) const ROW_HEADER: usize = 44;

/// Why bytes are not a row or a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad(pub(super) &'static str);

const TRUNCATED: Bad = Bad("it is truncated");

impl From<TryGetError> for Bad {
    fn from(_: TryGetError) -> Bad {
        TRUNCATED
    }
}

/// The start value of every checksum of one store: data of another store does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn of(incarnation: Uuid) -> Seed {
        Seed(crc32c::crc32c(incarnation.as_bytes()))
    }

    pub(super) fn sum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }
}

/// One change, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) kind: ChangeKind,
    pub(super) revision: Revision,
    pub(super) prev: Revision,
    pub(super) time: i64,
    pub(super) expires: i64,
    pub(super) key: &'a str,
    pub(super) value: &'a [u8],
}

impl<'a> Row<'a> {
    /// Appends the row and returns its checksum.
    pub(super) fn encode(&self, seed: Seed, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        let key_len = u16::try_from(self.key.len()).expect("keys are at most KEY_MAX bytes");
        let value_len = u32::try_from(self.value.len()).expect("values are far below 4 GiB");
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[kind_code(self.kind), 0]);
        out.extend_from_slice(&key_len.to_le_bytes());
        out.extend_from_slice(&value_len.to_le_bytes());
        out.extend_from_slice(&self.revision.0.to_le_bytes());
        out.extend_from_slice(&self.prev.0.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.expires.to_le_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.extend_from_slice(self.value);
        let sum = seed.sum(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// The row at the beginning of some bytes.
    pub(super) fn decode(seed: Seed, bytes: &'a [u8]) -> Result<Row<'a>, Bad> {
        let row = Row::parse(bytes)?;
        if seed.sum(&bytes[4..row.len()]) != row_sum(bytes) {
            return Err(Bad("the checksum does not match"));
        }
        Ok(row)
    }

    /// The fields of a row whose checksum was not compared.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Row<'a>, Bad> {
        let mut rest = bytes;
        rest.try_get_u32_le()?;
        let kind = kind_of(rest.try_get_u8()?)?;
        rest.try_get_u8()?;
        let key_len = usize::from(rest.try_get_u16_le()?);
        let value_len = usize::try_from(rest.try_get_u32_le()?).unwrap_or(usize::MAX);
        let (revision, prev) = (Revision(rest.try_get_u64_le()?), Revision(rest.try_get_u64_le()?));
        let (time, expires) = (rest.try_get_i64_le()?, rest.try_get_i64_le()?);
        let key = rest.split_off(..key_len).ok_or(TRUNCATED)?;
        let key = std::str::from_utf8(key).map_err(|_| Bad("the key is not valid UTF-8"))?;
        let value = rest.split_off(..value_len).ok_or(TRUNCATED)?;
        Ok(Row { kind, revision, prev, time, expires, key, value })
    }

    /// The length of the row.
    pub(super) fn len(&self) -> usize {
        Row::len_of(self.key, self.value)
    }

    /// The length of a row with this key and value.
    pub(super) fn len_of(key: &str, value: &[u8]) -> usize {
        ROW_HEADER + key.len() + value.len()
    }
}

/// The checksum that a row carries.
pub(super) fn row_sum(row: &[u8]) -> u32 {
    row.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum))
}

pub(super) fn kind_code(kind: ChangeKind) -> u8 {
    match kind {
        ChangeKind::Created => 1,
        ChangeKind::Updated => 2,
        ChangeKind::Deleted => 3,
    }
}

fn kind_of(code: u8) -> Result<ChangeKind, Bad> {
    match code {
        1 => Ok(ChangeKind::Created),
        2 => Ok(ChangeKind::Updated),
        3 => Ok(ChangeKind::Deleted),
        _ => Err(Bad("the kind of change is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> Seed {
        Seed::of(Uuid::from_u128(7))
    }

    fn row() -> Row<'static> {
        Row {
            kind: ChangeKind::Updated,
            revision: Revision(42),
            prev: Revision(41),
            time: 1_700_000_000_000,
            expires: -1,
            key: "/registry/core/pods/default/a",
            value: b"{\"kind\":\"Pod\"}",
        }
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        let sum = row().encode(seed(), &mut bytes);
        assert_eq!((bytes.len(), row_sum(&bytes)), (row().len(), sum));
        bytes.extend_from_slice(b"the next row");
        assert_eq!(Row::decode(seed(), &bytes), Ok(row()));
    }

    /// R14
    #[test]
    fn any_changed_bit_and_any_cut_is_found() {
        let mut bytes = Vec::new();
        row().encode(seed(), &mut bytes);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Row::decode(seed(), &bad).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Row::decode(seed(), &bytes[..len]).is_err(), "length {len}");
        }
    }

    #[test]
    fn a_row_of_another_store_is_found() {
        let mut bytes = Vec::new();
        row().encode(seed(), &mut bytes);
        assert!(Row::decode(Seed::of(Uuid::from_u128(8)), &bytes).is_err());
    }
}
