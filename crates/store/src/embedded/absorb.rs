//! Absorbing: copies the write-ahead log into the data file, many groups at a time.
//!
//! River: tail → **absorb** → data file.
//! Promise: one transaction writes rows and sums together, so the data file always ends at the end
//! of a group. The writer does not wait for it unless both files of the log are full. The same
//! transactions move keys into the live table and drop compacted rows.

use headwater_api::Revision;
use redb::{ReadableTable, Table, WriteTransaction};

use super::bulk::{self, Appender, BULK, Fills};
use super::disk::Disk;
use super::file::{
    DataFile, LIVE, LIVE_PLACE, LOG, LOG_PLACE, damaged, read_entry, trouble, write_state,
};
use super::pending::{Chunk, Pending, SweepStart};
use super::row::{Bad, FILL_LEN, LIVE_LEN, LiveRow, LogRow, Pointer, Seed, State};
use super::snapshot::TAIL_PLACE;
use super::tail::Tail;
use crate::change::ChangeKind;
use crate::key::Key;
use crate::store::Error;

/// Rows that are tidied for every row that is absorbed, so that tidying keeps up with writing.
const TIDY_PER_ROW: usize = 3;

/// Rows of the log that are looked at for one bulk file in one transaction.
const COLLECT_ROWS: usize = 100_000;

/// What is moved out of it then, in bytes, and a row.
const COLLECT_BYTES: u64 = 4 << 20;

/// What is known of the data file by the one who changes it.
#[derive(Debug)]
pub(super) struct Absorber {
    /// The sums of the file.
    state: State,
    pending: Pending,
    /// How full the bulk files are.
    fills: Fills,
    /// What is under way.
    collection: Option<Collection>,
    /// Off once a row that was to be dropped or moved could not be read.
    trims: bool,
}

/// A bulk file out of which everything moves that is still needed.
#[derive(Clone, Copy, Debug)]
struct Collection {
    file: u32,
    /// Rows of older revisions have been looked at.
    next: Revision,
}

/// How much is tidied along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tidy {
    /// In proportion to what is absorbed, and at least so many rows.
    Some(usize),
    /// The whole live table, so that the next start need not read the log.
    Settle,
    /// The same, and what saves the next start from repairing the file should the process be
    /// killed from here on; that costs a second sync.
    Rest,
}

impl Absorber {
    pub(super) fn new(state: State, pending: Pending, fills: Fills) -> Absorber {
        Absorber { state, pending, fills, collection: None, trims: true }
    }

    /// The sums of the file as it is.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Whether something that was forgotten by this compaction still takes space.
    pub(super) fn tidies(&self, compacted: Revision) -> bool {
        self.forgets(compacted)
            || self.trims && (self.collection.is_some() || self.fills.mostly_forgotten().is_some())
    }

    /// Whether something that was forgotten by this compaction is still there.
    fn forgets(&self, compacted: Revision) -> bool {
        self.trims && self.state.trimmed < compacted
    }

    /// Whether the file has all of the tail, and its live table too.
    pub(super) fn is_settled(&self, tail: &Tail) -> bool {
        self.state == tail.over(&self.state) && self.state.live_at == self.state.newest
    }

    /// Brings the tail into the file. After an error nothing is known of the file any more.
    pub(super) fn absorb(
        &mut self,
        disk: &dyn Disk,
        file: &DataFile,
        tail: &Tail,
        tidy: Tidy,
    ) -> Result<(), Error> {
        for (revision, row) in tail.rows_after(self.state.newest) {
            let row = LogRow::parse(row).map_err(|bad| damaged(TAIL_PLACE, revision, bad))?;
            let live = LiveRow { revision, expires: row.expires };
            let live = (row.kind != ChangeKind::Deleted).then_some(live);
            self.pending.add(Key::new(row.key), live);
        }
        let mut plan = self.plan(tail, tidy);
        match self.transact(disk, file, tail, &plan) {
            Err(Failed::Trim(error)) => {
                // What cannot be read is not dropped, and the writes must not suffer for it.
                tracing::error!(
                    %error,
                    "cannot drop compacted history; it stays on disk until the next start"
                );
                (self.trims, plan.trim, plan.collects) = (false, 0, false);
                self.transact(disk, file, tail, &plan).map_err(Failed::into)
            }
            done => done.map_err(Failed::into),
        }
    }

    fn plan(&mut self, tail: &Tail, tidy: Tidy) -> Plan {
        let after = tail.over(&self.state);
        let forgets = self.forgets(after.compacted);
        let rest = tidy == Tidy::Rest;
        match tidy {
            Tidy::Some(least) => {
                let quota = (tail.rows_after(self.state.newest).len() * TIDY_PER_ROW).max(least);
                // What is forgotten can only be dropped once the live table does not need it.
                let start = if forgets { SweepStart::Now } else { SweepStart::WhenDue };
                let settle = vec![self.pending.take(quota, after.newest, start)];
                let trim = if forgets { quota as u64 } else { 0 };
                Plan { after, settle, trim, collects: self.trims, rest }
            }
            Tidy::Settle | Tidy::Rest => {
                // A sweep that is under way leaves what came after it to a second one.
                let mut take = || self.pending.take(usize::MAX, after.newest, SweepStart::Now);
                let last = Chunk { live_at: Some(after.newest), ..Chunk::default() };
                Plan { after, settle: vec![take(), take(), last], trim: 0, collects: false, rest }
            }
        }
    }

    fn transact(
        &mut self,
        disk: &dyn Disk,
        file: &DataFile,
        tail: &Tail,
        plan: &Plan,
    ) -> Result<(), Failed> {
        let mut txn = file.begin_write()?;
        txn.set_quick_repair(plan.rest);
        let appender = Appender::new(disk, (&file.bulk, &file.health), self.fills.clone());
        let mut tables = Tables::open(&txn, file.seed, plan.after, appender)?;
        tables.insert(tail, self.state.newest)?;
        for chunk in &plan.settle {
            tables.settle(chunk)?;
        }
        let tidied = tables.trim(plan.trim).and_then(|()| match plan.collects {
            true => tables.collect(self.collection),
            false => Ok(self.collection),
        });
        let collection = match tidied {
            Ok(collection) => collection,
            Err(error @ Error::Damaged { .. }) => {
                drop(tables);
                txn.abort().map_err(trouble)?;
                return Err(Failed::Trim(error));
            }
            Err(error) => return Err(error.into()),
        };
        let (state, fills, gone) = tables.finish(&self.fills)?;
        write_state(&txn, file.seed, &state)?;
        txn.commit().map_err(trouble)?;
        file.bulk.remove(disk, &gone);
        file.health.note_fills(&fills);
        (self.state, self.fills, self.collection) = (state, fills, collection);
        Ok(())
    }
}

/// What one transaction does besides taking in the tail.
struct Plan {
    /// The sums with the tail and before anything is tidied.
    after: State,
    /// What moves into the live table.
    settle: Vec<Chunk>,
    /// How many forgotten rows are dropped at most.
    trim: u64,
    /// Whether bulk files that are mostly forgotten are emptied.
    collects: bool,
    /// Whether it is for a quick start.
    rest: bool,
}

/// Why a transaction was not made.
enum Failed {
    /// Something that was to be dropped or moved is damaged.
    Trim(Error),
    Other(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Other(error)
    }
}

impl Failed {
    fn into(self) -> Error {
        match self {
            Failed::Trim(error) | Failed::Other(error) => error,
        }
    }
}

/// The tables in one transaction, and their sums.
struct Tables<'a> {
    log: Table<'a, u64, &'static [u8]>,
    live: Table<'a, &'static [u8], &'static [u8; LIVE_LEN]>,
    bulk: Table<'a, u32, &'static [u8; FILL_LEN]>,
    appender: Appender<'a>,
    seed: Seed,
    state: State,
}

impl<'a> Tables<'a> {
    fn open(
        txn: &'a WriteTransaction,
        seed: Seed,
        state: State,
        appender: Appender<'a>,
    ) -> Result<Tables<'a>, Error> {
        let log = txn.open_table(LOG).map_err(trouble)?;
        let live = txn.open_table(LIVE).map_err(trouble)?;
        let bulk = txn.open_table(BULK).map_err(trouble)?;
        Ok(Tables { log, live, bulk, appender, seed, state })
    }

    fn insert(&mut self, tail: &Tail, after: Revision) -> Result<(), Error> {
        for (revision, row) in tail.rows_after(after) {
            if !self.appender.takes(row) {
                self.log.insert(revision.0, row.as_ref()).map_err(trouble)?;
                continue;
            }
            let LogRow { kind, prev, .. } =
                LogRow::parse(row).map_err(|bad| damaged(TAIL_PLACE, revision, bad))?;
            let place = self.appender.append(revision, row)?;
            self.point(revision, Pointer { kind, prev, place })?;
        }
        Ok(())
    }

    fn point(&mut self, revision: Revision, pointer: Pointer) -> Result<(), Error> {
        let row = pointer.encode(self.seed, revision);
        self.log.insert(revision.0, row.as_slice()).map_err(trouble)?;
        Ok(())
    }

    /// Makes the bulk files durable, and says how full they are. Tells that, the sums, and which
    /// files are to go once all of it is committed.
    fn finish(self, before: &Fills) -> Result<(State, Fills, Vec<u32>), Error> {
        let Tables { mut bulk, appender, seed, state, .. } = self;
        let (fills, gone) = appender.finish()?;
        for (file, fill) in &fills.0 {
            if before.0.get(file) != Some(fill) {
                bulk.insert(file, &fill.encode(seed, *file)).map_err(trouble)?;
            }
        }
        for file in &gone {
            bulk.remove(file).map_err(trouble)?;
        }
        Ok((state, fills, gone))
    }

    /// Drops some of what compaction forgot: the version that each change up to it replaced, and
    /// deletes before it. A delete exactly on it stays until the next compaction.
    fn trim(&mut self, rows_max: u64) -> Result<(), Error> {
        let State { compacted, trimmed, live_at, .. } = self.state;
        // What the live table lacks is still needed to complete it.
        let end = Revision(trimmed.0.saturating_add(rows_max)).min(compacted).min(live_at);
        if trimmed >= end {
            return Ok(());
        }
        self.drop_old_delete(trimmed)?;
        for revision in (trimmed.0 + 1..=end.0).map(Revision) {
            let (kind, prev) =
                read_entry(&self.log, self.seed, revision, |entry| (entry.kind(), entry.prev()))?;
            if prev != Revision::ZERO {
                self.drop_row(prev)?;
            }
            if kind == ChangeKind::Deleted && revision < compacted {
                self.drop_row(revision)?;
            }
        }
        self.state.trimmed = end;
        Ok(())
    }

    /// Moves changes into the live table.
    fn settle(&mut self, chunk: &Chunk) -> Result<(), Error> {
        for (key, row) in &chunk.rows {
            self.move_live(key.as_str(), *row)?;
        }
        self.state.live_at = chunk.live_at.unwrap_or(self.state.live_at);
        Ok(())
    }

    fn move_live(&mut self, key: &str, row: Option<LiveRow>) -> Result<(), Error> {
        let old = match row {
            Some(row) => {
                self.state.live_rows += 1;
                let digest = row.digest(self.seed, key);
                self.state.live_digest = self.state.live_digest.wrapping_add(digest);
                self.live.insert(key.as_bytes(), &row.encode(self.seed, key)).map_err(trouble)?
            }
            None => self.live.remove(key.as_bytes()).map_err(trouble)?,
        };
        if let Some(old) = old {
            let old = LiveRow::decode(self.seed, key, old.value())
                .map_err(|bad| damaged(LIVE_PLACE, key, bad))?;
            self.state.live_rows -= 1;
            let digest = old.digest(self.seed, key);
            self.state.live_digest = self.state.live_digest.wrapping_sub(digest);
        }
        Ok(())
    }

    /// A delete that an earlier compaction kept because it was exactly on it.
    fn drop_old_delete(&mut self, revision: Revision) -> Result<(), Error> {
        if self.log.get(revision.0).map_err(trouble)?.is_none() {
            return Ok(());
        }
        let kind = read_entry(&self.log, self.seed, revision, |entry| entry.kind())?;
        if kind == ChangeKind::Deleted {
            self.drop_row(revision)?;
        }
        Ok(())
    }

    fn drop_row(&mut self, revision: Revision) -> Result<(), Error> {
        let Some(row) = self.log.remove(revision.0).map_err(trouble)? else {
            return Err(damaged(LOG_PLACE, revision, Bad("the row is missing")));
        };
        let pointer = Pointer::decode(self.seed, revision, row.value())
            .map_err(|bad| damaged(LOG_PLACE, revision, bad))?;
        let len = match pointer {
            Some(Pointer { place, .. }) => {
                self.appender.forget(place);
                u64::from(place.len)
            }
            None => row.value().len() as u64,
        };
        self.state.log_rows -= 1;
        self.state.log_bytes = self.state.log_bytes.saturating_sub(len);
        Ok(())
    }

    /// Moves some of what is still needed out of a bulk file that is mostly forgotten. It goes when
    /// nothing is left in it.
    fn collect(&mut self, under_way: Option<Collection>) -> Result<Option<Collection>, Error> {
        let fills = &self.appender.fills;
        let start = |file| Collection { file, next: fills.0[&file].oldest };
        let Some(collection) = under_way.or_else(|| fills.mostly_forgotten().map(start)) else {
            return Ok(None);
        };
        let Collection { file, next } = collection;
        let Some(fill) = fills.0.get(&file).copied() else { return Ok(None) };
        let Needed { rows, next } = self.needed(file, next..fill.newest.next())?;
        for (revision, pointer) in rows {
            let row = self.appender.read(pointer.place)?;
            LogRow::decode(self.seed, revision, &row)
                .map_err(|bad| bulk::damaged_at(pointer.place, bad))?;
            let place = self.appender.append(revision, &row)?;
            self.appender.forget(pointer.place);
            self.point(revision, Pointer { place, ..pointer })?;
        }
        let left = self.appender.fills.0[&file].live;
        match next {
            Some(next) => Ok(Some(Collection { file, next })),
            None if left == 0 => Ok(None),
            None => Err(bulk::damaged(
                file,
                &format!("{left} bytes of it are counted as live but not referenced"),
            )),
        }
    }

    /// Some rows that lie in a file, of those of some revisions.
    fn needed(&self, file: u32, revisions: std::ops::Range<Revision>) -> Result<Needed, Error> {
        let mut needed = Needed::default();
        let mut bytes = 0;
        let rows = self.log.range(revisions.start.0..revisions.end.0).map_err(trouble)?;
        for (n, row) in rows.enumerate() {
            let (revision, row) = row.map_err(trouble)?;
            let revision = Revision(revision.value());
            if n == COLLECT_ROWS || bytes >= COLLECT_BYTES {
                return Ok(Needed { next: Some(revision), ..needed });
            }
            let pointer = Pointer::decode(self.seed, revision, row.value())
                .map_err(|bad| damaged(LOG_PLACE, revision, bad))?;
            if let Some(pointer) = pointer.filter(|pointer| pointer.place.file == file) {
                bytes += u64::from(pointer.place.len);
                needed.rows.push((revision, pointer));
            }
        }
        Ok(needed)
    }
}

/// What a bulk file holds that is still needed.
#[derive(Default)]
struct Needed {
    rows: Vec<(Revision, Pointer)>,
    /// From where on to look for more, if there may be any.
    next: Option<Revision>,
}
