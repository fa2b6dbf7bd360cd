//! Metrics, health checks and backups, for operators.

pub mod metrics;
pub(crate) mod health;
pub mod backup;
