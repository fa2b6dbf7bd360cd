//! Timers: how long each pod has been in its state.
//!
//! Timestamps in objects have a resolution of one second, stages may last milliseconds. Therefore
//! the time at which this process first saw the state is remembered, and the object's timestamp is
//! used only for states that began before the process did.
//! Bound: one entry for each pod with a pending transition.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use headwater_client::Key;
use jiff::Timestamp;
use tokio::time::Instant;

use super::pod_lifecycle::PodState;

/// The states with a pending transition.
#[derive(Default)]
pub(crate) struct Timers {
    known: Mutex<HashMap<Key, StateTimer>>,
}

struct StateTimer {
    uid: String,
    state: PodState,
    since: Instant,
}

/// A shorter time from an object is ignored, because it may be off by a second.
const TRUSTED_AFTER: Duration = Duration::from_secs(2);

impl Timers {
    /// How long the pod has been in the state.
    pub(crate) fn elapsed(
        &self,
        key: &Key,
        uid: &str,
        state: PodState,
        state_began: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Duration {
        let mut known = self.known.lock().expect("no code panics while it is held");
        if let Some(found) = known.get(key)
            && found.uid == uid
            && found.state == state
        {
            return found.since.elapsed();
        }
        let before = state_began()
            .and_then(|state_began| Duration::try_from(now.duration_since(state_began)).ok());
        let before = before.filter(|before| *before > TRUSTED_AFTER).unwrap_or_default();
        let instant = Instant::now();
        let since = instant.checked_sub(before).unwrap_or(instant);
        known.insert(key.clone(), StateTimer { uid: uid.to_owned(), state, since });
        before
    }

    /// Removes the timer of a pod without a pending transition.
    pub(crate) fn release(&self, key: &Key) {
        self.known.lock().expect("no code panics while it is held").remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_state_is_timed_from_its_first_sight_or_from_the_object() {
        let timers = Timers::default();
        let key = Key::namespaced("a", "p");
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let elapsed = |state, state_began: &str| {
            let state_began = state_began.parse().ok();
            timers.elapsed(&key, "u", state, || state_began, now)
        };
        assert_eq!(elapsed(PodState::Creating, "2026-01-01T00:00:59Z"), Duration::ZERO);
        tokio::time::advance(Duration::from_millis(300)).await;
        let again = elapsed(PodState::Creating, "2026-01-01T00:00:00Z");
        assert_eq!(again, Duration::from_millis(300), "timed from the first sight");
        assert_eq!(elapsed(PodState::Running(0), "2026-01-01T00:00:30Z"), Duration::from_secs(30));
        timers.release(&key);
        assert_eq!(elapsed(PodState::Running(0), ""), Duration::ZERO);
    }
}
