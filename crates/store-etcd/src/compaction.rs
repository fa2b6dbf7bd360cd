//! Compaction: every interval, by one of the replicas.
//!
//! Each replica tries to write one key under the condition that nobody has since it looked; the one
//! that succeeds compacts to the revision it saw an interval earlier, so that history spans one to
//! two intervals (S6.20). The key holds what was compacted, and the watch tells every replica.

use std::sync::Arc;
use std::time::Duration;

use headwater_api::Revision;

use crate::client::{Calls, Client};
use crate::convert::{Space, number, revision};
use crate::engine::Shared;
use crate::failure::Failure;
use crate::member::Purpose;
use crate::proto::{
    Compare, PutRequest, RangeRequest, Request, TXN, TxnRequest, TxnResponse, WatchCreate,
};

/// Compacts from time to time, until the engine is gone.
pub(crate) async fn run(shared: Arc<Shared>, interval: Duration) {
    let mut turn = Turn::default();
    loop {
        match turn.take(&shared).await {
            Ok(Some(at)) => match shared.compact(at).await {
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

/// What a replica saw when it last looked.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// How often the key had been written.
    version: i64,
    /// The newest revision.
    seen: Revision,
}

impl Turn {
    /// Looks again; the revision to compact to, if it is this replica's turn.
    async fn take(&mut self, shared: &Shared) -> Result<Option<Revision>, Failure> {
        let key = shared.space.compaction();
        let value = self.seen.to_string().into();
        let put = PutRequest { key: key.clone(), value, lease: 0 };
        let look = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let request = TxnRequest {
            compare: vec![
                Compare::version(key, self.version),
                Compare::mod_revision(shared.space.journal(), 0),
            ],
            success: vec![Request::Put(put).into()],
            failure: vec![Request::Range(look).into()],
        };
        let answer: TxnResponse = shared.client.call(TXN, request, Calls::Once).await?;
        let newest = revision(answer.header.map_or(0, |header| header.revision));
        let at = std::mem::replace(&mut self.seen, newest);
        if answer.succeeded {
            self.version += 1;
            return Ok((at > Revision::ZERO).then_some(at));
        }
        let found = answer.responses.into_iter().filter_map(|response| response.range);
        let found = found.flat_map(|range| range.kvs).next();
        self.version = found.map_or(0, |kv| kv.version);
        Ok(None)
    }
}

/// How far history is compacted, whoever did it. etcd tells that only to a watch that begins too
/// early, so this asks only when `asked` is known to be compacted.
pub(crate) async fn learn(client: &Client, space: &Space, asked: Revision) -> Option<Revision> {
    let (key, start_revision) = (space.journal(), number(asked).max(1));
    let create = WatchCreate { key, start_revision, ..WatchCreate::default() };
    let told = async {
        // The sender is kept: the watch ends with it.
        let opened = client.watch(client.current(), create, Purpose::History).await;
        let (_requests, mut responses) = opened.ok()?;
        loop {
            let response = responses.message().await.ok()??;
            if response.canceled {
                return Some(revision(response.compact_revision));
            }
        }
    };
    tokio::time::timeout(LEARN_MAX, told).await.ok()?
}

/// How long that may take; without an answer the next best is said.
const LEARN_MAX: Duration = Duration::from_secs(2);

/// What a value of the key says was compacted.
pub(crate) fn read(value: &[u8]) -> Revision {
    let text = std::str::from_utf8(value).unwrap_or_default();
    Revision::parse(text).unwrap_or(Revision::ZERO)
}

/// The revision after which nothing is lost, as a request.
pub(crate) fn request(at: Revision) -> crate::proto::CompactRequest {
    crate::proto::CompactRequest { revision: number(at) }
}
