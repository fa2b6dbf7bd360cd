//! The scrub: reads sealed segments in the background and reports damage.
//!
//! Promise: every sealed segment is read from the disk within a day, at a bounded rate, so that
//! damage to data that is rarely read is found while a backup still exists. Each segment is compared
//! with what was written, so damage to its last frame is found as well.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::Shared;
use super::roster::SegmentSummary;
use super::scan::FrameScan;
use super::segment::Segment;
use crate::store::Error;

/// All segments are read within this time.
const PERIOD: Duration = Duration::from_secs(20 * 3600);

/// Reads segments until the sender is dropped.
pub(super) fn run(shared: &Shared, stop: &Receiver<()>) {
    let mut last = 0;
    loop {
        let count = u32::try_from(shared.published().segments.len()).unwrap_or(u32::MAX);
        let pause = shared.options.scrub_pause.min(PERIOD / count.max(1));
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        last = step(shared, last);
    }
}

/// Checks the next sealed segment after a number, and returns its number; zero at the end.
fn step(shared: &Shared, last: u64) -> u64 {
    let next = {
        let published = shared.published();
        let mut later = published.segments.range(last + 1..).map(|(_, segment)| segment);
        later.find_map(|segment| Some((segment.clone(), segment.sealed()?)))
    };
    let Some((segment, sealed)) = next else { return 0 };
    match check(shared, &segment, &sealed) {
        Ok(()) => {}
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
    let name = Segment::name(segment.number);
    segment.file.drop_cache(0, 0);
    let bytes = segment.read_to(Some(sealed.len));
    let bytes = bytes.map_err(|error| Error::Unavailable(format!("{name}: {error}")))?;
    let mut found = SegmentSummary { len: 0, rows: 0, digest: 0, ..*sealed };
    let mut scan = FrameScan::new(shared.identity.seed(), segment.number, &bytes);
    for frame in scan.by_ref() {
        found.add(frame.header.len(), frame.header.rows, frame.header.digest);
    }
    match found == *sealed {
        true => Ok(()),
        false => {
            Err(Error::Damaged { place: format!("{name}, byte {}", scan.end()), why: scan.why() })
        }
    }
}
