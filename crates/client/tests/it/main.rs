//! The informer stack from the outside: scripted servers, HTTP servers, real ones.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(unreachable_pub, reason = "what one module of tests shows to the others")]

mod support;
mod proxy;
mod api;
mod world;
mod ledger;
mod scenario;
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
mod rules;
mod examples;
