//! Tests of the public API: with scripted sources, with HTTP servers and with a real server.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue should report where")]
#![allow(unreachable_pub, reason = "shared by the modules of the tests")]

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
mod shards;
mod deltas;
mod recorder;
mod manager;
mod reflector;
mod store;
mod informer;
mod rules;
mod examples;
