//! Periodic compaction of etcd by one of the replicas.
//!
//! Once per interval, every replica tries to write one key, on the condition that no replica wrote
//! it since its last try. The one that succeeds compacts to the revision it read one interval
//! earlier, so history spans one to two intervals (S6.20). The key holds the compacted revision,
//! and every replica learns it through the watch.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::Revision;

use crate::call_error::CallError;
use crate::client::{Client, Retry};
use crate::convert::{Keyspace, number, revision};
use crate::member::WatchPurpose;
use crate::proto::{
    Compare, EtcdEvent, PutRequest, RangeRequest, Request, TXN, TxnRequest, TxnResponse,
    WatchCreate,
};
use crate::session::Session;

/// Compacts once per interval, until the engine is dropped.
pub(crate) async fn run(session: Arc<Session>, interval: Duration) {
    let mut election = Election::default();
    loop {
        match election.run(&session).await {
            Ok(Some(at)) => match session.compact(at).await {
                Ok(()) => tracing::info!(revision = %at, "compacted etcd"),
                Err(error) => tracing::warn!(
                    revision = %at,
                    "cannot compact etcd; trying again after the interval: {error}"
                ),
            },
            Ok(None) => {}
            Err(failure) => tracing::warn!(
                "cannot elect the replica that compacts etcd; trying again after the interval: \
                 {failure}"
            ),
        }
        tokio::time::sleep(interval).await;
    }
}

/// The election of the replica that compacts: what this one read at its last try.
#[derive(Clone, Copy, Debug, Default)]
struct Election {
    /// The version of the key: how often it was written.
    version: i64,
    /// The newest revision in etcd.
    newest: Revision,
}

impl Election {
    /// Returns the revision to compact to, if this replica wins.
    async fn run(&mut self, session: &Session) -> Result<Option<Revision>, CallError> {
        let key = session.keyspace.compaction();
        let value = self.newest.to_string().into();
        let put = PutRequest { key: key.clone(), value, lease: 0 };
        let look = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare::version(key, self.version)],
            success: vec![Request::Put(put).into()],
            failure: vec![Request::Range(look).into()],
        };
        let response: TxnResponse = session.client.call(TXN, request, Retry::IfUnsent).await?;
        let newest = revision(response.header.map_or(0, |header| header.revision));
        let at = std::mem::replace(&mut self.newest, newest);
        if response.succeeded {
            self.version += 1;
            return Ok((at > Revision::ZERO).then_some(at));
        }
        let found = response.responses.into_iter().filter_map(|response| response.range);
        let found = found.flat_map(|range| range.kvs).next();
        self.version = found.map_or(0, |kv| kv.version);
        Ok(None)
    }
}

/// The compacted revision, whichever client compacted. etcd reports it only to a watch that starts
/// too early, so `asked` must be a revision that is known to be compacted.
pub(crate) async fn learn(
    client: &Client,
    keyspace: &Keyspace,
    asked: Revision,
) -> Option<Revision> {
    let (key, start_revision) = (keyspace.compaction(), number(asked).max(1));
    let create = WatchCreate { key, start_revision, ..WatchCreate::default() };
    let compacted = async {
        // The sender must live: the watch ends with it.
        let opened = client.watch(client.current(), create, WatchPurpose::History).await;
        let (_requests, mut responses) = opened.ok()?;
        loop {
            let response = responses.message().await.ok()??;
            if response.canceled {
                return Some(revision(response.compact_revision));
            }
        }
    };
    tokio::time::timeout(LEARN_MAX, compacted).await.ok()?
}

/// The time limit of [`learn`]; after it, callers use an estimate.
const LEARN_MAX: Duration = Duration::from_secs(2);

/// Records the compaction by another replica, if the event is one.
pub(crate) fn note(session: &Session, event: &EtcdEvent) {
    if let Some(kv) = event.kv.as_ref().filter(|kv| kv.key == session.keyspace.compaction()) {
        let text = std::str::from_utf8(&kv.value).unwrap_or_default();
        session.note_compacted(Revision::parse(text).unwrap_or(Revision::ZERO));
    }
}
