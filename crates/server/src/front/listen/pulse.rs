//! The pulse of one connection: what it is busy with, and since when.
//!
//! Promise: a connection that shows no request in time is noticed, whether it is silent, slow with
//! its headers, or idle between requests; one that is being answered never is.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::Options;
use super::head::Head;

/// Shared by the connection, its requests, and the watch kept over them.
pub(super) struct Pulse {
    opened: Instant,
    /// Requests being answered.
    busy: AtomicU32,
    /// Milliseconds from `opened` to the last change of what the connection waits for.
    since: AtomicU64,
    /// Whether a request has begun to arrive: it must be whole soon.
    arriving: AtomicBool,
    /// Requests begun so far.
    begun: AtomicU32,
    /// Whether the head that is arriving says twice how long its body is.
    ambiguous: AtomicBool,
    /// Where the head of an answer is whose body hyper does not send.
    lent_head: AtomicU8,
    hang_up: Notify,
    timeout_header: Duration,
    timeout_idle: Duration,
    /// Where it is listed, and under which number.
    listed: (Arc<Pulses>, u64),
}

/// There is no such head, or not yet.
const HEAD_UNWRITTEN: u8 = 0;
/// It is in hyper's buffer.
const HEAD_WRITTEN: u8 = 1;
/// It has left hyper, with all that was before it.
const HEAD_SENT: u8 = 2;

/// All pulses of a listener. When it stops, each connection is told through its own pulse: if all
/// of them waited for one thing, they would all touch it each time they are woken.
#[derive(Default)]
pub(super) struct Pulses(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    pulses: HashMap<u64, Weak<Pulse>>,
    next: u64,
    hung_up: bool,
}

impl Pulses {
    /// The pulse of a new connection.
    pub(super) fn pulse(self: &Arc<Pulses>, options: &Options) -> Arc<Pulse> {
        let mut listed = self.listed();
        listed.next += 1;
        let number = listed.next;
        let pulse = Arc::new(Pulse::new(options, (self.clone(), number)));
        listed.pulses.insert(number, Arc::downgrade(&pulse));
        if listed.hung_up {
            pulse.hang_up();
        }
        pulse
    }

    /// Asks every connection to end, also those that come later.
    pub(super) fn hang_up(&self) {
        let pulses: Vec<Arc<Pulse>> = {
            let mut listed = self.listed();
            listed.hung_up = true;
            listed.pulses.values().filter_map(Weak::upgrade).collect()
        };
        // Not under the lock: the last owner of a pulse takes it to be removed from the list.
        pulses.iter().for_each(|pulse| pulse.hang_up());
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        let (pulses, number) = &self.listed;
        pulses.listed().pulses.remove(number);
    }
}

impl Pulse {
    fn new(options: &Options, listed: (Arc<Pulses>, u64)) -> Pulse {
        Pulse {
            listed,
            opened: Instant::now(),
            busy: AtomicU32::new(0),
            since: AtomicU64::new(0),
            // A new connection has a request to make.
            arriving: AtomicBool::new(true),
            begun: AtomicU32::new(0),
            ambiguous: AtomicBool::new(false),
            lent_head: AtomicU8::new(HEAD_UNWRITTEN),
            hang_up: Notify::new(),
            timeout_header: options.timeout_header,
            timeout_idle: options.timeout_idle,
        }
    }

    /// A request is whole and about to be answered.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
        self.begun.fetch_add(1, Relaxed);
        self.arriving.store(false, Relaxed);
    }

    /// An answer is complete, or given up.
    pub(super) fn end(&self) {
        self.now_waits();
        self.busy.fetch_sub(1, Relaxed);
    }

    /// Whether the head that has just arrived was ambiguous; asked once for each request.
    pub(super) fn take_ambiguous(&self) -> bool {
        self.ambiguous.swap(false, Relaxed)
    }

    /// hyper has asked for a body that it is not to send: the head is in its buffer. It asks again
    /// after the head is sent, which changes nothing.
    pub(super) fn head_is_written(&self) {
        if self.lent_head.load(Relaxed) == HEAD_UNWRITTEN {
            self.lent_head.store(HEAD_WRITTEN, Relaxed);
        }
    }

    /// hyper flushes only what it has written to the end.
    fn flushed(&self) {
        if self.lent_head.load(Relaxed) == HEAD_WRITTEN {
            self.lent_head.store(HEAD_SENT, Relaxed);
        }
    }

    /// Whether hyper's part in an answer is over.
    pub(super) fn head_is_sent(&self) -> bool {
        self.lent_head.load(Relaxed) == HEAD_SENT
    }

    /// The next head is another one.
    pub(super) fn head_is_taken(&self) {
        self.lent_head.store(HEAD_UNWRITTEN, Relaxed);
    }

    /// Asks for the connection to end after what it is busy with.
    pub(super) fn hang_up(&self) {
        self.hang_up.notify_one();
    }

    /// Waits until somebody asked.
    pub(super) async fn hung_up(&self) {
        self.hang_up.notified().await;
    }

    /// Waits until the connection has been silent, slow or idle for too long.
    pub(super) async fn overdue(&self) {
        loop {
            let now = Instant::now();
            // Whatever happens from now on gives the connection at least the header's time, so
            // there is no need to be woken by it.
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

/// A byte stream that keeps the pulse.
pub(super) struct Watched<S> {
    stream: S,
    /// What was read from the stream before; it comes first.
    early: Bytes,
    pulse: Arc<Pulse>,
    /// HTTP/1 only: what the head of the next request says so far.
    head: Option<(u32, Head)>,
}

impl<S> Watched<S> {
    pub(super) fn http1(stream: S, early: Bytes, pulse: Arc<Pulse>) -> Watched<S> {
        Watched { stream, early, pulse, head: Some((0, Head::default())) }
    }

    pub(super) fn http2(stream: S, pulse: Arc<Pulse>) -> Watched<S> {
        Watched { stream, early: Bytes::new(), pulse, head: None }
    }

    /// The stream, and what of the early bytes nobody has read.
    pub(super) fn into_inner(self) -> (S, Bytes) {
        (self.stream, self.early)
    }

    /// Looks at bytes of a request's head. Requests sent before the last answer was complete pass
    /// unseen; hyper reads an ambiguous one as chunked and then closes, which is safe too.
    fn arrived(&mut self, bytes: &[u8]) {
        let pulse = &self.pulse;
        let Some((request, head)) = &mut self.head else { return };
        if bytes.is_empty() || pulse.busy.load(Relaxed) > 0 {
            return;
        }
        let begun = pulse.begun.load(Relaxed);
        if *request != begun {
            (*request, *head) = (begun, Head::default());
        }
        if !pulse.arriving.swap(true, Relaxed) {
            pulse.now_waits();
        }
        head.read(bytes);
        pulse.ambiguous.store(head.is_ambiguous(), Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
        self.pulse.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pulse() -> Arc<Pulse> {
        Arc::<Pulses>::default().pulse(&Options::default())
    }

    /// How long the connection may still take, in seconds.
    async fn patience(pulse: &Pulse) -> u64 {
        let from = Instant::now();
        pulse.overdue().await;
        from.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_given_the_header_time() {
        assert_eq!(patience(&pulse()).await, 32);
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_given_the_idle_time() {
        let pulse = pulse();
        pulse.begin();
        tokio::time::advance(Duration::from_secs(1000)).await;
        pulse.end();
        assert_eq!(patience(&pulse).await, 90);
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_request_must_be_whole_soon_after_its_first_byte() {
        let pulse = pulse();
        let mut stream = Watched::http1(tokio::io::empty(), Bytes::new(), pulse.clone());
        pulse.begin();
        pulse.end();
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"G");
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"E");
        assert_eq!(patience(&pulse).await, 22);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_connection_is_never_overdue() {
        let pulse = pulse();
        pulse.begin();
        let patience = tokio::time::timeout(Duration::from_secs(86_400), pulse.overdue());
        patience.await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn an_http2_ping_is_not_a_request() {
        let pulse = pulse();
        let mut stream = Watched::http2(tokio::io::empty(), pulse.clone());
        pulse.begin();
        pulse.end();
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.arrived(b"PING");
        assert_eq!(patience(&pulse).await, 80);
    }

    #[tokio::test]
    async fn an_ambiguous_head_is_told_once_and_the_next_is_read_afresh() {
        let pulse = pulse();
        let mut stream = Watched::http1(tokio::io::empty(), Bytes::new(), pulse.clone());
        stream.arrived(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n");
        stream.arrived(b"Transfer-Encoding: chunked\r\n\r\n");
        pulse.begin();
        assert!(pulse.take_ambiguous());
        pulse.end();
        stream.arrived(b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n");
        pulse.begin();
        assert!(!pulse.take_ambiguous());
    }

    #[tokio::test]
    async fn a_stop_reaches_connections_that_are_there_and_that_come() {
        let pulses = Arc::new(Pulses::default());
        let (before, gone) = (pulses.pulse(&Options::default()), pulses.pulse(&Options::default()));
        drop(gone);
        pulses.hang_up();
        before.hung_up().await;
        pulses.pulse(&Options::default()).hung_up().await;
        drop(before);
        assert!(pulses.listed().pulses.is_empty());
    }
}
