//! The watch cache: current state, a window of recent changes, views and cursors.
//!
//! River: store watch → feed → snapshot and window → views → watchers. Reads (get, list, watch) are
//! served here; the store serves a watcher only if its position is older than the window.

mod progress;
mod unreadable;
pub mod change;
mod tree;
pub mod snapshot;
pub mod window;
mod wakeup;
pub mod view;
pub mod selection;
pub mod decoder;
mod load;
mod retained;
pub mod resource;
pub mod vantage;
pub mod watcher;
pub mod feed;
#[doc(hidden)]
pub mod pieces;

pub use change::{EventBatch, ObjectChange, WatchEvent};
pub use decoder::{ObjectDecoder, StoredTransform};
pub use feed::{Cache, Cacher, Options};
pub use resource::Resource;
pub use selection::Selection;
pub use snapshot::Snapshot;
pub use unreadable::Invalid;
pub use vantage::{Backlog, ReadSource, Vantage};
pub use view::Filter;
pub use watcher::{WatchStart, WatchStep, Watcher};

use headwater_api::Revision;

/// Why the cache could not serve a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state at that revision is no longer available: list again. (410)
    #[error("revision {asked} is too old; the oldest available is {oldest}")]
    Expired {
        /// The requested revision.
        asked: Revision,
        /// The oldest revision that can be requested.
        oldest: Revision,
    },
    /// The cache did not reach the revision within the time a request may wait. (504)
    #[error("revision {asked} is not reached yet; the newest is {current}")]
    TooLarge {
        /// The requested revision.
        asked: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The store failed to return its newest revision or its history.
    #[error(transparent)]
    Store(#[from] headwater_store::Error),
    /// A stored value is not the object of its key. Only reads of this key fail.
    #[error("the stored value of {key} cannot be read: {source}")]
    Unreadable {
        /// The key of the value.
        key: headwater_store::Key,
        /// What is wrong with it.
        source: Invalid,
    },
}
