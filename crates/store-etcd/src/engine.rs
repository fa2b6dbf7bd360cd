//! The engine: the `Store` trait over etcd.
//!
//! River: server writes → **engine** → session → etcd.
//! Promise: a write is one guarded transaction and is acknowledged after etcd acknowledged it;
//! reads of the newest state are linearizable. A result that cannot be obtained in time is an
//! error, never a guess.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use headwater_api::Revision;
use headwater_store::{
    ChangeStream, Committed, Error, Key, KeyHistory, Range, RangePage, Record, RevisionAt, Store,
    StoreCondition, VersionRange, Write, versions,
};
use tokio::task::JoinSet;

use crate::client::Retry;
use crate::compaction;
use crate::options::Options;
use crate::proto::{RangeRequest, STATUS, StatusRequest, StatusResponse};
use crate::session::Session;
use crate::start;
use crate::watch::{self, Cursor};

/// A store in etcd.
pub struct EtcdStore {
    session: Arc<Session>,
    /// The watch, the compactor and the health check; they end with the engine.
    _tasks: Mutex<JoinSet<()>>,
}

/// The interval of the health check.
const HEALTH_CHECK_EVERY: Duration = Duration::from_secs(2);

impl EtcdStore {
    /// Connects to a cluster and checks that it is usable; writes nothing if it is not.
    pub async fn connect(options: Options) -> Result<EtcdStore, start::Error> {
        let client = start::client(&options)?;
        let info = start::check(&client, &options).await?;
        let session = Session::new(client, options, &info);
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::follow(session.clone()));
        tasks.spawn(check_health(session.clone()));
        if let Some(interval) = session.options.compaction {
            tasks.spawn(compaction::run(session.clone(), interval));
        }
        Ok(EtcdStore { session, _tasks: Mutex::new(tasks) })
    }
}

/// Calls the cluster regularly, so that trouble is known before a request meets it.
async fn check_health(session: Arc<Session>) {
    loop {
        // The client records the outcome.
        let _ = session.newest().await;
        if session.client.is_full() {
            let _ = session.try_space().await;
        }
        let status = session.client.call(STATUS, StatusRequest {}, Retry::Always).await;
        if let Ok(StatusResponse { db_size, .. }) = status {
            session.disk_bytes.store(u64::try_from(db_size).unwrap_or(0), Ordering::Relaxed);
        }
        tokio::time::sleep(HEALTH_CHECK_EVERY).await;
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn revision(&self) -> Result<Revision, Error> {
        self.session.newest().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let keyspace = &self.session.keyspace;
        let key = keyspace.to_etcd(key.as_str())?;
        let request = RangeRequest { key, ..RangeRequest::default() };
        let response = self.session.read(request).await.map_err(Error::from)?;
        Ok(response.kvs.into_iter().next().and_then(|kv| keyspace.record(kv)))
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.session.range(&range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        self.session.commit(&write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        let oldest = self.session.compacted();
        if after < oldest {
            return Err(Error::Compacted { asked: after, oldest });
        }
        let cursor = Cursor::new(&self.session, prefix, after);
        Ok(stream::unfold(Some(cursor), Cursor::step).boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.session.compact(at).await
    }

    async fn versions(&self, range: VersionRange) -> Result<KeyHistory, Error> {
        let mut history = versions::by_reads(self, range).await?;
        for version in &mut history.versions {
            version.time = self.session.time_of(version.revision);
        }
        Ok(history)
    }

    async fn revision_at(&self, time: i64) -> Result<Option<RevisionAt>, Error> {
        Ok(Some(self.session.revision_at(time)))
    }

    fn condition(&self) -> StoreCondition {
        self.session.condition()
    }
}
