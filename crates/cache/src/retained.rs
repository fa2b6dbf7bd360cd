//! Old snapshots that clients still read: pages of lists, initial states of watches.
//!
//! River: snapshot → **retained snapshots** → list pages, initial events of watchers.
//! Promise: the memory that old snapshots hold in addition to the current state is bounded, even if
//! clients read slowly (R31).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use headwater_api::Revision;
use headwater_store::ChangeKind;
use tokio::time::Instant;

use crate::change::ObjectChange;
use crate::snapshot::Snapshot;

/// Old snapshots of one resource.
#[derive(Default)]
pub(crate) struct RetainedSnapshots {
    /// Snapshots of paginated lists, by revision.
    lists: BTreeMap<Revision, ListSnapshot>,
    /// States that watchers still read as initial events. The watchers have weak references, so
    /// that a stuck watcher does not keep an old state alive.
    initial: Vec<(Arc<Snapshot>, u64)>,
    /// Bytes of the current state.
    live: u64,
    /// Total bytes ever replaced. The difference of two readings is what an old state holds and
    /// newer states do not.
    replaced: u64,
    /// Bytes that old states may hold; a quarter of the current state if that is more.
    bytes_max: u64,
}

struct ListSnapshot {
    snapshot: Snapshot,
    used: Instant,
    /// The value of `replaced` when the snapshot was taken.
    replaced: u64,
}

/// The maximum number of list snapshots. The oldest is dropped first; its pages are then rebuilt
/// from the window or the store's history.
const LISTS_MAX: usize = 64;

/// How long a snapshot is kept after its last page was read.
const LIST_AGE: Duration = Duration::from_secs(300);

impl RetainedSnapshots {
    /// No snapshots, for a current state of `live` bytes.
    pub(crate) fn new(live: u64, bytes_max: usize) -> RetainedSnapshots {
        RetainedSnapshots { live, bytes_max: bytes_max as u64, ..RetainedSnapshots::default() }
    }

    /// Accounts for a change.
    pub(crate) fn note(&mut self, change: &ObjectChange) {
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
        let new = || ListSnapshot { snapshot: snapshot.clone(), used: now, replaced };
        self.lists.entry(snapshot.revision()).or_insert_with(new).used = now;
        self.shrink();
    }

    /// The snapshot at a revision, if it is kept.
    pub(crate) fn get(&mut self, revision: Revision) -> Option<Snapshot> {
        let list = self.lists.get_mut(&revision)?;
        list.used = Instant::now();
        Some(list.snapshot.clone())
    }

    /// Keeps a state while a watcher reads its initial events, within the memory limit.
    pub(crate) fn keep_initial(&mut self, state: &Arc<Snapshot>) -> Weak<Snapshot> {
        if self.initial.last().is_none_or(|(last, _)| !Arc::ptr_eq(last, state)) {
            self.initial.push((Arc::clone(state), self.replaced));
        }
        Arc::downgrade(state)
    }

    /// Drops snapshots that are unused, compacted or too large.
    pub(crate) fn expire(&mut self, now: Instant, compacted: Revision) {
        self.lists = self.lists.split_off(&compacted);
        self.lists.retain(|_, list| list.used + LIST_AGE > now);
        self.shrink();
        let (allowance, replaced) = (self.allowance(), self.replaced);
        let is_read = |state: &Arc<Snapshot>| Arc::weak_count(state) > 0;
        self.initial.retain(|(state, then)| is_read(state) && replaced - then <= allowance);
    }

    /// The newest snapshot is kept regardless of its size; otherwise each page of a large list
    /// would be read from the store.
    fn shrink(&mut self) {
        let allowance = self.allowance();
        while self.lists.len() > LISTS_MAX || (self.lists.len() > 1 && self.pinned() > allowance) {
            self.lists.pop_first();
        }
    }

    /// Bytes that list snapshots hold and the current state does not. The oldest one holds all
    /// bytes that several share, so these count once.
    fn pinned(&self) -> u64 {
        let own: u64 = self.lists.values().map(|list| list.snapshot.own_bytes as u64).sum();
        let oldest = self.lists.values().map(|list| list.replaced).min();
        own + oldest.map_or(0, |then| self.replaced - then)
    }

    fn allowance(&self) -> u64 {
        self.bytes_max.max(self.live / 4)
    }
}
