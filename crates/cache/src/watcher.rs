//! A watcher: a cursor over the changes of one selection.
//!
//! River: views → **watcher** → HTTP stream. It holds a position, not a queue: a slow reader costs
//! a cursor and delays no one. If its position is older than the window, it reads the store's
//! history; if that was compacted, it gets [`WatchStep::Expired`].
//! Promise: returns every event after its start, once and in order (R23, R30).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use headwater_api::{Object, Revision};
use headwater_store::{ChangeStream, Error as StoreError, Store};
use tokio::sync::watch;

use crate::change::{EventBatch, WatchEvent};
use crate::feed::Cache;
use crate::resource::Resource;
use crate::snapshot::Snapshot;
use crate::vantage::Vantage;
use crate::view::{BatchBudget, Filter, View, ViewEnd, ViewRead, select};

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// With a synthetic ADDED event for each object of the current state.
    Initial,
    /// With the first change after this revision.
    After(Revision),
    /// With the first change after the current state.
    Now,
}

/// The next result of a watch.
pub enum WatchStep {
    /// Objects of the initial state, in key order.
    Initial(Vec<Arc<Object>>),
    /// The initial state is complete; it is the state at this revision.
    Synced(Revision),
    /// Events, in revision order.
    Events(Arc<EventBatch>),
    /// The watch ends: history before `oldest` was compacted. (410)
    Expired {
        /// The position of the watcher.
        asked: Revision,
        /// The oldest revision from which a watch can start.
        oldest: Revision,
    },
    /// The watch ends: reading history failed.
    Failed(crate::Error),
    /// The watch ends cleanly: the definition of the resource changed, or the cache was reloaded.
    Closed,
    /// The watch ends because the server stops. The revision is the one for a last bookmark, see
    /// [`Watcher::progress`].
    Stopping(Option<Revision>),
}

/// A cursor over the changes of one selection.
pub struct Watcher {
    cache: Cache,
    resource: Arc<Resource>,
    view: Arc<View>,
    head: watch::Receiver<Revision>,
    position: Revision,
    phase: Phase,
}

enum Phase {
    /// Objects of the initial state after this key are not sent yet.
    Initial { state: Weak<Snapshot>, after: Option<String> },
    /// The end of the initial state is not reported yet.
    Synced,
    /// Follows the view.
    Following,
    /// Reads the store's history; `in_hand` is not sent yet.
    Past { history: ChangeStream, in_hand: VecDeque<headwater_store::Change>, reaches: Revision },
    /// The start is before this revision, the oldest of the store.
    TooOld(Revision),
    /// The last step was returned.
    Ended,
}

impl Watcher {
    pub(crate) fn new(
        cache: Cache,
        resource: Arc<Resource>,
        filter: &Filter,
        start: WatchStart,
    ) -> Watcher {
        // Read before the state, which is then at least this new (see `Cache::snapshot`).
        let reached = cache.applied();
        let (view, state) = resource.join(filter);
        let now = reached.max(state.revision());
        let (position, phase) = match start {
            WatchStart::Initial => {
                (now, Phase::Initial { state: resource.keep_initial(&state), after: None })
            }
            WatchStart::After(revision) => match cache.store().condition().compacted {
                // The window may still have the changes, but the result must not depend on that.
                oldest if revision < oldest => (revision, Phase::TooOld(oldest)),
                _ => (revision, Phase::Following),
            },
            WatchStart::Now => (now, Phase::Following),
        };
        let head = view.subscribe();
        Watcher { cache, resource, view, head, position, phase }
    }

    /// The newest revision up to which every event was returned.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// How others see what it has not read yet.
    pub fn vantage(&self) -> Vantage {
        Vantage::new(&self.view, &self.resource)
    }

    /// The revision the cache has reached, if this watcher has returned every event up to it: the
    /// revision for a bookmark (R27). It also moves the position of an idle watcher, which then
    /// does not fall out of the window.
    pub fn progress(&mut self) -> Option<Revision> {
        if !matches!(self.phase, Phase::Following) || self.view.end().is_some() {
            return None;
        }
        match self.tail() {
            // The watcher starts in the future, or its history is ahead of the cache.
            TailRead::Wait(reached) if reached < self.position => None,
            TailRead::Wait(reached) => {
                self.position = reached;
                Some(reached)
            }
            TailRead::Events(_) | TailRead::Moved(..) | TailRead::Behind => None,
        }
    }

    /// Reads the next events from memory.
    fn tail(&self) -> TailRead {
        // Read before the log, which then has every event up to here.
        let reached = self.cache.applied();
        match self.view.read(self.position) {
            ViewRead::Nothing => TailRead::Wait(reached),
            ViewRead::Events(events) => TailRead::Events(events),
            ViewRead::Behind => {
                let mut events = Vec::new();
                match self.resource.read_past(&self.view.filter, self.position, &mut events) {
                    Some(moved) if moved == self.position => TailRead::Wait(reached),
                    Some(moved) => TailRead::Moved(moved, events),
                    None => TailRead::Behind,
                }
            }
        }
    }

    /// Waits for the next step. Cancel-safe.
    pub async fn next(&mut self) -> WatchStep {
        loop {
            if let Some(step) = self.step() {
                return step;
            }
            let Phase::Past { history, in_hand, reaches } = &mut self.phase else {
                // The watcher holds the view, so its sender is not dropped.
                let _ = self.head.changed().await;
                continue;
            };
            tokio::select! {
                biased;
                _ = self.head.changed() => {} // the view may have ended
                batch = history.next() => match batch {
                    Some(Ok(batch)) => {
                        in_hand.extend(batch.changes);
                        *reaches = batch.complete_to;
                    }
                    Some(Err(error)) => return self.fail(error),
                    None => return self.ended(WatchStep::Closed),
                },
            }
        }
    }

    /// The next step that is available without waiting.
    fn step(&mut self) -> Option<WatchStep> {
        // In this order: if the view ends after this check, the watcher is woken again; events
        // before the end are returned before the end. The same holds for a stop.
        self.head.mark_unchanged();
        let (end, is_stopping) = (self.view.end(), self.cache.is_stopping());
        if let Some(ViewEnd::Reverted(oldest)) = end {
            let asked = self.position;
            return Some(self.ended(WatchStep::Expired { asked, oldest }));
        }
        let step = match &self.phase {
            Phase::Initial { .. } => self.initial(),
            Phase::Synced => {
                self.phase = Phase::Following;
                Some(WatchStep::Synced(self.position))
            }
            Phase::Following => self.follow(),
            Phase::Past { .. } => self.past(),
            Phase::TooOld(oldest) => {
                let (asked, oldest) = (self.position, *oldest);
                Some(self.ended(WatchStep::Expired { asked, oldest }))
            }
            Phase::Ended => Some(WatchStep::Closed),
        };
        match (step, end) {
            (None, Some(_)) => Some(self.ended(WatchStep::Closed)),
            (None, None) if is_stopping => {
                let reached = self.progress();
                Some(self.ended(WatchStep::Stopping(reached)))
            }
            (step, _) => step,
        }
    }

    /// Returns the last step.
    fn ended(&mut self, step: WatchStep) -> WatchStep {
        self.phase = Phase::Ended;
        step
    }

    fn fail(&mut self, error: StoreError) -> WatchStep {
        let asked = self.position;
        self.ended(match error {
            StoreError::Compacted { oldest, .. } | StoreError::Replaced { current: oldest } => {
                WatchStep::Expired { asked, oldest }
            }
            error => WatchStep::Failed(error.into()),
        })
    }

    fn initial(&mut self) -> Option<WatchStep> {
        let Phase::Initial { state, after } = &mut self.phase else { return None };
        // The watcher read so slowly that its initial state was dropped for its memory.
        let Some(snapshot) = state.upgrade() else { return Some(self.ended(WatchStep::Closed)) };
        let (mut objects, mut budget) = (Vec::new(), BatchBudget::default());
        let mut rest = snapshot.select(&self.view.filter, after.as_deref());
        let more = rest.any(|object| {
            let full = !budget.admits(object.as_slice().len());
            if !full {
                objects.push(Arc::clone(object));
            }
            full
        });
        drop(rest);
        match objects.last() {
            Some(last) if more => *after = Some(last.key().to_owned()),
            _ => self.phase = Phase::Synced,
        }
        if objects.is_empty() { self.step() } else { Some(WatchStep::Initial(objects)) }
    }

    fn follow(&mut self) -> Option<WatchStep> {
        loop {
            match self.tail() {
                TailRead::Wait(reached) => {
                    self.position = self.position.max(reached);
                    return None;
                }
                TailRead::Events(events) => {
                    self.position = events.last().map_or(self.position, WatchEvent::revision);
                    return Some(WatchStep::Events(events));
                }
                TailRead::Moved(reached, events) => {
                    self.position = reached;
                    if !events.is_empty() {
                        return Some(WatchStep::Events(EventBatch::new(events)));
                    }
                }
                TailRead::Behind => {
                    let history = open(self.cache.store(), &self.resource, self.position);
                    let (in_hand, reaches) = (VecDeque::new(), self.position);
                    self.phase = Phase::Past { history, in_hand, reaches };
                    return None;
                }
            }
        }
    }

    /// Returns events from the store's history. Switches to the view once its position is in the
    /// window.
    fn past(&mut self) -> Option<WatchStep> {
        let Phase::Past { in_hand, reaches, .. } = &mut self.phase else { return None };
        let (mut events, mut budget) = (Vec::new(), BatchBudget::default());
        while let Some(stored) = in_hand.front() {
            let revision = stored.revision;
            if revision > self.position {
                let change = match self.resource.decode_past(stored) {
                    Ok(change) => change.map(Arc::new),
                    Err(error) => return Some(self.ended(WatchStep::Failed(error))),
                };
                let selected = change.as_ref().and_then(|change| select(&self.view.filter, change));
                if let Some(event) = selected {
                    let starts_revision =
                        events.last().is_none_or(|last: &WatchEvent| last.revision() < revision);
                    if !budget.admits(event.size()) && starts_revision {
                        return Some(WatchStep::Events(EventBatch::new(events)));
                    }
                    events.push(event);
                }
            }
            in_hand.pop_front();
            // Changes may share a revision; the cursor moves past all of them or none.
            if in_hand.front().is_none_or(|next| next.revision > revision) {
                self.position = self.position.max(revision);
            }
        }
        self.position = self.position.max(*reaches);
        if self.position >= self.resource.window_edge() {
            self.phase = Phase::Following;
            if events.is_empty() {
                return self.follow();
            }
        }
        (!events.is_empty()).then(|| WatchStep::Events(EventBatch::new(events)))
    }
}

/// The result of reading from memory at a cursor's position.
enum TailRead {
    /// The next events; the cursor moves to the last of them.
    Events(Arc<EventBatch>),
    /// The next events, if any; the cursor moves to this revision.
    Moved(Revision, Vec<WatchEvent>),
    /// There is no event up to this revision.
    Wait(Revision),
    /// The window does not reach back to the position.
    Behind,
}

/// Opens the store's history lazily, so that opening it can be cancelled.
fn open(store: &Arc<dyn Store>, resource: &Resource, after: Revision) -> ChangeStream {
    let (store, prefix) = (Arc::clone(store), resource.prefix().to_owned());
    let opened = async move {
        match store.watch(&prefix, after).await {
            Ok(stream) => stream,
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    };
    futures::stream::once(opened).flatten().boxed()
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.resource.leave(&self.view);
    }
}
