//! The engine: the `Store` trait in etcd's words.
//!
//! River: server writes → **engine** → etcd. Promise: a write is one guarded transaction and is
//! acknowledged when etcd has; reads ask a quorum unless they are of the past. What cannot be known
//! in time is an error, never a guess.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use headwater_api::Revision;
use headwater_store::key::ROOT;
use headwater_store::store::VALUE_MAX;
use headwater_store::{
    ChangeStream, Committed, Condition, Error, Key, Page, Range, Record, Store, Write,
};
use tokio::sync::watch as channel;
use tokio::task::JoinSet;

use crate::client::{Calls, Client, Login};
use crate::compaction;
use crate::convert::Space;
use crate::failure::Failure;
use crate::lease::Lease;
use crate::member::Tls;
use crate::proto::{Event, RangeRequest, STATUS, StatusRequest, StatusResponse};
use crate::recent::Recent;
use crate::start;
use crate::watch::{self, Cursor, Told};
use crate::write::OPS_MAX;

/// How an [`Etcd`] is reached and behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host:port` or `https://host:port` of each member.
    pub endpoints: Vec<String>,
    /// What our keys in etcd begin with.
    pub prefix: String,
    /// What the store's keys begin with; it is replaced by the prefix.
    pub root: String,
    /// Needed for `https`.
    pub tls: Option<Tls>,
    /// Needed where etcd knows users.
    pub login: Option<Login>,
    /// How long any call may take.
    pub deadline: Duration,
    /// How often this replica offers to compact; `None` is never.
    pub compaction: Option<Duration>,
    /// The largest value a write may carry, in bytes. etcd has a limit of its own.
    pub value_max: usize,
    /// Whether notices of progress come in order with events; `None` is by etcd's version. Where
    /// they do not, everything in etcd is watched, so that each revision comes with an event.
    pub trusts_progress: Option<bool>,
    /// Bytes of recent changes kept in memory, so that watchers need not read them from etcd.
    pub history_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            endpoints: Vec::new(),
            prefix: "/registry".to_owned(),
            root: ROOT.to_owned(),
            tls: None,
            login: None,
            deadline: Duration::from_secs(5),
            compaction: Some(Duration::from_secs(300)),
            value_max: VALUE_MAX,
            trusts_progress: None,
            history_bytes_max: 32 << 20,
        }
    }
}

/// A store in etcd.
pub struct Etcd {
    shared: Arc<Shared>,
    /// The watch, the compactor and the pulse; they end with the engine.
    _tasks: Mutex<JoinSet<()>>,
}

/// How often the cluster is asked whether it is well.
const PULSE: Duration = Duration::from_secs(2);

/// Revisions that are read once more at the start, so that watchers who come back after a restart
/// find them in memory instead of each asking etcd.
const REPLAYED_MAX: u64 = 10_000;

impl Etcd {
    /// Connects to a cluster and checks that it can be used; nothing is written if not.
    pub async fn connect(options: Options) -> Result<Etcd, start::Error> {
        let client = start::client(&options)?;
        let found = start::check(&client, &options).await?;
        let space = Space::new(&options.prefix, &options.root);
        let begins_after = match found.compacted {
            Revision::ZERO => found.revision,
            oldest => oldest.max(Revision(found.revision.0.saturating_sub(REPLAYED_MAX))),
        };
        let shared = Arc::new(Shared {
            client,
            space,
            trusts_progress: options.trusts_progress.unwrap_or(found.trusts_progress),
            recent: Mutex::new(Recent::after(begins_after)),
            told: channel::Sender::new(Told { revision: begins_after, epoch: 0 }),
            compacted: AtomicU64::new(found.compacted.0),
            disk_bytes: AtomicU64::new(0),
            watch_trouble: Mutex::new(None),
            lease: tokio::sync::Mutex::new(None),
            turn: tokio::sync::Mutex::new((0, Ok(Revision::ZERO))),
            asked: AtomicU64::new(0),
            options,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::follow(shared.clone()));
        tasks.spawn(pulse(shared.clone()));
        if let Some(interval) = shared.options.compaction {
            tasks.spawn(compaction::run(shared.clone(), interval));
        }
        Ok(Etcd { shared, _tasks: Mutex::new(tasks) })
    }
}

/// Asks how the cluster is, so that trouble is known before somebody needs it.
async fn pulse(shared: Arc<Shared>) {
    loop {
        // What it finds is noted by the client.
        let _ = shared.newest().await;
        if shared.client.is_full() {
            let _ = shared.try_space().await;
        }
        let status = shared.client.call(STATUS, StatusRequest {}, Calls::Freely).await;
        if let Ok(StatusResponse { db_size, .. }) = status {
            shared.disk_bytes.store(u64::try_from(db_size).unwrap_or(0), Ordering::Relaxed);
        }
        tokio::time::sleep(PULSE).await;
    }
}

#[async_trait]
impl Store for Etcd {
    async fn revision(&self) -> Result<Revision, Error> {
        self.shared.newest().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let key = self.shared.space.outer(key.as_str())?;
        let request = RangeRequest { key, ..RangeRequest::default() };
        let answer = self.shared.read(request).await.map_err(refused)?;
        answer.kvs.into_iter().next().map(|kv| self.shared.space.record(kv)).transpose()
    }

    async fn range(&self, range: Range) -> Result<Page, Error> {
        self.shared.range(&range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        write.check(self.shared.options.value_max)?;
        if write.ops.len() > OPS_MAX {
            return Err(Error::Refused(format!("the write has more than {OPS_MAX} operations")));
        }
        self.shared.commit(&write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let oldest = self.shared.compacted();
        if after < oldest {
            return Err(Error::Compacted { asked: after, oldest });
        }
        let cursor = Cursor::new(&self.shared, prefix, after);
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.shared.compact(at).await
    }

    fn condition(&self) -> Condition {
        let shared = &self.shared;
        let watch_trouble = shared.watch_trouble.lock().unwrap_or_else(PoisonError::into_inner);
        Condition {
            revision: shared.client.seen().revision,
            compacted: shared.compacted(),
            disk_bytes: shared.disk_bytes.load(Ordering::Relaxed),
            trouble: shared.client.trouble().or_else(|| watch_trouble.clone()),
        }
    }
}

/// What the engine, its tasks and its watchers have in common.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) space: Space,
    trusts_progress: bool,
    recent: Mutex<Recent>,
    pub(crate) told: channel::Sender<Told>,
    /// The newest compaction that is known of; others may compact too.
    compacted: AtomicU64,
    disk_bytes: AtomicU64,
    watch_trouble: Mutex<Option<String>>,
    pub(crate) lease: tokio::sync::Mutex<Option<Lease>>,
    /// Who asked for the newest revision last, and what the answer was.
    pub(crate) turn: tokio::sync::Mutex<(u64, Result<Revision, String>)>,
    pub(crate) asked: AtomicU64,
}

impl Shared {
    pub(crate) fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether notices of progress come in order with events.
    pub(crate) fn trusts_progress(&self) -> bool {
        self.trusts_progress
    }

    pub(crate) fn set_watch_trouble(&self, trouble: Option<String>) {
        *self.watch_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    pub(crate) fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    pub(crate) fn note_compacted(&self, at: Revision) {
        self.compacted.fetch_max(at.0, Ordering::AcqRel);
    }

    /// Nothing before this is known any more, whatever was compacted in another cluster.
    pub(crate) fn forget_before(&self, at: Revision) {
        self.compacted.store(at.0, Ordering::Release);
    }

    /// Another replica has compacted, if that is what an event says.
    pub(crate) fn note_compaction(&self, event: &Event) {
        if let Some(kv) = event.kv.as_ref().filter(|kv| kv.key == self.space.compaction()) {
            self.note_compacted(compaction::read(&kv.value));
        }
    }
}

/// A failure as the store's callers know it.
pub(crate) fn refused(failure: Failure) -> Error {
    match failure {
        Failure::Refused(why) if why.contains("too large") || why.contains("larger than max") => {
            Error::Refused(format!("{why}; raise etcd's --max-request-bytes"))
        }
        failure => Error::Unavailable(failure.to_string()),
    }
}
