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
        let (is_clean_due, is_scrub_due) = (asked.is_ok() || now >= next_clean, now >= next_scrub);
        // Before the work, which may panic.
        next_clean = if is_clean_due { now + TICK } else { next_clean };
        next_scrub = if is_scrub_due { now + scrub::pause(shared) } else { next_scrub };
        let work = || {
            if is_clean_due {
                cleaner::clean(shared);
            }
            if is_scrub_due {
                scrubbed = scrub::step(shared, scrubbed);
            }
        };
        // A panic is reported like every other one; the next round tries again.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}
