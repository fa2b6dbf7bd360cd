//! Rows: the byte format of the data file.
//!
//! Promise: every row has a CRC32C over its content, its key or revision, and the incarnation of
//! the store, so a flipped bit, an exchanged row and a row of another store are detected on read.
//! All numbers are little-endian. `docs/storage.md` has the tables.

use bytes::Bytes;
use headwater_api::Revision;
use uuid::Uuid;

use super::tail::Sums;
use crate::change::ChangeKind;

/// What a log row holds before its key and its value.
pub(super) const LOG_HEADER: usize = 32;

/// A row of the live table.
pub(super) const LIVE_LEN: usize = 20;

/// A row of the log that says where the rest lies.
const POINTER_LEN: usize = 28;

/// What tells such a row from a whole one, and where in it.
const POINTER_MARK: u8 = 1;
const POINTER_MARK_AT: usize = 5;

/// A row of the table of bulk files.
pub(super) const FILL_LEN: usize = 28;

/// A row as it was read: what it should have been is unknown, so only the reason is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad(pub(super) &'static str);

/// Where every checksum of one store starts, so that rows of another do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seed(pub(super) u32);

impl Seed {
    pub(super) fn of(incarnation: Uuid) -> Seed {
        Seed(crc32c::crc32c(incarnation.as_bytes()))
    }

    /// The checksum of a row at its place.
    pub(super) fn sum(self, place: &[u8], row: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, place), row)
    }
}

/// One change as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogRow<'a> {
    pub(super) kind: ChangeKind,
    pub(super) key: &'a str,
    /// The revision of the version it replaced; zero for a create.
    pub(super) prev: Revision,
    /// When it was committed, in milliseconds of the wall clock; for people and for retention.
    pub(super) time: i64,
    /// When it may go, in milliseconds of the wall clock; zero for never.
    pub(super) expires: i64,
    pub(super) value: &'a [u8],
}

impl<'a> LogRow<'a> {
    /// Appends the row.
    pub(super) fn encode(&self, seed: Seed, revision: Revision, row: &mut Vec<u8>) {
        let start = row.len();
        row.extend_from_slice(&[0; 4]);
        row.push(kind_code(self.kind));
        row.push(0);
        let key_len = u16::try_from(self.key.len()).expect("keys are at most KEY_MAX bytes");
        row.extend_from_slice(&key_len.to_le_bytes());
        row.extend_from_slice(&self.prev.0.to_le_bytes());
        row.extend_from_slice(&self.time.to_le_bytes());
        row.extend_from_slice(&self.expires.to_le_bytes());
        row.extend_from_slice(self.key.as_bytes());
        row.extend_from_slice(self.value);
        let row = &mut row[start..];
        let sum = seed.sum(&revision.0.to_le_bytes(), &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
    }

    pub(super) fn decode(seed: Seed, revision: Revision, row: &'a [u8]) -> Result<LogRow<'a>, Bad> {
        let (sum, rest) = row.split_first_chunk::<4>().ok_or(Bad("the row is truncated"))?;
        if seed.sum(&revision.0.to_le_bytes(), rest) != u32::from_le_bytes(*sum) {
            return Err(Bad("the checksum does not match"));
        }
        LogRow::parse(row)
    }

    /// Reads a row that is in memory since it was made or checked.
    pub(super) fn parse(row: &'a [u8]) -> Result<LogRow<'a>, Bad> {
        let mut fields = RowReader(row);
        fields.u32()?;
        let kind = kind_of(fields.u8()?)?;
        fields.u8()?;
        let key_len = usize::from(fields.u16()?);
        let prev = Revision(fields.u64()?);
        let time = fields.i64()?;
        let expires = fields.i64()?;
        let key = std::str::from_utf8(fields.take(key_len)?)
            .map_err(|_| Bad("the key is not valid UTF-8"))?;
        Ok(LogRow { kind, key, prev, time, expires, value: fields.0 })
    }

    /// What the row takes on disk, without what the engine adds.
    pub(super) fn len(&self) -> u64 {
        LogRow::len_of(self.key, self.value)
    }

    /// What the row of such a version takes.
    pub(super) fn len_of(key: &str, value: &[u8]) -> u64 {
        (LOG_HEADER + key.len() + value.len()) as u64
    }
}

/// Where a row lies that is not in the data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BulkPosition {
    pub(super) file: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// What the log holds of a change whose row lies elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) kind: ChangeKind,
    pub(super) prev: Revision,
    pub(super) place: BulkPosition,
}

impl Pointer {
    pub(super) fn encode(&self, seed: Seed, revision: Revision) -> [u8; POINTER_LEN] {
        let BulkPosition { file, offset, len } = self.place;
        let mut row = [0; POINTER_LEN];
        row[4] = kind_code(self.kind);
        row[POINTER_MARK_AT] = POINTER_MARK;
        row[8..16].copy_from_slice(&self.prev.0.to_le_bytes());
        for (field, number) in row[16..].chunks_exact_mut(4).zip([file, offset, len]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let sum = seed.sum(&revision.0.to_le_bytes(), &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    /// The pointer in a row; `None` if the row is a whole one.
    pub(super) fn decode(
        seed: Seed,
        revision: Revision,
        row: &[u8],
    ) -> Result<Option<Pointer>, Bad> {
        if row.get(POINTER_MARK_AT) != Some(&POINTER_MARK) {
            return Ok(None);
        }
        let row: &[u8; POINTER_LEN] = row.try_into().map_err(|_| Bad("the row is truncated"))?;
        if seed.sum(&revision.0.to_le_bytes(), &row[4..]).to_le_bytes() != row[..4] {
            return Err(Bad("the checksum does not match"));
        }
        let mut fields = RowReader(&row[4..]);
        let kind = kind_of(fields.u8()?)?;
        fields.take(3)?;
        let prev = Revision(fields.u64()?);
        let place = BulkPosition { file: fields.u32()?, offset: fields.u32()?, len: fields.u32()? };
        Ok(Some(Pointer { kind, prev, place }))
    }
}

/// A row as the log holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEntry<'a> {
    Whole(LogRow<'a>),
    Elsewhere(Pointer),
}

impl<'a> LogEntry<'a> {
    pub(super) fn decode(
        seed: Seed,
        revision: Revision,
        row: &'a [u8],
    ) -> Result<LogEntry<'a>, Bad> {
        match Pointer::decode(seed, revision, row)? {
            Some(pointer) => Ok(LogEntry::Elsewhere(pointer)),
            None => LogRow::decode(seed, revision, row).map(LogEntry::Whole),
        }
    }

    pub(super) fn kind(&self) -> ChangeKind {
        match self {
            LogEntry::Whole(row) => row.kind,
            LogEntry::Elsewhere(pointer) => pointer.kind,
        }
    }

    pub(super) fn prev(&self) -> Revision {
        match self {
            LogEntry::Whole(row) => row.prev,
            LogEntry::Elsewhere(pointer) => pointer.prev,
        }
    }
}

/// How full a bulk file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fill {
    /// Its bytes.
    pub(super) len: u32,
    /// Bytes of rows that the log names.
    pub(super) live: u32,
    /// No row in it is of an older revision.
    pub(super) oldest: Revision,
    /// No row in it is of a newer one.
    pub(super) newest: Revision,
}

impl Fill {
    /// Takes a row more into account.
    pub(super) fn add(&mut self, revision: Revision, len: u32) {
        let first = self.len == 0;
        self.oldest = if first { revision } else { self.oldest.min(revision) };
        self.newest = self.newest.max(revision);
        self.len += len;
        self.live += len;
    }

    pub(super) fn encode(&self, seed: Seed, file: u32) -> [u8; FILL_LEN] {
        let mut row = [0; FILL_LEN];
        row[4..8].copy_from_slice(&self.len.to_le_bytes());
        row[8..12].copy_from_slice(&self.live.to_le_bytes());
        row[12..20].copy_from_slice(&self.oldest.0.to_le_bytes());
        row[20..].copy_from_slice(&self.newest.0.to_le_bytes());
        let sum = seed.sum(&file.to_le_bytes(), &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    pub(super) fn decode(seed: Seed, file: u32, row: &[u8; FILL_LEN]) -> Result<Fill, Bad> {
        if seed.sum(&file.to_le_bytes(), &row[4..]).to_le_bytes() != row[..4] {
            return Err(Bad("the checksum does not match"));
        }
        let mut fields = RowReader(&row[4..]);
        let (len, live) = (fields.u32()?, fields.u32()?);
        let (oldest, newest) = (Revision(fields.u64()?), Revision(fields.u64()?));
        Ok(Fill { len, live, oldest, newest })
    }
}

fn kind_code(kind: ChangeKind) -> u8 {
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

/// Which version of a key was the newest when the row was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveRow {
    pub(super) revision: Revision,
    pub(super) expires: i64,
}

impl LiveRow {
    pub(super) fn encode(&self, seed: Seed, key: &str) -> [u8; LIVE_LEN] {
        let mut row = [0; LIVE_LEN];
        row[4..12].copy_from_slice(&self.revision.0.to_le_bytes());
        row[12..].copy_from_slice(&self.expires.to_le_bytes());
        let sum = seed.sum(key.as_bytes(), &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    pub(super) fn decode(seed: Seed, key: &str, row: &[u8; LIVE_LEN]) -> Result<LiveRow, Bad> {
        if seed.sum(key.as_bytes(), &row[4..]).to_le_bytes() != row[..4] {
            return Err(Bad("the checksum does not match"));
        }
        let mut fields = RowReader(&row[4..]);
        Ok(LiveRow { revision: Revision(fields.u64()?), expires: fields.i64()? })
    }

    /// What this row adds to [`State::live_digest`]: its checksum, which covers all of it.
    pub(super) fn digest(&self, seed: Seed, key: &str) -> u64 {
        let [a, b, c, d, ..] = self.encode(seed, key);
        u64::from(u32::from_le_bytes([a, b, c, d]))
    }
}

/// Who the store is. Written when it is made and never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Stays the same over backup and restore.
    pub cluster: Uuid,
    /// New with every restore.
    pub incarnation: Uuid,
    /// The revision the store began at: one for a new store, higher after a restore.
    pub first: Revision,
}

impl Identity {
    const LEN: usize = 48;

    pub(super) fn seed(&self) -> Seed {
        Seed::of(self.incarnation)
    }

    pub(super) fn encode(&self) -> [u8; Identity::LEN] {
        let mut row = [0; Identity::LEN];
        row[4..8].copy_from_slice(&ROWS_FORMAT.to_le_bytes());
        row[8..24].copy_from_slice(self.cluster.as_bytes());
        row[24..40].copy_from_slice(self.incarnation.as_bytes());
        row[40..].copy_from_slice(&self.first.0.to_le_bytes());
        let sum = crc32c::crc32c(&row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    pub(super) fn decode(row: &[u8]) -> Result<Identity, Bad> {
        let row: &[u8; Identity::LEN] = row.try_into().map_err(|_| Bad("the row is truncated"))?;
        if crc32c::crc32c(&row[4..]).to_le_bytes() != row[..4] {
            return Err(Bad("the checksum does not match"));
        }
        let mut fields = RowReader(&row[4..]);
        if fields.u32()? != ROWS_FORMAT {
            return Err(Bad("the format of the rows is unknown"));
        }
        let cluster = fields.uuid()?;
        let incarnation = fields.uuid()?;
        Ok(Identity { cluster, incarnation, first: Revision(fields.u64()?) })
    }
}

/// The number of the format of the rows in the data file.
const ROWS_FORMAT: u32 = 1;

/// The edges and the sums, written with every commit and never derived from the rows left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The newest revision.
    pub(super) newest: Revision,
    /// The oldest state that may be read.
    pub(super) compacted: Revision,
    /// How far what compaction forgot has been dropped.
    pub(super) trimmed: Revision,
    /// What the live table has at least; what the log has after it completes the newest state.
    pub(super) live_at: Revision,
    /// Rows in the log.
    pub(super) log_rows: u64,
    /// Their bytes.
    pub(super) log_bytes: u64,
    /// Keys that have a value.
    pub(super) objects: u64,
    /// Bytes of the log rows they are in.
    pub(super) object_bytes: u64,
    /// Rows in the live table.
    pub(super) live_rows: u64,
    /// The sum of their digests.
    pub(super) live_digest: u64,
}

impl State {
    const LEN: usize = 84;

    pub(super) fn encode(&self, seed: Seed) -> [u8; State::LEN] {
        let fields = [
            self.newest.0,
            self.compacted.0,
            self.trimmed.0,
            self.live_at.0,
            self.log_rows,
            self.log_bytes,
            self.objects,
            self.object_bytes,
            self.live_rows,
            self.live_digest,
        ];
        let mut row = [0; State::LEN];
        for (place, field) in row[4..].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let sum = seed.sum(b"state", &row[4..]);
        row[..4].copy_from_slice(&sum.to_le_bytes());
        row
    }

    pub(super) fn decode(seed: Seed, row: &[u8]) -> Result<State, Bad> {
        let row: &[u8; State::LEN] = row.try_into().map_err(|_| Bad("the row is truncated"))?;
        if seed.sum(b"state", &row[4..]).to_le_bytes() != row[..4] {
            return Err(Bad("the checksum does not match"));
        }
        let mut fields = RowReader(&row[4..]);
        Ok(State {
            newest: Revision(fields.u64()?),
            compacted: Revision(fields.u64()?),
            trimmed: Revision(fields.u64()?),
            live_at: Revision(fields.u64()?),
            log_rows: fields.u64()?,
            log_bytes: fields.u64()?,
            objects: fields.u64()?,
            object_bytes: fields.u64()?,
            live_rows: fields.u64()?,
            live_digest: fields.u64()?,
        })
    }

    /// Takes the next group of writes into account.
    pub(super) fn advance(&mut self, newest: Revision, sums: Sums, rows: &[Bytes]) {
        let Sums { compacted, objects, object_bytes } = sums;
        self.newest = newest;
        self.compacted = self.compacted.max(compacted);
        (self.objects, self.object_bytes) = (objects, object_bytes);
        self.log_rows += rows.len() as u64;
        self.log_bytes += rows.iter().map(|row| row.len() as u64).sum::<u64>();
    }

    /// Bytes kept only for the past.
    pub(super) fn history_bytes(&self) -> u64 {
        self.log_bytes.saturating_sub(self.object_bytes)
    }
}

/// Takes fields off the front of a row.
pub(super) struct RowReader<'a>(pub(super) &'a [u8]);

impl<'a> RowReader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Bad> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Bad("the row is truncated"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Bad("the row is truncated"))?;
        self.0 = tail;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, Bad> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn i64(&mut self) -> Result<i64, Bad> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(super) fn uuid(&mut self) -> Result<Uuid, Bad> {
        Ok(Uuid::from_bytes(self.array()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed() -> Seed {
        Seed::of(Uuid::from_u128(7))
    }

    fn log_row() -> LogRow<'static> {
        LogRow {
            kind: ChangeKind::Updated,
            key: "/registry/core/pods/default/a",
            prev: Revision(41),
            time: 1_700_000_000_000,
            expires: 0,
            value: b"{\"kind\":\"Pod\"}",
        }
    }

    fn pointer() -> Pointer {
        let place = BulkPosition { file: 3, offset: 70_000, len: 6_100 };
        Pointer { kind: ChangeKind::Updated, prev: Revision(41), place }
    }

    #[test]
    fn rows_come_back_as_they_were_written() {
        let mut row = Vec::new();
        log_row().encode(seed(), Revision(42), &mut row);
        assert_eq!(row.len() as u64, log_row().len());
        assert_eq!(LogRow::decode(seed(), Revision(42), &row), Ok(log_row()));
        let live = LiveRow { revision: Revision(42), expires: -1 };
        assert_eq!(LiveRow::decode(seed(), "/a", &live.encode(seed(), "/a")), Ok(live));
        let state = State { newest: Revision(9), live_digest: u64::MAX, ..State::default() };
        assert_eq!(State::decode(seed(), &state.encode(seed())), Ok(state));
        let identity = Identity {
            cluster: Uuid::from_u128(1),
            incarnation: Uuid::from_u128(2),
            first: Revision(1),
        };
        assert_eq!(Identity::decode(&identity.encode()), Ok(identity));
        let fill = Fill { len: 9, live: 7, oldest: Revision(3), newest: Revision(u64::MAX) };
        assert_eq!(Fill::decode(seed(), 5, &fill.encode(seed(), 5)), Ok(fill));
        assert!(Fill::decode(seed(), 6, &fill.encode(seed(), 5)).is_err());
        let row = pointer().encode(seed(), Revision(42));
        let decoded = LogEntry::decode(seed(), Revision(42), &row);
        assert_eq!(decoded, Ok(LogEntry::Elsewhere(pointer())));
    }

    /// R14
    #[test]
    fn any_changed_bit_and_any_cut_is_found() {
        let mut whole = Vec::new();
        log_row().encode(seed(), Revision(42), &mut whole);
        for row in [whole, pointer().encode(seed(), Revision(42)).to_vec()] {
            for bit in 0..row.len() * 8 {
                let mut bad = row.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(LogEntry::decode(seed(), Revision(42), &bad).is_err(), "bit {bit}");
            }
            for len in 0..row.len() {
                assert!(
                    LogEntry::decode(seed(), Revision(42), &row[..len]).is_err(),
                    "length {len}"
                );
            }
        }
    }

    #[test]
    fn a_row_at_another_place_or_of_another_store_is_found() {
        let mut row = Vec::new();
        log_row().encode(seed(), Revision(42), &mut row);
        assert!(LogRow::decode(seed(), Revision(43), &row).is_err());
        let pointer = pointer().encode(seed(), Revision(42));
        assert!(LogEntry::decode(seed(), Revision(43), &pointer).is_err());
        let other = Seed::of(Uuid::from_u128(8));
        assert!(LogRow::decode(other, Revision(42), &row).is_err());
        let live = LiveRow { revision: Revision(42), expires: 0 }.encode(seed(), "/a");
        assert!(LiveRow::decode(seed(), "/b", &live).is_err());
    }
}
