//! The disruption controller: computes how many pods each PodDisruptionBudget allows to evict.
//!
//! River: budgets, pods and their controllers → **disruption** → a status.
//! Promise: the status allows no more disruptions than the budget does for the cached pods. The
//! server decrements the status before it evicts a pod, and the pod counts as disrupted until it is
//! deleted.

mod budget;

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::Clock;
use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use crate::cluster::Cluster;
use crate::difference::difference;
use crate::ownership::{controller_of, selector};
use crate::pod::Pod;

use self::budget::{ControllerScale, compute_status};

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let budgets = cluster.informer::<PodDisruptionBudget>()?;
    let pods = cluster.pods()?.informer;
    let (sets, deployments) =
        (cluster.informer::<ReplicaSet>()?, cluster.informer::<Deployment>()?);
    let runner = DisruptionController { pods: pods.clone(), clock: Arc::clone(cluster.clock()) };
    let (of_pod, of_set, of_deployment) = (budgets.clone(), budgets.clone(), budgets.clone());
    Ok(Controller::new("disruption", &budgets)
        .watches(&pods, move |pod: &Pod| budgets_for_pod(&of_pod, pod))
        .watches(&sets, move |set: &ReplicaSet| budgets_in_namespace_of(&of_set, set))
        .watches(&deployments, move |it: &Deployment| budgets_in_namespace_of(&of_deployment, it))
        .with(runner))
}

/// The budgets that select a pod.
fn budgets_for_pod(budgets: &Informer<PodDisruptionBudget>, pod: &Pod) -> Vec<Key> {
    let all = budgets.snapshot();
    let all = all.in_namespace(pod.namespace().unwrap_or_default());
    all.filter(|(_, budget)| selects(budget, pod)).map(|(key, _)| key.clone()).collect()
}

/// All budgets in the namespace of a pod controller, whose scale may affect them.
fn budgets_in_namespace_of<K: Cached>(
    budgets: &Informer<PodDisruptionBudget>,
    owner: &K,
) -> Vec<Key> {
    let all = budgets.snapshot();
    let all = all.in_namespace(owner.namespace().unwrap_or_default());
    all.map(|(key, _)| key.clone()).collect()
}

/// Whether a budget selects a pod; an invalid selector selects none.
pub(crate) fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let wanted = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector(wanted).is_ok_and(|selector| selector.matches(pod))
}

struct DisruptionController {
    pods: Informer<Pod>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<PodDisruptionBudget> for DisruptionController {
    async fn reconcile(
        &self,
        budget: Arc<PodDisruptionBudget>,
        cx: Context,
    ) -> Result<Next, Failure> {
        let snapshot = self.pods.snapshot();
        let pods = snapshot.in_namespace(budget.namespace().unwrap_or_default());
        let pods: Vec<&Pod> =
            pods.map(|(_, pod)| &**pod).filter(|pod| selects(&budget, pod)).collect();
        let scales = scales(&pods, &cx)?;
        let standing = compute_status(&budget, &pods, &scales, self.clock.now());
        let before = budget.status.clone().unwrap_or_default();
        if let Some(status) = difference(&before, &standing.status) {
            let version = budget.resource_version();
            let patch =
                json!({ "metadata": { "resourceVersion": version.text() }, "status": status });
            match cx.of::<PodDisruptionBudget>().merge_status(&budget.key(), &patch).await {
                // An eviction changed the status first, or the budget was deleted.
                Err(error) if error.is_conflict() => return Ok(Next::Again),
                Err(error) if error.is_not_found() => {}
                written => drop(written?),
            }
        }
        Ok(standing.next_check.map_or(Next::Done, Next::After))
    }
}

/// The scale of the pods' controllers, by the UID of the ReplicaSet.
fn scales(pods: &[&Pod], cx: &Context) -> Result<BTreeMap<String, ControllerScale>, Error> {
    let (sets, deployments) = (cx.lister::<ReplicaSet>()?, cx.lister::<Deployment>()?);
    let mut scales = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(&pod.metadata) else { continue };
        let namespace = pod.namespace().unwrap_or_default();
        let set = sets.get(namespace, &owner.name)?;
        let Some(set) = set.filter(|set| owner.kind == "ReplicaSet" && set.uid() == owner.uid)
        else {
            continue;
        };
        let above = controller_of(&set.metadata).filter(|above| above.kind == "Deployment");
        let above = match above {
            Some(above) => deployments.get(namespace, &above.name)?,
            None => None,
        };
        let scale = match above {
            Some(above) => {
                ControllerScale::of(above.uid(), above.spec.as_ref().and_then(|it| it.replicas))
            }
            None => ControllerScale::of(set.uid(), set.spec.as_ref().and_then(|it| it.replicas)),
        };
        scales.insert(owner.uid.clone(), scale);
    }
    Ok(scales)
}
