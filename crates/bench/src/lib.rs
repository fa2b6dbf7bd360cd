//! `headwater bench`: puts load on a server and measures its CPU, memory and latency.
//!
//! ```text
//! flags ─▶ run ─▶ scenario ─▶ session ─▶ load ─▶ target
//!                    │           └─▶ bare (the floor)
//!                    └─▶ report
//! ```
//!
//! Promise: the figures of one run belong together; every stream is checked for gaps, repeats and
//! order while it is measured, and a bench that sees one fails.
//!
//! The binary depends on this crate, never the reverse. The bench measures processes, so it starts
//! servers, controllers and its own helpers by executing the current program (`serve`,
//! `controllers`, `bench floor-server`); it links none of their code. The binary passes in what
//! belongs to it: a [`Printer`] and a future that completes on a signal. It also uses [`connect`]
//! and [`kubeconfig`], the plain HTTP client of the load generators, for `backup` and `compact`.
//!
//! The micro-benchmarks in `benches/pieces` measure the hot functions of a write, a change, a list
//! and an event one at a time.

mod flags;
mod run;
mod scenario;
mod session;
mod bare;
mod load;
mod target;
mod report;
pub mod connect;
pub mod kubeconfig;

pub use flags::Flags;
pub use report::Printer;
pub use run::run;
