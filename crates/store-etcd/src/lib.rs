//! The store over a real etcd cluster; the only crate that knows gRPC.
#![warn(missing_docs)]
