//! The kinds that the server serves, and their descriptions.
//!
//! Reading order: `registry` is the table of served kinds; `custom` turns custom resource definitions
//! into rows of it; `discovery` and `openapi` describe the rows to clients.

pub mod registry;
pub(crate) mod live;
pub(crate) mod remote;
pub(crate) mod custom;
pub(crate) mod versions;
pub mod openapi;
