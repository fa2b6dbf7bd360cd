//! The progress of HTTP/2 responses: data that a peer does not take resets its response.
//!
//! An HTTP/2 peer may keep the window of a stream closed and leave the connection otherwise healthy,
//! so the socket says nothing about it. hyper and h2 keep each part of a body until it is written,
//! therefore the parts themselves report: a part records when bytes of it are taken and when it is
//! dropped.
//!
//! Promise: a response with bytes to send ends when none of them is taken for
//! [`timeout_progress`](super::Options::timeout_progress). A response that waits for its handler, or for
//! an event, never does.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};

use super::gate::TrackedBody;
use crate::answer::body::Data;

tokio::task_local! {
    /// The progress of the response that the current task of hyper computes and sends.
    static CURRENT: Arc<ResponseProgress>;
}

/// The progress of one response.
#[derive(Debug)]
pub(super) struct ResponseProgress {
    begun: Instant,
    /// Milliseconds from `begun` to the last progress.
    last: AtomicU64,
    /// Parts that are not yet written.
    unsent: AtomicU32,
}

impl ResponseProgress {
    pub(super) fn new() -> ResponseProgress {
        let (last, unsent) = Default::default();
        ResponseProgress { begun: Instant::now(), last, unsent }
    }

    /// The progress of the response of the current task.
    pub(super) fn current() -> Option<Arc<ResponseProgress>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// When the response is stuck unless it makes progress before; `None` if nothing is unsent.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        let last = Duration::from_millis(self.last.load(Relaxed));
        self.has_unsent().then(|| self.begun + last + timeout)
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.load(Relaxed) > 0
    }

    fn now(&self) {
        self.last.store(self.begun.elapsed().as_millis() as u64, Relaxed);
    }
}

/// Runs hyper's task of one stream until it ends or its response is stuck. Dropping the task resets
/// the stream. Returns the progress: hyper's task may end before the last part is written.
pub(super) async fn until_stuck(stream: impl Future, timeout: Duration) -> Arc<ResponseProgress> {
    let progress = Arc::new(ResponseProgress::new());
    let mut stream = pin!(CURRENT.scope(progress.clone(), stream));
    let mut alarm = None;
    poll_fn(|context| {
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        loop {
            let alarm = match (&mut alarm, progress.deadline(timeout)) {
                (None, None) => return Poll::Pending,
                (None, Some(deadline)) => alarm.insert(Box::pin(sleep_until(deadline))),
                (Some(alarm), _) => alarm,
            };
            // It is set to the deadline at some earlier time, so that progress costs no timer.
            ready!(alarm.as_mut().poll(context));
            match progress.deadline(timeout) {
                Some(deadline) if deadline <= Instant::now() => return Poll::Ready(()),
                Some(deadline) => alarm.as_mut().reset(deadline),
                None => alarm.as_mut().reset(Instant::now() + timeout),
            }
        }
    })
    .await;
    progress
}

/// A response body whose parts record progress.
pub(super) struct ProgressBody {
    body: TrackedBody,
    progress: Option<Arc<ResponseProgress>>,
}

impl ProgressBody {
    /// The body of the response that the current task sends.
    pub(super) fn new(body: TrackedBody) -> ProgressBody {
        ProgressBody { body, progress: ResponseProgress::current() }
    }
}

impl Body for ProgressBody {
    type Data = UnsentData;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<UnsentData>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let progress = &self.progress;
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| frame.map_data(|data| UnsentData::new(data, progress.clone())))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of a body that is not yet written.
pub(super) struct UnsentData {
    data: Data,
    progress: Option<Arc<ResponseProgress>>,
}

impl UnsentData {
    fn new(data: Data, progress: Option<Arc<ResponseProgress>>) -> UnsentData {
        if let Some(progress) = &progress {
            // The time counts from the moment at which there was something to send.
            if progress.unsent.fetch_add(1, Relaxed) == 0 {
                progress.now();
            }
        }
        UnsentData { data, progress }
    }
}

impl Drop for UnsentData {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.unsent.fetch_sub(1, Relaxed);
        }
    }
}

impl Buf for UnsentData {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(into)
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
        if let Some(progress) = &self.progress {
            progress.now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn part() -> UnsentData {
        UnsentData::new(Data::from("four"), ResponseProgress::current())
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_waits_for_an_event_is_never_stuck() {
        let sent = async {
            for _ in 0..10 {
                drop(part());
                tokio::time::sleep(TIMEOUT * 10).await;
            }
        };
        let begun = Instant::now();
        until_stuck(sent, TIMEOUT).await;
        assert_eq!(begun.elapsed(), TIMEOUT * 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_nobody_takes_is_stuck_after_the_timeout() {
        let idle_first = async {
            tokio::time::sleep(TIMEOUT * 10).await;
            let _held = part();
            std::future::pending::<()>().await;
        };
        let begun = Instant::now();
        let progress = until_stuck(idle_first, TIMEOUT).await;
        assert_eq!(begun.elapsed(), TIMEOUT * 11);
        assert!(!progress.has_unsent(), "the part is freed with its stream");
    }

    #[tokio::test(start_paused = true)]
    async fn every_byte_that_is_taken_is_progress() {
        let one_by_one = async {
            let mut part = part();
            while part.has_remaining() {
                tokio::time::sleep(TIMEOUT - Duration::from_secs(1)).await;
                part.advance(1);
            }
            std::future::pending::<()>().await;
        };
        let begun = Instant::now();
        until_stuck(one_by_one, TIMEOUT).await;
        assert_eq!(begun.elapsed(), (TIMEOUT - Duration::from_secs(1)) * 4 + TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_outlive_their_stream_are_reported() {
        let kept = Rc::new(RefCell::new(None));
        let ends = async { *kept.borrow_mut() = Some(part()) };
        let progress = until_stuck(ends, TIMEOUT).await;
        assert_eq!(progress.deadline(TIMEOUT), Some(Instant::now() + TIMEOUT));
        kept.borrow_mut().take();
        assert_eq!(progress.deadline(TIMEOUT), None);
    }
}
