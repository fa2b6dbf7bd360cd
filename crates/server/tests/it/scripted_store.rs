//! A store in memory that plays another client: it follows a write with writes of its own.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use headwater_api::Revision;
use headwater_store::{
    ChangeStream, Committed, Error, Key, Memory, Op, Range, RangePage, Record, Store,
    StoreCondition, Write,
};

/// Returns the writes that follow an operation which was stored at a revision.
type Rival = Box<dyn Fn(&Op, Revision) -> Vec<Op> + Send>;

/// A store in memory with a second client.
pub(crate) struct ScriptedStore {
    inner: Memory,
    rival: Mutex<Option<Rival>>,
}

impl ScriptedStore {
    pub(crate) fn new() -> Arc<ScriptedStore> {
        let store = ScriptedStore { inner: Memory::default(), rival: Mutex::default() };
        Arc::new(store)
    }

    /// After the next write for which `rival` returns operations, commits these one by one before
    /// that write returns.
    pub(crate) fn follow(&self, rival: impl Fn(&Op, Revision) -> Vec<Op> + Send + 'static) {
        *self.rival.lock().unwrap() = Some(Box::new(rival));
    }

    fn next(&self, write: &Write, at: Revision) -> Vec<Op> {
        let mut rival = self.rival.lock().unwrap();
        let own = write.ops.last().zip(rival.as_ref()).map(|(op, rival)| rival(op, at));
        let own = own.unwrap_or_default();
        if !own.is_empty() {
            *rival = None;
        }
        own
    }
}

#[async_trait]
impl Store for ScriptedStore {
    async fn revision(&self) -> Result<Revision, Error> {
        self.inner.revision().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.inner.get(key).await
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.inner.range(range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        let committed = self.inner.commit(write.clone()).await?;
        for op in self.next(&write, committed.last) {
            self.inner.commit(Write { ops: vec![op] }).await.unwrap();
        }
        Ok(committed)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.inner.watch(prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        self.inner.condition()
    }
}
