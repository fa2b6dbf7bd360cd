//! Writes of a session: guarded transactions, leases and compactions.
//!
//! River: server → **write** → etcd.
//! Promise: a write is one transaction with all its guards and operations, so etcd applies all of it
//! at one revision, or nothing. It is acknowledged after etcd acknowledged it, and is never sent
//! again if its outcome is unknown.

use std::time::Duration;

use bytes::Bytes;
use headwater_api::Revision;
use headwater_store::{Action, Committed, Error, Guard, Op, Write};
use tokio::time::Instant;

use crate::call_error::CallError;
use crate::client::Retry;
use crate::convert::{number, revision};
use crate::lease::Lease;
use crate::proto::{
    COMPACT, CompactRequest, CompactResponse, Compare, DeleteRangeRequest, LEASE_GRANT,
    LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, Request, TXN, TxnRequest,
    TxnResponse,
};
use crate::session::Session;

/// How often a write with a time to live is sent with another lease.
const LEASES_MAX: usize = 3;

impl Session {
    /// Checks all guards and applies all operations in one transaction, at one revision.
    pub(crate) async fn commit(&self, write: &Write) -> Result<Committed, Error> {
        write.check(self.options.value_max)?;
        for _ in 0..LEASES_MAX {
            let request = self.transaction(write).await?;
            match self.client.call(TXN, request, Retry::IfUnsent).await {
                Ok(response) => return self.outcome(write, response),
                Err(CallError::NoLease) => *self.lease.lock().await = None,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Error::Unavailable("etcd's leases expire before they are used".into()))
    }

    async fn transaction(&self, write: &Write) -> Result<TxnRequest, Error> {
        let mut request = TxnRequest::default();
        for Op { key, guard, action } in &write.ops {
            let key = self.keyspace.to_etcd(key.as_str())?;
            request.compare.push(compare(key.clone(), *guard));
            let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
            request.failure.push(Request::Range(get).into());
            request.success.push(match action {
                Action::Delete => Request::DeleteRange(DeleteRangeRequest { key }).into(),
                Action::Put { value, ttl } => {
                    let lease = match ttl {
                        Some(ttl) => self.lease(*ttl).await?,
                        None => 0,
                    };
                    Request::Put(PutRequest { key, value: value.clone(), lease }).into()
                }
            });
        }
        Ok(request)
    }

    /// The revision of the write, or the guard that failed.
    fn outcome(&self, write: &Write, response: TxnResponse) -> Result<Committed, Error> {
        if response.succeeded {
            let at = revision(response.header.map_or(0, |header| header.revision));
            return Ok(Committed::new(at, at));
        }
        let found = response
            .responses
            .into_iter()
            .map(|response| response.range.and_then(|range| range.kvs.into_iter().next()));
        for (op, kv) in write.ops.iter().zip(found) {
            let at = kv.as_ref().map(|kv| revision(kv.mod_revision));
            let holds = match op.guard {
                Guard::Absent => at.is_none(),
                Guard::At(expected) => at == Some(expected),
            };
            if !holds {
                let actual = kv.and_then(|kv| self.keyspace.record(kv));
                return Err(Error::Conflict { key: op.key.clone(), actual });
            }
        }
        let why = "etcd rejected a transaction although every guard holds; retry";
        Err(Error::Unavailable(why.into()))
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
        let key = self.keyspace.compaction();
        let put = PutRequest { key: key.clone(), ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare::mod_revision(key, -1)],
            success: vec![Request::Put(put).into()],
            failure: Vec::new(),
        };
        self.client.call(TXN, request, Retry::Always).await
    }
}

fn compare(key: Bytes, guard: Guard) -> Compare {
    match guard {
        Guard::Absent => Compare::mod_revision(key, 0),
        // No value is at revision zero, and in etcd zero means that the key is absent.
        Guard::At(Revision::ZERO) => Compare::mod_revision(key, -1),
        Guard::At(at) => Compare::mod_revision(key, number(at)),
    }
}
