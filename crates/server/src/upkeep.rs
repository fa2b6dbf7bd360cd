//! Objects that the server itself writes.
//!
//! Reading order: `bootstrap` creates the objects that every cluster has; `presence` keeps the
//! endpoints of the `kubernetes` service; `after_write` does what follows a write; `flow_objects`
//! keeps those of flow control; `follow` waits for changes; `definitions` settles custom resource
//! definitions; `cleanup` deletes the objects of deleted definitions; `roles` creates the default
//! roles and bindings; `aggregation` fills aggregated roles; `api_services` keeps the APIServices;
//! `unrouted` reports Services that cannot be called.

pub(crate) mod bootstrap;
pub mod presence;
pub(crate) mod after_write;
pub(crate) mod flow_objects;
mod follow;
mod definitions;
mod cleanup;
pub(crate) mod roles;
mod aggregation;
mod api_services;
mod unrouted;
