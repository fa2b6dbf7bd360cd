//! YAML, parsed and printed as Kubernetes does.

mod print;
mod read;

pub use print::to_string;
pub use read::{parse, repeated_keys};
