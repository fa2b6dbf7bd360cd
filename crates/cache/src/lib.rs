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
    /// That state is gone: list again. (410)
    #[error("revision {asked} is too old; the oldest kept is {oldest}")]
    Expired {
        /// What was asked for.
        asked: Revision,
        /// What may still be asked for.
        oldest: Revision,
    },
    /// That state was not reached in the time a request may wait. (504)
    #[error("revision {asked} is not reached; the newest is {current}")]
    TooLarge {
        /// What was asked for.
        asked: Revision,
        /// The newest.
        current: Revision,
    },
    /// The store could not say what is newest, or could not read the past.
    #[error(transparent)]
    Store(#[from] headwater_store::Error),
    /// Stored bytes are not an object.
    #[error("the value of {key} is not an object: {source}")]
    Malformed {
        /// The key.
        key: headwater_store::Key,
        /// Where it went wrong.
        source: headwater_api::scan::Malformed,
    },
}
