//! Series of repeated events, for `events.k8s.io/v1`.
//!
//! River: inside the recorder; no clock, no waiting.
//! Promise: the first repetition starts a series; an active series is updated every thirty minutes;
//! a series without events for six minutes is finished.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::{EventType, ObjectReference, PendingEvent};

const REFRESH: Duration = Duration::from_secs(30 * 60);
const FINISHED: Duration = Duration::from_secs(6 * 60);
const MEMORY: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SeriesId {
    component: Arc<str>,
    about: ObjectReference,
    event: EventType,
    reason: String,
    message: String,
}

/// The next write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SeriesWrite {
    Nothing,
    Create { id: SeriesId, event: PendingEvent },
    Update { id: SeriesId, path: String, count: u32, at: Timestamp },
}

#[derive(Default)]
pub(super) struct SeriesMemory {
    entries: HashMap<SeriesId, Series>,
}

struct Series {
    path: Option<String>,
    count: u32,
    last: Instant,
    last_at: Timestamp,
    refreshed: Instant,
    /// The count that was written last.
    written_count: u32,
}

impl SeriesMemory {
    pub(super) fn record(&mut self, event: PendingEvent, now: Instant) -> SeriesWrite {
        let about = ObjectReference { resource_version: String::new(), ..event.about.clone() };
        let id = SeriesId {
            component: Arc::clone(&event.component),
            about,
            event: event.event,
            reason: event.reason.clone(),
            message: event.message.clone(),
        };
        let entry = self.entries.get_mut(&id);
        match entry {
            Some(entry) if now.saturating_duration_since(entry.last) < FINISHED => {
                entry.count += 1;
                entry.last = now;
                entry.last_at = event.at;
                match (&entry.path, entry.count) {
                    // The first repetition starts the series; later ones are written by updates.
                    (Some(path), 2) => {
                        entry.written_count = 2;
                        entry.refreshed = now;
                        let (path, at) = (path.clone(), event.at);
                        SeriesWrite::Update { id, path, count: 2, at }
                    }
                    _ => SeriesWrite::Nothing,
                }
            }
            _ => {
                let entry = Series {
                    path: None,
                    count: 1,
                    last: now,
                    last_at: event.at,
                    refreshed: now,
                    written_count: 1,
                };
                self.make_room();
                self.entries.insert(id.clone(), entry);
                SeriesWrite::Create { id, event }
            }
        }
    }

    /// Evicts the series that had no event for the longest time.
    fn make_room(&mut self) {
        if self.entries.len() < MEMORY {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last);
        if let Some(id) = oldest.map(|(id, _)| id.clone()) {
            self.entries.remove(&id);
        }
    }

    pub(super) fn written(&mut self, id: &SeriesId, path: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.path = Some(path.to_owned());
        }
    }

    pub(super) fn forget(&mut self, id: &SeriesId) {
        self.entries.remove(id);
    }

    /// When the next write is due without a new event.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.entries
            .values()
            .map(|entry| (entry.last + FINISHED).min(entry.refreshed + REFRESH))
            .min()
    }

    /// The write that is due: an update, or the final count of a finished series.
    pub(super) fn due(&mut self, now: Instant) -> SeriesWrite {
        let finished = |entry: &Series| now.saturating_duration_since(entry.last) >= FINISHED;
        let stale = |entry: &Series| now.saturating_duration_since(entry.refreshed) >= REFRESH;
        let due = self.entries.iter().find(|(_, entry)| finished(entry) || stale(entry));
        let Some(id) = due.map(|(id, _)| id.clone()) else { return SeriesWrite::Nothing };
        let Some(entry) = self.entries.get_mut(&id) else { return SeriesWrite::Nothing };
        let over = finished(entry);
        entry.refreshed = now;
        let news = entry.count > entry.written_count || (!over && entry.count > 1);
        entry.written_count = entry.count;
        let step = match (&entry.path, news) {
            (Some(path), true) => SeriesWrite::Update {
                id: id.clone(),
                path: path.clone(),
                count: entry.count,
                at: entry.last_at,
            },
            _ => SeriesWrite::Nothing,
        };
        if over {
            self.entries.remove(&id);
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> PendingEvent {
        PendingEvent {
            component: "me".into(),
            about: ObjectReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                namespace: "n".into(),
                name: "a".into(),
                uid: "u".into(),
                resource_version: "1".into(),
            },
            event: EventType::Warning,
            reason: "R".into(),
            message: "m".into(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    /// C26.8
    #[test]
    fn repeated_events_become_a_series_that_is_updated_and_finished() {
        let mut book = SeriesMemory::default();
        let start = Instant::now();
        let minutes = |count: u64| start + Duration::from_secs(count * 60);
        let SeriesWrite::Create { id, .. } = book.record(event(), start) else { panic!() };
        book.written(&id, "path");
        let step = book.record(event(), minutes(1));
        assert!(
            matches!(step, SeriesWrite::Update { count: 2, .. }),
            "the series begins: {step:?}"
        );
        for minute in 2..31 {
            assert_eq!(book.record(event(), minutes(minute)), SeriesWrite::Nothing);
        }
        assert_eq!(book.next_due(), Some(minutes(31)));
        let step = book.due(minutes(31));
        assert!(matches!(step, SeriesWrite::Update { count: 31, .. }), "refreshed: {step:?}");
        assert_eq!(book.record(event(), minutes(32)), SeriesWrite::Nothing);
        assert_eq!(book.next_due(), Some(minutes(38)));
        let step = book.due(minutes(38));
        assert!(matches!(step, SeriesWrite::Update { count: 32, .. }), "finished: {step:?}");
        assert_eq!(book.next_due(), None);
        assert!(
            matches!(book.record(event(), minutes(39)), SeriesWrite::Create { .. }),
            "a new one"
        );
    }

    #[test]
    fn an_event_that_does_not_repeat_is_written_once() {
        let mut book = SeriesMemory::default();
        let start = Instant::now();
        let SeriesWrite::Create { id, .. } = book.record(event(), start) else { panic!() };
        book.written(&id, "path");
        assert_eq!(book.due(start + FINISHED), SeriesWrite::Nothing);
        assert_eq!(book.next_due(), None);
    }
}
