//! Old states that somebody still reads: pages of lists, initial states of watches.
//!
//! River: snapshot → **loans** → list pages, watchers that begin.
//! Promise: what old states hold beyond the current one is bounded, whoever reads slowly (R31).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use headwater_api::Revision;
use headwater_store::ChangeKind;
use tokio::time::Instant;

use crate::change::Change;
use crate::snapshot::Snapshot;

/// Old states of one resource.
#[derive(Default)]
pub(crate) struct Loans {
    /// Snapshots that pages of a list refer to, by revision.
    kept: BTreeMap<Revision, Kept>,
    /// States that watchers are still reading from the start. They have weak references: one that
    /// stops reading must not keep the past alive.
    lent: Vec<(Arc<Snapshot>, u64)>,
    /// Bytes of the current state.
    live: u64,
    /// Bytes of all states that were ever replaced. Two readings of it tell how much an old state
    /// holds that newer ones do not.
    replaced: u64,
    /// Bytes that old states may hold, unless the current state is large.
    bytes_max: u64,
}

struct Kept {
    snapshot: Snapshot,
    used: Instant,
    /// What had been replaced when it was kept.
    replaced: u64,
    /// Places where pages ended, and how many objects follow each, newest last.
    places: VecDeque<(String, usize)>,
}

/// Snapshots kept for lists that are read page by page. When one more is needed, the oldest is
/// dropped; its pages are then rebuilt from the window or from the store's history.
const KEPT_MAX: usize = 64;

/// Places that are remembered of one snapshot: as many clients as may read its pages side by side
/// without anybody counting.
const PLACES_MAX: usize = 16;

/// How long a snapshot is kept after its last page was read.
const KEPT_AGE: Duration = Duration::from_secs(300);

impl Loans {
    /// None, on a state of this many bytes.
    pub(crate) fn new(live: u64, bytes_max: usize) -> Loans {
        Loans { live, bytes_max: bytes_max as u64, ..Loans::default() }
    }

    /// Takes account of a change.
    pub(crate) fn note(&mut self, change: &Change) {
        let replaced = change.replaced() as u64;
        self.replaced += replaced;
        self.live -= replaced;
        if change.kind() != ChangeKind::Deleted {
            self.live += change.object().as_slice().len() as u64;
        }
    }

    /// Keeps a snapshot for the later pages of a list.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let (now, replaced) = (Instant::now(), self.replaced);
        let new = || {
            let places = VecDeque::new();
            Kept { snapshot: snapshot.clone(), used: now, replaced, places }
        };
        self.kept.entry(snapshot.revision()).or_insert_with(new).used = now;
        self.shed();
    }

    /// The snapshot of a revision, if it is kept.
    pub(crate) fn kept(&mut self, revision: Revision) -> Option<Snapshot> {
        let kept = self.kept.get_mut(&revision)?;
        kept.used = Instant::now();
        Some(kept.snapshot.clone())
    }

    /// Remembers how many objects follow a place in a snapshot that is kept.
    pub(crate) fn mark(&mut self, revision: Revision, place: String, left: usize) {
        let Some(Kept { places, .. }) = self.kept.get_mut(&revision) else { return };
        if places.len() == PLACES_MAX {
            places.pop_front();
        }
        places.push_back((place, left));
    }

    /// How many objects follow a place in a snapshot, if that is remembered.
    pub(crate) fn left_after(&self, revision: Revision, place: &str) -> Option<usize> {
        let places = &self.kept.get(&revision)?.places;
        places.iter().rev().find(|(known, _)| known == place).map(|(_, left)| *left)
    }

    /// Lends a state to a watcher that begins to read it.
    pub(crate) fn lend(&mut self, state: &Arc<Snapshot>) -> Weak<Snapshot> {
        if self.lent.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, state)) {
            self.lent.push((Arc::clone(state), self.replaced));
        }
        Arc::downgrade(state)
    }

    /// Drops what nobody reads any more, what was compacted, and what has come to hold too much.
    pub(crate) fn expire(&mut self, now: Instant, compacted: Revision) {
        self.kept = self.kept.split_off(&compacted);
        self.kept.retain(|_, kept| kept.used + KEPT_AGE > now);
        self.shed();
        let (allowance, replaced) = (self.allowance(), self.replaced);
        let is_read = |state: &Arc<Snapshot>| Arc::weak_count(state) > 0;
        self.lent.retain(|(state, then)| is_read(state) && replaced - then <= allowance);
    }

    /// The newest snapshot is kept whatever it holds, so that a large list is not read back from
    /// the store for each of its pages.
    fn shed(&mut self) {
        let allowance = self.allowance();
        while self.kept.len() > KEPT_MAX || (self.kept.len() > 1 && self.pinned() > allowance) {
            self.kept.pop_first();
        }
    }

    /// Bytes that kept snapshots hold and the current state does not. What several of them share
    /// is counted once: the oldest has it all.
    fn pinned(&self) -> u64 {
        let own: u64 = self.kept.values().map(|kept| kept.snapshot.own_bytes as u64).sum();
        let oldest = self.kept.values().map(|kept| kept.replaced).min();
        own + oldest.map_or(0, |then| self.replaced - then)
    }

    fn allowance(&self) -> u64 {
        self.bytes_max.max(self.live / 4)
    }
}
