//! Garbage collection: what nobody owns any more goes, in the way its owner was deleted.
//!
//! River: metadata of every kind → **garbage** → deletes, and owner references that end.
//! Promise: nothing is deleted while one of its owners exists: that an owner is gone is believed of
//! the watch that saw it go, else the server is asked. A delete carries the UID and the version that
//! were judged, so that what changed meanwhile is judged again.

mod absent;
mod verdict;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::change::Change;
use headwater_client::controller::{Env, Prepared};
use headwater_client::indexer::Index;
use headwater_client::informer::{Handler, Informer, Subscribe};
use headwater_client::workqueue::Queue;
use headwater_client::{Cached, Error, Factory, Key};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::census::{self, Id, Kind, Meta};
use crate::cluster::Cluster;

use self::absent::Absent;
use self::verdict::{Dependent, FOREGROUND, ORPHAN, Owner, Propagation, Verdict, verdict};

const WORKERS: usize = 8;
/// Kinds of servers behind the server come without a definition we could watch.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// After a discovery that failed.
const RETRY: Duration = Duration::from_secs(1);
/// A kind that does not sync in this time is worked without.
const SYNC: Duration = Duration::from_secs(30);

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
        counted: watch::Sender::new(false),
        queue: Queue::named("garbage").open(),
        absent: Absent::default(),
    });
    let stop = env.stop().clone();
    let following = collector.follow(&definitions);
    tokio::pin!(following);
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        never = &mut following => return never,
        () = collector.filled() => {}
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
        worker.expect("a worker does not panic");
    }
    ended
}

/// One object of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    id: Arc<Id>,
    key: Key,
}

/// A kind whose objects are watched.
struct Watched {
    id: Arc<Id>,
    kind: Kind,
    objects: Informer<Meta>,
    by_owner: Index<Meta, String>,
    /// Dropping it ends the subscription.
    _handler: Handler<Meta>,
}

struct Collector {
    myself: Weak<Collector>,
    factory: Factory,
    calls: Calls,
    kinds: RwLock<BTreeMap<Id, Arc<Watched>>>,
    /// Whether the kinds have been counted once.
    counted: watch::Sender<bool>,
    /// Bounded by the number of objects: each is in it once.
    queue: Queue<Subject>,
    absent: Absent,
}

impl Collector {
    /// Keeps the watched kinds those that the server has. Never ends.
    async fn follow(&self, definitions: &Informer<CustomResourceDefinition>) -> Result<(), Error> {
        let mut changes = definitions.subscribe(Subscribe::named("garbage"))?;
        loop {
            let wait = match self.refresh().await {
                Ok(()) => ASK_AGAIN,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "discovery failed");
                    RETRY
                }
            };
            tokio::select! {
                change = changes.next() => if change.is_none() { std::future::pending().await },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn refresh(&self) -> Result<(), Error> {
        let found = census::kinds(self.factory.client()).await?;
        let known: Vec<Id> = self.all().iter().map(|watched| (*watched.id).clone()).collect();
        for (id, kind) in &found {
            if !known.contains(id) {
                let watched = Arc::new(self.watch(id, kind)?);
                self.kinds.write().expect("no panics inside").insert(id.clone(), watched);
            }
        }
        let mut kinds = self.kinds.write().expect("no panics inside");
        kinds.retain(|id, _| found.contains_key(id));
        self.counted.send_replace(true);
        Ok(())
    }

    fn watch(&self, id: &Id, kind: &Kind) -> Result<Watched, Error> {
        let objects = kind.objects(&self.factory)?;
        let by_owner = objects.index("garbage/owner", |object: &Meta| {
            let owners = object.metadata.owner_references.iter().flatten();
            owners.map(|owner| owner.uid.clone()).collect::<Vec<_>>()
        })?;
        let (id, myself) = (Arc::new(id.clone()), Weak::clone(&self.myself));
        let subscribe = Subscribe::named("garbage").split_recreate(true).suppress_unchanged(true);
        let name = Arc::clone(&id);
        let handler = objects.for_each(subscribe, move |change| {
            if let Some(collector) = myself.upgrade() {
                collector.changed(&name, &change);
            }
        })?;
        Ok(Watched { id, kind: kind.clone(), objects, by_owner, _handler: handler })
    }

    fn all(&self) -> Vec<Arc<Watched>> {
        self.kinds.read().expect("no panics inside").values().cloned().collect()
    }

    fn kind(&self, id: &Id) -> Option<Arc<Watched>> {
        self.kinds.read().expect("no panics inside").get(id).cloned()
    }

    /// Waits until every kind was seen once; one that does not answer is not waited for.
    async fn filled(&self) {
        self.counted.subscribe().wait_for(|counted| *counted).await.ok();
        let all = self.all();
        let each = all.iter().map(|watched| watched.objects.synced());
        tokio::time::timeout(SYNC, futures::future::join_all(each)).await.ok();
    }

    /// Who has to be judged because of a change.
    fn changed(&self, id: &Arc<Id>, change: &Change<Meta>) {
        match change {
            Change::Added { object, .. } => self.consider(id, object),
            Change::Updated { old, new } => {
                let (before, after) = (&old.metadata, &new.metadata);
                let disowned = before.owner_references != after.owner_references;
                if disowned {
                    self.consider_owners(old);
                }
                // Most changes are of a status, and say nothing about who owns what.
                if disowned
                    || before.deletion_timestamp != after.deletion_timestamp
                    || before.finalizers != after.finalizers
                {
                    self.consider(id, new);
                }
            }
            Change::Deleted(gone) => {
                let Some(last) = gone.last() else { return };
                self.absent.insert(last.uid());
                self.consider_owners(last);
                self.consider_dependents(last.uid());
            }
            Change::Synced => {}
        }
    }

    fn consider(&self, id: &Arc<Id>, object: &Meta) {
        let meta = &object.metadata;
        let owned = meta.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        if meta.deletion_timestamp.is_some() || owned {
            self.queue.add(Subject { id: Arc::clone(id), key: object.key() });
        }
    }

    fn consider_dependents(&self, uid: &str) {
        for watched in self.all() {
            for key in watched.by_owner.keys(uid) {
                self.queue.add(Subject { id: Arc::clone(&watched.id), key });
            }
        }
    }

    fn consider_owners(&self, object: &Meta) {
        for owner in object.metadata.owner_references.iter().flatten() {
            if let Some((watched, key)) = self.place(&object.metadata, owner) {
                self.queue.add(Subject { id: Arc::clone(&watched.id), key });
            }
        }
    }

    /// Where the owner is that a reference names: a namespaced one is in its dependent's namespace.
    fn place(&self, of: &ObjectMeta, owner: &OwnerReference) -> Option<(Arc<Watched>, Key)> {
        let watched = self.kind(&Id::of(&owner.api_version, &owner.kind))?;
        let key = match (watched.kind.namespaced, of.namespace.as_deref()) {
            (true, Some(namespace)) => Key::namespaced(namespace, &owner.name),
            (true, None) => return None,
            (false, _) => Key::cluster(&owner.name),
        };
        Some((watched, key))
    }

    async fn work(&self) {
        while let Some(item) = self.queue.get().await {
            match self.judge(&item).await {
                Ok(()) => item.forget(),
                Err(error) => {
                    let (kind, key) = (&item.id.kind, &item.key);
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(kind, %key, error, "judging again");
                    item.retry();
                }
            }
        }
    }

    async fn judge(&self, subject: &Subject) -> Result<(), Error> {
        let Some(watched) = self.kind(&subject.id) else { return Ok(()) };
        let Some(object) = watched.objects.store().get(&subject.key) else { return Ok(()) };
        let dependents = self.dependents(object.uid());
        let seen: Vec<Dependent> =
            dependents.iter().map(|(_, dependent)| dependent_of(&object, dependent)).collect();
        let mut owners = Vec::new();
        if object.metadata.deletion_timestamp.is_none() {
            for owner in object.metadata.owner_references.iter().flatten() {
                owners.push((owner.uid.clone(), self.owner(&object.metadata, owner).await?));
            }
        }
        let collection = self.calls.of_type::<Meta>(watched.kind.resource());
        let (all, key) = (&collection, &subject.key);
        let change = |patch: Value| async move { harmless(all.merge(key, &patch).await) };
        match verdict(&object.metadata, &owners, &seen) {
            Verdict::Nothing => Ok(()),
            Verdict::Disown(lost) => change(without_owners(&object, &lost)).await,
            Verdict::Delete(how) => {
                harmless(collection.delete_with(key, &options(&object, how)).await)
            }
            Verdict::DeleteUnblocked => {
                change(unblocked(&object)).await?;
                let how = json!({
                    "propagationPolicy": Propagation::Foreground.as_str(),
                    "preconditions": { "uid": object.uid() },
                });
                harmless(collection.delete_with(key, &how).await)
            }
            Verdict::Orphan => {
                for (watched, dependent) in &dependents {
                    let theirs = self.calls.of_type::<Meta>(watched.kind.resource());
                    let patch = without_owners(dependent, &[object.uid().to_owned()]);
                    harmless(theirs.merge(&dependent.key(), &patch).await)?;
                }
                change(without_finalizer(&object, ORPHAN)).await
            }
            Verdict::WaitForDependents => {
                self.consider_dependents(object.uid());
                Ok(())
            }
            Verdict::Finish => change(without_finalizer(&object, FOREGROUND)).await,
        }
    }

    fn dependents(&self, uid: &str) -> Vec<(Arc<Watched>, Arc<Meta>)> {
        let all = self.all().into_iter();
        all.flat_map(|watched| {
            let found = watched.by_owner.get(uid);
            found.into_iter().map(move |object| (Arc::clone(&watched), object))
        })
        .collect()
    }

    async fn owner(&self, of: &ObjectMeta, owner: &OwnerReference) -> Result<Owner, Error> {
        let Some((watched, key)) = self.place(of, owner) else { return Ok(Owner::Unknown) };
        if self.absent.contains(&owner.uid) {
            return Ok(Owner::Absent);
        }
        let is_it = |found: &Meta| found.uid() == owner.uid;
        if let Some(found) = watched.objects.store().get(&key).filter(|found| is_it(found)) {
            return Ok(state_of(&found));
        }
        // The cache may not have seen it yet: only the server can say that it is gone.
        let collection = self.calls.of_type::<Meta>(watched.kind.resource());
        match collection.get(&key).await?.filter(is_it) {
            Some(found) => Ok(state_of(&found)),
            None => {
                self.absent.insert(&owner.uid);
                Ok(Owner::Absent)
            }
        }
    }
}

fn state_of(owner: &Meta) -> Owner {
    if is_waiting(owner) { Owner::Waiting } else { Owner::Solid }
}

fn is_waiting(object: &Meta) -> bool {
    object.metadata.deletion_timestamp.is_some()
        && object.metadata.finalizers.iter().flatten().any(|known| known == FOREGROUND)
}

fn dependent_of(owner: &Meta, dependent: &Meta) -> Dependent {
    let mut references = dependent.metadata.owner_references.iter().flatten();
    let blocks =
        references.any(|it| it.uid == owner.uid() && it.block_owner_deletion == Some(true));
    Dependent { blocks, waits: is_waiting(dependent) }
}

/// That it is gone already is as good; a conflict is not: it is judged again.
fn harmless<T>(written: Result<T, Error>) -> Result<(), Error> {
    match written {
        Err(error) if error.is_not_found() => Ok(()),
        written => written.map(drop),
    }
}

fn options(object: &Meta, how: Propagation) -> Value {
    json!({
        "propagationPolicy": how.as_str(),
        "preconditions": {
            "uid": object.uid(), "resourceVersion": object.resource_version().text(),
        },
    })
}

fn with_version(object: &Meta, mut metadata: Value) -> Value {
    metadata["resourceVersion"] = object.resource_version().text().into();
    json!({ "metadata": metadata })
}

fn without_owners(object: &Meta, lost: &[String]) -> Value {
    let owners = object.metadata.owner_references.iter().flatten();
    let left: Vec<_> = owners.filter(|owner| !lost.contains(&owner.uid)).collect();
    with_version(object, json!({ "ownerReferences": left }))
}

fn unblocked(object: &Meta) -> Value {
    let mut owners = object.metadata.owner_references.clone().unwrap_or_default();
    for owner in &mut owners {
        owner.block_owner_deletion = Some(false);
    }
    with_version(object, json!({ "ownerReferences": owners }))
}

fn without_finalizer(object: &Meta, name: &str) -> Value {
    let finalizers = object.metadata.finalizers.iter().flatten();
    let left: Vec<_> = finalizers.filter(|known| *known != name).collect();
    with_version(object, json!({ "finalizers": left }))
}
