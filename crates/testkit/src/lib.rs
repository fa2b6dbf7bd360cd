//! For tests only: contracts, history checks, fixtures.

pub mod contract;
pub mod model;
