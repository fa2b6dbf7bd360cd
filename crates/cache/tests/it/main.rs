//! The watch cache, held to its promises (R20 to R37).
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod fixture;
mod seam;
mod memory;
mod failure;
mod race;
mod rounds;
mod model;
mod contract;
