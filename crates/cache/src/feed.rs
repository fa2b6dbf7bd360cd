//! The feed: one watch on the store keeps every resource current.
//!
//! River: store watch → **feed** → resources. One task applies all changes in revision order, so
//! "the cache has reached r" means the same for every resource.
//! Promise: cache(r) = store(r) for every revision the cache claims (R20), and it only moves
//! forward (R21).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use futures::StreamExt;
use headwater_api::Revision;
use headwater_api::kind::Field;
use headwater_store::{
    Batch, Change, ChangeStream, Error as StoreError, Range, Record, Store, key,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::resource::{Resource, Shape};
use crate::snapshot::Snapshot;
use crate::view::Filter;
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
    applied: watch::Sender<Revision>,
}

/// Records read at a time when the cache is filled.
const PAGE: usize = 10_000;

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
            applied: watch::Sender::new(Revision::ZERO),
        };
        Cacher { cache: Cache { shared: Arc::new(shared) }, position: Revision::ZERO }
    }

    /// The way in.
    pub fn handle(&self) -> Cache {
        self.cache.clone()
    }

    /// Reads the whole state of the store at one revision.
    pub async fn load(&mut self) -> Result<(), Error> {
        let mut records: HashMap<String, Vec<Record>> = HashMap::new();
        let mut range =
            Range { prefix: key::ROOT.to_owned(), limit: Some(PAGE), ..Range::default() };
        let revision = loop {
            let page = self.cache.shared.store.range(range.clone()).await?;
            range.at = Some(page.revision);
            range.after = page.records.last().map(|record| record.key.clone());
            for record in page.records {
                let prefix = collection_of(record.key.as_str()).to_owned();
                records.entry(prefix).or_default().push(record);
            }
            if !page.more {
                break page.revision;
            }
        };
        for prefix in records.keys() {
            self.cache.resource(prefix);
        }
        let resources: Vec<Arc<Resource>> = self.cache.resources();
        for resource in resources {
            resource.fill(records.remove(resource.prefix()).unwrap_or_default(), revision)?;
        }
        self.position = revision;
        self.cache.shared.applied.send_replace(revision);
        Ok(())
    }

    /// Follows the store until stopped. A store that cannot be reached is tried again; a store
    /// that has forgotten what comes next is read again from the start, and every watcher ends.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut sweep = tokio::time::interval(SWEEP);
        let mut changes: Option<ChangeStream> = None;
        while !stop.is_cancelled() {
            let stream = match changes.take() {
                Some(stream) => changes.insert(stream),
                None => match self.open(&stop).await? {
                    Some(stream) => changes.insert(stream),
                    None => break,
                },
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sweep.tick() => self.sweep(),
                batch = stream.next() => match batch {
                    Some(Ok(batch)) => self.apply(&batch)?,
                    Some(Err(error)) => {
                        changes = None;
                        self.after_failure(&error, &stop).await?;
                    }
                    None => changes = None,
                },
            }
        }
        self.cache.close();
        Ok(())
    }

    async fn open(&mut self, stop: &CancellationToken) -> Result<Option<ChangeStream>, Error> {
        loop {
            match self.cache.shared.store.watch(key::ROOT, self.position).await {
                Ok(stream) => return Ok(Some(stream)),
                Err(error) => self.after_failure(&error, stop).await?,
            }
            if stop.is_cancelled() {
                return Ok(None);
            }
        }
    }

    async fn after_failure(
        &mut self,
        error: &StoreError,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        tracing::warn!(position = %self.position, "the store's watch ended: {error}");
        if matches!(error, StoreError::Compacted { .. }) {
            return match self.load().await {
                Err(Error::Store(error)) => {
                    tracing::warn!("the store could not be read: {error}");
                    Ok(())
                }
                done => done,
            };
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
        Ok(())
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), Error> {
        let fresh = batch.changes.partition_point(|change| change.revision <= self.position);
        let mut rest = &batch.changes[fresh..];
        while let Some(first) = rest.first() {
            let prefix = collection_of(first.key.as_str());
            let same = |change: &Change| collection_of(change.key.as_str()) == prefix;
            let run = rest.iter().take_while(|change| same(change)).count();
            self.cache.resource(prefix).apply(&rest[..run])?;
            rest = &rest[run..];
        }
        self.position = self.position.max(batch.complete_to);
        self.cache.shared.applied.send_replace(self.position);
        Ok(())
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

impl Cache {
    /// The store behind.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Every change up to here is visible.
    pub fn applied(&self) -> Revision {
        *self.shared.applied.borrow()
    }

    /// The resource whose keys begin with `prefix`; it is made if it is new.
    pub fn resource(&self, prefix: &str) -> Arc<Resource> {
        let known = self.shared.resources.read().expect("maps are never left half-changed");
        if let Some(resource) = known.get(prefix) {
            return Arc::clone(resource);
        }
        drop(known);
        self.define(prefix, &Shape::default())
    }

    /// All resources.
    pub fn resources(&self) -> Vec<Arc<Resource>> {
        let known = self.shared.resources.read().expect("maps are never left half-changed");
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
        let known = self.shared.resources.read().expect("maps are never left half-changed");
        if let Some(resource) = known.get(prefix) {
            resource.retire();
        }
    }

    fn define(&self, prefix: &str, shape: &Shape) -> Arc<Resource> {
        let mut known = self.shared.resources.write().expect("maps are never left half-changed");
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
        let mut known = self.shared.resources.write().expect("maps are never left half-changed");
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
            self.shared.applied.subscribe(),
            filter,
            start,
        )
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
