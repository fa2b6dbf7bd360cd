//! One resource in the cache: its current state, its recent past, its watchers.
//!
//! River: feed → **resource** → get, list, watch.
//! Promise: reads of the current state take no lock. State, window and views move together under
//! one short lock, so a watcher that starts from a snapshot continues exactly after it (R23, R24).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use arc_swap::ArcSwap;
use bytes::Bytes;
use headwater_api::{Object, Revision};
use headwater_json::scan::Malformed;
use headwater_store::lock::lock;
use headwater_store::{ChangeKind, Key, Record};
use tokio::time::Instant;

use crate::Error;
use crate::change::{Change, Event};
use crate::filling::Filling;
use crate::loans::Loans;
use crate::shape::{Settled, Shape};
use crate::snapshot::{Objects, Snapshot};
use crate::view::{End, Filter, NextRound, Portion, View, Views, select};
use crate::window::{Bounds, Window};

/// One resource.
pub struct Resource {
    prefix: String,
    state: ArcSwap<Snapshot>,
    hub: Mutex<Hub>,
    /// Its definition is gone: when it is empty, it may be forgotten.
    retired: AtomicBool,
    /// Counted for metrics.
    pub counters: Counters,
}

/// What happened, for metrics.
#[derive(Default, Debug)]
pub struct Counters {
    /// Changes that came from the store.
    pub received: AtomicU64,
    /// Events handed to views.
    pub dispatched: AtomicU64,
    /// Times the resource was filled from the store.
    pub initialized: AtomicU64,
}

struct Hub {
    shape: Shape,
    /// Stored bytes of the objects that are read in another form, by key.
    raw: HashMap<String, Bytes>,
    window: Window,
    views: Views,
    /// Up to here, events were dropped from every view.
    views_swept: Revision,
    loans: Loans,
}

/// Why changes could not be applied.
pub(crate) enum Fault {
    /// They do not continue what is here: something between was never told. (R20)
    Hole(Key),
    /// A value is not an object.
    Malformed(Error),
}

/// Changes of the window that are looked at while the lock is held once.
const SCAN_MAX: usize = 1_000;

impl Resource {
    pub(crate) fn new(prefix: &str, shape: Shape, revision: Revision, bounds: Bounds) -> Self {
        Resource {
            prefix: prefix.to_owned(),
            state: ArcSwap::from_pointee(Snapshot::new(Objects::default(), revision)),
            hub: Mutex::new(Hub {
                shape,
                raw: HashMap::new(),
                window: Window::new(revision, bounds),
                views: Views::default(),
                views_swept: Revision::ZERO,
                loans: Loans::new(0, bounds.bytes),
            }),
            retired: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    /// What its keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }

    /// The state as of its own last change. [`crate::Cache::snapshot`] adds how far the whole
    /// cache has got.
    pub(crate) fn state(&self) -> Arc<Snapshot> {
        self.state.load_full()
    }

    /// The revision of its own last change.
    pub fn changed(&self) -> Revision {
        self.state.load().revision()
    }

    /// How many changes the window may hold.
    pub fn capacity(&self) -> usize {
        self.hub().window.capacity()
    }

    /// The watched selections, each with its number of watchers.
    pub fn census(&self) -> Vec<(Filter, usize)> {
        self.hub().views.census()
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.hub().views.watchers()
    }

    /// Whether an object is stored in another form than it is read in: writing it again, even
    /// unchanged, changes what is stored.
    pub fn is_stale(&self, key: &str) -> bool {
        self.hub().raw.contains_key(key)
    }

    /// An empty state to be filled from the store.
    pub(crate) fn filling(&self) -> Filling {
        Filling::new(self.hub().shape.clone())
    }

    /// Puts what was read from the store in place. Every watcher ends: what happened between its
    /// position and this state is not known here (R26).
    pub(crate) fn fill(&self, read: Filling, revision: Revision, end: End) -> Result<(), Error> {
        let mut hub = self.hub();
        let filling = match hub.shape.is_identical(&read.shape) {
            true => read,
            false => self.read_again(&read, hub.shape.clone())?, // it was defined meanwhile
        };
        hub.views.close(end);
        self.begin(&mut hub, filling, revision);
        self.counters.initialized.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn read_again(&self, read: &Filling, shape: Shape) -> Result<Filling, Error> {
        let mut again = Filling::new(shape);
        for object in read.objects.iter("", None) {
            again
                .read_again(object, &read.raw)
                .map_err(|source| self.malformed(object.key(), source))?;
        }
        Ok(again)
    }

    /// A state without a past.
    fn begin(&self, hub: &mut Hub, filling: Filling, revision: Revision) {
        let Filling { shape, objects, raw } = filling;
        let live = objects.iter("", None).map(|object| object.as_slice().len() as u64).sum();
        let bounds = hub.window.bounds();
        hub.window = Window::new(revision, bounds);
        hub.loans = Loans::new(live, bounds.bytes);
        (hub.shape, hub.raw) = (shape, raw);
        self.state.store(Arc::new(Snapshot::new(objects, revision)));
    }

    /// Reads objects in another shape from now on. Every watcher ends: its selection may mean
    /// something else now. What is stored stays as it is.
    ///
    /// Objects are read again before the lock is taken, so that changes of other resources do not
    /// wait; only what changed meanwhile is read under it.
    pub(crate) fn reshape(&self, shape: Shape) -> Result<(), Error> {
        let (before, raw) = {
            let mut hub = self.hub();
            if hub.shape.is_same(&shape) {
                hub.views.close(End::Closed);
                return Ok(());
            }
            (self.state(), hub.raw.clone())
        };
        let objects = before.objects.clone();
        let mut again = self.read_again(&Filling { objects, raw, ..Filling::default() }, shape)?;
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
                    read.map_err(|source| self.malformed(object.key(), source))?;
                }
            }
        }
        hub.views.close(End::Closed);
        self.begin(&mut hub, again, state.revision());
        Ok(())
    }

    /// Ends every watcher, after what it has not been given yet: nobody defines this resource any
    /// more. It is forgotten when it is empty.
    pub(crate) fn retire(&self) {
        // In this order: whoever joins after the views were closed finds the mark.
        self.retired.store(true, Ordering::Release);
        self.hub().views.close(End::Closed);
    }

    pub(crate) fn restore(&self) {
        self.retired.store(false, Ordering::Release);
    }

    pub(crate) fn is_forgettable(&self) -> bool {
        self.retired.load(Ordering::Acquire) && self.state().is_empty()
    }

    /// Applies changes of this resource, in order, and wakes the watchers they concern, but for
    /// those that are answered. All of the changes or none.
    pub(crate) fn apply(
        &self,
        stored: &[headwater_store::Change],
    ) -> Result<Vec<NextRound>, Fault> {
        let mut guard = self.hub();
        let hub = &mut *guard;
        let state = self.state();
        let mut objects = state.objects.clone();
        let mut changes = Vec::with_capacity(stored.len());
        for stored in stored {
            changes.push(self.advance(&mut objects, stored, &hub.shape)?);
        }
        let revision = changes.last().map_or(state.revision(), |change| change.it.revision());
        // Before any view is told: whoever saw an event finds it in the state.
        self.state.store(Arc::new(Snapshot::new(objects, revision)));
        for (change, stored) in changes.iter().zip(stored) {
            hub.note_form(change, &stored.value);
            let taken = hub.publish(&change.it);
            self.counters.dispatched.fetch_add(taken as u64, Ordering::Relaxed);
        }
        self.counters.received.fetch_add(changes.len() as u64, Ordering::Relaxed);
        Ok(hub.views.announce(revision))
    }

    /// Moves a state on by one change, which must continue it.
    fn advance(
        &self,
        objects: &mut Objects,
        stored: &headwater_store::Change,
        shape: &Shape,
    ) -> Result<Settled<Arc<Change>>, Fault> {
        let name = &stored.key.as_str()[self.prefix.len()..];
        let prev = objects.get(name).cloned();
        if !continues(stored, prev.as_deref()) {
            return Err(Fault::Hole(stored.key.clone()));
        }
        let change = shape
            .change(stored, prev)
            .map_err(|source| Fault::Malformed(self.malformed(name, source)))?;
        match change.it.kind() {
            ChangeKind::Deleted => objects.remove(name),
            ChangeKind::Created | ChangeKind::Updated => {
                objects.insert(Arc::clone(change.it.object()))
            }
        };
        Ok(Settled { it: Arc::new(change.it), differs: change.differs })
    }

    fn malformed(&self, name: &str, source: Malformed) -> Error {
        Error::Malformed { key: Key::in_collection(&self.prefix, name), source }
    }

    /// Forgets what is too old, in the window and in the views. A compaction takes no change from
    /// the window: who follows is not disturbed by it. Who starts below it is refused (see
    /// `Watcher::new`), and so are reads.
    pub(crate) fn expire(&self, now: Instant, compacted: Revision) {
        let mut hub = self.hub();
        hub.window.expire(now);
        let edge = hub.window.complete_after();
        if edge > hub.views_swept {
            hub.views.forget(edge);
            hub.views_swept = edge;
        }
        hub.loans.expire(now, compacted);
    }

    /// Wakes every watcher.
    pub(crate) fn nudge(&self) {
        self.hub().views.nudge();
    }

    /// Ends every watcher.
    pub(crate) fn close(&self) {
        self.hub().views.close(End::Closed);
    }

    /// Keeps a snapshot for the later pages of a list.
    pub fn keep(&self, snapshot: &Snapshot) {
        self.hub().loans.keep(snapshot);
    }

    /// Remembers how many objects follow a place where a page of a kept snapshot ended: counting
    /// them again for each page of a large list costs as much as sending it.
    pub fn mark(&self, snapshot: &Snapshot, place: String, left: usize) {
        self.hub().loans.mark(snapshot.revision(), place, left);
    }

    /// How many objects follow such a place, if that is remembered.
    pub fn left_after(&self, snapshot: &Snapshot, place: &str) -> Option<usize> {
        self.hub().loans.left_after(snapshot.revision(), place)
    }

    /// Lends a state to a watcher that begins to read it, for as long as that is affordable.
    pub(crate) fn lend(&self, state: &Arc<Snapshot>) -> Weak<Snapshot> {
        self.hub().loans.lend(state)
    }

    /// The state at an earlier revision, if it is kept or the window reaches back to it.
    pub(crate) fn recall(&self, revision: Revision) -> Option<Snapshot> {
        let mut hub = self.hub();
        if let Some(kept) = hub.loans.kept(revision) {
            return Some(kept);
        }
        let state = self.state();
        let undone: Vec<Arc<Change>> = hub.window.back_to(revision)?.cloned().collect();
        drop(hub); // undoing takes a while
        let mut objects = state.objects.clone();
        for change in undone {
            match change.prev() {
                Some(prev) => objects.insert(Arc::clone(prev)),
                None => objects.remove(change.object().key()),
            };
        }
        Some(Snapshot::new(objects, revision))
    }

    /// A snapshot from records read from the store.
    pub(crate) fn snapshot_of(
        &self,
        records: &[Record],
        revision: Revision,
    ) -> Result<Snapshot, Error> {
        let shape = self.hub().shape.clone();
        let mut objects = Objects::default();
        for record in records {
            objects.insert(Arc::new(shape.record(record)?.it));
        }
        let mut snapshot = Snapshot::new(objects, revision);
        snapshot.own_bytes = records.iter().map(|record| record.value.len()).sum();
        Ok(snapshot)
    }

    /// Joins the view of a filter, and the state at that moment: the view answers for every event
    /// after it.
    pub(crate) fn join(&self, filter: &Filter) -> (Arc<View>, Arc<Snapshot>) {
        let mut hub = self.hub();
        let state = self.state();
        let view = hub.views.join(filter, state.revision());
        if self.retired.load(Ordering::Acquire) {
            hub.views.close(End::Closed); // it came too late to be ended with the others
        }
        (view, state)
    }

    pub(crate) fn leave(&self, view: &Arc<View>) {
        self.hub().views.leave(view);
    }

    /// Reads events after `position` from the window, up to where `view` takes over. The position
    /// reached is answered even if no event matched.
    pub(crate) fn read_past(
        &self,
        filter: &Filter,
        position: Revision,
        events: &mut Vec<Event>,
    ) -> Option<Revision> {
        let hub = self.hub();
        let (mut reached, mut portion) = (position, Portion::default());
        let mut changes = hub.window.after(position)?.peekable();
        let mut looked_at = 0;
        while let Some(change) = changes.next() {
            let revision = change.revision();
            if let Some(event) = select(filter, change) {
                let is_apart = events.last().is_none_or(|last| last.revision() < revision);
                if !portion.takes(event.size()) && is_apart {
                    return Some(reached);
                }
                events.push(event);
            }
            looked_at += 1;
            // Changes may share a revision; the position moves past all of them or none.
            if changes.peek().is_none_or(|next| next.revision() > revision) {
                reached = revision;
                if looked_at >= SCAN_MAX {
                    break;
                }
            }
        }
        // Everything up to the newest change of the resource was looked at.
        if hub.window.after(reached).is_some_and(|mut rest| rest.next().is_none()) {
            reached = reached.max(self.state().revision());
        }
        Some(reached)
    }

    /// The oldest revision a watch may start from without the store's help.
    pub fn window_edge(&self) -> Revision {
        self.hub().window.complete_after()
    }

    /// A change read from the store's history.
    pub(crate) fn decode_past(&self, stored: &headwater_store::Change) -> Result<Change, Error> {
        let shape = self.hub().shape.clone();
        shape.past_change(stored)
    }
}

impl Hub {
    /// Adds a change to the window and to the views it concerns. Answers how many those are.
    fn publish(&mut self, change: &Arc<Change>) -> usize {
        self.loans.note(change);
        self.window.push(Arc::clone(change));
        self.views.offer(change, &self.shape.fields, self.window.complete_after())
    }

    /// Remembers the stored bytes of an object that is read in another form.
    fn note_form(&mut self, change: &Settled<Arc<Change>>, stored: &Bytes) {
        let name = change.it.object().key();
        match change.differs {
            true => self.raw.insert(name.to_owned(), stored.clone()),
            false => self.raw.remove(name),
        };
    }
}

/// Whether a change follows from what is held. Where the store tells what it replaced, it must be
/// exactly that.
fn continues(change: &headwater_store::Change, held: Option<&Object>) -> bool {
    match (change.kind, held, &change.prev) {
        (ChangeKind::Created, held, _) => held.is_none(),
        (_, None, _) => false,
        (_, Some(held), Some(prev)) => held.revision() == prev.revision,
        (_, Some(_), None) => true,
    }
}
