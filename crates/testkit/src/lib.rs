//! For tests only: contracts, history checks, fixtures.

pub mod contract;
pub mod model;
pub mod history;
pub mod ledger;
pub mod keeping;
pub mod etcd;

pub use keeping::Keeping;
