//! The test server through its public API.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod server;
mod recording;
