//! Reconcilers, a scheduler and simulated nodes, built on the informer stack alone.
//!
//! River: work queue → **reconciler** → the next write. Controllers use only the public API: the
//! crate depends on `headwater-client` (and on types of `headwater-api`), so every controller runs
//! against any cluster.
//!
//! # Adding a controller
//!
//! A controller is a module with one function
//!
//! ```ignore
//! pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, headwater_client::Error>
//! ```
//!
//! and one row in [`registry`]. `prepare` opens informers through [`Cluster`] (one factory per
//! process, so two controllers that need the same informer share it) and returns either
//! `Controller::new(NAME, &informer)….with(reconcile)` or, for a controller with its own loop,
//! `Prepared::custom(NAME, |env| async …)`. The manager passes everything else when it runs: calls,
//! a recorder, leadership, stop.
//!
//! A cluster has many pods, so they are cached as [`pod::Pod`], a projection with the fields that
//! controllers read. [`Cluster::pods`] returns the informer and its indexes by node and by owner.
//! All other kinds are cached with their full type: `cluster.informer::<Deployment>()`. Writes use
//! full `k8s_openapi` objects or merge patches.
//!
//! Decisions are pure functions with table tests; `reconcile` reads, decides and writes.
#![warn(missing_docs)]
#![cfg_attr(
    test,
    allow(clippy::needless_pass_by_value, reason = "JSON literals read better by value")
)]

pub mod pod;
pub mod cluster;
pub mod registry;
pub mod run;
mod time;
mod difference;
pub mod identity;
mod int_or_percent;
mod ownership;
mod template_hash;
mod revisions;
mod slow_start;
mod pod_control;
mod deletion_order;
mod toleration;
mod discovery;
pub mod scheduler;
pub mod nodes;
mod replicaset;
mod deployment;
mod statefulset;
mod daemonset;
mod job;
mod cronjob;
mod namespace;
mod garbage;
mod serviceaccount;
mod endpointslice;
mod loadbalancer;
mod disruption;
mod volumes;
mod autoscaling;
mod nodelifecycle;
mod token_secrets;
pub mod certificates;
#[cfg(test)]
mod fixture;

pub use cluster::Cluster;
pub use registry::ControllerSelection;
pub use run::{Options, run};
