//! The controller of ReplicaSets and ReplicationControllers: keeps the desired number of pods
//! running.
//!
//! River: ReplicaSets, ReplicationControllers and pods → **replicaset** → pods created and deleted,
//! and a status.
//! Promise: a reconcile starts only after the cache has received the writes of the previous one, so
//! pods are never created twice for the same gap. A restart after any write completes the work.

mod plan;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Index, Key};
use k8s_openapi::api::apps::v1::{
    ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus,
};
use k8s_openapi::api::core::v1::{
    self as core, ReplicationController, ReplicationControllerCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;
use serde::de::DeserializeOwned;
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
    Ok(controller(cluster, "replicaset", &sets, pods, Some(by_deployment)))
}

/// The controller of ReplicationControllers, which are ReplicaSets without a Deployment.
pub(crate) fn prepare_replication(cluster: &Cluster) -> Result<Prepared, Error> {
    let (sets, pods) = (cluster.informer::<ReplicationController>()?, cluster.pods()?);
    Ok(controller(cluster, "replicationcontroller", &sets, pods, None))
}

fn controller<O: ReplicatedPods>(
    cluster: &Cluster,
    name: &'static str,
    sets: &Informer<O>,
    pods: Pods,
    by_deployment: Option<Index<ReplicaSet, String>>,
) -> Prepared {
    let (candidates, changes) = (sets.clone(), pods.informer.clone());
    let replicas = ReplicaSetController { pods, by_deployment, clock: Arc::clone(cluster.clock()) };
    Controller::new(name, sets)
        .watches(&changes, move |pod: &Pod| affected_sets(&candidates, pod))
        .workers(WORKERS)
        .with(replicas)
}

/// A kind that keeps a number of equal pods running.
pub(crate) trait ReplicatedPods:
    Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static
{
    /// The object as a ReplicaSet, which has the same fields.
    fn as_set(&self) -> Cow<'_, ReplicaSet>;
}

impl ReplicatedPods for ReplicaSet {
    fn as_set(&self) -> Cow<'_, ReplicaSet> {
        Cow::Borrowed(self)
    }
}

impl ReplicatedPods for ReplicationController {
    fn as_set(&self) -> Cow<'_, ReplicaSet> {
        let spec = self.spec.clone().unwrap_or_default();
        // Without a selector it selects no pods, unlike a ReplicaSet.
        let set_spec = spec.selector.filter(|labels| !labels.is_empty()).map(|labels| {
            let selector = LabelSelector { match_labels: Some(labels), match_expressions: None };
            ReplicaSetSpec {
                replicas: spec.replicas,
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: spec.template,
            }
        });
        let status = self.status.as_ref().map(|status| ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            terminating_replicas: None,
            conditions: status.conditions.as_ref().map(|all| all.iter().map(condition).collect()),
        });
        Cow::Owned(ReplicaSet { metadata: self.metadata.clone(), spec: set_spec, status })
    }
}

fn condition(known: &ReplicationControllerCondition) -> ReplicaSetCondition {
    ReplicaSetCondition {
        type_: known.type_.clone(),
        status: known.status.clone(),
        reason: known.reason.clone(),
        message: known.message.clone(),
        last_transition_time: known.last_transition_time.clone(),
    }
}

/// The sets that a pod affects: its controller, or those that may adopt it.
fn affected_sets<O: ReplicatedPods>(sets: &Informer<O>, pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    match controller_of(&pod.metadata) {
        Some(owner) if owner.kind == sets.resource().kind => {
            vec![Key::namespaced(namespace, &owner.name)]
        }
        Some(_) => Vec::new(),
        None if pod.is_deleting() => Vec::new(),
        None => {
            let snapshot = sets.snapshot();
            let sets = snapshot.in_namespace(namespace);
            sets.filter(|(_, set)| selects(&set.as_set(), pod))
                .map(|(key, _)| key.clone())
                .collect()
        }
    }
}

fn selects(set: &ReplicaSet, pod: &Pod) -> bool {
    let wanted = set.spec.as_ref().map(|spec| &spec.selector);
    selector(wanted).is_ok_and(|selector| selector.matches(pod))
}

struct ReplicaSetController {
    pods: Pods,
    /// ReplicaSets by their Deployment.
    by_deployment: Option<Index<ReplicaSet, String>>,
    clock: Arc<dyn Clock>,
}

impl<O: ReplicatedPods> Reconcile<O> for ReplicaSetController {
    async fn reconcile(&self, owner: Arc<O>, cx: Context) -> Result<Next, Failure> {
        let set = owner.as_set();
        let selector = selector(set.spec.as_ref().map(|spec| &spec.selector));
        let selector = selector.map_err(Failure::terminal)?;
        let mut candidates = self.pods.by_controller.get(set.uid());
        candidates.extend(self.pods.orphans.get(set.namespace().unwrap_or_default()));
        let refs = ControllerRefManager { owner: &*owner, selector: &selector, cx: &cx };
        let pods = match refs.claim::<Pod, core::Pod>(candidates).await {
            Ok(pods) => pods,
            Err(error) => return requeue_or_fail(error),
        };

        let now = self.clock.now();
        let plan = plan(&set, &pods, || self.related_pods(&set), now);
        let more = plan.create > BURST_MAX || plan.delete.len() > BURST_MAX;
        let failure = carry_out(&*owner, &set, plan, &cx).await;
        let condition = failure.as_ref().map(|(failure, _)| failure);
        let (mut status, wait) = status(&set, &pods, condition, now);
        if self.by_deployment.is_none() {
            status.terminating_replicas = None; // a ReplicationController does not report it
        }
        let before = set.status.clone().unwrap_or_default();
        if let Some(status) = difference(&before, &status) {
            let patch = json!({
                "metadata": { "resourceVersion": set.resource_version().text() },
                "status": status,
            });
            if let Err(error) = cx.of::<O>().merge_status(&set.key(), &patch).await {
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
        let siblings = match (controller_of(&set.metadata), &self.by_deployment) {
            (Some(owner), Some(by_deployment)) => by_deployment.get(&owner.uid),
            _ => Vec::new(),
        };
        let sets = siblings.iter().map(|set| set.uid()).chain([set.uid()]);
        let sets: std::collections::BTreeSet<&str> = sets.collect();
        let pods: Vec<Arc<Pod>> =
            sets.into_iter().flat_map(|uid| self.pods.by_controller.get(uid)).collect();
        active_pods_by_node(pods.iter())
    }
}

/// Creates and deletes pods; returns the first failure.
async fn carry_out<O: ReplicatedPods>(
    owner: &O,
    set: &ReplicaSet,
    plan: ScalePlan,
    cx: &Context,
) -> Option<(ReplicaFailure, Error)> {
    if plan.create > 0 {
        let template = set.spec.as_ref().and_then(|spec| spec.template.clone());
        let pod = pod_from_template(owner, &template.unwrap_or_default());
        let error = create_pods(owner, vec![(); plan.create], |()| pod.clone(), cx).await?;
        return Some(report_failure(owner, "FailedCreate", "Error creating", error, cx));
    }
    let error = delete_pods(owner, plan.delete, cx).await?;
    Some(report_failure(owner, "FailedDelete", "Error deleting", error, cx))
}

fn report_failure<O: ReplicatedPods>(
    owner: &O,
    reason: &'static str,
    what: &str,
    error: Error,
    cx: &Context,
) -> (ReplicaFailure, Error) {
    let message = error.status().map_or_else(|| error.to_string(), |status| status.message.clone());
    cx.warning(owner, reason, format_args!("{what}: {message}"));
    (ReplicaFailure { reason, message }, error)
}
