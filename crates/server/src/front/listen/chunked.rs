//! The body of an answer that goes on for long, sent as chunks straight to the socket.
//!
//! River: watch → **chunked** → socket. hyper sends the head and then gives the socket back: it
//! would keep two buffers for as long as the answer lasts, and a watch has nothing to say for hours.
//! Promise: while nothing is sent, nothing is held for sending. A client that leaves is noticed
//! whether there is something to send or not.

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

/// What is read ahead of the next request: as hyper does, one read and no more.
const EARLY_MAX: usize = 512;
/// What is waited for to be taken before more is asked for.
const BATCH: usize = 64 * 1024;
/// Parts that are written at once.
const SLICES_MAX: usize = 48;

/// Sends a body to its end. What the client sends meanwhile is left in `early` for whoever reads
/// the next request; there is no more of it than one read.
pub(super) async fn send<S, B>(stream: &mut S, mut body: B, early: &mut Bytes) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data: Part, Error = io::Error> + Unpin,
{
    let mut out = Out { parts: VecDeque::new(), bytes: 0, ended: false };
    poll_fn(|context| {
        // Asked once more after its last part, so that it wakes us for the next, and not again:
        // there are thousands of them, and asking costs more than what is written.
        let mut waits = false;
        loop {
            // What is at hand goes out together: a chunk is a little more than what TLS takes at once.
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
                && let Poll::Ready(heard) = poll_hear(stream, context)
            {
                *early = heard?;
            }
            return Poll::Pending;
        }
    })
    .await
}

/// What is on its way to the socket.
struct Out<D> {
    parts: VecDeque<D>,
    bytes: usize,
    /// The last chunk is among it, or was.
    ended: bool,
}

impl<D: Part> Out<D> {
    /// Adds the next part of the body; none is its end.
    fn add(&mut self, frame: Option<Frame<D>>) {
        // Trailers were not announced.
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

    /// Writes as much as the socket takes at once.
    fn poll_write_some(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        // On the stack of the attempt: a watch that waits must not keep room for it.
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

/// What stands before a chunk.
fn size_line(size: usize) -> Bytes {
    let mut line = [0; 2 * size_of::<usize>() + 2];
    let mut rest = line.as_mut_slice();
    // There is room for every number.
    let _ = write!(rest, "{size:X}\r\n");
    let left = rest.len();
    Bytes::copy_from_slice(&line[..line.len() - left])
}

/// Ready when the client has sent something; if it leaves, that is an error.
fn poll_hear(
    stream: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    let mut room = [MaybeUninit::uninit(); EARLY_MAX];
    let mut buffer = ReadBuf::uninit(&mut room);
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
