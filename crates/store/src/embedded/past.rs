//! Past versions of a key, by the chain of its rows; and times of revisions, by binary search.
//!
//! River: index, log on disk → **past** → answers about history.
//! Promise: the lock of the index is held only while rows are looked up; rows are read outside it.

use bytes::Bytes;
use headwater_api::Revision;

use super::Shared;
use super::index::{RowIndex, RowRef};
use crate::store::Error;
use crate::versions::{
    KeyHistory, KeyVersion, RevisionAt, TimedRevision, VERSIONS_MAX, VersionRange,
};

impl Shared {
    /// The versions of a key.
    pub(super) fn versions(&self, range: &VersionRange) -> Result<KeyHistory, Error> {
        let limit = range.limit.min(VERSIONS_MAX);
        let (rows, reader) = {
            let published = self.published();
            let upto = published.state_at(range.upto)?;
            let rows = chain(&published.index, range.key.as_str(), upto, limit + 1);
            (rows, self.reader(&published)?)
        };
        let mut history = KeyHistory::default();
        for row in rows {
            if history.is_full(limit) {
                history.more = true;
                break;
            }
            history.versions.push(reader.row(row, Some(range.key.as_str()), |found| {
                Ok(KeyVersion {
                    revision: found.revision,
                    kind: found.kind,
                    value: Bytes::copy_from_slice(found.value),
                    time: Some(found.time),
                })
            })?);
        }
        Ok(history)
    }

    /// The newest revision at a time. Times of rows grow with revisions, unless the wall clock was set
    /// back; then the result is one of the revisions around.
    pub(super) fn revision_at(&self, time: i64) -> Result<RevisionAt, Error> {
        let (compacted, newest) = {
            let published = self.published();
            (published.compacted, published.newest)
        };
        // Rows up to the compacted revision may be gone, and a store begins after its first revision:
        // only later rows have a time for certain.
        let base = compacted.max(self.identity.first);
        let (mut known, mut later) = (base, newest.next());
        while later.0 > known.0 + 1 {
            let middle = Revision(known.0 + (later.0 - known.0) / 2);
            match self.time_of(middle)? {
                Some(written) if written > time => later = middle,
                _ => known = middle,
            }
        }
        let began = self.time_of(base)?;
        let is_kept = known > base || began.is_some_and(|at| at <= time);
        let oldest = match began {
            Some(time) => TimedRevision { revision: base, time: Some(time) },
            None => TimedRevision { revision: base.next(), time: self.time_of(base.next())? },
        };
        Ok(RevisionAt { found: is_kept.then_some(known), oldest, known_from: None })
    }

    /// The time of a row. Position and segments are of one moment: the cleaner moves rows.
    fn time_of(&self, revision: Revision) -> Result<Option<i64>, Error> {
        let (row, reader) = {
            let published = self.published();
            let Some(row) = published.index.row(revision) else { return Ok(None) };
            (row, self.reader(&published)?)
        };
        reader.row(row, None, |found| Ok(Some(found.time)))
    }
}

/// The rows of a key from a revision back.
fn chain(index: &RowIndex, key: &str, upto: Revision, limit: usize) -> Vec<RowRef> {
    let mut next = index.entry(key).and_then(|entry| index.row(entry.newest));
    let mut rows = Vec::new();
    while let Some(row) = next
        && rows.len() < limit
    {
        if row.revision <= upto {
            rows.push(row);
        }
        next = index.row(row.prev);
    }
    rows
}
