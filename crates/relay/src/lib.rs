//! A relay: a List/Watch cache in front of another Kubernetes API server.
//!
//! River: upstream → follow → cache, server → clients. Each resource that is held has a store that
//! follows the upstream's revisions and a cache over it; the server answers reads from the caches and
//! passes on everything else.
//!
//! ```text
//! upstream ─▶ list, watch ─▶ store that follows ─▶ cache ─▶ server ─▶ readers
//!     ▲                         │   ▲
//!     │                         ▼   │
//!     └── writes, all others   journal on disk
//! ```

mod metrics;
mod shared_call;
mod text;
mod connection;
mod journal;
mod follow;
mod store;
mod catalog;
mod run;

pub use catalog::{HeldResources, InvalidResource, NamedResource};
pub use run::{Options, Relay};

/// Why a relay did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The upstream's configuration cannot be used.
    #[error("cannot connect to the upstream")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The upstream does not serve a resource that was asked for.
    #[error("{0}")]
    Resource(String),
    /// The data directory cannot be used.
    #[error("cannot use the data directory {path}")]
    Data {
        /// The directory or file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The server did not start, or ended.
    #[error(transparent)]
    Server(#[from] headwater_server::start::Error),
}
