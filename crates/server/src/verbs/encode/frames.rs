//! The frames of a watch, in the representation that the client accepts.
//!
//! River: events → **frames** → watch stream. Complete objects are sent from their shared bytes; every
//! other frame, and every delta, is encoded once for all watchers of the same representation (S5.14).
//! Promise: a delta is only sent for a version that the watcher has.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use headwater_api::accept::{Encoding, IncludeObject, Representation, Shape};
use headwater_api::frame::{self, FRAME_END};
use headwater_api::object::ManagedFields;
use headwater_api::table::{Headings, partial};
use headwater_api::{Clock, EventType, Object, Revision, Status, delta};
use headwater_cache::{EventBatch, WatchEvent};

use super::chunk::{Chunk, PIECE_MIN};
use super::{bookmark, protobuf, view};
use crate::answer::body::Data;
use crate::kinds::registry::Served;
use crate::kinds::versions::{ConvertedObject, converted};

/// Frames of one watch.
#[derive(Clone)]
pub(crate) struct Frames {
    kind: Arc<Served>,
    representation: Representation,
    clock: Arc<dyn Clock>,
    /// Whether the column definitions were sent: only the first event has them (S4.51).
    columns_sent: bool,
    /// The key of deltas among shared encodings, if they are sent.
    deltas: Option<u64>,
}

impl Frames {
    /// `has_state` is whether the watcher has, or receives first, the state before the first change:
    /// the changes of other watchers are sent as complete objects.
    pub(crate) fn new(
        kind: &Arc<Served>,
        representation: Representation,
        clock: &Arc<dyn Clock>,
        has_state: bool,
    ) -> Frames {
        let mut frames = Frames {
            kind: Arc::clone(kind),
            representation,
            clock: Arc::clone(clock),
            columns_sent: false,
            deltas: None,
        };
        // A webhook converts objects, but not the versions that they replace.
        if representation.deltas && has_state && kind.conversion().is_none() {
            let mut hasher = DefaultHasher::new();
            (frames.key(false), "delta").hash(&mut hasher);
            frames.deltas = Some((hasher.finish() | 2) & !1);
        }
        frames
    }

    pub(crate) fn kind(&self) -> &Arc<Served> {
        &self.kind
    }

    /// The frame of a change; `made` is its object if a webhook converted it.
    fn event(&mut self, event: &WatchEvent, made: Option<&Arc<Object>>) -> Bytes {
        if let Some(delta) = self.delta(event) {
            return delta;
        }
        let made = made.filter(|made| !Arc::ptr_eq(made, event.object()));
        let Some(key) = self.key(made.is_some()) else { return event.frame() };
        let headings = self.headings();
        event.encoded(key ^ u64::from(headings == Headings::Shown), |object, event| {
            self.frame(event, made.map_or(object, |made| made), headings)
        })
    }

    /// The frames of some changes as one chunk; `made` are their objects if a webhook converted them.
    pub(crate) fn events(&mut self, events: &EventBatch, made: &[Arc<Object>]) -> Data {
        let key = self.key(false);
        // The first frame may define columns, and converted objects belong to this watch alone.
        if !made.is_empty() || (self.is_table() && !self.columns_sent) {
            let frames =
                events.iter().enumerate().map(|(at, event)| self.event(event, made.get(at)));
            return frames.collect::<Vec<Bytes>>().concat().into();
        }
        let key = self.deltas.or(key).unwrap_or_default();
        events.joined(key, |event| self.event(event, None)).into()
    }

    /// The delta of a change. The watcher has the version that it replaces: that version matched the
    /// selection too, so it is part of the state before the watch or was sent in it.
    fn delta(&self, event: &WatchEvent) -> Option<Bytes> {
        let key = self.deltas.filter(|_| event.event_type() == EventType::Modified)?;
        let prev = event.change().prev()?;
        // Nothing is stored where the complete object is not longer.
        let delta =
            event.encoded(key, |object, _| self.difference(prev, object).unwrap_or_default());
        (!delta.is_empty()).then_some(delta)
    }

    fn difference(&self, prev: &Object, object: &Object) -> Option<Bytes> {
        let (old, new) = (self.text(prev), self.text(object));
        let whole = EventType::Modified.prefix().len() + new.len() + FRAME_END.len();
        let with_digest = self.has_computed_text() || is_checked(object.revision());
        let old = (&*old, prev.revision());
        delta::encode(old, (&*new, object.revision()), with_digest, whole)
    }

    /// Whether an object can be sent as other text than before without having changed: after a change
    /// of its definition, or by another version of the server.
    fn has_computed_text(&self) -> bool {
        self.kind.custom || self.kind.is_converted()
    }

    /// The text of an object; not for tables.
    fn text<'a>(&self, object: &'a Object) -> Cow<'a, [u8]> {
        let managed = self.representation.managed_fields;
        match (self.representation.shape, converted(&self.kind, object)) {
            (Shape::Metadata { version }, seen) => {
                let mut out = BytesMut::new();
                let seen = seen.unwrap_or(ConvertedObject::Stored(object));
                partial::write(&mut out, version, &seen, managed);
                Cow::Owned(out.into())
            }
            (_, Ok(ConvertedObject::Made(made))) => Cow::Owned(made.parts(managed).concat()),
            // Stored objects are convertible; the stored version is the last resort.
            (_, Ok(ConvertedObject::Stored(_)) | Err(_)) => match managed {
                ManagedFields::Kept => Cow::Borrowed(object.as_slice()),
                ManagedFields::Dropped => Cow::Owned(object.parts(managed).concat()),
            },
        }
    }

    /// The frames of objects of the initial state as one chunk. A webhook has already converted
    /// them, if the kind has one.
    pub(crate) fn initial(&mut self, objects: &[Arc<Object>]) -> Data {
        let (is_stored, mut chunk) = (self.key(false).is_none(), Chunk::default());
        let prefix = EventType::Added.prefix();
        for (index, object) in objects.iter().enumerate() {
            let size = object.as_slice().len();
            let room = (objects.len() - index) * (size + prefix.len() + FRAME_END.len());
            if is_stored && size >= PIECE_MIN && object.event() == EventType::Added {
                chunk.push(b"", object.natural_frame());
            } else if is_stored && size >= PIECE_MIN {
                chunk.push(prefix.as_bytes(), object.bytes());
                chunk.written(0).put_slice(FRAME_END.as_bytes());
            } else if is_stored {
                let out = chunk.written(room);
                out.put_slice(prefix.as_bytes());
                out.put_slice(object.as_slice());
                out.put_slice(FRAME_END.as_bytes());
            } else {
                let headings = self.headings();
                chunk.written(0).put_slice(&self.frame(EventType::Added, object, headings));
            }
        }
        chunk.some().unwrap_or_default()
    }

    /// The key of this representation among shared encodings; `None` is the stored bytes. Its last
    /// bit is reserved for "with column definitions".
    fn key(&self, is_made: bool) -> Option<u64> {
        let Representation { encoding, shape, managed_fields, .. } = self.representation;
        let is_stored = self.representation.is_stored() && encoding == Encoding::Json;
        if is_stored && !is_made && !self.kind.is_converted() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&self.kind.group, &self.kind.version, encoding, shape, managed_fields).hash(&mut hasher);
        Some((hasher.finish() | 2) & !1)
    }

    fn is_table(&self) -> bool {
        matches!(self.representation.shape, Shape::Table { .. })
    }

    /// Shows the headings in the first table of a stream only (S4.51).
    fn headings(&mut self) -> Headings {
        match self.is_table() && !std::mem::replace(&mut self.columns_sent, true) {
            true => Headings::Shown,
            false => Headings::Omitted,
        }
    }

    fn frame(&self, event: EventType, object: &Object, headings: Headings) -> Bytes {
        match self.representation.shape {
            Shape::Whole | Shape::Metadata { .. } => self.framed(event, &self.text(object)),
            Shape::Table { version, include } => {
                let seen = converted(&self.kind, object).unwrap_or(ConvertedObject::Stored(object));
                let view = view(&self.kind, version, include, self.representation.managed_fields);
                view.event_frame(event, &seen, headings, self.clock.now())
            }
        }
    }

    /// The frame of an object's text.
    fn framed(&self, event: EventType, text: &[u8]) -> Bytes {
        match self.representation.encoding {
            Encoding::Protobuf => protobuf::frame(event, text),
            _ => frame::encode(event, text),
        }
    }

    /// The ERROR frame that ends a stream.
    pub(crate) fn error(&self, status: &Status) -> Bytes {
        self.framed(EventType::Error, &status.to_json())
    }

    /// Whether frames begin with their length as four bytes. Others end with a line feed.
    pub(crate) fn are_binary(&self) -> bool {
        self.representation.encoding == Encoding::Protobuf
    }

    /// A bookmark; `mark` is the end of the initial events (S4.10, S4.11, S4.53).
    pub(crate) fn bookmark(&mut self, revision: Revision, mark: bool) -> Bytes {
        match self.representation.shape {
            Shape::Whole => {
                self.framed(EventType::Bookmark, &bookmark::object(&self.kind, revision, mark))
            }
            Shape::Metadata { version } => {
                self.framed(EventType::Bookmark, &partial::bookmark(version, revision, mark))
            }
            Shape::Table { version, include } => {
                let headings = self.headings();
                let whole = (include == IncludeObject::Object)
                    .then(|| bookmark::object(&self.kind, revision, mark));
                let view = view(&self.kind, version, include, self.representation.managed_fields);
                view.bookmark_frame(revision, mark, headings, whole.as_deref())
            }
        }
    }
}

/// Whether the delta of a change has a digest: one in sixteen, spread over objects that change in the
/// same rhythm.
fn is_checked(revision: Revision) -> bool {
    revision.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
}
