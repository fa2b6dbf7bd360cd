//! A revisioned key-value store: the `Store` trait and its engines.
//!
//! River: server writes → **store** → watch cache. Writes enter the store here; its watch returns
//! them as changes.

pub mod key;
pub mod change;
pub mod store;
pub mod versions;
pub mod lock;
pub mod recent;
pub mod times;
pub mod memory;
pub mod embedded;
pub mod encrypted;

pub use change::{Batch, Change, ChangeKind, Version};
pub use embedded::{Embedded, Options as EmbeddedOptions};
pub use headwater_api::Revision;
pub use key::Key;
pub use memory::{Memory, Options as MemoryOptions};
pub use store::{
    Action, ChangeStream, CommitTimes, Committed, Error, FIRST, Guard, KeyServiceHealth, Op, Range,
    RangePage, Record, Scrubbed, Store, StoreCondition, Write,
};
pub use versions::{KeyHistory, KeyVersion, RevisionAt, TimedRevision, VersionRange};
