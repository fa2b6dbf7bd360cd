//! The steps of the cleaner, of the roster and of the reuse of files that a crash can interrupt.

use std::collections::BTreeMap;

use crate::disk::Done;

/// A step that was done last when the crash came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashPoint {
    /// The cleaner wrote a frame of its base segment, synced it, and synced its name.
    CopyWritten,
    CopySynced,
    CopyNamed,
    /// A roster with a changed list was written and synced.
    RosterWritten,
    RosterSynced,
    /// The file of a dropped segment was kept for reuse, or removed.
    Freed,
    Removed,
    /// A free file became a segment, its first frame was written and synced, and its name was.
    Reused,
    ReusedWritten,
    ReusedSynced,
    ReusedNamed,
}

pub(crate) const ALL: [CrashPoint; 11] = [
    CrashPoint::CopyWritten,
    CrashPoint::CopySynced,
    CrashPoint::CopyNamed,
    CrashPoint::RosterWritten,
    CrashPoint::RosterSynced,
    CrashPoint::Freed,
    CrashPoint::Removed,
    CrashPoint::Reused,
    CrashPoint::ReusedWritten,
    CrashPoint::ReusedSynced,
    CrashPoint::ReusedNamed,
];

/// A file that is being made durable.
#[derive(Clone, Copy)]
struct Pending {
    inode: usize,
    is_synced: bool,
}

/// Follows recorded operations and names what each of them completes.
#[derive(Default)]
pub(crate) struct CrashPoints {
    names: BTreeMap<String, usize>,
    copy: Option<Pending>,
    reused: Option<Pending>,
    roster: Option<usize>,
}

impl CrashPoints {
    pub(crate) fn step(&mut self, done: &Done) -> Option<CrashPoint> {
        match done {
            Done::Created { name, inode } => {
                self.names.insert(name.clone(), *inode);
                None
            }
            Done::Wrote { inode, offset, data } if data.starts_with(b"hw frame") => {
                self.wrote_frame(*inode, *offset, data)
            }
            Done::Synced { inode } => self.synced(*inode),
            Done::SyncedNames => {
                let is_synced = |pending: &mut Pending| pending.is_synced;
                match (self.copy.take_if(is_synced), self.reused.take_if(is_synced)) {
                    (Some(_), _) => Some(CrashPoint::CopyNamed),
                    (None, Some(_)) => Some(CrashPoint::ReusedNamed),
                    (None, None) => None,
                }
            }
            Done::Renamed { from, to } => self.renamed(from, to),
            Done::Removed { name } => name.ends_with(".seg").then_some(CrashPoint::Removed),
            Done::Wrote { .. } | Done::SetLen { .. } | Done::SyncFailed { .. } => None,
        }
    }

    fn wrote_frame(&mut self, inode: usize, offset: u64, data: &[u8]) -> Option<CrashPoint> {
        // The fields of a frame: the length of the roster, whether the segment is the cleaner's.
        let (has_roster, is_base) = (data[52] != 0, data[60] != 0);
        if is_base {
            self.copy = Some(Pending { inode, is_synced: false });
            return Some(CrashPoint::CopyWritten);
        }
        if self.reused.is_some_and(|reused| reused.inode == inode) {
            return Some(CrashPoint::ReusedWritten);
        }
        let is_change = has_roster && offset > 0;
        is_change.then(|| {
            self.roster = Some(inode);
            CrashPoint::RosterWritten
        })
    }

    fn synced(&mut self, inode: usize) -> Option<CrashPoint> {
        for (pending, point) in
            [(&mut self.copy, CrashPoint::CopySynced), (&mut self.reused, CrashPoint::ReusedSynced)]
        {
            if let Some(pending) = pending.as_mut().filter(|pending| pending.inode == inode) {
                pending.is_synced = true;
                return Some(point);
            }
        }
        self.roster.take_if(|roster| *roster == inode).map(|_| CrashPoint::RosterSynced)
    }

    fn renamed(&mut self, from: &str, to: &str) -> Option<CrashPoint> {
        let inode = self.names.remove(from)?;
        self.names.insert(to.into(), inode);
        if from.ends_with(".free") && to.ends_with(".seg") {
            self.reused = Some(Pending { inode, is_synced: false });
            return Some(CrashPoint::Reused);
        }
        (from.ends_with(".seg") && to.ends_with(".free")).then_some(CrashPoint::Freed)
    }
}
