//! The upkeep: the thread that cleans and scrubs while the writer commits.
//!
//! River: writer → **upkeep** → cleaner, scrub.
//! Promise: does one thing after the other, so that reads of whole segments do not add up. Ends after
//! the writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{Shared, cleaner, scrub};

/// The time between two cleanings, unless the writer asks for one.
const TICK: Duration = Duration::from_secs(1);

/// Works until the writer ends.
pub(super) fn run(shared: &Shared, asked: &Receiver<()>) {
    let start = Instant::now();
    let (mut next_clean, mut next_scrub) = (start, start + scrub::pause(shared));
    let mut scrubbed = 0;
    loop {
        let wait = next_clean.min(next_scrub).saturating_duration_since(Instant::now());
        let asked = asked.recv_timeout(wait);
        if asked == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let now = Instant::now();
        let work = || {
            if asked.is_ok() || now >= next_clean {
                cleaner::clean(shared);
                next_clean = now + TICK;
            }
            if now >= next_scrub {
                scrubbed = scrub::step(shared, scrubbed);
                next_scrub = now + scrub::pause(shared);
            }
        };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            next_clean = now + TICK;
            next_scrub = now + scrub::pause(shared);
        }
    }
}
