//! Metrics, health checks and backups, for operators.

pub mod metrics;
pub mod health;
pub mod backup;
