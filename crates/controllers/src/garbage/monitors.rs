//! The monitors: one metadata watch for each resource that the server serves.
//!
//! River: discovery and definitions → **monitors** → the collector's queue.
//! Promise: a resource that cannot be watched delays no other resource. A resource whose definition
//! was deleted and created again is watched again, and its dependents are examined again.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use headwater_client::informer::{Handler, Health, Informer, Subscribe};
use headwater_client::{Error, Index};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::discovery::{self, DeletableResource, GroupKind, ObjectMetadata};

use super::{Collector, ObjectRef};

/// How often discovery runs: resources of aggregated servers have no definition to watch.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);
/// The delay after failed discovery.
const DISCOVERY_RETRY: Duration = Duration::from_secs(1);
/// What stops while a kind cannot be watched.
const CONSEQUENCE: &str = "objects of this kind are not garbage-collected and foreground deletions \
                           of their owners do not wait for them; retrying every second";
/// A resource that does not sync in this time is not waited for.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// A resource whose objects are watched.
pub(super) struct ResourceMonitor {
    pub(super) id: Arc<GroupKind>,
    pub(super) kind: DeletableResource,
    pub(super) objects: Informer<ObjectMetadata>,
    pub(super) by_owner: Index<ObjectMetadata, String>,
    /// Dropping it ends the subscription.
    _handler: Handler<ObjectMetadata>,
}

impl ResourceMonitor {
    /// Whether it still watches this resource. Its informer stops when the resource is not served;
    /// another version is another resource.
    fn watches(&self, kind: &DeletableResource) -> bool {
        self.objects.health() != Health::Stopped && self.kind.resource() == kind.resource()
    }
}

/// Waits until the informer of a monitor has stopped.
async fn any_stopped(monitors: &[Arc<ResourceMonitor>]) {
    let each = monitors.iter().map(|monitor| Box::pin(monitor.objects.stopped()));
    match monitors.is_empty() {
        true => std::future::pending().await,
        false => drop(futures::future::select_all(each).await),
    }
}

impl Collector {
    /// Keeps the monitors in step with the resources that the server serves. Never returns `Ok`.
    pub(super) async fn follow_discovery(
        &self,
        definitions: &Informer<CustomResourceDefinition>,
    ) -> Result<(), Error> {
        let mut changes = definitions.subscribe(Subscribe::named("garbage"))?;
        let mut failing = BTreeSet::new();
        loop {
            let wait = match self.refresh(&mut failing).await {
                Ok(()) if failing.is_empty() => DISCOVERY_INTERVAL,
                Ok(()) => DISCOVERY_RETRY,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "discovery failed; retrying in 1 s, known resources are still collected"
                    );
                    DISCOVERY_RETRY
                }
            };
            let monitors = self.all();
            let stopped = async {
                any_stopped(&monitors).await;
                // A resource that discovery lists and the server does not serve must not cause a
                // busy loop.
                tokio::time::sleep(DISCOVERY_RETRY).await;
            };
            tokio::select! {
                change = changes.next() => if change.is_none() { std::future::pending().await },
                () = tokio::time::sleep(wait) => {}
                () = stopped => {}
            }
        }
    }

    /// Runs discovery once. `failing` has the kinds that could not be watched the last time; they
    /// are logged once.
    async fn refresh(&self, failing: &mut BTreeSet<GroupKind>) -> Result<(), Error> {
        let found = discovery::deletable_resources(self.factory.client()).await?;
        let (mut learned, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for (id, kind) in &found {
            // Handlers read `kinds`: they wait until the monitor is in it.
            let mut kinds = self.kinds.write().expect("no panics inside");
            if kinds.get(id).is_some_and(|monitor| monitor.watches(kind)) {
                continue;
            }
            kinds.remove(id);
            match self.watch(id, kind) {
                Ok(monitor) => {
                    kinds.insert(id.clone(), Arc::new(monitor));
                    learned.insert(id);
                }
                Err(error) => {
                    if !failing.contains(id) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(kind = %id, error, "cannot watch a kind; {CONSEQUENCE}");
                    }
                    failed.insert(id.clone());
                }
            }
        }
        *failing = failed;
        self.kinds.write().expect("no panics inside").retain(|id, _| found.contains_key(id));
        self.enqueue_owned_by(&learned);
        self.discovered.send_replace(true);
        Ok(())
    }

    fn watch(&self, id: &GroupKind, kind: &DeletableResource) -> Result<ResourceMonitor, Error> {
        let objects = kind.informer(&self.factory)?;
        let by_owner = objects.index("garbage/owner", |object: &ObjectMetadata| {
            let owners = object.metadata.owner_references.iter().flatten();
            owners.map(|owner| owner.uid.clone()).collect::<Vec<_>>()
        })?;
        let (id, myself) = (Arc::new(id.clone()), Weak::clone(&self.myself));
        let subscribe = Subscribe::named("garbage").split_recreate(true).suppress_unchanged(true);
        let name = Arc::clone(&id);
        let handler = objects.for_each(subscribe, move |change| {
            if let Some(collector) = myself.upgrade() {
                collector.handle_change(&name, &change);
            }
        })?;
        Ok(ResourceMonitor { id, kind: kind.clone(), objects, by_owner, _handler: handler })
    }

    /// Queues the dependents of newly watched kinds: while an owner's kind is not watched, nothing is
    /// decided about its dependents. Dependents that arrive later queue themselves.
    fn enqueue_owned_by(&self, kinds: &BTreeSet<&GroupKind>) {
        let is_one =
            |it: &OwnerReference| kinds.contains(&GroupKind::of(&it.api_version, &it.kind));
        for monitor in self.all() {
            for (key, object) in monitor.objects.snapshot().iter() {
                if object.metadata.owner_references.iter().flatten().any(is_one) {
                    self.queue.add(ObjectRef { id: Arc::clone(&monitor.id), key: key.clone() });
                }
            }
        }
    }

    /// Waits until every resource has synced, at most [`SYNC_TIMEOUT`].
    pub(super) async fn synced(&self) {
        self.discovered.subscribe().wait_for(|discovered| *discovered).await.ok();
        let all = self.all();
        let each = all.iter().map(|monitor| monitor.objects.synced());
        tokio::time::timeout(SYNC_TIMEOUT, futures::future::join_all(each)).await.ok();
    }
}
