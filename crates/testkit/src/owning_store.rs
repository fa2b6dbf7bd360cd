//! A store that owns a resource which must outlive it, such as its directory.

use async_trait::async_trait;
use headwater_store::{
    ChangeStream, Committed, Error, Key, Range, RangePage, Record, Revision, Store, StoreCondition,
    Write,
};

/// A store and a resource; the store is dropped first.
#[derive(Debug)]
pub struct OwningStore<S, T>(pub S, pub T);

#[async_trait]
impl<S: Store, T: Send + Sync + 'static> Store for OwningStore<S, T> {
    async fn revision(&self) -> Result<Revision, Error> {
        self.0.revision().await
    }

    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.0.get(key).await
    }

    async fn range(&self, range: Range) -> Result<RangePage, Error> {
        self.0.range(range).await
    }

    async fn commit(&self, write: Write) -> Result<Committed, Error> {
        self.0.commit(write).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<ChangeStream, Error> {
        self.0.watch(prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.0.compact(at).await
    }

    fn condition(&self) -> StoreCondition {
        self.0.condition()
    }
}
