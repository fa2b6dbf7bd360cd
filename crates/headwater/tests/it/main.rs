//! The binary, as a user has it.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod architecture;
mod command_line;
mod kubectl_write;
mod kill_loop;
mod process;
mod tokens;
mod transcript;
