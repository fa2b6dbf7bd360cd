//! Starting and stopping a server: the only way to make one.
//!
//! River: store → cache → **start** → server, listeners, background parts.
//! Promise: when [`start`] returns, the cache is loaded, the bootstrap objects are stored and
//! definitions are served. [`Running::stop`] returns when everything has ended; dropping a
//! [`Running`] aborts everything.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use futures::FutureExt;
use headwater_api::Status;
use headwater_cache::Cacher;
use headwater_store::Store;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::front::listen::Listener;
use crate::server::{Options, Server};
use crate::upkeep::presence::Presence;

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be read.
    #[error("cannot load the data into the cache")]
    Load(#[source] headwater_cache::Error),
    /// The bootstrap objects cannot be written.
    #[error("cannot create the initial objects: {0}")]
    Bootstrap(Status),
    /// The cache failed while the server ran.
    #[error("the watch cache failed")]
    Cache(#[source] headwater_cache::Error),
    /// The thread of the cache cannot be started.
    #[error("cannot start the thread of the watch cache")]
    Thread(#[source] io::Error),
    /// A part ended while the server ran.
    #[error("a part of the server ended")]
    Ended,
    /// A part panicked.
    #[error("a part of the server panicked")]
    Panicked(#[source] JoinError),
}

/// A running server.
pub struct Running {
    server: Server,
    is_first: bool,
    /// They end first, with the requests in flight.
    listeners: JoinSet<()>,
    /// All others.
    parts: JoinSet<Result<(), Error>>,
    stop_listening: CancellationToken,
    stop: CancellationToken,
}

/// Starts a server over a store.
pub async fn start(store: Arc<dyn Store>, options: Options) -> Result<Running, Error> {
    let is_relay = options.upstream.is_some();
    let mut cacher = Cacher::new(store, options.cache.clone());
    Server::prepare(&cacher.handle()).map_err(Error::Load)?;
    cacher.load().await.map_err(Error::Load)?;
    let server = Server::new(cacher.handle(), options).map_err(Error::Load)?;
    server.serve_definitions().map_err(Error::Load)?;
    let mut running = Running {
        server: server.clone(),
        is_first: false,
        listeners: JoinSet::new(),
        parts: JoinSet::new(),
        stop_listening: CancellationToken::new(),
        stop: CancellationToken::new(),
    };
    let stop = running.stop.clone();
    running.parts.spawn(follow_store(cacher, stop));
    running.run(|stop| server.clone().keep_live_resources(stop));
    let audited = server.clone();
    running.run(|stop| async move {
        let audit = audited.audit().clone();
        audit.run(audited.caller(), audited.cache(), stop).await;
    });
    let traced = server.clone();
    running.run(|stop| async move {
        let watches = traced.live().watches();
        let behind = |collection: &str, revision| watches.behind(collection, revision);
        traced.tracer().clone().follow(traced.cache(), behind, stop).await;
    });
    if is_relay {
        return Ok(running); // it has no objects of its own
    }
    running.run(|stop| server.clone().follow_definitions(stop));
    running.run(|stop| server.clone().follow_roles(stop));
    running.is_first = server.bootstrap().await.map_err(Error::Bootstrap)?;
    running.run(|stop| server.clone().keep_flow_control(stop));
    server.ensure_api_services().await.map_err(Error::Bootstrap)?;
    running.run(|stop| server.clone().keep_api_services(stop));
    running.run(|stop| server.clone().report_unrouted(stop));
    Ok(running)
}

/// Runs the feed of the cache on a thread of its own, so that it never queues behind requests and
/// deliveries to watchers. A runtime with one thread, in tests, runs it among the other tasks.
async fn follow_store(cacher: Cacher, stop: CancellationToken) -> Result<(), Error> {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return cacher.run(stop).await.map_err(Error::Cache);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Thread)?;
    // The thread ends with this part, even if the part is aborted.
    let stop = stop.child_token();
    let _ended = stop.clone().drop_guard();
    let (sender, result) = oneshot::channel();
    let run = move || {
        let ended = runtime.block_on(AssertUnwindSafe(cacher.run(stop)).catch_unwind());
        let _ = sender.send(ended); // nobody waits for an aborted part
    };
    std::thread::Builder::new().name("cache".into()).spawn(run).map_err(Error::Thread)?;
    match result.await {
        Ok(Ok(ended)) => ended.map_err(Error::Cache),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(Error::Ended),
    }
}

impl Running {
    /// The server, for requests without a socket. Its cache and its store are below it.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Serves the connections of a listener until the server stops.
    pub fn listen(&mut self, listener: Listener) {
        let listener = listener.with_health(self.server.health_handler());
        self.listeners.spawn(listener.run(self.server.handler(), self.stop_listening.clone()));
    }

    /// Runs a background part until the server stops. A part that ends earlier is a failure.
    pub fn run<F>(&mut self, part: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let part = part(self.stop.clone());
        self.parts.spawn(async move {
            part.await;
            Ok(())
        });
    }

    /// Writes the address of this server into its objects. Nothing that it serves depends on them:
    /// over an existing store, whose writes may have to wait until the data is checked, that
    /// happens in the background.
    pub async fn appear(&mut self, presence: Presence) {
        let server = self.server.clone();
        let appearing = async move {
            if let Err(error) = server.appear(presence).await {
                tracing::warn!(%error, "cannot update the endpoints of default/kubernetes");
            }
        };
        match self.is_first {
            true => appearing.await,
            false => self.run(|stop| async move {
                stop.run_until_cancelled(appearing).await;
                stop.cancelled().await;
            }),
        }
    }

    /// Waits until a part fails or ends, which none should before [`Running::stop`].
    pub async fn failed(&mut self) -> Error {
        match self.parts.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => Error::Panicked(error),
            Some(Ok(Ok(()))) | None => Error::Ended,
        }
    }

    /// Stops everything: readiness fails, watches end cleanly, listeners finish the requests in
    /// flight, then the other parts end.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.server.drain();
        self.stop_listening.cancel();
        while let Some(ended) = self.listeners.join_next().await {
            ended.map_err(Error::Panicked)?;
        }
        self.stop.cancel();
        while let Some(ended) = self.parts.join_next().await {
            ended.map_err(Error::Panicked)??;
        }
        Ok(())
    }
}
