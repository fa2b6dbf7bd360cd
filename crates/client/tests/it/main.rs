//! The informer stack from the outside: scripted servers, HTTP servers, real ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

#[allow(dead_code, unreachable_pub, reason = "what a call carried is for those who look at it")]
mod support;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "cutting and restarting is for the fault scenarios over HTTP"
)]
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
