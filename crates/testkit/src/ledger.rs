//! The ledger: intents and outcomes of writes, verified against the history.
//!
//! A writer records each intent before it sends the request and each outcome after the response.
//! Whenever the server was killed, the history must hold every acknowledged write, no write without
//! an intent, and each write of unknown outcome at most once (R1, R2, R42).

use std::collections::BTreeMap;

use headwater_api::Revision;

use crate::history::{History, ObjectChange};

/// What a write should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteIntent {
    /// Store the object with this text, which no other write uses.
    Put(String),
    /// Delete the version with this revision.
    Delete(Revision),
}

/// The outcome that the writer observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The write succeeded, at this revision; a delete has none.
    Done(Option<Revision>),
    /// The write was rejected.
    Refused,
    /// There was no response.
    Unknown,
}

/// One record of the ledger.
#[derive(Clone, Debug)]
pub struct WriteRecord {
    /// `namespace/name`.
    pub key: String,
    /// What the write should do.
    pub intent: WriteIntent,
    /// What the writer observed.
    pub outcome: WriteOutcome,
}

impl WriteRecord {
    /// Whether a change matches the intent of this record.
    fn means(&self, change: &ObjectChange, mark: &dyn Fn(&ObjectChange) -> Option<String>) -> bool {
        let is_meant = match &self.intent {
            WriteIntent::Put(text) => mark(change).as_ref() == Some(text),
            WriteIntent::Delete(at) => {
                let was = change.before.as_ref().map(|before| before.revision);
                change.after.is_none() && was == Some(*at)
            }
        };
        is_meant && change.key == self.key
    }
}

/// Verifies that each record and each change after a revision is accounted for exactly once. `mark`
/// returns the writer's text of a change.
pub fn verify(
    entries: &[WriteRecord],
    history: &History,
    after: Revision,
    mark: &dyn Fn(&ObjectChange) -> Option<String>,
) -> Result<(), String> {
    let mut by_key: BTreeMap<&str, Vec<(Revision, &ObjectChange, bool)>> = BTreeMap::new();
    for (revision, change) in history.after(after) {
        by_key.entry(&change.key).or_default().push((revision, change, false));
    }
    for entry in entries {
        let changes = by_key.get_mut(entry.key.as_str()).map_or(&mut [][..], Vec::as_mut_slice);
        let mut found: Vec<_> =
            changes.iter_mut().filter(|(_, change, _)| entry.means(change, mark)).collect();
        let at: Vec<Revision> = found.iter().map(|(revision, ..)| *revision).collect();
        let fits = match entry.outcome {
            WriteOutcome::Done(Some(revision)) => at == [revision],
            WriteOutcome::Done(None) => at.len() == 1,
            WriteOutcome::Refused => at.is_empty(),
            WriteOutcome::Unknown => at.len() <= 1,
        };
        if !fits {
            return Err(format!("{entry:?} happened at {at:?}"));
        }
        found.iter_mut().for_each(|(_, _, accounted)| *accounted = true);
    }
    let mut invented = by_key.values().flatten().filter(|(_, _, accounted)| !accounted);
    match invented.next() {
        Some((revision, change, _)) => Err(format!("no write intended {change:?} at {revision}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::ObjectBody;

    fn body(text: &str) -> ObjectBody {
        ObjectBody::new(json!({"metadata": {"namespace": "ns", "name": "a"}, "text": text}))
    }

    fn mark(change: &ObjectChange) -> Option<String> {
        change.after.as_ref()?.value()["text"].as_str().map(str::to_owned)
    }

    fn entry(intent: WriteIntent, outcome: WriteOutcome) -> WriteRecord {
        WriteRecord { key: "ns/a".into(), intent, outcome }
    }

    fn put(text: &str, outcome: WriteOutcome) -> WriteRecord {
        entry(WriteIntent::Put(text.into()), outcome)
    }

    #[track_caller]
    fn check(entries: &[WriteRecord], is_right: bool) {
        let mut history = History::default();
        history.record(Revision(2), "ns/a", Some(body("one")));
        history.record(Revision(3), "ns/a", Some(body("two")));
        history.record(Revision(4), "ns/a", None);
        let settled = verify(entries, &history, Revision(2), &mark);
        assert_eq!(settled.is_ok(), is_right, "{settled:?}");
    }

    #[test]
    fn every_write_and_every_change_is_accounted_for_once() {
        let done = WriteOutcome::Done(Some(Revision(3)));
        let deleted = entry(WriteIntent::Delete(Revision(3)), WriteOutcome::Done(None));
        check(&[put("two", done), deleted.clone()], true);
        check(&[put("two", WriteOutcome::Unknown), deleted.clone()], true);
        check(&[put("two", done), put("x", WriteOutcome::Unknown), deleted.clone()], true);
        check(&[put("two", done), put("x", WriteOutcome::Refused), deleted.clone()], true);
        // Lost, at another revision, rejected but stored, stored without an intent.
        check(
            &[put("two", done), put("x", WriteOutcome::Done(Some(Revision(9)))), deleted.clone()],
            false,
        );
        check(&[put("two", WriteOutcome::Done(Some(Revision(4)))), deleted.clone()], false);
        check(&[put("two", WriteOutcome::Refused), deleted.clone()], false);
        check(&[deleted], false);
        check(&[put("two", done)], false);
    }
}
