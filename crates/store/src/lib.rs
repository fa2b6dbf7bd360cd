//! Revisioned bytes: the `Store` trait and its engines.
//!
//! A write goes down through here; the store's watch is where it starts to come up again.

pub mod key;
pub mod change;
pub mod store;
pub mod lock;
pub mod recent;
pub mod memory;
pub mod embedded;

pub use change::{Batch, Change, ChangeKind, Version};
pub use embedded::{Embedded, Options as EmbeddedOptions};
pub use headwater_api::Revision;
pub use key::Key;
pub use memory::{Memory, Options as MemoryOptions};
pub use store::{
    Action, ChangeStream, Committed, Condition, Error, FIRST, Guard, Op, Page, Range, Record,
    Store, Write,
};
