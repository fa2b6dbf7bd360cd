//! Reconcilers, a scheduler and simulated nodes, on the informer stack alone.
//!
//! River: work queue → **reconciler** → the next write. Nothing here reaches behind the API: the
//! crate depends on `headwater-client` (and on the words of `headwater-api`), so every controller
//! runs against any cluster.
//!
//! # The seam: how a controller joins
//!
//! A controller is a module with one function
//!
//! ```ignore
//! pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, headwater_client::Error>
//! ```
//!
//! and one row in [`roster`]. `prepare` opens informers through [`Cluster`] (one factory for the
//! whole process, so two controllers that ask for the same share it) and answers either
//! `Controller::new(NAME, &informer)….with(reconcile)` or, for what has a loop of its own,
//! `Prepared::custom(NAME, |env| async …)`. It is given everything else when it runs: calls, a
//! recorder, leadership, stop.
//!
//! Pods are many, so they are not kept as the full type but as [`pod::Pod`], a projection with the
//! fields that controllers read; take it from [`Cluster::pods`], which also has the indexes by
//! node and by owner. Writes go through the typed `k8s_openapi` objects or merge patches. All
//! other kinds are few: `cluster.informer::<Deployment>()` holds them typed.
//!
//! Decisions are pure functions with table tests; `reconcile` reads, decides, writes.
#![warn(missing_docs)]
#![cfg_attr(
    test,
    allow(clippy::needless_pass_by_value, reason = "JSON literals read better by value")
)]

pub mod pod;
pub mod cluster;
pub mod roster;
pub mod run;
pub mod scheduler;
pub mod nodes;
mod ownership;
mod difference;
mod burst;
mod moment;
mod template;
mod rank;
mod replicaset;
mod deployment;
mod census;
mod namespace;
mod garbage;
mod serviceaccount;
mod endpointslice;
mod job;
mod disruption;
mod nodelifecycle;
#[cfg(test)]
mod fixture;

pub use cluster::Cluster;
pub use roster::Selected;
pub use run::{Options, run};
