//! Writes: guarded transactions, and the leases of what does not stay.
//!
//! River: server → **write** → etcd. Promise: a write is decided by its guards in one transaction and
//! is acknowledged when etcd has; it is never sent again when its outcome is unknown.

use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Action, Committed, Error, Guard, Key, Op, Record, Write};
use tokio::time::Instant;

use crate::client::Calls;
use crate::compaction;
use crate::convert::{number, revision};
use crate::engine::{Shared, refused};
use crate::failure::Failure;
use crate::journal::{Journal, Step};
use crate::lease::Lease;
use crate::proto::{
    COMPACT, CompactResponse, Compare, KeyValue, LEASE_GRANT, LeaseGrantRequest,
    LeaseGrantResponse, PutRequest, RangeRequest, Request, RequestOp, TXN, TxnRequest, TxnResponse,
};

/// Operations in one write: etcd takes 128 in a transaction.
pub(crate) const OPS_MAX: usize = 100;

/// Times a write is tried again because of others' unfinished writes.
const TRIES_MAX: usize = 32;

impl Shared {
    pub(crate) async fn commit(&self, write: &Write) -> Result<Committed, Error> {
        for _ in 0..TRIES_MAX {
            match self.attempt(write).await? {
                Attempt::Done(committed) => return Ok(committed),
                Attempt::Conflict(key, actual) => return Err(Error::Conflict { key, actual }),
                Attempt::Busy(journal) => {
                    let unfinished = Journal::read(&journal).map_err(|error| Error::Damaged {
                        place: "the journal of an unfinished write in etcd".into(),
                        why: error.to_string(),
                    })?;
                    self.finish(journal.mod_revision, unfinished).await?;
                }
                Attempt::NoLease => *self.lease.lock().await = None,
            }
        }
        Err(Error::Unavailable(format!(
            "gave up after {TRIES_MAX} attempts: other servers' writes are always in progress"
        )))
    }

    async fn attempt(&self, write: &Write) -> Result<Attempt, Error> {
        let mut steps = Vec::with_capacity(write.ops.len());
        for op in &write.ops {
            steps.push(self.step(op).await?);
        }
        let rest = Journal { steps: steps.split_off(1) };
        let first = &steps[0];
        let keys = || steps.iter().chain(&rest.steps).map(|step| step.key.clone());
        let look = |key: Bytes| Request::Range(RangeRequest { key, ..RangeRequest::default() });
        let journal = self.space.journal();
        let guards = keys().zip(&write.ops).map(|(key, op)| guard(key, op.guard));
        let mut success = vec![first.request()];
        if !rest.steps.is_empty() {
            success.push(rest.keep(journal.clone()));
        }
        let request = TxnRequest {
            compare: guards.chain([Compare::mod_revision(journal.clone(), 0)]).collect(),
            success,
            failure: keys().chain([journal]).map(look).map(RequestOp::from).collect(),
        };
        let answer: TxnResponse = match self.client.call(TXN, request, Calls::Once).await {
            Ok(answer) => answer,
            Err(Failure::NoLease) => return Ok(Attempt::NoLease),
            Err(failure) => return Err(refused(failure)),
        };
        let at = answer.header.map_or(0, |header| header.revision);
        if !answer.succeeded {
            return self.refusal(write, answer);
        }
        // If others finish it for us, nothing else can have come between.
        let last = Revision(revision(at).0 + rest.steps.len() as u64);
        let last = self.finish(at, rest).await?.unwrap_or(last);
        Ok(Attempt::Done(Committed { first: revision(at), last }))
    }

    /// Which guard did not hold; if all did, somebody's write is under way.
    fn refusal(&self, write: &Write, answer: TxnResponse) -> Result<Attempt, Error> {
        let found = answer
            .responses
            .into_iter()
            .map(|response| response.range.and_then(|range| range.kvs.into_iter().next()));
        let mut found: Vec<Option<KeyValue>> = found.collect();
        let journal = found.pop().flatten();
        for (op, kv) in write.ops.iter().zip(found) {
            let at = kv.as_ref().map(|kv| revision(kv.mod_revision));
            let holds = match op.guard {
                Guard::Absent => at.is_none(),
                Guard::At(expected) => at == Some(expected),
            };
            if !holds {
                let actual = kv.map(|kv| self.space.record(kv)).transpose()?;
                return Ok(Attempt::Conflict(op.key.clone(), actual));
            }
        }
        match journal {
            Some(journal) => Ok(Attempt::Busy(journal)),
            None => Err(Error::Unavailable(
                "etcd rejected a transaction although every guard holds; retry".into(),
            )),
        }
    }

    /// Does what a journal says; the last revision, unless somebody else has done it meanwhile.
    async fn finish(&self, mut at: i64, mut journal: Journal) -> Result<Option<Revision>, Error> {
        while !journal.steps.is_empty() {
            let mut step = journal.steps.remove(0);
            let key = self.space.journal();
            let answer = loop {
                let request = TxnRequest {
                    compare: vec![Compare::mod_revision(key.clone(), at)],
                    success: vec![step.request(), journal.keep(key.clone())],
                    failure: Vec::new(),
                };
                match self.client.call::<_, TxnResponse>(TXN, request, Calls::Once).await {
                    // It was decided long ago; better that it stays than that nothing goes on.
                    Err(Failure::NoLease) => step.lease = 0,
                    answer => break answer.map_err(refused)?,
                }
            };
            if !answer.succeeded {
                return Ok(None);
            }
            at = answer.header.map_or(0, |header| header.revision);
        }
        Ok(Some(revision(at)))
    }

    async fn step(&self, op: &Op) -> Result<Step, Error> {
        let key = self.space.outer(op.key.as_str())?;
        Ok(match &op.action {
            Action::Delete => Step { key, is_delete: true, ..Step::default() },
            Action::Put { value, ttl } => {
                let lease = match ttl {
                    Some(ttl) => self.lease(*ttl).await?,
                    None => 0,
                };
                Step { key, value: value.clone(), lease, is_delete: false }
            }
        })
    }

    /// A lease for one more object.
    async fn lease(&self, ttl: Duration) -> Result<i64, Error> {
        let mut lease = self.in_turn(&self.lease).await?;
        let now = Instant::now();
        if let Some(id) = lease.as_mut().and_then(|lease| lease.take(ttl, now)) {
            return Ok(id);
        }
        let request = LeaseGrantRequest { ttl: Lease::seconds(ttl) };
        // One that nobody uses runs out by itself.
        let granted = self.client.call(LEASE_GRANT, request, Calls::Freely).await;
        let granted: LeaseGrantResponse = granted.map_err(refused)?;
        let new = lease.insert(Lease::new(granted.id, ttl, now));
        new.take(ttl, now)
            .ok_or_else(|| Error::Unavailable("etcd granted a lease that is not usable".into()))
    }

    pub(crate) async fn compact(&self, at: Revision) -> Result<(), Error> {
        if at <= self.compacted() {
            return Ok(());
        }
        let request = compaction::request(at);
        let answer = self.client.call(COMPACT, request, Calls::Freely).await;
        match answer.map(|_: CompactResponse| ()) {
            // Somebody else has compacted as far or further.
            Ok(()) | Err(Failure::Compacted) => {}
            Err(failure) => return Err(self.unreadable(failure, Some(at)).await),
        }
        self.note_compacted(at);
        Ok(())
    }

    /// A write that etcd refuses while it has no space, and that is never done: no key is at a
    /// revision below zero.
    pub(crate) async fn try_space(&self) -> Result<TxnResponse, Failure> {
        let key = self.space.journal();
        let put = PutRequest { key: key.clone(), ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare::mod_revision(key, -1)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.client.call(TXN, request, Calls::Freely).await
    }
}

/// What became of one try of a write.
enum Attempt {
    Done(Committed),
    Conflict(Key, Option<Record>),
    /// Somebody's write is under way: this is left to do.
    Busy(KeyValue),
    /// The lease had run out.
    NoLease,
}

fn guard(key: Bytes, guard: Guard) -> Compare {
    match guard {
        Guard::Absent => Compare::mod_revision(key, 0),
        // No value is at revision zero, and to etcd zero would mean that there is none.
        Guard::At(Revision::ZERO) => Compare::mod_revision(key, -1),
        Guard::At(at) => Compare::mod_revision(key, number(at)),
    }
}
