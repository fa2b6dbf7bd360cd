//! Controllers against a server over TLS on loopback.
#![allow(clippy::unwrap_used, reason = "a failing test shows the line")]
#![allow(clippy::needless_pass_by_value, reason = "JSON literals read better by value")]

mod world;
mod kubelet;
mod replicaset;
mod deployment;
mod statefulset;
mod daemonset;
mod garbage;
mod namespace;
mod endpointslice;
mod job;
mod cronjob;
mod volumes;
mod disruption;
mod nodelifecycle;
mod quiet;
mod nodes;
mod credentials;
