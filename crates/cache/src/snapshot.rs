//! A snapshot: all objects of one resource at one revision.
//!
//! River: feed → **snapshot** → get, list, initial events.
//! Promise: a snapshot is immutable. Old snapshots stay readable while referenced, and share all
//! unchanged nodes with newer ones.

use std::sync::Arc;

use headwater_api::marks::Marks;
use headwater_api::{Object, Revision};

use crate::tree::{Keyed, Tree};
use crate::unreadable::UnreadableValues;
use crate::view::Filter;

/// All objects of one resource at one revision.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) objects: Objects,
    revision: Revision,
    pub(crate) unreadable: UnreadableValues,
    /// Bytes shared with no newer state: not zero if the snapshot was read from the store.
    pub(crate) own_bytes: usize,
}

impl Snapshot {
    pub(crate) fn new(objects: Objects, revision: Revision) -> Snapshot {
        Snapshot { objects, revision, unreadable: UnreadableValues::default(), own_bytes: 0 }
    }

    pub(crate) fn with_unreadable(self, unreadable: UnreadableValues) -> Snapshot {
        Snapshot { unreadable, ..self }
    }

    /// The revision of the state.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.0.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An object by `namespace/name` or `name`.
    pub fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// The revision of the value of a key that cannot be read: the object exists, but is not served.
    pub fn unreadable(&self, key: &str) -> Option<Revision> {
        self.unreadable.get(key)
    }

    /// The number of values that cannot be read.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.len()
    }

    /// Objects in key order, of one namespace or of all, after a key.
    pub fn iter<'a>(
        &'a self,
        namespace: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.objects.iter(namespace, after)
    }

    /// The number of objects, of one namespace or of all, after a key. Takes no scan.
    pub fn count(&self, namespace: &str, after: Option<&str>) -> usize {
        self.objects.count(namespace, after)
    }
}

impl Snapshot {
    /// Objects that a filter selects, in key order, after a key.
    pub fn select<'a>(
        &'a self,
        filter: &'a Filter,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let namespace = filter.only_namespace();
        // A filter that determines the complete key is one lookup (S3.35).
        let named = filter.fields.name().and_then(|name| match namespace {
            "" => self.get(name),
            namespace => self.get(&format!("{namespace}/{name}")),
        });
        let looked_up =
            filter.fields.name().is_some() && (named.is_some() || !namespace.is_empty());
        let rest = (!looked_up).then(|| self.objects.marked(filter.marks(), namespace, after));
        let single = named.filter(|object| after.is_none_or(|after| object.key() > after));
        single.into_iter().chain(rest.into_iter().flatten()).filter(|object| filter.matches(object))
    }
}

/// The objects of a snapshot.
#[derive(Clone, Default)]
pub(crate) struct Objects(Tree<MarkedObject>);

/// An object and its marks. Marks are stored inline, so that a selective list skips objects without
/// a cache miss for each.
#[derive(Clone)]
struct MarkedObject {
    marks: Marks,
    object: Arc<Object>,
}

impl Keyed for MarkedObject {
    fn key(&self) -> &str {
        self.object.key()
    }
}

impl Objects {
    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Object>> {
        self.0.get(key).map(|held| &held.object)
    }

    /// Inserts an object and returns its older version.
    pub(crate) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        self.0.insert(MarkedObject { marks: object.marks(), object }).map(|held| held.object)
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Arc<Object>> {
        self.0.remove(key).map(|held| held.object)
    }

    pub(crate) fn iter<'a>(
        &'a self,
        namespace: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        self.marked(Marks::default(), namespace, after)
    }

    fn count(&self, namespace: &str, after: Option<&str>) -> usize {
        let (after, end) = key_range(namespace, after);
        self.0.count(&after, end.as_deref())
    }

    /// Objects that have all of these marks.
    fn marked<'a>(
        &'a self,
        marks: Marks,
        namespace: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let (after, end) = key_range(namespace, after);
        let held = self.0.range(&after, end);
        held.filter(move |held| held.marks.cover(marks)).map(|held| &held.object)
    }
}

/// The keys of a namespace, or of all, after a key: the bound below and the one above.
fn key_range(namespace: &str, after: Option<&str>) -> (String, Option<String>) {
    let after = after.unwrap_or_default();
    match namespace {
        "" => (after.to_owned(), None),
        // `0` is the byte after `/`: the keys of a namespace are those from `namespace/` up to
        // `namespace0`.
        namespace => {
            let first = [namespace, "/"].concat();
            (first.max(after.to_owned()), Some([namespace, "0"].concat()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_api::EventType;

    fn objects(keys: &[&str]) -> Objects {
        let mut objects = Objects::default();
        for key in keys {
            let stored = match key.split_once('/') {
                Some((ns, name)) => {
                    format!(r#"{{"metadata":{{"name":"{name}","namespace":"{ns}"}}}}"#)
                }
                None => format!(r#"{{"metadata":{{"name":"{key}"}}}}"#),
            };
            let object =
                Object::decode(stored.as_bytes(), Revision(1), EventType::Added, &[]).unwrap();
            objects.insert(Arc::new(object));
        }
        objects
    }

    #[track_caller]
    fn check(namespace: &str, after: Option<&str>, expected: &[&str]) {
        let objects = objects(&["a/x", "a-b/x", "a/y", "a0/z", "ab/x", "b/x"]);
        let keys: Vec<&str> = objects.iter(namespace, after).map(|object| object.key()).collect();
        assert_eq!(keys, expected);
        assert_eq!(objects.count(namespace, after), expected.len());
    }

    #[test]
    fn a_namespace_holds_exactly_its_own_objects() {
        check("", None, &["a-b/x", "a/x", "a/y", "a0/z", "ab/x", "b/x"]);
        check("a", None, &["a/x", "a/y"]);
        check("a", Some("a/x"), &["a/y"]);
        check("a", Some("a/y"), &[]);
        check("a", Some("b/y"), &[]);
        check("a", Some("Z"), &["a/x", "a/y"]);
        check("", Some("a/y"), &["a0/z", "ab/x", "b/x"]);
        check("none", None, &[]);
    }
}
