//! Watching: one feed for the whole process, and cursors over what it brings.
//!
//! River: feed → **recent changes → cursors** → watch cache. A cursor holds a position; one that has
//! fallen out of the recent changes reads on from etcd's history until it is back.
//! Promise: a cursor never skips a change. When etcd cannot be reached it waits; only when history
//! is gone, or is another, does it end.

use std::sync::{Arc, Weak};

use headwater_api::Revision;
use headwater_store::{Batch, Error};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::engine::Shared;
use crate::feed::{Ended, Feed};
use crate::member::Purpose;
use crate::recent::Recent;

/// How far the feed has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) revision: Revision,
    pub(crate) epoch: u64,
}

/// Keeps the recent changes recent, until the engine is gone.
pub(crate) async fn follow(shared: Arc<Shared>) {
    let (mut member, mut backoff) = (shared.client.current(), Backoff::default());
    loop {
        let ended = match copy(&shared, member, &mut backoff).await {
            Err(ended) => ended,
            Ok(never) => match never {},
        };
        match ended {
            Ended::Compacted(oldest) => {
                tracing::warn!("etcd compacted past the watch position; reloading the cache");
                shared.note_compacted(oldest.unwrap_or_default());
                begin_again(&shared, &mut backoff).await;
            }
            Ended::Replaced => {
                // Whoever comes with a revision from before must not be told what it means now.
                let newest = begin_again(&shared, &mut backoff).await;
                shared.forget_before(newest);
            }
            Ended::Broken(why) => {
                tracing::info!(
                    member = shared.client.url(member),
                    why,
                    "the watch on etcd failed; trying the next member"
                );
                member = (member + 1) % shared.client.members();
                if backoff.is_lasting() {
                    shared.set_watch_trouble(Some(why));
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Copies what a member tells until it ends.
async fn copy(
    shared: &Arc<Shared>,
    member: usize,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, Ended> {
    let after = shared.recent().complete_to();
    let epoch = shared.told.borrow().epoch;
    let mut feed = Feed::open(shared, member, after, epoch, Purpose::Live).await?;
    shared.set_watch_trouble(None);
    loop {
        let batch = feed.next().await?;
        backoff.reset();
        let bytes_max = shared.options.history_bytes_max;
        let revision = {
            let mut recent = shared.recent();
            recent.push(batch, bytes_max);
            recent.complete_to()
        };
        shared.told.send_modify(|told| told.revision = revision);
    }
}

/// What came between is not to be had: begins with what is newest. Cursors find out for themselves.
async fn begin_again(shared: &Arc<Shared>, backoff: &mut Backoff) -> Revision {
    loop {
        let epoch = shared.client.seen().epoch;
        match shared.newest().await {
            // The answer must be of the epoch it is taken for.
            Ok(_) if shared.client.seen().epoch != epoch => {}
            Ok(revision) => {
                *shared.recent() = Recent::after(revision);
                shared.told.send_replace(Told { revision, epoch });
                return revision;
            }
            Err(error) => {
                shared.set_watch_trouble(Some(error.to_string()));
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

/// Times a cursor tries to read history before it gives up.
const TRIES_MAX: usize = 8;

/// A watcher: where it is, and a feed of its own while it is far behind.
pub(crate) struct Cursor {
    /// Weak, so that watchers end when the engine is gone.
    shared: Weak<Shared>,
    told: watch::Receiver<Told>,
    prefix: String,
    position: Revision,
    epoch: u64,
    past: Option<Feed>,
    tries: usize,
    backoff: Backoff,
}

impl Cursor {
    pub(crate) fn new(shared: &Arc<Shared>, prefix: &str, position: Revision) -> Cursor {
        let told = shared.told.subscribe();
        let epoch = told.borrow().epoch;
        Cursor {
            shared: Arc::downgrade(shared),
            told,
            prefix: prefix.to_owned(),
            position,
            epoch,
            past: None,
            tries: 0,
            backoff: Backoff::default(),
        }
    }

    /// Waits for changes after the position. An error is the last thing a watcher sees.
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
            let told = *self.told.borrow_and_update();
            if told.epoch != self.epoch {
                return Some(Err(Error::Replaced { current: told.revision }));
            }
            let held = self.shared.upgrade()?.recent().batch(&self.prefix, self.position);
            match held {
                Some(batch) if batch.complete_to > self.position => {
                    (self.past, self.tries) = (None, 0);
                    return Some(Ok(batch));
                }
                Some(_) => self.told.changed().await.ok()?,
                None => match self.read_past().await? {
                    Ok(None) => {}
                    Ok(Some(batch)) => return Some(Ok(batch)),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }

    /// Reads on from etcd's history. `Ok(None)` is "look again".
    async fn read_past(&mut self) -> Option<Result<Option<Batch>, Error>> {
        let shared = self.shared.upgrade()?;
        let ended = match self.past.as_mut() {
            None => {
                let member = shared.client.current() + self.tries;
                let past = Purpose::History;
                match Feed::open(&shared, member, self.position, self.epoch, past).await {
                    Ok(feed) => {
                        self.past = Some(feed);
                        return Some(Ok(None));
                    }
                    Err(ended) => ended,
                }
            }
            Some(feed) => match feed.next().await {
                Ok(mut batch) => {
                    batch.changes.retain(|change| change.key.as_str().starts_with(&self.prefix));
                    self.backoff.reset();
                    return Some(Ok(Some(batch)));
                }
                Err(ended) => ended,
            },
        };
        self.past = None;
        Some(match ended {
            Ended::Compacted(oldest) => {
                shared.note_compacted(oldest.unwrap_or_default());
                Err(shared.compacted_at(self.position).await)
            }
            Ended::Replaced => {
                let current = shared.client.seen().revision;
                Err(Error::Replaced { current })
            }
            Ended::Broken(why) if self.tries == TRIES_MAX => Err(Error::Unavailable(why)),
            Ended::Broken(_) => {
                self.tries += 1;
                tokio::time::sleep(self.backoff.next()).await;
                Ok(None)
            }
        })
    }
}
