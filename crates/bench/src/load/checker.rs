//! The checker: what a watcher saw against what was written.
//!
//! Promise: an event that is missing, comes twice, comes out of order or was never written is
//! found, and the sentence says which.

use std::fmt;

/// The revisions a watcher has seen, in the order they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog(Vec<u64>);

/// What is wrong with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamError {
    Duplicate { revision: u64 },
    OutOfOrder { revision: u64, after: u64 },
    Missing { revision: u64 },
    Unexpected { revision: u64 },
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Duplicate { revision } => write!(f, "revision {revision} came twice"),
            StreamError::OutOfOrder { revision, after } => {
                write!(f, "revision {revision} came after {after}")
            }
            StreamError::Missing { revision } => {
                write!(f, "revision {revision} was acknowledged and never came")
            }
            StreamError::Unexpected { revision } => {
                write!(f, "revision {revision} came and is none of those it should see")
            }
        }
    }
}

impl std::error::Error for StreamError {}

impl EventLog {
    /// Takes the next revision, which must be newer than all before.
    pub(crate) fn push(&mut self, revision: u64) -> Result<(), StreamError> {
        match self.0.last() {
            Some(last) if revision <= *last => Err(self.misplaced(revision, *last)),
            _ => {
                self.0.push(revision);
                Ok(())
            }
        }
    }

    fn misplaced(&self, revision: u64, last: u64) -> StreamError {
        match self.0.binary_search(&revision) {
            Ok(_) => StreamError::Duplicate { revision },
            Err(_) => StreamError::OutOfOrder { revision, after: last },
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// What a watcher should see.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedEvents(Vec<u64>);

impl ExpectedEvents {
    /// Every revision that was acknowledged; clients that write at once acknowledge in any order,
    /// but no two writes share a revision.
    pub(crate) fn of(mut acknowledged: Vec<u64>) -> Result<ExpectedEvents, StreamError> {
        acknowledged.sort_unstable();
        match acknowledged.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(StreamError::Duplicate { revision: pair[0] }),
            None => Ok(ExpectedEvents(acknowledged)),
        }
    }

    pub(crate) fn check(&self, EventLog(seen): &EventLog) -> Result<(), StreamError> {
        let differing = self.0.iter().zip(seen).find(|(wanted, found)| wanted != found);
        // Where one ends, the other must.
        let beyond = (self.0.get(seen.len()), seen.get(self.0.len()));
        match (differing, beyond) {
            (Some((&revision, found)), _) if revision < *found => {
                Err(StreamError::Missing { revision })
            }
            (Some((_, &revision)), _) => Err(StreamError::Unexpected { revision }),
            (None, (Some(&revision), _)) => Err(StreamError::Missing { revision }),
            (None, (None, Some(&revision))) => Err(StreamError::Unexpected { revision }),
            (None, (None, None)) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(seen: &[u64]) -> Result<(), StreamError> {
        let mut watcher = EventLog::default();
        seen.iter().try_for_each(|revision| watcher.push(*revision))?;
        ExpectedEvents::of(vec![7, 3, 5])?.check(&watcher)
    }

    #[test]
    fn a_stream_with_every_revision_once_and_in_order_is_right() {
        assert_eq!(verdict(&[3, 5, 7]), Ok(()));
    }

    #[test]
    fn gaps_doubles_swaps_and_strangers_are_named() {
        for (seen, wrong) in [
            (&[3, 7][..], StreamError::Missing { revision: 5 }),
            (&[5, 7], StreamError::Missing { revision: 3 }),
            (&[3, 5], StreamError::Missing { revision: 7 }),
            (&[], StreamError::Missing { revision: 3 }),
            (&[3, 5, 5, 7], StreamError::Duplicate { revision: 5 }),
            (&[3, 5, 7, 3], StreamError::Duplicate { revision: 3 }),
            (&[3, 7, 5], StreamError::OutOfOrder { revision: 5, after: 7 }),
            (&[3, 4, 5, 7], StreamError::Unexpected { revision: 4 }),
            (&[2, 3, 5, 7], StreamError::Unexpected { revision: 2 }),
            (&[3, 5, 7, 8], StreamError::Unexpected { revision: 8 }),
        ] {
            assert_eq!(verdict(seen), Err(wrong), "{seen:?}");
        }
    }

    #[test]
    fn two_writes_that_share_a_revision_are_no_order() {
        let shared = ExpectedEvents::of(vec![4, 2, 4]).map(|_| ());
        assert_eq!(shared, Err(StreamError::Duplicate { revision: 4 }));
    }

    #[test]
    fn what_is_wrong_is_a_sentence() {
        let wrong = StreamError::OutOfOrder { revision: 5, after: 7 };
        assert_eq!(wrong.to_string(), "revision 5 came after 7");
    }
}
