//! A relay in front of a real server, over TLS.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod world;
mod reads;
mod permission;
mod passing;
mod resume;
mod kinds;
mod hostile;
mod load;
