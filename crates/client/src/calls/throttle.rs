//! A rate limit for calls.
//!
//! River: inside the calls; off by default.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A token bucket.
pub(crate) struct Throttle {
    per_second: f64,
    burst: f64,
    state: Mutex<Option<(f64, Instant)>>,
}

impl Throttle {
    pub(crate) fn new(per_second: f64, burst: u32) -> Throttle {
        Throttle { per_second, burst: f64::from(burst), state: Mutex::new(None) }
    }

    /// Waits for a token. Dropping the future may lose a token.
    pub(crate) async fn turn(&self) {
        sleep_until(self.reserve(Instant::now())).await;
    }

    fn reserve(&self, now: Instant) -> Instant {
        let mut state = self.state.lock().expect("no code panics while it is held");
        let (left, at) = state.unwrap_or((self.burst, now));
        let passed = now.saturating_duration_since(at).as_secs_f64();
        let left = (left + passed * self.per_second).min(self.burst) - 1.0;
        *state = Some((left, now));
        let wait = (-left / self.per_second).max(0.0);
        now + Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(3600))
    }
}
