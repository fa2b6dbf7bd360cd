//! Objects of one cluster on their way to another: what is left out, and in which order they go.
//!
//! River: export, a recording → **copy** → import, replay.

pub(crate) mod plain;
pub(crate) mod order;
pub(crate) mod placer;
