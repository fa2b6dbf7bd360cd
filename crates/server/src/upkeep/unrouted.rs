//! Events about Services of simulated pods that a webhook or an APIService calls.
//!
//! River: outgoing calls → **unrouted** → an event of the Service, which tells how to route it.
//! Promise: one event for each Service, until it expires.

use headwater_api::Status;
use headwater_api::clock::rfc3339;
use headwater_api::fnv;
use headwater_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::object::{meta, tree};
use crate::server::Server;
use crate::upkeep::bootstrap::Own;

const REASON: &str = "SimulatedEndpoints";
const SERVICES: &str = "/registry/core/services/";

impl Server {
    /// Reports Services that cannot be called, until the server stops.
    pub(crate) async fn report_unrouted(self, stop: CancellationToken) {
        while let Some((namespace, name, why)) =
            stop.run_until_cancelled(self.caller().unrouted()).await
        {
            if let Err(status) = self.report(&namespace, &name, &why).await {
                tracing::warn!("cannot write an event of service {namespace}/{name}: {status}");
            }
        }
    }

    async fn report(&self, namespace: &str, name: &str, why: &str) -> Result<(), Status> {
        let snapshot = self.cache().snapshot(&self.cache().resource(SERVICES));
        let Some(service) = snapshot.get(&format!("{namespace}/{name}")) else { return Ok(()) };
        let service = tree(service.as_slice())?;
        let now = rfc3339(self.now());
        let value = event(namespace, name, meta(&service, "uid"), why, &now);
        let resource = ("", "v1", "events");
        self.ensure(Own { resource, value, corrected: &[] }).await.map(drop)
    }
}

fn event(namespace: &str, name: &str, uid: &str, why: &str, now: &str) -> Value {
    let number = fnv::hash(format!("{uid}{why}").as_bytes());
    json!({
        "metadata": { "namespace": namespace, "name": format!("{name}.{number:016x}") },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": name, "uid": uid,
        },
        "type": "Warning", "reason": REASON, "message": why, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": { "component": "headwater" }, "reportingComponent": "headwater",
    })
}
