//! The heartbeats: one lease for each node, renewed in turn.
//!
//! Promise: writes are spread evenly and there are never more than [`RENEWALS_PER_SECOND`] of
//! them, however many nodes there are; the leases say how long they are good for.

use std::collections::BTreeSet;
use std::time::Duration;

use headwater_api::clock::rfc3339_micro;
use headwater_client::calls::Collection;
use headwater_client::controller::{Env, Prepared};
use headwater_client::informer::Informer;
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::cluster::Cluster;

/// Where leases of nodes are.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// A kubelet renews its lease so often.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Many nodes renew more rarely.
const RENEWALS_PER_SECOND: u32 = 20;
/// A lease is good for so many renewals.
const RENEWALS_MISSED: u32 = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let cluster = cluster.clone();
    Ok(Prepared::custom("simulated-leases", move |env| run(cluster, nodes, env)))
}

/// How often each of `count` nodes renews.
fn period(count: usize) -> Duration {
    let needed = Duration::from_secs(1) * (count as u32) / RENEWALS_PER_SECOND;
    needed.max(RENEW_EVERY)
}

async fn run(cluster: Cluster, nodes: Informer<Node>, mut env: Env) -> Result<(), Error> {
    if cluster.nodes().count == 0 || !env.leading().await {
        return Ok(());
    }
    let count = cluster.nodes().count;
    let renewer = Renewer {
        leases: env.calls().of::<Lease>(),
        good_for: period(count) * RENEWALS_MISSED,
        cluster,
        nodes,
    };
    let mut ticks = interval(period(count) / count as u32);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = BTreeSet::new();
    for number in (0..count).cycle() {
        tokio::select! {
            biased;
            () = env.stop().cancelled() => return Ok(()),
            _ = ticks.tick() => {}
        }
        if let Err(error) = renewer.renew(number, &mut known).await {
            // The next turn tries again; that is what the slack of a lease is for.
            tracing::warn!(node = super::name(number), %error, "a lease could not be renewed");
        }
    }
    Ok(())
}

struct Renewer {
    cluster: Cluster,
    nodes: Informer<Node>,
    leases: Collection<Lease>,
    good_for: Duration,
}

impl Renewer {
    async fn renew(&self, number: usize, known: &mut BTreeSet<usize>) -> Result<(), Error> {
        let name = super::name(number);
        let Some(node) = self.nodes.store().get(&Key::cluster(&name)) else { return Ok(()) };
        if super::node::is_offline(&node) {
            return Ok(());
        }
        let key = Key::namespaced(NAMESPACE, &name);
        let spec = json!({
            "holderIdentity": name,
            "leaseDurationSeconds": self.good_for.as_secs(),
            "renewTime": rfc3339_micro(self.cluster.clock().now()),
        });
        if known.contains(&number) || !self.create(&node, &spec).await? {
            match self.leases.merge(&key, &json!({"spec": spec})).await {
                Err(error) if error.is_not_found() => {
                    known.remove(&number);
                    return Ok(());
                }
                renewed => drop(renewed?),
            }
        }
        known.insert(number);
        Ok(())
    }

    /// Whether the lease is new.
    async fn create(&self, node: &Node, spec: &serde_json::Value) -> Result<bool, Error> {
        let lease = json!({
            "metadata": {
                "name": node.name(),
                "namespace": NAMESPACE,
                // The lease goes with its node.
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": node.name(), "uid": node.uid(),
                }],
            },
            "spec": spec,
        });
        let lease: Lease = serde_json::from_value(lease)
            .map_err(|error| Error::Invalid(format!("a lease of ours: {error}")))?;
        match self.leases.create(&lease).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_renew_more_rarely() {
        for (nodes, seconds) in [(1, 10), (3, 10), (200, 10), (1000, 50)] {
            assert_eq!(period(nodes), Duration::from_secs(seconds), "{nodes} nodes");
        }
    }
}
