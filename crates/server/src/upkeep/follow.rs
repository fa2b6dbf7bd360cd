//! Changes of the objects of one kind, for the tasks that reconcile them.
//!
//! River: cache → **follow** → definitions, aggregated roles, flow control. Promise: the watch is
//! open before the caller reads the state, so no change is missed.

use std::sync::Arc;
use std::time::Duration;

use headwater_cache::{Filter, Resource, WatchStart, WatchStep, Watcher};
use tokio_util::sync::CancellationToken;

use crate::server::Server;

/// The pause before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A watch of the objects of one kind that is reopened when it ends.
pub(super) struct ObjectChanges {
    resource: Arc<Resource>,
    watcher: Watcher,
}

impl ObjectChanges {
    pub(super) fn new(server: &Server, prefix: &str) -> ObjectChanges {
        let resource = server.cache().resource(prefix);
        let watcher = open(server, &resource);
        ObjectChanges { resource, watcher }
    }

    /// Waits for a change. False if the server stops.
    pub(super) async fn next(&mut self, server: &Server) -> bool {
        match self.watcher.next().await {
            WatchStep::Stopping(_) => return false,
            WatchStep::Closed | WatchStep::Expired { .. } | WatchStep::Failed(_) => {
                self.watcher = open(server, &self.resource);
            }
            WatchStep::Initial(_) | WatchStep::Synced(_) | WatchStep::Events(_) => {}
        }
        true
    }

    /// Waits for a change, or for the time of a retry. False if the server stops.
    pub(super) async fn next_or_retry(
        &mut self,
        server: &Server,
        stop: &CancellationToken,
        is_retry_needed: bool,
    ) -> bool {
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            is_open = self.next(server) => is_open,
            () = tokio::time::sleep(RETRY), if is_retry_needed => true,
        }
    }
}

fn open(server: &Server, resource: &Arc<Resource>) -> Watcher {
    server.cache().watch(resource, &Filter::default(), WatchStart::Now)
}
