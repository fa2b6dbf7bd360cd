//! Controllers against a real server over HTTP on loopback.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(clippy::needless_pass_by_value, reason = "JSON literals read better by value")]

mod world;
mod kubelet;
mod replicaset;
mod deployment;
mod garbage;
mod namespace;
mod endpointslice;
mod job;
mod disruption;
mod nodelifecycle;
mod quiet;
mod nodes;
