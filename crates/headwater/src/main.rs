//! The binary: flags, wiring, terminal output.
fn main() {}
