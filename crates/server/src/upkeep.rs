//! Objects that the server itself writes.
//!
//! Reading order: `bootstrap` creates the objects that every cluster has; `presence` keeps the
//! endpoints of the `kubernetes` Service; `definitions` reconciles custom resource definitions;
//! `cleanup` deletes the objects of deleted definitions.

pub(crate) mod bootstrap;
pub mod presence;
mod definitions;
mod cleanup;
