//! The `Store` trait over an etcd cluster; the only crate that uses gRPC.
//!
//! River: server writes → **etcd** → one watch over the prefix → watch cache. Any number of API
//! servers can share one cluster: etcd orders the writes, guards decide conflicts, and the
//! modification revision of a key is the resourceVersion of its object.
#![warn(missing_docs)]

mod proto;
mod convert;
mod call_error;
mod member;
mod client;
mod lease;
mod options;
mod session;
mod compaction;
mod feed;
mod watch;
mod start;
mod read;
mod write;
mod engine;

pub use client::Login;
pub use engine::EtcdStore;
pub use member::Tls;
pub use options::Options;
pub use start::Error;
