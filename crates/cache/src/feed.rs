//! The feed: one watch on the store that keeps every resource current.
//!
//! River: store watch → **feed** → resources. One task applies all changes in revision order, so a
//! revision that the cache has reached is valid for every resource.
//! Promise: cache(r) = store(r) for every revision that the cache claims (R20), and the revision
//! only grows (R21).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures::StreamExt;
use headwater_api::Revision;
use headwater_api::kind::Field;
use headwater_store::{
    Batch, Change, ChangeStream, Error as StoreError, Range, Record, Store, key, lock,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::decoder::ObjectDecoder;
use crate::load::ResourceLoad;
use crate::progress::Progress;
use crate::resource::{ApplyError, Resource};
use crate::snapshot::Snapshot;
use crate::view::{Filter, ScheduledWakeup, ViewEnd};
use crate::watcher::{WatchStart, Watcher};
use crate::window::Bounds;

/// The options of the cache.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bounds of each resource's window.
    pub window: Bounds,
    /// The number of changes in the window of some resources, by plural name (`pods`,
    /// `deployments.apps`).
    pub window_counts: BTreeMap<String, usize>,
    /// How long a read waits for a revision that is not reached yet (S5.7).
    pub wait_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            window: Bounds::default(),
            window_counts: BTreeMap::new(),
            wait_max: Duration::from_secs(3),
        }
    }
}

/// The task of the cache: follows the store until it is stopped.
pub struct Cacher {
    cache: Cache,
    position: Revision,
    /// The changes after the position are not available: the cache must be reloaded.
    must_reload: bool,
    /// The store was replaced: earlier events may no longer be true (R37).
    is_replaced: bool,
    /// Wake-ups that are due later.
    due: Vec<ScheduledWakeup>,
}

/// A handle to the cache. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    resources: RwLock<HashMap<String, Arc<Resource>>>,
    /// Every change up to here is visible in every resource.
    applied: Progress,
    is_stopping: AtomicBool,
}

/// Records per page when the cache is loaded: enough to amortize the call, few enough for their
/// memory not to matter.
const PAGE: usize = 1_000;

/// The resources that are being loaded, by prefix.
type ResourceLoads = HashMap<String, ResourceLoad>;

/// How long to wait after a failure of the store.
const RETRY: Duration = Duration::from_millis(200);

/// How often old changes are dropped.
const SWEEP: Duration = Duration::from_secs(1);

impl Cacher {
    /// An empty cache over a store. [`Cacher::load`] loads it, [`Cacher::run`] keeps it current.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Cacher {
        let shared = Shared {
            store,
            options,
            resources: RwLock::new(HashMap::new()),
            applied: Progress::new(),
            is_stopping: AtomicBool::new(false),
        };
        let cache = Cache { shared: Arc::new(shared) };
        Cacher {
            cache,
            position: Revision::ZERO,
            must_reload: false,
            is_replaced: false,
            due: Vec::new(),
        }
    }

    /// A handle to the cache.
    pub fn handle(&self) -> Cache {
        self.cache.clone()
    }

    /// Loads the complete state of the store at one revision. Define resources before, since a
    /// resource whose decoder changes later is decoded again.
    pub async fn load(&mut self) -> Result<(), Error> {
        let (mut loads, revision) = self.read_all().await?;
        let end = match self.is_replaced || revision < self.position {
            true => ViewEnd::Reverted(revision),
            false => ViewEnd::Closed,
        };
        let mut filled = HashSet::new();
        self.fill(&mut loads, &mut filled, revision, end)?;
        self.position = revision;
        self.cache.shared.applied.set(revision);
        // Resources that were defined meanwhile are empty, and must not claim to know earlier
        // changes.
        self.fill(&mut loads, &mut filled, revision, end)?;
        (self.must_reload, self.is_replaced) = (false, false);
        Ok(())
    }

    fn fill(
        &self,
        loads: &mut ResourceLoads,
        filled: &mut HashSet<String>,
        revision: Revision,
        end: ViewEnd,
    ) -> Result<(), Error> {
        for resource in self.cache.resources() {
            if filled.insert(resource.prefix().to_owned()) {
                let read = loads.remove(resource.prefix());
                let load = read.unwrap_or_else(|| resource.load());
                resource.fill(load, revision, end)?;
            }
        }
        Ok(())
    }

    /// Reads page by page; decodes one page while the next one is read.
    async fn read_all(&self) -> Result<(ResourceLoads, Revision), Error> {
        let store = &self.cache.shared.store;
        let mut range =
            Range { prefix: key::ROOT.to_owned(), limit: Some(PAGE), ..Range::default() };
        let mut loads = ResourceLoads::new();
        let mut page = store.range(range.clone()).await?;
        loop {
            let (revision, more) = (page.revision, page.more);
            range.at = Some(revision);
            range.after = page.records.last().map(|record| record.key.clone());
            let decoded = self.cache.clone().decode(loads, page.records);
            if !more {
                return Ok((decoded.await?, revision));
            }
            let next = async { store.range(range.clone()).await.map_err(Error::from) };
            (loads, page) = tokio::try_join!(decoded, next)?;
        }
    }

    /// Follows the store until stopped. Retries while the store is unreachable. If the store has
    /// compacted the next changes, reloads the cache and ends every watcher.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut sweep = tokio::time::interval(SWEEP);
        while let Some(upstream) = stop.run_until_cancelled(self.upstream()).await {
            let mut upstream = upstream?;
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    _ = sweep.tick() => self.sweep(),
                    now = until(self.due.iter().map(|wakeup| wakeup.at).min()) => self.wake(now),
                    batch = upstream.next() => if !self.take(batch)? {
                        break;
                    },
                }
            }
            // It is unknown when the store will be available again.
            self.due.drain(..).for_each(ScheduledWakeup::begin);
            if !self.must_reload {
                // Prevents a busy loop if the store ends its watches at once.
                let _ = stop.run_until_cancelled(tokio::time::sleep(RETRY)).await;
            }
        }
        Ok(())
    }

    /// Opens a watch on the store at the cache's position; retries until it succeeds.
    async fn upstream(&mut self) -> Result<ChangeStream, Error> {
        loop {
            let loaded = match self.must_reload {
                true => self.load().await,
                false => Ok(()),
            };
            let failed = match loaded {
                Ok(()) => match self.open().await {
                    Ok(Some(stream)) => return Ok(stream),
                    Ok(None) => continue,
                    Err(error @ (StoreError::Compacted { .. } | StoreError::Replaced { .. })) => {
                        self.note_failure(&error);
                        continue;
                    }
                    Err(error) => error,
                },
                Err(Error::Store(error)) => error,
                Err(error) => return Err(error),
            };
            self.note_failure(&failed);
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Opens the store's watch; `None` if the store went back to an older revision.
    async fn open(&mut self) -> Result<Option<ChangeStream>, StoreError> {
        let stream = self.cache.shared.store.watch(key::ROOT, self.position).await?;
        let newest = self.cache.shared.store.revision().await?;
        if newest >= self.position {
            return Ok(Some(stream));
        }
        tracing::error!(
            position = %self.position, %newest,
            "the store went back to an older revision; reloading the cache and expiring all watches"
        );
        self.must_reload = true;
        Ok(None)
    }

    fn note_failure(&mut self, error: &StoreError) {
        let position = self.position;
        match error {
            StoreError::Compacted { oldest, .. } => {
                tracing::warn!(
                    %position, %oldest,
                    "the store compacted past the cache's position; reloading the cache"
                );
                self.must_reload = true;
            }
            StoreError::Replaced { current } => {
                tracing::error!(
                    %position, newest = %current,
                    "the store was replaced; reloading the cache and expiring all watches"
                );
                (self.must_reload, self.is_replaced) = (true, true);
            }
            error => tracing::warn!(%position, "cannot watch the store; retrying: {error}"),
        }
    }

    /// Applies a batch. Returns whether the watch can continue.
    fn take(&mut self, batch: Option<Result<Batch, StoreError>>) -> Result<bool, Error> {
        match batch {
            Some(Ok(batch)) => match self.apply(batch) {
                Ok(()) => Ok(true),
                Err(ApplyError::Unreadable(error)) => Err(error),
                Err(ApplyError::Gap(key)) => {
                    tracing::error!(%key, "the store's watch skipped a change; reloading the cache");
                    self.must_reload = true;
                    Ok(false)
                }
            },
            Some(Err(error)) => {
                self.note_failure(&error);
                Ok(false)
            }
            None => Ok(false),
        }
    }

    fn apply(&mut self, mut batch: Batch) -> Result<(), ApplyError> {
        let fresh = batch.changes.partition_point(|change| change.revision <= self.position);
        for run in runs(&mut batch.changes[fresh..]) {
            self.due.extend(self.cache.resource(collection(&run[0])).apply(run)?);
        }
        self.position = self.position.max(batch.complete_to);
        self.cache.shared.applied.set(self.position);
        Ok(())
    }

    fn wake(&mut self, now: Instant) {
        self.due.extract_if(.., |wakeup| wakeup.at <= now).for_each(ScheduledWakeup::begin);
    }

    fn sweep(&self) {
        let now = Instant::now();
        let compacted = self.cache.shared.store.condition().compacted;
        for resource in self.cache.resources() {
            resource.expire(now, compacted);
        }
        self.cache.drop_retired();
    }
}

/// Waits until a time, or forever; returns the time.
async fn until(then: Option<Instant>) -> Instant {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
    Instant::now()
}

/// However the feed ends, its watchers end too.
impl Drop for Cacher {
    fn drop(&mut self) {
        self.cache.close();
    }
}

impl Cache {
    /// The store behind the cache.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    /// The revision up to which every change is visible.
    pub fn applied(&self) -> Revision {
        self.shared.applied.get()
    }

    /// The resource with a prefix; created if it is new.
    pub fn resource(&self, prefix: &str) -> Arc<Resource> {
        let known = lock::read(&self.shared.resources);
        if let Some(resource) = known.get(prefix) {
            return Arc::clone(resource);
        }
        drop(known);
        self.define(prefix, &ObjectDecoder::default())
    }

    /// All resources.
    pub fn resources(&self) -> Vec<Arc<Resource>> {
        let known = lock::read(&self.shared.resources);
        known.values().cloned().collect()
    }

    /// Sets the selectable fields of a resource. Ends its watchers if it exists already.
    pub fn set_fields(&self, prefix: &str, fields: &[Field]) -> Result<Arc<Resource>, Error> {
        self.set_decoder(prefix, ObjectDecoder::with_fields(fields))
    }

    /// Sets the decoder of a resource. Ends its watchers if it exists already.
    pub fn set_decoder(
        &self,
        prefix: &str,
        decoder: ObjectDecoder,
    ) -> Result<Arc<Resource>, Error> {
        let resource = self.define(prefix, &decoder);
        resource.set_decoder(decoder)?;
        Ok(resource)
    }

    /// Retires a resource whose definition was removed: its watchers end after their pending
    /// events, and it is dropped once it is empty.
    pub fn retire(&self, prefix: &str) {
        let known = lock::read(&self.shared.resources);
        if let Some(resource) = known.get(prefix) {
            resource.retire();
        }
    }

    fn define(&self, prefix: &str, decoder: &ObjectDecoder) -> Arc<Resource> {
        let mut known = lock::write(&self.shared.resources);
        let make = || {
            let bounds = self.bounds(prefix);
            Arc::new(Resource::new(prefix, decoder.clone(), self.applied(), bounds))
        };
        let resource = known.entry(prefix.to_owned()).or_insert_with(make);
        resource.restore();
        Arc::clone(resource)
    }

    /// Drops retired resources. Only the feed calls this, so no change is applied meanwhile.
    fn drop_retired(&self) {
        let mut known = lock::write(&self.shared.resources);
        known.retain(|_, resource| !resource.is_removable());
    }

    fn bounds(&self, prefix: &str) -> Bounds {
        let mut parts = prefix.trim_start_matches(key::ROOT).split('/');
        let (group, plural) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let counts = &self.shared.options.window_counts;
        let count = counts.get(plural).or_else(|| counts.get(&format!("{plural}.{group}")));
        let window = self.shared.options.window;
        Bounds { count: count.copied().unwrap_or(window.count), ..window }
    }

    /// Decodes stored records on a blocking thread.
    async fn decode(
        self,
        loads: ResourceLoads,
        records: Vec<Record>,
    ) -> Result<ResourceLoads, Error> {
        let decoded = tokio::task::spawn_blocking(move || self.add(loads, records));
        match decoded.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(decoded) => Ok(decoded),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => Err(StoreError::Unavailable("the process is stopping".into()).into()),
        }
    }

    fn add(&self, mut loads: ResourceLoads, records: Vec<Record>) -> ResourceLoads {
        for record in records {
            let prefix = key::collection_of(record.key.as_str());
            let name = &record.key.as_str()[prefix.len()..];
            match loads.get_mut(prefix) {
                Some(load) => load.add(name, &record),
                None => {
                    let mut load = self.resource(prefix).load();
                    load.add(name, &record);
                    loads.insert(prefix.to_owned(), load);
                }
            }
        }
        loads
    }

    /// Waits until every write acknowledged before this call is visible (R22). Returns the revision
    /// that the cache has reached.
    pub async fn consistent(&self) -> Result<Revision, Error> {
        let newest = self.shared.store.revision().await?;
        self.reach(newest).await
    }

    /// As [`Cache::consistent`], but waits no longer than this for the cache.
    pub async fn consistent_within(&self, patience: Duration) -> Result<Revision, Error> {
        let newest = self.shared.store.revision().await?;
        self.reach_within(newest, patience).await
    }

    /// Waits until every change that this process knows of is visible, but no longer than this:
    /// callers can continue with an older state. Asks the store nothing.
    pub async fn settle(&self, patience: Duration) {
        let known = self.shared.store.condition().revision;
        let _ = self.reach_within(known, patience).await;
    }

    /// Waits until `revision` is visible, up to the maximum time of a read.
    pub async fn reach(&self, revision: Revision) -> Result<Revision, Error> {
        self.reach_within(revision, self.shared.options.wait_max).await
    }

    async fn reach_within(
        &self,
        revision: Revision,
        patience: Duration,
    ) -> Result<Revision, Error> {
        let current = self.applied();
        if current >= revision {
            return Ok(current);
        }
        let mut applied = self.shared.applied.subscribe();
        let reached = applied.wait_for(|reached| *reached >= revision);
        match tokio::time::timeout(patience, reached).await {
            Ok(Ok(reached)) => Ok(*reached),
            _ => Err(Error::TooLarge { asked: revision, current: self.applied() }),
        }
    }

    /// Compacts history before `at`, after the cache has read it: otherwise the cache would have to
    /// be reloaded, which ends every watcher.
    pub async fn compact(&self, at: Revision) -> Result<(), Error> {
        let newest = self.shared.store.revision().await?;
        self.reach(at.min(newest)).await?;
        Ok(self.shared.store.compact(at).await?)
    }

    /// The current state of a resource. Callers wait for freshness first.
    pub fn snapshot(&self, resource: &Resource) -> Snapshot {
        // In this order: the state contains every change up to `applied`, which was read before. If
        // it contains a newer one, it is the state at that revision.
        let applied = self.applied();
        let state = resource.state();
        let revision = applied.max(state.revision());
        Snapshot::new(state.objects.clone(), revision).with_unreadable(state.unreadable.clone())
    }

    /// The state of a resource at exactly `revision`.
    pub async fn snapshot_at(
        &self,
        resource: &Resource,
        revision: Revision,
    ) -> Result<Snapshot, Error> {
        self.reach(revision).await?;
        let oldest = self.shared.store.condition().compacted;
        if revision < oldest {
            return Err(Error::Expired { asked: revision, oldest });
        }
        if let Some(snapshot) = resource.recall(revision) {
            return Ok(snapshot);
        }
        let range =
            Range { prefix: resource.prefix().to_owned(), at: Some(revision), ..Range::default() };
        match self.shared.store.range(range).await {
            Ok(page) => Ok(resource.snapshot_of(&page.records, revision)),
            Err(StoreError::Compacted { asked, oldest }) => Err(Error::Expired { asked, oldest }),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts a watch. Callers wait for freshness first.
    pub fn watch(&self, resource: &Arc<Resource>, filter: &Filter, start: WatchStart) -> Watcher {
        Watcher::new(self.clone(), Arc::clone(resource), filter, start)
    }

    /// Ends every watcher with [`crate::WatchStep::Stopping`], after its pending events.
    pub fn stop(&self) {
        // In this order: a watcher that is woken must see the flag.
        self.shared.is_stopping.store(true, Ordering::Release);
        self.resources().iter().for_each(|resource| resource.wake_watchers());
    }

    /// Ends every watcher.
    pub fn close(&self) {
        self.resources().iter().for_each(|resource| resource.close());
    }
}

fn collection(change: &Change) -> &str {
    key::collection_of(change.key.as_str())
}

/// Consecutive changes of one collection. All changes of one collection that share a revision are
/// in one run: a watcher that has received a part of them would resume after the others.
fn runs(changes: &mut [Change]) -> impl Iterator<Item = &[Change]> {
    for revision in changes.chunk_by_mut(|a, b| a.revision == b.revision) {
        if revision.len() > 1 {
            revision.sort_by(|a, b| collection(a).cmp(collection(b)));
        }
    }
    changes.chunk_by(|a, b| collection(a) == collection(b))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headwater_store::{ChangeKind, Key};

    use super::*;

    /// R10
    #[test]
    fn changes_of_one_resource_at_one_revision_are_applied_together() {
        let change = |(revision, key): &(u64, &str)| Change {
            revision: Revision(*revision),
            key: Key::new(format!("/registry/core/{key}")),
            kind: ChangeKind::Created,
            value: Bytes::new(),
            prev: None,
        };
        let written = [
            (1, "pods/b"),
            (2, "pods/c"),
            (2, "nodes/n"),
            (2, "pods/a"),
            (3, "pods/d"),
            (4, "nodes/m"),
        ];
        let mut changes: Vec<Change> = written.iter().map(change).collect();
        let found: Vec<Vec<(u64, &str)>> = runs(&mut changes)
            .map(|run| run.iter().map(|c| (c.revision.0, &c.key.as_str()[15..])).collect())
            .collect();
        let expected: [&[(u64, &str)]; 4] = [
            &[(1, "pods/b")],
            &[(2, "nodes/n")],
            &[(2, "pods/c"), (2, "pods/a"), (3, "pods/d")],
            &[(4, "nodes/m")],
        ];
        assert_eq!(found, expected, "in the order of the write");
    }
}
