//! HTTP answers: status objects and bodies.
//!
//! Reading order: `status` makes the Kubernetes `Status` of each failure; `body` makes HTTP bodies
//! from bytes, whole or chunk by chunk; `blocks` keeps compressed parts of lists.

pub mod status;
pub mod body;
pub(crate) mod blocks;
