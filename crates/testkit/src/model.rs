//! The model: a naive store, and random scripts that compare an engine with it.
//!
//! The model keeps a full copy of the state at every revision. A script is a list of random steps
//! (writes with correct and wrong guards, reads at old revisions, watches, compactions, restarts).
//! After each step the engine must have returned what the model returns. Failing scripts are
//! shrunk.

use std::collections::BTreeMap;

use bytes::Bytes;
use headwater_store::{
    Action, Batch, Change, ChangeKind, ChangeStream, Committed, Error, Guard, Key, Op, Range,
    RangePage, Record, Revision, Store, Version, Write,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::contract::read_to;

/// Few keys, so that steps affect each other; some with a common prefix.
const KEYS: [&str; 8] =
    ["/m/a/1", "/m/a/2", "/m/a/3", "/m/ab/1", "/m/b", "/m/b/1", "/m/c/1", "/n/a"];

const PREFIXES: [&str; 6] = ["/m/", "/m/a/", "/m/a", "/m/b", "/", "/none/"];

/// Watchers that stay open over several steps.
const WATCHERS: usize = 3;

/// One step of a script. Numbers are scaled to the current state, for example to a revision.
#[derive(Clone, Debug)]
pub enum ModelStep {
    /// Several operations in one commit.
    Write(Vec<WriteAttempt>),
    /// Reads a key.
    Get(usize),
    /// Reads a range at a revision.
    Range {
        /// The index of the prefix.
        prefix: usize,
        /// The index of the key to start after, if any.
        after: Option<usize>,
        /// The revision, from the first (0) to the newest (255); `None` for the newest.
        at: Option<u8>,
        /// The limit, if any.
        limit: Option<usize>,
    },
    /// Reads all changes after a revision.
    Replay {
        /// The index of the prefix.
        prefix: usize,
        /// The revision.
        after: u8,
    },
    /// Opens a watch that stays open, and closes an earlier one.
    Open {
        /// The index of the watcher.
        watcher: usize,
        /// The index of the prefix.
        prefix: usize,
        /// The revision.
        after: u8,
    },
    /// Lets an open watcher read all available changes.
    Read(usize),
    /// Compacts at a revision.
    Compact(u8),
    /// Stops the engine and starts it on the same data.
    Reopen,
}

/// One operation of a write, before its guard is known.
#[derive(Clone, Debug)]
pub struct WriteAttempt {
    key: usize,
    /// Whether the guard is correct; otherwise it is a revision that may or may not match.
    is_current: bool,
    stale: u8,
    /// `None` deletes the key.
    value: Option<u16>,
}

/// Random steps; with restarts for durable engines.
pub fn script(len: usize, durable: bool) -> impl Strategy<Value = Vec<ModelStep>> {
    let restarts = u32::from(durable);
    let step = prop_oneof![
        12 => vec(attempt(), 1..=1).prop_map(ModelStep::Write),
        4 => vec(attempt(), 2..=4).prop_map(ModelStep::Write),
        1 => (0..KEYS.len()).prop_map(ModelStep::Get),
        3 => (0..PREFIXES.len(), of(0..KEYS.len()), of(any::<u8>()), of(0..5_usize))
            .prop_map(|(prefix, after, at, limit)| ModelStep::Range { prefix, after, at, limit }),
        2 => (0..PREFIXES.len(), any::<u8>()).prop_map(|(prefix, after)| ModelStep::Replay { prefix, after }),
        1 => (0..WATCHERS, 0..PREFIXES.len(), any::<u8>())
            .prop_map(|(watcher, prefix, after)| ModelStep::Open { watcher, prefix, after }),
        2 => (0..WATCHERS).prop_map(ModelStep::Read),
        1 => any::<u8>().prop_map(ModelStep::Compact),
        restarts => Just(ModelStep::Reopen),
    ];
    vec(step, len / 2..=len)
}

fn of<T: std::fmt::Debug + Clone>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(strategy)
}

fn attempt() -> impl Strategy<Value = WriteAttempt> {
    let value = prop_oneof![3 => any::<u16>().prop_map(Some), 1 => Just(None)];
    (0..KEYS.len(), prop::bool::weighted(0.9), any::<u8>(), value)
        .prop_map(|(key, is_current, stale, value)| WriteAttempt { key, is_current, stale, value })
}

/// Runs a script. `open` creates the engine. After a `Reopen` the engine is dropped, and `open`
/// must return one with the same data.
pub async fn check<S: Store>(steps: &[ModelStep], mut open: impl AsyncFnMut() -> S) {
    let mut run = Run::new(open().await).await;
    for (n, step) in steps.iter().enumerate() {
        match step {
            ModelStep::Reopen => run = run.reopen(&mut open).await,
            step => run.step(step).await,
        }
        let newest = run.store().revision().await.expect("the store knows its revision");
        assert_eq!(newest, run.model.newest(), "after step {n}");
    }
}

/// The state at every revision, and all changes.
#[derive(Clone, Debug)]
pub struct Model {
    /// The state at each revision since the first.
    states: BTreeMap<Revision, BTreeMap<Key, (Revision, Bytes)>>,
    changes: Vec<Change>,
    compacted: Revision,
}

impl Model {
    /// An empty store at this revision.
    pub fn new(first: Revision) -> Model {
        let states = BTreeMap::from([(first, BTreeMap::new())]);
        Model { states, changes: Vec::new(), compacted: Revision::ZERO }
    }

    /// The newest revision.
    pub fn newest(&self) -> Revision {
        *self.states.last_key_value().expect("the model has a state").0
    }

    /// The oldest readable revision.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// All changes, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Reverts all changes after a revision.
    pub fn truncate(&mut self, to: Revision) {
        self.states.retain(|at, _| *at <= to);
        self.changes.retain(|change| change.revision <= to);
    }

    fn live(&self) -> &BTreeMap<Key, (Revision, Bytes)> {
        self.states.last_key_value().expect("the model has a state").1
    }

    /// The expected result of [`Store::get`].
    pub fn get(&self, key: &Key) -> Option<Record> {
        let (revision, value) = self.live().get(key)?.clone();
        Some(Record { key: key.clone(), revision, value })
    }

    /// The expected result of [`Store::commit`] by an engine whose changes of one write share a
    /// revision, or by one that numbers them consecutively.
    pub fn commit(&mut self, write: &Write, shares_revision: bool) -> Result<Committed, Error> {
        write.check(usize::MAX)?;
        for Op { key, guard, .. } in &write.ops {
            let actual = self.get(key);
            let holds = match guard {
                Guard::Absent => actual.is_none(),
                Guard::At(at) => actual.as_ref().is_some_and(|record| record.revision == *at),
            };
            if !holds {
                return Err(Error::Conflict { key: key.clone(), actual });
            }
        }
        let first = self.newest().next();
        for (n, op) in write.ops.iter().enumerate() {
            let nth = if shares_revision { 0 } else { n as u64 };
            self.apply(Revision(first.0 + nth), &op.key, &op.action);
        }
        Ok(Committed::new(first, self.newest()))
    }

    fn apply(&mut self, revision: Revision, key: &Key, action: &Action) {
        let mut state = self.live().clone();
        let (value, prev) = match action {
            Action::Put { value, .. } => {
                (value.clone(), state.insert(key.clone(), (revision, value.clone())))
            }
            Action::Delete => (Bytes::new(), state.remove(key)),
        };
        let kind = match (action, &prev) {
            (Action::Delete, _) => ChangeKind::Deleted,
            (_, None) => ChangeKind::Created,
            (_, Some(_)) => ChangeKind::Updated,
        };
        let prev = prev.map(|(revision, value)| Version { revision, value });
        self.changes.push(Change { revision, key: key.clone(), kind, value, prev });
        self.states.insert(revision, state);
    }

    /// The expected result of [`Store::range`].
    pub fn range(&self, range: &Range) -> Result<RangePage, Error> {
        let at = range.at.unwrap_or(self.newest());
        if at < self.compacted {
            return Err(Error::Compacted { asked: at, oldest: self.compacted });
        }
        let empty = BTreeMap::new();
        let records: Vec<Record> = self
            .states
            .get(&at)
            .unwrap_or(&empty)
            .iter()
            .filter(|(key, _)| range.covers(key))
            .map(|(key, (revision, value))| Record {
                key: key.clone(),
                revision: *revision,
                value: value.clone(),
            })
            .collect();
        let limit = range.limit.unwrap_or(usize::MAX).min(records.len());
        let more = limit < records.len();
        Ok(RangePage { records: records[..limit].to_vec(), revision: at, more })
    }

    /// The changes that a watch must yield up to now.
    pub fn replay(&self, prefix: &str, after: Revision) -> Result<Vec<Change>, Error> {
        if after < self.compacted {
            return Err(Error::Compacted { asked: after, oldest: self.compacted });
        }
        let wanted =
            |change: &&Change| change.revision > after && change.key.as_str().starts_with(prefix);
        Ok(self.changes.iter().filter(wanted).cloned().collect())
    }

    /// Applies [`Store::compact`].
    pub fn compact(&mut self, at: Revision) {
        self.compacted = self.compacted.max(at);
    }
}

/// An engine, its model, and the open watchers.
struct Run<S> {
    store: Option<S>,
    model: Model,
    watchers: [Option<Watcher>; WATCHERS],
}

struct Watcher {
    stream: ChangeStream,
    prefix: &'static str,
    position: Revision,
}

impl<S: Store> Run<S> {
    async fn new(store: S) -> Run<S> {
        let first = store.revision().await.expect("the store knows its revision");
        Run { store: Some(store), model: Model::new(first), watchers: Default::default() }
    }

    fn store(&self) -> &S {
        self.store.as_ref().expect("the engine is open between steps")
    }

    async fn reopen(mut self, open: &mut impl AsyncFnMut() -> S) -> Run<S> {
        self.watchers = Default::default();
        drop(self.store.take());
        self.store = Some(open().await);
        assert_eq!(self.store().condition().compacted, self.model.compacted);
        self
    }

    async fn step(&mut self, step: &ModelStep) {
        match step {
            ModelStep::Write(attempts) => self.write(attempts).await,
            ModelStep::Get(key) => self.get(*key).await,
            ModelStep::Range { prefix, after, at, limit } => {
                let range = Range {
                    prefix: PREFIXES[*prefix].into(),
                    after: after.map(|key| Key::new(KEYS[key])),
                    at: at.map(|at| self.scale(at)),
                    limit: *limit,
                };
                self.range(range).await;
            }
            ModelStep::Replay { prefix, after } => {
                self.replay(PREFIXES[*prefix], self.scale(*after)).await
            }
            ModelStep::Open { watcher, prefix, after } => {
                let after = self.scale(*after);
                self.watchers[*watcher] = self.open(PREFIXES[*prefix], after).await;
            }
            ModelStep::Read(watcher) => self.read(*watcher).await,
            ModelStep::Compact(at) => self.compact(self.scale(*at)).await,
            ModelStep::Reopen => unreachable!("the caller handles it"),
        }
    }

    /// A revision between the first and the newest; the newest is most likely.
    fn scale(&self, choice: u8) -> Revision {
        let newest = self.model.newest().0;
        Revision((newest * u64::from(choice) / 240).clamp(1, newest))
    }

    fn ops(&self, attempts: &[WriteAttempt]) -> Write {
        let mut ops: Vec<Op> = Vec::new();
        for attempt in attempts {
            let key = Key::new(KEYS[attempt.key]);
            let there = self.model.get(&key).map(|record| record.revision);
            let guard = match (attempt.is_current, there) {
                (true, None) => Guard::Absent,
                (true, Some(at)) => Guard::At(at),
                (false, Some(_)) if attempt.stale.is_multiple_of(2) => Guard::Absent,
                (false, _) => Guard::At(self.scale(attempt.stale)),
            };
            let action = match attempt.value {
                None => Action::Delete,
                Some(value) => Action::Put { value: bytes(value), ttl: None },
            };
            ops.push(Op { key, guard, action });
        }
        Write { ops }
    }

    async fn write(&mut self, attempts: &[WriteAttempt]) {
        let write = self.ops(attempts);
        let actual = self.store().commit(write.clone()).await;
        let shares_revision = actual.as_ref().is_ok_and(|done| done.first == done.last);
        let expected = self.model.commit(&write, shares_revision);
        assert_same(&actual, &expected, &write);
    }

    async fn get(&self, key: usize) {
        let key = Key::new(KEYS[key]);
        assert_same(&self.store().get(&key).await, &Ok(self.model.get(&key)), &key);
    }

    async fn range(&self, range: Range) {
        let page = |page: RangePage| (page.records, page.revision, page.more);
        let expected = self.model.range(&range).map(page);
        assert_same(&self.store().range(range.clone()).await.map(page), &expected, &range);
    }

    async fn replay(&self, prefix: &str, after: Revision) {
        let expected = self.model.replay(prefix, after);
        let actual = match self.store().watch(prefix, after).await {
            Ok(_) if after == self.model.newest() => Ok(Vec::new()),
            Ok(mut stream) => Ok(read_to(&mut stream, self.model.newest()).await),
            Err(error) => Err(error),
        };
        assert_same(&actual, &expected, &(prefix, after));
    }

    async fn open(&self, prefix: &'static str, after: Revision) -> Option<Watcher> {
        let opened = self.store().watch(prefix, after).await;
        let may = self.model.replay(prefix, after).map(drop);
        match opened {
            Ok(stream) => {
                assert!(may.is_ok(), "a watch of a compacted revision was opened");
                Some(Watcher { stream, prefix, position: after })
            }
            Err(error) => {
                assert_same(&Err(error), &may, &(prefix, after));
                None
            }
        }
    }

    /// Lets an open watcher read. After a compaction it may still yield buffered changes, but it
    /// must not skip any.
    async fn read(&mut self, watcher: usize) {
        let newest = self.model.newest();
        while let Some(mut open) = self.watchers[watcher].take() {
            if open.position >= newest {
                self.watchers[watcher] = Some(open);
                return;
            }
            match futures::StreamExt::next(&mut open.stream).await.expect("the stream continues") {
                Ok(batch) => {
                    self.check_batch(&open, &batch);
                    open.position = batch.complete_to;
                    self.watchers[watcher] = Some(open);
                }
                Err(error) => {
                    let expected = Err(Error::Compacted {
                        asked: open.position,
                        oldest: self.model.compacted,
                    });
                    assert_same::<()>(&Err(error), &expected, &open.prefix);
                    assert!(open.position < self.model.compacted);
                }
            }
        }
    }

    fn check_batch(&self, watcher: &Watcher, batch: &Batch) {
        let reached = |change: &&Change| {
            change.revision > watcher.position
                && change.revision <= batch.complete_to
                && change.key.as_str().starts_with(watcher.prefix)
        };
        let expected: Vec<Change> = self.model.changes.iter().filter(reached).cloned().collect();
        assert_eq!(batch.changes, expected, "{} after {}", watcher.prefix, watcher.position);
        assert!(batch.complete_to > watcher.position && batch.complete_to <= self.model.newest());
    }

    async fn compact(&mut self, at: Revision) {
        self.store().compact(at).await.expect("the compaction succeeds");
        self.model.compact(at);
        assert_eq!(self.store().condition().compacted, self.model.compacted);
    }
}

fn bytes(value: u16) -> Bytes {
    // Sizes from zero to more than a page, so that rows move between pages.
    let len = usize::from(value % 1024) * usize::from(value % 7);
    Bytes::from(format!("{value:0len$}"))
}

/// Errors are compared by their `Debug` text.
#[track_caller]
fn assert_same<T: std::fmt::Debug + PartialEq>(
    actual: &Result<T, Error>,
    expected: &Result<T, Error>,
    context: &dyn std::fmt::Debug,
) {
    match (actual, expected) {
        (Ok(actual), Ok(expected)) => assert_eq!(actual, expected, "{context:?}"),
        (actual, expected) => {
            assert_eq!(format!("{actual:?}"), format!("{expected:?}"), "{context:?}");
        }
    }
}
