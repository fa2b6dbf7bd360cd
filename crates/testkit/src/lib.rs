//! Test support for this workspace: the store contract, a model, history checks, etcd, a KMS plugin, a
//! collector of traces, a proxy.

pub mod contract;
pub mod model;
pub mod history;
pub mod ledger;
pub mod owning_store;
pub mod cached_store;
pub mod ports;
pub mod tools;
pub mod etcd;
mod grpc;
pub mod kms;
pub mod collector;
pub mod proxy;

pub use owning_store::OwningStore;
