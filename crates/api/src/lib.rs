//! The words and the wire of a Kubernetes-compatible API.
//!
//! Everything that both sides of the wire share: objects as shared bytes, kinds as rows, selectors,
//! list and watch options, `Status` errors, watch frames, tables. No I/O and no async. Server and
//! client have no other crate in common but `json`.

pub mod clock;
pub mod cron;
pub mod revision;
pub mod fnv;
pub mod marks;
pub mod frame;
pub mod delta;
pub mod object;
pub mod canonical;
pub mod kind;
pub mod quantity;
pub mod distinct;
pub mod status;
pub mod name;
pub mod query;
pub mod token;
pub mod selector;
pub mod options;
pub mod accept;
pub mod table;
pub mod random;
pub mod backoff;
pub mod metrics;
pub mod trace;

pub use canonical::canonical;
pub use clock::{Clock, SystemClock};
pub use frame::EventType;
pub use kind::Kind;
pub use object::Object;
pub use revision::Revision;
pub use status::Status;
