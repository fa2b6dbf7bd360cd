//! Every engine against the contract and the model.

#![allow(clippy::unwrap_used, reason = "the helpers of tests may stop the test")]

mod memory;
mod scrub;
mod embedded;
mod disk;
mod crash;
mod crash_points;
mod kill;
mod fault;
mod damage;
mod bit_rot;
mod backup;
