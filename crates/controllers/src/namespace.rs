//! Namespaces: when one is deleted its content goes first, of every kind there is.
//!
//! River: namespaces and the metadata of every kind → **namespace** → deletes, then `/finalize`.
//! Promise: a namespace goes only after the server itself said, kind by kind, that nothing is left
//! in it; since nothing can be created in a namespace that ends, nothing is left behind.

mod conditions;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use headwater_api::Clock;
use headwater_client::controller::{
    Context, Controller, ControllerHandle, Failure, Next, Prepared, Reconcile, WatchId,
};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Factory, Key};
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use serde_json::json;

use crate::census::{self, Id, Kind, Meta};
use crate::cluster::Cluster;

use self::conditions::{Content, Remaining, Trouble, conditions};

const WORKERS: usize = 4;
/// Kinds that are looked at or cleared at the same time.
const AT_ONCE: usize = 8;
/// Changes of what is left wake a namespace up; this is for those that nobody tells.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const SYNC: Duration = Duration::from_secs(30);
/// The finalizer of namespaces that is ours.
const OURS: &str = "kubernetes";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let namespaces = cluster.informer::<Namespace>()?;
    let controller = Controller::new("namespace", &namespaces).workers(WORKERS);
    let cleaner = Namespaces {
        factory: cluster.factory().clone(),
        namespaces,
        handle: controller.handle(),
        watched: Mutex::default(),
        clock: Arc::clone(cluster.clock()),
    };
    Ok(controller.with(cleaner))
}

struct Namespaces {
    factory: Factory,
    namespaces: Informer<Namespace>,
    handle: ControllerHandle<Namespace>,
    /// The kinds that are watched; opened when the first namespace ends.
    watched: Mutex<BTreeMap<Id, (Informer<Meta>, WatchId)>>,
    clock: Arc<dyn Clock>,
}

/// A kind whose objects live in namespaces, and its objects.
struct Place {
    kind: Kind,
    objects: Informer<Meta>,
}

impl Place {
    fn name(&self) -> String {
        let resource = self.kind.resource();
        match resource.group.as_str() {
            "" => resource.plural,
            group => format!("{}.{group}", resource.plural),
        }
    }

    fn remaining(&self, namespace: &str) -> Remaining {
        let mut left = Remaining::default();
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
enum Plan {
    /// Delete what is alive of these kinds.
    Clear(Vec<String>),
    /// Everything is deleted and takes its time.
    Wait,
    /// The caches know of nothing: ask the server, kind by kind.
    Confirm,
}

/// Pods go first: whatever else there is may be needed until they have ended.
fn plan(content: &Content) -> Plan {
    let has = |name: &str| content.get(name).is_some_and(|left| left.objects > 0);
    let counts = |name: &str| !has("pods") || name == "pods";
    let alive = content.iter().filter(|(name, left)| left.alive > 0 && counts(name));
    let alive: Vec<String> = alive.map(|(name, _)| name.clone()).collect();
    match alive.is_empty() {
        false => Plan::Clear(alive),
        true if content.values().any(|left| left.objects > 0) => Plan::Wait,
        true => Plan::Confirm,
    }
}

impl Reconcile<Namespace> for Namespaces {
    async fn reconcile(&self, namespace: Arc<Namespace>, cx: Context) -> Result<Next, Failure> {
        let spec = namespace.spec.clone().unwrap_or_default();
        let is_ours = spec.finalizers.iter().flatten().any(|name| name == OURS);
        if namespace.metadata.deletion_timestamp.is_none() || !is_ours {
            return Ok(Next::Done);
        }
        let places = match self.places().await {
            Ok(places) => places,
            Err(error) => {
                let why = error.to_string();
                let trouble = Trouble { discovery: Some(&why), deletion: None };
                self.tell(&namespace, &Content::new(), &trouble, &cx).await?;
                return Err(error.into());
            }
        };
        let name = namespace.name();
        let content: Content =
            places.iter().map(|place| (place.name(), place.remaining(name))).collect();
        let cleared = match plan(&content) {
            Plan::Wait => Ok(1),
            Plan::Clear(kinds) => {
                let alive = places.iter().filter(|place| kinds.contains(&place.name())).collect();
                clear(alive, name, &cx).await
            }
            Plan::Confirm => clear(places.iter().collect(), name, &cx).await,
        };
        let why = cleared.as_ref().err().map(ToString::to_string);
        let trouble = Trouble { discovery: None, deletion: why.as_deref() };
        self.tell(&namespace, &content, &trouble, &cx).await?;
        let left = cleared?;
        if plan(&content) == Plan::Confirm && left == 0 {
            finalize(name, &cx).await?;
            return Ok(Next::Done);
        }
        Ok(Next::After(LOOK_AGAIN))
    }
}

impl Namespaces {
    /// Every kind of namespaced objects, watched and synced.
    async fn places(&self) -> Result<Vec<Place>, Error> {
        let kinds = census::kinds(self.factory.client()).await?;
        let kinds: Vec<(Id, Kind)> =
            kinds.into_iter().filter(|(_, kind)| kind.namespaced).collect();
        self.unwatch(&kinds).await?;
        let mut places = Vec::with_capacity(kinds.len());
        for (id, kind) in kinds {
            let objects = self.watch(&id, &kind).await?;
            places.push(Place { kind, objects });
        }
        let synced = places.iter().map(|place| place.objects.synced());
        let synced = futures::future::try_join_all(synced);
        match tokio::time::timeout(SYNC, synced).await {
            Ok(synced) => synced.map(|_| places),
            Err(_) => {
                Err(Error::Timeout { what: "the first look at all kinds".into(), after: SYNC })
            }
        }
    }

    /// The objects of a kind; changes of those in namespaces that end wake the namespace up.
    async fn watch(&self, id: &Id, kind: &Kind) -> Result<Informer<Meta>, Error> {
        let known = self.watched.lock().expect("no code panics while it is held").get(id).cloned();
        if let Some((known, _)) = known {
            return Ok(known);
        }
        let objects = kind.objects(&self.factory)?;
        let namespaces = self.namespaces.clone();
        let ending = move |object: &Meta| {
            let key = Key::cluster(object.namespace()?);
            let namespace = namespaces.store().get(&key)?;
            namespace.metadata.deletion_timestamp.is_some().then_some(key)
        };
        let watch = self.handle.watch(&objects, ending).await?;
        let mut watched = self.watched.lock().expect("no code panics while it is held");
        watched.insert(id.clone(), (objects.clone(), watch));
        Ok(objects)
    }

    /// Forgets kinds that the server does not have any more, or has in another version.
    async fn unwatch(&self, kinds: &[(Id, Kind)]) -> Result<(), Error> {
        let gone: Vec<(Informer<Meta>, WatchId)> = {
            let mut watched = self.watched.lock().expect("no code panics while it is held");
            let is_served = |id: &Id, objects: &Informer<Meta>| {
                kinds
                    .iter()
                    .any(|(known, kind)| known == id && kind.resource() == *objects.resource())
            };
            let gone = watched.iter().filter(|(id, (objects, _))| !is_served(id, objects));
            let gone: Vec<Id> = gone.map(|(id, _)| id.clone()).collect();
            gone.iter().filter_map(|id| watched.remove(id)).collect()
        };
        for (_, watch) in gone {
            self.handle.unwatch(watch).await?;
        }
        Ok(())
    }

    /// Writes the conditions, if they say something new.
    async fn tell(
        &self,
        namespace: &Namespace,
        content: &Content,
        trouble: &Trouble<'_>,
        cx: &Context,
    ) -> Result<(), Error> {
        let status = namespace.status.clone().unwrap_or_default();
        let before: Vec<NamespaceCondition> = status.conditions.unwrap_or_default();
        let after = conditions(&before, content, trouble, self.clock.now());
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

/// Deletes all objects of some kinds in a namespace; answers how many the server still had.
async fn clear(places: Vec<&Place>, namespace: &str, cx: &Context) -> Result<usize, Error> {
    let each: Vec<_> = places.into_iter().map(|place| clear_kind(place, namespace, cx)).collect();
    let counts: Vec<usize> = stream::iter(each).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(counts.into_iter().sum())
}

async fn clear_kind(place: &Place, namespace: &str, cx: &Context) -> Result<usize, Error> {
    if !place.kind.deletes_collections {
        return clear_one_by_one(place, namespace, cx).await;
    }
    let client = cx.calls().kube_client();
    let all = Api::<DynamicObject>::namespaced_with(client, namespace, &place.kind.api);
    let deleted = all.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
    match deleted.map_err(Error::from) {
        // A server that does not say what it deleted leaves it to the cache.
        Ok(deleted) => Ok(match deleted.left() {
            Some(list) => list.items.len(),
            None => place.remaining(namespace).objects,
        }),
        // The kind went away in between, and its objects with it.
        Err(error) if error.is_not_found() => Ok(0),
        Err(error) => Err(error),
    }
}

async fn clear_one_by_one(place: &Place, namespace: &str, cx: &Context) -> Result<usize, Error> {
    let collection = cx.calls().of_type::<Meta>(place.kind.resource());
    let snapshot = place.objects.snapshot();
    let mut count = 0;
    for (_, object) in snapshot.in_namespace(namespace) {
        count += 1;
        if object.metadata.deletion_timestamp.is_none() {
            collection.delete_this(object).await?;
        }
    }
    Ok(count)
}

/// Takes our finalizer off, as the server has the namespace now.
async fn finalize(name: &str, cx: &Context) -> Result<(), Error> {
    let namespaces = Api::<Namespace>::all(cx.calls().kube_client());
    let Some(mut namespace) = namespaces.get_opt(name).await? else { return Ok(()) };
    if namespace.metadata.deletion_timestamp.is_none() {
        return Ok(()); // another of the same name
    }
    let spec = namespace.spec.get_or_insert_default();
    spec.finalizers.get_or_insert_default().retain(|finalizer| finalizer != OURS);
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
    fn check(content: &[(&str, usize, usize)], expected: Plan) {
        let content: Content = content
            .iter()
            .map(|(name, objects, alive)| {
                let left = Remaining { objects: *objects, alive: *alive, ..Remaining::default() };
                ((*name).to_owned(), left)
            })
            .collect();
        assert_eq!(plan(&content), expected);
    }

    /// S10.5
    #[test]
    fn pods_go_first_then_the_rest_and_emptiness_is_confirmed() {
        let clear = |names: &[&str]| Plan::Clear(names.iter().map(|it| (*it).to_owned()).collect());
        check(&[("pods", 2, 2), ("secrets", 1, 1)], clear(&["pods"]));
        check(&[("pods", 2, 0), ("secrets", 1, 1)], Plan::Wait);
        check(
            &[("pods", 0, 0), ("secrets", 1, 1), ("services", 2, 1)],
            clear(&["secrets", "services"]),
        );
        check(&[("pods", 0, 0), ("widgets.example.com", 1, 0)], Plan::Wait);
        check(&[("pods", 0, 0), ("secrets", 0, 0)], Plan::Confirm);
        check(&[], Plan::Confirm);
    }
}
