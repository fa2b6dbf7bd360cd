//! Requests whose answer many callers share.
//!
//! River: reads, reviews → **shared call** → one request to the upstream.
//! Promise: a caller receives the answer of a request that began after it asked, so nothing that was true
//! before it asked is missing from the answer.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// One question that is asked again and again.
pub(crate) struct SharedCall<T> {
    /// How many have asked.
    asked: AtomicU64,
    last: Mutex<LastAnswer<T>>,
}

struct LastAnswer<T> {
    /// The first callers, so many, asked before the request for this answer began.
    covers: u64,
    answer: Option<T>,
}

impl<T: Clone> SharedCall<T> {
    pub(crate) fn new() -> SharedCall<T> {
        let last = LastAnswer { covers: 0, answer: None };
        SharedCall { asked: AtomicU64::new(0), last: Mutex::new(last) }
    }

    /// The answer to a question that begins now, or of one that began since.
    pub(crate) async fn ask<F: Future<Output = T>>(&self, call: impl FnOnce() -> F) -> T {
        let own = self.asked.fetch_add(1, Ordering::AcqRel);
        let mut last = self.last.lock().await;
        if let Some(answer) = last.answer.as_ref().filter(|_| own < last.covers) {
            return answer.clone();
        }
        let covers = self.asked.load(Ordering::Acquire);
        let answer = call().await;
        *last = LastAnswer { covers, answer: Some(answer.clone()) };
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn callers_share_the_next_request_but_never_one_that_began_before_them() {
        let shared = SharedCall::new();
        let calls = AtomicUsize::new(0);
        let gate = tokio::sync::Notify::new();
        let ask = || {
            shared.ask(|| async {
                let number = calls.fetch_add(1, Ordering::Relaxed);
                gate.notified().await;
                number
            })
        };
        let first = ask();
        let others = futures::future::join_all((0..100).map(|_| ask()));
        tokio::pin!(first, others);
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut others).is_pending());
        gate.notify_one();
        assert_eq!(first.await, 0);
        gate.notify_one();
        let answers = others.await;
        assert!(answers.iter().all(|answer| *answer == 1), "{answers:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
