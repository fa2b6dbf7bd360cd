//! Past versions of one key, and times of revisions.
//!
//! River: history on disk or in memory → **versions** → the server's answers about the past.
//! Promise: one call reads at most [`VERSIONS_MAX`] versions and stops after [`BYTES_MAX`] bytes.

use bytes::Bytes;
use headwater_api::Revision;

use crate::change::ChangeKind;
use crate::key::Key;
use crate::store::{Error, Range, Store};

/// The most versions that one call returns.
pub const VERSIONS_MAX: usize = 500;

/// The size of values after which a call returns what it has, in bytes.
pub const BYTES_MAX: usize = 16 << 20;

/// The versions of a key to read.
#[derive(Clone, Debug)]
pub struct VersionRange {
    /// The key.
    pub key: Key,
    /// The newest revision to consider; `None` means the newest of the store.
    pub upto: Option<Revision>,
    /// The maximum number of versions.
    pub limit: usize,
}

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyVersion {
    /// The revision that wrote it.
    pub revision: Revision,
    /// How the key was written.
    pub kind: ChangeKind,
    /// The value; empty for a deletion.
    pub value: Bytes,
    /// When it was written, in milliseconds of the wall clock; `None` if the store keeps no times.
    pub time: Option<i64>,
}

/// Versions of a key, newest first. The oldest may be older than the compacted revision: it is the
/// state there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHistory {
    /// The versions.
    pub versions: Vec<KeyVersion>,
    /// Whether older ones are retained.
    pub more: bool,
}

impl KeyHistory {
    /// Whether the limits of a call are reached.
    pub(crate) fn is_full(&self, limit: usize) -> bool {
        let bytes: usize = self.versions.iter().map(|version| version.value.len()).sum();
        self.versions.len() >= limit.min(VERSIONS_MAX) || bytes >= BYTES_MAX
    }
}

/// A revision and the time of its write, in milliseconds of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedRevision {
    /// The revision.
    pub revision: Revision,
    /// The time, if it is known.
    pub time: Option<i64>,
}

/// The answer to "what was the newest revision at that time".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionAt {
    /// The newest revision at the time; `None` if that is forgotten.
    pub found: Option<Revision>,
    /// The oldest state that can be read.
    pub oldest: TimedRevision,
    /// The oldest time that is known, if older states can be read whose times are not.
    pub known_from: Option<i64>,
}

/// The versions of a key by reads of past states, without times: for stores that keep no chain of
/// versions. It ends at the newest creation of the key.
pub async fn by_reads(
    store: &(impl Store + ?Sized),
    range: VersionRange,
) -> Result<KeyHistory, Error> {
    let mut history = KeyHistory::default();
    let compacted = store.condition().compacted;
    let mut at = match range.upto {
        Some(upto) => upto,
        None => store.revision().await?,
    };
    loop {
        let read = Range {
            prefix: range.key.as_str().to_owned(),
            at: Some(at),
            limit: Some(1),
            ..Range::default()
        };
        let found = match store.range(read).await {
            Ok(page) => page.records.into_iter().next().filter(|found| found.key == range.key),
            // It was compacted meanwhile.
            Err(Error::Compacted { .. }) if !history.versions.is_empty() => return Ok(history),
            Err(error) => return Err(error),
        };
        let Some(found) = found else {
            if let Some(oldest) = history.versions.last_mut() {
                oldest.kind = ChangeKind::Created;
            }
            return Ok(history);
        };
        if history.is_full(range.limit) {
            history.more = true;
            return Ok(history);
        }
        let (revision, value, kind) = (found.revision, found.value, ChangeKind::Updated);
        history.versions.push(KeyVersion { revision, kind, value, time: None });
        if revision <= compacted || revision.0 <= 1 {
            return Ok(history);
        }
        at = Revision(revision.0 - 1);
    }
}
