//! A cache of converted objects and of conversions in flight: each change is converted once.
//!
//! Promise: at most [`BYTES_MAX`] bytes of objects and [`ENTRIES_MAX`] entries; the oldest are evicted
//! first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::future::{BoxFuture, Shared, WeakShared};
use headwater_api::{EventType, Object, Revision, Status};

/// The maximum number of bytes of cached objects per definition.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// The maximum number of cached objects per definition.
const ENTRIES_MAX: usize = 8192;

/// A call in flight, with its results in the order of the request.
pub(super) type Calling = Shared<BoxFuture<'static, Result<Arc<[Arc<Object>]>, Status>>>;

type Call = WeakShared<BoxFuture<'static, Result<Arc<[Arc<Object>]>, Status>>>;

/// One revision of one object, in one version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConversionKey {
    uid: Box<str>,
    revision: Revision,
    /// An object that leaves a selection has its old content under the new revision.
    is_last: bool,
    to: Arc<str>,
}

impl ConversionKey {
    pub(super) fn of(object: &Object, to: &Arc<str>) -> ConversionKey {
        ConversionKey {
            uid: object.uid().into(),
            revision: object.revision(),
            is_last: object.event() == EventType::Deleted,
            to: Arc::clone(to),
        }
    }
}

enum Entry {
    Ready(Arc<Object>),
    /// An item of a call in flight; dead if the call was dropped.
    Underway(Call, usize),
}

/// The state of a conversion.
pub(super) enum CachedConversion {
    Ready(Arc<Object>),
    Underway(Calling, usize),
}

/// Converted objects.
#[derive(Default)]
pub(super) struct Made {
    entries: HashMap<ConversionKey, Entry>,
    /// The keys in insertion order.
    order: VecDeque<ConversionKey>,
    bytes: usize,
}

impl Made {
    pub(super) fn find(&self, key: &ConversionKey) -> Option<CachedConversion> {
        match self.entries.get(key)? {
            Entry::Ready(object) => Some(CachedConversion::Ready(Arc::clone(object))),
            Entry::Underway(call, index) => {
                Some(CachedConversion::Underway(call.upgrade()?, *index))
            }
        }
    }

    /// Records a call in flight for these keys.
    pub(super) fn begin(&mut self, keys: Vec<ConversionKey>, call: &Calling) {
        let Some(call) = call.downgrade() else { return };
        for (index, key) in keys.into_iter().enumerate() {
            self.insert(key, Entry::Underway(call.clone(), index));
        }
    }

    /// Adds converted objects.
    pub(super) fn keep(&mut self, key: ConversionKey, object: Arc<Object>) {
        self.bytes += object.as_slice().len();
        self.insert(key, Entry::Ready(object));
    }

    fn insert(&mut self, key: ConversionKey, entry: Entry) {
        match self.entries.insert(key.clone(), entry) {
            None => self.order.push_back(key),
            Some(Entry::Underway(..)) => {}
            Some(Entry::Ready(object)) => self.bytes -= object.as_slice().len(),
        }
        while self.bytes > BYTES_MAX || self.order.len() > ENTRIES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            if let Some(Entry::Ready(object)) = self.entries.remove(&oldest) {
                self.bytes -= object.as_slice().len();
            }
        }
    }
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Made").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(revision: u64, size: usize) -> Arc<Object> {
        let text = "x".repeat(size);
        let stored = format!(
            r#"{{"kind":"K","apiVersion":"g/v","metadata":{{"name":"n","uid":"u"}},"spec":"{text}"}}"#
        );
        let revision = Revision::parse(&revision.to_string()).unwrap();
        Arc::new(Object::decode(stored.as_bytes(), revision, EventType::Modified, &[]).unwrap())
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_bytes() {
        let (mut made, to) = (Made::default(), Arc::from("g/v2"));
        let objects: Vec<_> = (1..=20).map(|revision| object(revision, 1024 * 1024)).collect();
        for object in &objects {
            made.keep(ConversionKey::of(object, &to), Arc::clone(object));
            // A second insertion counts once.
            made.keep(ConversionKey::of(object, &to), Arc::clone(object));
        }
        assert!(made.bytes <= BYTES_MAX, "{}", made.bytes);
        let found = |object: &Arc<Object>| made.find(&ConversionKey::of(object, &to)).is_some();
        assert!(found(&objects[19]) && found(&objects[13]) && !found(&objects[12]));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let (mut made, to) = (Made::default(), Arc::from("g/v2"));
        for revision in 1..=(ENTRIES_MAX as u64 + 5) {
            let object = object(revision, 1);
            made.keep(ConversionKey::of(&object, &to), object);
        }
        assert_eq!(made.entries.len(), ENTRIES_MAX);
        assert_eq!(made.order.len(), ENTRIES_MAX);
    }

    #[test]
    fn versions_are_kept_apart() {
        let mut made = Made::default();
        let object = object(1, 1);
        made.keep(ConversionKey::of(&object, &Arc::from("g/v2")), Arc::clone(&object));
        assert!(made.find(&ConversionKey::of(&object, &Arc::from("g/v3"))).is_none());
    }
}
