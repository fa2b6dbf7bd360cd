//! Reconciliation of custom resource definitions.
//!
//! River: a definition object is written → **definitions** → status, registry, cache. A write of a
//! definition reconciles it before the response, so that an acknowledged definition is served; a task
//! does the same for definitions of other servers, and deletes the objects of deleted definitions.
//! Promise: rows, discovery and the cache's view of a kind change together, and watches of a kind
//! whose definition changed end cleanly (S9.32).

use headwater_api::Status;
use headwater_json::Value;
use headwater_store::{Guard, Key};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::answer::status;
use crate::commit::{CommitOutcome, put};
use crate::kinds::custom::PREFIX;
use crate::kinds::custom::conditions::conclude;
use crate::kinds::custom::definition::Definition;
use crate::kinds::custom::definitions::Outdated;
use crate::kinds::registry::Registry;
use crate::object::{canonical, tree};
use crate::server::Server;
use crate::upkeep::follow::ObjectChanges;

impl Server {
    /// Serves the definitions in the cache, before the first request.
    pub(crate) fn serve_definitions(&self) -> Result<(), headwater_cache::Error> {
        let mut definitions = self
            .definitions()
            .try_lock()
            .expect("nobody else has the server yet, so nobody settles definitions");
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        definitions.read(&snapshot);
        let outdated = definitions.outdated(&snapshot);
        let news = definitions.serve(outdated.iter().filter_map(Outdated::compile).collect());
        self.announce(news.registry, &news.retired);
        news.reshaped
            .into_iter()
            .try_for_each(|(prefix, shape)| self.cache().set_decoder(&prefix, shape).map(drop))
    }

    /// Reconciles definitions after a write. The task that follows definitions retries failures.
    pub(crate) async fn after_definition(&self) {
        if let Err(status) = self.settle_definitions().await {
            tracing::warn!("cannot reconcile CustomResourceDefinitions, will retry: {status}");
        }
    }

    /// Reconciles every definition: its names, conditions and rows.
    pub(crate) async fn settle_definitions(&self) -> Result<(), Status> {
        let mut definitions = self.definitions().lock().await;
        let snapshot = loop {
            let consistent = self.cache().consistent().await;
            consistent.map_err(|error| status::from_cache(&error))?;
            let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
            definitions.read(&snapshot);
            let unsettled = definitions.unsettled();
            if unsettled.is_empty() {
                break snapshot;
            }
            for (definition, wanted) in unsettled {
                self.put_definition(&definition, |tree, now| conclude(tree, &wanted, now)).await?;
            }
        };
        let outdated = definitions.outdated(&snapshot);
        let compiled =
            aside(move || outdated.iter().filter_map(Outdated::compile).collect::<Vec<_>>())
                .await?;
        let news = definitions.serve(compiled);
        self.announce(news.registry, &news.retired);
        let cache = self.cache().clone();
        let reshaped = aside(move || {
            let mut reshaped = news.reshaped.into_iter();
            reshaped.try_for_each(|(prefix, shape)| cache.set_decoder(&prefix, shape).map(drop))
        });
        reshaped.await?.map_err(|error| status::from_cache(&error))?;
        for gate in news.closing {
            gate.close().await;
        }
        Ok(())
    }

    /// Updates the registry first: a watch that starts before the cache is updated detects that its row
    /// is outdated.
    fn announce(&self, registry: Option<Registry>, retired: &[String]) {
        if let Some(registry) = registry {
            self.replace_registry(registry);
        }
        for prefix in retired {
            self.cache().retire(prefix);
        }
    }

    /// Writes a definition, guarded by its revision. A conflict is resolved by the next reconciliation.
    pub(super) async fn put_definition(
        &self,
        definition: &Definition,
        change: impl FnOnce(&mut Value, Timestamp),
    ) -> Result<(), Status> {
        let registry = self.registry();
        let kind = registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        let snapshot = self.cache().snapshot(&self.cache().resource(PREFIX));
        let (Some(kind), Some(object)) = (kind, snapshot.get(&definition.name)) else {
            return Ok(());
        };
        let mut value = tree(object.as_slice())?;
        change(&mut value, self.now());
        let key = Key::in_collection(PREFIX, &definition.name);
        let guard = Guard::At(definition.revision);
        match put(self.store(), kind, key, guard, canonical(&value).into()).await? {
            CommitOutcome::Stored(_) | CommitOutcome::Conflict(_) | CommitOutcome::Contended(_) => {
                Ok(())
            }
        }
    }

    /// Follows definitions until stopped: changes of other servers, and deletions that wait for
    /// objects.
    pub(crate) async fn follow_definitions(self, stop: CancellationToken) {
        let mut changes = ObjectChanges::new(&self, PREFIX);
        while let Some(waiting) = stop.run_until_cancelled(self.look_after_definitions()).await {
            if !changes.next_or_retry(&self, &stop, waiting).await {
                break;
            }
        }
    }

    /// Reconciles and cleans up; returns whether a retry is needed.
    async fn look_after_definitions(&self) -> bool {
        let done = async {
            self.settle_definitions().await?;
            self.clean_up_definitions().await
        };
        done.await.unwrap_or_else(|status| {
            tracing::warn!("cannot reconcile CustomResourceDefinitions, will retry: {status}");
            true
        })
    }
}

/// Runs long work on a blocking thread.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| status::internal(format!("work on definitions failed: {error}")))
}
