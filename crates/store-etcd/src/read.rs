//! Reads of a session: the newest revision, and ranges of one state in pages.
//!
//! River: cache and server → **read** → etcd. Reads of the newest state are linearizable.

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Error, Range, RangePage};
use std::sync::atomic::Ordering;
use tokio::time::timeout;

use crate::call_error::CallError;
use crate::client::Retry;
use crate::compaction;
use crate::convert::{number, revision};
use crate::proto::{KeyValue, RANGE, RangeRequest, RangeResponse};
use crate::session::Session;

/// The intended size of one page.
const PAGE_BYTES: usize = 4 << 20;
const PAGE_KEYS: std::ops::RangeInclusive<usize> = 100..=10_000;

/// Keys in the first page, while the size of values is unknown.
const PAGE_FIRST: usize = 500;

impl Session {
    pub(crate) async fn read(&self, request: RangeRequest) -> Result<RangeResponse, CallError> {
        self.client.call(RANGE, request, Retry::Always).await
    }

    /// The newest revision, from a linearizable read that starts after this call. Callers that
    /// arrive while a read is in flight share the next one and its failure: if etcd does not
    /// respond, many callers must not wait one after the other.
    pub(crate) async fn newest(&self) -> Result<Revision, Error> {
        let caller = self.newest_callers.fetch_add(1, Ordering::AcqRel) + 1;
        let mut newest = self.lock_in_time(&self.newest).await?;
        if newest.0 < caller {
            let covered = self.newest_callers.load(Ordering::Acquire);
            let response = self.read_newest().await;
            *newest = (covered, response.map_err(|failure| failure.to_string()));
        }
        newest.1.clone().map_err(Error::Unavailable)
    }

    async fn read_newest(&self) -> Result<Revision, CallError> {
        let key = self.keyspace.compaction();
        let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
        let response = self.read(request).await?;
        Ok(response.header.map_or(Revision::ZERO, |header| revision(header.revision)))
    }

    /// Waits for a lock, for a limited time: its holder may be waiting for etcd.
    pub(crate) async fn lock_in_time<'a, T>(
        &self,
        lock: &'a tokio::sync::Mutex<T>,
    ) -> Result<tokio::sync::MutexGuard<'a, T>, Error> {
        let late = |_| Error::Unavailable("etcd does not respond".into());
        timeout(self.options.deadline / 2, lock.lock()).await.map_err(late)
    }

    /// Reads a range of one state, in pages.
    pub(crate) async fn range(&self, range: &Range) -> Result<RangePage, Error> {
        let oldest = self.compacted();
        if let Some(asked) = range.at.filter(|at| *at < oldest) {
            return Err(Error::Compacted { asked, oldest });
        }
        if range.at == Some(Revision::ZERO) {
            return Ok(RangePage::default()); // in etcd, zero means the newest revision
        }
        let (mut key, range_end) = self.keyspace.objects(&range.prefix);
        if let Some(after) = &range.after {
            match after.as_str() >= range.prefix.as_str() {
                true if range.covers_after(after) => {
                    key = key_after(&self.keyspace.to_etcd(after.as_str())?)
                }
                true => return self.empty_page(range).await,
                false => {}
            }
        }
        let mut page = RangePage::default();
        let (mut at, mut size) = (range.at, PAGE_FIRST);
        loop {
            let left = range.limit.map(|limit| limit - page.records.len());
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                // With a limit of none, one key shows whether there are any.
                limit: i64::try_from(left.unwrap_or(size).min(size).max(1)).unwrap_or(i64::MAX),
                revision: at.map_or(0, number),
                keys_only: left == Some(0),
                ..RangeRequest::default()
            };
            let response = match self.read(request).await {
                Ok(response) => response,
                Err(failure) => return Err(self.revision_error(failure, at).await),
            };
            let newest = response.header.map_or(Revision::ZERO, |header| revision(header.revision));
            page.revision = *at.get_or_insert(newest);
            if left == Some(0) {
                page.more = !response.kvs.is_empty();
                return Ok(page);
            }
            size = next_size(&response.kvs);
            page.more = response.more;
            if let Some(last) = response.kvs.last() {
                key = key_after(&last.key);
            }
            for kv in response.kvs {
                page.records.extend(self.keyspace.record(kv));
            }
            if !page.more || range.limit == Some(page.records.len()) {
                return Ok(page);
            }
        }
    }

    /// The page of a range that starts after its own end.
    async fn empty_page(&self, range: &Range) -> Result<RangePage, Error> {
        let revision = match range.at {
            Some(at) => at,
            None => self.newest().await?,
        };
        Ok(RangePage { revision, ..RangePage::default() })
    }

    /// The error of a failed call for the state at a revision.
    pub(crate) async fn revision_error(&self, failure: CallError, at: Option<Revision>) -> Error {
        let asked = at.unwrap_or_default();
        match failure {
            CallError::Compacted => self.compacted_error(asked).await,
            CallError::Future => match self.newest().await {
                Ok(current) => Error::Future { asked, current },
                Err(error) => error,
            },
            failure => failure.into(),
        }
    }

    /// The error for a compacted revision.
    pub(crate) async fn compacted_error(&self, asked: Revision) -> Error {
        if self.compacted() <= asked {
            let learned = compaction::learn(&self.client, &self.keyspace, asked).await;
            self.note_compacted(learned.unwrap_or_default());
        }
        Error::Compacted { asked, oldest: self.compacted().max(asked.next()) }
    }
}

/// The first key after this one.
fn key_after(key: &Bytes) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

/// The number of keys of the next page, computed from the size of this one.
fn next_size(kvs: &[KeyValue]) -> usize {
    let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let each = (bytes / kvs.len().max(1)).max(1);
    (PAGE_BYTES / each).clamp(*PAGE_KEYS.start(), *PAGE_KEYS.end())
}
