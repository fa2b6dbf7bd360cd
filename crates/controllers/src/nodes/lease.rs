//! Node heartbeats: renews the lease of each node.
//!
//! Promise: renewals are spread evenly and limited to [`RENEWALS_PER_SECOND`] for any number of
//! nodes; the lease duration reflects the resulting period.

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

/// The namespace of node leases.
pub(crate) const NAMESPACE: &str = "kube-node-lease";
/// With more nodes, each renews less often.
const RENEWALS_PER_SECOND: u32 = 20;
/// The lease duration in renewal periods.
const RENEWALS_PER_LEASE: u32 = 4;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let cluster = cluster.clone();
    Ok(Prepared::custom("simulated-leases", move |env| run(cluster, nodes, env)))
}

/// The renewal period of each of `count` nodes; at least `usual`.
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
    let mut schedule = RenewalSchedule::new(cluster.nodes().count, period, Instant::now());
    let renewer = Renewer { leases, lease_duration: period * RENEWALS_PER_LEASE, cluster, nodes };
    while let Some((due, number)) = schedule.next() {
        tokio::select! {
            biased;
            () = env.stop().cancelled() => break,
            () = sleep_until(due) => {}
        }
        let held =
            renewer.renew(number, schedule.has_lease(number)).await.unwrap_or_else(|error| {
                // The lease is valid for several periods, so a later renewal is in time.
                tracing::warn!(node = super::name(number), %error, "cannot renew node lease; retrying in 1 s");
                false
            });
        schedule.reschedule(number, held, Instant::now());
    }
    Ok(())
}

/// When each lease is renewed: new leases at once, then each once per period, spread evenly.
struct RenewalSchedule {
    due: BTreeSet<(Instant, usize)>,
    with_lease: BTreeSet<usize>,
    count: usize,
    period: Duration,
}

/// The delay after which a missing or offline node is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

impl RenewalSchedule {
    fn new(count: usize, period: Duration, now: Instant) -> RenewalSchedule {
        let due = (0..count).map(|number| (now, number)).collect();
        RenewalSchedule { due, with_lease: BTreeSet::new(), count, period }
    }

    fn next(&mut self) -> Option<(Instant, usize)> {
        self.due.pop_first()
    }

    fn has_lease(&self, number: usize) -> bool {
        self.with_lease.contains(&number)
    }

    fn reschedule(&mut self, number: usize, held: bool, now: Instant) {
        let wait = match (held, self.with_lease.contains(&number)) {
            (false, _) => RECHECK_INTERVAL,
            (true, true) => self.period,
            // All leases are created together; from here on renewals are spread.
            (true, false) => self.period.mul_f64(0.5 + 0.5 * number as f64 / self.count as f64),
        };
        match held {
            true => drop(self.with_lease.insert(number)),
            false => drop(self.with_lease.remove(&number)),
        }
        self.due.insert((now + wait, number));
    }
}

struct Renewer {
    cluster: Cluster,
    nodes: Informer<Node>,
    leases: Collection<Lease>,
    lease_duration: Duration,
}

impl Renewer {
    /// Creates or renews the lease; returns whether the node holds it now.
    async fn renew(&self, number: usize, with_lease: bool) -> Result<bool, Error> {
        let name = super::name(number);
        let node = self.nodes.snapshot().get(&Key::cluster(&name)).cloned();
        let Some(node) = node.filter(|node| !super::node::is_offline(node)) else {
            return Ok(false);
        };
        let key = Key::namespaced(NAMESPACE, &name);
        let spec = json!({
            "holderIdentity": name,
            "leaseDurationSeconds": self.lease_duration.as_secs().max(1),
            "renewTime": rfc3339_micro(self.cluster.clock().now()),
        });
        if !with_lease && self.create(&node, &spec).await? {
            return Ok(true);
        }
        match self.leases.merge(&key, &json!({"spec": spec})).await {
            Err(error) if error.is_not_found() => Ok(false),
            renewed => renewed.map(|_| true),
        }
    }

    /// Creates the lease; returns false if it exists.
    async fn create(&self, node: &Node, spec: &serde_json::Value) -> Result<bool, Error> {
        let lease = json!({
            "metadata": {
                "name": node.name(),
                "namespace": NAMESPACE,
                // The garbage collector deletes the lease with its node.
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": node.name(), "uid": node.uid(),
                }],
            },
            "spec": spec,
        });
        let lease: Lease = serde_json::from_str(&lease.to_string())
            .map_err(|error| Error::Invalid(format!("cannot build the node lease: {error}")))?;
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
        let mut schedule = RenewalSchedule::new(2, Duration::from_secs(10), now);
        for number in [0, 1] {
            assert_eq!(schedule.next(), Some((now, number)));
        }
        schedule.reschedule(0, false, now);
        schedule.reschedule(1, true, now);
        assert_eq!(
            schedule.next(),
            Some((now + RECHECK_INTERVAL, 0)),
            "the node does not exist yet"
        );
        schedule.reschedule(0, true, now);
        assert_eq!(schedule.next(), Some((now + Duration::from_secs(5), 0)));
        assert_eq!(schedule.next(), Some((now + Duration::from_millis(7500), 1)));
        schedule.reschedule(1, true, now);
        assert_eq!(schedule.next(), Some((now + Duration::from_secs(10), 1)));
    }
}
