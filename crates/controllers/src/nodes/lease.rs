//! The heartbeats: one lease for each node, renewed in turn.
//!
//! Promise: renewals are spread evenly and there are never more than [`RENEWALS_PER_SECOND`] of
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
use tokio::time::{Instant, sleep_until};

use crate::cluster::Cluster;

/// Where leases of nodes are.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// Many nodes renew more rarely.
const RENEWALS_PER_SECOND: u32 = 20;
/// A lease is good for so many renewals.
const RENEWALS_MISSED: u32 = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let cluster = cluster.clone();
    Ok(Prepared::custom("simulated-leases", move |env| run(cluster, nodes, env)))
}

/// How often each of `count` nodes renews, if one alone did so every `usual`.
fn period(count: usize, usual: Duration) -> Duration {
    let needed = Duration::from_secs(1) * (count as u32) / RENEWALS_PER_SECOND;
    needed.max(usual)
}

async fn run(cluster: Cluster, nodes: Informer<Node>, mut env: Env) -> Result<(), Error> {
    if !env.leading().await {
        return Ok(());
    }
    let options = cluster.nodes();
    let period = period(options.count, options.rules.node().renew_every);
    let leases = env.calls().of::<Lease>();
    let mut rounds = Rounds::new(cluster.nodes().count, period, Instant::now());
    let renewer = Renewer { leases, good_for: period * RENEWALS_MISSED, cluster, nodes };
    while let Some((due, number)) = rounds.next() {
        tokio::select! {
            biased;
            () = env.stop().cancelled() => break,
            () = sleep_until(due) => {}
        }
        let held = renewer.renew(number, rounds.has_begun(number)).await.unwrap_or_else(|error| {
            // The next turn tries again; that is what the slack of a lease is for.
            tracing::warn!(node = super::name(number), %error, "a lease could not be renewed");
            false
        });
        rounds.again(number, held, Instant::now());
    }
    Ok(())
}

/// Whose turn it is: new leases at once, then everybody once a period, evenly spread.
struct Rounds {
    due: BTreeSet<(Instant, usize)>,
    begun: BTreeSet<usize>,
    count: usize,
    period: Duration,
}

/// A node that is not there, or offline, is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Rounds {
    fn new(count: usize, period: Duration, now: Instant) -> Rounds {
        let due = (0..count).map(|number| (now, number)).collect();
        Rounds { due, begun: BTreeSet::new(), count, period }
    }

    fn next(&mut self) -> Option<(Instant, usize)> {
        self.due.pop_first()
    }

    fn has_begun(&self, number: usize) -> bool {
        self.begun.contains(&number)
    }

    fn again(&mut self, number: usize, held: bool, now: Instant) {
        let wait = match (held, self.begun.contains(&number)) {
            (false, _) => LOOK_AGAIN,
            (true, true) => self.period,
            // All begin together; from here on they are spread.
            (true, false) => self.period.mul_f64(0.5 + 0.5 * number as f64 / self.count as f64),
        };
        match held {
            true => drop(self.begun.insert(number)),
            false => drop(self.begun.remove(&number)),
        }
        self.due.insert((now + wait, number));
    }
}

struct Renewer {
    cluster: Cluster,
    nodes: Informer<Node>,
    leases: Collection<Lease>,
    good_for: Duration,
}

impl Renewer {
    /// Whether the node holds its lease now.
    async fn renew(&self, number: usize, begun: bool) -> Result<bool, Error> {
        let name = super::name(number);
        let node = self.nodes.store().get(&Key::cluster(&name));
        let Some(node) = node.filter(|node| !super::node::is_offline(node)) else {
            return Ok(false);
        };
        let key = Key::namespaced(NAMESPACE, &name);
        let spec = json!({
            "holderIdentity": name,
            "leaseDurationSeconds": self.good_for.as_secs().max(1),
            "renewTime": rfc3339_micro(self.cluster.clock().now()),
        });
        if !begun && self.create(&node, &spec).await? {
            return Ok(true);
        }
        match self.leases.merge(&key, &json!({"spec": spec})).await {
            Err(error) if error.is_not_found() => Ok(false),
            renewed => renewed.map(|_| true),
        }
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
            let usual = Duration::from_secs(10);
            assert_eq!(period(nodes, usual), Duration::from_secs(seconds), "{nodes} nodes");
        }
    }

    #[test]
    fn leases_begin_at_once_and_are_spread_from_then_on() {
        let now = Instant::now();
        let mut rounds = Rounds::new(2, Duration::from_secs(10), now);
        for number in [0, 1] {
            assert_eq!(rounds.next(), Some((now, number)));
        }
        rounds.again(0, false, now);
        rounds.again(1, true, now);
        assert_eq!(rounds.next(), Some((now + LOOK_AGAIN, 0)), "not there yet");
        rounds.again(0, true, now);
        assert_eq!(rounds.next(), Some((now + Duration::from_secs(5), 0)));
        assert_eq!(rounds.next(), Some((now + Duration::from_millis(7500), 1)));
        rounds.again(1, true, now);
        assert_eq!(rounds.next(), Some((now + Duration::from_secs(10), 1)));
    }
}
