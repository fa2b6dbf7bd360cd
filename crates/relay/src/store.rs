//! The store of one resource: it holds nothing, and follows the upstream's revisions.
//!
//! River: upstream → **store** → the cache of the resource. The cache loads it (a list, or the journal),
//! watches it (the journal, then a watch of the upstream) and asks for its newest revision (one request
//! that all readers share).
//! Promise: the store contract for reads: revisions are the upstream's own; no change is skipped, and
//! where one might have been, the watch fails as compacted or replaced. Writes are refused.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use headwater_api::Revision;
use headwater_cache::Cache;
use headwater_client::ResourceType;
use headwater_client::raw::{
    At, Error as SourceError, ListQuery, Options as SourceOptions, RawCollection, RawEvent,
    Selection, Strip, WatchQuery,
};
use headwater_server::registry::Served;
use headwater_store::{
    ChangeStream, Committed, Error, Key, Range, RangePage, Record, Store, StoreCondition, Write,
    key,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::connection::Connection;
use crate::follow::{Following, SILENCE};
use crate::journal::{Journal, RecoveredLogs, RecoveredState, StateWriter};
use crate::shared_call::SharedCall;
use crate::text::{receive, revision_of};

/// How long a request for a revision may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a busy resource has for reaching a revision by its own events.
const CATCH_UP_GRACE: Duration = Duration::from_millis(5);

/// How long one attempt to prove progress may take. Kubernetes sends the bookmark of a watch of three
/// seconds after one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
const PROBE_SECONDS: u32 = 3;

/// Objects per page of a list.
const PAGE: u32 = 1_000;

/// What is followed, and how.
pub(crate) struct FollowOptions {
    /// The kind, in the version that is held.
    pub(crate) kind: Arc<Served>,
    /// The part that is held.
    pub(crate) selection: Selection,
    /// A read that asks for the newest state may be answered by one that is this old.
    pub(crate) stale_ok: Duration,
    /// The folder of the journal.
    pub(crate) folder: Option<PathBuf>,
    /// The size at which a log of the journal ends, if not the usual one.
    pub(crate) log_max: Option<u64>,
    /// After which a silent watch is checked, if not the usual time.
    pub(crate) silence: Option<Duration>,
}

/// The store of one resource. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FollowedStore {
    pub(crate) shared: Arc<Followed>,
}

/// A resource that is followed.
pub(crate) struct Followed {
    pub(crate) kind: Arc<Served>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) collection: RawCollection,
    /// Metadata only, with prompt bookmarks: for revisions and proofs of progress.
    head: RawCollection,
    pub(crate) selection: Selection,
    stale_ok: Duration,
    /// After which a silent watch of the upstream is checked.
    pub(crate) silence: Duration,
    state: Mutex<FollowState>,
    pub(crate) tip: watch::Sender<Revision>,
    /// Nothing changed after the first revision up to the second.
    pub(crate) quiet: watch::Sender<(Revision, Revision)>,
    heads: SharedCall<Result<Revision, String>>,
    /// The newest revision that a reader waits for.
    wanted: AtomicU64,
    is_catching_up: AtomicBool,
    /// Whether the upstream sent no bookmark when it was asked for a proof of progress.
    is_unproven: AtomicBool,
    /// The task that proves progress.
    proofs: Mutex<JoinSet<()>>,
    /// Whether a watch of the upstream is being read.
    pub(crate) is_following: AtomicBool,
    pub(crate) journal: Option<Mutex<Journal>>,
    is_rotating: AtomicBool,
    cache: OnceLock<Cache>,
    /// The task of the cache, which checks the upstream's revision itself.
    follower: Mutex<Option<tokio::task::Id>>,
}

/// What a short watch of the upstream from a revision shows.
pub(crate) enum ProgressProof {
    /// Nothing changed up to a later revision.
    Quiet(Revision),
    /// Something changed: the watch that is being read has it too.
    Changed,
    /// Nothing arrived, not even a bookmark.
    Unknown,
    /// The upstream cannot be asked.
    Failed,
}

struct FollowState {
    /// History before this revision is not available.
    compacted: Revision,
    /// When the upstream was last heard of.
    heard: Instant,
    trouble: Option<String>,
    /// The cluster that the state is of, if its name is known.
    cluster: Option<String>,
    /// A load from the upstream.
    listing: Option<Listing>,
    /// A load from the journal.
    recovering: Option<RecoveredState>,
    /// What follows it, until it was replayed.
    replay: Option<RecoveredLogs>,
}

struct Listing {
    revision: Revision,
    after: Key,
    token: String,
    writer: Option<StateWriter>,
}

impl FollowedStore {
    pub(crate) fn open(
        connection: &Arc<Connection>,
        options: FollowOptions,
    ) -> Result<FollowedStore, crate::Error> {
        let FollowOptions { kind, selection, stale_ok, folder, log_max, silence } = options;
        let subject = subject(&kind, &selection);
        let (journal, recovered) = match folder {
            None => (None, None),
            Some(path) => {
                let opened = Journal::open(&path, log_max);
                let (journal, recovered) =
                    opened.map_err(|source| crate::Error::Data { path, source })?;
                (Some(Mutex::new(journal)), recovered)
            }
        };
        let mut cluster = None;
        let recovering = recovered.filter(|state| match state.subject.split_once('\n') {
            Some((written, name)) if written == subject => {
                cluster = Some(name.to_owned()).filter(|name| !name.is_empty());
                true
            }
            _ => false,
        });
        let resource = ResourceType {
            group: kind.group.to_string(),
            version: kind.version.to_string(),
            kind: kind.kind.kind.to_string(),
            plural: kind.plural.to_string(),
        };
        let source = |metadata_only, prompt_bookmark| SourceOptions {
            strip: Strip::default(),
            metadata_only,
            deltas: false,
            prompt_bookmark,
            component: "headwater-relay".to_owned(),
            ..SourceOptions::default()
        };
        let open = |options| RawCollection::new(connection.client(), &resource, options);
        let shared = Followed {
            collection: open(source(false, false)),
            head: open(source(true, true)),
            kind,
            connection: Arc::clone(connection),
            selection,
            stale_ok,
            silence: silence.unwrap_or(SILENCE),
            state: Mutex::new(FollowState {
                compacted: Revision::ZERO,
                heard: Instant::now(),
                trouble: None,
                cluster,
                listing: None,
                recovering,
                replay: None,
            }),
            tip: watch::Sender::new(Revision::ZERO),
            quiet: watch::Sender::default(),
            heads: SharedCall::new(),
            wanted: AtomicU64::new(0),
            is_catching_up: AtomicBool::new(false),
            is_unproven: AtomicBool::new(false),
            proofs: Mutex::default(),
            is_following: AtomicBool::new(false),
            journal,
            is_rotating: AtomicBool::new(false),
            cache: OnceLock::new(),
            follower: Mutex::default(),
        };
        Ok(FollowedStore { shared: Arc::new(shared) })
    }

    /// The cache over this store, whose states the journal writes.
    pub(crate) fn set_cache(&self, cache: Cache) {
        let _ = self.shared.cache.set(cache);
    }
}

/// What a journal is about, without the cluster.
fn subject(kind: &Served, selection: &Selection) -> String {
    let mut text = format!("1 {} {}", kind.api_version(), kind.plural);
    for part in [&selection.labels, &selection.fields] {
        let _ = write!(text, " {part:?}");
    }
    text
}

impl Followed {
    fn state(&self) -> MutexGuard<'_, FollowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long ago the upstream was last heard of.
    pub(crate) fn age(&self) -> Duration {
        self.state().heard.elapsed()
    }

    pub(crate) fn heard(&self) {
        let mut state = self.state();
        state.heard = Instant::now();
        state.trouble = None;
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.kind.prefix
    }

    pub(crate) fn tip(&self) -> Revision {
        *self.tip.borrow()
    }

    /// Logs and counts what the upstream did.
    pub(crate) fn fault(&self, fault: &str, why: &str) {
        let (group, resource) = (&*self.kind.group, &*self.kind.plural);
        tracing::warn!(
            group,
            resource,
            fault,
            why,
            "the upstream does not follow its rules, or failed"
        );
        self.connection.metrics().fault(group, resource, fault);
        self.state().trouble = Some(format!("{resource}: {why}"));
    }

    /// What was recovered, once.
    pub(crate) fn take_replay(&self) -> Option<RecoveredLogs> {
        self.state().replay.take()
    }

    /// Fails if the upstream is another cluster than the one that the state is of.
    pub(crate) async fn check_cluster(&self) -> Result<bool, String> {
        let found = self.connection.cluster().await?;
        let state = self.state();
        match (&state.cluster, &found) {
            (Some(known), Some(found)) => Ok(known == found),
            // A server that is starting may refuse for a moment.
            (Some(_), None) => {
                Err("the relay may not read the namespace kube-system any more, which \
                                    tells one cluster from another"
                    .to_owned())
            }
            (None, _) => Ok(true),
        }
    }

    /// The newest revision of the upstream, by one request of all who ask meanwhile.
    pub(crate) async fn newest(&self) -> Result<Revision, Error> {
        let asked = self.heads.ask(|| async {
            self.connection.metrics().sent("revision");
            let query = ListQuery { limit: Some(1), ..ListQuery::default() };
            let page = match timeout(HEAD_TIMEOUT, self.head.page(&query)).await {
                Ok(page) => page.map_err(|error| describe(&error))?,
                Err(_) => return Err("the upstream did not answer in time".to_owned()),
            };
            revision_of(&page.resource_version).ok_or_else(|| "a list has no revision".to_owned())
        });
        asked.await.map_err(Error::Unavailable)
    }

    /// Lists one page from the upstream.
    async fn list(
        &self,
        token: Option<String>,
    ) -> Result<(Revision, Vec<Record>, Option<String>), Error> {
        self.connection.metrics().sent("list");
        let query = ListQuery {
            selection: self.selection.clone(),
            at: At::Unset,
            limit: Some(PAGE),
            continue_token: token,
        };
        let page = self.collection.page(&query).await;
        let page = page.map_err(|error| self.unavailable("list", &describe(&error)))?;
        let revision = revision_of(&page.resource_version);
        let revision =
            revision.ok_or_else(|| self.unavailable("list", "a list has no numeric revision"))?;
        let mut records = Vec::with_capacity(page.items.len());
        for item in &page.items {
            let object = receive(item, &self.kind);
            let object = object.map_err(|why| self.unavailable("object", &why))?;
            if object.revision > revision {
                let why = format!("{} is newer than its list", object.key);
                return Err(self.unavailable("order", &why));
            }
            let key = Key::in_collection(self.prefix(), &object.key);
            records.push(Record { key, revision: object.revision, value: object.stored });
        }
        Ok((revision, records, page.continue_token))
    }

    fn unavailable(&self, fault: &str, why: &str) -> Error {
        self.fault(fault, why);
        Error::Unavailable(why.to_owned())
    }

    /// The first page of a load from the upstream.
    async fn begin_listing(&self) -> Result<RangePage, Error> {
        let cluster = self.connection.cluster().await.map_err(Error::Unavailable)?;
        let (revision, records, token) = self.list(None).await?;
        let writer = self.journal.as_ref().and_then(|journal| {
            let name = cluster.as_deref().unwrap_or_default();
            let subject = format!("{}\n{name}", subject(&self.kind, &self.selection));
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            self.written(journal.begin(&subject, revision))
        });
        {
            let mut state = self.state();
            state.cluster = cluster;
            state.listing = None;
            state.replay = None;
        }
        self.keep_page(revision, records, token, writer)
    }

    /// Writes a page to the journal, and remembers where the next one begins.
    fn keep_page(
        &self,
        revision: Revision,
        records: Vec<Record>,
        token: Option<String>,
        mut writer: Option<StateWriter>,
    ) -> Result<RangePage, Error> {
        if let Some(state) = &mut writer {
            let mut each = records.iter();
            let done = each.try_for_each(|record| {
                state.add(record.key.as_str(), record.revision, &record.value)
            });
            if self.written(done).is_none() {
                writer = None;
            }
        }
        let more = token.is_some();
        match (token, records.last()) {
            (Some(token), Some(last)) => {
                let after = last.key.clone();
                self.state().listing = Some(Listing { revision, after, token, writer });
            }
            (Some(_), None) => {
                return Err(self.unavailable("list", "a page that is not the last has no objects"));
            }
            (None, _) => {
                if let Some(writer) = writer {
                    self.written(writer.finish());
                }
                self.state().compacted = revision;
                self.heard();
                self.tip.send_replace(revision);
            }
        }
        Ok(RangePage { records, revision, more })
    }

    /// The next page of the current load, if it is the one that is asked for.
    async fn continue_listing(&self, range: &Range) -> Result<RangePage, Error> {
        let too_old = |asked| Error::Compacted { asked, oldest: self.tip() };
        let asked = range.at.unwrap_or(Revision::ZERO);
        let listing = self.state().listing.take();
        let is_next = |listing: &Listing| {
            listing.revision == asked && range.after.as_ref() == Some(&listing.after)
        };
        let Some(listing) = listing.filter(is_next) else { return Err(too_old(asked)) };
        let (revision, records, token) = self.list(Some(listing.token)).await?;
        if revision != asked {
            return Err(self.unavailable("list", "the pages of a list have several revisions"));
        }
        self.keep_page(revision, records, token, listing.writer)
    }

    /// The next page of a load from the journal.
    fn recover(&self) -> Option<RangePage> {
        let mut state = self.state();
        let recovered = state.recovering.as_mut()?;
        let revision = recovered.revision;
        let records = recovered.records(PAGE as usize);
        let more = records.len() == PAGE as usize;
        if !more {
            state.replay = state.recovering.take().map(|recovered| recovered.logs());
            state.compacted = revision;
            drop(state);
            self.tip.send_replace(revision);
        }
        Some(RangePage { records, revision, more })
    }

    /// The result of a write to the journal. After a failure the relay goes on without history.
    pub(crate) fn written<T>(&self, result: std::io::Result<T>) -> Option<T> {
        result
            .inspect_err(|error| {
                self.fault("journal", &format!("cannot write the journal: {error}"))
            })
            .ok()
    }

    /// Proves that nothing happened up to the newest revision that a reader waits for, if nothing did.
    /// Returns whether the upstream helps with that.
    async fn catch_up(&self) -> bool {
        let wanted = || Revision(self.wanted.load(Ordering::Acquire));
        let mut tip = self.tip.subscribe();
        let deadline = Instant::now() + PROBE_TIMEOUT;
        while *tip.borrow() < wanted() && Instant::now() < deadline {
            let goal = wanted();
            let reached = timeout(CATCH_UP_GRACE, tip.wait_for(|tip| *tip >= goal)).await.is_ok();
            if reached {
                continue;
            }
            let from = *tip.borrow();
            match self.probe(from).await {
                ProgressProof::Quiet(to) => drop(self.quiet.send_replace((from, to))),
                ProgressProof::Changed => {}
                ProgressProof::Unknown => {
                    self.is_unproven.store(true, Ordering::Release);
                    return false;
                }
                ProgressProof::Failed => return false,
            }
            let moved = timeout(PROBE_TIMEOUT, tip.wait_for(|tip| *tip > from)).await.is_ok();
            if !moved {
                return false;
            }
        }
        true
    }

    /// Whether the newest state can be proven: the upstream shows the progress of the resource.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.is_unproven.load(Ordering::Acquire)
    }

    /// A bookmark arrived.
    pub(crate) fn progressed(&self) {
        self.is_unproven.store(false, Ordering::Release);
    }

    /// Looks what happened after a revision, by a watch of its own.
    pub(crate) async fn probe(&self, from: Revision) -> ProgressProof {
        let proof = timeout(PROBE_TIMEOUT, self.ask_progress(from)).await;
        let proof = proof.unwrap_or(ProgressProof::Failed);
        if let ProgressProof::Quiet(_) = proof {
            self.progressed();
        }
        proof
    }

    async fn ask_progress(&self, from: Revision) -> ProgressProof {
        self.connection.metrics().sent("progress");
        let query = WatchQuery {
            selection: self.selection.clone(),
            at: At::AtLeast(headwater_client::ResourceVersion::new(&from.0.to_string())),
            initial_events: false,
            timeout_seconds: PROBE_SECONDS,
        };
        let Ok(mut events) = self.head.watch(&query).await else { return ProgressProof::Failed };
        while let Some(event) = events.next().await {
            match event {
                Ok(RawEvent::Bookmark(version)) => match revision_of(&version) {
                    Some(reached) if reached > from => return ProgressProof::Quiet(reached),
                    Some(_) => {}
                    None => return ProgressProof::Failed,
                },
                Ok(RawEvent::Object(..)) => return ProgressProof::Changed,
                Ok(RawEvent::Error(_)) | Err(_) => return ProgressProof::Failed,
            }
        }
        ProgressProof::Unknown
    }

    /// Begins a new generation of the journal in the background.
    pub(crate) fn rotate(self: &Arc<Self>, revision: Revision) {
        let (Some(journal), Some(cache)) = (&self.journal, self.cache.get().cloned()) else {
            return;
        };
        if self.is_rotating.swap(true, Ordering::AcqRel) {
            return;
        }
        let rotated = {
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            journal.rotate_log(revision)
        };
        let Some(generation) = self.written(rotated) else {
            return self.is_rotating.store(false, Ordering::Release);
        };
        let followed = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let resource = cache.resource(followed.prefix());
            let snapshot = cache.snapshot(&resource);
            let write = || -> std::io::Result<()> {
                let Some(journal) = &followed.journal else { return Ok(()) };
                let lock = || journal.lock().unwrap_or_else(PoisonError::into_inner);
                let mut state = lock().state(generation, snapshot.revision())?;
                for object in snapshot.iter("", None) {
                    let stored = object.stored().map_err(std::io::Error::other)?;
                    let key = Key::in_collection(followed.prefix(), object.key());
                    state.add(key.as_str(), object.revision(), &stored)?;
                }
                state.finish()?;
                lock().keep_two(generation)
            };
            followed.written(write());
            followed.is_rotating.store(false, Ordering::Release);
        });
    }
}

/// An error with its causes.
pub(crate) fn describe(error: &SourceError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

#[async_trait]
impl Store for FollowedStore {
    async fn revision(&self) -> Result<Revision, Error> {
        let followed = &self.shared;
        // The cache opens its watch: what it reads first may be the journal, without an upstream.
        let follower = *followed.follower.lock().unwrap_or_else(PoisonError::into_inner);
        if follower.is_some() && follower == tokio::task::try_id() {
            return Ok(followed.tip());
        }
        if !followed.stale_ok.is_zero() && followed.age() <= followed.stale_ok {
            return Ok(followed.tip());
        }
        let newest = followed.newest().await?;
        if newest > followed.tip() && followed.is_following.load(Ordering::Acquire) {
            followed.wanted.fetch_max(newest.0, Ordering::AcqRel);
            if !followed.is_catching_up.swap(true, Ordering::AcqRel) {
                let mut proofs = followed.proofs.lock().unwrap_or_else(PoisonError::into_inner);
                while proofs.try_join_next().is_some() {}
                let followed = Arc::clone(followed);
                proofs.spawn(async move {
                    loop {
                        let is_helped = followed.catch_up().await;
                        followed.is_catching_up.store(false, Ordering::Release);
                        // A reader may have come after the last look.
                        let is_done = !is_helped
                            || followed.tip().0 >= followed.wanted.load(Ordering::Acquire)
                            || !followed.is_following.load(Ordering::Acquire);
                        if is_done || followed.is_catching_up.swap(true, Ordering::AcqRel) {
                            break;
                        }
                    }
                });
            }
        } else if newest == followed.tip() {
            followed.heard();
        }
        Ok(newest)
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        Err(Error::Refused(format!("a relay reads {key} from its cache")))
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        let followed = &self.shared;
        let is_load = range.prefix == key::ROOT;
        match range.at {
            _ if is_load && let Some(page) = followed.recover() => Ok(page),
            None if is_load => followed.begin_listing().await,
            Some(_) if is_load => followed.continue_listing(&range).await,
            at => {
                let asked = at.unwrap_or(Revision::ZERO);
                Err(Error::Compacted { asked, oldest: followed.tip() })
            }
        }
    }

    async fn commit(&self, _: Write) -> Result<Committed, Error> {
        Err(Error::Refused("a relay writes nothing; the upstream does".to_owned()))
    }

    /// The cache follows everything; a watcher that is behind the cache's window asks for its resource,
    /// and there is no more history than the window has.
    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        if prefix != key::ROOT {
            return Err(Error::Compacted { asked: after, oldest: self.shared.tip() });
        }
        *self.shared.follower.lock().unwrap_or_else(PoisonError::into_inner) =
            tokio::task::try_id();
        Ok(Following::new(Arc::clone(&self.shared), after).stream())
    }

    async fn compact(&self, _: Revision) -> Result<(), Error> {
        Ok(()) // the window of the cache is all there is
    }

    fn condition(&self) -> StoreCondition {
        let state = self.shared.state();
        StoreCondition {
            revision: self.shared.tip(),
            compacted: state.compacted,
            trouble: state.trouble.clone(),
            ..StoreCondition::default()
        }
    }
}
