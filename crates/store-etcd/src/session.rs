//! A session: one process's connection to an etcd cluster and what the process knows about it.
//!
//! River: engine, feed, compaction → **session** → client. The modules `read` and `write` add its
//! calls to etcd.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use headwater_api::Revision;
use headwater_store::lock::lock;
use headwater_store::recent::RecentChanges;
use headwater_store::times::WriteTimes;
use headwater_store::{RevisionAt, Scrubbed, StoreCondition, TimedRevision};
use tokio::sync::watch;

use crate::client::{Client, EpochRevision};
use crate::convert::Keyspace;
use crate::lease::Lease;
use crate::options::Options;

/// The state that the engine, its tasks and its watchers share.
pub(crate) struct Session {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) keyspace: Keyspace,
    /// Whether etcd sends progress notifications in order with events.
    pub(crate) trusts_progress: bool,
    recent: Mutex<RecentChanges>,
    /// When this process received revisions; none from before its start.
    times: Mutex<WriteTimes>,
    /// The revision up to which the feed has copied changes into `recent`.
    pub(crate) copied_to: watch::Sender<EpochRevision>,
    /// The newest known compaction, by this or another replica.
    compacted: AtomicU64,
    pub(crate) disk_bytes: AtomicU64,
    watch_trouble: Mutex<Option<String>>,
    /// The lease that new objects with a time to live share.
    pub(crate) lease: tokio::sync::Mutex<Option<Lease>>,
    /// How many callers have asked for the newest revision.
    pub(crate) newest_callers: AtomicU64,
    /// The last response to them, and how many callers it covers.
    pub(crate) newest: tokio::sync::Mutex<(u64, Result<Revision, String>)>,
}

/// What the check at the start learned about the cluster.
pub(crate) struct ClusterInfo {
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    pub(crate) trusts_progress: bool,
}

/// Revisions that the feed reads again at the start, so that watchers that reconnect after a
/// restart find them in memory instead of each reading them from etcd.
const REPLAYED_MAX: u64 = 10_000;

/// The resolution of times of revisions.
const TIMES_MILLIS: i64 = 1_000;

impl Session {
    pub(crate) fn new(client: Client, options: Options, info: &ClusterInfo) -> Arc<Session> {
        let begins_after = match info.compacted {
            Revision::ZERO => info.revision,
            oldest => oldest.max(Revision(info.revision.0.saturating_sub(REPLAYED_MAX))),
        };
        let session = Session {
            client,
            keyspace: Keyspace::new(&options.prefix, &options.root),
            trusts_progress: options.trusts_progress.unwrap_or(info.trusts_progress),
            recent: Mutex::new(RecentChanges::after(begins_after)),
            copied_to: watch::Sender::new(EpochRevision { revision: begins_after, epoch: 0 }),
            compacted: AtomicU64::new(info.compacted.0),
            disk_bytes: AtomicU64::new(0),
            watch_trouble: Mutex::new(None),
            lease: tokio::sync::Mutex::new(None),
            newest_callers: AtomicU64::new(0),
            newest: tokio::sync::Mutex::new((0, Ok(Revision::ZERO))),
            times: Mutex::new(WriteTimes::with_resolution(TIMES_MILLIS)),
            options,
        };
        session.begin_times(info.revision);
        Arc::new(session)
    }

    /// Knows the times of revisions after this one, the newest.
    pub(crate) fn begin_times(&self, newest: Revision) {
        let mut times = WriteTimes::with_resolution(TIMES_MILLIS);
        times.push(self.now(), newest.next());
        *lock(&self.times) = times;
    }

    /// Notes when the changes up to a revision arrived; the first of them is the one after `known`.
    pub(crate) fn note_time(&self, known: Revision, reached: Revision) {
        let mut times = lock(&self.times);
        // The feed begins with changes from before the start, whose times are not known.
        let begins = times.first().map_or(Revision::ZERO, |(_, first)| first);
        if reached >= begins {
            times.push(self.now(), known.next().max(begins));
            times.forget_to(self.compacted());
        }
    }

    /// The time of a revision, within a second.
    pub(crate) fn time_of(&self, revision: Revision) -> Option<i64> {
        lock(&self.times).of(revision)
    }

    /// The newest revision at a time, within a second.
    pub(crate) fn revision_at(&self, time: i64) -> RevisionAt {
        let (compacted, newest) = (self.compacted(), self.recent().complete_to());
        let times = lock(&self.times);
        let oldest = TimedRevision { revision: compacted, time: times.of(compacted) };
        let known_from = times.first().map(|(time, _)| time).filter(|_| oldest.time.is_none());
        let found = times.at(time, newest).filter(|found| *found >= compacted);
        RevisionAt { found, oldest, known_from }
    }

    fn now(&self) -> i64 {
        self.options.clock.now().as_millisecond()
    }

    pub(crate) fn recent(&self) -> MutexGuard<'_, RecentChanges> {
        lock(&self.recent)
    }

    pub(crate) fn set_watch_trouble(&self, trouble: Option<String>) {
        *lock(&self.watch_trouble) = trouble;
    }

    pub(crate) fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    pub(crate) fn note_compacted(&self, at: Revision) {
        self.compacted.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Declares all history before a revision compacted: it belongs to another cluster.
    pub(crate) fn forget_before(&self, at: Revision) {
        self.compacted.store(at.0, Ordering::Release);
    }

    pub(crate) fn condition(&self) -> StoreCondition {
        let watch_trouble = lock(&self.watch_trouble);
        StoreCondition {
            revision: self.client.known().revision,
            compacted: self.compacted(),
            disk_bytes: self.disk_bytes.load(Ordering::Relaxed),
            trouble: self.client.trouble().or_else(|| watch_trouble.clone()),
            damage: None,
            scrubbed: Scrubbed::default(),
            key_services: None,
        }
    }
}
