//! Slow start: many similar writes in batches of 1, 2, 4, 8 …
//!
//! River: reconciler → **slow start** → calls. If a quota or a webhook rejects the first write, it
//! would reject the others too, so they are not sent.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use headwater_client::Error;

/// Writes per reconcile; the remainder follows in the next one.
pub(crate) const BURST_MAX: usize = 500;
/// Concurrent writes.
const BATCH_MAX: usize = 64;

/// Runs `write` for each item in growing batches and stops after the first batch with a failure.
/// Returns the written objects and the first failure.
pub(crate) async fn slow_start_batch<I, T, F>(
    items: Vec<I>,
    write: impl Fn(I) -> F,
) -> (Vec<T>, Option<Error>)
where
    F: Future<Output = Result<T, Error>>,
{
    let mut items = items.into_iter().take(BURST_MAX).peekable();
    let mut done = Vec::new();
    let mut batch_len = 1;
    while items.peek().is_some() {
        let batch: FuturesUnordered<F> = items.by_ref().take(batch_len).map(&write).collect();
        let results: Vec<Result<T, Error>> = batch.collect().await;
        let mut failure = None;
        for result in results {
            match result {
                Ok(written) => done.push(written),
                Err(error) => drop(failure.get_or_insert(error)),
            }
        }
        if failure.is_some() {
            return (done, failure);
        }
        batch_len = (2 * batch_len).min(BATCH_MAX);
    }
    (done, None)
}

/// Whether a create was rejected because the namespace is terminating; this is not a failure.
pub(crate) fn is_namespace_terminating(error: &Error) -> bool {
    let causes = error.status().map(|status| status.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|(reason, _)| reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    async fn attempts(count: usize, fails_at: usize) -> (usize, usize, bool) {
        let tries = Cell::new(0);
        let (done, failure) = slow_start_batch((0..count).collect(), |item| {
            tries.set(tries.get() + 1);
            async move {
                match item {
                    item if item == fails_at => Err(Error::NotRunning),
                    item => Ok(item),
                }
            }
        })
        .await;
        (tries.get(), done.len(), failure.is_some())
    }

    #[tokio::test]
    async fn a_failure_stops_after_its_batch() {
        assert_eq!(attempts(10, usize::MAX).await, (10, 10, false));
        assert_eq!(attempts(10, 0).await, (1, 0, true), "the first batch has one write");
        assert_eq!(attempts(10, 4).await, (7, 6, true), "1 + 2 + 4");
        assert_eq!(attempts(0, 0).await, (0, 0, false));
        assert_eq!(attempts(1000, usize::MAX).await, (500, 500, false));
    }
}
