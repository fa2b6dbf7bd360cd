//! Views: the events of one selection, shared by all its watchers.
//!
//! River: feed → **views** → watchers. Watchers with the same selection share one view, so matching
//! and the rewriting to ADDED and DELETED happen once per view, not once per watcher. An index
//! finds the views that a change may concern (S5.20).
//! Promise: the index omits only views whose selection does not match the change.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use headwater_api::kind::Field;
use headwater_api::marks::Marks;
use headwater_api::selector::{FieldSelector, LabelSelector, ShardSelector};
use headwater_api::{Object, Revision};
use headwater_store::lock::lock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::change::{EventBatch, ObjectChange, ViewTransition, WatchEvent};
use crate::progress::Progress;
use crate::wakeup::{WakeDecision, WakeupPacer};

/// Selects objects of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Only this namespace; empty selects all.
    pub namespace: String,
    /// The label selector.
    pub labels: LabelSelector,
    /// The field selector; it may also select the name and the namespace.
    pub fields: FieldSelector,
    /// The part of the objects by hash; `None` selects all.
    pub shard: Option<ShardSelector>,
}

impl Filter {
    /// Whether the filter selects an object.
    pub fn matches(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || object.namespace() == self.namespace)
            && self.labels.matches_object(object)
            && self.fields.matches(object)
            && self.shard.as_ref().is_none_or(|shard| shard.matches(object))
    }

    /// The marks that every selected object has.
    pub fn marks(&self) -> Marks {
        let mut marks = self.labels.marks();
        marks.add(self.fields.marks());
        marks
    }

    /// Whether the filter selects all objects of the namespace.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty() && self.shard.is_none()
    }

    /// The only namespace that can contain a match; empty means all.
    pub fn only_namespace(&self) -> &str {
        match self.namespace.as_str() {
            "" => self.fields.namespace().unwrap_or_default(),
            namespace => namespace,
        }
    }
}

/// The size of one batch: enough to fill a socket, but not more than may wait there for a slow
/// client.
#[derive(Default)]
pub(crate) struct BatchBudget {
    count: usize,
    bytes: usize,
}

const BATCH_MAX: usize = 128;
const BATCH_BYTES_MAX: usize = 64 << 10;

impl BatchBudget {
    /// Whether another item of this size fits. The first one always does.
    pub(crate) fn admits(&mut self, bytes: usize) -> bool {
        let full = self.count == BATCH_MAX || self.bytes + bytes > BATCH_BYTES_MAX;
        if full && self.count > 0 {
            return false;
        }
        self.count += 1;
        self.bytes += bytes;
        true
    }
}

/// The events of one selection, shared by its watchers.
pub(crate) struct View {
    pub(crate) filter: Filter,
    log: Mutex<Log>,
    /// The newest revision in the log; watchers wait on it.
    head: Progress,
    end: OnceLock<ViewEnd>,
    /// Changed only under the lock of the resource.
    watchers: AtomicUsize,
}

/// Why a view ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewEnd {
    /// The resource got another decoder or was reloaded: clients reconnect and resume.
    Closed,
    /// The store reverted to this revision: earlier events may no longer be true (R37).
    Reverted(Revision),
}

struct Log {
    events: VecDeque<WatchEvent>,
    /// Invariant: every event after this revision is in `events`.
    complete_after: Revision,
    /// The last batch and the position it was read from: the next watcher is probably at the same
    /// position.
    last: Option<(Revision, Arc<EventBatch>)>,
    pacer: WakeupPacer,
}

impl Log {
    /// Drops events up to `revision`. `complete_after` moves only when an event is dropped, so a
    /// view without events stays complete.
    fn forget(&mut self, revision: Revision) {
        while self.events.front().is_some_and(|oldest| oldest.revision() <= revision) {
            let dropped = self.events.pop_front().map_or(Revision::ZERO, |event| event.revision());
            self.complete_after = self.complete_after.max(dropped);
            self.last = None;
        }
    }

    /// The next batch after `position`. Events that share a revision are read together, so events
    /// that are not published yet are excluded.
    fn after(&self, position: Revision, published: Revision) -> Vec<WatchEvent> {
        // Most readers have read everything, and each event that a search visits is a cache miss.
        if self.events.back().is_none_or(|newest| newest.revision() <= position) {
            return Vec::new();
        }
        let first = self.events.partition_point(|event| event.revision() <= position);
        let (mut events, mut budget) = (Vec::<WatchEvent>::new(), BatchBudget::default());
        for event in self.events.range(first..).take_while(|e| e.revision() <= published) {
            let starts_revision =
                events.last().is_none_or(|last| last.revision() < event.revision());
            if !budget.admits(event.size()) && starts_revision {
                break;
            }
            events.push(event.clone());
        }
        events
    }
}

/// The result of reading a view at a cursor's position.
pub(crate) enum ViewRead {
    /// The next events.
    Events(Arc<EventBatch>),
    /// There is no event after the cursor yet.
    Nothing,
    /// Some events after the cursor were dropped, or precede the view.
    Behind,
}

/// The events of a view after a position.
pub(crate) struct PendingEvents {
    pub(crate) events: usize,
    /// When the oldest of them reached the cache.
    pub(crate) oldest: Option<Instant>,
    /// Whether the view has all events after the position.
    pub(crate) is_complete: bool,
}

impl View {
    fn new(filter: Filter, complete_after: Revision) -> View {
        View {
            filter,
            log: Mutex::new(Log {
                events: VecDeque::new(),
                complete_after,
                last: None,
                pacer: WakeupPacer::default(),
            }),
            head: Progress::new(),
            end: OnceLock::new(),
            watchers: AtomicUsize::new(1),
        }
    }

    /// Appends the event of this change, if it concerns the view, and drops events up to `edge`.
    fn offer(&self, change: &Arc<ObjectChange>, edge: Revision) -> bool {
        let Some(transition) = change.transition(|object| self.filter.matches(object)) else {
            return false;
        };
        let mut log = self.log();
        let last = log.events.back().map(|last| &last.change);
        if last.is_some_and(|last| Arc::ptr_eq(last, change)) {
            return false; // offered twice, through two index entries
        }
        log.forget(edge);
        log.events.push_back(WatchEvent { change: Arc::clone(change), transition });
        true
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Publishes all offered events. Wakes the watchers now, or returns when to wake them; does
    /// nothing if a wake-up is already scheduled.
    fn publish(&self, revision: Revision) -> Option<Instant> {
        let mut log = self.log();
        log.last = None;
        self.head.advance(revision);
        let wake = log.pacer.wake(self.watchers());
        drop(log);
        match wake {
            WakeDecision::Now => self.head.notify(),
            WakeDecision::At(then) => return Some(then),
            WakeDecision::AlreadyScheduled => {}
        }
        None
    }

    /// Executes a scheduled wake-up.
    fn wake_scheduled(&self) {
        // In this order: events published after this line schedule the next wake-up.
        self.log().pacer.begin();
        self.head.notify();
    }

    /// Wakes the watchers although there are no new events.
    fn wake_watchers(&self) {
        self.head.notify();
    }

    /// Reads events after `position`.
    pub(crate) fn read(&self, position: Revision) -> ViewRead {
        let mut log = self.log();
        if position < log.complete_after {
            return ViewRead::Behind;
        }
        if let Some((at, last)) = &log.last
            && *at == position
        {
            return ViewRead::Events(Arc::clone(last));
        }
        let events = log.after(position, self.head.get());
        if events.is_empty() {
            return ViewRead::Nothing;
        }
        let events = EventBatch::new(events);
        if self.watchers() > 1 {
            log.last = Some((position, Arc::clone(&events)));
        }
        ViewRead::Events(events)
    }

    fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// The events after a position.
    pub(crate) fn pending(&self, position: Revision) -> PendingEvents {
        let log = self.log();
        let first = log.events.partition_point(|event| event.revision() <= position);
        PendingEvents {
            events: log.events.len() - first,
            oldest: log.events.get(first).map(|event| event.change.at),
            is_complete: position >= log.complete_after,
        }
    }

    /// Drops events up to `revision`, as the window did.
    fn forget(&self, revision: Revision) {
        self.log().forget(revision);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// Ends every watcher of the view.
    fn close(&self, end: ViewEnd) {
        let _ = self.end.set(end); // the first reason wins
        self.head.set(Revision(u64::MAX));
    }

    /// Why the view ended, if it did.
    pub(crate) fn end(&self) -> Option<ViewEnd> {
        self.end.get().copied()
    }
}

/// A wake-up that is due later.
pub(crate) struct ScheduledWakeup {
    pub(crate) at: Instant,
    view: Arc<View>,
}

impl ScheduledWakeup {
    pub(crate) fn begin(self) {
        self.view.wake_scheduled();
    }
}

/// All views of one resource, and the index to find them.
#[derive(Default)]
pub(crate) struct Views {
    by_filter: HashMap<Filter, Arc<View>>,
    /// The views by the values that an attribute of their objects can have.
    index: HashMap<Attribute, HashMap<String, Vec<Arc<View>>>>,
    /// Views with events that are not published yet.
    touched: Vec<Arc<View>>,
}

/// An attribute of objects by which views are indexed.
#[derive(PartialEq, Eq, Hash)]
enum Attribute {
    /// Empty for all objects.
    Nothing,
    Namespace,
    Name,
    Label(String),
    Field(usize),
}

/// Selectors with more label values than this are not indexed by value.
const INDEXED_VALUES_MAX: usize = 64;

impl Attribute {
    /// The most specific condition of a filter: an attribute, and its values in selected objects.
    fn of(filter: &Filter) -> (Attribute, Vec<String>) {
        if let Some(name) = filter.fields.name() {
            return (Attribute::Name, vec![name.to_owned()]);
        }
        if let Some((index, value)) = filter.fields.equalities().next() {
            return (Attribute::Field(index), vec![value.to_owned()]);
        }
        let narrowest = filter
            .labels
            .equalities()
            .filter(|(_, values)| values.len() <= INDEXED_VALUES_MAX)
            .min_by_key(|(_, values)| values.len());
        if let Some((key, values)) = narrowest {
            let values = values.iter().map(|value| value.to_string()).collect();
            return (Attribute::Label(key.to_owned()), values);
        }
        match filter.only_namespace() {
            "" => (Attribute::Nothing, vec![String::new()]),
            namespace => (Attribute::Namespace, vec![namespace.to_owned()]),
        }
    }

    fn value<'a>(&self, object: &'a Object, fields: &'a [Field]) -> Option<&'a str> {
        match self {
            Attribute::Nothing => Some(""),
            Attribute::Namespace => Some(object.namespace()),
            Attribute::Name => Some(object.name()),
            Attribute::Label(key) => object.label(key),
            Attribute::Field(index) => {
                let absent = || fields.get(*index).map_or("", |field| &*field.absent);
                Some(object.field(*index).unwrap_or_else(absent))
            }
        }
    }
}

impl Views {
    /// Joins the view of a filter. A new view is complete after `now`.
    pub(crate) fn join(&mut self, filter: &Filter, now: Revision) -> Arc<View> {
        if let Some(view) = self.by_filter.get(filter) {
            view.watchers.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(view);
        }
        let view = Arc::new(View::new(filter.clone(), now));
        self.by_filter.insert(filter.clone(), Arc::clone(&view));
        let (attribute, values) = Attribute::of(filter);
        let by_value = self.index.entry(attribute).or_default();
        for value in values {
            by_value.entry(value).or_default().push(Arc::clone(&view));
        }
        view
    }

    /// Leaves a view; the last watcher removes it.
    pub(crate) fn leave(&mut self, view: &Arc<View>) {
        if view.watchers.fetch_sub(1, Ordering::Relaxed) > 1
            || self.by_filter.get(&view.filter).is_none_or(|known| !Arc::ptr_eq(known, view))
        {
            return;
        }
        self.by_filter.remove(&view.filter);
        let (attribute, values) = Attribute::of(&view.filter);
        let Some(by_value) = self.index.get_mut(&attribute) else { return };
        for value in &values {
            let Some(views) = by_value.get_mut(value) else { continue };
            views.retain(|other| !Arc::ptr_eq(other, view));
            if views.is_empty() {
                by_value.remove(value);
            }
        }
        if by_value.is_empty() {
            self.index.remove(&attribute);
        }
    }

    /// Offers a change to every view it may concern; they drop events up to `edge`. Returns how
    /// many accepted it.
    pub(crate) fn offer(
        &mut self,
        change: &Arc<ObjectChange>,
        fields: &[Field],
        edge: Revision,
    ) -> usize {
        let Views { index, touched, .. } = self;
        let mut taken = 0;
        for (attribute, by_value) in &*index {
            let new = attribute.value(change.object(), fields);
            let old = change.prev().and_then(|prev| attribute.value(prev, fields));
            let values = [new, old.filter(|_| old != new)].into_iter().flatten();
            for view in values.filter_map(|value| by_value.get(value)).flatten() {
                if !view.offer(change, edge) {
                    continue;
                }
                taken += 1;
                // Consecutive changes often concern one view, which is published once.
                if touched.last().is_none_or(|last| !Arc::ptr_eq(last, view)) {
                    touched.push(Arc::clone(view));
                }
            }
        }
        taken
    }

    /// Publishes the events of all views that accepted a change. Returns the wake-ups that are due
    /// later.
    pub(crate) fn publish(&mut self, revision: Revision) -> Vec<ScheduledWakeup> {
        let published = self.touched.drain(..);
        let later = published.filter_map(|view| {
            let at = view.publish(revision)?;
            Some(ScheduledWakeup { at, view })
        });
        later.collect()
    }

    /// Drops events up to `revision` from every view.
    pub(crate) fn forget(&self, revision: Revision) {
        self.by_filter.values().for_each(|view| view.forget(revision));
    }

    /// Wakes every watcher.
    pub(crate) fn wake_watchers(&self) {
        self.by_filter.values().for_each(|view| view.wake_watchers());
    }

    /// Ends every watcher.
    pub(crate) fn close(&mut self, end: ViewEnd) {
        let views = std::mem::take(self);
        views.by_filter.values().for_each(|view| view.close(end));
    }

    /// The number of watchers.
    pub(crate) fn watchers(&self) -> usize {
        self.by_filter.values().map(|view| view.watchers()).sum()
    }

    /// The number of watchers that a change of this object may concern, apart from those that select
    /// by label or field.
    pub(crate) fn audience(&self, namespace: &str, name: &str) -> usize {
        let attributes =
            [(Attribute::Nothing, ""), (Attribute::Namespace, namespace), (Attribute::Name, name)];
        let views = attributes
            .iter()
            .filter_map(|(attribute, value)| self.index.get(attribute)?.get(*value))
            .flatten();
        views.map(|view| view.watchers()).sum()
    }

    /// The watched selections and their number of watchers.
    pub(crate) fn census(&self) -> Vec<(Filter, usize)> {
        self.by_filter.values().map(|view| (view.filter.clone(), view.watchers())).collect()
    }
}

/// The event of a change for a filter; `None` if it does not concern the filter.
pub(crate) fn select(filter: &Filter, change: &Arc<ObjectChange>) -> Option<WatchEvent> {
    let transition: ViewTransition = change.transition(|object| filter.matches(object))?;
    Some(WatchEvent { change: Arc::clone(change), transition })
}
