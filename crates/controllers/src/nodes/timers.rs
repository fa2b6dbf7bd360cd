//! Since when a pod is where it is.
//!
//! Objects tell times in whole seconds; stages may be milliseconds apart. So a node remembers when
//! it saw a stay begin, and asks the object only for what began before the process did.
//! Bound: one entry for each pod that something is due for.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use headwater_client::Key;
use jiff::Timestamp;
use tokio::time::Instant;

use super::life::Stay;

/// The stays that something is due in.
#[derive(Default)]
pub(crate) struct Timers {
    known: Mutex<HashMap<Key, Known>>,
}

struct Known {
    uid: String,
    stay: Stay,
    since: Instant,
}

/// An object's time is trusted beyond this; below it, it may be off by its missing fraction.
const TRUSTED_AFTER: Duration = Duration::from_secs(2);

impl Timers {
    /// How long the stay has lasted.
    pub(crate) fn elapsed(
        &self,
        key: &Key,
        uid: &str,
        stay: Stay,
        began: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Duration {
        let mut known = self.known.lock().expect("no code panics while it is held");
        if let Some(found) = known.get(key)
            && found.uid == uid
            && found.stay == stay
        {
            return found.since.elapsed();
        }
        let before = began().and_then(|began| Duration::try_from(now.duration_since(began)).ok());
        let before = before.filter(|before| *before > TRUSTED_AFTER).unwrap_or_default();
        let instant = Instant::now();
        let since = instant.checked_sub(before).unwrap_or(instant);
        known.insert(key.clone(), Known { uid: uid.to_owned(), stay, since });
        before
    }

    /// Nothing is due for a pod any more.
    pub(crate) fn forget(&self, key: &Key) {
        self.known.lock().expect("no code panics while it is held").remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stay_is_timed_from_when_it_was_seen_or_from_what_the_object_says() {
        let timers = Timers::default();
        let key = Key::namespaced("a", "p");
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let elapsed = |stay, began: &str| {
            let began = began.parse().ok();
            timers.elapsed(&key, "u", stay, || began, now)
        };
        assert_eq!(elapsed(Stay::Creating, "2026-01-01T00:00:59Z"), Duration::ZERO);
        tokio::time::advance(Duration::from_millis(300)).await;
        let again = elapsed(Stay::Creating, "2026-01-01T00:00:00Z");
        assert_eq!(again, Duration::from_millis(300), "the first sight counts");
        assert_eq!(elapsed(Stay::Running(0), "2026-01-01T00:00:30Z"), Duration::from_secs(30));
        timers.forget(&key);
        assert_eq!(elapsed(Stay::Running(0), ""), Duration::ZERO);
    }
}
