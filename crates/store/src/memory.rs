//! The memory engine: the `Store` contract without durability, for tests and `--memory`.
//!
//! River: server writes → **store** → watch cache.
//! Promise: one lock protects the entire state, so a commit is atomic; its changes share one
//! revision, as in etcd. Watchers are cursors over one shared history: a slow watcher costs only its
//! position.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use headwater_api::{Clock, Revision, SystemClock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::change::{Batch, Change, ChangeKind, Version};
use crate::key::Key;
use crate::lock::lock;
use crate::recent::RecentChanges;
use crate::store::{
    Action, ChangeStream, Committed, Error, FIRST, Guard, Op, Range, RangePage, Record, Scrubbed,
    Store, StoreCondition, VALUE_MAX, Write,
};
use crate::times::WriteTimes;
use crate::versions::{KeyHistory, KeyVersion, RevisionAt, TimedRevision, VersionRange};

/// The maximum number of objects that expire at a time, which limits how long the lock is held.
const EXPIRE_MAX: usize = 100;

/// The options of a [`Memory`].
#[derive(Clone)]
pub struct Options {
    /// The largest value of a write, in bytes.
    pub value_max: usize,
    /// The maximum size of the history; older changes are compacted.
    pub history_bytes_max: usize,
    /// The revision before that of the first write.
    pub first: Revision,
    /// The time of day, for the times of writes.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("value_max", &self.value_max)
            .field("history_bytes_max", &self.history_bytes_max)
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            value_max: VALUE_MAX,
            history_bytes_max: 256 << 20,
            first: FIRST,
            clock: Arc::new(SystemClock),
        }
    }
}

/// A store without durability: its data is lost when it is dropped.
///
/// ```
/// # async fn example() -> Result<(), headwater_store::Error> {
/// use headwater_store::{Action, Guard, Key, Memory, Store, Write};
///
/// let store = Memory::default();
/// let put = Action::Put { value: "{}".into(), ttl: None };
/// let done = store.commit(Write::one(Key::new("/registry/a"), Guard::Absent, put)).await?;
/// assert_eq!(store.revision().await?, done.last);
/// # Ok(())
/// # }
/// ```
pub struct Memory {
    shared: Arc<Shared>,
    options: Options,
    /// The expiry task, if it runs. It ends with the engine.
    tasks: Mutex<JoinSet<()>>,
}

impl Memory {
    /// An empty store.
    pub fn new(options: Options) -> Memory {
        let shared = Shared {
            state: Mutex::new(State::after(options.first)),
            newest: watch::Sender::new(options.first),
            sooner: Notify::new(),
        };
        Memory { shared: Arc::new(shared), options, tasks: Mutex::default() }
    }

    /// Starts the expiry task if it does not run (it may have ended with its runtime).
    fn ensure_expiry(&self) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        if tasks.is_empty() {
            tasks.spawn(expire(self.shared.clone()));
        }
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(Options::default())
    }
}

#[async_trait]
impl Store for Memory {
    async fn revision(&self) -> Result<Revision, Error> {
        Ok(self.shared.lock().newest)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        Ok(self.shared.lock().record(key))
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.shared.lock().range(&range)
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        write.check(self.options.value_max)?;
        let expires =
            write.ops.iter().any(|op| matches!(op.action, Action::Put { ttl: Some(_), .. }));
        let committed = {
            let mut state = self.shared.lock();
            let committed = state.commit(write)?;
            state.times.push(self.options.clock.now().as_millisecond(), committed.first);
            state.trim(self.options.history_bytes_max);
            self.shared.newest.send_replace(state.newest);
            committed
        };
        if expires {
            self.ensure_expiry();
            self.shared.sooner.notify_one();
        }
        Ok(committed)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.shared.lock().check_watch(after)?;
        let cursor = Cursor {
            shared: Arc::downgrade(&self.shared),
            newest: self.shared.newest.subscribe(),
            prefix: prefix.to_owned(),
            position: after,
        };
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.shared.lock().compact(at)
    }

    async fn versions(&self, range: VersionRange) -> Result<KeyHistory, Error> {
        self.shared.lock().versions(&range)
    }

    async fn revision_at(&self, time: i64) -> Result<Option<RevisionAt>, Error> {
        let state = self.shared.lock();
        let found = state.times.at(time, state.newest).filter(|found| *found >= state.compacted);
        // If nothing is forgotten, history begins with the first write.
        let first = state.times.first().map_or(state.compacted, |(_, first)| first);
        let revision = state.compacted.max(first);
        let oldest = TimedRevision { revision, time: state.times.of(revision) };
        Ok(Some(RevisionAt { found, oldest, known_from: None }))
    }

    fn condition(&self) -> StoreCondition {
        let state = self.shared.lock();
        StoreCondition {
            revision: state.newest,
            compacted: state.compacted,
            disk_bytes: 0,
            trouble: None,
            damage: None,
            scrubbed: Scrubbed::default(),
            key_services: None,
        }
    }
}

/// The state that the engine, its expiry task and its watchers share.
struct Shared {
    state: Mutex<State>,
    /// The newest revision. Set under the lock, so that it never decreases.
    newest: watch::Sender<Revision>,
    /// Notifies the expiry task that an object may expire earlier than expected.
    sooner: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The newest state, and its history.
struct State {
    live: BTreeMap<Key, Live>,
    /// All changes that were not compacted.
    history: RecentChanges,
    newest: Revision,
    compacted: Revision,
    /// When the retained revisions were written.
    times: WriteTimes,
    /// When each version of a key expires. Entries of overwritten versions are ignored.
    expiries: BTreeSet<(Instant, Key, Revision)>,
}

struct Live {
    revision: Revision,
    value: Bytes,
}

impl State {
    /// An empty state. There is no history before a revision other than the usual first one.
    fn after(first: Revision) -> State {
        State {
            live: BTreeMap::new(),
            history: RecentChanges::after(first),
            newest: first,
            compacted: if first > FIRST { first } else { Revision::ZERO },
            times: WriteTimes::with_resolution(1),
            expiries: BTreeSet::new(),
        }
    }

    /// The versions of a key: the newest one, and those before it in the history.
    fn versions(&self, range: &VersionRange) -> Result<KeyHistory, Error> {
        let upto = range.upto.unwrap_or(self.newest);
        self.check_at(upto)?;
        let mut history = KeyHistory::default();
        let changes: Vec<&Change> = self
            .history
            .changes_after(self.compacted.max(self.history.complete_after()))
            .filter(|change| change.key == range.key)
            .collect();
        let mut oldest = changes.first().and_then(|change| change.prev.clone());
        if changes.is_empty() {
            let live = self.live.get(&range.key);
            oldest =
                live.map(|live| Version { revision: live.revision, value: live.value.clone() });
        }
        let changed = changes.into_iter().rev().map(|change| KeyVersion {
            revision: change.revision,
            kind: change.kind,
            value: change.value.clone(),
            time: self.times.of(change.revision),
        });
        // Its change is forgotten, so it is not known whether it created the object.
        let oldest = oldest.map(|Version { revision, value }| {
            let kind = ChangeKind::Updated;
            KeyVersion { revision, kind, value, time: self.times.of(revision) }
        });
        for version in changed.chain(oldest).filter(|version| version.revision <= upto) {
            if history.is_full(range.limit) {
                history.more = true;
                break;
            }
            history.versions.push(version);
        }
        Ok(history)
    }

    fn record(&self, key: &Key) -> Option<Record> {
        let live = self.live.get(key)?;
        Some(Record { key: key.clone(), revision: live.revision, value: live.value.clone() })
    }

    /// Checks every guard before it applies an operation.
    fn commit(&mut self, write: Write) -> Result<Committed, Error> {
        for op in &write.ops {
            self.check_guard(op)?;
        }
        let at = self.newest.next();
        let changes = write.ops.into_iter().map(|op| self.apply(at, op.key, op.action)).collect();
        self.publish(changes, at);
        Ok(Committed::new(at, at))
    }

    fn publish(&mut self, changes: Vec<Change>, at: Revision) {
        self.history.append(Batch { changes, complete_to: at });
        self.newest = at;
    }

    fn check_guard(&self, op: &Op) -> Result<(), Error> {
        let actual = self.live.get(&op.key).map(|live| live.revision);
        let expected = match op.guard {
            Guard::Absent => None,
            Guard::At(revision) => Some(revision),
        };
        if actual == expected {
            return Ok(());
        }
        Err(Error::Conflict { key: op.key.clone(), actual: self.record(&op.key) })
    }

    fn apply(&mut self, revision: Revision, key: Key, action: Action) -> Change {
        let (value, prev) = match action {
            Action::Put { value, ttl } => {
                if let Some(at) = ttl.and_then(|ttl| Instant::now().checked_add(ttl)) {
                    self.expiries.insert((at, key.clone(), revision));
                }
                let live = Live { revision, value: value.clone() };
                (Some(value), self.live.insert(key.clone(), live))
            }
            Action::Delete => (None, self.live.remove(&key)),
        };
        let kind = match (&value, &prev) {
            (None, _) => ChangeKind::Deleted,
            (Some(_), None) => ChangeKind::Created,
            (Some(_), Some(_)) => ChangeKind::Updated,
        };
        let value = value.unwrap_or_default();
        let prev = prev.map(|live| Version { revision: live.revision, value: live.value });
        Change { revision, key, kind, value, prev }
    }

    fn range(&self, range: &Range) -> Result<RangePage, Error> {
        let at = range.at.unwrap_or(self.newest);
        self.check_at(at)?;
        let limit = range.limit.unwrap_or(usize::MAX);
        let mut records = Vec::new();
        for (key, (revision, value)) in self.state_at(at, range) {
            if records.len() == limit {
                return Ok(RangePage { records, revision: at, more: true });
            }
            records.push(Record { key: key.clone(), revision, value: value.clone() });
        }
        Ok(RangePage { records, revision: at, more: false })
    }

    fn check_at(&self, at: Revision) -> Result<(), Error> {
        if at < self.compacted {
            return Err(Error::Compacted { asked: at, oldest: self.compacted });
        }
        if at > self.newest {
            return Err(Error::Future { asked: at, current: self.newest });
        }
        Ok(())
    }

    /// The keys of a range at a revision: the newest state with later changes undone. The value of
    /// a key is the previous value of its first later change.
    fn state_at<'a>(&'a self, at: Revision, range: &'a Range) -> BoxIterator<'a> {
        let live = self.live_in(range).map(|(key, live)| (key, (live.revision, &live.value)));
        let mut undone: BTreeMap<&Key, Option<&Version>> = BTreeMap::new();
        for change in self.history.changes_after(at).filter(|change| range.covers(&change.key)) {
            undone.entry(&change.key).or_insert(change.prev.as_ref());
        }
        if undone.is_empty() {
            return Box::new(live);
        }
        let mut state: BTreeMap<&Key, (Revision, &Bytes)> = live.collect();
        for (key, was) in undone {
            match was {
                Some(version) => state.insert(key, (version.revision, &version.value)),
                None => state.remove(key),
            };
        }
        Box::new(state.into_iter())
    }

    fn live_in<'a>(&'a self, range: &'a Range) -> impl Iterator<Item = (&'a Key, &'a Live)> {
        self.live
            .range::<str, _>((range.start(), Bound::Unbounded))
            .take_while(|(key, _)| key.as_str().starts_with(&range.prefix))
    }

    fn check_watch(&self, after: Revision) -> Result<(), Error> {
        if after < self.compacted {
            return Err(Error::Compacted { asked: after, oldest: self.compacted });
        }
        Ok(())
    }

    /// The next changes of a watcher; `None` if there are none yet.
    fn batch(&self, prefix: &str, after: Revision) -> Result<Option<Batch>, Error> {
        self.check_watch(after)?;
        if after >= self.newest {
            return Ok(None);
        }
        Ok(self.history.batch(prefix, after.max(FIRST)))
    }

    fn compact(&mut self, at: Revision) -> Result<(), Error> {
        if at > self.newest {
            return Err(Error::Future { asked: at, current: self.newest });
        }
        self.history.forget_to(at);
        self.compacted = self.compacted.max(at);
        self.times.forget_to(self.compacted);
        Ok(())
    }

    /// Compacts history that exceeds the maximum size.
    fn trim(&mut self, bytes_max: usize) {
        self.history.shrink_to(bytes_max);
        if self.history.complete_after() > FIRST {
            self.compacted = self.compacted.max(self.history.complete_after());
            self.times.forget_to(self.compacted);
        }
    }

    /// Deletes some expired objects. Returns when to call it again.
    fn expire(&mut self, now: Instant) -> Option<Instant> {
        for _ in 0..EXPIRE_MAX {
            let (at, _, _) = self.expiries.first()?;
            if *at > now {
                return Some(*at);
            }
            let (_, key, revision) = self.expiries.pop_first()?;
            if self.live.get(&key).is_some_and(|live| live.revision == revision) {
                let at = self.newest.next();
                let gone = self.apply(at, key, Action::Delete);
                self.publish(vec![gone], at);
            }
        }
        Some(now)
    }
}

type BoxIterator<'a> = Box<dyn Iterator<Item = (&'a Key, (Revision, &'a Bytes))> + 'a>;

/// A watcher: a position in the history.
struct Cursor {
    /// Weak, so that watchers end when the engine is dropped.
    shared: Weak<Shared>,
    newest: watch::Receiver<Revision>,
    prefix: String,
    position: Revision,
}

impl Cursor {
    /// Waits for changes after the position. An error ends the stream.
    async fn step(cursor: Option<Cursor>) -> Option<(Result<Batch, Error>, Option<Cursor>)> {
        let mut cursor = cursor?;
        loop {
            let position = cursor.position;
            cursor.newest.wait_for(|newest| *newest > position).await.ok()?;
            let found = cursor.shared.upgrade()?.lock().batch(&cursor.prefix, position);
            match found {
                Ok(Some(batch)) => {
                    cursor.position = batch.complete_to;
                    return Some((Ok(batch), Some(cursor)));
                }
                Ok(None) => {}
                Err(error) => return Some((Err(error), None)),
            }
        }
    }
}

/// Deletes expired objects as ordinary changes.
async fn expire(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut state = shared.lock();
            let next = state.expire(Instant::now());
            shared.newest.send_replace(state.newest);
            next
        };
        // Without an expiry the wait is long; a new expiry ends it early.
        let next = next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        tokio::select! {
            biased;
            () = shared.sooner.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &'static str) -> Write {
        let put = Action::Put { value: value.into(), ttl: None };
        Write::one(Key::new(key), Guard::Absent, put)
    }

    #[tokio::test]
    async fn history_beyond_the_limit_is_compacted() {
        let store = Memory::new(Options { history_bytes_max: 1_000, ..Options::default() });
        for i in 0..100 {
            store.commit(put(&format!("/a/{i}"), "value")).await.unwrap();
        }
        let condition = store.condition();
        assert!(condition.compacted > FIRST && condition.compacted < condition.revision);
        assert!(store.shared.lock().history.bytes() <= 1_000);
        let gone = store.watch("/", FIRST).await.err();
        assert!(matches!(gone, Some(Error::Compacted { asked: FIRST, .. })), "{gone:?}");
    }

    #[tokio::test]
    async fn watchers_end_when_the_engine_is_dropped() {
        let store = Memory::default();
        let mut watch = store.watch("/", FIRST).await.unwrap();
        drop(store);
        assert!(watch.next().await.is_none());
    }
}
