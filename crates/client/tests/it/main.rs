//! The informer stack from the outside: scripted servers, HTTP servers, real ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod support;
mod reflector;
mod store;
mod informer;
