//! Past states: which versions the state at an old revision had.
//!
//! Promise: the state at a revision is the live table with the changes between the two applied or
//! undone. A key has the version of its last change up to the revision, or the version that its
//! first later change replaced. Finding these reads the log from the revision on, so the results
//! for the last few revisions are cached: all pages of one list use the same revision.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use headwater_api::Revision;

use super::snapshot::{Next, StoreSnapshot};
use crate::change::ChangeKind;
use crate::key::Key;
use crate::lock::lock;
use crate::store::{Error, Range};

/// How many old states are remembered.
const KEPT_MAX: usize = 4;

/// Old states that were asked about lately.
#[derive(Debug, Default)]
pub(super) struct Undos(Mutex<VecDeque<Arc<Undo>>>);

/// What differs between the live table and the state at a revision.
#[derive(Clone, Debug)]
struct Undo {
    at: Revision,
    /// Changes after this have been looked at.
    from: Revision,
    /// Changes up to here have been looked at.
    to: Revision,
    /// What each key was at; `None` if it was not there.
    was: BTreeMap<Key, Option<Revision>>,
}

impl Undo {
    fn new(at: Revision, from: Revision) -> Undo {
        Undo { at, from, to: from, was: BTreeMap::new() }
    }

    /// Looks at further changes.
    fn read(&mut self, snapshot: &StoreSnapshot, newest: Revision) -> Result<(), Error> {
        for revision in (self.to.0 + 1..=newest.0).map(Revision) {
            let (key, kind, prev) =
                snapshot.row(revision, |row| (Key::new(row.key), row.kind, row.prev))?;
            if revision <= self.at {
                self.was.insert(key, (kind != ChangeKind::Deleted).then_some(revision));
            } else {
                self.was.entry(key).or_insert((prev != Revision::ZERO).then_some(prev));
            }
        }
        self.to = newest;
        Ok(())
    }
}

impl Undos {
    /// Which versions a range held at a revision, and whether there are more.
    pub(super) fn positions(
        &self,
        snapshot: &StoreSnapshot,
        at: Revision,
        range: &Range,
    ) -> Result<(Vec<(Key, Revision)>, bool), Error> {
        let undo = self.undo(snapshot, at)?;
        let mut was = undo
            .was
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(&range.prefix))
            .peekable();
        let mut found = Vec::new();
        let limit = range.limit.unwrap_or(usize::MAX);
        // One more than asked for tells whether there are more.
        let enough = |found: &Vec<_>| found.len() > limit;
        snapshot.live(range.start(), |key, row| {
            if !key.starts_with(&range.prefix) || enough(&found) {
                return Ok(Next::Stop);
            }
            while let Some((gone, revision)) = was.next_if(|(gone, _)| gone.as_str() < key) {
                found.extend(revision.map(|revision| (gone.clone(), revision)));
            }
            match was.next_if(|(changed, _)| changed.as_str() == key) {
                Some((changed, revision)) => {
                    found.extend(revision.map(|revision| (changed.clone(), revision)));
                }
                None => found.push((Key::new(key), row.revision)),
            }
            Ok(Next::Go)
        })?;
        for (gone, revision) in was {
            if enough(&found) {
                break;
            }
            found.extend(revision.map(|revision| (gone.clone(), revision)));
        }
        let more = enough(&found);
        found.truncate(limit);
        Ok((found, more))
    }

    /// What changed between a revision and the snapshot.
    fn undo(&self, snapshot: &StoreSnapshot, at: Revision) -> Result<Arc<Undo>, Error> {
        let state = snapshot.state()?;
        let from = state.live_at.min(at).max(snapshot.first);
        // What a reader with another snapshot found may be too much or too little for ours.
        let fits = |undo: &Arc<Undo>| undo.from <= from && undo.to <= state.newest;
        let kept = self.take(at).filter(fits);
        let mut undo = kept.unwrap_or_else(|| Arc::new(Undo::new(at, from)));
        if undo.to < state.newest {
            Arc::make_mut(&mut undo).read(snapshot, state.newest)?;
        }
        self.keep(undo.clone());
        Ok(undo)
    }

    fn take(&self, at: Revision) -> Option<Arc<Undo>> {
        let mut kept = lock(&self.0);
        let place = kept.iter().position(|undo| undo.at == at)?;
        kept.remove(place)
    }

    fn keep(&self, undo: Arc<Undo>) {
        let mut kept = lock(&self.0);
        kept.retain(|other| other.at != undo.at);
        kept.push_front(undo);
        kept.truncate(KEPT_MAX);
    }
}
