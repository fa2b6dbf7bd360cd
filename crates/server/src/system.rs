//! What an operator asks of the server: metrics, health, backups.

pub mod metrics;
pub mod health;
pub mod backup;
