//! Tests of the etcd store with real etcd processes.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail")]

mod fixture;
mod start;
mod replicas;
mod contract;
mod cached;
mod times;
mod torture;
