//! Retries after a conflict (409).
//!
//! River: inside the calls.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::Error;
use crate::random::Random;

/// The number and timing of retries after a conflict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConflictPolicy {
    /// The maximum number of attempts.
    pub attempts: u32,
    /// The first delay.
    pub pause: Duration,
    /// The factor between two delays.
    pub factor: f64,
    /// The maximum jitter of each delay, as a fraction.
    pub jitter: f64,
}

impl Default for ConflictPolicy {
    /// Five attempts, 10 ms apart, with 10 % jitter: for objects that several programs change.
    fn default() -> ConflictPolicy {
        ConflictPolicy { attempts: 5, pause: Duration::from_millis(10), factor: 1.0, jitter: 0.1 }
    }
}

impl ConflictPolicy {
    /// Four attempts, 10 ms apart, each delay five times the previous one: for objects that many
    /// programs change at the same time.
    pub fn growing() -> ConflictPolicy {
        ConflictPolicy { attempts: 4, factor: 5.0, ..ConflictPolicy::default() }
    }
}

/// Runs `attempt` until it succeeds or fails with an error other than a conflict (409), at most as
/// often as the policy allows. Cancel-safe if `attempt` is.
///
/// # Errors
/// The error of the last attempt.
pub async fn retry_on_conflict<T, F>(
    policy: ConflictPolicy,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let random = Random::from_entropy();
    let mut pause = policy.pause;
    let mut left = policy.attempts.max(1);
    loop {
        left -= 1;
        match attempt().await {
            Err(error) if error.is_conflict() && left > 0 => {}
            done => return done,
        }
        sleep(pause + random.part_of(pause, policy.jitter)).await;
        pause = pause.mul_f64(policy.factor);
    }
}
