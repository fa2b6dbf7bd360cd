//! One resource in the cache: its current state, recent changes and watchers.
//!
//! River: feed → **resource** → get, list, watch.
//! Promise: reads of the current state take no lock. State, window and views change together under
//! one short lock, so a watcher that starts from a snapshot continues exactly after it (R23, R24).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;
use headwater_api::{EventType, Object, Revision};
use headwater_store::lock::lock;
use headwater_store::{ChangeKind, Key, Record};
use tokio::time::Instant;

use crate::Error;
use crate::change::{ObjectChange, WatchEvent};
use crate::decoder::{DecodedChange, DecodedValue, ObjectDecoder};
use crate::load::ResourceLoad;
use crate::retained::RetainedSnapshots;
use crate::snapshot::{Objects, Snapshot};
use crate::unreadable::{Invalid, UnreadableValues};
use crate::view::{BatchBudget, Filter, ScheduledWakeup, View, ViewEnd, Views, select};
use crate::window::{Bounds, Window};

/// One resource.
pub struct Resource {
    prefix: String,
    state: ArcSwap<Snapshot>,
    hub: Mutex<Hub>,
    /// The definition was removed: the resource is dropped once it is empty.
    retired: AtomicBool,
    /// Watchers that joined and have not left.
    joined: AtomicUsize,
    /// Counters for metrics.
    pub counters: Counters,
}

/// Counters for metrics.
#[derive(Default, Debug)]
pub struct Counters {
    /// Changes received from the store.
    pub received: AtomicU64,
    /// Events added to views.
    pub dispatched: AtomicU64,
    /// How often the resource was loaded from the store.
    pub initialized: AtomicU64,
}

struct Hub {
    decoder: ObjectDecoder,
    /// Stored bytes of the objects that the decoder transformed, by key.
    raw: HashMap<String, Bytes>,
    window: Window,
    views: Views,
    retained: RetainedSnapshots,
}

/// A change and the stored bytes of its new value.
type StoredChange<'a> = (DecodedValue<Arc<ObjectChange>>, &'a Bytes);

/// Why changes could not be applied.
pub(crate) enum ApplyError {
    /// A change does not follow the known state: the store skipped one (R20).
    Gap(Key),
    /// The last state of an object cannot be read again.
    Unreadable(Error),
}

/// The maximum number of changes visited while holding the lock.
const SCAN_MAX: usize = 1_000;

impl Resource {
    pub(crate) fn new(
        prefix: &str,
        decoder: ObjectDecoder,
        revision: Revision,
        bounds: Bounds,
    ) -> Self {
        Resource {
            prefix: prefix.to_owned(),
            state: ArcSwap::from_pointee(Snapshot::new(Objects::default(), revision)),
            hub: Mutex::new(Hub {
                decoder,
                raw: HashMap::new(),
                window: Window::new(revision, bounds),
                views: Views::default(),
                retained: RetainedSnapshots::new(0, bounds.bytes),
            }),
            retired: AtomicBool::new(false),
            joined: AtomicUsize::new(0),
            counters: Counters::default(),
        }
    }

    /// The prefix of its keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }

    /// The state as of the last change of this resource. [`crate::Cache::snapshot`] adds the
    /// revision that the entire cache has reached.
    pub(crate) fn state(&self) -> Arc<Snapshot> {
        self.state.load_full()
    }

    /// The revision of the last change of this resource.
    pub fn changed(&self) -> Revision {
        self.state.load().revision()
    }

    /// Every change after `revision`, oldest first, and the revision of the state that they lead
    /// to; `None` if the window does not reach back that far: read the snapshot instead.
    pub fn changes_after(&self, revision: Revision) -> Option<(Vec<Arc<ObjectChange>>, Revision)> {
        let hub = self.hub();
        let changes = hub.window.after(revision)?.cloned().collect();
        Some((changes, self.changed()))
    }

    /// The maximum number of changes in the window.
    pub fn capacity(&self) -> usize {
        self.hub().window.capacity()
    }

    /// The watched selections and their number of watchers.
    pub fn census(&self) -> Vec<(Filter, usize)> {
        self.hub().views.census()
    }

    /// The number of watchers.
    pub fn watchers(&self) -> usize {
        self.hub().views.watchers()
    }

    /// Whether there may be so many watchers. Takes no lock.
    pub fn may_have_watchers(&self, count: usize) -> bool {
        self.joined.load(Ordering::Relaxed) >= count
    }

    /// How many watchers a change of the object with this namespace and name may concern. Watchers
    /// that select by label or field are not counted: it depends on the object.
    pub fn audience(&self, namespace: &str, name: &str) -> usize {
        self.hub().views.audience(namespace, name)
    }

    /// Whether the stored bytes of an object differ from the decoded ones: writing the object
    /// again, even unchanged, changes the stored bytes.
    pub fn is_stale(&self, key: &str) -> bool {
        self.hub().raw.contains_key(key)
    }

    /// An empty state to load from the store.
    pub(crate) fn load(&self) -> ResourceLoad {
        ResourceLoad::new(self.hub().decoder.clone())
    }

    /// Replaces the state by one loaded from the store. Ends every watcher, because the changes
    /// between its position and the new state are unknown (R26).
    pub(crate) fn fill(
        &self,
        read: ResourceLoad,
        revision: Revision,
        end: ViewEnd,
    ) -> Result<(), Error> {
        let mut hub = self.hub();
        let load = match hub.decoder.is_identical(&read.decoder) {
            true => read,
            false => self.read_again(&read, hub.decoder.clone())?, // the decoder changed meanwhile
        };
        hub.views.close(end);
        self.begin(&mut hub, load, revision);
        self.counters.initialized.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn read_again(
        &self,
        read: &ResourceLoad,
        decoder: ObjectDecoder,
    ) -> Result<ResourceLoad, Error> {
        let unreadable = read.unreadable.clone();
        let mut again = ResourceLoad { unreadable, ..ResourceLoad::new(decoder) };
        for object in read.objects.iter("", None) {
            again
                .read_again(object, &read.raw)
                .map_err(|source| self.unreadable(object.key(), source))?;
        }
        Ok(again)
    }

    /// Starts with a state and an empty window.
    fn begin(&self, hub: &mut Hub, load: ResourceLoad, revision: Revision) {
        let ResourceLoad { decoder, objects, raw, unreadable } = load;
        if unreadable.len() > 0 {
            let (resource, count) = (&self.prefix, unreadable.len());
            tracing::error!(%resource, count, "some stored values cannot be read");
        }
        let live = objects.iter("", None).map(|object| object.as_slice().len() as u64).sum();
        let bounds = hub.window.bounds();
        hub.window = Window::new(revision, bounds);
        hub.retained = RetainedSnapshots::new(live, bounds.bytes);
        (hub.decoder, hub.raw) = (decoder, raw);
        let snapshot = Snapshot::new(objects, revision).with_unreadable(unreadable);
        self.state.store(Arc::new(snapshot));
    }

    /// Replaces the decoder. Ends every watcher, because its selection may have another meaning
    /// now. Stored values do not change.
    ///
    /// Objects are decoded again before the lock is taken, so that changes of other resources do
    /// not wait; only objects that changed meanwhile are decoded under the lock.
    pub(crate) fn set_decoder(&self, decoder: ObjectDecoder) -> Result<(), Error> {
        let (before, raw) = {
            let mut hub = self.hub();
            if hub.decoder.is_same(&decoder) {
                hub.views.close(ViewEnd::Closed);
                return Ok(());
            }
            (self.state(), hub.raw.clone())
        };
        let objects = before.objects.clone();
        let mut again =
            self.read_again(&ResourceLoad { objects, raw, ..ResourceLoad::default() }, decoder)?;
        let mut hub = self.hub();
        let state = self.state();
        if !Arc::ptr_eq(&state, &before) {
            for object in before.iter("", None).filter(|old| state.get(old.key()).is_none()) {
                again.forget(object.key());
            }
            for object in state.iter("", None) {
                if again.objects.get(object.key()).map(|again| again.revision())
                    != Some(object.revision())
                {
                    let read = again.read_again(object, &hub.raw);
                    read.map_err(|source| self.unreadable(object.key(), source))?;
                }
            }
        }
        again.unreadable = state.unreadable.clone();
        hub.views.close(ViewEnd::Closed);
        self.begin(&mut hub, again, state.revision());
        Ok(())
    }

    /// Ends every watcher after its pending events, because the definition of the resource was
    /// removed. The resource is dropped once it is empty.
    pub(crate) fn retire(&self) {
        // In this order: a watcher that joins after the views were closed sees the flag.
        self.retired.store(true, Ordering::Release);
        self.hub().views.close(ViewEnd::Closed);
    }

    pub(crate) fn restore(&self) {
        self.retired.store(false, Ordering::Release);
    }

    pub(crate) fn is_removable(&self) -> bool {
        self.retired.load(Ordering::Acquire) && self.state().is_empty()
    }

    /// Applies changes of this resource in order, all or none, and wakes the watchers. Returns the
    /// wake-ups that are due later.
    pub(crate) fn apply(
        &self,
        stored: &[headwater_store::Change],
    ) -> Result<Vec<ScheduledWakeup>, ApplyError> {
        let mut guard = self.hub();
        let hub = &mut *guard;
        let state = self.state();
        let mut next = (state.objects.clone(), state.unreadable.clone());
        let mut changes = Vec::with_capacity(stored.len());
        for stored in stored {
            changes.extend(self.advance(&mut next, stored, &hub.decoder)?);
        }
        let revision = stored.last().map_or(state.revision(), |last| last.revision);
        // Before the events are published: a watcher that received an event finds it in the state.
        let (objects, unreadable) = next;
        let snapshot = Snapshot::new(objects, revision).with_unreadable(unreadable);
        self.state.store(Arc::new(snapshot));
        for (change, value) in &changes {
            hub.note_stored(change, value);
            let taken = hub.add(&change.value);
            self.counters.dispatched.fetch_add(taken as u64, Ordering::Relaxed);
        }
        self.counters.received.fetch_add(stored.len() as u64, Ordering::Relaxed);
        Ok(hub.views.publish(revision))
    }

    /// Applies one change to a state. The change must follow the state. Returns nothing if neither
    /// the previous value nor the new one can be read.
    fn advance<'a>(
        &self,
        (objects, unreadable): &mut (Objects, UnreadableValues),
        stored: &'a headwater_store::Change,
        decoder: &ObjectDecoder,
    ) -> Result<Option<StoredChange<'a>>, ApplyError> {
        let name = self.name_of(&stored.key);
        let prev = objects.get(name).cloned();
        let known = prev.as_ref().map(|prev| prev.revision()).or_else(|| unreadable.get(name));
        if !continues(stored, known) {
            return Err(ApplyError::Gap(stored.key.clone()));
        }
        let DecodedChange { change, differs, invalid } = decoder
            .change(name, stored, prev)
            .map_err(|source| ApplyError::Unreadable(self.unreadable(name, source)))?;
        match invalid {
            None => unreadable.remove(name),
            Some(why) => {
                let key = &stored.key;
                tracing::error!(%key, "a stored value cannot be read; not serving it: {why}");
                unreadable.insert(name, stored.revision);
            }
        }
        let Some(change) = change else { return Ok(None) };
        match change.kind() {
            ChangeKind::Deleted => objects.remove(name),
            ChangeKind::Created | ChangeKind::Updated => {
                objects.insert(Arc::clone(change.object()))
            }
        };
        Ok(Some((DecodedValue { value: Arc::new(change), differs }, &stored.value)))
    }

    /// The key of an object within the resource.
    fn name_of<'a>(&self, key: &'a Key) -> &'a str {
        &key.as_str()[self.prefix.len()..]
    }

    fn unreadable(&self, name: &str, source: Invalid) -> Error {
        Error::Unreadable { key: Key::in_collection(&self.prefix, name), source }
    }

    /// Drops old changes from the window and the views. A compaction drops no change from the
    /// window, so it does not affect active watchers; new watchers (see `Watcher::new`) and reads
    /// below it are refused.
    pub(crate) fn expire(&self, now: Instant, compacted: Revision) {
        let mut hub = self.hub();
        hub.window.expire(now);
        hub.views.forget(hub.window.complete_after());
        hub.retained.expire(now, compacted);
    }

    /// Wakes every watcher.
    pub(crate) fn wake_watchers(&self) {
        self.hub().views.wake_watchers();
    }

    /// Ends every watcher.
    pub(crate) fn close(&self) {
        self.hub().views.close(ViewEnd::Closed);
    }

    /// Keeps a snapshot for the later pages of a list.
    pub fn keep(&self, snapshot: &Snapshot) {
        self.hub().retained.keep(snapshot);
    }

    /// Keeps a state while a watcher reads its initial events, within the memory limit.
    pub(crate) fn keep_initial(&self, state: &Arc<Snapshot>) -> Weak<Snapshot> {
        self.hub().retained.keep_initial(state)
    }

    /// The state at an earlier revision, if it is kept or the window reaches back to it.
    pub(crate) fn recall(&self, revision: Revision) -> Option<Snapshot> {
        let mut hub = self.hub();
        if let Some(snapshot) = hub.retained.get(revision) {
            return Some(snapshot);
        }
        let state = self.state();
        let undone: Vec<Arc<ObjectChange>> = hub.window.back_to(revision)?.cloned().collect();
        drop(hub); // undoing takes time
        let mut objects = state.objects.clone();
        for change in undone {
            match change.prev() {
                Some(prev) => objects.insert(Arc::clone(prev)),
                None => objects.remove(change.object().key()),
            };
        }
        Some(Snapshot::new(objects, revision))
    }

    /// A snapshot of records read from the store.
    pub(crate) fn snapshot_of(&self, records: &[Record], revision: Revision) -> Snapshot {
        let mut load = self.load();
        for record in records {
            load.add(self.name_of(&record.key), record);
        }
        let ResourceLoad { objects, unreadable, .. } = load;
        let mut snapshot = Snapshot::new(objects, revision).with_unreadable(unreadable);
        snapshot.own_bytes = records.iter().map(|record| record.value.len()).sum();
        snapshot
    }

    /// The object of a record read from the store.
    pub fn object_of(&self, record: &Record) -> Result<Object, Error> {
        let decoder = self.hub().decoder.clone();
        let name = self.name_of(&record.key);
        decoder
            .object(name, &record.value, record.revision, EventType::Modified)
            .map(|decoded| decoded.value)
            .map_err(|source| self.unreadable(name, source))
    }

    /// Joins the view of a filter. Returns the view and the current state; the view has every event
    /// after that state.
    pub(crate) fn join(&self, filter: &Filter) -> (Arc<View>, Arc<Snapshot>) {
        let mut hub = self.hub();
        let state = self.state();
        let view = hub.views.join(filter, state.revision());
        self.joined.fetch_add(1, Ordering::Relaxed);
        if self.retired.load(Ordering::Acquire) {
            hub.views.close(ViewEnd::Closed); // the resource was retired before this watcher joined
        }
        (view, state)
    }

    pub(crate) fn leave(&self, view: &Arc<View>) {
        self.joined.fetch_sub(1, Ordering::Relaxed);
        self.hub().views.leave(view);
    }

    /// Reads events after `position` from the window, for a view that does not reach back that far.
    /// Returns the new position even if no event matches.
    pub(crate) fn read_past(
        &self,
        filter: &Filter,
        position: Revision,
        events: &mut Vec<WatchEvent>,
    ) -> Option<Revision> {
        let hub = self.hub();
        let (mut reached, mut budget) = (position, BatchBudget::default());
        let mut changes = hub.window.after(position)?.peekable();
        let mut visited = 0;
        while let Some(change) = changes.next() {
            let revision = change.revision();
            if let Some(event) = select(filter, change) {
                let starts_revision = events.last().is_none_or(|last| last.revision() < revision);
                if !budget.admits(event.size()) && starts_revision {
                    return Some(reached);
                }
                events.push(event);
            }
            visited += 1;
            // Changes may share a revision; the position moves past all of them or none.
            if changes.peek().is_none_or(|next| next.revision() > revision) {
                reached = revision;
                if visited >= SCAN_MAX {
                    break;
                }
            }
        }
        // Every change of the resource was visited.
        if hub.window.after(reached).is_some_and(|mut rest| rest.next().is_none()) {
            reached = reached.max(self.state().revision());
        }
        Some(reached)
    }

    /// The oldest revision from which a watch can start without the store's history.
    pub fn window_edge(&self) -> Revision {
        self.hub().window.complete_after()
    }

    /// Decodes a change from the store's history; `None` if it changes nothing that can be read.
    pub(crate) fn decode_past(
        &self,
        stored: &headwater_store::Change,
    ) -> Result<Option<ObjectChange>, Error> {
        let decoder = self.hub().decoder.clone();
        let name = self.name_of(&stored.key);
        decoder.past_change(name, stored).map_err(|source| self.unreadable(name, source))
    }
}

impl Hub {
    /// Adds a change to the window and to the views it concerns. Returns the number of views.
    fn add(&mut self, change: &Arc<ObjectChange>) -> usize {
        self.retained.note(change);
        self.window.push(Arc::clone(change));
        self.views.offer(change, &self.decoder.fields, self.window.complete_after())
    }

    /// Remembers the stored bytes of an object that the decoder transformed.
    fn note_stored(&mut self, change: &DecodedValue<Arc<ObjectChange>>, stored: &Bytes) {
        let name = change.value.object().key();
        match change.differs {
            true => self.raw.insert(name.to_owned(), stored.clone()),
            false => self.raw.remove(name),
        };
    }
}

/// Whether a change follows the known state, of which this is the revision. If the store includes
/// the replaced version, it must be the known one.
fn continues(change: &headwater_store::Change, known: Option<Revision>) -> bool {
    match (change.kind, known, &change.prev) {
        (ChangeKind::Created, known, _) => known.is_none(),
        (_, None, _) => false,
        (_, Some(known), Some(prev)) => known == prev.revision,
        (_, Some(_), None) => true,
    }
}
