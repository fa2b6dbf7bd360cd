//! Writes of a session: guarded transactions, leases and compactions.
//!
//! River: server → **write** → etcd.
//! Promise: one transaction checks all guards of a write. The write is acknowledged after etcd
//! acknowledged it, and is never sent again if its outcome is unknown.

use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Action, Committed, Error, Guard, Key, Op, Record, Write};
use tokio::time::Instant;

use crate::call_error::CallError;
use crate::client::Retry;
use crate::convert::{number, revision};
use crate::journal::{Journal, JournalOp};
use crate::lease::Lease;
use crate::proto::{
    COMPACT, CompactRequest, CompactResponse, Compare, KeyValue, LEASE_GRANT, LeaseGrantRequest,
    LeaseGrantResponse, PutRequest, RangeRequest, Request, RequestOp, TXN, TxnRequest, TxnResponse,
};
use crate::session::Session;

/// Operations in one write: etcd accepts 128 in a transaction.
const OPS_MAX: usize = 100;

/// How often a write is tried while other replicas' writes are unfinished.
const TRIES_MAX: usize = 32;

impl Session {
    pub(crate) async fn commit(&self, write: &Write) -> Result<Committed, Error> {
        write.check(self.options.value_max)?;
        if write.ops.len() > OPS_MAX {
            let why = format!("the write has more than {OPS_MAX} operations");
            return Err(Error::Refused(why));
        }
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
        let mut ops = Vec::with_capacity(write.ops.len());
        for op in &write.ops {
            ops.push(self.journal_op(op).await?);
        }
        let rest = Journal { ops: ops.split_off(1) };
        let first = &ops[0];
        let keys = || ops.iter().chain(&rest.ops).map(|op| op.key.clone());
        let get = |key: Bytes| Request::Range(RangeRequest { key, ..RangeRequest::default() });
        let journal = self.keyspace.journal();
        let guards = keys().zip(&write.ops).map(|(key, op)| guard(key, op.guard));
        let mut success = vec![first.request()];
        if !rest.ops.is_empty() {
            success.push(rest.store(journal.clone()));
        }
        let request = TxnRequest {
            compare: guards.chain([Compare::mod_revision(journal.clone(), 0)]).collect(),
            success,
            failure: keys().chain([journal]).map(get).map(RequestOp::from).collect(),
        };
        let response: TxnResponse = match self.client.call(TXN, request, Retry::IfUnsent).await {
            Ok(response) => response,
            Err(CallError::NoLease) => return Ok(Attempt::NoLease),
            Err(failure) => return Err(failure.into()),
        };
        let at = response.header.map_or(0, |header| header.revision);
        if !response.succeeded {
            return self.refusal(write, response);
        }
        // If another replica finishes the journal, no other write can come between.
        let last = Revision(revision(at).0 + rest.ops.len() as u64);
        let last = self.finish(at, rest).await?.unwrap_or(last);
        Ok(Attempt::Done(Committed { first: revision(at), last }))
    }

    /// The guard that failed; if all hold, another write is unfinished.
    fn refusal(&self, write: &Write, response: TxnResponse) -> Result<Attempt, Error> {
        let found = response
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
                let actual = kv.map(|kv| self.keyspace.record(kv)).transpose()?;
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

    /// Executes a journal. Returns the last revision, unless another replica finished it meanwhile.
    async fn finish(&self, mut at: i64, mut journal: Journal) -> Result<Option<Revision>, Error> {
        while !journal.ops.is_empty() {
            let mut op = journal.ops.remove(0);
            let key = self.keyspace.journal();
            let response = loop {
                let request = TxnRequest {
                    compare: vec![Compare::mod_revision(key.clone(), at)],
                    success: vec![op.request(), journal.store(key.clone())],
                    failure: Vec::new(),
                };
                match self.client.call::<_, TxnResponse>(TXN, request, Retry::IfUnsent).await {
                    // The write is committed: an object that never expires is better than a journal
                    // that blocks all writes.
                    Err(CallError::NoLease) => op.lease = 0,
                    response => break response.map_err(Error::from)?,
                }
            };
            if !response.succeeded {
                return Ok(None);
            }
            at = response.header.map_or(0, |header| header.revision);
        }
        Ok(Some(revision(at)))
    }

    async fn journal_op(&self, op: &Op) -> Result<JournalOp, Error> {
        let key = self.keyspace.to_etcd(op.key.as_str())?;
        Ok(match &op.action {
            Action::Delete => JournalOp { key, is_delete: true, ..JournalOp::default() },
            Action::Put { value, ttl } => {
                let lease = match ttl {
                    Some(ttl) => self.lease(*ttl).await?,
                    None => 0,
                };
                JournalOp { key, value: value.clone(), lease, is_delete: false }
            }
        })
    }

    /// A lease for one more object.
    async fn lease(&self, ttl: Duration) -> Result<i64, Error> {
        let mut lease = self.lock_in_time(&self.lease).await?;
        let now = Instant::now();
        if let Some(id) = lease.as_mut().and_then(|lease| lease.join(ttl, now)) {
            return Ok(id);
        }
        let request = LeaseGrantRequest { ttl: Lease::seconds(ttl) };
        // An unused lease expires by itself.
        let granted = self.client.call(LEASE_GRANT, request, Retry::Always).await;
        let granted: LeaseGrantResponse = granted.map_err(Error::from)?;
        let new = lease.insert(Lease::new(granted.id, ttl, now));
        new.join(ttl, now)
            .ok_or_else(|| Error::Unavailable("etcd granted a lease that is not usable".into()))
    }

    pub(crate) async fn compact(&self, at: Revision) -> Result<(), Error> {
        if at <= self.compacted() {
            return Ok(());
        }
        let request = CompactRequest { revision: number(at) };
        let response = self.client.call(COMPACT, request, Retry::Always).await;
        match response.map(|_: CompactResponse| ()) {
            // Another client compacted to this revision or a later one.
            Ok(()) | Err(CallError::Compacted) => {}
            Err(failure) => return Err(self.revision_error(failure, Some(at)).await),
        }
        self.note_compacted(at);
        Ok(())
    }

    /// Sends a write that etcd rejects while it has no space, and never executes: no key is at a
    /// negative revision.
    pub(crate) async fn try_space(&self) -> Result<TxnResponse, CallError> {
        let key = self.keyspace.journal();
        let put = PutRequest { key: key.clone(), ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare::mod_revision(key, -1)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.client.call(TXN, request, Retry::Always).await
    }
}

/// The outcome of one try of a write.
enum Attempt {
    Done(Committed),
    Conflict(Key, Option<Record>),
    /// Another write is unfinished; this is its journal.
    Busy(KeyValue),
    /// The lease has expired.
    NoLease,
}

fn guard(key: Bytes, guard: Guard) -> Compare {
    match guard {
        Guard::Absent => Compare::mod_revision(key, 0),
        // No value is at revision zero, and in etcd zero means that the key is absent.
        Guard::At(Revision::ZERO) => Compare::mod_revision(key, -1),
        Guard::At(at) => Compare::mod_revision(key, number(at)),
    }
}
