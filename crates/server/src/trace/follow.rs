//! A write on its way to its watchers.
//!
//! River: commit, watch streams → **follow** → spans.
//! Promise: events are noticed only while a write is followed; a write is followed for about ten
//! seconds at most, and no stream waits for it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use headwater_api::Revision;
use headwater_cache::{Cache, WatchEvent};
use headwater_store::{Key, key};
use tokio_util::sync::CancellationToken;

use super::{ActiveTracer, FOLLOWED_MAX, RequestTrace, Tracer};
use crate::lock::lock;

/// The first and the longest pause between two looks at the watches that have not read a write.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The number of looks: about ten seconds.
const LOOKS: u32 = 26;

/// How many versions of one object are distinguished while a write of it is followed.
const VERSIONS_MAX: usize = 16;

/// A write of an object whose events are noticed.
pub(super) struct FollowedWrite {
    collection: Box<str>,
    name: Box<str>,
    sent: Mutex<Vec<SentVersion>>,
}

/// How often a version was sent, and when.
#[derive(Clone, Copy)]
struct SentVersion {
    revision: Revision,
    watchers: u64,
    first: Instant,
    last: Instant,
}

/// Notices events of a write until it is dropped.
pub(super) struct Following {
    active: Arc<ActiveTracer>,
    write: Arc<FollowedWrite>,
}

/// A committed write that is followed.
pub(super) struct StoredWrite {
    pub(super) trace: Arc<RequestTrace>,
    pub(super) following: Following,
    pub(super) revision: Revision,
    pub(super) durable: Instant,
}

impl Following {
    /// Begins before the commit, because watchers may be faster than its answer. `None` if too many
    /// writes are followed.
    pub(super) fn begin(active: &Arc<ActiveTracer>, key: &Key) -> Option<Following> {
        let collection = key::collection_of(key.as_str());
        let write = Arc::new(FollowedWrite {
            collection: collection.into(),
            name: key.as_str()[collection.len()..].into(),
            sent: Mutex::default(),
        });
        let mut followed = lock(&active.followed);
        if followed.len() >= FOLLOWED_MAX {
            active.lost.inc();
            return None;
        }
        followed.push(Arc::clone(&write));
        active.followed_count.store(followed.len(), Relaxed);
        drop(followed);
        Some(Following { active: Arc::clone(active), write })
    }

    fn sent(&self, revision: Revision) -> Option<SentVersion> {
        lock(&self.write.sent).iter().find(|sent| sent.revision == revision).copied()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followed = lock(&self.active.followed);
        followed.retain(|write| !Arc::ptr_eq(write, &self.write));
        self.active.followed_count.store(followed.len(), Relaxed);
    }
}

impl FollowedWrite {
    fn note(&self, revision: Revision, now: Instant) {
        let mut sent = lock(&self.sent);
        if let Some(known) = sent.iter_mut().find(|known| known.revision == revision) {
            known.watchers += 1;
            known.last = now;
        } else if sent.len() < VERSIONS_MAX {
            sent.push(SentVersion { revision, watchers: 1, first: now, last: now });
        }
    }
}

impl Tracer {
    /// Notices events of a resource that a watch sends now.
    pub(crate) fn sent(&self, collection: &str, events: &[WatchEvent]) {
        let Some(active) = &self.0 else { return };
        if active.followed_count.load(Relaxed) == 0 {
            return;
        }
        let followed: Vec<Arc<FollowedWrite>> = lock(&active.followed)
            .iter()
            .filter(|write| *write.collection == *collection)
            .cloned()
            .collect();
        if followed.is_empty() {
            return;
        }
        let now = Instant::now();
        for event in events {
            let of_event = followed.iter().filter(|write| *write.name == *event.object().key());
            of_event.for_each(|write| write.note(event.revision(), now));
        }
    }

    /// Follows writes until the server stops. `behind` counts the watches of a collection that have
    /// something up to a revision to send.
    pub(crate) async fn follow(
        self,
        cache: &Cache,
        behind: impl Fn(&str, Revision) -> usize,
        stop: CancellationToken,
    ) {
        let arriving = self.0.as_ref().and_then(|active| lock(&active.arriving).take());
        let Some(mut arriving) = arriving else { return stop.cancelled().await };
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(stored) = arriving.recv() => running.push(stored.follow(cache, &behind)),
                Some(()) = running.next() => {}
            }
        }
    }
}

impl StoredWrite {
    /// Waits until the cache and all watchers have the write, and sends their spans.
    async fn follow(self, cache: &Cache, behind: &impl Fn(&str, Revision) -> usize) {
        let StoredWrite { trace, following, revision, durable } = &self;
        if cache.reach(*revision).await.is_err() {
            return; // the store is away, or the server stops
        }
        let reached = Instant::now();
        let late = self.wait(behind).await;
        let sent = following.sent(*revision);
        // A watcher on another thread can be faster than this task.
        let applied = sent.map_or(reached, |sent| reached.min(sent.first));
        trace.child(trace.id, "watch cache", (*durable, applied), Vec::new());
        if let Some(SentVersion { first, last, watchers, .. }) = sent {
            let counts = vec![
                ("headwater.watchers", watchers.into()),
                ("headwater.watchers.late", u64::try_from(late).unwrap_or(u64::MAX).into()),
            ];
            trace.child(trace.id, "first watcher", (applied, first), Vec::new());
            trace.child(trace.id, "last watcher", (applied, last), counts);
        }
    }

    /// Waits until no watcher is behind, twice: a watcher counts as having read an event shortly before
    /// it is noticed. Returns how many are still behind at the end.
    async fn wait(&self, behind: &impl Fn(&str, Revision) -> usize) -> usize {
        let (mut pause, mut was_quiet, mut late) = (PAUSE_MIN, false, 0);
        for _ in 0..LOOKS {
            late = behind(&self.following.write.collection, self.revision);
            if late == 0 && was_quiet {
                break;
            }
            was_quiet = late == 0;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        late
    }
}
