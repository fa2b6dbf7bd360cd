//! When the writer cleans: it starts the jobs of the cleaner and takes over their results.
//!
//! Promise: at most one job runs at a time, and old segments stay until a durable roster lists the
//! base segment instead of them.

use super::Writer;
use crate::embedded::cleaner::{self, Cleaned, Cleaner, join};
use crate::embedded::group::Staged;

impl Writer {
    /// Brings the cleaner forward. While the disk is full, waits until it has freed what it can, so
    /// that deletes do not use up the space that it needs.
    pub(super) fn clean(&mut self) {
        loop {
            self.clean_step();
            let is_done = match self.cleaner {
                Cleaner::Idle => !self.may_clean,
                Cleaner::Listing(_) => true,
                Cleaner::Copying(_) | Cleaner::Releasing(_) => false,
            };
            if is_done || !self.is_full() {
                return;
            }
        }
    }

    /// The next step of the cleaner: at most one of its jobs runs at a time.
    fn clean_step(&mut self) {
        let wait = self.is_full();
        self.cleaner = match std::mem::take(&mut self.cleaner) {
            Cleaner::Idle if std::mem::take(&mut self.may_clean) => self.start_cleaning(),
            Cleaner::Copying(job) if wait || job.is_finished() => match join(job) {
                Some(Ok(cleaned)) => {
                    let dropped: Vec<u64> = cleaned.dropped.iter().map(|s| s.number).collect();
                    self.log.exchange(&dropped, cleaned.base);
                    self.list(cleaned)
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot clean a segment");
                    self.shared.report_damage(&error);
                    Cleaner::Idle
                }
                None => Cleaner::Idle,
            },
            Cleaner::Listing(cleaned) => self.list(cleaned),
            Cleaner::Releasing(job) if wait || job.is_finished() => {
                for segment in join(job).unwrap_or_default() {
                    let len_min = self.shared.options.segment_bytes;
                    self.log.free.give(&*self.shared.disk, segment, len_min);
                }
                self.may_clean = true;
                Cleaner::Idle
            }
            running => running,
        };
    }

    fn start_cleaning(&mut self) -> Cleaner {
        let chosen = {
            let published = self.shared.published();
            let needed = |number| published.index.needed(number);
            let damaged = self.shared.report().damaged_segments.clone();
            let sealed = self.log.sealed().filter(|segment| !damaged.contains(&segment.number));
            let sealed: Vec<_> = sealed.copied().collect();
            let choose = |may_copy| {
                cleaner::choose(&sealed, needed, self.shared.options.segment_bytes, may_copy)
            };
            // A full disk may have no space for a copy.
            let unneeded = if self.is_full() { choose(false) } else { Vec::new() };
            if unneeded.is_empty() { choose(true) } else { unneeded }
        };
        if chosen.is_empty() {
            return Cleaner::Idle;
        }
        let base = self.log.next_number();
        cleaner::copy(&self.shared, chosen, base).unwrap_or_default()
    }

    /// Writes a roster with the base segment instead of the old ones. Until it is durable, the old
    /// ones stay.
    fn list(&mut self, cleaned: Cleaned) -> Cleaner {
        let mut empty = Staged::empty(self.log.seed(), self.edges());
        match self.append(&mut empty) {
            Ok(()) => cleaner::release(&self.shared, cleaned).unwrap_or_default(),
            Err(error) => {
                self.failed(&error);
                Cleaner::Listing(cleaned)
            }
        }
    }
}
