//! A store in memory that plays another client: it follows a write with writes of its own. Its
//! watches can be held back.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use headwater_api::Revision;
use headwater_store::{
    ChangeStream, Committed, Error, Key, Memory, Op, Range, RangePage, Record, Store,
    StoreCondition, Write,
};
use tokio::sync::watch;

/// Returns the writes that follow an operation which was stored at a revision.
type Rival = Box<dyn Fn(&Op, Revision) -> Vec<Op> + Send>;

/// A store in memory with a second client.
pub(crate) struct ScriptedStore {
    inner: Memory,
    rival: Mutex<Option<Rival>>,
    /// Whether watches receive no changes.
    is_held: watch::Sender<bool>,
}

impl ScriptedStore {
    pub(crate) fn new() -> Arc<ScriptedStore> {
        let (inner, rival) = (Memory::default(), Mutex::default());
        Arc::new(ScriptedStore { inner, rival, is_held: watch::Sender::new(false) })
    }

    /// Holds all changes back from watches, or no longer.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
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
        let is_held = self.is_held.subscribe();
        let changes = self.inner.watch(prefix, after).await?.then(move |batch| {
            let mut is_held = is_held.clone();
            async move {
                let _ = is_held.wait_for(|is_held| !is_held).await;
                batch
            }
        });
        Ok(changes.boxed())
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.inner.compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        self.inner.condition()
    }
}
