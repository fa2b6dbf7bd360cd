//! Writes the changes of a recording into a store, as a server stores them.
//!
//! River: reader → **fill** → store → a server that starts on it.
//! Promise: objects keep everything that was recorded, including uids, times, managers and status;
//! only resourceVersions are new. Changes are written in their order, so the store has their history.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use headwater_api::kind::builtin;
use headwater_api::{EventType, Kind, Revision, canonical};
use headwater_store::key::{collection, is_segment};
use headwater_store::{Action, Error, Guard, Key, Op, Range, Store, Write, key};
use jiff::Timestamp;

use crate::line::{RecordedChange, RecordedKind, RecordingLine};
use crate::reader::{RecordingError, RecordingReader, RecordingSummary};

/// How long events live, as those that a server writes.
const EVENTS_LIVE: Duration = Duration::from_secs(3600);

/// How a recording is written.
#[derive(Clone, Copy, Debug)]
pub struct FillOptions {
    /// Later changes are left out.
    pub until: Option<Timestamp>,
    /// The changes of different objects that are written together. With one, each has a revision of
    /// its own in every store; with more, a store that syncs is filled much faster.
    pub together: usize,
}

impl Default for FillOptions {
    fn default() -> FillOptions {
        FillOptions { until: None, together: 1 }
    }
}

/// Why a store cannot be filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The store cannot be written.
    #[error("cannot write the recording into the store")]
    Store(#[source] Error),
    /// The store has objects already.
    #[error("the store is not empty")]
    NotEmpty,
}

/// Writes a recording into an empty store.
///
/// # Errors
///
/// The store is not empty, the recording is damaged, or the store fails.
pub async fn fill(
    store: &dyn Store,
    source: impl Read + Send,
    options: FillOptions,
) -> Result<RecordingSummary, FillError> {
    let mut filler = Filler::new(store, options.together).await?;
    let mut reader = RecordingReader::new(source).until(options.until);
    while let Some(line) = reader.next() {
        if let RecordingLine::Change(change) = line? {
            let kind = reader.kinds()[change.kind].clone();
            filler.put(&kind, &change).await?;
        }
    }
    filler.flush().await?;
    Ok(reader.summary().clone())
}

/// Writes changes into a store one by one.
pub struct Filler<'a> {
    store: &'a dyn Store,
    /// Every stored key and its revision.
    known: BTreeMap<Key, Revision>,
    /// What is written next.
    waiting: Vec<Op>,
    together: usize,
    builtin: Vec<Kind>,
}

impl<'a> Filler<'a> {
    /// For an empty store.
    ///
    /// # Errors
    ///
    /// The store is not empty, or fails.
    pub async fn new(store: &'a dyn Store, together: usize) -> Result<Filler<'a>, FillError> {
        let any = Range { prefix: key::ROOT.to_owned(), limit: Some(1), ..Range::default() };
        if !store.range(any).await.map_err(FillError::Store)?.records.is_empty() {
            return Err(FillError::NotEmpty);
        }
        Ok(Filler::over(store, together))
    }

    /// For a store in which other writers have objects too: before each write, the revision is read.
    pub fn over(store: &'a dyn Store, together: usize) -> Filler<'a> {
        let (known, waiting) = (BTreeMap::new(), Vec::new());
        Filler { store, known, waiting, together: together.max(1), builtin: builtin() }
    }

    /// Writes a change. One that changes nothing, such as the deletion of an unknown object, is left
    /// out.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn put(
        &mut self,
        kind: &RecordedKind,
        change: &RecordedChange,
    ) -> Result<(), FillError> {
        let Some(key) = key_of(kind, change) else { return Ok(()) };
        let is_full = self.waiting.len() >= self.together;
        if is_full || self.waiting.iter().any(|op| op.key == key) {
            self.flush().await?;
        }
        let known = self.known.get(&key).copied();
        let action = match (change.event, known) {
            (EventType::Deleted, None) => return Ok(()),
            (EventType::Deleted, Some(_)) => Action::Delete,
            _ => Action::Put {
                value: self.stored(kind, change).into(),
                ttl: (kind.kind == "Event").then_some(EVENTS_LIVE),
            },
        };
        let guard = known.map_or(Guard::Absent, Guard::At);
        self.waiting.push(Op { key, guard, action });
        Ok(())
    }

    /// Writes what was put.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub async fn flush(&mut self) -> Result<(), FillError> {
        let ops = std::mem::take(&mut self.waiting);
        if ops.is_empty() {
            return Ok(());
        }
        let keys: Vec<(Key, bool)> =
            ops.iter().map(|op| (op.key.clone(), matches!(op.action, Action::Delete))).collect();
        let committed = self.commit(ops).await?;
        let share = committed.first == committed.last;
        for (index, (key, is_delete)) in keys.into_iter().enumerate() {
            let step = if share { 0 } else { index as u64 };
            match is_delete {
                true => drop(self.known.remove(&key)),
                false => drop(self.known.insert(key, Revision(committed.first.0 + step))),
            }
        }
        Ok(())
    }

    /// Commits; after a conflict with another writer, the recording wins.
    async fn commit(&self, mut ops: Vec<Op>) -> Result<headwater_store::Committed, FillError> {
        loop {
            match self.store.commit(Write { ops: ops.clone() }).await {
                Ok(committed) => return Ok(committed),
                Err(Error::Conflict { key, actual }) => {
                    let Some(op) = ops.iter_mut().find(|op| op.key == key) else {
                        return Err(FillError::Store(Error::Conflict { key, actual }));
                    };
                    let is_delete = matches!(op.action, Action::Delete);
                    match actual {
                        Some(actual) => op.guard = Guard::At(actual.revision),
                        None if is_delete => {
                            let (first, last) = (Revision::ZERO, Revision::ZERO);
                            ops.retain(|op| op.key != key);
                            if ops.is_empty() {
                                return Ok(headwater_store::Committed::new(first, last));
                            }
                        }
                        None => op.guard = Guard::Absent,
                    }
                }
                Err(error) => return Err(FillError::Store(error)),
            }
        }
    }

    /// The bytes that a server stores for an object.
    fn stored(&self, kind: &RecordedKind, change: &RecordedChange) -> Vec<u8> {
        let found = self.builtin.iter().find(|known| {
            known.group == kind.group
                && known.version == kind.version
                && known.plural == kind.plural
        });
        let as_stored = found.and_then(|found| {
            let (group, version) = found.stored_as.as_ref()?;
            let stored = self.builtin.iter().find(|known| {
                known.group == *group && known.version == *version && known.plural == kind.plural
            })?;
            Some((found, stored))
        });
        let mut object = change.object.clone();
        if let Some((from, to)) = as_stored {
            headwater_schema::convert(&mut object, from, to);
        }
        canonical(&object)
    }
}

/// The key of an object; `None` if its names cannot be part of a key.
fn key_of(kind: &RecordedKind, change: &RecordedChange) -> Option<Key> {
    let group = match (kind.group.as_str(), kind.plural.as_str()) {
        ("events.k8s.io", "events") => "",
        (group, _) => group,
    };
    let parts = [group, &kind.plural].into_iter().filter(|part| !part.is_empty());
    let object = change.key();
    let all = parts.chain(object.split('/'));
    let is_valid = all.clone().all(is_segment) && (1..=2).contains(&object.split('/').count());
    is_valid.then(|| Key::in_collection(&collection(group, &kind.plural), &object))
}

#[cfg(test)]
mod tests {
    use headwater_json::{Value, json};
    use headwater_store::Memory;

    use super::*;
    use crate::RecordingWriter;

    fn kind() -> RecordedKind {
        RecordedKind {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            namespaced: true,
        }
    }

    fn recording(changes: &[(EventType, &str, &str)]) -> Vec<u8> {
        let time = |second| Timestamp::from_second(second).unwrap();
        let begin = RecordingLine::Begin { time: time(0), server: "x".into() };
        let mut writer = RecordingWriter::new(Vec::new(), &begin).unwrap();
        writer.push(&RecordingLine::Kind(kind())).unwrap();
        for (second, (event, name, value)) in (1..).zip(changes) {
            let object = json!({
                "kind": "ConfigMap", "apiVersion": "v1", "data": {"k": value},
                "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "9"},
            });
            let (time, event) = (time(second), *event);
            let change = RecordedChange { time, kind: 0, event, initial: false, object };
            writer.push(&RecordingLine::Change(change)).unwrap();
        }
        writer.push(&RecordingLine::End { time: time(100) }).unwrap();
        writer.finish().unwrap()
    }

    async fn objects(store: &dyn Store) -> Vec<(String, Value)> {
        let page = store.range(Range { prefix: key::ROOT.into(), ..Range::default() }).await;
        let records = page.unwrap().records.into_iter();
        let read = |value: &[u8]| headwater_json::parse(value).unwrap().value;
        records.map(|record| (record.key.to_string(), read(&record.value))).collect()
    }

    const CHANGES: &[(EventType, &str, &str)] = &[
        (EventType::Added, "a", "1"),
        (EventType::Added, "b", "1"),
        (EventType::Modified, "a", "2"),
        (EventType::Deleted, "b", "1"),
        (EventType::Deleted, "never", "1"),
    ];

    #[tokio::test]
    async fn a_store_has_the_state_and_the_history_of_the_recording() {
        for together in [1, 100] {
            let store = Memory::default();
            let options = FillOptions { together, ..FillOptions::default() };
            let summary = fill(&store, &recording(CHANGES)[..], options).await.unwrap();
            assert_eq!(summary.changes, 5);
            let all = objects(&store).await;
            assert_eq!(all.len(), 1);
            let (key, object) = &all[0];
            assert_eq!(key, "/registry/core/configmaps/ns/a");
            assert_eq!(
                (&object["data"]["k"], &object["metadata"]["uid"]),
                (&"2".into(), &"u".into())
            );
            assert!(object["metadata"]["resourceVersion"].is_null());
        }
    }

    #[tokio::test]
    async fn later_changes_are_left_out() {
        let store = Memory::default();
        let until = Some(Timestamp::from_second(2).unwrap());
        let options = FillOptions { until, ..FillOptions::default() };
        fill(&store, &recording(CHANGES)[..], options).await.unwrap();
        let names: Vec<_> = objects(&store).await.into_iter().map(|(key, _)| key).collect();
        assert_eq!(names, ["/registry/core/configmaps/ns/a", "/registry/core/configmaps/ns/b"]);
    }

    #[tokio::test]
    async fn a_store_with_objects_is_not_touched() {
        let store = Memory::default();
        let bytes = recording(CHANGES);
        fill(&store, &bytes[..], FillOptions::default()).await.unwrap();
        let again = fill(&store, &bytes[..], FillOptions::default()).await;
        assert!(matches!(again, Err(FillError::NotEmpty)));
    }

    #[test]
    fn names_that_escape_their_collection_have_no_key() {
        for (namespace, name) in [("..", "a"), ("a/b", "c"), ("ns", "x/y"), ("ns", "")] {
            let object = json!({"metadata": {"name": name, "namespace": namespace}});
            let time = Timestamp::UNIX_EPOCH;
            let event = EventType::Added;
            let change = RecordedChange { time, kind: 0, event, initial: false, object };
            assert_eq!(key_of(&kind(), &change), None, "{namespace} {name}");
        }
    }
}
