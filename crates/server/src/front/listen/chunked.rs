//! Sending of detached bodies: chunked encoding, written directly to the socket.
//!
//! River: watch → **chunked** → socket. hyper sends the head and then gives the socket back: it
//! would keep two buffers for the duration of the response, and a watch may be idle for hours.
//! Promise: an idle body holds no send buffers. A client that disconnects is detected whether or
//! not there is data to send.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Part;

/// The maximum number of bytes read ahead of the next request: one read, as in hyper.
const EARLY_MAX: usize = 512;
/// The number of queued bytes from which the body is no longer polled.
const BATCH: usize = 64 * 1024;
/// The maximum number of parts in one write.
const SLICES_MAX: usize = 48;

/// Sends a complete body. Input of the client that arrives meanwhile is put into `early`, for the
/// next request; at most one read.
pub(super) async fn send<S, B>(stream: &mut S, mut body: B, early: &mut Bytes) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data: Part, Error = io::Error> + Unpin,
{
    let mut out = SendQueue { parts: VecDeque::new(), bytes: 0, ended: false };
    poll_fn(|context| {
        // Polled once more after its last part, to register the waker, and not again: with
        // thousands of watchers a poll costs more than the write.
        let mut waits = false;
        loop {
            // Writes everything available together: one chunk is a little more than a TLS record.
            while out.bytes < BATCH && !out.ended && !waits {
                match Pin::new(&mut body).poll_frame(context) {
                    Poll::Ready(frame) => out.add(frame.transpose()?),
                    Poll::Pending => waits = true,
                }
            }
            if !out.parts.is_empty() {
                ready!(out.poll_write_some(stream, context))?;
                continue;
            }
            out.parts = VecDeque::new();
            ready!(Pin::new(&mut *stream).poll_flush(context))?;
            if out.ended {
                return Poll::Ready(Ok(()));
            }
            if early.is_empty()
                && let Poll::Ready(input) = poll_input(stream, context)
            {
                *early = input?;
            }
            return Poll::Pending;
        }
    })
    .await
}

/// Parts queued for the socket.
struct SendQueue<D> {
    parts: VecDeque<D>,
    bytes: usize,
    /// Whether the last chunk is queued or sent.
    ended: bool,
}

impl<D: Part> SendQueue<D> {
    /// Queues the next frame of the body; `None` is its end.
    fn add(&mut self, frame: Option<Frame<D>>) {
        // Trailers are ignored: none were announced.
        let data = match frame.map(Frame::into_data) {
            None => {
                self.ended = true;
                return self.push(Bytes::from_static(b"0\r\n\r\n").into());
            }
            Some(Ok(data)) if data.has_remaining() => data,
            Some(_) => return,
        };
        self.push(size_line(data.remaining()).into());
        self.push(data);
        self.push(Bytes::from_static(b"\r\n").into());
    }

    fn push(&mut self, part: D) {
        self.bytes += part.remaining();
        self.parts.push_back(part);
    }

    /// Writes as much as the socket accepts.
    fn poll_write_some(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        // On the stack: an idle watch must not hold memory for it.
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self
            .parts
            .iter()
            .fold(0, |count, part| count + part.chunks_vectored(&mut slices[count..]));
        let attempt = Pin::new(stream).poll_write_vectored(context, &slices[..count]);
        let mut written = ready!(attempt)?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.bytes -= written;
        while let Some(part) = self.parts.front_mut().filter(|_| written > 0) {
            let taken = part.remaining().min(written);
            part.advance(taken);
            written -= taken;
            if !part.has_remaining() {
                self.parts.pop_front();
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// The size line that precedes a chunk.
fn size_line(size: usize) -> Bytes {
    let mut line = [0; 2 * size_of::<usize>() + 2];
    let mut rest = line.as_mut_slice();
    // The buffer is large enough for every number.
    let _ = write!(rest, "{size:X}\r\n");
    let left = rest.len();
    Bytes::copy_from_slice(&line[..line.len() - left])
}

/// Polls for input of the client; end of stream is an error.
fn poll_input(
    stream: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    let mut space = [MaybeUninit::uninit(); EARLY_MAX];
    let mut buffer = ReadBuf::uninit(&mut space);
    ready!(Pin::new(stream).poll_read(context, &mut buffer))?;
    Poll::Ready(match buffer.filled() {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        bytes => Ok(Bytes::copy_from_slice(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_written_in_hexadecimal_digits() {
        assert_eq!(size_line(0), "0\r\n");
        assert_eq!(size_line(6_100), "17D4\r\n");
        assert_eq!(size_line(usize::MAX), "FFFFFFFFFFFFFFFF\r\n");
    }
}
