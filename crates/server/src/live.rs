//! Live resources: what the server is doing now, as read-only kinds of `headwater.dev`, the health of
//! components, and what simulated containers use, as metrics.
//!
//! Reading order: `kinds::live` are the kinds, `watches` is who watches what, `objects` are both as
//! objects; `traffic` counts requests by user, for the river.
//!
//! River: open watches, requests in flight → **live** → list and watch. The kinds have a small cache of
//! their own over a store in memory, so lists, watches, selectors and tables work as for every other
//! kind; a sample writes what has changed into that store.
//! Promise: nothing is sampled while nobody reads (S11.30); a sample delays no request and no watch.

pub(crate) mod watches;
mod components;
mod objects;
pub(crate) mod traffic;
mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headwater_api::{Clock, Revision};
use headwater_cache::{Cache, Cacher};
use headwater_store::{Action, Guard, Key, Memory, MemoryOptions, Write};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::containers::ContainerRuntime;
use crate::kinds::live;
use crate::kinds::registry::Served;
use crate::lock::lock;
use crate::request::flow::FlowControl;
use traffic::Traffic;
use watches::OpenWatches;

/// A read after a sample this young needs no other.
const FRESH_FOR: Duration = Duration::from_millis(50);

/// How often watches of live resources see changes, if a sample takes no time.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// A sample may take this part of the time.
const SAMPLE_SHARE: u32 = 20;

/// Without a reader for so long, the objects are dropped.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The most objects of a kind: those furthest behind, and the oldest.
const OBJECTS_MAX: usize = 10_000;

/// The history that watches of live resources can resume from.
const HISTORY_BYTES: usize = 8 << 20;

/// The live resources of a server.
pub(crate) struct LiveResources {
    cache: Cache,
    watches: Arc<OpenWatches>,
    traffic: Arc<Traffic>,
    clock: Arc<dyn Clock>,
    /// Where the leases of components are.
    stored: Cache,
    /// Whose metrics are served, with the cache of its pods and nodes.
    metrics: Option<(Arc<dyn ContainerRuntime>, Cache)>,
    /// Keeps the cache current; taken by the part that runs it.
    feed: Mutex<Option<Cacher>>,
    sampled: tokio::sync::Mutex<Sample>,
}

/// The objects of the last sample.
#[derive(Default)]
struct Sample {
    objects: BTreeMap<Key, (Revision, Bytes)>,
    taken: Option<Instant>,
    /// The last time that somebody read.
    read: Option<Instant>,
}

impl LiveResources {
    /// No objects yet. Versions begin with the time, so that they grow over restarts of the server.
    pub(crate) fn new(
        clock: &Arc<dyn Clock>,
        stored: Cache,
        metrics: Option<(Arc<dyn ContainerRuntime>, Cache)>,
    ) -> LiveResources {
        let now = clock.now().as_millisecond();
        let first = Revision(u64::try_from(now).unwrap_or_default().max(1));
        let options =
            MemoryOptions { first, history_bytes_max: HISTORY_BYTES, ..MemoryOptions::default() };
        let mut window = headwater_cache::Options::default();
        window.window.bytes = HISTORY_BYTES;
        let feed = Cacher::new(Arc::new(Memory::new(options)), window);
        LiveResources {
            cache: feed.handle(),
            watches: Arc::default(),
            traffic: Arc::default(),
            clock: Arc::clone(clock),
            stored,
            metrics,
            feed: Mutex::new(Some(feed)),
            sampled: tokio::sync::Mutex::default(),
        }
    }

    /// Whether a kind is one of them.
    pub(crate) fn covers(&self, kind: &Served) -> bool {
        let is_own = kind.custom && kind.definition.is_none() && live::is_live(&kind.group);
        is_own || kind.group.is_empty() && kind.plural == components::PLURAL
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn watches(&self) -> &Arc<OpenWatches> {
        &self.watches
    }

    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Takes a sample if the last one is not fresh.
    pub(crate) async fn refresh(&self, flow: &FlowControl) {
        let mut sample = self.sampled.lock().await;
        sample.read = Some(Instant::now());
        if sample.taken.is_none_or(|taken| taken.elapsed() >= FRESH_FOR) {
            self.sample(&mut sample, flow).await;
        }
    }

    /// Keeps the cache current, and takes samples while somebody watches.
    pub(crate) async fn run(&self, flow: &FlowControl, stop: CancellationToken) {
        let feed = lock(&self.feed).take();
        let Some(mut feed) = feed else { return stop.cancelled().await };
        let followed = async {
            let ended = match feed.load().await {
                Ok(()) => feed.run(stop.clone()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::error!(%error, "the resources of {} are not available", live::GROUP);
            }
        };
        tokio::join!(followed, self.sample_while_watched(flow, &stop));
    }

    async fn sample_while_watched(&self, flow: &FlowControl, stop: &CancellationToken) {
        let mut pause = SAMPLE_EVERY;
        while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
            let mut sample = self.sampled.lock().await;
            let began = Instant::now();
            let is_watched = self.cache.resources().iter().any(|kind| kind.watchers() > 0);
            if is_watched {
                sample.read = Some(began);
                self.sample(&mut sample, flow).await;
            } else if sample.read.is_some_and(|read| read.elapsed() >= IDLE_MAX) {
                self.replace(&mut sample, BTreeMap::new()).await;
                *sample = Sample::default();
            }
            pause = SAMPLE_EVERY.max(began.elapsed() * SAMPLE_SHARE);
        }
    }

    async fn sample(&self, sample: &mut Sample, flow: &FlowControl) {
        let (watches, now) = (Arc::clone(&self.watches), self.clock.now());
        let requests = flow.in_flight(OBJECTS_MAX);
        let (stored, metrics) = (self.stored.clone(), self.metrics.clone());
        // Many objects take long, and this may run on a thread that serves requests.
        let described = tokio::task::spawn_blocking(move || {
            let mut objects = objects::watchers(&watches, OBJECTS_MAX);
            objects.extend(objects::requests(&requests, now));
            objects.extend(components::objects(&stored, now));
            if let Some((runtime, cache)) = metrics {
                objects.extend(usage::objects(&*runtime, &cache, now, OBJECTS_MAX));
            }
            objects
        });
        // It fails only if the process stops, or panics; the objects are those of the last time then.
        if let Ok(objects) = described.await {
            self.replace(sample, objects).await;
        }
        sample.taken = Some(Instant::now());
    }

    /// Writes the difference to the last sample.
    async fn replace(&self, sample: &mut Sample, objects: BTreeMap<Key, Bytes>) {
        let gone: Vec<Key> =
            sample.objects.keys().filter(|key| !objects.contains_key(*key)).cloned().collect();
        for key in gone {
            if let Some((at, _)) = sample.objects.remove(&key) {
                self.commit(Write::one(key, Guard::At(at), Action::Delete)).await;
            }
        }
        for (key, value) in objects {
            let guard = match sample.objects.get(&key) {
                Some((_, known)) if *known == value => continue,
                Some((at, _)) => Guard::At(*at),
                None => Guard::Absent,
            };
            let put = Action::Put { value: value.clone(), ttl: None };
            if let Some(at) = self.commit(Write::one(key.clone(), guard, put)).await {
                sample.objects.insert(key, (at, value));
            }
        }
    }

    /// One write for each object, because watches resume after their last event. Only the sampler
    /// writes, so no guard fails; a value that is too large is left out.
    async fn commit(&self, write: Write) -> Option<Revision> {
        let committed = self.cache.store().commit(write).await;
        committed
            .inspect_err(|error| tracing::warn!(%error, "cannot keep a live object"))
            .ok()
            .map(|committed| committed.last)
    }
}
