//! Following: the watch of one resource at the upstream, reopened whenever it ends.
//!
//! River: journal, upstream's watch → **following** → cache, journal.
//! Promise: batches are in revision order and leave nothing out. An upstream that breaks the order, sends
//! what is no object, or is silent, is left and asked again from the last good revision; if it fails
//! again, or has lost that revision, the cache loads everything again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream, ReadyChunks};
use headwater_api::backoff::Backoff;
use headwater_api::random::Random;
use headwater_api::{EventType, Revision};
use headwater_client::ResourceVersion;
use headwater_client::raw::{At, Error as SourceError, RawEvent, WatchQuery};
use headwater_store::{Batch, Change, ChangeKind, ChangeStream, Error, Key};
use std::sync::PoisonError;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::journal::RecoveredLogs;
use crate::store::{Followed, ProgressProof, describe};
use crate::text::{receive, revision_of};

/// A watch without any event or bookmark for this long is checked, unless options say otherwise.
/// Kubernetes sends a bookmark every minute to most watches.
pub(crate) const SILENCE: Duration = Duration::from_secs(95);

/// How long opening a watch may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The length of a watch, in seconds; it is random up to twice this.
const WATCH_SECONDS: u64 = 300;

/// Events that are handled together, if so many have arrived.
const BATCH_MAX: usize = 256;

/// After so many violations in a row at one revision, everything is loaded again.
const STRIKES_MAX: u32 = 3;

type Events = ReadyChunks<BoxStream<'static, Result<RawEvent, SourceError>>>;

/// A watch of the upstream, from the cache's point of view.
pub(crate) struct Following {
    followed: Arc<Followed>,
    position: Revision,
    /// The keys that changed at the position.
    last_keys: Vec<String>,
    replay: Option<RecoveredLogs>,
    quiet: watch::Receiver<(Revision, Revision)>,
    events: Option<Events>,
    /// The end of this watch, after the batch that was taken before it.
    end: Option<Error>,
    is_first: bool,
    strikes: u32,
    backoff: Backoff,
    random: Random,
}

/// Why an event was not taken.
enum Refused {
    /// The upstream is asked again, from the position.
    Again { fault: &'static str, why: String },
    /// The history is incomplete.
    Lost(Error),
}

impl Following {
    pub(crate) fn new(followed: Arc<Followed>, position: Revision) -> Following {
        Following {
            replay: followed.take_replay(),
            quiet: followed.quiet.subscribe(),
            followed,
            position,
            last_keys: Vec::new(),
            events: None,
            end: None,
            is_first: true,
            strikes: 0,
            backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(10), 0.5..1.0),
            random: Random::from_entropy(),
        }
    }

    pub(crate) fn stream(self) -> ChangeStream {
        stream::unfold(self, |mut following| async move {
            let next = following.next().await;
            Some((next, following))
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Batch, Error> {
        loop {
            if let Some(end) = self.end.take() {
                return Err(end);
            }
            if let Some(batch) = self.replayed() {
                return Ok(batch);
            }
            let Some(events) = &mut self.events else {
                self.open().await?;
                continue;
            };
            let arrived = tokio::select! {
                biased;
                arrived = timeout(self.followed.silence, events.next()) => arrived,
                Ok(()) = self.quiet.changed() => {
                    let (from, to) = *self.quiet.borrow_and_update();
                    if from == self.position && to > from {
                        return Ok(self.deliver(Batch { changes: Vec::new(), complete_to: to }));
                    }
                    continue;
                }
            };
            match arrived {
                Err(_) => {
                    if let Some(batch) = self.silent().await {
                        return Ok(batch);
                    }
                }
                Ok(None) => self.events = None,
                Ok(Some(arrived)) => {
                    if let Some(batch) = self.take(arrived).await {
                        return Ok(batch);
                    }
                }
            }
        }
    }

    /// The next batch of the journal, before anything is asked of the upstream.
    fn replayed(&mut self) -> Option<Batch> {
        match self.replay.as_mut()?.next() {
            Some(batch) => {
                self.move_to(&batch);
                Some(batch)
            }
            None => {
                self.replay = None;
                if let Some(journal) = &self.followed.journal {
                    let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                    self.followed.written(journal.resume(self.position));
                }
                None
            }
        }
    }

    /// Opens a watch at the position; returns early to be called again.
    async fn open(&mut self) -> Result<(), Error> {
        self.followed.is_following.store(false, Ordering::Release);
        if !self.is_first {
            sleep(self.backoff.next(&self.random)).await;
        }
        // What answers now may be another cluster, or the same one with an older state.
        match self.followed.check_cluster().await {
            Ok(true) => {}
            Ok(false) => {
                self.followed.fault("cluster", "the upstream is another cluster now");
                return Err(Error::Replaced { current: self.followed.newest().await? });
            }
            Err(why) => {
                self.is_first = false;
                self.followed.fault("unreachable", &why);
                return Ok(());
            }
        }
        self.is_first = false;
        match self.followed.newest().await {
            Ok(newest) if newest < self.position => {
                let why = format!("the upstream went back to revision {newest}");
                self.followed.fault("reverted", &why);
                return Err(Error::Replaced { current: newest });
            }
            Ok(_) => {}
            Err(error) => {
                self.followed.fault("unreachable", &error.to_string());
                return Ok(());
            }
        }
        let seconds = self.random.between(WATCH_SECONDS, 2 * WATCH_SECONDS);
        let query = WatchQuery {
            selection: self.followed.selection.clone(),
            at: At::AtLeast(ResourceVersion::new(&self.position.0.to_string())),
            initial_events: false,
            timeout_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
        };
        self.followed.connection.metrics().sent("watch");
        match timeout(OPEN_TIMEOUT, self.followed.collection.watch(&query)).await {
            Ok(Ok(events)) => {
                self.events = Some(events.ready_chunks(BATCH_MAX));
                self.followed.is_following.store(true, Ordering::Release);
                Ok(())
            }
            Ok(Err(SourceError::Status(status))) if status.is_expired() => Err(self.lost()),
            Ok(Err(error)) => {
                self.followed.fault("unreachable", &describe(&error));
                Ok(())
            }
            Err(_) => {
                self.followed.fault("silence", "the upstream did not answer a watch in time");
                Ok(())
            }
        }
    }

    fn lost(&self) -> Error {
        Error::Compacted { asked: self.position, oldest: self.position.next() }
    }

    /// Takes events up to the first that cannot be taken.
    async fn take(&mut self, arrived: Vec<Result<RawEvent, SourceError>>) -> Option<Batch> {
        let mut batch = Batch { changes: Vec::new(), complete_to: self.position };
        let mut refused = None;
        for event in arrived {
            if let Err(why) = self.add(event, &mut batch) {
                refused = Some(why);
                break;
            }
        }
        let has_moved = batch.complete_to > self.position;
        if has_moved {
            (self.strikes, self.is_first) = (0, false);
            self.backoff.reset();
        }
        if refused.is_none() {
            self.followed.heard();
        }
        let taken = has_moved.then(|| self.deliver(batch));
        match refused {
            Some(Refused::Again { fault, why }) => self.leave(fault, &why).await,
            Some(Refused::Lost(error)) => {
                self.events = None;
                self.end = Some(error);
            }
            None => {}
        }
        taken
    }

    fn add(&self, event: Result<RawEvent, SourceError>, batch: &mut Batch) -> Result<(), Refused> {
        let again = |fault, why: String| Err(Refused::Again { fault, why });
        let (event, text) = match event {
            Ok(RawEvent::Object(event, text)) => (event, text),
            Ok(RawEvent::Bookmark(version)) => {
                return match revision_of(&version) {
                    Some(revision) if revision >= batch.complete_to => {
                        if revision > batch.complete_to {
                            self.followed.progressed();
                        }
                        batch.complete_to = revision;
                        Ok(())
                    }
                    _ => again("order", format!("a bookmark went back to {version:?}")),
                };
            }
            Ok(RawEvent::Error(status)) if status.is_expired() => {
                return Err(Refused::Lost(self.lost()));
            }
            Ok(RawEvent::Error(status)) => return again("error", status.to_string()),
            Err(error) => return again("broken", describe(&error)),
        };
        let object = match receive(&text, &self.followed.kind) {
            Ok(object) => object,
            Err(why) => return again("object", why),
        };
        let (key, revision) = (object.key, object.revision);
        if revision < batch.complete_to {
            let why = format!("{key} at {revision} came after {}", batch.complete_to);
            return again("order", why);
        }
        let stored = Key::in_collection(self.followed.prefix(), &key);
        if revision == batch.complete_to {
            let is_known = match revision == self.position {
                true => self.last_keys.contains(&key),
                false => batch
                    .changes
                    .iter()
                    .any(|change| change.revision == revision && change.key == stored),
            };
            if is_known {
                self.followed.connection.metrics().fault(
                    &self.followed.kind.group,
                    &self.followed.kind.plural,
                    "duplicate",
                );
                return Ok(());
            }
            // Readers have been told that they have everything up to here.
            let is_open = batch.changes.last().is_some_and(|change| change.revision == revision);
            if revision == self.position || !is_open {
                self.followed.fault("order", &format!("{key} came late at {revision}"));
                return Err(Refused::Lost(self.lost()));
            }
        }
        let (kind, value) = match event {
            EventType::Added => (ChangeKind::Created, object.stored),
            EventType::Deleted => (ChangeKind::Deleted, bytes::Bytes::new()),
            _ => (ChangeKind::Updated, object.stored),
        };
        batch.changes.push(Change { revision, key: stored, kind, value, prev: None });
        batch.complete_to = revision;
        Ok(())
    }

    /// Decides whether a silent watch is broken. Kubernetes sends no bookmark while it has seen no change
    /// of a resource since its start, so silence alone says nothing.
    async fn silent(&mut self) -> Option<Batch> {
        match self.followed.probe(self.position).await {
            ProgressProof::Quiet(to) => {
                self.followed.heard();
                return Some(self.deliver(Batch { changes: Vec::new(), complete_to: to }));
            }
            ProgressProof::Unknown => self.followed.heard(),
            ProgressProof::Changed | ProgressProof::Failed => {
                self.leave("silence", "the watch is silent, and not because nothing happens").await;
            }
        }
        None
    }

    /// Leaves the upstream's watch after a failure, to open another.
    async fn leave(&mut self, fault: &'static str, why: &str) {
        self.followed.fault(fault, why);
        self.followed.is_following.store(false, Ordering::Release);
        self.events = None;
        self.strikes += 1;
        // A connection that breaks says nothing about what was sent.
        if self.strikes >= STRIKES_MAX && matches!(fault, "order" | "object") {
            self.strikes = 0;
            self.end = Some(self.lost());
            sleep(self.backoff.next(&self.random)).await;
        }
    }

    /// Moves on, writes the journal and wakes who waits for the revision.
    fn deliver(&mut self, batch: Batch) -> Batch {
        if let Some(journal) = &self.followed.journal {
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            let appended = journal.append(&batch);
            drop(journal);
            if self.followed.written(appended) == Some(true) {
                self.followed.rotate(batch.complete_to);
            }
        }
        self.move_to(&batch);
        batch
    }

    fn move_to(&mut self, batch: &Batch) {
        let at_end = batch.changes.iter().filter(|change| change.revision == batch.complete_to);
        let prefix = self.followed.prefix().len();
        self.last_keys = at_end.map(|change| change.key.as_str()[prefix..].to_owned()).collect();
        self.position = batch.complete_to;
        self.followed.tip.send_replace(self.position);
    }
}

/// However it ends, nothing is followed any more.
impl Drop for Following {
    fn drop(&mut self) {
        self.followed.is_following.store(false, Ordering::Release);
    }
}
