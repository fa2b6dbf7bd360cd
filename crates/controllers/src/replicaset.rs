//! ReplicaSets: as many pods as wanted, no more, no fewer.
//!
//! River: ReplicaSets and pods → **replicaset** → pods created and deleted, and a status.
//! Promise: a reconcile starts only after the cache has seen what the last one wrote, so pods are
//! never created twice for the same gap; stopping anywhere leaves something the next start mends.

mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use crate::burst::{BURST_MAX, namespace_ends, slow_start};
use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{Claims, after, controller_of, selector};
use crate::pod::Pod;
use crate::template::pod_of;

use self::plan::{Plan, Trouble, crowds, plan, status};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (sets, pods) = (cluster.informer::<ReplicaSet>()?, cluster.pods()?);
    let family = sets.index("replicaset/controller", |set: &ReplicaSet| {
        controller_of(&set.metadata).map(|owner| owner.uid.clone())
    })?;
    let candidates = sets.clone();
    let replicas = Replicas { pods: pods.clone(), family, clock: Arc::clone(cluster.clock()) };
    Ok(Controller::new("replicaset", &sets)
        .watches(&pods.informer, move |pod: &Pod| interested(&candidates, pod))
        .workers(WORKERS)
        .with(replicas))
}

/// The sets a pod concerns: the one that controls it, or those that would like to.
fn interested(sets: &Informer<ReplicaSet>, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    match controller_of(&pod.metadata) {
        Some(owner) if owner.kind == "ReplicaSet" => vec![Key::namespaced(namespace, &owner.name)],
        Some(_) => Vec::new(),
        None if pod.is_deleting() => Vec::new(),
        None => {
            let snapshot = sets.snapshot();
            let sets = snapshot.in_namespace(namespace);
            sets.filter(|(_, set)| selects(set, pod)).map(|(key, _)| key.clone()).collect()
        }
    }
}

fn selects(set: &ReplicaSet, pod: &Pod) -> bool {
    let wanted = set.spec.as_ref().map(|spec| &spec.selector);
    selector(wanted).is_ok_and(|selector| selector.matches(pod))
}

struct Replicas {
    pods: Pods,
    /// Sets by their Deployment.
    family: headwater_client::indexer::Index<ReplicaSet, String>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<ReplicaSet> for Replicas {
    async fn reconcile(&self, set: Arc<ReplicaSet>, cx: Context) -> Result<Next, Failure> {
        let selector = selector(set.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let mut candidates = self.pods.by_controller.get(set.uid());
        candidates.extend(self.pods.orphans.get(set.namespace().unwrap_or_default()));
        let claims = Claims { owner: &*set, selector: &selector, cx: &cx };
        let pods = match claims.settle::<Pod, core::Pod>(candidates).await {
            Ok(pods) => pods,
            Err(error) => return after(error),
        };

        let now = self.clock.now();
        let plan = plan(&set, &pods, || self.neighbours(&set), now);
        let more = plan.create > BURST_MAX || plan.delete.len() > BURST_MAX;
        let failure = carry_out(&set, plan, &cx).await;
        let trouble = failure.as_ref().map(|(trouble, _)| trouble);
        let (status, wait) = status(&set, &pods, trouble, now);
        let before = set.status.clone().unwrap_or_default();
        if let Some(status) = difference(&before, &status) {
            let patch = json!({
                "metadata": { "resourceVersion": set.resource_version().text() },
                "status": status,
            });
            if let Err(error) = cx.of::<ReplicaSet>().merge_status(&set.key(), &patch).await {
                return after(error);
            }
        }
        match (failure, wait) {
            (Some((_, error)), _) => after(error),
            _ if more => Ok(Next::Again),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl Replicas {
    /// How many pods of the same Deployment are on each node; of the set alone if it has none.
    fn neighbours(&self, set: &ReplicaSet) -> BTreeMap<String, usize> {
        let family = match controller_of(&set.metadata) {
            Some(owner) => self.family.get(&owner.uid),
            None => Vec::new(),
        };
        let relatives = family.iter().map(|set| set.uid()).chain([set.uid()]);
        let relatives: std::collections::BTreeSet<&str> = relatives.collect();
        let pods: Vec<Arc<Pod>> =
            relatives.into_iter().flat_map(|uid| self.pods.by_controller.get(uid)).collect();
        crowds(pods.iter())
    }
}

/// Creates and deletes; answers what went wrong.
async fn carry_out(set: &ReplicaSet, plan: Plan, cx: &Context) -> Option<(Trouble, Error)> {
    let pods = &cx.of::<core::Pod>();
    if plan.create > 0 {
        let template = set.spec.as_ref().and_then(|spec| spec.template.clone());
        let pod = &pod_of(set, &template.unwrap_or_default());
        let create = |_| async move { pods.create(pod).await };
        let (created, error) = slow_start((0..plan.create).collect(), create).await;
        for pod in created {
            cx.normal(set, "SuccessfulCreate", format_args!("Created pod: {}", pod.name()));
        }
        return trouble(set, "FailedCreate", "Error creating", error, cx);
    }
    let delete = |pod: Arc<Pod>| async move {
        let options = json!({ "preconditions": { "uid": pod.uid() } });
        match pods.delete_with(&pod.key(), &options).await {
            Err(error) if error.is_conflict() => Ok(None), // another pod of that name: not ours
            deleted => deleted.map(|_| Some(pod)),
        }
    };
    let (deleted, error) = slow_start(plan.delete, delete).await;
    for pod in deleted.into_iter().flatten() {
        cx.normal(set, "SuccessfulDelete", format_args!("Deleted pod: {}", pod.name()));
    }
    trouble(set, "FailedDelete", "Error deleting", error, cx)
}

fn trouble(
    set: &ReplicaSet,
    reason: &'static str,
    what: &str,
    error: Option<Error>,
    cx: &Context,
) -> Option<(Trouble, Error)> {
    let error = error.filter(|error| !namespace_ends(error))?;
    let message = error.status().map_or_else(|| error.to_string(), |status| status.message.clone());
    cx.warning(set, reason, format_args!("{what}: {message}"));
    Some((Trouble { reason, message }, error))
}
