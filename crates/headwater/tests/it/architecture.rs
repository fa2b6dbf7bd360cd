//! The invariants of ARCHITECTURE.md that sources, manifests and documents can break.

mod code_map;
mod cycles;
mod documents;
mod manifests;
mod names;
mod source;
