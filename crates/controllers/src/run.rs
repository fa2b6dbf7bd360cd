//! All wanted controllers under one manager: one factory, one election, one recorder.

use std::future::Future;

use headwater_client::calls::Calls;
use headwater_client::leader::Lease;
use headwater_client::{Error, Manager, recorder};

use crate::cluster::Cluster;
use crate::roster::Selected;

/// Which controllers run, and how.
#[derive(Debug)]
pub struct Options {
    /// Which of them.
    pub selected: Selected,
    /// Who this process is: for events and for the election.
    pub identity: String,
    /// Work only while this lease is held; `None` if there is only one process.
    pub lease: Option<Lease>,
    /// Answer `/healthz`, `/readyz` and `/metrics` there.
    pub health_on: Option<std::net::SocketAddr>,
}

/// The name under which controllers write.
pub const COMPONENT: &str = "headwater-controllers";

impl Options {
    /// The chosen controllers, alone in the cluster.
    pub fn new(selected: Selected) -> Options {
        Options { selected, identity: COMPONENT.to_owned(), lease: None, health_on: None }
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
    let mut manager = Manager::new(factory)
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
    drop(cluster); // informers nobody took are closed
    manager.run_until(stop).await
}
