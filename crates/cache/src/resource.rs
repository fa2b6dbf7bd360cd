//! One resource in the cache: its current state, its recent past, its watchers.
//!
//! River: feed → **resource** → get, list, watch.
//! Promise: reads of the current state take no lock. State, window and views move together under
//! one short lock, so a watcher that starts from a snapshot continues exactly after it (R23, R24).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use headwater_api::kind::Field;
use headwater_api::scan::Malformed;
use headwater_api::{EventType, Object, Revision};
use headwater_store::{ChangeKind, Key, Record};
use tokio::time::Instant;

use crate::Error;
use crate::change::{Change, Event};
use crate::snapshot::{Objects, Snapshot};
use crate::view::{Filter, READ_MAX, Read, View, Views, select};
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
    /// Snapshots that pages of a list refer to, by revision, and when each was last asked for.
    kept: BTreeMap<Revision, (Snapshot, Instant)>,
}

/// How stored bytes are read.
#[derive(Clone, Default)]
pub struct Shape {
    /// The selectable fields.
    pub fields: Arc<[Field]>,
    /// What is made of the bytes first, where they are not read as they were stored.
    pub form: Option<Arc<dyn Form>>,
}

/// The form in which objects are read, where it can differ from the stored one: a custom kind
/// prunes and defaults what was stored under an earlier definition.
pub trait Form: Send + Sync {
    /// The bytes in the form that is read; `None` if they are in it already.
    fn settle(&self, stored: &[u8]) -> Option<Vec<u8>>;
}

impl Shape {
    /// Ordinary objects with these selectable fields.
    pub fn plain(fields: &[Field]) -> Shape {
        Shape { fields: fields.into(), form: None }
    }

    fn settle(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.form.as_ref().and_then(|form| form.settle(stored))
    }
}

/// Snapshots kept for lists that are read page by page. When one more is needed, the oldest is
/// dropped; its pages are then rebuilt from the window or from the store's history.
const KEPT_MAX: usize = 64;

/// How long a snapshot is kept after its last page was read.
const KEPT_AGE: Duration = Duration::from_secs(300);

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
                kept: BTreeMap::new(),
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
        self.hub.lock().expect("the hub is never left half-changed")
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

    /// Fills an empty resource from stored records.
    pub(crate) fn fill(&self, records: Vec<Record>, revision: Revision) -> Result<(), Error> {
        let mut hub = self.hub();
        let shape = hub.shape.clone();
        let mut objects = Objects::default();
        hub.raw.clear();
        for record in records {
            let (object, is_raw) = decode(&record, &shape)?;
            if !is_raw {
                hub.raw.insert(object.key().to_owned(), record.value);
            }
            objects.insert(Arc::new(object));
        }
        let bounds = hub.window.bounds();
        hub.window = Window::new(revision, bounds);
        hub.kept.clear();
        hub.views.close();
        self.state.store(Arc::new(Snapshot::new(objects, revision)));
        self.counters.initialized.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads objects in another shape from now on. Every watcher ends: its selection may mean
    /// something else now. What is stored stays as it is.
    pub(crate) fn reshape(&self, shape: Shape) -> Result<(), Error> {
        let mut hub = self.hub();
        hub.views.close();
        let same_fields = *hub.shape.fields == *shape.fields;
        if same_fields && hub.shape.form.is_none() && shape.form.is_none() {
            return Ok(());
        }
        hub.shape = shape.clone();
        let state = self.state();
        let mut objects = Objects::default();
        let mut raw = HashMap::new();
        for object in state.iter("", None) {
            let malformed = |source| self.malformed(object.key(), source);
            let stored = match hub.raw.remove(object.key()) {
                Some(stored) => stored,
                None => object.stored().map_err(malformed)?.into(),
            };
            let settled = shape.settle(&stored);
            let bytes = settled.as_deref().unwrap_or(&stored);
            let again = Object::decode(bytes, object.revision(), object.event(), &shape.fields)
                .map_err(malformed)?;
            if settled.is_some() {
                raw.insert(again.key().to_owned(), stored);
            }
            objects.insert(Arc::new(again));
        }
        let bounds = hub.window.bounds();
        hub.window = Window::new(state.revision(), bounds);
        hub.kept.clear();
        hub.raw = raw;
        self.state.store(Arc::new(Snapshot::new(objects, state.revision())));
        Ok(())
    }

    /// Ends every watcher, after what it has not been given yet: nobody defines this resource any
    /// more. It is forgotten when it is empty.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.hub().views.close();
    }

    pub(crate) fn restore(&self) {
        self.retired.store(false, Ordering::Release);
    }

    pub(crate) fn is_forgettable(&self) -> bool {
        self.retired.load(Ordering::Acquire) && self.state().is_empty()
    }

    /// Whether an object is stored in another form than it is read in: writing it again, even
    /// unchanged, changes what is stored.
    pub fn is_stale(&self, key: &str) -> bool {
        self.hub().raw.contains_key(key)
    }

    /// Applies changes of this resource, in order, and wakes the watchers they concern.
    pub(crate) fn apply(&self, changes: &[headwater_store::Change]) -> Result<(), Error> {
        let mut hub = self.hub();
        let shape = hub.shape.clone();
        let state = self.state();
        let mut objects = state.objects.clone();
        let mut revision = state.revision();
        for stored in changes {
            let name = &stored.key.as_str()[self.prefix.len()..];
            let prev = objects.get(name).cloned();
            let settled = settle(stored, &shape);
            match &settled {
                Some(_) => hub.raw.insert(name.to_owned(), stored.value.clone()),
                None => hub.raw.remove(name),
            };
            let value = settled.as_deref().unwrap_or(&stored.value);
            let change = Change::decode(stored, value, prev, &shape.fields)
                .map_err(|source| self.malformed(name, source))?;
            match change.kind() {
                ChangeKind::Deleted => drop(objects.remove(name)),
                ChangeKind::Created | ChangeKind::Updated => {
                    objects.insert(Arc::clone(change.object()));
                }
            }
            revision = change.revision();
            let change = Arc::new(change);
            hub.window.push(Arc::clone(&change));
            let taken = hub.views.offer(&change, &shape.fields);
            self.counters.dispatched.fetch_add(taken as u64, Ordering::Relaxed);
        }
        self.counters.received.fetch_add(changes.len() as u64, Ordering::Relaxed);
        self.state.store(Arc::new(Snapshot::new(objects, revision)));
        hub.views.announce(revision);
        Ok(())
    }

    fn malformed(&self, name: &str, source: Malformed) -> Error {
        Error::Malformed { key: Key::in_collection(&self.prefix, name), source }
    }

    /// Forgets what is too old, in the window and in the views.
    pub(crate) fn expire(&self, now: Instant, compacted: Revision) {
        let mut hub = self.hub();
        let before = hub.window.complete_after();
        hub.window.expire(now);
        if compacted > before {
            hub.window.forget(compacted);
        }
        let edge = hub.window.complete_after();
        if edge > before {
            hub.views.forget(edge);
        }
        hub.kept = hub.kept.split_off(&compacted);
        hub.kept.retain(|_, (_, used)| *used + KEPT_AGE > now);
    }

    /// Ends every watcher.
    pub(crate) fn close(&self) {
        self.hub().views.close();
    }

    /// Keeps a snapshot for the later pages of a list.
    pub fn keep(&self, snapshot: &Snapshot) {
        let mut hub = self.hub();
        hub.kept.insert(snapshot.revision(), (snapshot.clone(), Instant::now()));
        while hub.kept.len() > KEPT_MAX {
            hub.kept.pop_first();
        }
    }

    /// The state at an earlier revision, if it is kept or the window reaches back to it.
    pub(crate) fn recall(&self, revision: Revision) -> Option<Snapshot> {
        let mut hub = self.hub();
        if let Some((kept, used)) = hub.kept.get_mut(&revision) {
            *used = Instant::now();
            return Some(kept.clone());
        }
        let state = self.state();
        let mut objects = state.objects.clone();
        for change in hub.window.back_to(revision)? {
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
            objects.insert(Arc::new(decode(record, &shape)?.0));
        }
        Ok(Snapshot::new(objects, revision))
    }

    /// Joins the view of a filter, and the state at that moment: the view answers for every event
    /// after it.
    pub(crate) fn join(&self, filter: &Filter) -> (Arc<View>, Arc<Snapshot>) {
        let mut hub = self.hub();
        let state = self.state();
        let view = hub.views.join(filter, state.revision());
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
        let mut reached = position;
        for change in hub.window.after(position)?.take(READ_MAX) {
            reached = change.revision();
            events.extend(select(filter, change));
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
        let decode = || {
            let prev = match &stored.prev {
                Some(prev) => Some(Arc::new(settled(&prev.value, prev.revision, &shape)?)),
                None => None,
            };
            let value = settle(stored, &shape);
            let value = value.as_deref().unwrap_or(&stored.value);
            Change::decode(stored, value, prev, &shape.fields)
        };
        decode().map_err(|source| Error::Malformed { key: stored.key.clone(), source })
    }
}

/// The value of a change in the form that is read, where that is another one.
fn settle(stored: &headwater_store::Change, shape: &Shape) -> Option<Vec<u8>> {
    match stored.kind {
        ChangeKind::Deleted => None, // the state before says it all
        ChangeKind::Created | ChangeKind::Updated => shape.settle(&stored.value),
    }
}

fn settled(stored: &[u8], revision: Revision, shape: &Shape) -> Result<Object, Malformed> {
    let settled = shape.settle(stored);
    let bytes = settled.as_deref().unwrap_or(stored);
    Object::decode(bytes, revision, EventType::Modified, &shape.fields)
}

/// A record as an object, and whether its bytes are those that are stored.
fn decode(record: &Record, shape: &Shape) -> Result<(Object, bool), Error> {
    let settled = shape.settle(&record.value);
    let bytes = settled.as_deref().unwrap_or(&record.value);
    let object = Object::decode(bytes, record.revision, EventType::Added, &shape.fields)
        .map_err(|source| Error::Malformed { key: record.key.clone(), source })?;
    Ok((object, settled.is_none()))
}

/// What a view and the window behind it answer to a cursor.
pub(crate) enum Tail {
    /// Events were added, and the cursor moves to this revision.
    Moved(Revision),
    /// Nothing is there yet.
    Wait,
    /// Memory does not reach back that far.
    Behind,
}

impl Resource {
    /// Reads on from `position`: from the view, else from the window.
    pub(crate) fn tail(&self, view: &View, position: Revision, events: &mut Vec<Event>) -> Tail {
        match view.read(position, events) {
            Read::Nothing => Tail::Wait,
            Read::Events => Tail::Moved(events.last().map_or(position, Event::revision)),
            Read::Behind => match self.read_past(&view.filter, position, events) {
                Some(reached) if reached == position && events.is_empty() => Tail::Wait,
                Some(reached) => Tail::Moved(reached),
                None => Tail::Behind,
            },
        }
    }
}
