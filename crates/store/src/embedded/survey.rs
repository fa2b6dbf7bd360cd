//! The survey: finds all segments and the newest roster.
//!
//! Promise: reads headers and rosters only. A segment that no roster lists is unused, unless it has
//! newer frames than the newest roster: then its first frame, which has its roster, is damaged.

use std::io;
use std::sync::Arc;

use super::disk::Disk;
use super::frame::{BLOCK, FrameHeader, HEADER, read_payload};
use super::roster::{Roster, SegmentSummary};
use super::row::Seed;
use super::segment::{Segment, SegmentMap};
use super::{damaged, unavailable};
use crate::store::Error;

/// The segments of a directory.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) segments: SegmentMap,
    /// The list of segments with the highest sequence.
    pub(super) roster: Roster,
    /// Segments with newer frames that the roster does not list: their beginning is damaged.
    pub(super) headless: Vec<u64>,
}

/// Looks at the headers of all segments.
pub(super) fn survey(disk: &dyn Disk, seed: Seed) -> Result<Survey, Error> {
    let names = disk.names().map_err(|error| unavailable(disk, "", &error))?;
    let (mut segments, mut headless) = (SegmentMap::new(), Vec::new());
    let (mut newest, mut roster) = (0, None);
    for number in names.iter().filter_map(|name| Segment::number_of(name)) {
        let failed = |error: io::Error| unavailable(disk, &Segment::name(number), &error);
        let segment = Segment::open(disk, number).map_err(failed)?;
        match newest_roster(&segment, seed).map_err(failed)? {
            Headers::Roster(sequence, found) if sequence > newest => {
                (newest, roster) = (sequence, Some(found));
            }
            Headers::Headless(sequence) => headless.push((number, sequence)),
            Headers::Roster(..) | Headers::None => {}
        }
        segments.insert(number, Arc::new(segment));
    }
    if roster.is_none() && headless.is_empty() {
        return Err(damaged(disk, "*.seg", "no segment has a valid list of segments"));
    }
    let roster: Roster = roster.unwrap_or_default();
    let listed = |number: u64| roster.segments.iter().any(|listed| listed.number == number);
    headless.retain(|(number, sequence)| *sequence > newest && !listed(*number));
    let headless = headless.into_iter().map(|(number, _)| number).collect();
    Ok(Survey { segments, roster, headless })
}

impl Survey {
    /// The entry of a segment whose own roster is damaged: its length is unknown, so a salvage reads
    /// the entire file.
    pub(super) fn unlisted(number: u64) -> SegmentSummary {
        SegmentSummary { number, is_open: true, ..SegmentSummary::default() }
    }
}

/// The headers of a segment.
enum Headers {
    /// The newest roster and its sequence.
    Roster(u64, Roster),
    /// There are frames, but the first one is not whole.
    Headless(u64),
    /// A base segment, a file without frames, or one from an earlier use.
    None,
}

fn newest_roster(segment: &Segment, seed: Seed) -> io::Result<Headers> {
    let len = segment.file.len()?;
    let (mut at, mut found) = (0, Headers::None);
    while let Some(header) = header_at(segment, seed, at, len)? {
        if header.is_base {
            return Ok(Headers::None);
        }
        if header.roster_len > 0 {
            let payload_len = u64::from(header.payload_len);
            if at + HEADER as u64 + payload_len > len {
                break;
            }
            let mut payload = vec![0; header.payload_len as usize];
            segment.file.read(at + HEADER as u64, &mut payload)?;
            match read_payload(seed, &header, &payload, |_, _| {}) {
                Ok(Some(roster)) => found = Headers::Roster(header.sequence, roster),
                Ok(None) | Err(_) => break,
            }
        }
        at += header.len();
    }
    if matches!(found, Headers::None) {
        let mut sequence = 0;
        for at in (BLOCK as u64..len).step_by(BLOCK) {
            let header = header_at(segment, seed, at, len)?.filter(|header| !header.is_base);
            sequence = header.map_or(sequence, |header| header.sequence.max(sequence));
        }
        if sequence > 0 {
            found = Headers::Headless(sequence);
        }
    }
    Ok(found)
}

/// The header at a position, if it belongs to this segment.
fn header_at(segment: &Segment, seed: Seed, at: u64, len: u64) -> io::Result<Option<FrameHeader>> {
    if at + HEADER as u64 > len {
        return Ok(None);
    }
    let mut bytes = [0; HEADER];
    segment.file.read(at, &mut bytes)?;
    let header = FrameHeader::decode(seed, &bytes);
    Ok(header.filter(|header| header.segment == segment.number))
}
