//! Everything client-go has, in Rust: reflector, informers, indexer, workqueue, controllers.
#![warn(missing_docs)]

pub mod random;
pub mod workqueue;
pub mod metrics;
