//! A watcher: a cursor over the changes of one selection.
//!
//! River: views → **watcher** → HTTP stream. It holds a position, not a queue: a slow reader costs a
//! cursor and delays nobody. When it falls out of memory it reads on from the store's history; only
//! when that is gone too does it get [`Step::Expired`].
//! Promise: every event after its start, once, in order (R23, R30).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use headwater_api::{Object, Revision};
use headwater_store::{ChangeStream, Error as StoreError, Store};
use tokio::sync::watch;

use crate::change::{Event, Events};
use crate::progress::Progress;
use crate::resource::Resource;
use crate::snapshot::Snapshot;
use crate::view::{End, Filter, Portion, Read, View, select};

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Events(Arc<Events>),
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
    applied: Arc<Progress>,
    head: watch::Receiver<Revision>,
    position: Revision,
    phase: Phase,
}

enum Phase {
    /// Objects of a state after this key are still to be sent.
    Initial { state: Weak<Snapshot>, after: Option<String> },
    /// The end of the initial state is still to be told.
    Synced,
    /// Following changes.
    Following,
    /// Reading on from the store's history; some of it is in hand.
    Past { history: ChangeStream, in_hand: VecDeque<headwater_store::Change>, reaches: Revision },
    /// It began before this revision, the oldest that the store still knows.
    TooOld(Revision),
    /// Nothing more will come.
    Ended,
}

impl Watcher {
    pub(crate) fn new(
        resource: Arc<Resource>,
        store: Arc<dyn Store>,
        applied: Arc<Progress>,
        filter: &Filter,
        start: Start,
    ) -> Watcher {
        // Read before the state: the state is then at least this new (see `Cache::snapshot`).
        let reached = applied.get();
        let (view, state) = resource.join(filter);
        let now = reached.max(state.revision());
        let (position, phase) = match start {
            Start::Initial => (now, Phase::Initial { state: resource.lend(&state), after: None }),
            Start::After(revision) => match store.condition().compacted {
                // Memory may still know it; the answer must not depend on that.
                oldest if revision < oldest => (revision, Phase::TooOld(oldest)),
                _ => (revision, Phase::Following),
            },
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
    /// bookmark may say (R27). Worth asking now and then of a quiet watcher too: when it falls
    /// behind later, it goes on from here.
    pub fn progress(&mut self) -> Option<Revision> {
        if !matches!(self.phase, Phase::Following) || self.view.end().is_some() {
            return None;
        }
        match self.tail() {
            // It began in the future, or read the store's history further than the cache.
            Tail::Wait(reached) if reached < self.position => None,
            Tail::Wait(reached) => {
                self.position = reached;
                Some(reached)
            }
            Tail::Events(_) | Tail::Moved(..) | Tail::Behind => None,
        }
    }

    /// Reads on in memory.
    fn tail(&self) -> Tail {
        // Read before the log: every event up to here is then in it.
        let reached = self.applied.get();
        match self.view.read(self.position) {
            Read::Nothing => Tail::Wait(reached),
            Read::Events(events) => Tail::Events(events),
            Read::Behind => {
                let mut events = Vec::new();
                match self.resource.read_past(&self.view.filter, self.position, &mut events) {
                    Some(moved) if moved == self.position => Tail::Wait(reached),
                    Some(moved) => Tail::Moved(moved, events),
                    None => Tail::Behind,
                }
            }
        }
    }

    /// Waits for what comes next. May be dropped while it waits and called again.
    pub async fn next(&mut self) -> Step {
        loop {
            if let Some(step) = self.step() {
                return step;
            }
            let Phase::Past { history, in_hand, reaches } = &mut self.phase else {
                // The view is held here, so its sender cannot be gone.
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
                    None => return self.ended(Step::Closed),
                },
            }
        }
    }

    /// What can be handed out without waiting.
    fn step(&mut self) -> Option<Step> {
        // In this order: if the view ends after it was looked at, we are woken again; and what it
        // was given before it ended is read before the end is told.
        self.head.mark_unchanged();
        let end = self.view.end();
        if let Some(End::WentBack(oldest)) = end {
            let asked = self.position;
            return Some(self.ended(Step::Expired { asked, oldest }));
        }
        let step = match &self.phase {
            Phase::Initial { .. } => self.initial(),
            Phase::Synced => {
                self.phase = Phase::Following;
                Some(Step::Synced(self.position))
            }
            Phase::Following => self.follow(),
            Phase::Past { .. } => self.past(),
            Phase::TooOld(oldest) => {
                let (asked, oldest) = (self.position, *oldest);
                Some(self.ended(Step::Expired { asked, oldest }))
            }
            Phase::Ended => Some(Step::Closed),
        };
        match (step, end) {
            (None, Some(_)) => Some(self.ended(Step::Closed)),
            (step, _) => step,
        }
    }

    /// The last step.
    fn ended(&mut self, step: Step) -> Step {
        self.phase = Phase::Ended;
        step
    }

    fn fail(&mut self, error: StoreError) -> Step {
        let asked = self.position;
        self.ended(match error {
            StoreError::Compacted { oldest, .. } | StoreError::Replaced { current: oldest } => {
                Step::Expired { asked, oldest }
            }
            error => Step::Failed(error.into()),
        })
    }

    fn initial(&mut self) -> Option<Step> {
        let Phase::Initial { state, after } = &mut self.phase else { return None };
        // It read so slowly that the state it began with is not affordable any more.
        let Some(snapshot) = state.upgrade() else { return Some(self.ended(Step::Closed)) };
        let (mut objects, mut portion) = (Vec::new(), Portion::default());
        let mut rest = snapshot.select(&self.view.filter, after.as_deref());
        let more = rest.any(|object| {
            let full = !portion.takes(object.as_slice().len());
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
        if objects.is_empty() { self.step() } else { Some(Step::Initial(objects)) }
    }

    fn follow(&mut self) -> Option<Step> {
        loop {
            match self.tail() {
                Tail::Wait(reached) => {
                    self.position = self.position.max(reached);
                    return None;
                }
                Tail::Events(events) => {
                    self.position = events.last().map_or(self.position, Event::revision);
                    return Some(Step::Events(events));
                }
                Tail::Moved(reached, events) => {
                    self.position = reached;
                    if !events.is_empty() {
                        return Some(Step::Events(Events::new(events)));
                    }
                }
                Tail::Behind => {
                    let history = open(&self.store, &self.resource, self.position);
                    let (in_hand, reaches) = (VecDeque::new(), self.position);
                    self.phase = Phase::Past { history, in_hand, reaches };
                    return None;
                }
            }
        }
    }

    /// Hands out what is in hand of the store's history; memory takes over as soon as it reaches
    /// far enough.
    fn past(&mut self) -> Option<Step> {
        let Phase::Past { in_hand, reaches, .. } = &mut self.phase else { return None };
        let (mut events, mut portion) = (Vec::new(), Portion::default());
        while let Some(stored) = in_hand.front() {
            let revision = stored.revision;
            if revision > self.position {
                let change = match self.resource.decode_past(stored) {
                    Ok(change) => Arc::new(change),
                    Err(error) => return Some(self.ended(Step::Failed(error))),
                };
                if let Some(event) = select(&self.view.filter, &change) {
                    let is_apart =
                        events.last().is_none_or(|last: &Event| last.revision() < revision);
                    if !portion.takes(event.size()) && is_apart {
                        return Some(Step::Events(Events::new(events)));
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
        (!events.is_empty()).then(|| Step::Events(Events::new(events)))
    }
}

/// What memory answers to a cursor.
enum Tail {
    /// These come next; the cursor moves to the last of them.
    Events(Arc<Events>),
    /// These, if any, and the cursor moves to this revision.
    Moved(Revision, Vec<Event>),
    /// Nothing is there yet, up to this revision.
    Wait(Revision),
    /// Memory does not reach back that far.
    Behind,
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
