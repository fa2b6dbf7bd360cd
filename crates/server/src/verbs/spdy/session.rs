//! A connection that speaks SPDY.
//!
//! Promise: reading and writing may be cancelled at any time without losing a byte. Pings are
//! answered here. At most [`STREAMS_MAX`] streams are open; more are refused.

use std::collections::BTreeSet;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::{self, SpdyFrame, SpdyReader};

/// The maximum number of streams that a client has open.
const STREAMS_MAX: usize = 512;

/// Why a stream is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResetReason {
    ProtocolError = 1,
    Refused = 3,
}

/// A connection with its streams.
pub(crate) struct SpdySession<T> {
    io: T,
    incoming: BytesMut,
    outgoing: BytesMut,
    reader: SpdyReader,
    streams: BTreeSet<u32>,
    last_stream: u32,
    has_replied: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> SpdySession<T> {
    pub(crate) fn new(io: T) -> SpdySession<T> {
        SpdySession {
            io,
            incoming: BytesMut::new(),
            outgoing: BytesMut::new(),
            reader: SpdyReader::default(),
            streams: BTreeSet::new(),
            last_stream: 0,
            has_replied: false,
        }
    }

    /// The next frame of a stream; `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<SpdyFrame> {
        loop {
            self.flush().await?;
            match self.reader.take(&mut self.incoming) {
                Ok(Some(frame)) => {
                    if let Some(frame) = self.apply(frame) {
                        return Some(frame);
                    }
                }
                Ok(None) => {
                    self.incoming.reserve(4 * 1024);
                    if self.io.read_buf(&mut self.incoming).await.ok()? == 0 {
                        return None;
                    }
                }
                Err(error) => {
                    tracing::debug!(why = error.0, "a SPDY connection ends");
                    frame::put_go_away(&mut self.outgoing, self.last_stream);
                    self.flush().await?;
                    return None;
                }
            }
        }
    }

    /// Handles what concerns the connection.
    fn apply(&mut self, frame: SpdyFrame) -> Option<SpdyFrame> {
        match &frame {
            SpdyFrame::Ping(number) => {
                frame::put_ping(&mut self.outgoing, *number);
                return None;
            }
            SpdyFrame::Open { stream, .. } => {
                // A client's streams have odd, growing numbers.
                if *stream <= self.last_stream || stream % 2 == 0 {
                    self.reset(*stream, ResetReason::ProtocolError);
                    return None;
                }
                self.last_stream = *stream;
                if self.streams.len() >= STREAMS_MAX {
                    self.reset(*stream, ResetReason::Refused);
                    return None;
                }
                self.streams.insert(*stream);
            }
            SpdyFrame::Reset { stream } => drop(self.streams.remove(stream)),
            // Data of a stream that has been closed here, or was never opened.
            SpdyFrame::Data { stream, .. } if !self.streams.contains(stream) => return None,
            SpdyFrame::Data { .. } | SpdyFrame::GoAway => {}
        }
        Some(frame)
    }

    /// Accepts a stream.
    pub(crate) fn accept(&mut self, stream: u32) {
        frame::put_reply(&mut self.outgoing, stream, !self.has_replied);
        self.has_replied = true;
    }

    /// Ends a stream with an error.
    pub(crate) fn reset(&mut self, stream: u32, reason: ResetReason) {
        self.streams.remove(&stream);
        frame::put_reset(&mut self.outgoing, stream, reason as u32);
    }

    /// Sends data; the last data closes the stream, of which nothing more is read.
    pub(crate) fn put(&mut self, stream: u32, data: &[u8], is_last: bool) {
        let is_open =
            if is_last { self.streams.remove(&stream) } else { self.streams.contains(&stream) };
        if is_open {
            frame::put_data(&mut self.outgoing, stream, data, is_last);
        }
    }

    /// Writes what was put; `None` if the client is gone.
    pub(crate) async fn flush(&mut self) -> Option<()> {
        while !self.outgoing.is_empty() {
            self.io.write_buf(&mut self.outgoing).await.ok().filter(|written| *written > 0)?;
        }
        self.io.flush().await.ok()
    }

    /// Closes the sending half.
    pub(crate) async fn shutdown(&mut self) {
        if self.flush().await.is_some() {
            // The client may be gone already.
            let _ = self.io.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::open;
    use super::super::header_block::tests::HeaderWriter;
    use super::*;

    #[tokio::test]
    async fn streams_are_limited_and_their_numbers_grow() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let mut session = SpdySession::new(server);
        let mut writer = HeaderWriter::new();
        let numbers: Vec<u32> = (0..).map(|number| 2 * number + 1).take(STREAMS_MAX + 1).collect();
        for stream in [2].iter().chain(&numbers).chain(&[1]) {
            client.write_all(&open(&mut writer, *stream, &[])).await.unwrap();
        }
        client.shutdown().await.unwrap();
        let mut opened = 0;
        while let Some(frame) = session.next().await {
            assert!(matches!(frame, SpdyFrame::Open { .. }));
            opened += 1;
        }
        assert_eq!(opened, STREAMS_MAX);
        let mut replies = BytesMut::new();
        while client.read_buf(&mut replies).await.unwrap() < 48 {}
        let mut reader = SpdyReader::default();
        for stream in [2, numbers[STREAMS_MAX], 1] {
            assert_eq!(reader.take(&mut replies), Ok(Some(SpdyFrame::Reset { stream })));
        }
    }

    #[tokio::test]
    async fn pings_are_answered_and_a_violation_ends_the_connection() {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut session = SpdySession::new(server);
        let mut sent = BytesMut::new();
        frame::put_ping(&mut sent, 9);
        client.write_all(&sent).await.unwrap();
        client.write_all(&[0x80, 9, 0, 0, 0, 0, 0, 0]).await.unwrap();
        assert_eq!(session.next().await, None);
        drop(session);
        let mut replies = Vec::new();
        client.read_to_end(&mut replies).await.unwrap();
        let mut replies = BytesMut::from(&replies[..]);
        let mut reader = SpdyReader::default();
        assert_eq!(reader.take(&mut replies), Ok(Some(SpdyFrame::Ping(9))));
        assert_eq!(reader.take(&mut replies), Ok(Some(SpdyFrame::GoAway)));
    }
}
