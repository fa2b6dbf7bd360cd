//! Retries after a conflict (409).
//!
//! River: inside the calls.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::Error;
use crate::random::Random;

const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
/// The jitter of the pause, as a fraction.
const JITTER: f64 = 0.1;

/// Runs `attempt` until it succeeds or fails with an error other than a conflict (409), at most
/// five times, 10 ms apart. Cancel-safe if `attempt` is.
pub(super) async fn retry_on_conflict<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let random = Random::from_entropy();
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if error.is_conflict() => {}
            done => return done,
        }
        sleep(PAUSE + random.part_of(PAUSE, JITTER)).await;
    }
    attempt().await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::list_watch::StatusError;

    fn refusal(reason: &str) -> Error {
        Error::Refused(StatusError::new(409, reason, "x"))
    }

    /// C27.1, C27.2
    #[tokio::test(start_paused = true)]
    async fn only_conflicts_are_retried_and_the_last_one_is_returned() {
        let tries = AtomicU32::new(0);
        let attempt = |reason: &'static str| {
            let tries = &tries;
            move || {
                tries.fetch_add(1, Ordering::Relaxed);
                async move { Err::<(), _>(refusal(reason)) }
            }
        };
        let before = Instant::now();
        let error = retry_on_conflict(attempt("Conflict")).await.unwrap_err();
        assert!(error.is_conflict());
        assert_eq!(tries.swap(0, Ordering::Relaxed), 5);
        let pauses = before.elapsed();
        let expected = Duration::from_millis(40)..=Duration::from_millis(44);
        assert!(expected.contains(&pauses), "{pauses:?}");

        let error = retry_on_conflict(attempt("AlreadyExists")).await.unwrap_err();
        assert!(error.is_exists() && !error.is_conflict());
        assert_eq!(tries.swap(0, Ordering::Relaxed), 1, "that is no conflict");
        let done = retry_on_conflict(|| async {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0..2 => Err(refusal("Conflict")),
                _ => Ok("written"),
            }
        });
        assert_eq!(done.await.unwrap(), "written");
    }
}
