//! The scheduler: gives every pod without a node one that fits.
//!
//! River: watch of pods and nodes → cache and queue → **scheduler** → `pods/binding`.
//! Promise: one pod is decided at a time, on a cache that already counts what was decided before;
//! what was assumed and could not be bound is forgotten; a pod that fits nowhere waits until
//! something happened that may help it. Everything is rebuilt from the informers, so the scheduler
//! can end at any point.
//!
//! Deciding is pure: `decide` asks `filter` where a pod fits and `score` where it fits best, and
//! `preempt` whom it may push out. `run` is the loop around it.

mod amount;
mod ask;
mod around;
mod budgets;
mod cache;
mod decide;
mod filter;
mod preempt;
mod queue;
mod reason;
mod run;
mod score;
#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests;

use headwater_client::Error;
use headwater_client::controller::Prepared;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::cluster::Cluster;

/// Pods that ask for a scheduler by another name are left to it.
const NAME: &str = "default-scheduler";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?.informer;
    let nodes = cluster.informer::<Node>()?;
    let budgets = cluster.informer::<PodDisruptionBudget>()?;
    let clock = cluster.clock().clone();
    Ok(Prepared::custom("scheduler", move |env| run::run(pods, nodes, budgets, clock, env)))
}
