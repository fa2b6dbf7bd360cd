//! The frames of a client, and those for it.
//!
//! Promise: bytes in, frames out; no I/O. A frame is at most [`FRAME_MAX`] bytes long.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::header_block::{self, HeaderReader};

/// The maximum size of a frame's content.
pub(crate) const FRAME_MAX: usize = 1 << 20;

/// The maximum size of the content of a data frame that is sent.
const DATA_MAX: usize = 32 * 1024;

const HEAD: usize = 8;
const VERSION: u16 = 3;
const CONTROL: u16 = 0x8000;
const LAST: u8 = 1;
/// Where the headers begin in the frame that opens a stream.
const OPEN_HEAD: usize = 10;

const OPEN: u16 = 1;
const REPLY: u16 = 2;
const RESET: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const HEADERS: u16 = 8;

/// A violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpdyError(pub(crate) &'static str);

/// A frame of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpdyFrame {
    /// Opens a stream.
    Open { stream: u32, is_last: bool, headers: Vec<(String, String)> },
    /// Data of a stream.
    Data { stream: u32, is_last: bool, data: Bytes },
    /// Ends a stream at once.
    Reset { stream: u32 },
    /// Asks for the same frame.
    Ping(u32),
    /// No more streams follow.
    GoAway,
}

/// Reads the frames of a connection.
#[derive(Default)]
pub(super) struct SpdyReader {
    headers: HeaderReader,
}

impl SpdyReader {
    /// Takes the next complete frame; frames without a meaning here are skipped.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<SpdyFrame>, SpdyError> {
        loop {
            let Some(head) = input.first_chunk::<HEAD>() else { return Ok(None) };
            let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let flags = head[4];
            let length = u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize;
            if length > FRAME_MAX {
                return Err(SpdyError("the frame is too large"));
            }
            if input.len() < HEAD + length {
                return Ok(None);
            }
            input.advance(HEAD);
            let content = input.split_to(length).freeze();
            let high = (first >> 16) as u16;
            if high & CONTROL == 0 {
                let is_last = flags & LAST != 0;
                return Ok(Some(SpdyFrame::Data { stream: first, is_last, data: content }));
            }
            if high & !CONTROL != VERSION {
                return Err(SpdyError("the version is not served"));
            }
            if let Some(frame) = self.control(first as u16, flags, &content)? {
                return Ok(Some(frame));
            }
        }
    }

    fn control(
        &mut self,
        type_: u16,
        flags: u8,
        content: &[u8],
    ) -> Result<Option<SpdyFrame>, SpdyError> {
        Ok(match type_ {
            OPEN => {
                let block = content.get(OPEN_HEAD..).ok_or(SpdyError("a frame is too short"))?;
                let headers = self.headers.read(block)?;
                let is_last = flags & LAST != 0;
                Some(SpdyFrame::Open { stream: number(content)?, is_last, headers })
            }
            REPLY => return Err(SpdyError("the server has opened no stream")),
            HEADERS => {
                // They are not used, but they are a part of the compressed stream.
                let block = content.get(4..).ok_or(SpdyError("a frame is too short"))?;
                self.headers.read(block)?;
                None
            }
            RESET => Some(SpdyFrame::Reset { stream: number(content)? }),
            PING => Some(SpdyFrame::Ping(number(content)?)),
            GO_AWAY => Some(SpdyFrame::GoAway),
            // Settings, windows and unknown frames.
            _ => None,
        })
    }
}

/// The number with which the content begins; its highest bit is reserved.
fn number(content: &[u8]) -> Result<u32, SpdyError> {
    let number = content.first_chunk().ok_or(SpdyError("a frame is too short"))?;
    Ok(u32::from_be_bytes(*number) & 0x7fff_ffff)
}

fn control(output: &mut BytesMut, type_: u16, content: &[u8]) {
    output.put_u16(CONTROL | VERSION);
    output.put_u16(type_);
    output.put_u32(u32::try_from(content.len()).unwrap_or_default());
    output.put_slice(content);
}

/// Accepts a stream.
pub(super) fn put_reply(output: &mut BytesMut, stream: u32, is_first: bool) {
    let mut content = stream.to_be_bytes().to_vec();
    content.extend(header_block::empty(is_first));
    control(output, REPLY, &content);
}

/// Data of a stream, in frames of at most [`DATA_MAX`] bytes.
pub(super) fn put_data(output: &mut BytesMut, stream: u32, data: &[u8], is_last: bool) {
    let mut parts = data.chunks(DATA_MAX).peekable();
    if parts.peek().is_none() && is_last {
        put_part(output, stream, &[], true);
    }
    while let Some(part) = parts.next() {
        put_part(output, stream, part, is_last && parts.peek().is_none());
    }
}

fn put_part(output: &mut BytesMut, stream: u32, part: &[u8], is_last: bool) {
    let length = u32::try_from(part.len()).unwrap_or_default();
    output.put_u32(stream);
    output.put_u32(u32::from(if is_last { LAST } else { 0 }) << 24 | length);
    output.put_slice(part);
}

/// Ends a stream with an error.
pub(super) fn put_reset(output: &mut BytesMut, stream: u32, reason: u32) {
    let content = [stream.to_be_bytes(), reason.to_be_bytes()].concat();
    control(output, RESET, &content);
}

/// Replies to a ping.
pub(super) fn put_ping(output: &mut BytesMut, number: u32) {
    control(output, PING, &number.to_be_bytes());
}

/// Announces the end of the connection, because of a violation of the protocol.
pub(super) fn put_go_away(output: &mut BytesMut, last_stream: u32) {
    const PROTOCOL_ERROR: u32 = 1;
    let content = [last_stream.to_be_bytes(), PROTOCOL_ERROR.to_be_bytes()].concat();
    control(output, GO_AWAY, &content);
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::header_block::tests::HeaderWriter;
    use super::*;

    /// The frame with which a client opens a stream.
    pub(crate) fn open(writer: &mut HeaderWriter, stream: u32, headers: &[(&str, &str)]) -> Bytes {
        let mut content = [stream.to_be_bytes(), [0; 4]].concat();
        content.extend([0, 0]);
        content.extend(writer.headers(headers));
        let mut frame = BytesMut::new();
        control(&mut frame, OPEN, &content);
        frame.freeze()
    }

    fn frames(bytes: &[u8]) -> Vec<Result<SpdyFrame, &'static str>> {
        let mut reader = SpdyReader::default();
        let mut input = BytesMut::from(bytes);
        let mut found = Vec::new();
        loop {
            match reader.take(&mut input) {
                Ok(Some(frame)) => found.push(Ok(frame)),
                Ok(None) => return found,
                Err(error) => {
                    found.push(Err(error.0));
                    return found;
                }
            }
        }
    }

    #[test]
    fn frames_are_read_and_unknown_ones_skipped() {
        let mut writer = HeaderWriter::new();
        let mut input = BytesMut::new();
        input.put_slice(&open(&mut writer, 1, &[("streamType", "error")]));
        control(&mut input, 4, &[0; 12]); // settings
        control(&mut input, 9, &[0; 8]); // a window
        control(&mut input, HEADERS, &[&[0, 0, 0, 1][..], &writer.headers(&[])].concat());
        input.put_slice(&open(&mut writer, 3, &[("port", "80")]));
        put_data(&mut input, 3, b"abc", false);
        put_data(&mut input, 3, b"", true);
        put_ping(&mut input, 7);
        put_reset(&mut input, 1, 5);
        put_go_away(&mut input, 3);
        input.put_slice(&[0, 0, 0]); // the beginning of a frame
        let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let data = |data: &'static [u8], is_last| {
            Ok(SpdyFrame::Data { stream: 3, is_last, data: Bytes::from_static(data) })
        };
        let opened = |stream, headers| Ok(SpdyFrame::Open { stream, is_last: false, headers });
        let expected = [
            opened(1, header("streamtype", "error")),
            opened(3, header("port", "80")),
            data(b"abc", false),
            data(b"", true),
            Ok(SpdyFrame::Ping(7)),
            Ok(SpdyFrame::Reset { stream: 1 }),
            Ok(SpdyFrame::GoAway),
        ];
        assert_eq!(frames(&input), expected);
    }

    #[test]
    fn frames_are_read_from_any_pieces() {
        let mut whole = BytesMut::new();
        whole.put_slice(&open(&mut HeaderWriter::new(), 1, &[("port", "80")]));
        put_data(&mut whole, 1, &[7; 300], true);
        let mut reader = SpdyReader::default();
        let (mut input, mut found) = (BytesMut::new(), Vec::new());
        for byte in whole.iter() {
            input.put_u8(*byte);
            found.extend(reader.take(&mut input).unwrap());
        }
        assert_eq!(found.into_iter().map(Ok).collect::<Vec<_>>(), frames(&whole));
    }

    #[test]
    fn data_is_sent_in_frames_of_a_limited_size() {
        let mut output = BytesMut::new();
        put_data(&mut output, 5, &[1; 2 * DATA_MAX + 1], true);
        let sizes = frames(&output).into_iter().map(|frame| match frame {
            Ok(SpdyFrame::Data { stream: 5, is_last, data }) => (data.len(), is_last),
            other => panic!("{other:?}"),
        });
        let expected = [(DATA_MAX, false), (DATA_MAX, false), (1, true)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn hostile_frames_are_errors() {
        let control = |type_: u16, content: &[u8]| {
            let mut frame = BytesMut::new();
            control(&mut frame, type_, content);
            frame
        };
        let too_large = [0, 0, 0, 1, 0, 0xff, 0xff, 0xff];
        for (input, why) in [
            (&too_large[..], "the frame is too large"),
            (b"GET / HTTP/1.1\r\n\r\n", "the frame is too large"),
            (&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], "the version is not served"),
            (&control(PING, &[0]), "a frame is too short"),
            (&control(OPEN, &[0; 9]), "a frame is too short"),
            (&control(HEADERS, &[0; 3]), "a frame is too short"),
            (&control(RESET, &[]), "a frame is too short"),
            (&control(REPLY, &[0; 8]), "the server has opened no stream"),
            (&control(OPEN, &[1; 20]), "the headers are not compressed correctly"),
        ] {
            assert_eq!(frames(input), [Err(why)], "{input:?}");
        }
    }
}
