//! The scenarios of the bench, one file each.

pub(crate) mod targets;
pub(crate) mod start;
pub(crate) mod write;
pub(crate) mod list;
pub(crate) mod fan_out;
pub(crate) mod delta;
pub(crate) mod selective;
pub(crate) mod herd;
pub(crate) mod idle;
pub(crate) mod fairness;
pub(crate) mod relay;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod floor;
