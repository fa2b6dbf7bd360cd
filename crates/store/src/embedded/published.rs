//! The published state: the newest durable state.
//!
//! River: group commit → **published** → reads and watchers.
//! Promise: contains only durable writes. It has the positions of rows but no values, except for
//! recent changes; above the store, the watch cache has the values.

use std::sync::Arc;

use headwater_api::Revision;

use super::index::{RowIndex, RowRef};
use super::log::{Appended, Edges};
use super::row::Seed;
use super::segment::{RowReader, SegmentMap};
use crate::change::Change;
use crate::recent::RecentChanges;
use crate::store::Error;

/// Recent changes for watchers that are nearly up to date, in bytes.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// The newest durable state.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) index: RowIndex,
    pub(super) recent: RecentChanges,
    pub(super) segments: Arc<SegmentMap>,
    pub(super) newest: Revision,
    /// Raised before any row is dropped, so that no reader misses one.
    pub(super) compacted: Revision,
}

impl Published {
    /// The newest and the oldest readable state.
    pub(super) fn edges(&self) -> Edges {
        Edges { newest: self.newest, compacted: self.compacted }
    }

    /// Reads rows of this state, also after it has changed.
    pub(super) fn reader(&self, seed: Seed) -> RowReader {
        RowReader { seed, segments: self.segments.clone() }
    }

    /// Makes durable changes visible.
    pub(super) fn publish(&mut self, changes: Vec<(Change, RowRef)>, at: &Appended) {
        if !self.segments.contains_key(&at.segment.number) {
            let segments = Arc::make_mut(&mut self.segments);
            segments.insert(at.segment.number, at.segment.clone());
        }
        for (change, row) in changes {
            self.newest = change.revision;
            self.index.insert(&change.key, at.place(row));
            self.recent.push(change);
        }
        self.recent.shrink_to(RECENT_BYTES_MAX);
    }

    /// The revision of a state, if it can be read; `None` means the newest.
    pub(super) fn state_at(&self, asked: Option<Revision>) -> Result<Revision, Error> {
        let (asked, current) = (asked.unwrap_or(self.newest), self.newest);
        if asked > current {
            return Err(Error::Future { asked, current });
        }
        self.check_kept(asked).map(|()| asked)
    }

    /// Fails for a state that was compacted.
    pub(super) fn check_kept(&self, asked: Revision) -> Result<(), Error> {
        let oldest = self.compacted;
        if asked < oldest { Err(Error::Compacted { asked, oldest }) } else { Ok(()) }
    }
}
