//! Many writes of one kind, carefully: one first, then two, four, eight at a time.
//!
//! River: reconciler → **burst** → calls. When the first write is refused (a quota, a webhook) the
//! others would be as well, so they are not tried.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use headwater_client::Error;

/// At most so many are made in one reconcile; the rest follows in the next.
pub(crate) const BURST_MAX: usize = 500;
/// At most so many at the same time.
const AT_ONCE_MAX: usize = 64;

/// Runs `write` for each item in growing batches; ends after the first batch with a failure.
/// Answers what was written, and the first failure.
pub(crate) async fn slow_start<I, T, F>(
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
        batch_len = (2 * batch_len).min(AT_ONCE_MAX);
    }
    (done, None)
}

/// Whether a create was refused because the namespace ends: nothing is wrong, and nothing is to be
/// done.
pub(crate) fn namespace_ends(error: &Error) -> bool {
    let causes = error.status().map(|status| status.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|(reason, _)| reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    async fn tried(count: usize, fails_at: usize) -> (usize, usize, bool) {
        let tries = Cell::new(0);
        let (done, failure) = slow_start((0..count).collect(), |item| {
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
    async fn a_failure_ends_the_burst_after_its_batch() {
        assert_eq!(tried(10, usize::MAX).await, (10, 10, false));
        assert_eq!(tried(10, 0).await, (1, 0, true), "the first is alone");
        assert_eq!(tried(10, 4).await, (7, 6, true), "1 + 2 + 4");
        assert_eq!(tried(0, 0).await, (0, 0, false));
        assert_eq!(tried(1000, usize::MAX).await, (500, 500, false));
    }
}
