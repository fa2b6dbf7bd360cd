//! Keys and values here and in etcd.
//!
//! River: store keys ↔ **convert** ↔ etcd's keys. With the prefix `/registry`, objects are under
//! `/registry/` and what we keep for ourselves is under `/registry.headwater/`: beside the objects,
//! never among them, and still within one range that one watch can cover.

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Change, ChangeKind, Error, Key, Record, Version};

use crate::proto::{Event, KeyValue};

/// Which of etcd's keys are ours, and how they are named in the store.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// What our keys begin with, without a slash at the end.
    prefix: String,
    /// What the store's keys begin with and etcd's do not.
    root: String,
}

impl Space {
    pub(crate) fn new(prefix: &str, root: &str) -> Space {
        Space { prefix: prefix.trim_end_matches('/').to_owned(), root: root.to_owned() }
    }

    /// The key of an object in etcd.
    pub(crate) fn outer(&self, key: &str) -> Result<Bytes, Error> {
        match key.strip_prefix(&self.root) {
            Some(rest) => Ok(format!("{}/{rest}", self.prefix).into()),
            None => Err(Error::Refused(format!("the key {key} does not start with {}", self.root))),
        }
    }

    /// The key of an object in the store; `None` if it is not an object's.
    pub(crate) fn inner(&self, key: &[u8]) -> Option<Key> {
        let rest = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/")?;
        let rest = std::str::from_utf8(rest).ok()?;
        Some(Key::new(format!("{}{rest}", self.root)))
    }

    /// The objects whose keys begin with `prefix`: from one key up to, not including, another.
    pub(crate) fn objects(&self, prefix: &str) -> (Bytes, Bytes) {
        let rest = match prefix.strip_prefix(&self.root) {
            Some(rest) => rest,
            None if self.root.starts_with(prefix) => "",
            // Nothing begins with it: a range that is empty.
            None => return (Bytes::from_static(&[1]), Bytes::from_static(&[1])),
        };
        let from = format!("{}/{rest}", self.prefix);
        let to = successor(from.as_bytes());
        (from.into(), to)
    }

    /// Everything that is ours, in one range: `.` and `/` are neighbours.
    pub(crate) fn everything(&self) -> (Bytes, Bytes) {
        (format!("{}.", self.prefix).into(), format!("{}0", self.prefix).into())
    }

    /// The key that replicas elect a compactor with; its value is what was compacted.
    pub(crate) fn compaction(&self) -> Bytes {
        format!("{}.headwater/compaction", self.prefix).into()
    }

    /// The key of the write that is under way in several steps.
    pub(crate) fn journal(&self) -> Bytes {
        format!("{}.headwater/journal", self.prefix).into()
    }

    /// One object.
    pub(crate) fn record(&self, kv: KeyValue) -> Result<Record, Error> {
        let Some(key) = self.inner(&kv.key) else {
            let place = String::from_utf8_lossy(&kv.key).into_owned();
            return Err(Error::Damaged { place, why: "the key is not valid UTF-8".into() });
        };
        if let Some(why) = foreign(&kv.value) {
            return Err(Error::Damaged { place: key.to_string(), why: why.into() });
        }
        Ok(Record { revision: revision(kv.mod_revision), value: kv.value, key })
    }

    /// One change; `None` if it is not an object's, an error if etcd no longer knows what was there
    /// before.
    pub(crate) fn change(&self, event: Event) -> Result<Option<Change>, Forgotten> {
        let Some(kv) = event.kv else { return Ok(None) };
        let Some(key) = self.inner(&kv.key) else { return Ok(None) };
        let at = revision(kv.mod_revision);
        let is_delete = event.kind == DELETE;
        if !is_delete && kv.create_revision == kv.mod_revision {
            let kind = ChangeKind::Created;
            return Ok(Some(Change { revision: at, key, kind, value: kv.value, prev: None }));
        }
        let prev = event.prev_kv.ok_or(Forgotten)?;
        let prev = Version { revision: revision(prev.mod_revision), value: prev.value };
        let (kind, value) = match is_delete {
            true => (ChangeKind::Deleted, Bytes::new()),
            false => (ChangeKind::Updated, kv.value),
        };
        Ok(Some(Change { revision: at, key, kind, value, prev: Some(prev) }))
    }
}

/// What was there before a change has been compacted away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten;

const DELETE: i32 = 1;

/// Why a value cannot be one of ours: what a real Kubernetes keeps begins like this.
pub(crate) fn foreign(value: &[u8]) -> Option<&'static str> {
    if value.starts_with(b"k8s\0") {
        return Some("the value is protobuf written by a Kubernetes API server");
    }
    if value.starts_with(b"k8s:enc:") {
        return Some("the value was encrypted by a Kubernetes API server");
    }
    None
}

/// etcd counts with signed numbers.
pub(crate) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

pub(crate) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// The first key after all keys that begin with `prefix`.
fn successor(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(&[0]) // "to the end"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::new("/here/", "/registry/")
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
    fn keys_go_there_and_come_back() {
        let space = space();
        let outer = space.outer("/registry/core/pods/a").unwrap();
        assert_eq!(outer, "/here/core/pods/a");
        assert_eq!(space.inner(&outer), Some(Key::new("/registry/core/pods/a")));
        assert!(space.outer("/elsewhere/a").is_err());
        assert_eq!(space.inner(b"/here.headwater/journal"), None);
        assert_eq!(space.inner(b"/hereafter/a"), None);
    }

    #[test]
    fn ranges_hold_their_prefix_and_nothing_else() {
        let space = space();
        let check = |prefix: &str, from: &str, to: &str| {
            assert_eq!(space.objects(prefix), (from.to_owned().into(), to.to_owned().into()));
        };
        check("/registry/core/pods/", "/here/core/pods/", "/here/core/pods0");
        check("/registry/", "/here/", "/here0");
        check("", "/here/", "/here0");
        check("/other/", "\u{1}", "\u{1}");
        let (from, to) = space.everything();
        for key in [space.compaction(), space.journal(), space.outer("/registry/a").unwrap()] {
            assert!(from < key && key < to, "{key:?}");
        }
        assert_eq!(successor(&[1, 255, 255]), &[2][..]);
        assert_eq!(successor(&[255]), &[0][..]);
    }

    #[test]
    fn a_change_without_what_was_before_is_not_made_up() {
        let space = space();
        let event = |kind, kv, prev_kv| Event { kind, kv: Some(kv), prev_kv };
        let created = space.change(event(0, kv(3), None)).unwrap().unwrap();
        assert_eq!((created.kind, created.prev), (ChangeKind::Created, None));
        let updated = space.change(event(0, kv(5), Some(kv(3)))).unwrap().unwrap();
        assert_eq!(updated.kind, ChangeKind::Updated);
        assert_eq!(updated.prev.unwrap().revision, Revision(3));
        assert_eq!(space.change(event(0, kv(5), None)), Err(Forgotten));
        assert_eq!(space.change(event(DELETE, kv(5), None)), Err(Forgotten));
        let ours = KeyValue { key: space.journal(), ..kv(5) };
        assert_eq!(space.change(event(DELETE, ours, None)), Ok(None));
    }

    #[test]
    fn values_of_kubernetes_are_known_by_their_first_bytes() {
        assert!(foreign(b"k8s\0\n\x0c").is_some());
        assert!(foreign(b"k8s:enc:aescbc:v1:").is_some());
        assert_eq!(foreign(b"{\"kind\":\"Pod\"}"), None);
    }
}
