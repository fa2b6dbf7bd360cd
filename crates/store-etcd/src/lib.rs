//! The store over a real etcd cluster; the only crate that knows gRPC.
//!
//! River: server writes → **etcd** → one watch over the prefix → watch cache. Any number of API
//! servers may do this over one cluster at a time: etcd orders the writes, guards decide them, and
//! the modification revision of a key is the resourceVersion of its object.
#![warn(missing_docs)]

mod proto;
mod convert;
mod backoff;
mod failure;
mod member;
mod client;
mod lease;
mod journal;
mod feed;
mod recent;
mod watch;
mod compaction;
mod start;
mod read;
mod write;
mod engine;

pub use client::Login;
pub use engine::{Etcd, Options};
pub use member::Tls;
pub use start::Error;
