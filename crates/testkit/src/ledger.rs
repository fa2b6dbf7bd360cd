//! The ledger: what writers meant to do and what they were told, against what happened.
//!
//! A writer notes each intent before it sends and each outcome after the answer. However the server
//! ended in between, the history must then hold every acknowledged write, no write that nobody
//! meant, and each write of unknown outcome at most once (R1, R2, R42).

use std::collections::BTreeMap;

use headwater_api::Revision;

use crate::history::{Change, Truth};

/// What one write was to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Make the object look like this; the text is in the object and in no other write.
    Put(String),
    /// Delete the version of this revision.
    Delete(Revision),
}

/// What the writer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done, at this revision; a delete is told without one.
    Done(Option<Revision>),
    /// It was not done.
    Refused,
    /// The answer did not come.
    Unknown,
}

/// One line of the ledger.
#[derive(Clone, Debug)]
pub struct Entry {
    /// `namespace/name`.
    pub key: String,
    /// What was meant.
    pub intent: Intent,
    /// What was told.
    pub outcome: Outcome,
}

impl Entry {
    /// Whether a change is what this entry meant.
    fn means(&self, change: &Change, mark: &dyn Fn(&Change) -> Option<String>) -> bool {
        let is_meant = match &self.intent {
            Intent::Put(text) => mark(change).as_ref() == Some(text),
            Intent::Delete(at) => {
                let was = change.before.as_ref().map(|before| before.revision);
                change.after.is_none() && was == Some(*at)
            }
        };
        is_meant && change.key == self.key
    }
}

/// Compares entries with the history after a revision. `mark` finds a writer's text in a change. Each
/// entry and each change is accounted for exactly once.
pub fn settle(
    entries: &[Entry],
    truth: &Truth,
    after: Revision,
    mark: &dyn Fn(&Change) -> Option<String>,
) -> Result<(), String> {
    let mut by_key: BTreeMap<&str, Vec<(Revision, &Change, bool)>> = BTreeMap::new();
    for (revision, change) in truth.after(after) {
        by_key.entry(&change.key).or_default().push((revision, change, false));
    }
    for entry in entries {
        let changes = by_key.get_mut(entry.key.as_str()).map_or(&mut [][..], Vec::as_mut_slice);
        let mut found: Vec<_> =
            changes.iter_mut().filter(|(_, change, _)| entry.means(change, mark)).collect();
        let at: Vec<Revision> = found.iter().map(|(revision, ..)| *revision).collect();
        let fits = match entry.outcome {
            Outcome::Done(Some(revision)) => at == [revision],
            Outcome::Done(None) => at.len() == 1,
            Outcome::Refused => at.is_empty(),
            Outcome::Unknown => at.len() <= 1,
        };
        if !fits {
            return Err(format!("{entry:?} happened at {at:?}"));
        }
        found.iter_mut().for_each(|(_, _, accounted)| *accounted = true);
    }
    let mut invented = by_key.values().flatten().filter(|(_, _, accounted)| !accounted);
    match invented.next() {
        Some((revision, change, _)) => Err(format!("nobody meant {change:?} at {revision}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::Body;

    fn body(text: &str) -> Body {
        Body::new(json!({"metadata": {"namespace": "ns", "name": "a"}, "text": text}))
    }

    fn mark(change: &Change) -> Option<String> {
        change.after.as_ref()?.value()["text"].as_str().map(str::to_owned)
    }

    fn entry(intent: Intent, outcome: Outcome) -> Entry {
        Entry { key: "ns/a".into(), intent, outcome }
    }

    fn put(text: &str, outcome: Outcome) -> Entry {
        entry(Intent::Put(text.into()), outcome)
    }

    #[track_caller]
    fn check(entries: &[Entry], is_right: bool) {
        let mut truth = Truth::default();
        truth.record(Revision(2), "ns/a", Some(body("one")));
        truth.record(Revision(3), "ns/a", Some(body("two")));
        truth.record(Revision(4), "ns/a", None);
        let settled = settle(entries, &truth, Revision(2), &mark);
        assert_eq!(settled.is_ok(), is_right, "{settled:?}");
    }

    #[test]
    fn every_write_and_every_change_is_accounted_for_once() {
        let done = Outcome::Done(Some(Revision(3)));
        let deleted = entry(Intent::Delete(Revision(3)), Outcome::Done(None));
        check(&[put("two", done), deleted.clone()], true);
        check(&[put("two", Outcome::Unknown), deleted.clone()], true);
        check(&[put("two", done), put("x", Outcome::Unknown), deleted.clone()], true);
        check(&[put("two", done), put("x", Outcome::Refused), deleted.clone()], true);
        // Lost, at another revision, refused but done, invented.
        check(
            &[put("two", done), put("x", Outcome::Done(Some(Revision(9)))), deleted.clone()],
            false,
        );
        check(&[put("two", Outcome::Done(Some(Revision(4)))), deleted.clone()], false);
        check(&[put("two", Outcome::Refused), deleted.clone()], false);
        check(&[deleted], false);
        check(&[put("two", done)], false);
    }
}
