//! The scheduler: assigns every pending pod to a node that fits.
//!
//! River: watch of pods and nodes → cache and queue → **scheduler** → `pods/binding`.
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
mod inter_pod_affinity;
mod cycle_state;
mod filter;
mod score;
mod preemption;
mod schedule_one;
mod run;
#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests;

use headwater_client::Error;
use headwater_client::controller::Prepared;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::cluster::Cluster;

/// Pods with another `schedulerName` are ignored.
const NAME: &str = "default-scheduler";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?.informer;
    let nodes = cluster.informer::<Node>()?;
    let budgets = cluster.informer::<PodDisruptionBudget>()?;
    let clock = cluster.clock().clone();
    Ok(Prepared::custom("scheduler", move |env| run::run(pods, nodes, budgets, clock, env)))
}
