//! The scheduler: assigns every pending pod to a node that fits.
//!
//! River: watch of pods, nodes and volumes → cache and queue → **scheduler** → `pods/binding`.
//! Promise: pods are scheduled one at a time, on a cache that already counts earlier decisions; an
//! assumed pod whose binding fails is forgotten; an unschedulable pod waits for an event that may
//! help it. All state is rebuilt from the informers, so the scheduler can stop at any point.
//!
//! Decisions are pure: `schedule_one` asks `filter` on which nodes a pod fits, `score` which of
//! them is best and `preemption` which pods to delete if none fits. `run` is the loop around it.

mod resources;
mod reason;
mod pod_info;
mod budgets;
mod cache;
mod queue;
mod topology_spread;
mod volumes;
mod inter_pod_affinity;
mod node_term;
mod cycle_state;
mod filter;
mod score;
mod preemption;
mod schedule_one;
mod run;
#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests;

use std::sync::Arc;

use headwater_client::Error;
use headwater_client::controller::Prepared;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::cluster::Cluster;
use crate::pod::Pod;
use crate::toleration::tolerates;

use self::cache::NodeInfo;
use self::run::StorageInformers;

/// Whether a pod's node selector and required node affinity match a node.
pub(crate) fn matches_node(pod: &Pod, node: &Arc<Node>) -> bool {
    filter::matches_node(pod, &NodeInfo::bare(node))
}

/// The effects of a node's taints that a pod does not tolerate, without `PreferNoSchedule`.
pub(crate) fn untolerated_effects<'a>(pod: &Pod, node: &'a Node) -> Vec<&'a str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let tolerated =
        |taint: &&Taint| pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let hard = taints.filter(|taint| taint.effect != "PreferNoSchedule" && !tolerated(taint));
    hard.map(|taint| taint.effect.as_str()).collect()
}

/// Pods with another `schedulerName` are ignored.
const NAME: &str = "default-scheduler";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?.informer;
    let nodes = cluster.informer::<Node>()?;
    let budgets = cluster.informer::<PodDisruptionBudget>()?;
    let storage = StorageInformers {
        claims: cluster.informer()?,
        volumes: cluster.informer()?,
        classes: cluster.informer()?,
        nodes: cluster.informer()?,
    };
    let clock = cluster.clock().clone();
    Ok(Prepared::custom("scheduler", move |env| {
        run::run(pods, nodes, budgets, storage, clock, env)
    }))
}
