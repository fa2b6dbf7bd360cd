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
use headwater_api::selector::{FieldSelector, LabelSelector};
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
}

impl Filter {
    /// Whether the filter selects an object.
    pub fn matches(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || object.namespace() == self.namespace)
            && self.labels.matches_object(object)
            && self.fields.matches(object)
    }

    /// The marks that every selected object has.
    pub fn marks(&self) -> Marks {
        let mut marks = self.labels.marks();
        marks.add(self.fields.marks());
        marks
    }

    /// Whether the filter selects all objects of the namespace.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
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
        let first = first_after(self.events.len(), |at| self.events[at].revision() > position);
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

/// The index of the first element that is after something. Most readers are near the end, and every
/// visited event is a cache miss, so this gallops backwards from the end before it bisects.
fn first_after(len: usize, is_after: impl Fn(usize) -> bool) -> usize {
    let mut back = 1;
    while back <= len && is_after(len - back) {
        back *= 2;
    }
    let (mut low, mut high) = (len.saturating_sub(back), len - back / 2);
    while low < high {
        let middle = low.midpoint(high);
        match is_after(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
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
    everything: Vec<Arc<View>>,
    by_namespace: HashMap<String, Vec<Arc<View>>>,
    by_name: HashMap<String, Vec<Arc<View>>>,
    by_label: HashMap<String, HashMap<String, Vec<Arc<View>>>>,
    by_field: HashMap<usize, HashMap<String, Vec<Arc<View>>>>,
    /// Views with events that are not published yet.
    touched: Vec<Arc<View>>,
}

/// The key of a view in the index: the most specific condition of its filter.
enum IndexKey {
    Everything,
    Namespace(String),
    Name(String),
    Label(String, Vec<String>),
    Field(usize, String),
}

/// Selectors with more label values than this are not indexed by value.
const INDEXED_VALUES_MAX: usize = 64;

impl IndexKey {
    fn of(filter: &Filter) -> IndexKey {
        if let Some(name) = filter.fields.name() {
            return IndexKey::Name(name.to_owned());
        }
        if let Some((index, value)) = filter.fields.equalities().next() {
            return IndexKey::Field(index, value.to_owned());
        }
        let narrowest = filter
            .labels
            .equalities()
            .filter(|(_, values)| values.len() <= INDEXED_VALUES_MAX)
            .min_by_key(|(_, values)| values.len());
        if let Some((key, values)) = narrowest {
            let values = values.iter().map(|value| value.to_string()).collect();
            return IndexKey::Label(key.to_owned(), values);
        }
        match filter.only_namespace() {
            "" => IndexKey::Everything,
            namespace => IndexKey::Namespace(namespace.to_owned()),
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
        for bucket in self.buckets(IndexKey::of(filter)) {
            bucket.push(Arc::clone(&view));
        }
        view
    }

    /// Leaves a view; the last watcher removes it.
    pub(crate) fn leave(&mut self, view: &Arc<View>) {
        if view.watchers.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        if self.by_filter.get(&view.filter).is_some_and(|known| Arc::ptr_eq(known, view)) {
            self.by_filter.remove(&view.filter);
            for bucket in self.buckets(IndexKey::of(&view.filter)) {
                bucket.retain(|other| !Arc::ptr_eq(other, view));
            }
            self.drop_empty(IndexKey::of(&view.filter));
        }
    }

    fn buckets(&mut self, key: IndexKey) -> Vec<&mut Vec<Arc<View>>> {
        match key {
            IndexKey::Everything => vec![&mut self.everything],
            IndexKey::Namespace(namespace) => vec![self.by_namespace.entry(namespace).or_default()],
            IndexKey::Name(name) => vec![self.by_name.entry(name).or_default()],
            IndexKey::Field(index, value) => {
                vec![self.by_field.entry(index).or_default().entry(value).or_default()]
            }
            IndexKey::Label(key, values) => {
                let by_value = self.by_label.entry(key).or_default();
                for value in &values {
                    by_value.entry(value.clone()).or_default();
                }
                by_value
                    .iter_mut()
                    .filter(|(value, _)| values.contains(value))
                    .map(|(_, bucket)| bucket)
                    .collect()
            }
        }
    }

    fn drop_empty(&mut self, key: IndexKey) {
        match key {
            IndexKey::Everything => {}
            IndexKey::Namespace(namespace) => drop_if_empty(&mut self.by_namespace, &namespace),
            IndexKey::Name(name) => drop_if_empty(&mut self.by_name, &name),
            IndexKey::Field(index, value) => {
                if let Some(by_value) = self.by_field.get_mut(&index) {
                    drop_if_empty(by_value, &value);
                    if by_value.is_empty() {
                        self.by_field.remove(&index);
                    }
                }
            }
            IndexKey::Label(key, values) => {
                if let Some(by_value) = self.by_label.get_mut(&key) {
                    values.iter().for_each(|value| drop_if_empty(by_value, value));
                    if by_value.is_empty() {
                        self.by_label.remove(&key);
                    }
                }
            }
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
        let Views { everything, by_namespace, by_name, by_label, by_field, touched, .. } = self;
        let (object, prev) = (change.object(), change.prev());
        let mut taken = 0;
        let mut offer = |views: &[Arc<View>]| {
            for view in views.iter().filter(|view| view.offer(change, edge)) {
                taken += 1;
                // Consecutive changes often concern one view, which is published once.
                if touched.last().is_none_or(|last| !Arc::ptr_eq(last, view)) {
                    touched.push(Arc::clone(view));
                }
            }
        };
        offer(everything);
        if !by_namespace.is_empty() {
            offer(found(by_namespace, object.namespace()));
        }
        if !by_name.is_empty() {
            offer(found(by_name, object.name()));
        }
        for (key, by_value) in by_label {
            let new = object.label(key);
            let old = prev.and_then(|prev| prev.label(key));
            offer(new.map_or(&[], |value| found(by_value, value)));
            if old != new {
                offer(old.map_or(&[], |value| found(by_value, value)));
            }
        }
        for (index, by_value) in by_field {
            let absent = fields.get(*index).map_or("", |field| &*field.absent);
            let new = object.field(*index).unwrap_or(absent);
            offer(found(by_value, new));
            let old = prev.map(|prev| prev.field(*index).unwrap_or(absent));
            if let Some(old) = old.filter(|old| *old != new) {
                offer(found(by_value, old));
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

    /// The watched selections and their number of watchers.
    pub(crate) fn census(&self) -> Vec<(Filter, usize)> {
        self.by_filter.values().map(|view| (view.filter.clone(), view.watchers())).collect()
    }
}

fn found<'a>(map: &'a HashMap<String, Vec<Arc<View>>>, key: &str) -> &'a [Arc<View>] {
    map.get(key).map_or(&[], Vec::as_slice)
}

fn drop_if_empty(map: &mut HashMap<String, Vec<Arc<View>>>, key: &str) {
    if map.get(key).is_some_and(Vec::is_empty) {
        map.remove(key);
    }
}

/// The event of a change for a filter; `None` if it does not concern the filter.
pub(crate) fn select(filter: &Filter, change: &Arc<ObjectChange>) -> Option<WatchEvent> {
    let transition: ViewTransition = change.transition(|object| filter.matches(object))?;
    Some(WatchEvent { change: Arc::clone(change), transition })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_after_a_position_is_found() {
        for len in 0..40 {
            for first in 0..=len {
                assert_eq!(first_after(len, |at| at >= first), first, "of {len}");
            }
        }
    }

    #[test]
    fn a_search_near_the_end_visits_few_events() {
        let visited = std::cell::Cell::new(0);
        let is_after = |at| {
            visited.set(visited.get() + 1);
            at >= 999
        };
        assert_eq!(first_after(1_000, is_after), 999);
        assert!(visited.get() <= 3, "{}", visited.get());
    }
}
