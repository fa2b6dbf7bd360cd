//! One watch on etcd, from a revision on.
//!
//! River: etcd → **feed** → recent changes, or one cursor that is far behind.
//! Promise: every change of ours after its start, once, in order, whole revisions at a time; or a
//! reason to end. The stream is not trusted blindly: what is at or below its position is dropped,
//! and a member that keeps silent or lags is left (reliability 2.7).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::Batch;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::codec::Streaming;

use crate::client::Seen;
use crate::convert::{Forgotten, number, revision};
use crate::engine::Shared;
use crate::failure::{Failure, failure};
use crate::member::Purpose;
use crate::proto::{Event, Watch, WatchCreate, WatchProgress, WatchRequest, WatchResponse};

/// Why a feed has ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// What comes next was compacted away, up to this revision if etcd said so.
    Compacted(Option<Revision>),
    /// etcd is not what it was: nothing that was told is true any more.
    Replaced,
    /// The connection or the member failed: another may know more.
    Broken(String),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        match failure {
            Failure::Compacted => Ended::Compacted(None),
            failure => Ended::Broken(failure.to_string()),
        }
    }
}

/// How long to wait for the event that a known revision must bring, before asking for progress.
const PROGRESS_SOON: Duration = Duration::from_millis(20);

/// How often to ask a quiet member for a sign of life.
const PROGRESS_IDLE: Duration = Duration::from_secs(3);

/// A member that gives no sign of life for this long is left.
const SILENT_MAX: Duration = Duration::from_secs(9);

/// A member that does not get on for this long, although there is more to tell, is left.
const BEHIND_MAX: Duration = Duration::from_secs(2);

/// One watch on etcd.
pub(crate) struct Feed {
    shared: Arc<Shared>,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    /// Every change of ours up to here was handed out.
    position: Revision,
    /// Parts of a response that was too large for one message.
    parts: Vec<Event>,
    seen: watch::Receiver<Seen>,
    epoch: u64,
    /// When something was last heard.
    heard: Instant,
    /// Since when there has been more to tell.
    behind_since: Option<Instant>,
}

impl Feed {
    /// Follows a member from after a revision on, which is one of this epoch.
    pub(crate) async fn open(
        shared: &Arc<Shared>,
        member: usize,
        after: Revision,
        epoch: u64,
        purpose: Purpose,
    ) -> Result<Feed, Ended> {
        let seen = shared.client.follow_seen();
        // Where notices of progress are not reliable, everything in etcd is watched: then each
        // revision comes with an event, and no notice is needed.
        let (key, range_end) = match shared.trusts_progress() {
            true => shared.space.everything(),
            false => (Bytes::from_static(&[0]), Bytes::from_static(&[0])),
        };
        let create = WatchCreate {
            key,
            range_end,
            // One earlier than needed: if that one is compacted, so may be a delete exactly on the
            // compaction, and etcd says so instead of leaving it out.
            start_revision: number(after).max(1),
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        };
        let (requests, responses) = shared.client.watch(member, create, purpose).await?;
        Ok(Feed {
            shared: shared.clone(),
            requests,
            responses,
            position: after,
            parts: Vec::new(),
            seen,
            epoch,
            heard: Instant::now(),
            behind_since: None,
        })
    }

    /// What comes next. May be dropped while it waits and called again.
    pub(crate) async fn next(&mut self) -> Result<Batch, Ended> {
        loop {
            let seen = *self.seen.borrow_and_update();
            if seen.epoch != self.epoch {
                return Err(Ended::Replaced);
            }
            let is_behind = seen.revision > self.position;
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
                // It may have to hurry now.
                _ = self.seen.changed(), if !is_behind => {}
                () = tokio::time::sleep(patience) => self.ask_for_progress()?,
            }
        }
    }

    fn ask_for_progress(&mut self) -> Result<(), Ended> {
        let is_stuck = self.behind_since.is_some_and(|since| since.elapsed() > BEHIND_MAX);
        if is_stuck || self.heard.elapsed() > SILENT_MAX {
            let why = format!("the watch makes no progress after revision {}", self.position);
            return Err(Ended::Broken(why));
        }
        let progress = WatchRequest { request: Some(Watch::Progress(WatchProgress {})) };
        // Full means that enough questions are on their way.
        let _ = self.requests.try_send(progress);
        Ok(())
    }

    fn take(
        &mut self,
        response: Result<Option<WatchResponse>, tonic::Status>,
    ) -> Result<Option<Batch>, Ended> {
        let response = match response {
            Ok(Some(response)) => response,
            Ok(None) => return Err(Ended::Broken("etcd closed the watch".into())),
            Err(status) => return Err(failure(&status).into()),
        };
        self.heard = Instant::now();
        self.shared.client.note(response.header.as_ref(), Revision::ZERO, false);
        if self.shared.client.seen().epoch != self.epoch {
            return Err(Ended::Replaced); // by the one that tells this
        }
        if response.canceled {
            return Err(self.canceled(&response));
        }
        if response.created {
            return Ok(None);
        }
        let reached = response.header.map_or(Revision::ZERO, |header| revision(header.revision));
        if response.events.is_empty() && self.parts.is_empty() {
            return Ok(self.progress(reached));
        }
        self.parts.extend(response.events);
        match response.fragment {
            true => Ok(None),
            false => self.changes().map(Some),
        }
    }

    fn canceled(&self, response: &WatchResponse) -> Ended {
        if response.compact_revision > 0 {
            return Ended::Compacted(Some(revision(response.compact_revision)));
        }
        // It may be about who is asking, and a watch is told that in words only.
        self.shared.client.forget_token();
        Ended::Broken(format!("etcd canceled the watch: {}", response.cancel_reason))
    }

    /// Nothing happened up to a revision.
    fn progress(&mut self, reached: Revision) -> Option<Batch> {
        if reached <= self.position || !self.shared.trusts_progress() {
            return None;
        }
        (self.position, self.behind_since) = (reached, None);
        Some(Batch { changes: Vec::new(), complete_to: reached })
    }

    /// All changes of one response: whole revisions, since its parts were put together.
    fn changes(&mut self) -> Result<Batch, Ended> {
        let (mut changes, mut reached) = (Vec::new(), self.position);
        for event in std::mem::take(&mut self.parts) {
            let at = revision(event.kv.as_ref().map_or(0, |kv| kv.mod_revision));
            if at <= self.position {
                continue; // from a member that lags, or the one it was asked to begin with
            }
            if at < reached {
                return Err(Ended::Broken(format!(
                    "etcd sent revision {at} after revision {reached}"
                )));
            }
            reached = at;
            self.shared.note_compaction(&event);
            match self.shared.space.change(event) {
                Ok(change) => changes.extend(change),
                Err(Forgotten) => return Err(Ended::Compacted(None)),
            }
        }
        (self.position, self.behind_since) = (reached, None);
        Ok(Batch { changes, complete_to: reached })
    }
}
