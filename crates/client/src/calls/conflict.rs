//! Trying again after a conflict: somebody else wrote first.
//!
//! River: inside the calls.

use std::future::Future;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::Error;
use crate::random::Random;

/// How often and how quickly a conflict is retried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConflictPolicy {
    /// How often it is tried in all.
    pub attempts: u32,
    /// The first pause.
    pub pause: Duration,
    /// What each pause is multiplied by for the next.
    pub factor: f64,
    /// The random part added to each pause.
    pub jitter: f64,
}

impl Default for ConflictPolicy {
    /// Five attempts, 10 ms apart, 10 % random: for objects that several programs change.
    fn default() -> ConflictPolicy {
        ConflictPolicy { attempts: 5, pause: Duration::from_millis(10), factor: 1.0, jitter: 0.1 }
    }
}

impl ConflictPolicy {
    /// Four attempts, the first pause 10 ms, each five times the one before: for objects that
    /// many programs change at once.
    pub fn growing() -> ConflictPolicy {
        ConflictPolicy { attempts: 4, factor: 5.0, ..ConflictPolicy::default() }
    }
}

/// Runs `attempt` until it does not end in a conflict (409), at most as often as the policy says.
/// Other errors are returned at once; after the last attempt its conflict is. Cancel-safe as far
/// as `attempt` is.
///
/// # Errors
/// What the last attempt returned.
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
