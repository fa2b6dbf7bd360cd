//! The informer stack from the outside: scripted servers, HTTP servers, real ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod support;
mod api;
mod wire;
mod factory;
mod transform;
mod calls;
mod controller;
mod leader;
mod recorder;
mod manager;
mod wait;
mod reflector;
mod store;
mod informer;
