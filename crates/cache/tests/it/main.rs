//! Tests of the watch cache and its guarantees (R20 to R37).
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod fixture;
mod watch;
mod memory;
mod failure;
mod unreadable;
mod race;
mod wakeup;
mod model;
mod contract;
