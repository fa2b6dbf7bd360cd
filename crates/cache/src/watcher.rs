//! A watcher: a cursor over the changes of one selection.
//!
//! River: views → **watcher** → HTTP stream. It holds a position, not a queue: a slow reader costs a
//! cursor and delays nobody. When it falls out of memory it reads on from the store's history; only
//! when that is gone too does it get [`Step::Expired`].
//! Promise: every event after its start, once, in order (R23, R30).

use std::sync::Arc;

use futures::StreamExt;
use headwater_api::{Object, Revision};
use headwater_store::{ChangeStream, Error as StoreError, Store};
use tokio::sync::watch;

use crate::change::Event;
use crate::resource::{Resource, Tail};
use crate::snapshot::Snapshot;
use crate::view::{Filter, View, select};

/// Where a watch begins.
pub enum Start {
    /// With a synthetic ADDED for each object of this moment's state.
    Initial,
    /// With the first change after this revision.
    After(Revision),
    /// With the first change after this moment.
    Now,
}

/// What comes next on a watch.
pub enum Step {
    /// Objects of the initial state, in key order.
    Initial(Vec<Arc<Object>>),
    /// The initial state is complete; it is the state at this revision.
    Synced(Revision),
    /// Changes, in revision order.
    Events(Vec<Event>),
    /// The watch cannot go on: history before `oldest` is gone. (410)
    Expired {
        /// Where the watcher stood.
        asked: Revision,
        /// What may still be asked for.
        oldest: Revision,
    },
    /// The watch cannot go on: reading the past failed.
    Failed(crate::Error),
    /// The watch ends cleanly: the resource changed its definition, or the cache was rebuilt.
    Closed,
}

/// A cursor over the changes of one selection.
pub struct Watcher {
    resource: Arc<Resource>,
    store: Arc<dyn Store>,
    view: Arc<View>,
    applied: watch::Receiver<Revision>,
    head: watch::Receiver<Revision>,
    position: Revision,
    phase: Phase,
}

enum Phase {
    /// Objects of the snapshot after this key are still to be sent.
    Initial { snapshot: Snapshot, after: Option<String> },
    /// The end of the initial state is still to be told.
    Synced,
    /// Following changes.
    Following,
    /// Reading on from the store's history.
    Past(ChangeStream),
}

/// Objects handed out at a time while the initial state is sent.
const INITIAL_MAX: usize = 100;

impl Watcher {
    pub(crate) fn new(
        resource: Arc<Resource>,
        store: Arc<dyn Store>,
        applied: watch::Receiver<Revision>,
        filter: &Filter,
        start: Start,
    ) -> Watcher {
        // Read before the state: the state is then at least this new (see `Cache::snapshot`).
        let reached = *applied.borrow();
        let (view, state) = resource.join(filter);
        let now = reached.max(state.revision());
        let (position, phase) = match start {
            Start::Initial => {
                let snapshot = Snapshot::new(state.objects.clone(), now);
                (now, Phase::Initial { snapshot, after: None })
            }
            Start::After(revision) => (revision, Phase::Following),
            Start::Now => (now, Phase::Following),
        };
        let head = view.subscribe();
        Watcher { resource, store, view, applied, head, position, phase }
    }

    /// The newest revision up to which everything was handed out.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// How far the cache has got, if this watcher has been given everything up to there: what a
    /// bookmark may say (R27).
    pub fn progress(&self) -> Option<Revision> {
        if !matches!(self.phase, Phase::Following) {
            return None;
        }
        let reached = *self.applied.borrow();
        let mut events = Vec::new();
        match self.resource.tail(&self.view, self.position, &mut events) {
            Tail::Wait => Some(reached.max(self.position)),
            Tail::Moved(_) | Tail::Behind => None,
        }
    }

    /// Waits for what comes next. May be dropped while it waits and called again.
    pub async fn next(&mut self) -> Step {
        loop {
            if let Some(step) = self.step() {
                return step;
            }
            if self.view.is_closed() {
                // Looked at after the step, which forgets wake-ups; once more, since the last
                // events may have come in between.
                return self.step().unwrap_or(Step::Closed);
            }
            match &mut self.phase {
                Phase::Past(history) => {
                    let batch = history.next().await;
                    if let Some(step) = self.take_past(batch) {
                        return step;
                    }
                }
                _ => {
                    if self.head.changed().await.is_err() {
                        return Step::Closed;
                    }
                }
            }
        }
    }

    /// What can be handed out without waiting.
    fn step(&mut self) -> Option<Step> {
        match &mut self.phase {
            Phase::Initial { .. } => self.initial(),
            Phase::Synced => {
                self.phase = Phase::Following;
                Some(Step::Synced(self.position))
            }
            Phase::Following => self.follow(),
            Phase::Past(_) => None,
        }
    }

    fn initial(&mut self) -> Option<Step> {
        let Phase::Initial { snapshot, after } = &mut self.phase else { return None };
        let filter = &self.view.filter;
        let objects: Vec<Arc<Object>> =
            snapshot.select(filter, after.as_deref()).take(INITIAL_MAX).cloned().collect();
        match objects.last() {
            Some(last) if objects.len() == INITIAL_MAX => *after = Some(last.key().to_owned()),
            _ => self.phase = Phase::Synced,
        }
        if objects.is_empty() { self.step() } else { Some(Step::Initial(objects)) }
    }

    fn follow(&mut self) -> Option<Step> {
        loop {
            self.head.mark_unchanged();
            let mut events = Vec::new();
            match self.resource.tail(&self.view, self.position, &mut events) {
                Tail::Wait => return None,
                Tail::Moved(reached) => self.position = reached,
                Tail::Behind => {
                    self.phase = Phase::Past(open(&self.store, &self.resource, self.position));
                    return None;
                }
            }
            if !events.is_empty() {
                return Some(Step::Events(events));
            }
        }
    }

    /// Takes a batch of the store's history; memory takes over as soon as it reaches far enough.
    fn take_past(
        &mut self,
        batch: Option<Result<headwater_store::Batch, StoreError>>,
    ) -> Option<Step> {
        let batch = match batch {
            Some(Ok(batch)) => batch,
            Some(Err(StoreError::Compacted { oldest, .. })) => {
                return Some(Step::Expired { asked: self.position, oldest });
            }
            Some(Err(error)) => return Some(Step::Failed(error.into())),
            None => return Some(Step::Closed),
        };
        let mut events = Vec::new();
        for stored in batch.changes.iter().filter(|change| change.revision > self.position) {
            match self.resource.decode_past(stored) {
                Ok(change) => events.extend(select(&self.view.filter, &Arc::new(change))),
                Err(error) => return Some(Step::Failed(error)),
            }
        }
        self.position = self.position.max(batch.complete_to);
        if self.position >= self.resource.window_edge() {
            self.phase = Phase::Following;
        }
        (!events.is_empty()).then_some(Step::Events(events))
    }
}

/// Opens the store's history lazily, so that waiting for it can be cancelled.
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
