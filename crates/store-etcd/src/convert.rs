//! Conversion of keys, values and changes between the store and etcd.
//!
//! River: store keys ↔ **convert** ↔ etcd keys. With the prefix `/registry`, objects are under
//! `/registry/` and our internal keys are under `/registry.headwater/`: never among the objects, but
//! adjacent to them, so that one watch covers both ranges.

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Change, ChangeKind, Error, Key, Record, Version};

use crate::proto::{EtcdEvent, KeyValue};

/// Maps the store's keys to etcd's keys under our prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keyspace {
    /// The prefix of our keys in etcd, without a trailing slash.
    prefix: String,
    /// The prefix of the store's keys, which etcd's keys do not have.
    root: String,
}

impl Keyspace {
    pub(crate) fn new(prefix: &str, root: &str) -> Keyspace {
        Keyspace { prefix: prefix.trim_end_matches('/').to_owned(), root: root.to_owned() }
    }

    /// The etcd key of an object.
    pub(crate) fn to_etcd(&self, key: &str) -> Result<Bytes, Error> {
        match key.strip_prefix(&self.root) {
            Some(rest) => Ok(format!("{}/{rest}", self.prefix).into()),
            None => Err(Error::Refused(format!("the key {key} does not start with {}", self.root))),
        }
    }

    /// The store key of an object; `None` if the etcd key is not an object's.
    pub(crate) fn store_key(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        let rest = std::str::from_utf8(rest).ok()?;
        Some(Key::new(format!("{}{rest}", self.root)))
    }

    /// The range of etcd keys of objects whose store key starts with `prefix`; the end is
    /// exclusive.
    pub(crate) fn objects(&self, prefix: &str) -> (Bytes, Bytes) {
        let rest = match prefix.strip_prefix(&self.root) {
            Some(rest) => rest,
            None if self.root.starts_with(prefix) => "",
            // No key starts with it: an empty range.
            None => return (Bytes::from_static(&[1]), Bytes::from_static(&[1])),
        };
        let from = format!("{}/{rest}", self.prefix);
        let to = successor(from.as_bytes());
        (from.into(), to)
    }

    /// The range of all of our keys. The byte `.` directly precedes `/`.
    pub(crate) fn everything(&self) -> (Bytes, Bytes) {
        (format!("{}.", self.prefix).into(), format!("{}0", self.prefix).into())
    }

    /// The key with which replicas elect the one that compacts; its value is the compacted
    /// revision.
    pub(crate) fn compaction(&self) -> Bytes {
        format!("{}.headwater/compaction", self.prefix).into()
    }

    /// The key under which earlier versions recorded the rest of an unfinished write.
    pub(crate) fn journal(&self) -> Bytes {
        format!("{}.headwater/journal", self.prefix).into()
    }

    /// Converts an object; `None` if the etcd key is not an object's. The value may be anything: the
    /// cache keeps values that are no objects from harming others.
    pub(crate) fn record(&self, kv: KeyValue) -> Option<Record> {
        let key = self.store_key(&kv.key)?;
        Some(Record { revision: revision(kv.mod_revision), value: kv.value, key })
    }

    /// Converts an event. `None` if the key is not an object's; an error if etcd compacted the
    /// previous value.
    pub(crate) fn change(&self, event: EtcdEvent) -> Result<Option<Change>, PrevCompacted> {
        let Some(kv) = event.kv else { return Ok(None) };
        let Some(key) = self.store_key(&kv.key) else { return Ok(None) };
        let at = revision(kv.mod_revision);
        let is_delete = event.kind == DELETE;
        if !is_delete && kv.create_revision == kv.mod_revision {
            let kind = ChangeKind::Created;
            return Ok(Some(Change { revision: at, key, kind, value: kv.value, prev: None }));
        }
        let prev = event.prev_kv.ok_or(PrevCompacted)?;
        let prev = Version { revision: revision(prev.mod_revision), value: prev.value };
        let (kind, value) = match is_delete {
            true => (ChangeKind::Deleted, Bytes::new()),
            false => (ChangeKind::Updated, kv.value),
        };
        Ok(Some(Change { revision: at, key, kind, value, prev: Some(prev) }))
    }
}

/// The previous value of a change was compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrevCompacted;

const DELETE: i32 = 1;

/// Why a value cannot be ours, by the first bytes that a Kubernetes API server writes.
pub(crate) fn foreign(value: &[u8]) -> Option<&'static str> {
    if value.starts_with(b"k8s\0") {
        return Some("the value is protobuf written by a Kubernetes API server");
    }
    if value.starts_with(b"k8s:enc:") {
        return Some("the value was encrypted by a Kubernetes API server");
    }
    None
}

/// Converts etcd's signed revision.
pub(crate) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

pub(crate) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// The first key after all keys that start with `prefix`.
fn successor(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(&[0]) // no upper limit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyspace() -> Keyspace {
        Keyspace::new("/here/", "/registry/")
    }

    fn kv(revision: i64) -> KeyValue {
        KeyValue {
            key: Bytes::from_static(b"/here/core/pods/a"),
            create_revision: 3,
            mod_revision: revision,
            ..KeyValue::default()
        }
    }

    /// S6.4
    #[test]
    fn keys_survive_a_round_trip() {
        let space = keyspace();
        let key = space.to_etcd("/registry/core/pods/a").unwrap();
        assert_eq!(key, "/here/core/pods/a");
        assert_eq!(space.store_key(&key), Some(Key::new("/registry/core/pods/a")));
        assert!(space.to_etcd("/elsewhere/a").is_err());
        assert_eq!(space.store_key(b"/here.headwater/journal"), None);
        assert_eq!(space.store_key(b"/hereafter/a"), None);
    }

    #[test]
    fn a_range_contains_exactly_the_keys_with_its_prefix() {
        let space = keyspace();
        let check = |prefix: &str, from: &str, to: &str| {
            assert_eq!(space.objects(prefix), (from.to_owned().into(), to.to_owned().into()));
        };
        check("/registry/core/pods/", "/here/core/pods/", "/here/core/pods0");
        check("/registry/", "/here/", "/here0");
        check("", "/here/", "/here0");
        check("/other/", "\u{1}", "\u{1}");
        let (from, to) = space.everything();
        for key in [space.compaction(), space.journal(), space.to_etcd("/registry/a").unwrap()] {
            assert!(from < key && key < to, "{key:?}");
        }
        assert_eq!(successor(&[1, 255, 255]), &[2][..]);
        assert_eq!(successor(&[255]), &[0][..]);
    }

    #[test]
    fn a_change_whose_previous_value_was_compacted_is_an_error() {
        let space = keyspace();
        let event = |kind, kv, prev_kv| EtcdEvent { kind, kv: Some(kv), prev_kv };
        let created = space.change(event(0, kv(3), None)).unwrap().unwrap();
        assert_eq!((created.kind, created.prev), (ChangeKind::Created, None));
        let updated = space.change(event(0, kv(5), Some(kv(3)))).unwrap().unwrap();
        assert_eq!(updated.kind, ChangeKind::Updated);
        assert_eq!(updated.prev.unwrap().revision, Revision(3));
        assert_eq!(space.change(event(0, kv(5), None)), Err(PrevCompacted));
        assert_eq!(space.change(event(DELETE, kv(5), None)), Err(PrevCompacted));
        let ours = KeyValue { key: space.journal(), ..kv(5) };
        assert_eq!(space.change(event(DELETE, ours, None)), Ok(None));
    }

    #[test]
    fn values_of_a_kubernetes_api_server_are_recognized() {
        assert!(foreign(b"k8s\0\n\x0c").is_some());
        assert!(foreign(b"k8s:enc:aescbc:v1:").is_some());
        assert_eq!(foreign(b"{\"kind\":\"Pod\"}"), None);
    }
}
