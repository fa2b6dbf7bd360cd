//! The checker: compares the events of a watcher with the acknowledged writes.
//!
//! Promise: it finds every missing, duplicate, out-of-order or unexpected event, and the error
//! names its revision.

use std::fmt;

/// The revisions that a watcher received, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog(Vec<u64>);

/// A violation of the watch guarantees.
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
            StreamError::Duplicate { revision } => write!(f, "revision {revision} arrived twice"),
            StreamError::OutOfOrder { revision, after } => {
                write!(f, "revision {revision} arrived after {after}")
            }
            StreamError::Missing { revision } => {
                write!(f, "revision {revision} was acknowledged but did not arrive")
            }
            StreamError::Unexpected { revision } => {
                write!(f, "revision {revision} arrived but is not for this watcher")
            }
        }
    }
}

impl std::error::Error for StreamError {}

impl EventLog {
    /// Appends a revision, which must be newer than all before.
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

    pub(crate) fn last(&self) -> Option<u64> {
        self.0.last().copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// The revisions that a watcher must receive.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedEvents(Vec<u64>);

impl ExpectedEvents {
    /// From acknowledged revisions in any order. Fails if two writes share one.
    pub(crate) fn of(mut acknowledged: Vec<u64>) -> Result<ExpectedEvents, StreamError> {
        acknowledged.sort_unstable();
        match acknowledged.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(StreamError::Duplicate { revision: pair[0] }),
            None => Ok(ExpectedEvents(acknowledged)),
        }
    }

    pub(crate) fn check(&self, EventLog(seen): &EventLog) -> Result<(), StreamError> {
        let differing = self.0.iter().zip(seen).find(|(wanted, found)| wanted != found);
        // The first element that only one of them has.
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
    fn every_revision_once_and_in_order_is_correct() {
        assert_eq!(verdict(&[3, 5, 7]), Ok(()));
    }

    #[test]
    fn missing_duplicate_out_of_order_and_unexpected_events_are_named() {
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
    fn two_writes_with_the_same_revision_are_an_error() {
        let shared = ExpectedEvents::of(vec![4, 2, 4]).map(|_| ());
        assert_eq!(shared, Err(StreamError::Duplicate { revision: 4 }));
    }

    #[test]
    fn errors_name_the_revision() {
        let wrong = StreamError::OutOfOrder { revision: 5, after: 7 };
        assert_eq!(wrong.to_string(), "revision 5 arrived after 7");
    }
}
