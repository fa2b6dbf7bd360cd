//! Reads a recording line by line.
//!
//! River: file → **reader** → replay, fill.
//! Promise: memory is one line; damage and truncation are errors with the place in the file and what
//! could be read before it. A changed bit is found by the checksum of its block, at the latest when
//! the block ends.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use jiff::Timestamp;

use crate::line::{RecordedKind, RecordingLine};

/// The longest line, in bytes: far more than any server accepts as an object.
const LINE_MAX: usize = 32 << 20;

/// Why a recording cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It is something else.
    #[error("it is not a recording: {0}")]
    NotRecording(String),
    /// It ends too early, for example because the recorder was killed.
    #[error("it was cut off after byte {at}; {readable}")]
    Truncated {
        /// The length of the file, or where the last complete block ends.
        at: u64,
        /// What could be read.
        readable: RecordingSummary,
    },
    /// Its content was changed.
    #[error("the block at byte {at} is damaged ({why}); {readable}")]
    Damaged {
        /// Where the block begins.
        at: u64,
        /// What is wrong.
        why: String,
        /// What could be read.
        readable: RecordingSummary,
    },
    /// The file cannot be read.
    #[error("it cannot be read")]
    Io(#[source] io::Error),
}

/// The content of a recording in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingSummary {
    /// Objects that existed at the beginning.
    pub initial: u64,
    /// Changes after the beginning.
    pub changes: u64,
    /// Times at which changes were missed.
    pub gaps: u64,
    /// When it began.
    pub begin: Option<Timestamp>,
    /// The time of the last line.
    pub last: Option<Timestamp>,
}

impl std::fmt::Display for RecordingSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RecordingSummary { initial, changes, last, .. } = self;
        match last {
            None => write!(f, "nothing of it is readable"),
            Some(last) => {
                write!(f, "readable are {initial} objects and {changes} changes, up to {last}")
            }
        }
    }
}

impl RecordingSummary {
    fn note(&mut self, line: &RecordingLine) {
        match line {
            RecordingLine::Begin { time, .. } => self.begin = Some(*time),
            RecordingLine::Change(change) if change.initial => self.initial += 1,
            RecordingLine::Change(_) => self.changes += 1,
            RecordingLine::Gap { .. } => self.gaps += 1,
            _ => {}
        }
        self.last = line.time().or(self.last);
    }
}

/// Counts what is read.
struct CountedSource<R> {
    source: R,
    read: u64,
}

impl<R: Read> Read for CountedSource<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

type Source<R> = BufReader<CountedSource<R>>;

/// The block that is being read, or the source between blocks.
enum Position<R> {
    Between(Source<R>),
    Inside(Box<BufReader<GzDecoder<Source<R>>>>),
}

/// A recording that is being read. Iterate over it; after an error there is nothing more.
pub struct RecordingReader<R> {
    position: Option<Position<R>>,
    /// Where the block begins.
    block: u64,
    kinds: Vec<RecordedKind>,
    summary: RecordingSummary,
    has_ended: bool,
    until: Option<Timestamp>,
}

impl<R: Read> RecordingReader<R> {
    /// Reads from a file or bytes.
    pub fn new(source: R) -> RecordingReader<R> {
        let source = BufReader::new(CountedSource { source, read: 0 });
        RecordingReader {
            position: Some(Position::Between(source)),
            block: 0,
            kinds: Vec::new(),
            summary: RecordingSummary::default(),
            has_ended: false,
            until: None,
        }
    }

    /// Ends before the first line that is later than a time. Damage after the last line up to that
    /// time does not matter.
    #[must_use]
    pub fn until(mut self, until: Option<Timestamp>) -> RecordingReader<R> {
        self.until = until;
        self
    }

    /// The kinds so far.
    pub fn kinds(&self) -> &[RecordedKind] {
        &self.kinds
    }

    /// What was read so far.
    pub fn summary(&self) -> &RecordingSummary {
        &self.summary
    }

    /// The next line; `None` after the last.
    fn next_line(&mut self) -> Result<Option<RecordingLine>, RecordingError> {
        loop {
            match self.position.take() {
                None => return Ok(None),
                Some(Position::Between(mut source)) => {
                    self.block = offset(&source);
                    let is_end = source.fill_buf().map_err(RecordingError::Io)?.is_empty();
                    if is_end {
                        return match self.has_ended {
                            true => Ok(None),
                            false => Err(self.truncated()),
                        };
                    }
                    let block = BufReader::new(GzDecoder::new(source));
                    self.position = Some(Position::Inside(Box::new(block)));
                }
                Some(Position::Inside(mut block)) => {
                    let text = read_line(&mut block).map_err(|error| self.broken(&error))?;
                    let Some(text) = text else {
                        self.position = Some(Position::Between(block.into_inner().into_inner()));
                        continue;
                    };
                    self.position = Some(Position::Inside(block));
                    match self.take(&text)? {
                        Some(line) if self.is_later(line.time()) => {
                            self.position = None;
                            return Ok(None);
                        }
                        Some(line) => {
                            self.summary.note(&line);
                            return Ok(Some(line));
                        }
                        None => {}
                    }
                }
            }
        }
    }

    fn is_later(&self, time: Option<Timestamp>) -> bool {
        time.zip(self.until).is_some_and(|(time, until)| time > until)
    }

    fn take(&mut self, text: &[u8]) -> Result<Option<RecordingLine>, RecordingError> {
        let is_first = self.summary.begin.is_none();
        let line = RecordingLine::parse(text, self.kinds.len());
        let is_begin = matches!(&line, Ok(Some(RecordingLine::Begin { .. })));
        match line {
            Err(why) if is_first => Err(RecordingError::NotRecording(why)),
            Err(why) => Err(self.damaged(why)),
            Ok(_) if is_first && !is_begin => {
                Err(RecordingError::NotRecording("its first line is another one".to_owned()))
            }
            Ok(None) => Ok(None),
            Ok(Some(line)) => {
                if self.has_ended || (is_begin && !is_first) {
                    return Err(self.damaged("lines follow the last one".to_owned()));
                }
                if let RecordingLine::Kind(kind) = &line {
                    self.kinds.push(kind.clone());
                }
                self.has_ended = matches!(line, RecordingLine::End { .. });
                Ok(Some(line))
            }
        }
    }

    fn broken(&self, error: &io::Error) -> RecordingError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.truncated(),
            io::ErrorKind::InvalidInput if self.summary.begin.is_none() => {
                RecordingError::NotRecording("it is not compressed with gzip".to_owned())
            }
            _ => self.damaged(error.to_string()),
        }
    }

    fn truncated(&self) -> RecordingError {
        RecordingError::Truncated { at: self.block, readable: self.summary.clone() }
    }

    fn damaged(&self, why: String) -> RecordingError {
        RecordingError::Damaged { at: self.block, why, readable: self.summary.clone() }
    }
}

impl<R: Read> Iterator for RecordingReader<R> {
    type Item = Result<RecordingLine, RecordingError>;

    fn next(&mut self) -> Option<Result<RecordingLine, RecordingError>> {
        let next = self.next_line();
        if next.is_err() {
            self.position = None;
            if self.until.is_some() && self.summary.last >= self.until {
                return None;
            }
        }
        next.transpose()
    }
}

fn offset<R: Read>(source: &Source<R>) -> u64 {
    source.get_ref().read - source.buffer().len() as u64
}

/// The next line without its newline; `None` at the end of the block.
fn read_line(block: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let count = block.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut line)?;
    if count > LINE_MAX {
        return Err(io::Error::other(format!("a line is longer than {LINE_MAX} bytes")));
    }
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(io::Error::other("a block ends inside a line")),
    }
}

/// When a recording began; `None` if its first line cannot be read.
pub fn began(source: impl Read) -> Option<Timestamp> {
    RecordingReader::new(source).next()?.ok()?.time()
}

/// Reads all of a recording up to a time, and returns what it contains.
///
/// # Errors
///
/// The recording cannot be read up to that time.
pub fn check(
    source: impl Read,
    until: Option<Timestamp>,
) -> Result<RecordingSummary, RecordingError> {
    let mut reader = RecordingReader::new(source).until(until);
    for line in reader.by_ref() {
        line?;
    }
    Ok(reader.summary)
}

#[cfg(test)]
mod tests {
    use headwater_api::EventType;
    use headwater_json::json;

    use super::*;
    use crate::{RecordedChange, RecordingWriter};

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A recording of so many changes, one block per ten.
    fn recording(changes: i64) -> Vec<u8> {
        let begin = RecordingLine::Begin { time: time(0), server: "x".into() };
        let mut writer = RecordingWriter::new(Vec::new(), &begin).unwrap();
        let kind = RecordedKind {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            namespaced: true,
        };
        writer.push(&RecordingLine::Kind(kind)).unwrap();
        for n in 1..=changes {
            let object = json!({"metadata": {"name": format!("m{n}"), "namespace": "ns"}});
            let change = RecordedChange {
                time: time(n),
                kind: 0,
                event: EventType::Added,
                initial: false,
                object,
            };
            writer.push(&RecordingLine::Change(change)).unwrap();
            if n % 10 == 0 {
                writer.flush().unwrap();
            }
        }
        writer.push(&RecordingLine::End { time: time(changes + 1) }).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn all_lines_are_read() {
        let bytes = recording(25);
        let summary = check(&bytes[..], None).unwrap();
        assert_eq!((summary.initial, summary.changes, summary.last), (0, 25, Some(time(26))));
        let lines: Result<Vec<_>, _> = RecordingReader::new(&bytes[..]).collect();
        assert_eq!(lines.unwrap().len(), 28);
    }

    #[test]
    fn every_truncation_is_found_and_says_what_is_readable() {
        let bytes = recording(25);
        let mut most = 0;
        for len in 0..bytes.len() {
            match check(&bytes[..len], None) {
                Err(RecordingError::Truncated { at, readable }) => {
                    assert!(at <= len as u64);
                    assert!(readable.changes >= most, "at length {len}");
                    most = readable.changes;
                }
                other => panic!("length {len}: {other:?}"),
            }
        }
        assert!(most >= 20, "{most}");
    }

    #[test]
    fn every_changed_byte_is_an_error_or_changes_nothing() {
        let bytes = recording(25);
        let whole: Vec<_> = RecordingReader::new(&bytes[..]).map(Result::unwrap).collect();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x55;
            // Some bytes of a gzip header mean nothing: a time, an operating system.
            let read: Result<Vec<_>, _> = RecordingReader::new(&bad[..]).collect();
            assert!(read.is_err() || read.unwrap() == whole, "byte {at}");
        }
    }

    #[test]
    fn damage_after_the_wanted_time_does_not_matter() {
        let mut bytes = recording(25);
        let last = bytes.len() - 6;
        bytes[last] ^= 1;
        let error = check(&bytes[..], None).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
        assert_eq!(check(&bytes[..], Some(time(15))).unwrap().changes, 15);
        assert_eq!(check(&bytes[..], Some(time(26))).unwrap().changes, 25, "exactly the last time");
    }

    #[test]
    fn other_files_are_refused() {
        for bytes in [&b"hello, this is not a recording"[..], b"{}", b"\x1f\x8b"] {
            assert!(check(bytes, None).is_err());
        }
        let error = check(&b"hello, this is not a recording"[..], None).unwrap_err();
        assert!(matches!(error, RecordingError::NotRecording(_)), "{error:?}");
    }
}
