//! The binary, as a user has it.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod command_line;
mod process;
