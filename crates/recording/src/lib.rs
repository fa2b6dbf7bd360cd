//! Recordings of a cluster: the file format, and how a recording becomes the content of a store.
//!
//! ```text
//! any cluster ─▶ writer ─▶ file ─▶ reader ─▶ fill ─▶ store ─▶ server
//! ```
//!
//! The format is described in `docs/spec/recording.md`. Reading needs no runtime and no network;
//! recording is a command of the binary, because it needs a client.

#![warn(missing_docs)]

mod line;
mod writer;
mod reader;
mod fill;

pub use fill::{FillError, FillOptions, Filler, fill};
pub use line::{RecordedChange, RecordedKind, RecordingLine};
pub use reader::{RecordingError, RecordingReader, RecordingSummary, began, check};
pub use writer::RecordingWriter;
