//! Detached bodies: hyper sends the head of a response, this module sends the body.
//!
//! River: watch → **detached** → socket. A watch may be idle for hours, and hyper would keep two
//! buffers and the state of the request all that time.
//!
//! How a body is detached over HTTP/1.1:
//!
//! 1. The handler marks the response as [`LongRunning`]. The gate keeps its body as a
//!    [`DetachedBody`] and gives hyper a [`Placeholder`]: a body of unknown size without data.
//! 2. hyper writes the head into its buffer, polls the placeholder, sends the buffer and flushes the
//!    stream. [`HeadState`] records the poll and the flush, and [`until_head_is_sent`] returns.
//! 3. The connection takes hyper's connection apart: it gets the stream and the unread input back.
//! 4. [`send`] writes the body in chunked encoding. Then hyper serves the next request.
//!
//! This relies on hyper in four points: it polls a body only when the head is in the buffer; it
//! flushes the stream only when the buffer is sent; it announces a body of unknown size as chunked
//! and writes nothing for it before it yields data, not even when it is taken apart; and its parts
//! contain all input that it has not used. A test below fails if a version of hyper does otherwise.
//!
//! Promise: an idle body holds no send buffers. A client that disconnects is detected whether or
//! not there is data to send, and so is one that does not take the data.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::answer::body::Data;

/// Marks a response whose body is long-running and mostly idle. Over HTTP/1.1 it is sent without
/// buffers that would be held for its entire duration.
#[derive(Clone, Copy, Debug)]
pub struct LongRunning;

/// A response body that is written directly to the socket.
pub(super) struct DetachedBody<B> {
    pub(super) body: B,
    /// Whether the client may send another request.
    pub(super) keep_alive: bool,
}

/// How far hyper is with the head that precedes a detached body. Clones share it: the placeholder
/// and the stream record, the connection reads.
#[derive(Clone, Default)]
pub(super) struct HeadState(Arc<AtomicU8>);

/// No head of a detached body is written.
const UNWRITTEN: u8 = 0;
/// The head is in hyper's buffer.
const WRITTEN: u8 = 1;
/// hyper has flushed the head and everything before it.
const SENT: u8 = 2;

impl HeadState {
    /// Records that hyper polls the placeholder. Later polls change nothing.
    fn written(&self) {
        // An error means that the head was written before.
        let _ = self.0.compare_exchange(UNWRITTEN, WRITTEN, Relaxed, Relaxed);
    }

    /// Records that hyper flushed the stream.
    pub(super) fn flushed(&self) {
        // An error means that no head is written, or that it was sent before.
        let _ = self.0.compare_exchange(WRITTEN, SENT, Relaxed, Relaxed);
    }

    /// Prepares for the next response.
    pub(super) fn reset(&self) {
        self.0.store(UNWRITTEN, Relaxed);
    }
}

/// The body that hyper gets instead of a detached one.
pub(super) struct Placeholder(pub(super) HeadState);

impl Body for Placeholder {
    type Data = Data;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Data>>>> {
        self.0.written();
        Poll::Pending
    }
}

/// Drives a connection until it ends or the head of a detached body is sent, which is `None`.
pub(super) async fn until_head_is_sent<C>(connection: &mut C, head: &HeadState) -> Option<C::Output>
where
    C: Future + Unpin,
{
    poll_fn(|context| match Pin::new(&mut *connection).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if head.0.load(Relaxed) == SENT => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// The maximum number of bytes read ahead of the next request: one read, as in hyper.
const EARLY_MAX: usize = 512;
/// The number of queued bytes from which the body is no longer polled.
const BATCH: usize = 64 * 1024;
/// The maximum number of parts in one write.
const SLICES_MAX: usize = 48;

/// Sends a complete body. Input of the client that arrives meanwhile is put into `early`, for the
/// next request; at most one read. A client that takes nothing for `timeout` is an error.
pub(super) async fn send<S, B>(
    stream: &mut S,
    mut body: B,
    early: &mut Bytes,
    timeout: Duration,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Data, Error = io::Error> + Unpin,
{
    let mut out = SendQueue::default();
    // While the socket takes nothing.
    let mut stalled = None;
    poll_fn(|context| {
        // Polled once more after its last part, to register the waker, and not again: with
        // thousands of watchers a poll costs more than the write.
        let mut waits = false;
        loop {
            // Writes everything available together: one chunk is a little more than a TLS record.
            while out.parts.remaining() < BATCH && !out.ended && !waits {
                match Pin::new(&mut body).poll_frame(context) {
                    Poll::Ready(frame) => out.add(frame.transpose()?),
                    Poll::Pending => waits = true,
                }
            }
            let writes = out.parts.has_remaining();
            let written = match writes {
                true => out.poll_write_some(stream, context),
                false => Pin::new(&mut *stream).poll_flush(context),
            };
            let Poll::Ready(written) = written else {
                let alarm = stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(alarm.as_mut().poll(context));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            };
            written?;
            stalled = None;
            if writes {
                continue;
            }
            out.parts = Data::default();
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
#[derive(Default)]
struct SendQueue {
    parts: Data,
    /// Whether the last chunk is queued or sent.
    ended: bool,
}

impl SendQueue {
    /// Queues the next frame of the body; `None` is its end.
    fn add(&mut self, frame: Option<Frame<Data>>) {
        // Trailers are ignored: none were announced.
        let data = match frame.map(Frame::into_data) {
            None => {
                self.ended = true;
                return self.parts.push(Bytes::from_static(b"0\r\n\r\n"));
            }
            Some(Ok(data)) if data.has_remaining() => data,
            Some(_) => return,
        };
        self.parts.push(size_line(data.remaining()));
        self.parts.append(data);
        self.parts.push(Bytes::from_static(b"\r\n"));
    }

    /// Writes as much as the socket accepts.
    fn poll_write_some(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        // On the stack: an idle watch must not hold memory for it.
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = self.parts.chunks_vectored(&mut slices);
        let attempt = Pin::new(stream).poll_write_vectored(context, &slices[..count]);
        match ready!(attempt)? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => {
                self.parts.advance(written);
                Poll::Ready(Ok(()))
            }
        }
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
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio_util::sync::CancellationToken;

    use super::super::activity::{Activity, ActivityStream};
    use super::super::connection::http1_builder;
    use super::*;

    const REQUEST: &str = "GET /first HTTP/1.1\r\nHost: x\r\n\r\n";
    const NEXT: &str = "GET /second HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A socket that accepts a few bytes at a time, and nothing in every other call.
    struct SlowSocket {
        input: Bytes,
        output: Vec<u8>,
        accepts: usize,
        stalls: bool,
    }

    impl SlowSocket {
        fn stall(&mut self, context: &mut Context<'_>) -> Poll<()> {
            self.stalls = !self.stalls;
            if self.stalls {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        }
    }

    impl AsyncRead for SlowSocket {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if self.input.is_empty() {
                return Poll::Pending;
            }
            let fits = self.input.len().min(buffer.remaining());
            buffer.put_slice(&self.input.split_to(fits));
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for SlowSocket {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            ready!(self.stall(context));
            let accepted = bytes.len().min(self.accepts);
            self.output.extend_from_slice(&bytes[..accepted]);
            Poll::Ready(Ok(accepted))
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.stall(context).map(Ok)
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// The behaviour of hyper that detaching relies on, as the header of this file lists it.
    #[tokio::test(start_paused = true)]
    async fn hyper_sends_the_head_of_a_body_without_data_and_returns_the_unused_input() {
        for accepts in [1, 7, 4096] {
            let input = Bytes::from([REQUEST, NEXT].concat());
            let socket = SlowSocket { input, output: Vec::new(), accepts, stalls: false };
            let activity = Activity::new(&Arc::default(), &CancellationToken::new());
            let head = HeadState::default();
            let stream = ActivityStream::http1(socket, Bytes::new(), activity.into(), head.clone());
            let service = service_fn(|_: Request<Incoming>| {
                let response = Response::new(Placeholder(head.clone()));
                async move { Ok::<_, Infallible>(response) }
            });
            let mut connection =
                http1_builder().serve_connection(TokioIo::new(stream), service).with_upgrades();
            let sending = until_head_is_sent(&mut connection, &head);
            // The clock is advanced only when hyper waits without having sent the head.
            let in_time = tokio::time::timeout(Duration::from_secs(1), sending).await;
            let ended = in_time.expect("hyper polls the body and flushes the head");
            assert!(ended.is_none(), "the connection ended: {ended:?}");

            let parts = connection.into_parts().expect("a connection can be taken apart");
            let (socket, early) = parts.io.into_inner().into_inner();
            let sent = String::from_utf8(socket.output).unwrap();
            let (sent_head, sent_body) = sent.split_once("\r\n\r\n").expect("a complete head");
            assert!(sent_head.starts_with("HTTP/1.1 200 OK\r\n"), "{sent_head}");
            assert!(sent_head.contains("\r\ntransfer-encoding: chunked"), "{sent_head}");
            assert_eq!(sent_body, "", "nothing is written of a body without data");
            let unused = [parts.read_buf, early, socket.input].concat();
            assert_eq!(unused, NEXT.as_bytes(), "no input is lost");
        }
    }

    #[test]
    fn a_size_is_written_in_hexadecimal_digits() {
        assert_eq!(size_line(0), "0\r\n");
        assert_eq!(size_line(6_100), "17D4\r\n");
        assert_eq!(size_line(usize::MAX), "FFFFFFFFFFFFFFFF\r\n");
    }
}
