//! Subscribes to the changes of an informer: as a stream or with a callback, alone or
//! shared.
//!
//! River: store → **subscribing** → subscriber.
//! Promise: a new subscriber receives all current objects and then every change, without gaps or
//! duplicates.

use std::future::Future;
use std::sync::Arc;

use tokio::time::Instant;

use crate::change::Change;
use crate::error::Error;
use crate::object::Cached;

use super::shared::RunPhase;
use super::subscriber::{self, Callback, Subscriber};
use super::{Handler, Informer, Subscribe, Subscription};

impl<K: Cached> Informer<K> {
    /// A stream of changes: first an add for each current object, then every change, without gaps
    /// or duplicates.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn subscribe(&self, options: Subscribe) -> Result<Subscription<K>, Error> {
        Ok(Subscription::new(self.join(options)?, self.clone()))
    }

    /// Calls `handler` for each change, one after the other, on a task of the informer. A panic is
    /// logged, and the handler is called for the next change.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn for_each(
        &self,
        options: Subscribe,
        handler: impl FnMut(Change<K>) + Send + 'static,
    ) -> Result<Handler<K>, Error> {
        let callback = subscriber::blocking(options.name.clone(), handler);
        self.handle(options, callback)
    }

    /// As [`Informer::for_each`]; the future of one change is awaited before the next.
    ///
    /// # Errors
    /// [`Error::Stopped`] on a stopped informer.
    pub fn for_each_async<F>(
        &self,
        options: Subscribe,
        handler: impl FnMut(Change<K>) -> F + Send + 'static,
    ) -> Result<Handler<K>, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.handle(options, subscriber::asynchronous(handler))
    }

    fn handle(&self, options: Subscribe, callback: Callback<K>) -> Result<Handler<K>, Error> {
        let subscriber = self.join(options)?;
        self.shared.add_handler((Arc::clone(&subscriber), callback));
        Ok(Handler::new(subscriber, self.clone()))
    }

    fn join(&self, options: Subscribe) -> Result<Arc<Subscriber<K>>, Error> {
        let now = Instant::now();
        let metrics = self.shared.options.metrics.as_ref();
        // Batches are applied and delivered under this lock, so this is between two batches.
        let mut core = self.shared.core();
        if core.phase == RunPhase::Stopped {
            return Err(self.stopped_error());
        }
        let period = core.resync_for(&options);
        let subscriber =
            Subscriber::new(options, period, now, metrics.map(|metrics| (metrics, self.name())));
        subscriber.replay(self.shared.store.snapshot().state, now);
        if core.synced {
            subscriber.populated();
        }
        core.subscribers.retain(|known| !known.is_gone());
        core.subscribers.push(Arc::clone(&subscriber));
        Ok(subscriber)
    }
}
