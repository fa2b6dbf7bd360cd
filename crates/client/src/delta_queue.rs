//! The delta queue: changes that the reflector received and the store has not applied yet.
//!
//! River: reflector → **delta queue** → indexer.
//! Promise: deltas leave in the order they entered and none is merged or dropped, so the store
//! always equals the server's state at one version. There is one consumer. Producers wait while
//! 2000 deltas are pending, and the reflector reads nothing from the network meanwhile.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::change::Gone;
use crate::key::Key;
use crate::list_watch::Undecodable;
use crate::object::{AnyObject, Cached, typed};
use crate::version::ResourceVersion;

/// One change that the store has not applied yet.
pub(crate) enum Delta<K: ?Sized> {
    Set { key: Key, object: Arc<K> },
    Deleted(Gone<K>),
    ReplacedAll(Replacement<K>),
    SyncAll,
    Bookmark(ResourceVersion),
}

impl<K: ?Sized> Delta<K> {
    /// The key of the object; `None` for deltas about the entire collection.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Delta::Set { key, .. } => Some(key),
            Delta::Deleted(gone) => Some(gone.key()),
            Delta::ReplacedAll(_) | Delta::SyncAll | Delta::Bookmark(_) => None,
        }
    }
}

/// The complete state of the server at one version.
pub(crate) struct Replacement<K: ?Sized> {
    pub(crate) items: Vec<(Key, Arc<K>)>,
    pub(crate) undecodable: Vec<Undecodable>,
    pub(crate) version: ResourceVersion,
}

/// Deltas that the store applies in one step: changes of different objects, or one delta about the
/// entire collection.
pub(crate) struct Batch<K: ?Sized> {
    pub(crate) deltas: Vec<Delta<K>>,
    /// Whether it is the initial state.
    pub(crate) initial: bool,
}

impl Batch<AnyObject> {
    /// The same with the type of the objects.
    pub(crate) fn typed<K: Cached>(self) -> Batch<K> {
        let deltas = self.deltas.into_iter().map(|delta| match delta {
            Delta::Set { key, object } => Delta::Set { key, object: typed(object) },
            Delta::Deleted(gone) => Delta::Deleted(gone.map(typed)),
            Delta::ReplacedAll(Replacement { items, undecodable, version }) => {
                let items = items.into_iter().map(|(key, object)| (key, typed(object))).collect();
                Delta::ReplacedAll(Replacement { items, undecodable, version })
            }
            Delta::SyncAll => Delta::SyncAll,
            Delta::Bookmark(version) => Delta::Bookmark(version),
        });
        Batch { deltas: deltas.collect(), initial: self.initial }
    }
}

/// Producers wait while this many deltas are pending.
pub(crate) const PENDING_MAX: usize = 2000;
/// The maximum number of deltas in a batch.
pub(crate) const BATCH_MAX: usize = 1000;

/// Progress of the initial state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Population {
    /// Nothing was enqueued yet.
    Empty,
    /// The first replacement is enqueued.
    Pending,
    /// The first replacement was processed, or a change came first and there is none to wait for.
    Done,
}

/// Makes a queue and returns its two ends.
pub(crate) fn queue<K: ?Sized>() -> (Producer<K>, Consumer<K>) {
    let queue = Arc::new(DeltaQueue {
        pending: Mutex::new(Pending {
            deltas: VecDeque::new(),
            population: Population::Empty,
            producer_dropped: false,
            consumer_dropped: false,
        }),
        filled: Notify::new(),
        space: Notify::new(),
    });
    (Producer { queue: Arc::clone(&queue) }, Consumer { queue })
}

struct DeltaQueue<K: ?Sized> {
    pending: Mutex<Pending<K>>,
    filled: Notify,
    space: Notify,
}

impl<K: ?Sized> DeltaQueue<K> {
    fn lock(&self) -> MutexGuard<'_, Pending<K>> {
        self.pending.lock().expect("no code panics while it is held")
    }
}

struct Pending<K: ?Sized> {
    deltas: VecDeque<Delta<K>>,
    population: Population,
    producer_dropped: bool,
    consumer_dropped: bool,
}

impl<K: ?Sized> Pending<K> {
    fn put(&mut self, delta: Delta<K>) {
        if self.population == Population::Empty {
            self.population = match &delta {
                Delta::ReplacedAll(_) => Population::Pending,
                Delta::Set { .. } | Delta::Deleted(_) => Population::Done,
                Delta::SyncAll | Delta::Bookmark(_) => Population::Empty,
            };
        }
        self.deltas.push_back(delta);
    }

    /// Takes the next batch. It contains each key at most once.
    fn take(&mut self) -> Option<Batch<K>> {
        let mut deltas = Vec::new();
        let mut keys = HashSet::new();
        while deltas.len() < BATCH_MAX {
            let Some(key) = self.deltas.front().and_then(Delta::key) else { break };
            if !keys.insert(key.clone()) {
                break;
            }
            deltas.extend(self.deltas.pop_front());
        }
        if deltas.is_empty() {
            deltas.push(self.deltas.pop_front()?);
        }
        // Frees the memory of a burst.
        if self.deltas.capacity() > 8 * BATCH_MAX {
            self.deltas.shrink_to(self.deltas.len() * 2);
        }
        Some(Batch { deltas, initial: self.population == Population::Pending })
    }

    fn processed(&mut self) {
        if self.population == Population::Pending {
            self.population = Population::Done;
        }
    }
}

/// The consumer was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// The reflector's end. Dropping it closes the queue: the consumer receives the pending deltas and
/// then the end.
pub(crate) struct Producer<K: ?Sized> {
    queue: Arc<DeltaQueue<K>>,
}

impl<K: ?Sized + Send + Sync + 'static> Producer<K> {
    /// Enqueues a delta; waits while too many are pending. Dropping the future drops the delta.
    pub(crate) async fn put(&self, delta: Delta<K>) -> Result<(), Closed> {
        let mut delta = Some(delta);
        loop {
            let space = self.queue.space.notified();
            tokio::pin!(space);
            space.as_mut().enable();
            if self.try_put(&mut delta)? {
                return Ok(());
            }
            space.await;
        }
    }

    /// Enqueues the delta and returns true, or returns false if the queue is full.
    fn try_put(&self, delta: &mut Option<Delta<K>>) -> Result<bool, Closed> {
        let mut pending = self.queue.lock();
        if pending.consumer_dropped {
            return Err(Closed);
        }
        if pending.deltas.len() >= PENDING_MAX {
            return Ok(false);
        }
        if let Some(delta) = delta.take() {
            pending.put(delta);
        }
        drop(pending);
        self.queue.filled.notify_one();
        Ok(true)
    }

    /// A function that returns the number of pending deltas; zero once the queue is dropped.
    pub(crate) fn len_reader(&self) -> Box<dyn Fn() -> usize + Send + Sync> {
        let queue = Arc::downgrade(&self.queue);
        Box::new(move || queue.upgrade().map_or(0, |queue| queue.lock().deltas.len()))
    }
}

impl<K: ?Sized> Drop for Producer<K> {
    fn drop(&mut self) {
        self.queue.lock().producer_dropped = true;
        self.queue.filled.notify_one();
    }
}

/// The store's end. It is not `Clone`: there is one consumer.
pub(crate) struct Consumer<K: ?Sized> {
    queue: Arc<DeltaQueue<K>>,
}

impl<K: ?Sized> Drop for Consumer<K> {
    fn drop(&mut self) {
        self.queue.lock().consumer_dropped = true;
        self.queue.space.notify_one();
    }
}

/// The result of [`Consumer::process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Done,
    Nothing,
    Closed,
}

impl<K: ?Sized> Consumer<K> {
    /// Applies the next batch, if there is one. The producer may enqueue meanwhile.
    pub(crate) fn process(&mut self, apply: impl FnOnce(Batch<K>)) -> Work {
        let mut pending = self.queue.lock();
        let Some(batch) = pending.take() else {
            return if pending.producer_dropped { Work::Closed } else { Work::Nothing };
        };
        drop(pending);
        self.queue.space.notify_one();
        apply(batch);
        self.queue.lock().processed();
        Work::Done
    }

    /// Waits until a delta is pending or the producer was dropped. Cancel-safe.
    pub(crate) async fn ready(&mut self) {
        loop {
            let filled = self.queue.filled.notified();
            tokio::pin!(filled);
            filled.as_mut().enable();
            if self.has_work() {
                return;
            }
            filled.await;
        }
    }

    fn has_work(&self) -> bool {
        let pending = self.queue.lock();
        !pending.deltas.is_empty() || pending.producer_dropped
    }

    /// Whether the initial state has been processed.
    pub(crate) fn has_synced(&self) -> bool {
        self.queue.lock().population == Population::Done
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.lock().deltas.len()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::object::fixture::object;

    fn set(name: &str, version: &str) -> Delta<ConfigMap> {
        Delta::Set { key: Key::cluster(name), object: object(name, version) }
    }

    fn deleted(name: &str, version: &str) -> Delta<ConfigMap> {
        Delta::Deleted(Gone::seen(Key::cluster(name), object(name, version)))
    }

    fn replace(items: &[(&str, &str)], version: &str) -> Delta<ConfigMap> {
        let items = items.iter().map(|(name, version)| (Key::cluster(name), object(name, version)));
        let (items, undecodable) = (items.collect(), Vec::new());
        Delta::ReplacedAll(Replacement { items, undecodable, version: version.into() })
    }

    fn show(delta: &Delta<ConfigMap>) -> String {
        let at = |object: &ConfigMap| object.resource_version().to_string();
        match delta {
            Delta::Set { key, object } => format!("Set {key}@{}", at(object)),
            Delta::Deleted(gone) => format!("Deleted {}@{}", gone.key(), at(gone.last().unwrap())),
            Delta::ReplacedAll(all) => {
                let names: Vec<&str> = all.items.iter().map(|(key, _)| key.as_str()).collect();
                format!("ReplacedAll [{}]@{}", names.join(" "), all.version)
            }
            Delta::SyncAll => "SyncAll".into(),
            Delta::Bookmark(version) => format!("Bookmark@{version}"),
        }
    }

    /// A queue that contains these deltas.
    fn filled(deltas: Vec<Delta<ConfigMap>>) -> (Producer<ConfigMap>, Consumer<ConfigMap>) {
        let (producer, consumer) = queue();
        for delta in deltas {
            producer.queue.lock().put(delta);
        }
        (producer, consumer)
    }

    /// Processes all batches; each is preceded by `initial` if it is.
    fn batches(consumer: &mut Consumer<ConfigMap>) -> Vec<Vec<String>> {
        let mut batches = Vec::new();
        let take = |batch: Batch<ConfigMap>| {
            let initial = batch.initial.then(|| "initial".to_owned());
            batches.push(initial.into_iter().chain(batch.deltas.iter().map(show)).collect());
        };
        let mut take = take;
        while consumer.process(&mut take) == Work::Done {}
        batches
    }

    #[track_caller]
    fn check(deltas: Vec<Delta<ConfigMap>>, expected: &[&[&str]]) {
        let (_producer, mut consumer) = filled(deltas);
        assert_eq!(batches(&mut consumer), expected);
    }

    /// C9.1, C9.2
    #[test]
    fn deltas_leave_in_the_order_they_entered_and_none_is_merged() {
        check(
            vec![set("b", "1"), set("a", "2"), set("b", "3"), set("b", "4"), deleted("x", "5")],
            &[&["Set b@1", "Set a@2"], &["Set b@3"], &["Set b@4", "Deleted x@5"]],
        );
    }

    /// C9.3, C9.4, C9.5, C9.6
    #[test]
    fn replacement_resync_and_bookmark_are_one_delta_each() {
        check(
            vec![
                replace(&[("b", "1"), ("a", "2")], "9"),
                Delta::SyncAll,
                Delta::Bookmark("12".into()),
            ],
            &[&["initial", "ReplacedAll [b a]@9"], &["SyncAll"], &["Bookmark@12"]],
        );
    }

    /// C9.7
    #[test]
    fn a_batch_ends_before_a_repeated_key_and_before_other_kinds() {
        let bookmark = Delta::Bookmark("3".into());
        check(
            vec![set("a", "1"), set("b", "2"), bookmark, set("a", "4"), set("a", "5")],
            &[&["Set a@1", "Set b@2"], &["Bookmark@3"], &["Set a@4"], &["Set a@5"]],
        );
        let many = (0..2500).map(|number| set(&format!("o{number}"), "1")).collect();
        let (_producer, mut consumer) = filled(many);
        let sizes: Vec<usize> = batches(&mut consumer).iter().map(Vec::len).collect();
        assert_eq!(sizes, [1000, 1000, 500]);
    }

    /// C9.8
    #[test]
    fn the_first_batch_is_the_initial_state_alone() {
        check(
            vec![replace(&[("a", "1"), ("b", "2")], "2"), set("c", "3")],
            &[&["initial", "ReplacedAll [a b]@2"], &["Set c@3"]],
        );
    }

    /// C9.9
    #[test]
    fn synced_means_that_the_initial_state_was_processed() {
        let (producer, mut consumer) = queue();
        assert!(!consumer.has_synced(), "nothing was enqueued");
        producer.queue.lock().put(replace(&[("a", "1")], "1"));
        let queue = Arc::clone(&consumer.queue);
        consumer.process(|batch| {
            assert!(batch.initial);
            assert_eq!(queue.lock().population, Population::Pending, "taken is not processed");
        });
        assert!(consumer.has_synced());

        let (_producer, consumer) = filled(vec![set("a", "1")]);
        assert!(consumer.has_synced(), "a change came first: there is no state to wait for");
    }

    /// C9.14
    #[test]
    fn the_queue_frees_memory_after_a_burst() {
        let many = (0..100_000).map(|number| set(&format!("o{number}"), "1")).collect();
        let (_producer, mut consumer) = filled(many);
        batches(&mut consumer);
        let capacity = consumer.queue.lock().deltas.capacity();
        assert!(capacity < 10_000, "{capacity}");
    }

    /// C9.10, C31.9
    #[tokio::test]
    async fn producers_wait_while_two_thousand_deltas_are_pending() {
        let (producer, mut consumer) = queue();
        for number in 0..PENDING_MAX {
            let name = format!("o{number}");
            assert!(producer.put(set(&name, "1")).now_or_never().is_some());
        }
        let mut waiting = Box::pin(producer.put(set("last", "1")));
        assert!(waiting.as_mut().now_or_never().is_none());
        let mut enqueued = false;
        consumer.process(|batch| {
            assert_eq!(batch.deltas.len(), BATCH_MAX);
            enqueued = waiting.as_mut().now_or_never().is_some();
        });
        assert!(enqueued, "while the consumer applies a batch");
        assert_eq!(consumer.len(), PENDING_MAX - BATCH_MAX + 1);
    }

    #[tokio::test]
    async fn a_closed_queue_returns_the_pending_deltas_and_then_the_end() {
        let (producer, mut consumer) = queue();
        producer.put(set("a", "1")).await.unwrap();
        assert_eq!(consumer.process(|_| ()), Work::Done);
        assert_eq!(consumer.process(|_| ()), Work::Nothing);
        producer.put(set("b", "2")).await.unwrap();
        drop(producer);
        consumer.ready().await;
        assert_eq!(batches(&mut consumer), [["Set b@2"]]);
        consumer.ready().await;
        assert_eq!(consumer.process(|_| panic!("nothing is pending")), Work::Closed);
    }

    /// C9.12: the consumer is one value, and `process` needs it exclusively.
    #[test]
    fn there_is_one_consumer() {
        trait Cloned {
            const CLONES: bool = false;
        }
        impl<T> Cloned for T {}
        struct Probe<T>(T);
        impl<T: Clone> Probe<T> {
            #[expect(dead_code, reason = "chosen over the trait's only if the type is Clone")]
            const CLONES: bool = true;
        }
        const { assert!(!<Probe<Consumer<k8s_openapi::api::core::v1::Pod>> as Cloned>::CLONES) };
    }
}
