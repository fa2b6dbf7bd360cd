//! All wanted controllers under one manager: one factory, one election, one recorder.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::leader::Lease;
use headwater_client::{Error, Factory, Manager, recorder};

use crate::cluster::Cluster;
use crate::roster::Selected;

/// Which controllers run, and how.
pub struct Options {
    /// Which of them.
    pub selected: Selected,
    /// Who this process is: for events and for the election.
    pub identity: String,
    /// Work only while this lease is held; `None` if there is only one process.
    pub lease: Option<Lease>,
    /// Answer `/healthz`, `/readyz` and `/metrics` there.
    pub health_on: Option<std::net::SocketAddr>,
    synced: Option<Box<dyn FnOnce() + Send>>,
}

/// The name under which controllers write.
pub const COMPONENT: &str = "headwater-controllers";

impl Options {
    /// The chosen controllers, alone in the cluster.
    pub fn new(selected: Selected) -> Options {
        let identity = COMPONENT.to_owned();
        Options { selected, identity, lease: None, health_on: None, synced: None }
    }

    /// Is called once, when every informer has its first state.
    pub fn when_synced(&mut self, call: impl FnOnce() + Send + 'static) {
        self.synced = Some(Box::new(call));
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("selected", &self.selected).finish_non_exhaustive()
    }
}

/// Runs controllers until `stop` completes or one of them fails for good.
///
/// # Errors
/// What the manager returns: a part that failed, lost leadership.
pub async fn run(
    cluster: Cluster,
    options: Options,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let factory = cluster.factory().clone();
    let calls = Calls::new(factory.client().clone()).component(COMPONENT);
    let mut manager = Manager::new(factory.clone())
        .calls(calls)
        .events(recorder::Options::new(COMPONENT, options.identity));
    if let Some(lease) = options.lease {
        manager = manager.leader(lease);
    }
    if let Some(address) = options.health_on {
        manager = manager.health_on(address);
    }
    for controller in options.selected.prepare(&cluster)? {
        manager = manager.controller(controller);
    }
    if let Some(call) = options.synced {
        manager = manager.part("synced", move |stop| async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = synced(&factory) => call(),
            }
            Ok::<(), Error>(())
        });
    }
    drop(cluster); // informers nobody took are closed
    manager.run_until(stop).await
}

/// Waits until every informer has its first state, however long that takes: whoever cannot go on
/// without it gives up by itself.
async fn synced(factory: &Factory) {
    while let Err(error) = factory.synced(LOOK_AGAIN).await {
        tracing::info!(%error, "waiting for the first state");
        tokio::time::sleep(LOOK_AGAIN / 10).await;
    }
}

/// How long is waited before it is said again who is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
