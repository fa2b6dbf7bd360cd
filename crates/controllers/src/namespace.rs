//! The namespace controller: deletes the content of a terminating namespace, then the namespace.
//!
//! River: namespaces and the metadata of every kind → **namespace** → deletes, then `/finalize`.
//! Promise: a namespace is deleted only after the server has confirmed, resource by resource, that
//! it is empty. The server rejects creates in a terminating namespace, so nothing is left behind.

mod conditions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use headwater_api::Clock;
use headwater_client::controller::{
    Context, Controller, ControllerHandle, Failure, Next, Prepared, Reconcile, WatchId,
};
use headwater_client::informer::{Health, Informer};
use headwater_client::{Cached, Error, Factory, Key};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use serde_json::json;

use crate::cluster::Cluster;
use crate::discovery::{self, DeletableResource, GroupKind, ObjectMetadata};

use self::conditions::{DeletionErrors, NamespaceContent, RemainingObjects, conditions};

const WORKERS: usize = 4;
/// Resources that are deleted concurrently.
const CONCURRENT_RESOURCES: usize = 8;
/// Changes of remaining objects trigger a reconcile; this covers changes that no watch reports.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
/// The finalizer of this controller.
const KUBERNETES_FINALIZER: &str = "kubernetes";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let namespaces = cluster.informer::<Namespace>()?;
    let controller = Controller::new("namespace", &namespaces).workers(WORKERS);
    let cleaner = NamespaceController {
        factory: cluster.factory().clone(),
        namespaces,
        handle: controller.handle(),
        watched: Mutex::default(),
        clock: Arc::clone(cluster.clock()),
    };
    Ok(controller.with(cleaner))
}

struct NamespaceController {
    factory: Factory,
    namespaces: Informer<Namespace>,
    handle: ControllerHandle<Namespace>,
    /// The watched resources; opened when the first namespace terminates.
    watched: Mutex<BTreeMap<GroupKind, (Informer<ObjectMetadata>, WatchId)>>,
    clock: Arc<dyn Clock>,
}

/// A namespaced resource and the informer of its objects.
struct NamespacedResource {
    kind: DeletableResource,
    objects: Informer<ObjectMetadata>,
}

impl NamespacedResource {
    fn name(&self) -> String {
        let resource = self.kind.resource();
        match resource.group.as_str() {
            "" => resource.plural,
            group => format!("{}.{group}", resource.plural),
        }
    }

    fn remaining(&self, namespace: &str) -> RemainingObjects {
        let mut left = RemainingObjects::default();
        for (_, object) in self.objects.snapshot().in_namespace(namespace) {
            left.objects += 1;
            left.alive += usize::from(object.metadata.deletion_timestamp.is_none());
            for name in object.metadata.finalizers.iter().flatten() {
                *left.finalizers.entry(name.clone()).or_default() += 1;
            }
        }
        left
    }
}

/// What a pass over a namespace does.
#[derive(Debug, PartialEq, Eq)]
enum DeletionPlan {
    /// Delete the live objects of these resources.
    Delete(Vec<String>),
    /// Everything is being deleted; wait.
    Wait,
    /// The caches are empty: confirm with the server, resource by resource.
    Confirm,
}

/// Pods are deleted first: they may need the other objects until they have terminated.
fn plan(content: &NamespaceContent) -> DeletionPlan {
    let has = |name: &str| content.get(name).is_some_and(|left| left.objects > 0);
    let counts = |name: &str| !has("pods") || name == "pods";
    let alive = content.iter().filter(|(name, left)| left.alive > 0 && counts(name));
    let alive: Vec<String> = alive.map(|(name, _)| name.clone()).collect();
    match alive.is_empty() {
        false => DeletionPlan::Delete(alive),
        true if content.values().any(|left| left.objects > 0) => DeletionPlan::Wait,
        true => DeletionPlan::Confirm,
    }
}

impl Reconcile<Namespace> for NamespaceController {
    async fn reconcile(&self, namespace: Arc<Namespace>, cx: Context) -> Result<Next, Failure> {
        let spec = namespace.spec.clone().unwrap_or_default();
        let is_ours = spec.finalizers.iter().flatten().any(|name| name == KUBERNETES_FINALIZER);
        if namespace.metadata.deletion_timestamp.is_none() || !is_ours {
            return Ok(Next::Done);
        }
        let resources = match self.resources().await {
            Ok(resources) => resources,
            Err(error) => {
                let why = error.to_string();
                let errors = DeletionErrors { discovery: Some(&why), deletion: None };
                self.write_conditions(&namespace, &NamespaceContent::new(), &errors, &cx).await?;
                return Err(error.into());
            }
        };
        let name = namespace.name();
        let content: NamespaceContent =
            resources.iter().map(|resource| (resource.name(), resource.remaining(name))).collect();
        let deleted = match plan(&content) {
            DeletionPlan::Wait => Ok(1),
            DeletionPlan::Delete(kinds) => {
                let alive =
                    resources.iter().filter(|resource| kinds.contains(&resource.name())).collect();
                delete_content(alive, name, &cx).await
            }
            DeletionPlan::Confirm => delete_content(resources.iter().collect(), name, &cx).await,
        };
        let why = deleted.as_ref().err().map(ToString::to_string);
        let errors = DeletionErrors { discovery: None, deletion: why.as_deref() };
        self.write_conditions(&namespace, &content, &errors, &cx).await?;
        let left = deleted?;
        if plan(&content) == DeletionPlan::Confirm && left == 0 {
            finalize(name, &cx).await?;
            return Ok(Next::Done);
        }
        Ok(Next::After(RECHECK_INTERVAL))
    }
}

impl NamespaceController {
    /// Every namespaced resource, watched and synced.
    async fn resources(&self) -> Result<Vec<NamespacedResource>, Error> {
        let kinds = discovery::deletable_resources(self.factory.client()).await?;
        let kinds: Vec<(GroupKind, DeletableResource)> =
            kinds.into_iter().filter(|(_, kind)| kind.namespaced).collect();
        self.unwatch(&kinds).await?;
        let mut resources = Vec::with_capacity(kinds.len());
        for (id, kind) in kinds {
            let objects = self.watch(&id, &kind).await?;
            resources.push(NamespacedResource { kind, objects });
        }
        let synced = resources.iter().map(|resource| resource.objects.synced());
        let synced = futures::future::try_join_all(synced);
        match tokio::time::timeout(SYNC_TIMEOUT, synced).await {
            Ok(synced) => synced.map(|_| resources),
            Err(_) => {
                let missing = resources.iter().filter(|resource| !resource.objects.has_synced());
                let missing: Vec<String> = missing.map(NamespacedResource::name).collect();
                let what = format!("reading the objects of {}", missing.join(", "));
                Err(Error::Timeout { what, after: SYNC_TIMEOUT })
            }
        }
    }

    /// The informer of a resource; changes in terminating namespaces trigger a reconcile.
    async fn watch(
        &self,
        id: &GroupKind,
        kind: &DeletableResource,
    ) -> Result<Informer<ObjectMetadata>, Error> {
        let known = self.watched.lock().expect("no code panics while it is held").get(id).cloned();
        if let Some((known, _)) = known {
            return Ok(known);
        }
        let objects = kind.informer(&self.factory)?;
        let namespaces = self.namespaces.clone();
        let ending = move |object: &ObjectMetadata| {
            let key = Key::cluster(object.namespace()?);
            let namespace = namespaces.snapshot().get(&key).cloned()?;
            namespace.metadata.deletion_timestamp.is_some().then_some(key)
        };
        let watch = self.handle.watch(&objects, ending).await?;
        let mut watched = self.watched.lock().expect("no code panics while it is held");
        watched.insert(id.clone(), (objects.clone(), watch));
        Ok(objects)
    }

    /// Stops watching resources that the server no longer serves, or serves in another version, and
    /// those whose informers have stopped because the server did not serve them for a while.
    async fn unwatch(&self, kinds: &[(GroupKind, DeletableResource)]) -> Result<(), Error> {
        let gone: Vec<(Informer<ObjectMetadata>, WatchId)> = {
            let mut watched = self.watched.lock().expect("no code panics while it is held");
            let is_served = |id: &GroupKind, objects: &Informer<ObjectMetadata>| {
                let is_it = |(known, kind): &(GroupKind, DeletableResource)| {
                    known == id && kind.resource() == *objects.resource()
                };
                objects.health() != Health::Stopped && kinds.iter().any(is_it)
            };
            let gone = watched.iter().filter(|(id, (objects, _))| !is_served(id, objects));
            let gone: Vec<GroupKind> = gone.map(|(id, _)| id.clone()).collect();
            gone.iter().filter_map(|id| watched.remove(id)).collect()
        };
        for (_, watch) in gone {
            self.handle.unwatch(watch).await?;
        }
        Ok(())
    }

    /// Writes the conditions if they changed.
    async fn write_conditions(
        &self,
        namespace: &Namespace,
        content: &NamespaceContent,
        errors: &DeletionErrors<'_>,
        cx: &Context,
    ) -> Result<(), Error> {
        let status = namespace.status.clone().unwrap_or_default();
        let before: Vec<NamespaceCondition> = status.conditions.unwrap_or_default();
        let after = conditions(&before, content, errors, self.clock.now());
        if after == before {
            return Ok(());
        }
        let patch = json!({
            "metadata": { "resourceVersion": namespace.resource_version().text() },
            "status": { "conditions": after },
        });
        match cx.of::<Namespace>().merge_status(&namespace.key(), &patch).await {
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            written => written.map(drop),
        }
    }
}

/// Deletes all objects of some resources in a namespace; returns how many the server still had.
async fn delete_content(
    resources: Vec<&NamespacedResource>,
    namespace: &str,
    cx: &Context,
) -> Result<usize, Error> {
    let each: Vec<_> =
        resources.into_iter().map(|resource| delete_resource(resource, namespace, cx)).collect();
    let counts: Vec<usize> =
        stream::iter(each).buffer_unordered(CONCURRENT_RESOURCES).try_collect().await?;
    Ok(counts.into_iter().sum())
}

async fn delete_resource(
    resource: &NamespacedResource,
    namespace: &str,
    cx: &Context,
) -> Result<usize, Error> {
    if !resource.kind.deletes_collections {
        return delete_one_by_one(resource, namespace, cx).await;
    }
    let client = cx.calls().kube_client();
    let all = Api::<DynamicObject>::namespaced_with(client, namespace, &resource.kind.api);
    let deleted = all.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
    match deleted.map_err(Error::from) {
        // If the server does not return the deleted objects, the cache provides the count.
        Ok(deleted) => Ok(match deleted.left() {
            Some(list) => list.items.len(),
            None => resource.remaining(namespace).objects,
        }),
        // The resource is no longer served, so its objects are deleted too.
        Err(error) if error.is_not_found() => Ok(0),
        Err(error) => Err(error),
    }
}

async fn delete_one_by_one(
    resource: &NamespacedResource,
    namespace: &str,
    cx: &Context,
) -> Result<usize, Error> {
    let collection = cx.calls().of_type::<ObjectMetadata>(resource.kind.resource());
    let snapshot = resource.objects.snapshot();
    let mut count = 0;
    for (_, object) in snapshot.in_namespace(namespace) {
        count += 1;
        if object.metadata.deletion_timestamp.is_none() {
            collection.delete_this(object).await?;
        }
    }
    Ok(count)
}

/// Removes our finalizer from the server's current version of the namespace.
async fn finalize(name: &str, cx: &Context) -> Result<(), Error> {
    let namespaces = Api::<Namespace>::all(cx.calls().kube_client());
    let Some(mut namespace) = namespaces.get_opt(name).await? else { return Ok(()) };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(()); // another namespace has this name now
    }
    let spec = namespace.spec.get_or_insert_default();
    spec.finalizers.get_or_insert_default().retain(|finalizer| finalizer != KUBERNETES_FINALIZER);
    let written =
        namespaces.replace_subresource("finalize", name, &PostParams::default(), &namespace).await;
    match written.map_err(Error::from) {
        Err(error) if error.is_not_found() => Ok(()),
        written => written.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: &[(&str, usize, usize)], expected: DeletionPlan) {
        let content: NamespaceContent = content
            .iter()
            .map(|(name, objects, alive)| {
                let left = RemainingObjects {
                    objects: *objects,
                    alive: *alive,
                    ..RemainingObjects::default()
                };
                ((*name).to_owned(), left)
            })
            .collect();
        assert_eq!(plan(&content), expected);
    }

    /// S10.5
    #[test]
    fn pods_are_deleted_before_other_objects_and_emptiness_is_confirmed() {
        let delete = |names: &[&str]| {
            DeletionPlan::Delete(names.iter().map(|it| (*it).to_owned()).collect())
        };
        check(&[("pods", 2, 2), ("secrets", 1, 1)], delete(&["pods"]));
        check(&[("pods", 2, 0), ("secrets", 1, 1)], DeletionPlan::Wait);
        check(
            &[("pods", 0, 0), ("secrets", 1, 1), ("services", 2, 1)],
            delete(&["secrets", "services"]),
        );
        check(&[("pods", 0, 0), ("widgets.example.com", 1, 0)], DeletionPlan::Wait);
        check(&[("pods", 0, 0), ("secrets", 0, 0)], DeletionPlan::Confirm);
        check(&[], DeletionPlan::Confirm);
    }
}
