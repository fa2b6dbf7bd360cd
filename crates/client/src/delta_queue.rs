//! The delta queue: what the reflector learned and the store does not know yet.
//!
//! River: reflector → **delta queue** → indexer.
//! Promise: in the default mode deltas leave exactly as they entered, so the store is always equal
//! to the server's state at one version. One consumer; producers wait when 2000 are pending, and
//! nothing more is read from the network meanwhile.

mod in_order;
mod per_key;

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::change::Gone;
use crate::key::Key;
use crate::list_watch::Undecodable;
use crate::object::Cached;
use crate::version::ResourceVersion;

use self::in_order::InOrder;
use self::per_key::PerKey;

/// How deltas are queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueMode {
    /// In the order of the wire; a replacement is one step.
    #[default]
    InOrder,
    /// In the order of the wire; a replacement is one delta for each object, as older clients
    /// did it.
    InOrderPiecemeal,
    /// Grouped by key: all deltas of an object together, as in DeltaFIFO.
    PerKey,
}

/// One thing the store does not know yet.
pub(crate) enum Delta<K> {
    Set { kind: SetKind, key: Key, object: Arc<K> },
    Deleted(Gone<K>),
    ReplacedAll(Replacement<K>),
    SyncAll,
    Bookmark(ResourceVersion),
}

impl<K> Delta<K> {
    /// The object it is about, if it is about one.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Delta::Set { key, .. } => Some(key),
            Delta::Deleted(gone) => Some(gone.key()),
            Delta::ReplacedAll(_) | Delta::SyncAll | Delta::Bookmark(_) => None,
        }
    }
}

/// Why an object is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetKind {
    Added,
    Updated,
    Replaced,
    Sync,
}

/// A whole state of the server.
pub(crate) struct Replacement<K> {
    pub(crate) items: Vec<(Key, Arc<K>)>,
    pub(crate) undecodable: Vec<Undecodable>,
    pub(crate) version: ResourceVersion,
}

impl<K: Cached> Replacement<K> {
    pub(crate) fn new(
        objects: impl IntoIterator<Item = Arc<K>>,
        undecodable: Vec<Undecodable>,
        version: ResourceVersion,
    ) -> Replacement<K> {
        let items = objects.into_iter().map(|object| (object.key(), object)).collect();
        Replacement { items, undecodable, version }
    }
}

/// Deltas that are applied in one step.
pub(crate) struct Batch<K> {
    pub(crate) deltas: Vec<Delta<K>>,
    /// Whether it belongs to the first state.
    pub(crate) initial: bool,
    /// The version of the store once it is applied, where the deltas do not say it.
    pub(crate) version: Option<ResourceVersion>,
}

/// What the store knows, for the modes that look into it.
pub(crate) trait Known<K>: Send + Sync {
    fn keys(&self) -> Vec<Key>;
    fn get(&self, key: &Key) -> Option<Arc<K>>;
    fn contains(&self, key: &Key) -> bool;
}

/// Producers wait while so many deltas are pending.
pub(crate) const PENDING_MAX: usize = 2000;
/// At most so many deltas are applied in one step.
pub(crate) const BATCH_MAX: usize = 1000;

/// Whether the first state has been processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Population {
    /// Nothing was entered.
    None,
    /// So many deltas (or keys) of the first replacement are left.
    Initial(usize),
    Done,
}

impl Population {
    /// A change that came before any replacement: there is no first state to wait for.
    fn changed(&mut self) {
        if *self == Population::None {
            *self = Population::Done;
        }
    }

    fn replaced(&mut self, queued: usize) {
        if *self == Population::None {
            *self = if queued == 0 { Population::Done } else { Population::Initial(queued) };
        }
    }

    fn processed(&mut self, count: usize) {
        if let Population::Initial(left) = self {
            *left = left.saturating_sub(count);
            if *left == 0 {
                *self = Population::Done;
            }
        }
    }
}

/// Makes a queue: the reflector's end and the consumer's, of which there is one.
pub(crate) fn queue<K: Cached>(
    mode: QueueMode,
    known: Arc<dyn Known<K>>,
) -> (Producer<K>, Consumer<K>) {
    let core = match mode {
        QueueMode::InOrder => Core::InOrder(InOrder::atomic()),
        QueueMode::InOrderPiecemeal => Core::InOrder(InOrder::piecemeal(known)),
        QueueMode::PerKey => Core::PerKey(PerKey::new(Some(known))),
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(State { core, closed: false, abandoned: false }),
        filled: Notify::new(),
        space: Notify::new(),
    });
    (Producer { shared: Arc::clone(&shared) }, Consumer { shared })
}

struct Shared<K> {
    state: Mutex<State<K>>,
    filled: Notify,
    space: Notify,
}

struct State<K> {
    core: Core<K>,
    /// The producer is gone.
    closed: bool,
    /// The consumer is gone.
    abandoned: bool,
}

/// Nobody takes deltas any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

enum Core<K> {
    InOrder(InOrder<K>),
    PerKey(PerKey<K>),
}

impl<K: Cached> Core<K> {
    fn len(&self) -> usize {
        match self {
            Core::InOrder(queue) => queue.len(),
            Core::PerKey(queue) => queue.len(),
        }
    }

    fn put(&mut self, delta: Delta<K>) {
        match self {
            Core::InOrder(queue) => queue.put(delta),
            Core::PerKey(queue) => queue.put(delta),
        }
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().expect("the queue's own steps do not panic")
    }
}

/// The reflector's end. Dropping it closes the queue: what is left is handed out, then the end.
pub(crate) struct Producer<K> {
    shared: Arc<Shared<K>>,
}

impl<K: Cached> Producer<K> {
    /// Enters a delta; waits while too many are pending, an error if the consumer is gone. A delta
    /// that waits is lost with its future, and so is the stream it came from.
    pub(crate) async fn put(&self, delta: Delta<K>) -> Result<(), Closed> {
        let mut delta = Some(delta);
        loop {
            let space = self.shared.space.notified();
            tokio::pin!(space);
            space.as_mut().enable();
            if self.try_put(&mut delta)? {
                return Ok(());
            }
            space.await;
        }
    }

    /// Enters the delta if there is room; whether there was.
    fn try_put(&self, delta: &mut Option<Delta<K>>) -> Result<bool, Closed> {
        let mut state = self.shared.lock();
        if state.abandoned {
            return Err(Closed);
        }
        if state.core.len() >= PENDING_MAX {
            return Ok(false);
        }
        if let Some(delta) = delta.take() {
            state.core.put(delta);
        }
        drop(state);
        self.shared.filled.notify_one();
        Ok(true)
    }

    /// Reads the number of pending deltas from elsewhere; zero once the queue is gone.
    pub(crate) fn len_reader(&self) -> Box<dyn Fn() -> usize + Send + Sync> {
        let shared = Arc::downgrade(&self.shared);
        Box::new(move || shared.upgrade().map_or(0, |shared| shared.lock().core.len()))
    }
}

impl<K> Drop for Producer<K> {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.filled.notify_one();
    }
}

/// The consumer's end; it is not `Clone`.
pub(crate) struct Consumer<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Drop for Consumer<K> {
    fn drop(&mut self) {
        self.shared.lock().abandoned = true;
        self.shared.space.notify_one();
    }
}

/// What came of asking for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Done,
    Nothing,
    Closed,
}

impl<K: Cached> Consumer<K> {
    /// Applies the next batch, if there is one.
    pub(crate) fn process(&mut self, apply: impl FnOnce(Batch<K>)) -> Work {
        let mut state = self.shared.lock();
        let batch = match &mut state.core {
            // Producers may go on while a batch is applied.
            Core::InOrder(queue) => queue.take(),
            // Queue and store are one for the producers: they wait until it is applied.
            Core::PerKey(queue) => match queue.pop() {
                Some(batch) => {
                    apply(batch);
                    queue.processed();
                    drop(state);
                    self.shared.space.notify_one();
                    return Work::Done;
                }
                None => None,
            },
        };
        let Some(batch) = batch else {
            return if state.closed { Work::Closed } else { Work::Nothing };
        };
        drop(state);
        self.shared.space.notify_one();
        let count = batch.deltas.len();
        apply(batch);
        if let Core::InOrder(queue) = &mut self.shared.lock().core {
            queue.processed(count);
        }
        Work::Done
    }

    /// Waits until there may be work, or the queue was closed. Cancel-safe.
    pub(crate) async fn ready(&mut self) {
        loop {
            let filled = self.shared.filled.notified();
            tokio::pin!(filled);
            filled.as_mut().enable();
            if self.has_work() {
                return;
            }
            filled.await;
        }
    }

    fn has_work(&self) -> bool {
        let state = self.shared.lock();
        state.core.len() > 0 || state.closed
    }

    /// Whether the first state has been processed.
    pub(crate) fn has_synced(&self) -> bool {
        match &self.shared.lock().core {
            Core::InOrder(queue) => queue.has_synced(),
            Core::PerKey(queue) => queue.has_synced(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.lock().core.len()
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    //! Deltas and queues of small objects, written as text.

    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    pub(crate) fn object(name: &str, version: &str) -> Arc<ConfigMap> {
        Arc::new(ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        })
    }

    pub(crate) fn set(kind: SetKind, name: &str, version: &str) -> Delta<ConfigMap> {
        Delta::Set { kind, key: Key::cluster(name), object: object(name, version) }
    }

    pub(crate) fn added(name: &str, version: &str) -> Delta<ConfigMap> {
        set(SetKind::Added, name, version)
    }

    pub(crate) fn updated(name: &str, version: &str) -> Delta<ConfigMap> {
        set(SetKind::Updated, name, version)
    }

    pub(crate) fn deleted(name: &str, version: &str) -> Delta<ConfigMap> {
        Delta::Deleted(Gone::seen(Key::cluster(name), object(name, version)))
    }

    pub(crate) fn replace(items: &[(&str, &str)], version: &str) -> Delta<ConfigMap> {
        let objects = items.iter().map(|(name, version)| object(name, version));
        Delta::ReplacedAll(Replacement::new(objects, Vec::new(), version.into()))
    }

    pub(crate) fn show(delta: &Delta<ConfigMap>) -> String {
        let at = |object: &ConfigMap| object.resource_version().to_string();
        match delta {
            Delta::Set { kind, key, object } => format!("{kind:?} {key}@{}", at(object)),
            Delta::Deleted(gone) => {
                let last = gone.last().map(|last| at(last)).unwrap_or_else(|| "?".into());
                let seen = if gone.observed() { "" } else { " inferred" };
                format!("Deleted {}@{last}{seen}", gone.key())
            }
            Delta::ReplacedAll(all) => {
                let names: Vec<&str> = all.items.iter().map(|(key, _)| key.as_str()).collect();
                format!("ReplacedAll [{}]@{}", names.join(" "), all.version)
            }
            Delta::SyncAll => "SyncAll".into(),
            Delta::Bookmark(version) => format!("Bookmark@{version}"),
        }
    }

    pub(crate) fn shown(batch: &Batch<ConfigMap>) -> Vec<String> {
        batch.deltas.iter().map(show).collect()
    }

    /// A store that can be given anything, also keys without objects.
    #[derive(Default)]
    pub(crate) struct Fake(pub(crate) Mutex<BTreeMap<Key, Option<Arc<ConfigMap>>>>);

    impl Fake {
        pub(crate) fn of(objects: &[(&str, &str)]) -> Arc<Fake> {
            let fake = Fake::default();
            for (name, version) in objects {
                fake.0.lock().unwrap().insert(Key::cluster(name), Some(object(name, version)));
            }
            Arc::new(fake)
        }
    }

    impl Known<ConfigMap> for Fake {
        fn keys(&self) -> Vec<Key> {
            self.0.lock().unwrap().keys().cloned().collect()
        }

        fn get(&self, key: &Key) -> Option<Arc<ConfigMap>> {
            self.0.lock().unwrap().get(key).cloned().flatten()
        }

        fn contains(&self, key: &Key) -> bool {
            self.0.lock().unwrap().contains_key(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::fixture::*;
    use super::*;

    /// C9.10, C31.9
    #[tokio::test]
    async fn producers_wait_while_two_thousand_deltas_are_pending() {
        let (producer, mut consumer) = queue(QueueMode::InOrder, Fake::of(&[]));
        for number in 0..PENDING_MAX {
            let name = format!("o{number}");
            assert!(producer.put(added(&name, "1")).now_or_never().is_some());
        }
        let mut waiting = Box::pin(producer.put(added("last", "1")));
        assert!(waiting.as_mut().now_or_never().is_none());
        let mut inside = false;
        consumer.process(|batch| {
            assert_eq!(batch.deltas.len(), BATCH_MAX);
            // The consumer works while the producer enters more.
            inside = waiting.as_mut().now_or_never().is_some();
        });
        assert!(inside);
        assert_eq!(consumer.len(), PENDING_MAX - BATCH_MAX + 1);
    }

    /// C8.17
    #[tokio::test]
    async fn a_closed_queue_hands_out_what_is_left_and_then_the_end() {
        for mode in [QueueMode::InOrder, QueueMode::InOrderPiecemeal, QueueMode::PerKey] {
            let (producer, mut consumer) = queue(mode, Fake::of(&[]));
            producer.put(added("a", "1")).await.unwrap();
            assert_eq!(consumer.process(|_| ()), Work::Done);
            assert_eq!(consumer.process(|_| ()), Work::Nothing);
            producer.put(added("b", "2")).await.unwrap();
            drop(producer);
            consumer.ready().await;
            let mut left = Vec::new();
            assert_eq!(consumer.process(|batch| left = shown(&batch)), Work::Done);
            assert_eq!(left, ["Added b@2"]);
            consumer.ready().await;
            assert_eq!(consumer.process(|_| panic!("nothing is left")), Work::Closed);
        }
    }

    /// C8.18
    #[tokio::test]
    async fn per_key_producers_see_queue_and_store_as_one() {
        let known = Fake::of(&[]);
        let store = Arc::clone(&known);
        let (producer, mut consumer) = queue(QueueMode::PerKey, known);
        producer.put(added("a", "1")).await.unwrap();
        std::thread::scope(|scope| {
            let (entered, wait) = std::sync::mpsc::channel();
            let producer = &producer;
            scope.spawn(move || {
                wait.recv().unwrap();
                // Waits for the consumer's step; then the key is known, so the delete counts.
                producer.put(deleted("a", "2")).now_or_never().unwrap().unwrap();
            });
            consumer.process(|_| {
                entered.send(()).unwrap();
                std::thread::yield_now();
                store.0.lock().unwrap().insert(Key::cluster("a"), Some(object("a", "1")));
            });
        });
        let mut next = Vec::new();
        consumer.process(|batch| next = shown(&batch));
        assert_eq!(next, ["Deleted a@2"]);
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
