//! Everything client-go has, in Rust: reflector, informers, indexer, workqueue, controllers.
#![warn(missing_docs)]

pub mod key;
pub mod version;
pub mod object;
pub mod packed;
pub mod strip;
pub mod query;
pub mod list_watch;
pub mod http;
pub mod workqueue;
pub mod metrics;
mod observe;
pub mod random;

pub use key::Key;
pub use object::Cached;
pub use packed::Packed;
pub use version::ResourceVersion;
