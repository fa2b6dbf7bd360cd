//! Writes a recording: blocks of lines, each a complete gzip member.
//!
//! River: changes → **writer** → file.
//! Promise: after [`RecordingWriter::flush`], every line so far can be read, whatever happens to the
//! rest of the file.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::line::RecordingLine;

/// The size of a block before compression from which it is written.
const BLOCK_BYTES: usize = 256 << 10;

/// Writes lines. What was not flushed when it is dropped is lost.
#[derive(Debug)]
pub struct RecordingWriter<W> {
    target: W,
    /// The lines of the block that is being filled.
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> RecordingWriter<W> {
    /// A recording that begins with this line.
    pub fn new(target: W, begin: &RecordingLine) -> io::Result<RecordingWriter<W>> {
        let mut writer = RecordingWriter { target, block: Vec::new(), written: 0 };
        writer.push(begin)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a line.
    pub fn push(&mut self, line: &RecordingLine) -> io::Result<()> {
        headwater_json::push_value(&mut self.block, &line.to_json());
        self.block.push(b'\n');
        match self.block.len() >= BLOCK_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes all lines so far.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&self.block)?;
        let member = encoder.finish()?;
        self.target.write_all(&member)?;
        self.target.flush()?;
        self.written += member.len() as u64;
        self.block.clear();
        Ok(())
    }

    /// The bytes that were written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes everything, and returns the target.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.target)
    }
}
