//! The scrub: reads sealed segments in the background and reports damage.
//!
//! Promise: every sealed segment is read from the disk within a day, at a bounded rate, so that
//! damage to data that is rarely read is found while a backup still exists.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::Shared;
use super::scan::FrameScan;
use super::segment::Segment;
use crate::store::Error;

/// The pause between two segments. With segments of 32 MiB this reads 40 MB a minute at most, and
/// a day is enough for 46 GB; larger stores are read in less time per segment.
const PAUSE: Duration = Duration::from_secs(60);

/// All segments are read within this time.
const PERIOD: Duration = Duration::from_secs(20 * 3600);

/// Reads segments until the sender is dropped.
pub(super) fn run(shared: &Shared, stop: &Receiver<()>) {
    let mut last = 0;
    loop {
        let count = u32::try_from(shared.published().segments.len()).unwrap_or(u32::MAX);
        let pause = PAUSE.min(PERIOD / count.max(1));
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        last = step(shared, last);
    }
}

/// Checks the next sealed segment after a number, and returns its number.
fn step(shared: &Shared, last: u64) -> u64 {
    let next = {
        let published = shared.published();
        // The newest one may be open: its end is unknown.
        let sealed = published.segments.len().saturating_sub(1);
        let mut sealed = published.segments.values().take(sealed);
        sealed.find(|segment| segment.number > last).cloned()
    };
    let Some(segment) = next else { return 0 };
    // A frame may be written while it is read; then the second read finds it whole.
    let first = check(shared, &segment).err().map(|error| error.to_string());
    let again = first
        .and_then(|first| check(shared, &segment).err().filter(|again| again.to_string() == first));
    if let Some(error) = again {
        tracing::error!(%error, "the scrub found damage; take a backup and restore it into a new directory");
        shared.report_damage(&error);
    }
    segment.number
}

/// Reads all frames of a segment from the disk.
fn check(shared: &Shared, segment: &Arc<Segment>) -> Result<(), Error> {
    let name = Segment::name(segment.number);
    segment.file.drop_cache(0, 0);
    let bytes = segment.read_to(None);
    let bytes = bytes.map_err(|error| Error::Unavailable(format!("{name}: {error}")))?;
    let mut scan = FrameScan::new(shared.identity.seed(), segment.number, &bytes);
    scan.by_ref().for_each(drop);
    // An abandoned frame at the end is no damage.
    match scan.next_header() {
        None => Ok(()),
        Some(_) => {
            let place = format!("{name}, byte {}", scan.end());
            Err(Error::Damaged { place, why: scan.why() })
        }
    }
}
