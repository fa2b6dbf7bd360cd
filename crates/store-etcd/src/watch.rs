//! Watches: one feed for the entire process, and cursors over its recent changes.
//!
//! River: feed → **recent changes → cursors** → watch cache. A cursor holds a position. If it is
//! older than the recent changes, the cursor reads etcd's history until it has caught up.
//! Promise: a cursor never skips a change. While etcd is unreachable it waits; it ends only if
//! history was compacted or the cluster was replaced.

use std::sync::{Arc, Weak};

use headwater_api::Revision;
use headwater_api::backoff::Backoff;
use headwater_api::random::Random;
use headwater_store::recent::RecentChanges;
use headwater_store::{Batch, Error};
use tokio::sync::watch;

use crate::client::{EpochRevision, backoff};
use crate::feed::{Feed, FeedEnd};
use crate::member::WatchPurpose;
use crate::session::Session;

/// Copies changes from etcd into the recent changes, until the engine is dropped.
pub(crate) async fn follow(session: Arc<Session>) {
    let (mut member, mut backoff) = (session.client.current(), backoff());
    loop {
        let end = match copy(&session, member, &mut backoff).await {
            Err(end) => end,
            Ok(never) => match never {},
        };
        match end {
            FeedEnd::Compacted(oldest) => {
                tracing::warn!("etcd compacted past the watch position; reloading the cache");
                session.note_compacted(oldest.unwrap_or_default());
                restart(&session, &mut backoff).await;
            }
            FeedEnd::Skipped(after, next) => {
                tracing::error!(%after, %next, "etcd's watch omitted revisions; reloading the cache");
                session.note_compacted(next);
                restart(&session, &mut backoff).await;
            }
            FeedEnd::Replaced => {
                // A client's revision of the old cluster must not be read as one of the new
                // cluster.
                let newest = restart(&session, &mut backoff).await;
                session.forget_before(newest);
            }
            FeedEnd::Broken(why) => {
                tracing::info!(
                    member = session.client.url(member),
                    why,
                    "the watch on etcd failed; trying the next member"
                );
                member = (member + 1) % session.client.members();
                if backoff.failures() > 1 {
                    session.set_watch_trouble(Some(why));
                }
                tokio::time::sleep(backoff.next(&Random::from_entropy())).await;
            }
        }
    }
}

/// Copies changes from one member until its feed ends.
async fn copy(
    session: &Arc<Session>,
    member: usize,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, FeedEnd> {
    let after = session.recent().complete_to();
    let epoch = session.copied_to.borrow().epoch;
    let mut feed = Feed::open(session, member, after, epoch, WatchPurpose::Live).await?;
    session.set_watch_trouble(None);
    loop {
        let batch = feed.next().await?;
        backoff.reset();
        let bytes_max = session.options.history_bytes_max;
        let (known, revision) = {
            let mut recent = session.recent();
            let known = recent.complete_to();
            recent.append(batch);
            recent.shrink_to(bytes_max);
            (known, recent.complete_to())
        };
        if revision > known {
            session.note_time(known, revision);
        }
        session.copied_to.send_modify(|copied_to| copied_to.revision = revision);
    }
}

/// Restarts at the newest revision, because the changes before it are not available. Cursors notice
/// it themselves.
async fn restart(session: &Arc<Session>, backoff: &mut Backoff) -> Revision {
    loop {
        let epoch = session.client.known().epoch;
        match session.newest().await {
            // The revision must belong to the epoch.
            Ok(_) if session.client.known().epoch != epoch => {}
            Ok(revision) => {
                *session.recent() = RecentChanges::after(revision);
                session.begin_times(revision);
                session.copied_to.send_replace(EpochRevision { revision, epoch });
                return revision;
            }
            Err(error) => {
                session.set_watch_trouble(Some(error.to_string()));
                tokio::time::sleep(backoff.next(&Random::from_entropy())).await;
            }
        }
    }
}

/// How often a cursor tries to read history before it fails.
const TRIES_MAX: usize = 8;

/// A watcher: its position, and its own feed of history while it is far behind.
pub(crate) struct Cursor {
    /// Weak, so that watchers end when the engine is dropped.
    session: Weak<Session>,
    copied_to: watch::Receiver<EpochRevision>,
    prefix: String,
    position: Revision,
    epoch: u64,
    history: Option<Feed>,
    tries: usize,
    backoff: Backoff,
}

impl Cursor {
    pub(crate) fn new(session: &Arc<Session>, prefix: &str, position: Revision) -> Cursor {
        let copied_to = session.copied_to.subscribe();
        let epoch = copied_to.borrow().epoch;
        Cursor {
            session: Arc::downgrade(session),
            copied_to,
            prefix: prefix.to_owned(),
            position,
            epoch,
            history: None,
            tries: 0,
            backoff: backoff(),
        }
    }

    /// Waits for changes after the position. An error ends the stream.
    pub(crate) async fn step(
        cursor: Option<Cursor>,
    ) -> Option<(Result<Batch, Error>, Option<Cursor>)> {
        let mut cursor = cursor?;
        match cursor.next().await? {
            Ok(batch) => {
                cursor.position = batch.complete_to;
                Some((Ok(batch), Some(cursor)))
            }
            Err(error) => Some((Err(error), None)),
        }
    }

    async fn next(&mut self) -> Option<Result<Batch, Error>> {
        loop {
            let copied_to = *self.copied_to.borrow_and_update();
            if copied_to.epoch != self.epoch {
                return Some(Err(Error::Replaced { current: copied_to.revision }));
            }
            let recent = self.session.upgrade()?.recent().batch(&self.prefix, self.position);
            match recent {
                Some(batch) if batch.complete_to > self.position => {
                    (self.history, self.tries) = (None, 0);
                    return Some(Ok(batch));
                }
                Some(_) => self.copied_to.changed().await.ok()?,
                None => match self.read_history().await? {
                    Ok(None) => {}
                    Ok(Some(batch)) => return Some(Ok(batch)),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// Reads etcd's history. After `Ok(None)`, the caller checks the recent changes again.
    async fn read_history(&mut self) -> Option<Result<Option<Batch>, Error>> {
        let session = self.session.upgrade()?;
        let end = match self.history.as_mut() {
            None => {
                let member = session.client.current() + self.tries;
                let purpose = WatchPurpose::History;
                match Feed::open(&session, member, self.position, self.epoch, purpose).await {
                    Ok(feed) => {
                        self.history = Some(feed);
                        return Some(Ok(None));
                    }
                    Err(end) => end,
                }
            }
            Some(feed) => match feed.next().await {
                Ok(mut batch) => {
                    batch.changes.retain(|change| change.key.as_str().starts_with(&self.prefix));
                    self.backoff.reset();
                    return Some(Ok(Some(batch)));
                }
                Err(end) => end,
            },
        };
        self.history = None;
        Some(match end {
            FeedEnd::Compacted(oldest) => {
                session.note_compacted(oldest.unwrap_or_default());
                Err(session.compacted_error(self.position).await)
            }
            FeedEnd::Skipped(after, next) => {
                tracing::error!(%after, %next, "etcd's watch omitted revisions; expiring a watch");
                Err(Error::Compacted { asked: self.position, oldest: next })
            }
            FeedEnd::Replaced => {
                let current = session.client.known().revision;
                Err(Error::Replaced { current })
            }
            FeedEnd::Broken(why) if self.tries == TRIES_MAX => Err(Error::Unavailable(why)),
            FeedEnd::Broken(_) => {
                self.tries += 1;
                tokio::time::sleep(self.backoff.next(&Random::from_entropy())).await;
                Ok(None)
            }
        })
    }
}
