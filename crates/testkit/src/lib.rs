//! For tests only: contracts, history checks, fixtures.

pub mod contract;
pub mod model;
pub mod history;
pub mod ledger;
pub mod keeping;
pub mod cached;
pub mod ports;
pub mod etcd;
pub mod proxy;

pub use keeping::Keeping;
