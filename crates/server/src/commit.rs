//! Guarded writes: an object and its companions are stored together, or not at all.
//!
//! River: write, delete → **commit** → store.
//! Promise: what is acknowledged is durable; a write whose guard fails changes nothing.

use std::time::Duration;

use bytes::Bytes;
use headwater_api::{Revision, Status};
use headwater_store::{Action, Error as StoreError, Guard, Key, Op, Record, Store, Write};

use crate::answer::status;
use crate::kinds::registry::Served;

/// The lifetime of events (S6.8).
const EVENT_TTL: Duration = Duration::from_secs(3600);

/// The outcome of a guarded write.
pub(crate) enum CommitOutcome {
    /// The write is durable at this revision.
    Stored(Revision),
    /// Another writer was first; this is the current record.
    Conflict(Option<Record>),
    /// A companion changed: compute the write again.
    Contended,
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
pub(crate) async fn commit(store: &dyn Store, write: Write) -> Result<CommitOutcome, Status> {
    let object = write.ops.last().map(|op| op.key.clone());
    match store.commit(write).await {
        Ok(committed) => Ok(CommitOutcome::Stored(committed.last)),
        Err(StoreError::Conflict { key, actual }) if Some(&key) == object.as_ref() => {
            Ok(CommitOutcome::Conflict(actual))
        }
        Err(StoreError::Conflict { .. }) => Ok(CommitOutcome::Contended),
        Err(error) => Err(status::from_store(&error)),
    }
}
