//! The server over real sockets, on loopback.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod listen;
