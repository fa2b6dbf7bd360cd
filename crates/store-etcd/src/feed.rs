//! A feed: one watch on one etcd member, from a given revision.
//!
//! River: etcd → **feed** → recent changes, or one cursor that is far behind.
//! Promise: yields every change of our keys after its start, once and in order, all changes of a
//! revision together; or the reason why it ended. It does not trust the stream blindly: it drops
//! events at or below its position, and gives up a member that is silent or lags.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::Batch;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::codec::Streaming;

use crate::call_error::{CallError, call_error};
use crate::client::EpochRevision;
use crate::compaction;
use crate::convert::{PrevCompacted, number, revision};
use crate::member::WatchPurpose;
use crate::proto::{EtcdEvent, Watch, WatchCreate, WatchProgress, WatchRequest, WatchResponse};
use crate::session::Session;

/// Why a feed ended.
#[derive(Debug)]
pub(crate) enum FeedEnd {
    /// etcd compacted the next revisions, up to this one if it reported it.
    Compacted(Option<Revision>),
    /// The watch omitted revisions after the first of these two: changes may be lost (R38).
    Skipped(Revision, Revision),
    /// The cluster was replaced or restored, which invalidates all changes of the feed.
    Replaced,
    /// The connection or the member failed; another member may work.
    Broken(String),
}

impl From<CallError> for FeedEnd {
    fn from(failure: CallError) -> FeedEnd {
        match failure {
            CallError::Compacted => FeedEnd::Compacted(None),
            failure => FeedEnd::Broken(failure.to_string()),
        }
    }
}

/// How long to wait for the event of a known revision before requesting progress.
const PROGRESS_SOON: Duration = Duration::from_millis(20);

/// How often to request progress from an idle member.
const PROGRESS_IDLE: Duration = Duration::from_secs(3);

/// How long a member may be silent.
const SILENT_MAX: Duration = Duration::from_secs(9);

/// How long a member may stay behind a known revision.
const BEHIND_MAX: Duration = Duration::from_secs(2);

/// One watch on etcd.
pub(crate) struct Feed {
    session: Arc<Session>,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    /// Every change of our keys up to here was returned.
    position: Revision,
    /// Fragments of a response that is too large for one message.
    fragments: Vec<EtcdEvent>,
    known: watch::Receiver<EpochRevision>,
    epoch: u64,
    /// The time of the last response.
    last_response: Instant,
    /// Since when a revision after the position is known.
    behind_since: Option<Instant>,
}

impl Feed {
    /// Starts a watch on a member, after a revision of this epoch.
    pub(crate) async fn open(
        session: &Arc<Session>,
        member: usize,
        after: Revision,
        epoch: u64,
        purpose: WatchPurpose,
    ) -> Result<Feed, FeedEnd> {
        let known = session.client.subscribe_known();
        // If progress notifications are not reliable, watch all keys in etcd: then every revision
        // has an event, and no notification is needed.
        let (key, range_end) = match session.trusts_progress {
            true => session.keyspace.everything(),
            false => (Bytes::from_static(&[0]), Bytes::from_static(&[0])),
        };
        let create = WatchCreate {
            key,
            range_end,
            // One earlier than needed: a delete exactly at the compacted revision may be compacted
            // too, and etcd then reports it instead of omitting the delete.
            start_revision: number(after).max(1),
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        };
        let (requests, responses) = session.client.watch(member, create, purpose).await?;
        Ok(Feed {
            session: session.clone(),
            requests,
            responses,
            position: after,
            fragments: Vec::new(),
            known,
            epoch,
            last_response: Instant::now(),
            behind_since: None,
        })
    }

    /// The next changes. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Batch, FeedEnd> {
        loop {
            let known = *self.known.borrow_and_update();
            if known.epoch != self.epoch {
                return Err(FeedEnd::Replaced);
            }
            let is_behind = known.revision > self.position;
            match is_behind {
                true => _ = self.behind_since.get_or_insert_with(Instant::now),
                false => self.behind_since = None,
            }
            let patience = if is_behind { PROGRESS_SOON } else { PROGRESS_IDLE };
            tokio::select! {
                biased;
                response = self.responses.message() => {
                    if let Some(batch) = self.take(response)? {
                        return Ok(batch);
                    }
                }
                // The feed may be behind now.
                _ = self.known.changed(), if !is_behind => {}
                () = tokio::time::sleep(patience) => self.request_progress()?,
            }
        }
    }

    fn request_progress(&mut self) -> Result<(), FeedEnd> {
        let is_stuck = self.behind_since.is_some_and(|since| since.elapsed() > BEHIND_MAX);
        if is_stuck || self.last_response.elapsed() > SILENT_MAX {
            let why = format!("the watch makes no progress after revision {}", self.position);
            return Err(FeedEnd::Broken(why));
        }
        let progress = WatchRequest { request: Some(Watch::Progress(WatchProgress {})) };
        // A full channel has enough progress requests already.
        let _ = self.requests.try_send(progress);
        Ok(())
    }

    fn take(
        &mut self,
        response: Result<Option<WatchResponse>, tonic::Status>,
    ) -> Result<Option<Batch>, FeedEnd> {
        let response = match response {
            Ok(Some(response)) => response,
            Ok(None) => return Err(FeedEnd::Broken("etcd closed the watch".into())),
            Err(status) => return Err(call_error(&status).into()),
        };
        self.last_response = Instant::now();
        self.session.client.note(response.header.as_ref(), Revision::ZERO, false);
        if self.session.client.known().epoch != self.epoch {
            return Err(FeedEnd::Replaced); // as this response revealed
        }
        if response.canceled {
            return Err(self.canceled(&response));
        }
        if response.created {
            return Ok(None);
        }
        let reached = response.header.map_or(Revision::ZERO, |header| revision(header.revision));
        if !response.events.is_empty() {
            self.fragments.extend(response.events);
            return match response.fragment {
                true => Ok(None),
                false => self.changes().map(Some),
            };
        }
        match self.fragments.is_empty() {
            true => Ok(self.progress(reached)),
            // The rest of a revision may be missing.
            false => Err(FeedEnd::Broken("etcd reported progress between two fragments".into())),
        }
    }

    fn canceled(&self, response: &WatchResponse) -> FeedEnd {
        if response.compact_revision > 0 {
            return FeedEnd::Compacted(Some(revision(response.compact_revision)));
        }
        // The token may have expired, which etcd reports to a watch only as text.
        self.session.client.forget_token();
        FeedEnd::Broken(format!("etcd canceled the watch: {}", response.cancel_reason))
    }

    /// Handles a progress notification: there is no change up to a revision.
    fn progress(&mut self, reached: Revision) -> Option<Batch> {
        if reached <= self.position || !self.session.trusts_progress {
            return None;
        }
        (self.position, self.behind_since) = (reached, None);
        Some(Batch { changes: Vec::new(), complete_to: reached })
    }

    /// All changes of one response. etcd cuts a response only into fragments, so it contains all
    /// changes of each revision.
    fn changes(&mut self) -> Result<Batch, FeedEnd> {
        let (mut changes, mut reached) = (Vec::new(), self.position);
        for event in std::mem::take(&mut self.fragments) {
            let at = revision(event.kv.as_ref().map_or(0, |kv| kv.mod_revision));
            if at <= self.position {
                continue; // from a lagging member, or the extra revision requested at the start
            }
            if at < reached {
                return Err(FeedEnd::Broken(format!(
                    "etcd sent revision {at} after revision {reached}"
                )));
            }
            if skips(self.session.trusts_progress, reached, at) {
                return Err(FeedEnd::Skipped(reached, at));
            }
            reached = at;
            compaction::note(&self.session, &event);
            match self.session.keyspace.change(event) {
                Ok(change) => changes.extend(change),
                Err(PrevCompacted) => return Err(FeedEnd::Compacted(None)),
            }
        }
        (self.position, self.behind_since) = (reached, None);
        Ok(Batch { changes, complete_to: reached })
    }
}

/// Whether changes between two revisions are missing. A watch on one prefix does not see every
/// revision; one on all keys does, because each revision of etcd has a change.
fn skips(trusts_progress: bool, reached: Revision, at: Revision) -> bool {
    !trusts_progress && at > reached.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R38
    #[test]
    fn a_watch_on_all_keys_notices_missing_revisions() {
        let check = |trusts_progress, reached, at, expected| {
            let found = skips(trusts_progress, Revision(reached), Revision(at));
            assert_eq!(found, expected, "{trusts_progress} {reached} {at}");
        };
        check(false, 7, 8, false);
        check(false, 7, 7, false);
        check(false, 7, 9, true);
        check(true, 7, 9, false);
    }
}
