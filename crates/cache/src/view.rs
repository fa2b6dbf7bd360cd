//! Views: what watchers of one resource have in common.
//!
//! River: feed → **views** → watchers. Watchers that ask for the same selection share one view, so
//! matching and the ADDED/DELETED rewriting happen once per view and not once per watcher. Views
//! are found through an index, so that a change visits only those it may concern (S5.20).
//! Promise: whatever the index leaves out, the selection would have left out too.

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

use crate::change::{Change, Event, Events, Turn};
use crate::progress::Progress;
use crate::rounds::{Rounds, Wake};

/// Which objects of a resource are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Only this namespace; empty is all.
    pub namespace: String,
    /// Labels.
    pub labels: LabelSelector,
    /// Fields; the name and the namespace can be selected here too.
    pub fields: FieldSelector,
}

impl Filter {
    /// Whether an object is wanted.
    pub fn matches(&self, object: &Object) -> bool {
        (self.namespace.is_empty() || object.namespace() == self.namespace)
            && self.labels.matches_object(object)
            && self.fields.matches(object)
    }

    /// The marks that every object has that is wanted.
    pub fn marks(&self) -> Marks {
        let mut marks = self.labels.marks();
        marks.add(self.fields.marks());
        marks
    }

    /// Whether everything in the namespace is wanted.
    pub fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The only namespace that can hold a match; empty is all.
    pub fn only_namespace(&self) -> &str {
        match self.namespace.as_str() {
            "" => self.fields.namespace().unwrap_or_default(),
            namespace => namespace,
        }
    }
}

/// What one step hands out: enough to fill a socket, and not more than may wait there for a client
/// that reads slowly.
#[derive(Default)]
pub(crate) struct Portion {
    count: usize,
    bytes: usize,
}

const PORTION_MAX: usize = 128;
const PORTION_BYTES_MAX: usize = 64 << 10;

impl Portion {
    /// Whether one more of this size fits. The first always does.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        let full = self.count == PORTION_MAX || self.bytes + bytes > PORTION_BYTES_MAX;
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
    end: OnceLock<End>,
    /// Counted while the hub is locked.
    watchers: AtomicUsize,
}

/// Why a view has no more events to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The resource is defined or filled anew: whoever comes back continues.
    Closed,
    /// The store went back to this revision: what was told is not true any more (R37).
    WentBack(Revision),
}

struct Log {
    events: VecDeque<Event>,
    /// Invariant: every event after this revision is in `events`.
    complete_after: Revision,
    /// What was read last, and from which position: the next watcher most likely stands there too.
    last: Option<(Revision, Arc<Events>)>,
    rounds: Rounds,
}

impl Log {
    /// Drops events up to `revision`. A quiet view stays complete: only a dropped event moves its
    /// edge.
    fn forget(&mut self, revision: Revision) {
        while self.events.front().is_some_and(|oldest| oldest.revision() <= revision) {
            let dropped = self.events.pop_front().map_or(Revision::ZERO, |event| event.revision());
            self.complete_after = self.complete_after.max(dropped);
            self.last = None;
        }
    }

    /// As many events after `position` as are handed out at once. Those that share a revision are
    /// read together, so none that is not announced yet.
    fn after(&self, position: Revision, announced: Revision) -> Vec<Event> {
        let first = first_of(self.events.len(), |at| self.events[at].revision() > position);
        let (mut events, mut portion) = (Vec::<Event>::new(), Portion::default());
        for event in self.events.range(first..).take_while(|e| e.revision() <= announced) {
            let is_apart = events.last().is_none_or(|last| last.revision() < event.revision());
            if !portion.takes(event.size()) && is_apart {
                break;
            }
            events.push(event.clone());
        }
        events
    }
}

/// Where those begin, of so many, that are after something. Most who ask stand near the end, and each
/// event that is looked at is a wait for its memory: so it is looked for from there, in larger and
/// larger steps.
fn first_of(len: usize, is_after: impl Fn(usize) -> bool) -> usize {
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

/// What a view answers to a cursor.
pub(crate) enum Read {
    /// These come next.
    Events(Arc<Events>),
    /// There is nothing after the cursor yet.
    Nothing,
    /// Some events after the cursor are no longer here, or were never.
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
                rounds: Rounds::default(),
            }),
            head: Progress::new(),
            end: OnceLock::new(),
            watchers: AtomicUsize::new(1),
        }
    }

    /// Appends the event this change is to the view, if any, and drops what is before `edge`.
    fn offer(&self, change: &Arc<Change>, edge: Revision) -> bool {
        let Some(turn) = change.turn(|object| self.filter.matches(object)) else { return false };
        let mut log = self.log();
        let last = log.events.back().map(|last| &last.change);
        if last.is_some_and(|last| Arc::ptr_eq(last, change)) {
            return false; // found twice, through two entries of the index
        }
        log.forget(edge);
        log.events.push_back(Event { change: Arc::clone(change), turn });
        true
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// Everything offered so far may be read. The watchers are woken, unless it is answered when
    /// to, or was before.
    fn announce(&self, revision: Revision) -> Option<Instant> {
        let mut log = self.log();
        log.last = None;
        self.head.reach(revision);
        let wake = log.rounds.wake(self.watchers());
        drop(log);
        match wake {
            Wake::Now => self.head.tell(),
            Wake::At(then) => return Some(then),
            Wake::Due => {}
        }
        None
    }

    /// Wakes the watchers.
    fn begin_round(&self) {
        // In this order: what is announced from here on finds nobody who is to wake the watchers.
        self.log().rounds.begin(self.watchers());
        self.head.tell();
    }

    /// Wakes the watchers, though there is nothing new for them.
    fn nudge(&self) {
        self.head.tell();
    }

    /// Reads events after `position`.
    pub(crate) fn read(&self, position: Revision) -> Read {
        let mut log = self.log();
        if position < log.complete_after {
            return Read::Behind;
        }
        if let Some((at, last)) = &log.last
            && *at == position
        {
            return Read::Events(Arc::clone(last));
        }
        let events = log.after(position, self.head.get());
        if events.is_empty() {
            log.rounds.caught_up();
            return Read::Nothing;
        }
        let events = Events::new(events);
        if self.watchers() > 1 {
            log.last = Some((position, Arc::clone(&events)));
        }
        Read::Events(events)
    }

    fn watchers(&self) -> usize {
        self.watchers.load(Ordering::Relaxed)
    }

    /// Drops events up to `revision`, which the window no longer holds either.
    fn forget(&self, revision: Revision) {
        self.log().forget(revision);
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.head.subscribe()
    }

    /// Ends every watcher of the view.
    fn close(&self, end: End) {
        let _ = self.end.set(end); // the first reason counts
        self.head.set(Revision(u64::MAX));
    }

    /// Why nothing more will be offered, if so.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.get().copied()
    }
}

/// A round that is to begin later.
pub(crate) struct NextRound {
    pub(crate) at: Instant,
    view: Arc<View>,
}

impl NextRound {
    pub(crate) fn begin(self) {
        self.view.begin_round();
    }
}

/// All views of one resource, and the index that finds them.
#[derive(Default)]
pub(crate) struct Views {
    by_filter: HashMap<Filter, Arc<View>>,
    everything: Vec<Arc<View>>,
    by_namespace: HashMap<String, Vec<Arc<View>>>,
    by_name: HashMap<String, Vec<Arc<View>>>,
    by_label: HashMap<String, HashMap<String, Vec<Arc<View>>>>,
    by_field: HashMap<usize, HashMap<String, Vec<Arc<View>>>>,
    /// Views with new events since the last `announce`.
    touched: Vec<Arc<View>>,
}

/// Where a view is found: under the narrowest condition it has.
enum Place {
    Everything,
    Namespace(String),
    Name(String),
    Label(String, Vec<String>),
    Field(usize, String),
}

/// A set of label values above this is not indexed value by value.
const INDEXED_VALUES_MAX: usize = 64;

impl Place {
    fn of(filter: &Filter) -> Place {
        if let Some(name) = filter.fields.name() {
            return Place::Name(name.to_owned());
        }
        if let Some((index, value)) = filter.fields.equalities().next() {
            return Place::Field(index, value.to_owned());
        }
        let narrowest = filter
            .labels
            .equalities()
            .filter(|(_, values)| values.len() <= INDEXED_VALUES_MAX)
            .min_by_key(|(_, values)| values.len());
        if let Some((key, values)) = narrowest {
            let values = values.iter().map(|value| value.to_string()).collect();
            return Place::Label(key.to_owned(), values);
        }
        match filter.only_namespace() {
            "" => Place::Everything,
            namespace => Place::Namespace(namespace.to_owned()),
        }
    }
}

impl Views {
    /// The view of a filter; a new one answers for events after `now`.
    pub(crate) fn join(&mut self, filter: &Filter, now: Revision) -> Arc<View> {
        if let Some(view) = self.by_filter.get(filter) {
            view.watchers.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(view);
        }
        let view = Arc::new(View::new(filter.clone(), now));
        self.by_filter.insert(filter.clone(), Arc::clone(&view));
        for bucket in self.buckets(Place::of(filter)) {
            bucket.push(Arc::clone(&view));
        }
        view
    }

    /// A watcher of the view is gone; the last one takes the view with it.
    pub(crate) fn leave(&mut self, view: &Arc<View>) {
        if view.watchers.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        if self.by_filter.get(&view.filter).is_some_and(|known| Arc::ptr_eq(known, view)) {
            self.by_filter.remove(&view.filter);
            for bucket in self.buckets(Place::of(&view.filter)) {
                bucket.retain(|other| !Arc::ptr_eq(other, view));
            }
            self.drop_empty(Place::of(&view.filter));
        }
    }

    fn buckets(&mut self, place: Place) -> Vec<&mut Vec<Arc<View>>> {
        match place {
            Place::Everything => vec![&mut self.everything],
            Place::Namespace(namespace) => vec![self.by_namespace.entry(namespace).or_default()],
            Place::Name(name) => vec![self.by_name.entry(name).or_default()],
            Place::Field(index, value) => {
                vec![self.by_field.entry(index).or_default().entry(value).or_default()]
            }
            Place::Label(key, values) => {
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

    fn drop_empty(&mut self, place: Place) {
        match place {
            Place::Everything => {}
            Place::Namespace(namespace) => drop_if_empty(&mut self.by_namespace, &namespace),
            Place::Name(name) => drop_if_empty(&mut self.by_name, &name),
            Place::Field(index, value) => {
                if let Some(by_value) = self.by_field.get_mut(&index) {
                    drop_if_empty(by_value, &value);
                    if by_value.is_empty() {
                        self.by_field.remove(&index);
                    }
                }
            }
            Place::Label(key, values) => {
                if let Some(by_value) = self.by_label.get_mut(&key) {
                    values.iter().for_each(|value| drop_if_empty(by_value, value));
                    if by_value.is_empty() {
                        self.by_label.remove(&key);
                    }
                }
            }
        }
    }

    /// Offers a change to every view it may concern; they drop what is before `edge`. Answers how
    /// many took it.
    pub(crate) fn offer(
        &mut self,
        change: &Arc<Change>,
        fields: &[Field],
        edge: Revision,
    ) -> usize {
        let Views { everything, by_namespace, by_name, by_label, by_field, touched, .. } = self;
        let (object, prev) = (change.object(), change.prev());
        let mut taken = 0;
        let mut offer = |views: &[Arc<View>]| {
            for view in views.iter().filter(|view| view.offer(change, edge)) {
                taken += 1;
                // A run of changes often goes to one view: it is woken once.
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

    /// Wakes the watchers of every view that was offered something; answers those whose watchers
    /// are to be woken later.
    pub(crate) fn announce(&mut self, revision: Revision) -> Vec<NextRound> {
        let announced = self.touched.drain(..);
        let later = announced.filter_map(|view| {
            let at = view.announce(revision)?;
            Some(NextRound { at, view })
        });
        later.collect()
    }

    /// Drops events up to `revision` from every view.
    pub(crate) fn forget(&self, revision: Revision) {
        self.by_filter.values().for_each(|view| view.forget(revision));
    }

    /// Wakes every watcher.
    pub(crate) fn nudge(&self) {
        self.by_filter.values().for_each(|view| view.nudge());
    }

    /// Ends every watcher.
    pub(crate) fn close(&mut self, end: End) {
        let views = std::mem::take(self);
        views.by_filter.values().for_each(|view| view.close(end));
    }

    /// How many watchers there are.
    pub(crate) fn watchers(&self) -> usize {
        self.by_filter.values().map(|view| view.watchers()).sum()
    }

    /// The selections that are watched and how many watch each.
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

/// One event for each of some changes read from the past.
pub(crate) fn select(filter: &Filter, change: &Arc<Change>) -> Option<Event> {
    let turn: Turn = change.turn(|object| filter.matches(object))?;
    Some(Event { change: Arc::clone(change), turn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_after_a_position_is_found_wherever_it_is() {
        for len in 0..40 {
            for first in 0..=len {
                assert_eq!(first_of(len, |at| at >= first), first, "of {len}");
            }
        }
    }

    #[test]
    fn who_stands_near_the_end_looks_at_few() {
        let looked = std::cell::Cell::new(0);
        let is_after = |at| {
            looked.set(looked.get() + 1);
            at >= 999
        };
        assert_eq!(first_of(1_000, is_after), 999);
        assert!(looked.get() <= 3, "{}", looked.get());
    }
}
