//! The feed: one watch on the store keeps every resource current.
//!
//! River: store watch → **feed** → resources. One task applies all changes in revision order, so
//! "the cache has reached r" means the same for every resource.
//! Promise: cache(r) = store(r) for every revision the cache claims (R20), and it only moves
//! forward (R21).

use std::collections::{BTreeMap, HashMap, HashSet};
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
use crate::filling::Filling;
use crate::progress::Progress;
use crate::resource::{Fault, Resource};
use crate::shape::Shape;
use crate::snapshot::Snapshot;
use crate::view::{End, Filter, NextRound};
use crate::watcher::{Start, Watcher};
use crate::window::Bounds;

/// How the cache is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much of the past each resource keeps in memory.
    pub window: Bounds,
    /// The number of changes some resources keep, by plural name (`pods`, `deployments.apps`).
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

/// The part that runs: follows the store until it is stopped.
pub struct Cacher {
    cache: Cache,
    position: Revision,
    /// What comes after the position is not to be had: everything must be read again.
    is_lost: bool,
    /// The store is another: what watchers were told is not true any more (R37).
    is_replaced: bool,
    /// Rounds that are to begin, each at its time.
    due: Vec<NextRound>,
}

/// The way in: cheap to clone.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    resources: RwLock<HashMap<String, Arc<Resource>>>,
    /// Every change up to here is visible in every resource.
    applied: Arc<Progress>,
}

/// Records read at a time when the cache is filled: many enough that asking costs little, few
/// enough that their memory does not matter.
const PAGE: usize = 1_000;

/// What is being read from the store, by the prefix of its resource.
type Fillings = HashMap<String, Filling>;

/// How long to wait before the store is asked again after a failure.
const RETRY: Duration = Duration::from_millis(200);

/// How often old changes are dropped.
const SWEEP: Duration = Duration::from_secs(1);

impl Cacher {
    /// An empty cache over a store. [`Cacher::load`] fills it, [`Cacher::run`] follows.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Cacher {
        let shared = Shared {
            store,
            options,
            resources: RwLock::new(HashMap::new()),
            applied: Arc::new(Progress::new()),
        };
        let cache = Cache { shared: Arc::new(shared) };
        Cacher {
            cache,
            position: Revision::ZERO,
            is_lost: false,
            is_replaced: false,
            due: Vec::new(),
        }
    }

    /// The way in.
    pub fn handle(&self) -> Cache {
        self.cache.clone()
    }

    /// Reads the whole state of the store at one revision. What was defined before is read once; a
    /// resource that gets other fields later has to be read again.
    pub async fn load(&mut self) -> Result<(), Error> {
        let (mut fillings, revision) = self.read_all().await?;
        let end = match self.is_replaced || revision < self.position {
            true => End::WentBack(revision),
            false => End::Closed,
        };
        let mut filled = HashSet::new();
        self.fill(&mut fillings, &mut filled, revision, end)?;
        self.position = revision;
        self.cache.shared.applied.set(revision);
        // Resources that were defined meanwhile hold nothing, and must not claim to know what
        // happened before.
        self.fill(&mut fillings, &mut filled, revision, end)?;
        (self.is_lost, self.is_replaced) = (false, false);
        Ok(())
    }

    fn fill(
        &self,
        fillings: &mut Fillings,
        filled: &mut HashSet<String>,
        revision: Revision,
        end: End,
    ) -> Result<(), Error> {
        for resource in self.cache.resources() {
            if filled.insert(resource.prefix().to_owned()) {
                let read = fillings.remove(resource.prefix());
                let filling = read.unwrap_or_else(|| resource.filling());
                resource.fill(filling, revision, end)?;
            }
        }
        Ok(())
    }

    /// Reads page by page; one is decoded while the next is read.
    async fn read_all(&self) -> Result<(Fillings, Revision), Error> {
        let store = &self.cache.shared.store;
        let mut range =
            Range { prefix: key::ROOT.to_owned(), limit: Some(PAGE), ..Range::default() };
        let mut fillings = Fillings::new();
        let mut page = store.range(range.clone()).await?;
        loop {
            let (revision, more) = (page.revision, page.more);
            range.at = Some(revision);
            range.after = page.records.last().map(|record| record.key.clone());
            let decoded = self.cache.clone().decode(fillings, page.records);
            if !more {
                return Ok((decoded.await?, revision));
            }
            let next = async { store.range(range.clone()).await.map_err(Error::from) };
            (fillings, page) = tokio::try_join!(decoded, next)?;
        }
    }

    /// Follows the store until stopped. A store that cannot be reached is tried again; a store
    /// that has forgotten what comes next is read again from the start, and every watcher ends.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut sweep = tokio::time::interval(SWEEP);
        while let Some(upstream) = stop.run_until_cancelled(self.upstream()).await {
            let mut upstream = upstream?;
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return Ok(()),
                    _ = sweep.tick() => self.sweep(),
                    now = until(self.due.iter().map(|round| round.at).min()) => self.wake(now),
                    batch = upstream.next() => if !self.take(batch)? {
                        break;
                    },
                }
            }
            // Nobody knows when the store can be followed again.
            self.due.drain(..).for_each(NextRound::begin);
            if !self.is_lost {
                // A store that ends its watches at once must not keep us busy.
                let _ = stop.run_until_cancelled(tokio::time::sleep(RETRY)).await;
            }
        }
        Ok(())
    }

    /// A watch on the store from where the cache is, however often that has to be tried.
    async fn upstream(&mut self) -> Result<ChangeStream, Error> {
        loop {
            let loaded = match self.is_lost {
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

    /// Opens the store's watch; `None` if the store is no longer the one it was.
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
        self.is_lost = true;
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
                self.is_lost = true;
            }
            StoreError::Replaced { current } => {
                tracing::error!(
                    %position, newest = %current,
                    "the store was replaced; reloading the cache and expiring all watches"
                );
                (self.is_lost, self.is_replaced) = (true, true);
            }
            error => tracing::warn!(%position, "cannot watch the store; retrying: {error}"),
        }
    }

    /// Takes what the store tells; whether it can tell more.
    fn take(&mut self, batch: Option<Result<Batch, StoreError>>) -> Result<bool, Error> {
        match batch {
            Some(Ok(batch)) => match self.apply(&batch) {
                Ok(()) => Ok(true),
                Err(Fault::Malformed(error)) => Err(error),
                Err(Fault::Hole(key)) => {
                    tracing::error!(%key, "the store's watch skipped a change; reloading the cache");
                    self.is_lost = true;
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

    fn apply(&mut self, batch: &Batch) -> Result<(), Fault> {
        let fresh = batch.changes.partition_point(|change| change.revision <= self.position);
        let mut rest = &batch.changes[fresh..];
        while let Some(first) = rest.first() {
            let prefix = collection_of(first.key.as_str());
            let same = |change: &Change| collection_of(change.key.as_str()) == prefix;
            let run = rest.iter().take_while(|change| same(change)).count();
            self.due.extend(self.cache.resource(prefix).apply(&rest[..run])?);
            rest = &rest[run..];
        }
        self.position = self.position.max(batch.complete_to);
        self.cache.shared.applied.set(self.position);
        Ok(())
    }

    fn wake(&mut self, now: Instant) {
        self.due.extract_if(.., |round| round.at <= now).for_each(NextRound::begin);
    }

    fn sweep(&self) {
        let now = Instant::now();
        let compacted = self.cache.shared.store.condition().compacted;
        for resource in self.cache.resources() {
            resource.expire(now, compacted);
        }
        self.cache.forget_retired();
    }
}

/// Waits until then, if ever; answers when that was.
async fn until(then: Option<Instant>) -> Instant {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
    Instant::now()
}

/// However the feed ends, nobody waits for it.
impl Drop for Cacher {
    fn drop(&mut self) {
        self.cache.close();
    }
}

impl Cache {
    /// The store behind.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Every change up to here is visible.
    pub fn applied(&self) -> Revision {
        self.shared.applied.get()
    }

    /// The resource whose keys begin with `prefix`; it is made if it is new.
    pub fn resource(&self, prefix: &str) -> Arc<Resource> {
        let known = lock::read(&self.shared.resources);
        if let Some(resource) = known.get(prefix) {
            return Arc::clone(resource);
        }
        drop(known);
        self.define(prefix, &Shape::default())
    }

    /// All resources.
    pub fn resources(&self) -> Vec<Arc<Resource>> {
        let known = lock::read(&self.shared.resources);
        known.values().cloned().collect()
    }

    /// Says which fields of a resource are selectable. Its watchers end if it was known before.
    pub fn redefine(&self, prefix: &str, fields: &[Field]) -> Result<Arc<Resource>, Error> {
        self.reshape(prefix, Shape::plain(fields))
    }

    /// Says how the objects of a resource are read. Its watchers end if it was known before.
    pub fn reshape(&self, prefix: &str, shape: Shape) -> Result<Arc<Resource>, Error> {
        let resource = self.define(prefix, &shape);
        resource.reshape(shape)?;
        Ok(resource)
    }

    /// Nobody defines this resource any more: its watchers end, after what they have not been
    /// given yet, and it is forgotten once it is empty.
    pub fn retire(&self, prefix: &str) {
        let known = lock::read(&self.shared.resources);
        if let Some(resource) = known.get(prefix) {
            resource.retire();
        }
    }

    fn define(&self, prefix: &str, shape: &Shape) -> Arc<Resource> {
        let mut known = lock::write(&self.shared.resources);
        let make = || {
            let bounds = self.bounds(prefix);
            Arc::new(Resource::new(prefix, shape.clone(), self.applied(), bounds))
        };
        let resource = known.entry(prefix.to_owned()).or_insert_with(make);
        resource.restore();
        Arc::clone(resource)
    }

    /// Forgets resources that nobody defines. Only the feed does this: nothing is applied
    /// meanwhile.
    fn forget_retired(&self) {
        let mut known = lock::write(&self.shared.resources);
        known.retain(|_, resource| !resource.is_forgettable());
    }

    fn bounds(&self, prefix: &str) -> Bounds {
        let mut parts = prefix.trim_start_matches(key::ROOT).split('/');
        let (group, plural) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let counts = &self.shared.options.window_counts;
        let count = counts.get(plural).or_else(|| counts.get(&format!("{plural}.{group}")));
        let window = self.shared.options.window;
        Bounds { count: count.copied().unwrap_or(window.count), ..window }
    }

    /// Adds stored records to what was read, on a thread that may take its time.
    async fn decode(self, fillings: Fillings, records: Vec<Record>) -> Result<Fillings, Error> {
        let decoded = tokio::task::spawn_blocking(move || self.add(fillings, records));
        match decoded.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(decoded) => decoded,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => Err(StoreError::Unavailable("the process is stopping".into()).into()),
        }
    }

    fn add(&self, mut fillings: Fillings, records: Vec<Record>) -> Result<Fillings, Error> {
        for record in records {
            let prefix = collection_of(record.key.as_str());
            match fillings.get_mut(prefix) {
                Some(filling) => filling.add(&record)?,
                None => {
                    let mut filling = self.resource(prefix).filling();
                    filling.add(&record)?;
                    fillings.insert(prefix.to_owned(), filling);
                }
            }
        }
        Ok(fillings)
    }

    /// Waits until every write acknowledged before this call is visible (R22), and answers how
    /// far the cache is then.
    pub async fn consistent(&self) -> Result<Revision, Error> {
        let newest = self.shared.store.revision().await?;
        self.reach(newest).await
    }

    /// Waits until `revision` is visible, at most as long as a read may wait.
    pub async fn reach(&self, revision: Revision) -> Result<Revision, Error> {
        let current = self.applied();
        if current >= revision {
            return Ok(current);
        }
        let mut applied = self.shared.applied.subscribe();
        let reached = applied.wait_for(|reached| *reached >= revision);
        match tokio::time::timeout(self.shared.options.wait_max, reached).await {
            Ok(Ok(reached)) => Ok(*reached),
            _ => Err(Error::TooLarge { asked: revision, current: self.applied() }),
        }
    }

    /// Forgets history below `at`, but not before the cache has read it: it would have to be filled
    /// anew, and every watcher would end.
    pub async fn compact(&self, at: Revision) -> Result<(), Error> {
        let newest = self.shared.store.revision().await?;
        self.reach(at.min(newest)).await?;
        Ok(self.shared.store.compact(at).await?)
    }

    /// The state of a resource now. Wait for freshness first.
    pub fn snapshot(&self, resource: &Resource) -> Snapshot {
        // In this order: the state has every change up to what was applied before it was read. If
        // it has a newer one, it is the state at that one.
        let applied = self.applied();
        let state = resource.state();
        let revision = applied.max(state.revision());
        Snapshot::new(state.objects.clone(), revision)
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
            Ok(page) => resource.snapshot_of(&page.records, revision),
            Err(StoreError::Compacted { asked, oldest }) => Err(Error::Expired { asked, oldest }),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts a watch. Wait for freshness first.
    pub fn watch(&self, resource: &Arc<Resource>, filter: &Filter, start: Start) -> Watcher {
        Watcher::new(
            Arc::clone(resource),
            Arc::clone(&self.shared.store),
            Arc::clone(&self.shared.applied),
            filter,
            start,
        )
    }

    /// Wakes every watcher, so that whoever drives it looks around.
    pub fn nudge(&self) {
        self.resources().iter().for_each(|resource| resource.nudge());
    }

    /// Ends every watcher.
    pub fn close(&self) {
        self.resources().iter().for_each(|resource| resource.close());
    }
}

/// `/registry/core/pods/default/a` is in the collection `/registry/core/pods/`.
fn collection_of(key: &str) -> &str {
    let mut slashes = key.match_indices('/').map(|(at, _)| at);
    match slashes.nth(3) {
        Some(end) => &key[..=end],
        None => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_its_collection() {
        assert_eq!(collection_of("/registry/core/pods/default/a"), "/registry/core/pods/");
        assert_eq!(collection_of("/registry/apps/deployments/ns/a"), "/registry/apps/deployments/");
        assert_eq!(collection_of("/registry/core/nodes/n1"), "/registry/core/nodes/");
    }
}
