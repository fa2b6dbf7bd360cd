//! The garbage collector: deletes objects without owners, with the propagation that their owner's
//! deletion requires.
//!
//! River: metadata of every resource → **garbage** → deletes and updates of owner references.
//! Promise: no object is deleted while one of its owners exists. An owner is absent only if a watch
//! reported its deletion or the server replied so. A delete carries the UID and the resourceVersion
//! that were examined; an object that changed since is examined again. A resource that cannot be
//! watched delays no other resource.

mod absent_owner_cache;
mod decision;
mod monitors;
mod patches;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, Weak};

use headwater_client::calls::Calls;
use headwater_client::controller::{Env, Prepared};
use headwater_client::informer::Informer;
use headwater_client::workqueue::Queue;
use headwater_client::{Cached, Change, Error, Factory, Key};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::discovery::{GroupKind, ObjectMetadata};

use self::absent_owner_cache::AbsentOwnerCache;
use self::decision::{
    DependentState, FOREGROUND, GcAction, ORPHAN, OwnerState, Propagation, decide,
};
use self::monitors::ResourceMonitor;
use self::patches::{options, without_blocking_owners, without_finalizer, without_owners};

const WORKERS: usize = 8;
pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let factory = cluster.factory().clone();
    let definitions = cluster.informer::<CustomResourceDefinition>()?;
    Ok(Prepared::custom("garbage", move |env| run(factory, definitions, env)))
}

async fn run(
    factory: Factory,
    definitions: Informer<CustomResourceDefinition>,
    mut env: Env,
) -> Result<(), Error> {
    let collector = Arc::new_cyclic(|myself| Collector {
        myself: Weak::clone(myself),
        factory,
        calls: env.calls().clone(),
        kinds: RwLock::default(),
        discovered: watch::Sender::new(false),
        queue: Queue::named("garbage").open(),
        absent_owners: AbsentOwnerCache::default(),
    });
    let stop = env.stop().clone();
    let following = collector.follow_discovery(&definitions);
    tokio::pin!(following);
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        never = &mut following => return never,
        () = collector.synced() => {}
    }
    tokio::select! {
        biased;
        never = &mut following => return never,
        leading = env.leading() => if !leading { return Ok(()) },
    }
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let collector = Arc::clone(&collector);
        workers.spawn(async move { collector.work().await });
    }
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        never = &mut following => never,
    };
    collector.queue.shut_down();
    while let Some(worker) = workers.join_next().await {
        worker.expect("workers do not panic");
    }
    ended
}

/// One object of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ObjectRef {
    id: Arc<GroupKind>,
    key: Key,
}

struct Collector {
    myself: Weak<Collector>,
    factory: Factory,
    calls: Calls,
    kinds: RwLock<BTreeMap<GroupKind, Arc<ResourceMonitor>>>,
    /// Whether discovery has succeeded once.
    discovered: watch::Sender<bool>,
    /// Bounded by the number of objects: each is queued once.
    queue: Queue<ObjectRef>,
    absent_owners: AbsentOwnerCache,
}

impl Collector {
    fn all(&self) -> Vec<Arc<ResourceMonitor>> {
        self.kinds.read().expect("no panics inside").values().cloned().collect()
    }

    fn kind(&self, id: &GroupKind) -> Option<Arc<ResourceMonitor>> {
        self.kinds.read().expect("no panics inside").get(id).cloned()
    }

    /// Queues the objects that a change affects.
    fn handle_change(&self, id: &Arc<GroupKind>, change: &Change<ObjectMetadata>) {
        match change {
            Change::Added { object, .. } => self.enqueue(id, object),
            Change::Updated { old, new } => {
                let (before, after) = (&old.metadata, &new.metadata);
                let disowned = before.owner_references != after.owner_references;
                if disowned {
                    self.enqueue_owners(old);
                }
                // Most updates change only the status.
                if disowned
                    || before.deletion_timestamp != after.deletion_timestamp
                    || before.finalizers != after.finalizers
                {
                    self.enqueue(id, new);
                }
            }
            Change::Deleted(gone) => {
                let Some(last) = gone.last() else { return };
                self.absent_owners.insert(last.uid());
                self.enqueue_owners(last);
                self.enqueue_dependents(last.uid());
            }
            Change::Synced => {}
        }
    }

    fn enqueue(&self, id: &Arc<GroupKind>, object: &ObjectMetadata) {
        let meta = &object.metadata;
        let owned = meta.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        if meta.deletion_timestamp.is_some() || owned {
            self.queue.add(ObjectRef { id: Arc::clone(id), key: object.key() });
        }
    }

    fn enqueue_dependents(&self, uid: &str) {
        for monitor in self.all() {
            for key in monitor.by_owner.keys(uid) {
                self.queue.add(ObjectRef { id: Arc::clone(&monitor.id), key });
            }
        }
    }

    fn enqueue_owners(&self, object: &ObjectMetadata) {
        for owner in object.metadata.owner_references.iter().flatten() {
            if let Some((monitor, key)) = self.locate_owner(&object.metadata, owner) {
                self.queue.add(ObjectRef { id: Arc::clone(&monitor.id), key });
            }
        }
    }

    /// The monitor and key of an owner; a namespaced owner is in its dependent's namespace.
    fn locate_owner(
        &self,
        of: &ObjectMeta,
        owner: &OwnerReference,
    ) -> Option<(Arc<ResourceMonitor>, Key)> {
        let monitor = self.kind(&GroupKind::of(&owner.api_version, &owner.kind))?;
        let key = match (monitor.kind.namespaced, of.namespace.as_deref()) {
            (true, Some(namespace)) => Key::namespaced(namespace, &owner.name),
            (true, None) => return None,
            (false, _) => Key::cluster(&owner.name),
        };
        Some((monitor, key))
    }

    async fn work(&self) {
        while let Some(item) = self.queue.get().await {
            match self.process(&item).await {
                Ok(()) => item.forget(),
                Err(error) => {
                    let (kind, key) = (&item.id.kind, &item.key);
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(kind, %key, error, "cannot process object; retrying");
                    item.retry();
                }
            }
        }
    }

    async fn process(&self, subject: &ObjectRef) -> Result<(), Error> {
        let Some(monitor) = self.kind(&subject.id) else { return Ok(()) };
        let Some(object) = monitor.objects.snapshot().get(&subject.key).cloned() else {
            return Ok(());
        };
        let dependents = self.dependents(object.uid());
        let seen: Vec<DependentState> =
            dependents.iter().map(|(_, dependent)| dependent_state(&object, dependent)).collect();
        let mut owners = Vec::new();
        if object.metadata.deletion_timestamp.is_none() {
            for owner in object.metadata.owner_references.iter().flatten() {
                owners.push((owner.uid.clone(), self.owner(&object.metadata, owner).await?));
            }
        }
        let collection = self.calls.of_type::<ObjectMetadata>(monitor.kind.resource());
        let (all, key) = (&collection, &subject.key);
        let change = |patch: Value| async move { ignore_not_found(all.merge(key, &patch).await) };
        match decide(&object.metadata, &owners, &seen) {
            GcAction::Nothing => Ok(()),
            GcAction::RemoveOwners(lost) => change(without_owners(&object, &lost)).await,
            GcAction::Delete(how) => {
                ignore_not_found(collection.delete_with(key, &options(&object, how)).await)
            }
            GcAction::DeleteUnblocked => {
                change(without_blocking_owners(&object)).await?;
                let how = json!({
                    "propagationPolicy": Propagation::Foreground.as_str(),
                    "preconditions": { "uid": object.uid() },
                });
                ignore_not_found(collection.delete_with(key, &how).await)
            }
            GcAction::OrphanDependents => {
                for (monitor, dependent) in &dependents {
                    let theirs = self.calls.of_type::<ObjectMetadata>(monitor.kind.resource());
                    let patch = without_owners(dependent, &[object.uid().to_owned()]);
                    ignore_not_found(theirs.merge(&dependent.key(), &patch).await)?;
                }
                change(without_finalizer(&object, ORPHAN)).await
            }
            GcAction::WaitForDependents => {
                self.enqueue_dependents(object.uid());
                Ok(())
            }
            GcAction::RemoveFinalizer => change(without_finalizer(&object, FOREGROUND)).await,
        }
    }

    fn dependents(&self, uid: &str) -> Vec<(Arc<ResourceMonitor>, Arc<ObjectMetadata>)> {
        let all = self.all().into_iter();
        all.flat_map(|monitor| {
            let found = monitor.by_owner.get(uid);
            found.into_iter().map(move |object| (Arc::clone(&monitor), object))
        })
        .collect()
    }

    async fn owner(&self, of: &ObjectMeta, owner: &OwnerReference) -> Result<OwnerState, Error> {
        let Some((monitor, key)) = self.locate_owner(of, owner) else {
            return Ok(OwnerState::Unknown);
        };
        if self.absent_owners.contains(&owner.uid) {
            return Ok(OwnerState::Absent);
        }
        let is_it = |found: &ObjectMetadata| found.uid() == owner.uid;
        if let Some(found) =
            monitor.objects.snapshot().get(&key).cloned().filter(|found| is_it(found))
        {
            return Ok(owner_state(&found));
        }
        // The cache may not have received it yet; only the server knows that it is absent.
        let collection = self.calls.of_type::<ObjectMetadata>(monitor.kind.resource());
        match collection.get(&key).await?.filter(is_it) {
            Some(found) => Ok(owner_state(&found)),
            None => {
                self.absent_owners.insert(&owner.uid);
                Ok(OwnerState::Absent)
            }
        }
    }
}

fn owner_state(owner: &ObjectMetadata) -> OwnerState {
    if waits_for_dependents(owner) { OwnerState::Waiting } else { OwnerState::Solid }
}

fn waits_for_dependents(object: &ObjectMetadata) -> bool {
    object.metadata.deletion_timestamp.is_some()
        && object.metadata.finalizers.iter().flatten().any(|known| known == FOREGROUND)
}

fn dependent_state(owner: &ObjectMetadata, dependent: &ObjectMetadata) -> DependentState {
    let mut references = dependent.metadata.owner_references.iter().flatten();
    let blocks =
        references.any(|it| it.uid == owner.uid() && it.block_owner_deletion == Some(true));
    DependentState { blocks, waits: waits_for_dependents(dependent) }
}

/// A missing object is not an error. A conflict is: the object is examined again.
fn ignore_not_found<T>(written: Result<T, Error>) -> Result<(), Error> {
    match written {
        Err(error) if error.is_not_found() => Ok(()),
        written => written.map(drop),
    }
}
