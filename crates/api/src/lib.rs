//! The words and the wire of a Kubernetes-compatible API.
//!
//! Everything both sides of the wire agree on: objects as shared bytes, kinds as rows, selectors,
//! list and watch options, patches, `Status` errors, watch frames. No I/O and no async: server and
//! client meet here and nowhere else.

pub mod clock;
pub mod revision;
mod wide;
pub mod json;
pub mod scan;
pub mod marks;
pub mod object;
pub mod kind;
pub mod schema;
pub mod quantity;
pub mod decode;
pub mod cel;
pub mod structural;
pub mod protobuf;
pub mod defaults;
pub mod validate;
pub mod warnings;
pub mod status;
pub mod name;
pub mod query;
pub mod token;
pub mod selector;
pub mod options;
pub mod accept;
pub mod patch;
pub mod table;
pub mod yaml;
pub mod managed;

pub use clock::{Clock, SystemClock};
pub use kind::Kind;
pub use object::{EventType, Object};
pub use revision::Revision;
pub use status::Status;
