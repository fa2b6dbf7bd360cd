//! Deletion of the objects of a deleted definition.
//!
//! River: definition marked for deletion → **cleanup** → its objects are deleted, then the definition
//! (S9.30, S9.31). Objects with finalizers delay it.
//! Promise: a definition is deleted only after its last object, and no object outlives it (R36).

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use headwater_api::Status;
use headwater_json::Value;
use headwater_store::{Key, Range};
use jiff::Timestamp;

use crate::answer::status;
use crate::commit;
use crate::kinds::custom::conditions::set_condition;
use crate::kinds::custom::definition::{CLEANUP, Definition, DefinitionCondition};
use crate::kinds::custom::{PREFIX, names, rows};
use crate::kinds::registry::Served;
use crate::object;
use crate::object::metadata;
use crate::server::Server;
use crate::verbs::delete;

/// The number of concurrent deletions: enough to share an fsync, few enough not to slow requests.
const DELETES_MAX: usize = 64;

impl Server {
    /// Advances the deletion of every deleted definition; returns whether one is not finished.
    pub(super) async fn clean_up_definitions(&self) -> Result<bool, Status> {
        let mut waiting = false;
        for (definition, row) in self.deleted_definitions().await {
            waiting |= !self.clean_up(&definition, row.as_ref()).await?;
        }
        Ok(waiting)
    }

    async fn deleted_definitions(&self) -> Vec<(Arc<Definition>, Option<Arc<Served>>)> {
        let definitions = self.definitions().lock().await;
        let held =
            definitions.known.values().filter(|known| known.is_deleting && known.awaits_cleanup);
        held.map(|known| {
            let kept = definitions.served.get(&known.name);
            let row = kept
                .and_then(|kept| kept.rows.first())
                .map(|row| Arc::clone(row.stored.as_ref().unwrap_or(row)));
            (Arc::clone(known), row)
        })
        .collect()
    }

    /// Returns whether the definition is deleted.
    async fn clean_up(
        &self,
        definition: &Definition,
        row: Option<&Arc<Served>>,
    ) -> Result<bool, Status> {
        let in_progress = names::condition(
            "Terminating",
            "True",
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
        );
        if definition.condition("Terminating") != Some(&in_progress) {
            self.put_definition(definition, |tree, now| set_condition(tree, &in_progress, || now))
                .await?;
            return Ok(false); // that was a change: we are called again with it
        }
        if let Some(row) = row {
            self.delete_objects(row).await?;
        }
        if !self.is_empty(&rows::prefix(definition)).await? {
            return Ok(false);
        }
        self.release(definition, row.is_some()).await?;
        self.settle_definitions().await?;
        Ok(true)
    }

    /// Deletes every object as a client would: objects with finalizers are only marked.
    async fn delete_objects(&self, row: &Arc<Served>) -> Result<(), Status> {
        let snapshot = self.cache().snapshot(&self.cache().resource(&row.prefix));
        let objects: Vec<_> = snapshot.iter("", None).cloned().collect();
        futures::stream::iter(objects)
            .map(|object| delete::forget(self, row, object))
            .buffer_unordered(DELETES_MAX)
            .try_collect::<()>()
            .await
    }

    /// Whether the store has no key with a prefix.
    async fn is_empty(&self, prefix: &str) -> Result<bool, Status> {
        let range = Range { prefix: prefix.to_owned(), limit: Some(1), ..Range::default() };
        let page = self.store().range(range).await;
        Ok(page.map_err(|error| status::from_store(&error))?.records.is_empty())
    }

    /// Removes the finalizer; without finalizers the definition is deleted.
    async fn release(&self, definition: &Definition, was_established: bool) -> Result<(), Status> {
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        let Some(held) = snapshot.get(&definition.name) else { return Ok(()) };
        if held.revision() != definition.revision {
            return Ok(());
        }
        let value = object::tree(held.as_slice())?;
        if object::finalizers(&value).iter().any(|finalizer| *finalizer != CLEANUP) {
            return self
                .put_definition(definition, |tree, now| finish(tree, was_established, now))
                .await;
        }
        let key = Key::in_collection(PREFIX, &definition.name);
        commit::remove(self.store(), key, definition.revision).await.map(drop)
    }
}

fn finish(definition: &mut Value, was_established: bool, now: Timestamp) {
    let (reason, message) = match was_established {
        true => ("InstanceDeletionCompleted", "removed all instances"),
        false => ("NeverEstablished", "resource was never established"),
    };
    let done: DefinitionCondition = names::condition("Terminating", "False", reason, message);
    set_condition(definition, &done, || now);
    let metadata = metadata(definition);
    if let Some(Value::Array(finalizers)) = metadata.get_mut("finalizers") {
        finalizers.retain(|finalizer| finalizer != CLEANUP);
    }
}
