//! A whole API server inside a test.
#![warn(missing_docs)]
