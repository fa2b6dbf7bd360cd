//! Everything client-go has, in Rust: reflector, informers, indexer, workqueue, controllers.
#![warn(missing_docs)]

pub mod key;
pub mod version;
pub mod object;
pub mod packed;
pub mod strip;
mod slim;
mod meter;
pub mod query;
pub mod list_watch;
pub mod http;
pub mod transform;
mod backoff;
mod reflector;
pub mod change;
pub mod delta_queue;
pub mod indexer;
pub mod informer;
pub mod lister;
pub mod factory;
pub mod selector;
pub mod workqueue;
pub mod script;
pub mod metrics;
mod observe;
pub mod random;
pub mod error;

pub use error::Error;
pub use factory::Factory;
pub use key::Key;
pub use object::Cached;
pub use packed::Packed;
pub use selector::Selector;
pub use slim::slim;
pub use version::ResourceVersion;
