//! Runs the selected controllers under one manager: one factory, one election, one recorder.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use headwater_client::calls::Calls;
use headwater_client::leader::Lease;
use headwater_client::{Error, Factory, Manager, recorder};
use kube::Client;

use crate::cluster::Cluster;
use crate::identity;
use crate::registry::ControllerSelection;

/// Which controllers run, and how.
pub struct Options {
    /// The controllers to run.
    pub selected: ControllerSelection,
    /// The identity of this process in events and in the leader election.
    pub identity: String,
    /// Reconcile only while this lease is held; `None` without leader election.
    pub lease: Option<Lease>,
    /// The address that serves `/healthz`, `/readyz` and `/metrics`.
    pub health_on: Option<std::net::SocketAddr>,
    /// The clients of controllers with an identity of their own, by its user; the others use the
    /// cluster's client.
    pub clients: BTreeMap<String, Client>,
    synced: Option<Box<dyn FnOnce() + Send>>,
}

/// The component name in events and user agents.
pub const COMPONENT: &str = "headwater-controllers";

impl Options {
    /// Runs the selected controllers without leader election.
    pub fn new(selected: ControllerSelection) -> Options {
        let identity = COMPONENT.to_owned();
        let clients = BTreeMap::new();
        Options { selected, identity, lease: None, health_on: None, clients, synced: None }
    }

    /// Sets a callback that runs once, after every informer has synced.
    pub fn when_synced(&mut self, call: impl FnOnce() + Send + 'static) {
        self.synced = Some(Box::new(call));
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("selected", &self.selected).finish_non_exhaustive()
    }
}

/// Runs controllers until `stop` completes or one of them fails permanently.
///
/// # Errors
/// A part of the manager failed, or leadership was lost.
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
        let own = identity::of(controller.name()).and_then(|own| options.clients.get(&own.user));
        let controller = match identity::component(controller.name()) {
            Some(component) => controller.reports_as(component),
            None => controller,
        };
        let calls = own.map(|client| Calls::new(client.clone()).component(COMPONENT));
        manager = manager.controller(match calls {
            Some(calls) => controller.calls(calls),
            None => controller,
        });
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
    drop(cluster); // closes informers that no controller uses
    manager.run_until(stop).await
}

/// Waits without a timeout until every informer has synced; a controller that needs a timeout has
/// its own.
async fn synced(factory: &Factory) {
    while let Err(error) = factory.synced(LOG_INTERVAL).await {
        tracing::info!(%error, "waiting for informers to sync; controllers start afterwards");
        tokio::time::sleep(LOG_INTERVAL / 10).await;
    }
}

/// How often missing informers are logged.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
