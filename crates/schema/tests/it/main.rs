//! Wire tests of the api crate.

#![allow(clippy::unwrap_used, reason = "helpers of tests may")]

mod any;
mod apply;
mod formats;
mod fuzz;
mod protobuf;
mod wire;
