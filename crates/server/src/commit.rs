//! Guarded writes: an object and its companions are stored together, or not at all.
//!
//! River: write, delete → **commit** → store.
//! Promise: what is acknowledged is durable; a write whose guard fails changes nothing. No two
//! objects of one resource are written at one revision.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::{Revision, Status};
use headwater_store::{
    Action, Committed, Error as StoreError, Guard, Key, Op, Record, Store, Write, key,
};

use crate::answer::status;
use crate::kinds::registry::Served;

/// The lifetime of events (S6.8).
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// The group of keys that no resource serves. It has no dot, so no custom resource can have it.
pub(crate) const OWN_GROUP: &str = "headwater";

/// The outcome of a guarded write.
pub(crate) enum CommitOutcome {
    /// The write is durable at this revision.
    Stored(Revision),
    /// Another writer was first; this is the current record.
    Conflict(Option<Record>),
    /// The companion with this key changed: compute the write again.
    Contended(Key),
}

/// Writes that are committed together with an object.
#[derive(Default)]
pub(crate) struct CompanionWrites(pub(crate) Vec<Op>);

impl CompanionWrites {
    pub(crate) fn put(self, kind: &Served, key: Key, guard: Guard, value: Bytes) -> Write {
        let ttl = kind.traits.expires.then_some(EVENT_TTL);
        self.and(Op { key, guard, action: Action::Put { value, ttl } })
    }

    /// Removes an object if it is still at this revision.
    pub(crate) fn remove(self, key: Key, at: Revision) -> Write {
        self.and(Op { key, guard: Guard::At(at), action: Action::Delete })
    }

    /// The object comes last: its revision is the last of the write.
    fn and(mut self, op: Op) -> Write {
        self.0.push(op);
        Write { ops: self.0 }
    }
}

/// Stores an object if the guard holds.
pub(crate) async fn put(
    store: &dyn Store,
    kind: &Served,
    key: Key,
    guard: Guard,
    value: Bytes,
) -> Result<CommitOutcome, Status> {
    commit(store, CompanionWrites::default().put(kind, key, guard, value)).await
}

/// Removes an object if it is still at this revision.
pub(crate) async fn remove(
    store: &dyn Store,
    key: Key,
    at: Revision,
) -> Result<CommitOutcome, Status> {
    commit(store, CompanionWrites::default().remove(key, at)).await
}

/// Writes an object, which is the last of the operations.
///
/// The changes of a write may share a revision, and a client resumes a watch after the
/// resourceVersion of its last event. If it was cut between two events of one revision, it would
/// miss the second. So a write changes at most one object of each resource; a companion that
/// repeats a resource is committed afterwards.
pub(crate) async fn commit(store: &dyn Store, write: Write) -> Result<CommitOutcome, Status> {
    commit_timed(store, write).await.map(|(outcome, _)| outcome)
}

/// As [`commit`]; also returns what the store reports of a stored write.
pub(crate) async fn commit_timed(
    store: &dyn Store,
    mut write: Write,
) -> Result<(CommitOutcome, Option<Committed>), Status> {
    let object = write.ops.last().map(|op| op.key.clone());
    let repeated = take_repeated(&mut write.ops);
    match store.commit(write).await {
        Ok(committed) => {
            for op in repeated {
                let key = op.key.clone();
                if let Err(error) = store.commit(Write { ops: vec![op] }).await {
                    tracing::warn!(%key, "cannot write a companion of an object: {error}");
                }
            }
            Ok((CommitOutcome::Stored(committed.last), Some(committed)))
        }
        Err(StoreError::Conflict { key, actual }) if Some(&key) == object.as_ref() => {
            Ok((CommitOutcome::Conflict(actual), None))
        }
        Err(StoreError::Conflict { key, .. }) => Ok((CommitOutcome::Contended(key), None)),
        Err(error) => Err(status::from_store(&error)),
    }
}

/// Removes the operations on a resource that an earlier one or the last one changes.
fn take_repeated(ops: &mut Vec<Op>) -> Vec<Op> {
    if ops.len() < 2 {
        return Vec::new();
    }
    let own = format!("{}{OWN_GROUP}/", key::ROOT);
    let collection = |op: &Op| key::collection_of(op.key.as_str()).to_owned();
    let mut changed: HashSet<String> = ops.last().map(collection).into_iter().collect();
    let companions = ..ops.len() - 1;
    let is_repeated = |op: &mut Op| {
        let collection = collection(op);
        !collection.starts_with(&own) && !changed.insert(collection)
    };
    ops.extract_if(companions, is_repeated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_changes_at_most_one_object_of_each_resource() {
        let op = |key: &&str| Op {
            key: Key::new(format!("/registry/{key}")),
            guard: Guard::Absent,
            action: Action::Put { value: Bytes::new(), ttl: None },
        };
        let check = |written: &[&str], together: &[&str], after: &[&str]| {
            let mut ops: Vec<Op> = written.iter().map(op).collect();
            let repeated = take_repeated(&mut ops);
            let keys = |ops: &[Op]| -> Vec<String> {
                ops.iter().map(|op| op.key.as_str()["/registry/".len()..].to_owned()).collect()
            };
            assert_eq!(keys(&ops), together);
            assert_eq!(keys(&repeated), after);
        };
        check(&["core/pods/a/x"], &["core/pods/a/x"], &[]);
        check(&["core/pods/a/x", "core/pods/b/y"], &["core/pods/b/y"], &["core/pods/a/x"]);
        check(
            &[
                "net/ips/1",
                "net/ips/2",
                "headwater/nodeports/3",
                "headwater/nodeports/4",
                "core/s/a",
            ],
            &["net/ips/1", "headwater/nodeports/3", "headwater/nodeports/4", "core/s/a"],
            &["net/ips/2"],
        );
    }
}
