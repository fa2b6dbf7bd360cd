//! The history checker: what a watch told against what happened.
//!
//! The truth is every change in revision order; a stream is what one client wrote down about one
//! watch, from wherever it came: a cursor of the cache or lines over HTTP. Each check has the name
//! of the guarantee it holds the stream to (R10, R23 to R29), and each has a test that breaks it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use headwater_api::Revision;
use serde_json::Value;

mod check;
#[cfg(test)]
mod tests;

pub use check::{Client, Ends};

/// What really happened to the objects of one resource.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    changes: BTreeMap<Revision, Change>,
    state: BTreeMap<String, Version>,
}

/// One write. Keys are `namespace/name`, or `name` where there are no namespaces.
#[derive(Clone, Debug)]
pub struct Change {
    /// What was written.
    pub key: String,
    /// The state before; `None` for a create.
    pub before: Option<Version>,
    /// The state after; `None` for a delete.
    pub after: Option<Body>,
}

/// One state of one object and the write that made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The revision of the write.
    pub revision: Revision,
    /// The object.
    pub body: Body,
}

/// An object without its resourceVersion, which is not what it is but when.
#[derive(Clone, Debug)]
pub struct Body(Arc<Value>);

impl Body {
    /// Takes the resourceVersion out of an object.
    pub fn new(mut object: Value) -> Body {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        Body(Arc::new(object))
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

impl PartialEq for Body {
    fn eq(&self, other: &Body) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Truth {
    /// Adds the next change: the new state of a key, or `None` if it is gone.
    pub fn record(&mut self, revision: Revision, key: &str, after: Option<Body>) {
        assert!(revision > self.newest(), "the truth is told in revision order");
        let before = match &after {
            Some(body) => self.state.insert(key.into(), Version { revision, body: body.clone() }),
            None => self.state.remove(key),
        };
        assert!(
            before.is_some() || after.is_some(),
            "{key} is deleted at {revision} but not there"
        );
        self.changes.insert(revision, Change { key: key.to_owned(), before, after });
    }

    /// Adds what an unfiltered watch told. The truth must be fed from one place only.
    pub fn witness(&mut self, event: &Event) -> Result<(), Violation> {
        let known = self.state.get(&event.key);
        let fits = match event.kind {
            Kind::Added => known.is_none(),
            Kind::Modified => known.is_some(),
            Kind::Deleted => known.is_some_and(|known| known.body == event.body),
        };
        if !fits || event.revision <= self.newest() {
            let why = format!("{event} after {:?}", known.map(|known| known.revision));
            return Err(Violation { check: Check::Genuine, why });
        }
        let after = (event.kind != Kind::Deleted).then(|| event.body.clone());
        self.record(event.revision, &event.key, after);
        Ok(())
    }

    /// The newest change.
    pub fn newest(&self) -> Revision {
        self.changes.last_key_value().map_or(Revision::ZERO, |(revision, _)| *revision)
    }

    /// The change at a revision.
    pub fn change(&self, revision: Revision) -> Option<&Change> {
        self.changes.get(&revision)
    }

    /// Changes after a revision.
    pub fn after(&self, revision: Revision) -> impl Iterator<Item = (Revision, &Change)> {
        self.changes.range(revision.next()..).map(|(revision, change)| (*revision, change))
    }

    /// The newest state, by key.
    pub fn state(&self) -> &BTreeMap<String, Version> {
        &self.state
    }

    /// The state at a revision: the newest with later changes undone.
    pub fn state_at(&self, revision: Revision) -> BTreeMap<String, Version> {
        let mut state = self.state.clone();
        for (_, change) in self.changes.range(revision.next()..).rev() {
            match &change.before {
                Some(before) => state.insert(change.key.clone(), before.clone()),
                None => state.remove(&change.key),
            };
        }
        state
    }

    /// What every watch of a selection must be told, in order.
    pub fn expect(&self, selection: Selection) -> Expected<'_> {
        let mut events = BTreeMap::new();
        for (revision, change) in &self.changes {
            if let Some(event) = change.told(*revision, &*selection) {
                events.insert(*revision, event);
            }
        }
        Expected { truth: self, selection, events }
    }
}

impl Change {
    /// What those who select with `matches` must be told (R28).
    fn told(&self, revision: Revision, matches: &dyn Fn(&Body) -> bool) -> Option<Event> {
        let before = self.before.as_ref().map(|before| &before.body).filter(|body| matches(body));
        let after = self.after.as_ref().filter(|body| matches(body));
        let (kind, body) = match (before, after) {
            (None, Some(after)) => (Kind::Added, after),
            (Some(_), Some(after)) => (Kind::Modified, after),
            (Some(before), None) => (Kind::Deleted, before),
            (None, None) => return None,
        };
        Some(Event { kind, revision, key: self.key.clone(), body: body.clone() })
    }
}

/// Which objects a watch selects.
pub type Selection = Box<dyn Fn(&Body) -> bool + Send + Sync>;

/// What every watch of one selection must be told.
pub struct Expected<'a> {
    truth: &'a Truth,
    selection: Selection,
    events: BTreeMap<Revision, Event>,
}

/// One event that was told.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// ADDED, MODIFIED or DELETED.
    pub kind: Kind,
    /// The object's resourceVersion.
    pub revision: Revision,
    /// `namespace/name`, or `name`.
    pub key: String,
    /// The object.
    pub body: Body,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}@{}", self.kind, self.key, self.revision)
    }
}

/// The type of an event about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// New to the watcher.
    Added,
    /// Changed.
    Modified,
    /// Gone, or out of the selection.
    Deleted,
}

/// One thing on a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// A change.
    Event(Event),
    /// A bookmark.
    Bookmark(Revision),
    /// The bookmark that ends the initial state.
    Mark(Revision),
    /// The ERROR event: the code of its Status.
    Error(u64),
}

impl Seen {
    /// Reads a line of a watch over HTTP; `None` if it is not one.
    pub fn parse(line: &[u8]) -> Option<Seen> {
        let mut frame: Value = serde_json::from_slice(line).ok()?;
        let object = frame.get_mut("object")?.take();
        let kind = match frame["type"].as_str()? {
            "ADDED" => Kind::Added,
            "MODIFIED" => Kind::Modified,
            "DELETED" => Kind::Deleted,
            "ERROR" => return object["code"].as_u64().map(Seen::Error),
            "BOOKMARK" => {
                let revision = version(&object)?;
                let ends = &object["metadata"]["annotations"]["k8s.io/initial-events-end"];
                let is_mark = ends.as_str() == Some("true");
                return Some(if is_mark { Seen::Mark(revision) } else { Seen::Bookmark(revision) });
            }
            _ => return None,
        };
        let revision = version(&object)?;
        let body = Body::new(object);
        Some(Seen::Event(Event { kind, revision, key: body.key(), body }))
    }
}

/// The resourceVersion of an object or a list.
pub fn version(object: &Value) -> Option<Revision> {
    Revision::parse(object["metadata"]["resourceVersion"].as_str()?)
}

/// What one client wrote down about one watch.
#[derive(Clone, Debug)]
pub struct Stream {
    /// How it was asked for.
    pub start: Start,
    /// What came, in order.
    pub seen: Vec<Seen>,
}

/// How a watch was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the initial state, not older than this, and its mark.
    Initial(Revision),
    /// With the changes after this revision.
    After(Revision),
}

/// The guarantees of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Events come in revision order.
    Ordered,
    /// No event comes twice.
    Unique,
    /// No event is left out.
    Reliable,
    /// A revision is one change; it is told whole.
    Atomic,
    /// A watch that begins where another ended goes on without gap or repeat.
    Resumable,
    /// A bookmark comes after everything up to it, and bookmarks never fall (R27).
    Bookmarkable,
    /// Only what the selection matches is told (R28).
    FilterTrue,
    /// A DELETED event has the last state that matched, and the revision of the write (R29).
    Previous,
    /// ADDED, MODIFIED and DELETED are told apart (R28).
    Kind,
    /// Nothing at or below the asked revision is told (R23).
    NotBefore,
    /// What is told happened, to that object, and is what it looked like.
    Genuine,
    /// The initial state is complete, in key order, fresh enough, and marked once (R24, R27).
    Initial,
    /// A stream is refused with 410 only when its history is gone (R25).
    Honest,
}

/// A guarantee that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub check: Check,
    /// How.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {:?}: {}", self.check, self.why)
    }
}

impl std::error::Error for Violation {}
