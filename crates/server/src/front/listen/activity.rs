//! The activity of one connection: which phase it is in, and since when.
//!
//! Promise: a connection that sends no complete request in time is detected, whether it is silent,
//! slow with its headers, or idle between requests; so is one that does not take the bytes that wait
//! for it. One with a request in flight and nothing to send never is.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Options;
use super::detached::HeadState;
use super::head::Head;
use super::progress::ResponseProgress;
use crate::lock::lock;

/// No write waits for the peer.
const TAKES: u64 = u64::MAX;

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
    /// Whether a client was identified on this connection.
    identified: AtomicBool,
    /// Milliseconds from `opened` to the write that the peer does not take, or [`TAKES`].
    stalled: AtomicU64,
    /// HTTP/2 responses that hyper regards as sent and of which parts wait for the peer.
    unsent: Mutex<VecDeque<Arc<ResponseProgress>>>,
    options: Arc<Options>,
    /// Cancelled when the connection should close, with the token of the listener at the latest. Its
    /// own token: one shared notification would be contended at every wake-up.
    closing: CancellationToken,
}

impl Activity {
    /// The activity of a new connection; it closes with the listener.
    pub(super) fn new(options: &Arc<Options>, listener: &CancellationToken) -> Activity {
        Activity {
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            since: AtomicU64::new(0),
            // A new connection must send its first request in time.
            arriving: AtomicBool::new(true),
            begun: AtomicU32::new(0),
            ambiguous: AtomicBool::new(false),
            identified: AtomicBool::new(false),
            stalled: AtomicU64::new(TAKES),
            unsent: Mutex::default(),
            options: options.clone(),
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

    /// The number of requests whose response is not complete.
    pub(super) fn in_flight(&self) -> u32 {
        self.busy.load(Relaxed)
    }

    /// Records that a client was identified: the usual limits apply.
    pub(super) fn identified(&self) {
        self.identified.store(true, Relaxed);
    }

    /// Observes the parts of an HTTP/2 response that is complete for hyper.
    pub(super) fn sent(&self, response: Arc<ResponseProgress>) {
        if response.has_unsent() {
            let mut unsent = lock(&self.unsent);
            while unsent.front().is_some_and(|oldest| !oldest.has_unsent()) {
                unsent.pop_front();
            }
            unsent.push_back(response);
        }
    }

    /// Records whether the peer takes what is written.
    fn wrote<T>(&self, written: &Poll<io::Result<T>>) {
        let is_stalled = self.stalled.load(Relaxed) != TAKES;
        match written {
            Poll::Pending if !is_stalled => self.stalled.store(self.milliseconds(), Relaxed),
            Poll::Ready(_) if is_stalled => self.stalled.store(TAKES, Relaxed),
            _ => {}
        }
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

    /// Waits until the connection has been silent, slow, idle or stalled for too long.
    pub(super) async fn overdue(&self) {
        loop {
            let now = Instant::now();
            // Any activity extends the deadline by at least this much, so activity needs no
            // wake-up of its own.
            let later = now + self.shortest_timeout();
            match self.deadline() {
                Some(deadline) if deadline <= now => return,
                Some(deadline) => sleep_until(deadline.min(later)).await,
                None => sleep_until(later).await,
            }
        }
    }

    fn shortest_timeout(&self) -> Duration {
        let options = &self.options;
        let all = options.timeout_header.min(options.timeout_idle).min(options.timeout_progress);
        if self.is_anonymous() { all.min(options.anonymous.timeout_idle) } else { all }
    }

    fn is_anonymous(&self) -> bool {
        !self.identified.load(Relaxed)
    }

    fn deadline(&self) -> Option<Instant> {
        [self.request_deadline(), self.stalled_deadline(), self.unsent_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the next request must have arrived.
    fn request_deadline(&self) -> Option<Instant> {
        if self.in_flight() > 0 {
            return None;
        }
        let options = &self.options;
        let since = self.at(self.since.load(Relaxed));
        let anonymous = self.is_anonymous();
        Some(match (self.arriving.load(Relaxed), anonymous) {
            (true, _) => since + options.timeout_header,
            (false, false) => since + options.timeout_idle,
            (false, true) => {
                let idle = options.anonymous.timeout_idle.min(options.timeout_idle);
                (since + idle).min(self.opened + options.anonymous.lifetime)
            }
        })
    }

    /// Whether bytes wait for the peer.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_deadline().is_some() || self.unsent_deadline().is_some()
    }

    /// When the peer must have taken bytes from the socket.
    fn stalled_deadline(&self) -> Option<Instant> {
        let since = self.stalled.load(Relaxed);
        (since != TAKES).then(|| self.at(since) + self.options.timeout_progress)
    }

    /// When the peer must have taken bytes of a response that hyper regards as sent.
    fn unsent_deadline(&self) -> Option<Instant> {
        let timeout = self.options.timeout_progress;
        lock(&self.unsent).iter().filter_map(|response| response.deadline(timeout)).min()
    }

    fn at(&self, milliseconds: u64) -> Instant {
        self.opened + Duration::from_millis(milliseconds)
    }

    fn milliseconds(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    fn now_waits(&self) {
        self.since.store(self.milliseconds(), Relaxed);
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
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.activity.wrote(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.activity.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.activity.wrote(&flushed);
        ready!(flushed)?;
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
        Arc::new(Activity::new(&Arc::default(), &CancellationToken::new()))
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
        activity.identified();
        activity.begin();
        tokio::time::advance(Duration::from_secs(1000)).await;
        activity.end();
        assert_eq!(patience(&activity).await, 90);
    }

    /// S8: connections on which every request is refused.
    #[tokio::test(start_paused = true)]
    async fn an_anonymous_connection_is_closed_soon_and_after_its_lifetime_even_if_it_is_used() {
        let idle = activity();
        idle.begin();
        idle.end();
        assert_eq!(patience(&idle).await, 10);
        let used = activity();
        for _ in 0..11 {
            used.begin();
            used.end();
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        assert_eq!(patience(&used).await, 5);
    }

    /// A socket that takes nothing.
    struct FullSocket;

    impl AsyncWrite for FullSocket {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_overdue_although_a_request_is_in_flight() {
        let activity = activity();
        activity.identified();
        activity.begin();
        tokio::time::advance(Duration::from_secs(1000)).await;
        let mut stream = ActivityStream::http2(FullSocket, activity.clone());
        let mut context = Context::from_waker(std::task::Waker::noop());
        for _ in 0..3 {
            assert!(Pin::new(&mut stream).poll_write(&mut context, b"x").is_pending());
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        assert_eq!(patience(&activity).await, 30);
        activity.wrote(&Poll::Ready(Ok(1)));
        let patience = tokio::time::timeout(Duration::from_secs(86_400), activity.overdue());
        patience.await.unwrap_err();
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
        activity.identified();
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
        let connect = || Activity::new(&Arc::default(), &listener);
        let (before, alone) = (connect(), connect());
        alone.hang_up();
        alone.hung_up().await;
        assert!(!listener.is_cancelled() && !before.closing.is_cancelled());
        listener.cancel();
        before.hung_up().await;
        connect().hung_up().await;
    }
}
