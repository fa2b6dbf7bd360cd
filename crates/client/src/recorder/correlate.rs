//! Decides which events are written, counted or dropped.
//!
//! River: inside the recorder; no clock, no waiting.
//! Promise: each cache has at most 4096 entries; the least recently used entry is evicted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::PendingEvent;

/// Similar events with this many different messages are combined.
const SIMILAR: usize = 10;
/// The time window for similar events.
const WINDOW: Duration = Duration::from_secs(600);
/// The burst of events per component and object.
const BUCKET: f64 = 25.0;
/// The time in which one more event is allowed.
const REFILL: Duration = Duration::from_secs(300);
const MEMORY: usize = 4096;

#[derive(Default)]
pub(super) struct Correlator {
    similar: LruMap<SimilarKey, SimilarEvents>,
    written: LruMap<EventKey, EventRecord>,
    buckets: LruMap<(Arc<str>, super::ObjectReference), (f64, Instant)>,
}

/// The key of events that share one count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    similar: SimilarKey,
    /// `None` once similar events are combined.
    message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SimilarKey {
    component: Arc<str>,
    about: super::ObjectReference,
    event: super::EventType,
    reason: String,
}

struct SimilarEvents {
    messages: BTreeSet<String>,
    last: Instant,
}

struct EventRecord {
    count: u32,
    first: Timestamp,
    name: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Correlation {
    Write {
        event: Box<PendingEvent>,
        key: Box<EventKey>,
        count: u32,
        /// The name of the Event that exists already.
        known: Option<String>,
    },
    Drop,
}

impl Correlator {
    pub(super) fn decide(&mut self, event: PendingEvent, now: Instant) -> Correlation {
        let similar = SimilarKey {
            component: Arc::clone(&event.component),
            about: without_version(&event.about),
            event: event.event,
            reason: event.reason.clone(),
        };
        let combined = self.is_flood(&similar, &event.message, now);
        let (message, event) = match combined {
            true => (None, combine(event)),
            false => (Some(event.message.clone()), event),
        };
        let key = EventKey { similar, message };
        let (count, known) = self.count(&key, event.at);
        if !self.has_room(&event, now) {
            return Correlation::Drop;
        }
        Correlation::Write { event: Box::new(event), key: Box::new(key), count, known }
    }

    /// Whether there are so many similar events that they are combined.
    fn is_flood(&mut self, key: &SimilarKey, message: &str, now: Instant) -> bool {
        let fresh = || SimilarEvents { messages: BTreeSet::new(), last: now };
        let similar = self.similar.get_or_insert(key, fresh);
        if now.saturating_duration_since(similar.last) > WINDOW {
            similar.messages.clear();
        }
        similar.last = now;
        if similar.messages.len() < SIMILAR {
            similar.messages.insert(message.to_owned());
        }
        similar.messages.len() >= SIMILAR
    }

    fn count(&mut self, key: &EventKey, at: Timestamp) -> (u32, Option<String>) {
        let fresh = || EventRecord { count: 0, first: at, name: None };
        let written = self.written.get_or_insert(key, fresh);
        written.count += 1;
        (written.count, written.name.clone())
    }

    fn has_room(&mut self, event: &PendingEvent, now: Instant) -> bool {
        let key = (Arc::clone(&event.component), without_version(&event.about));
        let (left, at) = self.buckets.get_or_insert(&key, || (BUCKET, now));
        let passed = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + passed / REFILL.as_secs_f64()).min(BUCKET);
        *at = now;
        if *left < 1.0 {
            return false;
        }
        *left -= 1.0;
        true
    }

    /// The time of the first event with this key.
    pub(super) fn first(&mut self, key: &EventKey) -> Option<Timestamp> {
        self.written.get(key).map(|written| written.first)
    }

    /// Remembers the name of the Event that was written.
    pub(super) fn written(&mut self, key: &EventKey, name: &str) {
        if let Some(written) = self.written.get(key) {
            written.name = Some(name.to_owned());
        }
    }
}

/// Events about different versions of an object are about the same object.
fn without_version(about: &super::ObjectReference) -> super::ObjectReference {
    super::ObjectReference { resource_version: String::new(), ..about.clone() }
}

fn combine(mut event: PendingEvent) -> PendingEvent {
    event.message = format!("(combined from similar events): {}", event.message);
    event
}

/// A map with a maximum size that evicts the least recently used entry.
struct LruMap<K, V> {
    entries: HashMap<K, (u64, V)>,
    order: BTreeMap<u64, K>,
    next: u64,
}

impl<K, V> Default for LruMap<K, V> {
    fn default() -> Self {
        LruMap { entries: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }
}

impl<K: Hash + Eq + Clone, V> LruMap<K, V> {
    fn touch(&mut self, key: &K) {
        if let Some((place, _)) = self.entries.get_mut(key) {
            self.order.remove(place);
            *place = self.next;
            self.order.insert(self.next, key.clone());
            self.next += 1;
        }
    }

    fn get(&mut self, key: &K) -> Option<&mut V> {
        self.touch(key);
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    fn get_or_insert(&mut self, key: &K, fresh: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            if self.entries.len() >= MEMORY
                && let Some((_, oldest)) = self.order.pop_first()
            {
                self.entries.remove(&oldest);
            }
            self.entries.insert(key.clone(), (self.next, fresh()));
            self.order.insert(self.next, key.clone());
            self.next += 1;
        }
        self.get(key).expect("it was there or was inserted")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EventType, ObjectReference};
    use super::*;

    fn event(name: &str, message: &str) -> PendingEvent {
        PendingEvent {
            component: "me".into(),
            about: ObjectReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                namespace: "n".into(),
                name: name.into(),
                uid: format!("uid-{name}"),
                resource_version: "1".into(),
            },
            event: EventType::Normal,
            reason: "R".into(),
            message: message.into(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn decide(
        correlator: &mut Correlator,
        event: PendingEvent,
        now: Instant,
    ) -> Option<(u32, Option<String>, String)> {
        match correlator.decide(event, now) {
            Correlation::Write { event, key, count, known } => {
                correlator.written(&key, &format!("record-{count}"));
                Some((count, known, event.message.clone()))
            }
            Correlation::Drop => None,
        }
    }

    /// C26.3
    #[test]
    fn an_equal_event_raises_the_count_of_the_existing_record() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        assert_eq!(decide(&mut correlator, event("a", "m"), now), Some((1, None, "m".into())));
        let mut newer = event("a", "m");
        newer.about.resource_version = "2".into();
        let again = decide(&mut correlator, newer, now);
        assert_eq!(again, Some((2, Some("record-1".into()), "m".into())), "the same object");
        assert_eq!(decide(&mut correlator, event("b", "m"), now).unwrap().0, 1, "another object");
        assert_eq!(decide(&mut correlator, event("a", "x"), now).unwrap().0, 1, "another message");
    }

    /// C26.4
    #[test]
    fn from_the_tenth_message_on_similar_events_are_combined() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        for number in 0..9 {
            let (count, known, message) =
                decide(&mut correlator, event("a", &number.to_string()), now).unwrap();
            assert_eq!((count, known, message), (1, None, number.to_string()));
        }
        let (count, known, message) = decide(&mut correlator, event("a", "10th"), now).unwrap();
        assert_eq!((count, known), (1, None));
        assert_eq!(message, "(combined from similar events): 10th");
        let (count, known, _) = decide(&mut correlator, event("a", "11th"), now).unwrap();
        assert_eq!((count, known), (2, Some("record-1".into())), "one record for all of them");
        let later = now + WINDOW + Duration::from_secs(1);
        let (_, _, message) = decide(&mut correlator, event("a", "later"), later).unwrap();
        assert_eq!(message, "later", "the window is over");
    }

    /// C26.5
    #[test]
    fn a_flood_about_one_object_is_dropped_after_25_and_let_through_one_in_five_minutes() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        let written =
            (0..100).filter_map(|_| decide(&mut correlator, event("a", "m"), now)).count();
        assert_eq!(written, 25);
        assert!(
            decide(&mut correlator, event("b", "m"), now).is_some(),
            "others are not concerned"
        );
        let later = now + REFILL;
        assert!(decide(&mut correlator, event("a", "m"), later).is_some());
        assert!(decide(&mut correlator, event("a", "m"), later).is_none());
    }

    /// C26.6
    #[test]
    fn memory_is_bounded_and_the_least_recently_used_entry_is_evicted() {
        let mut correlator = Correlator::default();
        let now = Instant::now();
        decide(&mut correlator, event("first", "m"), now);
        for number in 0..MEMORY - 1 {
            decide(&mut correlator, event(&format!("o{number}"), "m"), now);
        }
        assert_eq!(decide(&mut correlator, event("first", "m"), now).unwrap().0, 2, "used again");
        for number in 0..MEMORY - 1 {
            decide(&mut correlator, event(&format!("p{number}"), "m"), now);
        }
        assert_eq!(decide(&mut correlator, event("first", "m"), now).unwrap().0, 3);
        assert_eq!(decide(&mut correlator, event("o1", "m"), now).unwrap().0, 1, "forgotten");
        assert_eq!(correlator.written.entries.len(), MEMORY);
        assert_eq!(correlator.buckets.entries.len(), MEMORY);
        assert_eq!(correlator.similar.order.len(), MEMORY);
    }
}
