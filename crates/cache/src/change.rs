//! A change with decoded objects, and the event that one view derives from it.
//!
//! River: feed → **change** → window, views → watch streams.
//! Promise: a change is decoded once, and each representation of it is encoded at most once, when a
//! watcher first needs it (S5.14).

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
pub struct ObjectChange {
    revision: Revision,
    kind: ChangeKind,
    /// The new state; for a delete, the last state at the revision of the delete.
    object: Arc<Object>,
    /// The previous state; `None` for a create.
    prev: Option<Arc<Object>>,
    /// The previous state at this revision, for views whose selection the object leaves.
    left: OnceLock<Arc<Object>>,
    encodings: Mutex<Vec<Encoding>>,
    /// When the change reached the cache; the window drops changes by age.
    pub(crate) at: Instant,
}

/// The memory of a change without the bytes of its objects.
const OVERHEAD: usize = 256;

struct Encoding {
    key: u64,
    transition: ViewTransition,
    bytes: Bytes,
}

/// How a change relates to the selection of one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewTransition {
    /// The object matches before and after, or is created or deleted while it matches.
    Within,
    /// An update after which the object matches.
    Entered,
    /// An update after which the object no longer matches.
    Left,
}

impl ObjectChange {
    /// The object is created or replaced.
    pub(crate) fn written(object: Object, prev: Option<Arc<Object>>) -> ObjectChange {
        let kind = if prev.is_some() { ChangeKind::Updated } else { ChangeKind::Created };
        ObjectChange::new(kind, object, prev)
    }

    /// The object is removed, or what replaces it cannot be read.
    pub(crate) fn removed(
        prev: Arc<Object>,
        at: Revision,
        fields: &[Field],
    ) -> Result<ObjectChange, Malformed> {
        let object = prev.restamped(at, EventType::Deleted, fields)?;
        Ok(ObjectChange::new(ChangeKind::Deleted, object, Some(prev)))
    }

    fn new(kind: ChangeKind, object: Object, prev: Option<Arc<Object>>) -> ObjectChange {
        ObjectChange {
            revision: object.revision(),
            kind,
            object: Arc::new(object),
            prev,
            left: OnceLock::new(),
            encodings: Mutex::new(Vec::new()),
            at: Instant::now(),
        }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether the object was created, updated or deleted.
    pub fn kind(&self) -> ChangeKind {
        self.kind
    }

    /// The new state; for a delete, the last state at the revision of the delete.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// The previous state; `None` for a create.
    pub fn prev(&self) -> Option<&Arc<Object>> {
        self.prev.as_ref()
    }

    /// Bytes of memory that only this change holds. Its new state is either current or counted as
    /// the replaced state of a later change, so the replaced state counts here.
    pub(crate) fn weight(&self) -> usize {
        let deleted = match self.kind {
            ChangeKind::Deleted => self.object.as_slice().len(),
            ChangeKind::Created | ChangeKind::Updated => 0,
        };
        self.replaced() + deleted + OVERHEAD
    }

    /// Bytes of the replaced state.
    pub(crate) fn replaced(&self) -> usize {
        self.prev.as_ref().map_or(0, |prev| prev.as_slice().len())
    }

    /// How this change relates to a view that selects with `matches`; `None` if it does not concern
    /// the view (S4.20).
    pub(crate) fn transition(&self, matches: impl Fn(&Object) -> bool) -> Option<ViewTransition> {
        match (self.kind, &self.prev) {
            (ChangeKind::Created, _) => matches(&self.object).then_some(ViewTransition::Within),
            (ChangeKind::Deleted, Some(prev)) => matches(prev).then_some(ViewTransition::Within),
            (ChangeKind::Deleted, None) => None,
            (ChangeKind::Updated, prev) => {
                let before = prev.as_ref().is_some_and(|prev| matches(prev));
                match (before, matches(&self.object)) {
                    (true, true) => Some(ViewTransition::Within),
                    (false, true) => Some(ViewTransition::Entered),
                    (true, false) => Some(ViewTransition::Left),
                    (false, false) => None,
                }
            }
        }
    }

    fn left(&self) -> &Arc<Object> {
        self.left.get_or_init(|| {
            let prev = self.prev.as_ref().unwrap_or(&self.object);
            // No fields: this object is only sent.
            let left = prev.restamped(self.revision, EventType::Deleted, &[]);
            Arc::new(left.expect("bytes that were read once are read again"))
        })
    }
}

/// One event of one watch: a change and its relation to the watcher's selection.
#[derive(Clone)]
pub struct WatchEvent {
    pub(crate) change: Arc<ObjectChange>,
    pub(crate) transition: ViewTransition,
}

impl WatchEvent {
    /// The change, independent of the view.
    pub fn change(&self) -> &ObjectChange {
        &self.change
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        self.change.revision
    }

    /// The event type on the wire.
    pub fn event_type(&self) -> EventType {
        match (self.transition, self.change.kind) {
            (ViewTransition::Entered, _) | (_, ChangeKind::Created) => EventType::Added,
            (ViewTransition::Left, _) | (_, ChangeKind::Deleted) => EventType::Deleted,
            (ViewTransition::Within, ChangeKind::Updated) => EventType::Modified,
        }
    }

    /// The object on the wire. Its resourceVersion is always the revision of the change (S4.21).
    pub fn object(&self) -> &Arc<Object> {
        match self.transition {
            ViewTransition::Left => self.change.left(),
            ViewTransition::Within | ViewTransition::Entered => &self.change.object,
        }
    }

    /// The approximate number of bytes on the wire.
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

    /// A frame in another representation, encoded once for all watchers with the same `key`. Key 0
    /// is the JSON frame.
    pub fn encoded(&self, key: u64, encode: impl FnOnce(&Object, EventType) -> Bytes) -> Bytes {
        // An encoder that panicked has not added anything.
        let mut encodings = lock(&self.change.encodings);
        if let Some(found) =
            encodings.iter().find(|e| e.key == key && e.transition == self.transition)
        {
            return found.bytes.clone();
        }
        let bytes = encode(self.object(), self.event_type());
        encodings.push(Encoding { key, transition: self.transition, bytes: bytes.clone() });
        bytes
    }
}

/// Consecutive events of one selection, in revision order. Watchers at the same position share
/// them.
pub struct EventBatch {
    events: Vec<WatchEvent>,
    /// The frames of all events as one chunk, by representation.
    joined: Mutex<Vec<(u64, Bytes)>>,
}

impl EventBatch {
    pub(crate) fn new(events: Vec<WatchEvent>) -> Arc<EventBatch> {
        Arc::new(EventBatch { events, joined: Mutex::default() })
    }

    /// The concatenated frames of all events, joined once for all watchers with the same `key`. A
    /// single frame is not copied.
    pub fn joined(&self, key: u64, mut frame: impl FnMut(&WatchEvent) -> Bytes) -> Bytes {
        if let [event] = self.events.as_slice() {
            return frame(event);
        }
        // An encoder that panicked has not added anything.
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

impl Deref for EventBatch {
    type Target = [WatchEvent];

    fn deref(&self) -> &[WatchEvent] {
        &self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(revision: u64) -> Arc<ObjectChange> {
        let value = br#"{"metadata":{"name":"a"}}"#;
        let object = Object::decode(value, Revision(revision), EventType::Added, &[]);
        Arc::new(ObjectChange::written(object.unwrap(), None))
    }

    /// S5.14
    #[test]
    fn events_are_joined_once_for_each_representation() {
        let event =
            |revision| WatchEvent { change: change(revision), transition: ViewTransition::Within };
        let events = EventBatch::new(vec![event(1), event(2)]);
        let mut encoded = 0;
        let mut frame = |event: &WatchEvent| {
            encoded += 1;
            Bytes::from(format!("{};", event.revision()))
        };
        let chunk = events.joined(0, &mut frame);
        assert_eq!(chunk, "1;2;");
        assert_eq!(events.joined(0, &mut frame).as_ptr(), chunk.as_ptr());
        assert_eq!(events.joined(4, &mut frame), "1;2;");
        assert_eq!(encoded, 4, "two events in two representations");
    }
}
