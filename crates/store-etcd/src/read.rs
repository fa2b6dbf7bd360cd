//! Reads: the newest revision, and pages of one state.
//!
//! River: cache and server → **read** → etcd. Reads ask a quorum, unless they are of the past.

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Error, Page, Range};
use std::sync::atomic::Ordering;
use tokio::time::timeout;

use crate::client::Calls;
use crate::compaction;
use crate::convert::{number, revision};
use crate::engine::{Shared, refused};
use crate::failure::Failure;
use crate::proto::{KeyValue, RANGE, RangeRequest, RangeResponse};

/// About how many bytes one answer to a range should have.
const PAGE_BYTES: usize = 4 << 20;
const PAGE_KEYS: std::ops::RangeInclusive<usize> = 100..=10_000;

/// Keys in the first page, when nothing is known about their size.
const PAGE_FIRST: usize = 500;

impl Shared {
    pub(crate) async fn read(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.client.call(RANGE, request, Calls::Freely).await
    }

    /// The newest revision, asked of a quorum after this was called. Those who come while a question
    /// is under way share the next one, and its failure too: many who wait for an etcd that does not
    /// answer must not wait one after the other.
    pub(crate) async fn newest(&self) -> Result<Revision, Error> {
        let ticket = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut turn = self.in_turn(&self.turn).await?;
        if turn.0 < ticket {
            let covers = self.asked.load(Ordering::Acquire);
            *turn = (covers, self.ask_newest().await.map_err(|failure| failure.to_string()));
        }
        turn.1.clone().map_err(Error::Unavailable)
    }

    async fn ask_newest(&self) -> Result<Revision, Failure> {
        let key = self.space.journal();
        let request = RangeRequest { key, count_only: true, ..RangeRequest::default() };
        let answer = self.read(request).await?;
        Ok(answer.header.map_or(Revision::ZERO, |header| revision(header.revision)))
    }

    /// Waits for one's turn, but not for ever: somebody before may be waiting for etcd.
    pub(crate) async fn in_turn<'a, T>(
        &self,
        turn: &'a tokio::sync::Mutex<T>,
    ) -> Result<tokio::sync::MutexGuard<'a, T>, Error> {
        let late = |_| Error::Unavailable("etcd does not respond".into());
        timeout(self.options.deadline / 2, turn.lock()).await.map_err(late)
    }

    /// Reads pages of one state and puts them together.
    pub(crate) async fn range(&self, range: &Range) -> Result<Page, Error> {
        let oldest = self.compacted();
        if let Some(asked) = range.at.filter(|at| *at < oldest) {
            return Err(Error::Compacted { asked, oldest });
        }
        if range.at == Some(Revision::ZERO) {
            return Ok(Page::default()); // to etcd, zero would mean the newest
        }
        let (mut key, range_end) = self.space.objects(&range.prefix);
        if let Some(after) = &range.after {
            match after.as_str() >= range.prefix.as_str() {
                true if range.covers_after(after) => {
                    key = beyond(&self.space.outer(after.as_str())?)
                }
                true => return self.past_the_end(range).await,
                false => {}
            }
        }
        let mut page = Page::default();
        let (mut at, mut size) = (range.at, PAGE_FIRST);
        loop {
            let left = range.limit.map(|limit| limit - page.records.len());
            let request = RangeRequest {
                key: key.clone(),
                range_end: range_end.clone(),
                // None asked for: one tells whether there are any.
                limit: i64::try_from(left.unwrap_or(size).min(size).max(1)).unwrap_or(i64::MAX),
                revision: at.map_or(0, number),
                keys_only: left == Some(0),
                ..RangeRequest::default()
            };
            let answer = match self.read(request).await {
                Ok(answer) => answer,
                Err(failure) => return Err(self.unreadable(failure, at).await),
            };
            let newest = answer.header.map_or(Revision::ZERO, |header| revision(header.revision));
            page.revision = *at.get_or_insert(newest);
            if left == Some(0) {
                page.more = !answer.kvs.is_empty();
                return Ok(page);
            }
            size = next_size(&answer.kvs);
            page.more = answer.more;
            if let Some(last) = answer.kvs.last() {
                key = beyond(&last.key);
            }
            for kv in answer.kvs {
                page.records.push(self.space.record(kv)?);
            }
            if !page.more || range.limit == Some(page.records.len()) {
                return Ok(page);
            }
        }
    }

    /// A range that begins after its own end.
    async fn past_the_end(&self, range: &Range) -> Result<Page, Error> {
        let revision = match range.at {
            Some(at) => at,
            None => self.newest().await?,
        };
        Ok(Page { revision, ..Page::default() })
    }

    pub(crate) async fn unreadable(&self, failure: Failure, at: Option<Revision>) -> Error {
        let asked = at.unwrap_or_default();
        match failure {
            Failure::Compacted => self.compacted_at(asked).await,
            Failure::Future => match self.newest().await {
                Ok(current) => Error::Future { asked, current },
                Err(error) => error,
            },
            failure => refused(failure),
        }
    }

    /// What to say about a revision that is compacted away.
    pub(crate) async fn compacted_at(&self, asked: Revision) -> Error {
        if self.compacted() <= asked {
            let learned = compaction::learn(&self.client, &self.space, asked).await;
            self.note_compacted(learned.unwrap_or_default());
        }
        Error::Compacted { asked, oldest: self.compacted().max(asked.next()) }
    }
}

/// The first key after this one.
fn beyond(key: &Bytes) -> Bytes {
    let mut next = key.to_vec();
    next.push(0);
    next.into()
}

/// How many keys the next page should have, judging by this one.
fn next_size(kvs: &[KeyValue]) -> usize {
    let bytes: usize = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let each = (bytes / kvs.len().max(1)).max(1);
    (PAGE_BYTES / each).clamp(*PAGE_KEYS.start(), *PAGE_KEYS.end())
}
