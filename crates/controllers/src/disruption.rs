//! Disruption budgets: how many of their pods may be evicted now.
//!
//! River: budgets, pods and those who own them → **disruption** → a status.
//! Promise: the status allows no more evictions than the budget does, as of the pods that were seen;
//! an eviction takes one from it before anybody goes (the server sees to that), and what it took is
//! not given back while its pod is on its way out.

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

use self::budget::{Scale, standing};

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let budgets = cluster.informer::<PodDisruptionBudget>()?;
    let pods = cluster.pods()?.informer;
    let (sets, deployments) =
        (cluster.informer::<ReplicaSet>()?, cluster.informer::<Deployment>()?);
    let runner = Budgets { pods: pods.clone(), clock: Arc::clone(cluster.clock()) };
    let (of_pod, of_set, of_deployment) = (budgets.clone(), budgets.clone(), budgets.clone());
    Ok(Controller::new("disruption", &budgets)
        .watches(&pods, move |pod: &Pod| selecting(&of_pod, pod))
        .watches(&sets, move |set: &ReplicaSet| beside(&of_set, set))
        .watches(&deployments, move |it: &Deployment| beside(&of_deployment, it))
        .with(runner))
}

/// The budgets that select a pod.
fn selecting(budgets: &Informer<PodDisruptionBudget>, pod: &Pod) -> Vec<Key> {
    let all = budgets.snapshot();
    let all = all.in_namespace(pod.namespace().unwrap_or_default());
    all.filter(|(_, budget)| selects(budget, pod)).map(|(key, _)| key.clone()).collect()
}

/// All budgets in the namespace of something that owns pods: its size may count for them.
fn beside<K: Cached>(budgets: &Informer<PodDisruptionBudget>, owner: &K) -> Vec<Key> {
    let all = budgets.snapshot();
    let all = all.in_namespace(owner.namespace().unwrap_or_default());
    all.map(|(key, _)| key.clone()).collect()
}

/// Whether a budget is about a pod. One that nobody can parse is about none.
pub(crate) fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let wanted = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector(wanted).is_ok_and(|selector| selector.matches(pod))
}

struct Budgets {
    pods: Informer<Pod>,
    clock: Arc<dyn Clock>,
}

impl Reconcile<PodDisruptionBudget> for Budgets {
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
        let standing = standing(&budget, &pods, &scales, self.clock.now());
        let before = budget.status.clone().unwrap_or_default();
        if let Some(status) = difference(&before, &standing.status) {
            let version = budget.resource_version();
            let patch =
                json!({ "metadata": { "resourceVersion": version.text() }, "status": status });
            match cx.of::<PodDisruptionBudget>().merge_status(&budget.key(), &patch).await {
                // An eviction was quicker, or it is gone.
                Err(error) if error.is_conflict() => return Ok(Next::Again),
                Err(error) if error.is_not_found() => {}
                written => drop(written?),
            }
        }
        Ok(standing.again.map_or(Next::Done, Next::After))
    }
}

/// How many pods whoever controls these wants, by the UID of the set that controls them.
fn scales(pods: &[&Pod], cx: &Context) -> Result<BTreeMap<String, Scale>, Error> {
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
            Some(above) => Scale::of(above.uid(), above.spec.as_ref().and_then(|it| it.replicas)),
            None => Scale::of(set.uid(), set.spec.as_ref().and_then(|it| it.replicas)),
        };
        scales.insert(owner.uid.clone(), scale);
    }
    Ok(scales)
}
