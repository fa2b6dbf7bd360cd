//! A change as watchers see it, and the event that one view makes of it.
//!
//! River: feed → **change** → window, views → watch streams.
//! Promise: a change is decoded once, and each representation of it is encoded at most once, by
//! whoever needs it first (S5.14).

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use headwater_api::kind::Field;
use headwater_api::{EventType, Object, Revision};
use headwater_json::scan::Malformed;
use headwater_store::ChangeKind;
use headwater_store::lock::lock;
use tokio::time::Instant;

/// One committed write to one object.
pub struct Change {
    revision: Revision,
    kind: ChangeKind,
    /// The new state; for a delete, the last state at the revision of the delete.
    object: Arc<Object>,
    /// The state before; `None` for a create.
    prev: Option<Arc<Object>>,
    /// The state before, at this revision: what those see whose selection it leaves.
    left: OnceLock<Arc<Object>>,
    encodings: Mutex<Vec<Encoding>>,
    /// When it reached the cache: the window is bounded by age.
    pub(crate) at: Instant,
}

/// What a change costs besides the bytes of objects.
const OVERHEAD: usize = 256;

struct Encoding {
    key: u64,
    turn: Turn,
    bytes: Bytes,
}

/// What a change is to one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Inside before and after, or made or deleted inside.
    Natural,
    /// An update that brought it into the selection.
    Entered,
    /// An update that took it out of the selection.
    Left,
}

impl Change {
    /// A change from stored bytes, of which `value` is the form that is read. `prev` is the state
    /// before, if there was one.
    pub(crate) fn decode(
        change: &headwater_store::Change,
        value: &[u8],
        prev: Option<Arc<Object>>,
        fields: &[Field],
    ) -> Result<Change, Malformed> {
        let object = match (change.kind, &prev) {
            (ChangeKind::Created, _) => {
                Object::decode(value, change.revision, EventType::Added, fields)?
            }
            (ChangeKind::Updated, _) => {
                Object::decode(value, change.revision, EventType::Modified, fields)?
            }
            (ChangeKind::Deleted, Some(prev)) => {
                prev.restamped(change.revision, EventType::Deleted, fields)?
            }
            (ChangeKind::Deleted, None) => return Err(Malformed { at: 0 }),
        };
        Ok(Change {
            revision: change.revision,
            kind: change.kind,
            object: Arc::new(object),
            prev,
            left: OnceLock::new(),
            encodings: Mutex::new(Vec::new()),
            at: Instant::now(),
        })
    }

    /// Its place in the order of all writes.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether it created, updated or deleted.
    pub fn kind(&self) -> ChangeKind {
        self.kind
    }

    /// The new state; for a delete, the last state at the revision of the delete.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// The state before; `None` for a create.
    pub fn prev(&self) -> Option<&Arc<Object>> {
        self.prev.as_ref()
    }

    /// Bytes it holds in memory beyond what the current state shares. Its new state is either
    /// current or what a later change replaced, so it is what this one replaced that counts.
    pub(crate) fn weight(&self) -> usize {
        let deleted = match self.kind {
            ChangeKind::Deleted => self.object.as_slice().len(),
            ChangeKind::Created | ChangeKind::Updated => 0,
        };
        self.replaced() + deleted + OVERHEAD
    }

    /// Bytes of the state that it replaced.
    pub(crate) fn replaced(&self) -> usize {
        self.prev.as_ref().map_or(0, |prev| prev.as_slice().len())
    }

    /// What this change is to a view that selects with `matches`; `None` if nothing (S4.20).
    pub(crate) fn turn(&self, matches: impl Fn(&Object) -> bool) -> Option<Turn> {
        match (self.kind, &self.prev) {
            (ChangeKind::Created, _) => matches(&self.object).then_some(Turn::Natural),
            (ChangeKind::Deleted, Some(prev)) => matches(prev).then_some(Turn::Natural),
            (ChangeKind::Deleted, None) => None,
            (ChangeKind::Updated, prev) => {
                let before = prev.as_ref().is_some_and(|prev| matches(prev));
                match (before, matches(&self.object)) {
                    (true, true) => Some(Turn::Natural),
                    (false, true) => Some(Turn::Entered),
                    (true, false) => Some(Turn::Left),
                    (false, false) => None,
                }
            }
        }
    }

    fn left(&self) -> &Arc<Object> {
        self.left.get_or_init(|| {
            let prev = self.prev.as_ref().unwrap_or(&self.object);
            // Fields are not needed any more: this body is only ever sent.
            let left = prev.restamped(self.revision, EventType::Deleted, &[]);
            Arc::new(left.expect("bytes that were read once are read again"))
        })
    }
}

/// One event of one watch: a change, and what it is to the watcher's view.
#[derive(Clone)]
pub struct Event {
    pub(crate) change: Arc<Change>,
    pub(crate) turn: Turn,
}

impl Event {
    /// The change itself, whatever the view makes of it.
    pub fn change(&self) -> &Change {
        &self.change
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.change.revision
    }

    /// The type on the wire.
    pub fn event_type(&self) -> EventType {
        match (self.turn, self.change.kind) {
            (Turn::Entered, _) | (_, ChangeKind::Created) => EventType::Added,
            (Turn::Left, _) | (_, ChangeKind::Deleted) => EventType::Deleted,
            (Turn::Natural, ChangeKind::Updated) => EventType::Modified,
        }
    }

    /// The object on the wire: its RV is always the revision of the change (S4.21).
    pub fn object(&self) -> &Arc<Object> {
        match self.turn {
            Turn::Left => self.change.left(),
            Turn::Natural | Turn::Entered => &self.change.object,
        }
    }

    /// About how many bytes it takes on the wire.
    pub(crate) fn size(&self) -> usize {
        self.change.object.as_slice().len()
    }

    /// The JSON frame.
    pub fn frame(&self) -> Bytes {
        let object = self.object();
        if object.event() == self.event_type() {
            return object.natural_frame();
        }
        self.encoded(0, |object, event| object.frame(event))
    }

    /// A frame in another representation, encoded once for all watchers that use the same `key`.
    /// Key 0 is the JSON frame.
    pub fn encoded(&self, key: u64, encode: impl FnOnce(&Object, EventType) -> Bytes) -> Bytes {
        // An encoder that panicked has added nothing.
        let mut encodings = lock(&self.change.encodings);
        if let Some(found) = encodings.iter().find(|e| e.key == key && e.turn == self.turn) {
            return found.bytes.clone();
        }
        let bytes = encode(self.object(), self.event_type());
        encodings.push(Encoding { key, turn: self.turn, bytes: bytes.clone() });
        bytes
    }
}

/// Some events of one selection, in revision order. Watchers that stand at the same place are given
/// the same ones.
pub struct Events {
    events: Vec<Event>,
    /// All of them as one chunk, by representation.
    joined: Mutex<Vec<(u64, Bytes)>>,
}

impl Events {
    pub(crate) fn new(events: Vec<Event>) -> Arc<Events> {
        Arc::new(Events { events, joined: Mutex::default() })
    }

    /// Whether others may be given the same ones, so that putting them together is worth it.
    pub fn are_shared(events: &Arc<Events>) -> bool {
        Arc::strong_count(events) > 1
    }

    /// The frames of all of them, one after the other, put together once for all watchers that use
    /// the same `key`. One frame alone is not copied.
    pub fn joined(&self, key: u64, mut frame: impl FnMut(&Event) -> Bytes) -> Bytes {
        if let [event] = self.events.as_slice() {
            return frame(event);
        }
        // An encoder that panicked has added nothing.
        let mut joined = lock(&self.joined);
        if let Some((_, chunk)) = joined.iter().find(|(known, _)| *known == key) {
            return chunk.clone();
        }
        let frames: Vec<Bytes> = self.events.iter().map(frame).collect();
        let chunk = Bytes::from(frames.concat());
        joined.push((key, chunk.clone()));
        chunk
    }
}

impl Deref for Events {
    type Target = [Event];

    fn deref(&self) -> &[Event] {
        &self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64) -> Arc<Change> {
        let stored = headwater_store::Change {
            revision: Revision(revision),
            key: headwater_store::Key::new("/registry/core/pods/a"),
            kind: ChangeKind::Created,
            value: Bytes::new(),
            prev: None,
        };
        let value = br#"{"metadata":{"name":"a"}}"#;
        Arc::new(Change::decode(&stored, value, None, &[]).unwrap())
    }

    /// S5.14
    #[test]
    fn events_are_joined_once_for_each_representation() {
        let event = |revision| Event { change: change(revision), turn: Turn::Natural };
        let events = Events::new(vec![event(1), event(2)]);
        let mut encoded = 0;
        let mut frame = |event: &Event| {
            encoded += 1;
            Bytes::from(format!("{};", event.revision()))
        };
        let chunk = events.joined(0, &mut frame);
        assert_eq!(chunk, "1;2;");
        assert_eq!(events.joined(0, &mut frame).as_ptr(), chunk.as_ptr());
        assert_eq!(events.joined(4, &mut frame), "1;2;");
        assert_eq!(encoded, 4, "two events in two representations");
        assert!(!Events::are_shared(&events));
        let other = Arc::clone(&events);
        assert!(Events::are_shared(&other));
    }
}
