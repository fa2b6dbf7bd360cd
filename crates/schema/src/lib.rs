//! The schema of Kubernetes objects: decoding, defaults, validation, patches and apply.
//!
//! River: HTTP body → [`decode`] → [`defaults`], [`validate`], [`managed`] → stored bytes.
//!
//! The types of built-in kinds are a table ([`types`]); custom kinds bring their own schema
//! ([`structural`]). No I/O and no async.

pub mod types;
pub mod yaml;
pub mod protobuf;
pub mod decode;
mod convert;
pub mod decl_type;
pub mod structural;
pub mod defaults;
pub mod validate;
pub mod warnings;
pub mod patch;
pub mod managed;

pub use convert::convert;
