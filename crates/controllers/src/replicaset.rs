//! The ReplicaSet controller: keeps the desired number of pods running.
//!
//! River: ReplicaSets and pods → **replicaset** → pods created and deleted, and a status.
//! Promise: a reconcile starts only after the cache has received the writes of the previous one, so
//! pods are never created twice for the same gap. A restart after any write completes the work.

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

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::{ControllerRefManager, controller_of, requeue_or_fail, selector};
use crate::pod::Pod;
use crate::pod_control::{create_pods, delete_pods, pod_from_template};
use crate::slow_start::BURST_MAX;

use self::plan::{ReplicaFailure, ScalePlan, active_pods_by_node, plan, status};

const WORKERS: usize = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let (sets, pods) = (cluster.informer::<ReplicaSet>()?, cluster.pods()?);
    let by_deployment = sets.index("replicaset/controller", |set: &ReplicaSet| {
        controller_of(&set.metadata).map(|owner| owner.uid.clone())
    })?;
    let candidates = sets.clone();
    let replicas = ReplicaSetController {
        pods: pods.clone(),
        by_deployment,
        clock: Arc::clone(cluster.clock()),
    };
    Ok(Controller::new("replicaset", &sets)
        .watches(&pods.informer, move |pod: &Pod| affected_sets(&candidates, pod))
        .workers(WORKERS)
        .with(replicas))
}

/// The sets that a pod affects: its controller, or those that may adopt it.
fn affected_sets(sets: &Informer<ReplicaSet>, pod: &Pod) -> Vec<Key> {
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

struct ReplicaSetController {
    pods: Pods,
    /// Sets by their Deployment.
    by_deployment: headwater_client::Index<ReplicaSet, String>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<ReplicaSet> for ReplicaSetController {
    async fn reconcile(&self, set: Arc<ReplicaSet>, cx: Context) -> Result<Next, Failure> {
        let selector = selector(set.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let mut candidates = self.pods.by_controller.get(set.uid());
        candidates.extend(self.pods.orphans.get(set.namespace().unwrap_or_default()));
        let refs = ControllerRefManager { owner: &*set, selector: &selector, cx: &cx };
        let pods = match refs.claim::<Pod, core::Pod>(candidates).await {
            Ok(pods) => pods,
            Err(error) => return requeue_or_fail(error),
        };

        let now = self.clock.now();
        let plan = plan(&set, &pods, || self.related_pods(&set), now);
        let more = plan.create > BURST_MAX || plan.delete.len() > BURST_MAX;
        let failure = carry_out(&set, plan, &cx).await;
        let condition = failure.as_ref().map(|(failure, _)| failure);
        let (status, wait) = status(&set, &pods, condition, now);
        let before = set.status.clone().unwrap_or_default();
        if let Some(status) = difference(&before, &status) {
            let patch = json!({
                "metadata": { "resourceVersion": set.resource_version().text() },
                "status": status,
            });
            if let Err(error) = cx.of::<ReplicaSet>().merge_status(&set.key(), &patch).await {
                return requeue_or_fail(error);
            }
        }
        match (failure, wait) {
            (Some((_, error)), _) => requeue_or_fail(error),
            _ if more => Ok(Next::Again),
            (None, Some(wait)) => Ok(Next::After(wait)),
            (None, None) => Ok(Next::Done),
        }
    }
}

impl ReplicaSetController {
    /// The number of active pods on each node, of all sets of the same Deployment.
    fn related_pods(&self, set: &ReplicaSet) -> BTreeMap<String, usize> {
        let siblings = match controller_of(&set.metadata) {
            Some(owner) => self.by_deployment.get(&owner.uid),
            None => Vec::new(),
        };
        let sets = siblings.iter().map(|set| set.uid()).chain([set.uid()]);
        let sets: std::collections::BTreeSet<&str> = sets.collect();
        let pods: Vec<Arc<Pod>> =
            sets.into_iter().flat_map(|uid| self.pods.by_controller.get(uid)).collect();
        active_pods_by_node(pods.iter())
    }
}

/// Creates and deletes pods; returns the first failure.
async fn carry_out(
    set: &ReplicaSet,
    plan: ScalePlan,
    cx: &Context,
) -> Option<(ReplicaFailure, Error)> {
    if plan.create > 0 {
        let template = set.spec.as_ref().and_then(|spec| spec.template.clone());
        let pod = pod_from_template(set, &template.unwrap_or_default());
        let error = create_pods(set, vec![(); plan.create], |()| pod.clone(), cx).await?;
        return Some(report_failure(set, "FailedCreate", "Error creating", error, cx));
    }
    let error = delete_pods(set, plan.delete, cx).await?;
    Some(report_failure(set, "FailedDelete", "Error deleting", error, cx))
}

fn report_failure(
    set: &ReplicaSet,
    reason: &'static str,
    what: &str,
    error: Error,
    cx: &Context,
) -> (ReplicaFailure, Error) {
    let message = error.status().map_or_else(|| error.to_string(), |status| status.message.clone());
    cx.warning(set, reason, format_args!("{what}: {message}"));
    (ReplicaFailure { reason, message }, error)
}
