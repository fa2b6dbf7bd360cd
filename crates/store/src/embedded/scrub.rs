//! The scrub: reads sealed segments in the background and reports damage.
//!
//! Promise: every sealed segment is read from the disk within a day, at a bounded rate, so that
//! damage to data that is rarely read is found while a backup still exists. Each segment is compared
//! with what was written, so damage to its last frame is found as well.

use std::time::Duration;

use super::Shared;
use super::roster::SegmentSummary;
use super::scan::{DamagedPart, FrameScan};
use super::segment::Segment;
use crate::store::{Error, Scrubbed};

/// All segments are read within this time.
const PERIOD: Duration = Duration::from_secs(20 * 3600);

/// The time between two segments.
pub(super) fn pause(shared: &Shared) -> Duration {
    pause_for(shared.options.scrub_pause, shared.published().segments.len())
}

/// Shorter than usual if there are so many segments that the period would not do.
fn pause_for(usual: Duration, segments: usize) -> Duration {
    usual.min(PERIOD / u32::try_from(segments).unwrap_or(u32::MAX).max(1))
}

/// Checks the next sealed segment after a number, and returns its number; zero at the end of a round.
pub(super) fn step(shared: &Shared, last: u64) -> u64 {
    let next = {
        let published = shared.published();
        let mut later = published.segments.range(last + 1..).map(|(_, segment)| segment);
        later.find_map(|segment| Some((segment.clone(), segment.sealed()?)))
    };
    let Some((segment, sealed)) = next else {
        if last > 0 {
            let scrubbed = &mut shared.report().scrubbed;
            scrubbed.rounds += 1;
            let Scrubbed { rounds, bytes } = *scrubbed;
            tracing::debug!(rounds, bytes, "the scrub has read all sealed segments");
        }
        return 0;
    };
    match check(shared, &segment, &sealed) {
        Ok(()) => shared.report().scrubbed.bytes += sealed.len,
        Err(error @ Error::Damaged { .. }) => {
            tracing::error!(%error, "the scrub found damage; take a backup and restore it into a new directory");
            shared.report_damage(&error);
        }
        Err(error) => {
            tracing::warn!(%error, "the scrub cannot read a segment; it tries again later")
        }
    }
    segment.number
}

/// Reads all frames of a segment from the disk.
fn check(shared: &Shared, segment: &Segment, sealed: &SegmentSummary) -> Result<(), Error> {
    segment.file.drop_cache(0, 0);
    let mut bytes = Vec::new();
    segment.read_all(sealed, &mut bytes)?;
    let mut scan = FrameScan::new(shared.identity.seed(), sealed, &bytes);
    scan.try_for_each(|frame| frame.map(drop)).map_err(DamagedPart::error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_a_minute_is_read_unless_a_day_would_not_be_enough() {
        let minute = Duration::from_secs(60);
        assert_eq!([0, 1, 1_200].map(|count| pause_for(minute, count)), [minute; 3]);
        assert_eq!(pause_for(minute, 2_400), minute / 2);
        let many = 1 << 20;
        assert!(pause_for(minute, many) * (many as u32) <= Duration::from_secs(24 * 3600));
    }
}
