//! The activity of one connection: which phase it is in, and since when.
//!
//! Promise: a connection that sends no complete request in time is detected, whether it is silent,
//! slow with its headers, or idle between requests; one with a request in flight never is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::detached::HeadState;
use super::head::Head;

/// The activity of a connection, shared by the connection, its requests and its deadline.
pub(super) struct Activity {
    opened: Instant,
    /// Requests in flight.
    busy: AtomicU32,
    /// Milliseconds from `opened` to the start of the current wait.
    since: AtomicU64,
    /// Whether a request has begun to arrive: `timeout_header` applies.
    arriving: AtomicBool,
    /// The number of requests so far.
    begun: AtomicU32,
    /// Whether the arriving head gives the length of its body in two ways.
    ambiguous: AtomicBool,
    timeout_header: Duration,
    timeout_idle: Duration,
    /// Cancelled when the connection should close, with the token of the listener at the latest. Its
    /// own token: one shared notification would be contended at every wake-up.
    closing: CancellationToken,
}

impl Activity {
    /// The activity of a new connection; it closes with the listener.
    pub(super) fn new(options: &Options, listener: &CancellationToken) -> Activity {
        Activity {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            since: AtomicU64::new(0),
            // A new connection must send its first request in time.
            arriving: AtomicBool::new(true),
            begun: AtomicU32::new(0),
            ambiguous: AtomicBool::new(false),
            timeout_header: options.timeout_header,
            timeout_idle: options.timeout_idle,
            closing: listener.child_token(),
        }
    }

    /// Records that a request has arrived and its handling begins.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        self.arriving.store(false, Relaxed);
    }

    /// Records that a response is complete or was abandoned.
    pub(super) fn end(&self) {
        self.now_waits();
        self.busy.fetch_sub(1, Relaxed);
    }

    /// Whether the head that has just arrived was ambiguous; resets the flag for the next request.
    pub(super) fn take_ambiguous(&self) -> bool {
        self.ambiguous.swap(false, Relaxed)
    }

    /// Asks the connection to close after the requests in flight.
    pub(super) fn hang_up(&self) {
        self.closing.cancel();
    }

    /// Waits until the connection is asked to close.
    pub(super) async fn hung_up(&self) {
        self.closing.cancelled().await;
    }

    /// Waits until the connection has been silent, slow or idle for too long.
    pub(super) async fn overdue(&self) {
        loop {
            let now = Instant::now();
            // Any activity extends the deadline by at least this much, so activity needs no
            // wake-up of its own.
            let later = now + self.timeout_header.min(self.timeout_idle);
            match self.deadline() {
                Some(deadline) if deadline <= now => return,
                Some(deadline) => sleep_until(deadline.min(later)).await,
                None => sleep_until(later).await,
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        if self.busy.load(Relaxed) > 0 {
            return None;
        }
        let since = self.opened + Duration::from_millis(self.since.load(Relaxed));
        match self.arriving.load(Relaxed) {
            true => Some(since + self.timeout_header),
            false => Some(since + self.timeout_idle),
        }
    }

    fn now_waits(&self) {
        self.since.store(self.opened.elapsed().as_millis() as u64, Relaxed);
    }
}

/// A byte stream that records the activity of its connection.
pub(super) struct ActivityStream<S> {
    stream: S,
    /// Bytes that were read earlier; they are returned first.
    early: Bytes,
    activity: Arc<Activity>,
    /// HTTP/1 only: the number of the request and the scan of its head.
    head: Option<(u32, Head)>,
    /// Records flushes, for detached bodies.
    response_head: HeadState,
}

impl<S> ActivityStream<S> {
    pub(super) fn http1(
        stream: S,
        early: Bytes,
        activity: Arc<Activity>,
        response_head: HeadState,
    ) -> ActivityStream<S> {
        let head = Some((0, Head::default()));
        ActivityStream { stream, early, activity, head, response_head }
    }

    pub(super) fn http2(stream: S, activity: Arc<Activity>) -> ActivityStream<S> {
        let (early, response_head) = Default::default();
        ActivityStream { stream, early, activity, head: None, response_head }
    }

    /// The stream and the unread early bytes.
    pub(super) fn into_inner(self) -> (S, Bytes) {
        (self.stream, self.early)
    }

    /// Scans bytes of a request's head. Pipelined requests are not scanned; hyper reads an ambiguous
    /// one as chunked and then closes the connection, which is safe too.
    fn arrived(&mut self, bytes: &[u8]) {
        let activity = &self.activity;
        let Some((request, head)) = &mut self.head else { return };
        if bytes.is_empty() || activity.busy.load(Relaxed) > 0 {
            return;
        }
        let begun = activity.begun.load(Relaxed);
        if *request != begun {
            (*request, *head) = (begun, Head::default());
        }
        if !activity.arriving.swap(true, Relaxed) {
            activity.now_waits();
        }
        head.read(bytes);
        activity.ambiguous.store(head.is_ambiguous(), Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.early.is_empty() {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        } else {
            let fits = self.early.len().min(buffer.remaining());
            buffer.put_slice(&self.early.split_to(fits));
        }
        self.arrived(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.response_head.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity() -> Arc<Activity> {
        Arc::new(Activity::new(&Options::default(), &CancellationToken::new()))
    }

    /// The seconds until the connection is overdue.
    async fn patience(activity: &Activity) -> u64 {
        let from = Instant::now();
        activity.overdue().await;
        from.elapsed().as_secs()
    }

    fn stream(activity: &Arc<Activity>) -> ActivityStream<tokio::io::Empty> {
        let head = HeadState::default();
        ActivityStream::http1(tokio::io::empty(), Bytes::new(), activity.clone(), head)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_gets_the_header_timeout() {
        assert_eq!(patience(&activity()).await, 32);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_gets_the_idle_timeout() {
        let activity = activity();
        activity.begin();
        tokio::time::advance(Duration::from_secs(1000)).await;
        activity.end();
        assert_eq!(patience(&activity).await, 90);
    }

    #[tokio::test(start_paused = true)]
    async fn the_header_timeout_begins_at_the_first_byte_of_a_request() {
        let activity = activity();
        let mut stream = stream(&activity);
        activity.begin();
        activity.end();
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"G");
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"E");
        assert_eq!(patience(&activity).await, 22);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_is_never_overdue() {
        let activity = activity();
        activity.begin();
        let patience = tokio::time::timeout(Duration::from_secs(86_400), activity.overdue());
        patience.await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn an_http2_ping_is_not_a_request() {
        let activity = activity();
        let mut stream = ActivityStream::http2(tokio::io::empty(), activity.clone());
        activity.begin();
        activity.end();
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"PING");
        assert_eq!(patience(&activity).await, 80);
    }

    #[tokio::test]
    async fn an_ambiguous_head_is_reported_once_and_does_not_affect_the_next() {
        let activity = activity();
        let mut stream = stream(&activity);
        stream.arrived(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n");
        stream.arrived(b"Transfer-Encoding: chunked\r\n\r\n");
        activity.begin();
        assert!(activity.take_ambiguous());
        activity.end();
        stream.arrived(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n");
        activity.begin();
        assert!(!activity.take_ambiguous());
    }

    #[tokio::test]
    async fn a_shutdown_reaches_present_and_later_connections() {
        let listener = CancellationToken::new();
        let connect = || Activity::new(&Options::default(), &listener);
        let (before, alone) = (connect(), connect());
        alone.hang_up();
        alone.hung_up().await;
        assert!(!listener.is_cancelled() && !before.closing.is_cancelled());
        listener.cancel();
        before.hung_up().await;
        connect().hung_up().await;
    }
}
