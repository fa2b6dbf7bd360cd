//! The history checker: compares the events of a watch with the changes that happened.
//!
//! The history is every change in revision order. A record is what one client received on one
//! watch, from a cursor of the cache or as lines over HTTP. Each guarantee (R10, R23 to R29) has a
//! check and a test that breaks it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headwater_api::Revision;
use serde_json::Value;

mod check;
#[cfg(test)]
mod tests;

pub use check::{ClientRecord, EndBounds};

/// All changes of one resource, in revision order.
#[derive(Clone, Debug, Default)]
pub struct History {
    changes: BTreeMap<Revision, ObjectChange>,
    state: BTreeMap<String, ObjectVersion>,
}

/// One write. Keys are `namespace/name`, or `name` for cluster-scoped objects.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// The key that was written.
    pub key: String,
    /// The state before; `None` for a create.
    pub before: Option<ObjectVersion>,
    /// The state after; `None` for a delete.
    pub after: Option<ObjectBody>,
}

/// One state of one object, and the write that made it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectVersion {
    /// The revision of the write.
    pub revision: Revision,
    /// The object.
    pub body: ObjectBody,
}

/// An object without its resourceVersion.
#[derive(Clone, Debug)]
pub struct ObjectBody(Arc<Value>);

impl ObjectBody {
    /// Removes the resourceVersion from an object.
    pub fn new(mut object: Value) -> ObjectBody {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        ObjectBody(Arc::new(object))
    }

    /// The object.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// `namespace/name`, or `name`.
    pub fn key(&self) -> String {
        let part = |name: &str| self.0["metadata"][name].as_str().unwrap_or_default();
        match part("namespace") {
            "" => part("name").to_owned(),
            namespace => format!("{namespace}/{}", part("name")),
        }
    }
}

impl PartialEq for ObjectBody {
    fn eq(&self, other: &ObjectBody) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl History {
    /// Appends a change: the new state of a key, or `None` for a delete.
    pub fn record(&mut self, revision: Revision, key: &str, after: Option<ObjectBody>) {
        assert!(revision > self.newest(), "changes are recorded in revision order");
        let before = match &after {
            Some(body) => {
                self.state.insert(key.into(), ObjectVersion { revision, body: body.clone() })
            }
            None => self.state.remove(key),
        };
        assert!(
            before.is_some() || after.is_some(),
            "{key} is deleted at {revision} but does not exist"
        );
        self.changes.insert(revision, ObjectChange { key: key.to_owned(), before, after });
    }

    /// Appends an event of an unfiltered watch. All events must come from the same watch.
    pub fn witness(&mut self, event: &WatchEvent) -> Result<(), Violation> {
        let known = self.state.get(&event.key);
        let fits = match event.kind {
            EventKind::Added => known.is_none(),
            EventKind::Modified => known.is_some(),
            EventKind::Deleted => known.is_some_and(|known| known.body == event.body),
        };
        if !fits || event.revision <= self.newest() {
            let why = format!("{event} after {:?}", known.map(|known| known.revision));
            return Err(Violation { guarantee: Guarantee::Genuine, why });
        }
        let after = (event.kind != EventKind::Deleted).then(|| event.body.clone());
        self.record(event.revision, &event.key, after);
        Ok(())
    }

    /// The revision of the newest change.
    pub fn newest(&self) -> Revision {
        self.changes.last_key_value().map_or(Revision::ZERO, |(revision, _)| *revision)
    }

    /// The change at a revision.
    pub fn change(&self, revision: Revision) -> Option<&ObjectChange> {
        self.changes.get(&revision)
    }

    /// The changes after a revision.
    pub fn after(&self, revision: Revision) -> impl Iterator<Item = (Revision, &ObjectChange)> {
        self.changes.range(revision.next()..).map(|(revision, change)| (*revision, change))
    }

    /// The newest state, by key.
    pub fn state(&self) -> &BTreeMap<String, ObjectVersion> {
        &self.state
    }

    /// The state at a revision: the newest state with later changes reverted.
    pub fn state_at(&self, revision: Revision) -> BTreeMap<String, ObjectVersion> {
        let mut state = self.state.clone();
        for (_, change) in self.changes.range(revision.next()..).rev() {
            match &change.before {
                Some(before) => state.insert(change.key.clone(), before.clone()),
                None => state.remove(&change.key),
            };
        }
        state
    }

    /// The events that every watch of a selection must receive, in order.
    pub fn expect(&self, selection: BodyPredicate) -> ExpectedEvents<'_> {
        let mut events = BTreeMap::new();
        for (revision, change) in &self.changes {
            if let Some(event) = change.event_for(*revision, &*selection) {
                events.insert(*revision, event);
            }
        }
        ExpectedEvents { history: self, selection, events }
    }
}

impl ObjectChange {
    /// The event for a watch that selects with `matches`, if it must receive one (R28).
    fn event_for(
        &self,
        revision: Revision,
        matches: &dyn Fn(&ObjectBody) -> bool,
    ) -> Option<WatchEvent> {
        let before = self.before.as_ref().map(|before| &before.body).filter(|body| matches(body));
        let after = self.after.as_ref().filter(|body| matches(body));
        let (kind, body) = match (before, after) {
            (None, Some(after)) => (EventKind::Added, after),
            (Some(_), Some(after)) => (EventKind::Modified, after),
            (Some(before), None) => (EventKind::Deleted, before),
            (None, None) => return None,
        };
        Some(WatchEvent { kind, revision, key: self.key.clone(), body: body.clone() })
    }
}

/// Which objects a watch selects.
pub type BodyPredicate = Box<dyn Fn(&ObjectBody) -> bool + Send + Sync>;

/// The events that every watch of one selection must receive.
pub struct ExpectedEvents<'a> {
    history: &'a History,
    selection: BodyPredicate,
    events: BTreeMap<Revision, WatchEvent>,
}

/// One received event.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// ADDED, MODIFIED or DELETED.
    pub kind: EventKind,
    /// The object's resourceVersion.
    pub revision: Revision,
    /// `namespace/name`, or `name`.
    pub key: String,
    /// The object.
    pub body: ObjectBody,
}

impl fmt::Display for WatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}@{}", self.kind, self.key, self.revision)
    }
}

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// New to the watcher.
    Added,
    /// Changed.
    Modified,
    /// Deleted, or no longer selected.
    Deleted,
}

/// One item of a watch stream.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchItem {
    /// A change.
    Event(WatchEvent),
    /// A bookmark.
    Bookmark(Revision),
    /// The bookmark that ends the initial state.
    InitialEventsEnd(Revision),
    /// An ERROR event, with the code of its Status.
    Error(u64),
}

impl WatchItem {
    /// Parses a line of a watch over HTTP; `None` if it is invalid.
    pub fn parse(line: &[u8]) -> Option<WatchItem> {
        let mut frame: Value = serde_json::from_slice(line).ok()?;
        let object = frame.get_mut("object")?.take();
        let kind = match frame["type"].as_str()? {
            "ADDED" => EventKind::Added,
            "MODIFIED" => EventKind::Modified,
            "DELETED" => EventKind::Deleted,
            "ERROR" => return object["code"].as_u64().map(WatchItem::Error),
            "BOOKMARK" => {
                let revision = version(&object)?;
                let ends = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
                let is_mark = ends.as_str() == Some("true");
                return Some(if is_mark {
                    WatchItem::InitialEventsEnd(revision)
                } else {
                    WatchItem::Bookmark(revision)
                });
            }
            _ => return None,
        };
        let revision = version(&object)?;
        let body = ObjectBody::new(object);
        Some(WatchItem::Event(WatchEvent { kind, revision, key: body.key(), body }))
    }
}

/// The resourceVersion of an object or a list.
pub fn version(object: &Value) -> Option<Revision> {
    Revision::parse(object["metadata"]["resourceVersion"].as_str()?)
}

/// What one client received on one watch.
#[derive(Clone, Debug)]
pub struct WatchRecord {
    /// How the watch was requested.
    pub start: WatchStart,
    /// The received items, in order.
    pub seen: Vec<WatchItem>,
}

/// How a watch was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// With the initial state, at least as new as this revision.
    Initial(Revision),
    /// With the changes after this revision.
    After(Revision),
}

/// The guarantees of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    /// Events arrive in revision order.
    Ordered,
    /// No event arrives twice.
    Unique,
    /// No event is missing.
    Reliable,
    /// A revision has exactly one event.
    Atomic,
    /// A watch that resumes after another one has no gap and no repetition.
    Resumable,
    /// A bookmark follows all events up to its revision, and bookmarks never decrease (R27).
    Bookmarkable,
    /// Only selected objects are sent (R28).
    FilterTrue,
    /// A DELETED event has the last selected state and the revision of the write (R29).
    Previous,
    /// ADDED, MODIFIED and DELETED are correct (R28).
    EventKind,
    /// No event at or below the requested revision is sent (R23).
    NotBefore,
    /// Every event corresponds to a change of that object, with its content.
    Genuine,
    /// The initial state is complete, in key order, new enough, and ends with one bookmark (R24,
    /// R27).
    Initial,
    /// A watch fails with 410 only if its history is compacted (R25).
    Honest,
}

/// A violated guarantee.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The guarantee.
    pub guarantee: Guarantee,
    /// The details.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {:?}: {}", self.guarantee, self.why)
    }
}

impl std::error::Error for Violation {}
