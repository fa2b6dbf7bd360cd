//! The watch cache: current state, a window of recent changes, views and cursors.
//!
//! River: store watch → feed → snapshot and window → views → watchers. Reads (get, list, watch)
//! are answered here; the store hears of a watcher only when it falls out of the window.

mod progress;
pub mod change;
mod tree;
pub mod snapshot;
pub mod window;
mod rounds;
pub mod view;
pub mod shape;
mod filling;
mod loans;
pub mod resource;
pub mod watcher;
pub mod feed;
#[doc(hidden)]
pub mod pieces;

pub use change::{Change, Event, Events};
pub use feed::{Cache, Cacher, Options};
pub use resource::Resource;
pub use shape::{Form, Shape};
pub use snapshot::Snapshot;
pub use view::Filter;
pub use watcher::{Start, Step, Watcher};

use headwater_api::Revision;

/// Why the cache could not answer.
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
    /// A stored value is not an object.
    #[error("the stored value of {key} is not a valid object: {source}")]
    Malformed {
        /// The key of the value.
        key: headwater_store::Key,
        /// The position of the first invalid byte.
        source: headwater_json::scan::Malformed,
    },
}
