//! The test server as its users have it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod server;
