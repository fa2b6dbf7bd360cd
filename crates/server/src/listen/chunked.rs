//! The body of an answer that goes on for long, sent as chunks straight to the socket.
//!
//! River: watch → **chunked** → socket. hyper sends the head and then gives the socket back: it
//! would keep two buffers for as long as the answer lasts, and a watch has nothing to say for hours.
//! Promise: while nothing is sent, nothing is held for sending. A client that leaves is noticed
//! whether there is something to send or not.

use std::future::poll_fn;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// What is read ahead of the next request: as hyper does, one read and no more.
const EARLY_MAX: usize = 512;
/// Sixteen digits and the end of a line.
const SIZE_LINE: usize = 18;

/// Sends a body to its end. What the client sends meanwhile is left in `early` for whoever reads
/// the next request; there is no more of it than one read.
pub(super) async fn send<S, B>(stream: &mut S, mut body: B, early: &mut Bytes) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes, Error = io::Error> + Unpin,
{
    loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            heard = hear(stream), if early.is_empty() => {
                *early = heard?;
                continue;
            }
        };
        match frame.transpose()? {
            // Trailers were not announced.
            Some(frame) => match frame.into_data() {
                Ok(data) if data.has_remaining() => chunk(stream, data).await?,
                _ => {}
            },
            None => {
                stream.write_all(b"0\r\n\r\n").await?;
                return stream.flush().await;
            }
        }
    }
}

async fn chunk(stream: &mut (impl AsyncWrite + Unpin), data: Bytes) -> io::Result<()> {
    let mut line = [0; SIZE_LINE];
    let mut rest = &mut line[..];
    write!(rest, "{:X}\r\n", data.len())?;
    let left = rest.len();
    let mut whole = line[..SIZE_LINE - left].chain(data).chain(&b"\r\n"[..]);
    stream.write_all_buf(&mut whole).await?;
    stream.flush().await
}

/// Waits until the client sends something; if it leaves, that is an error.
async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    poll_fn(|context| {
        let mut room = [MaybeUninit::uninit(); EARLY_MAX];
        let mut buffer = ReadBuf::uninit(&mut room);
        ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer))?;
        Poll::Ready(match buffer.filled() {
            [] => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => Ok(Bytes::copy_from_slice(bytes)),
        })
    })
    .await
}
