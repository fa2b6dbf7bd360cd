//! The node lifecycle controller: marks silent nodes unreachable, taints them and evicts their
//! pods.
//!
//! River: nodes, their leases and pods → **nodelifecycle** → conditions, taints, deletes.
//! Promise: silence is measured with our own clock from the last observed heartbeat, so clock skew
//! between machines does not matter. A pod stays as long as its tolerations allow. While no node is
//! ready, no pod is evicted.

mod health;
mod eviction;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::Clock;
use headwater_client::controller::{
    Context, Controller, Failure, Next, Prepared, Reconcile, Requests,
};
use headwater_client::informer::Informer;
use headwater_client::predicate::{ChangeEvent, Predicate};
use headwater_client::{Cached, Error, Key};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{Cluster, Pods};
use crate::ownership::requeue_or_fail;
use crate::pod::Pod;
use crate::time;

use self::eviction::{EvictionTime, eviction_time};
use self::health::{conditions, readiness, taints, unknown_conditions};

const WORKERS: usize = 4;
const LEASE_NAMESPACE: &str = "kube-node-lease";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let leases = cluster.factory().informer::<Lease>().named("leases/nodes");
    let leases = leases.namespace(LEASE_NAMESPACE).open()?;
    let pods = cluster.pods()?;
    let controller = Controller::new("nodelifecycle", &nodes).workers(WORKERS);
    let watch = NodeLifecycle {
        nodes,
        leases: leases.clone(),
        pods: pods.clone(),
        heartbeats: Mutex::default(),
        evicts: AtomicBool::new(true),
        requests: controller.requests(),
        grace: cluster.node_grace(),
        clock: Arc::clone(cluster.clock()),
    };
    Ok(controller
        .watches(&leases, |lease: &Lease| [Key::cluster(lease.name())])
        .watches_when(&pods.informer, pod_assigned(), |pod: &Pod| pod.node().map(Key::cluster))
        .with(watch))
}

/// Passes pods that were assigned to a node, or whose tolerations changed.
fn pod_assigned() -> Predicate<Pod> {
    Predicate::new(|event: &ChangeEvent<'_, Pod>| match event {
        ChangeEvent::Updated { old, new } => {
            old.node() != new.node() || old.spec.tolerations != new.spec.tolerations
        }
        ChangeEvent::Deleted(_) => false,
        _ => true,
    })
}

struct NodeLifecycle {
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Pods,
    /// The last heartbeat of each node, and when it was observed.
    heartbeats: Mutex<HashMap<String, (Heartbeat, Instant)>>,
    /// Whether pods are evicted: not while no node is ready.
    evicts: AtomicBool,
    requests: Requests,
    grace: Duration,
    clock: Arc<dyn Clock>,
}

/// The values that change while a node is alive.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heartbeat {
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

impl Reconcile<Node> for NodeLifecycle {
    async fn reconcile(&self, node: Arc<Node>, cx: Context) -> Result<Next, Failure> {
        let now = self.clock.now();
        let remaining_grace = self.remaining_grace(&node);
        if remaining_grace.is_zero()
            && let Some(conditions) = unknown_conditions(&node, now)
        {
            return match self.mark_unreachable(&node, &conditions, &cx).await {
                Ok(()) => Ok(Next::After(Duration::ZERO)), // continue with the updated cache
                Err(error) => requeue_or_fail(error),
            };
        }
        let evicts = self.evicts().await?;
        if let Some(taints) = taints(&node, evicts, now) {
            let patch = json!({
                "metadata": { "resourceVersion": node.resource_version().text() },
                "spec": { "taints": taints },
            });
            return match cx.of::<Node>().merge(&node.key(), &patch).await {
                Ok(_) => Ok(Next::After(Duration::ZERO)),
                Err(error) => requeue_or_fail(error),
            };
        }
        let next = self.evict_pods(&node, now, &cx).await?;
        let watched = (!remaining_grace.is_zero()).then_some(remaining_grace);
        Ok(next.into_iter().chain(watched).min().map_or(Next::Done, Next::After))
    }

    /// Deletes the pods of a deleted node, which no kubelet would terminate. The cache may not have
    /// received the node yet, so the server must confirm that it does not exist.
    async fn gone(&self, key: Key, _: Option<Arc<Node>>, cx: Context) -> Result<Next, Failure> {
        self.heartbeats.lock().expect("no code panics while it is held").remove(key.name());
        let pods = self.pods.by_node.get(key.name());
        if pods.is_empty() || cx.of::<Node>().get(&key).await?.is_some() {
            return Ok(Next::Done);
        }
        for pod in pods {
            let options = json!({
                "gracePeriodSeconds": 0, "preconditions": { "uid": pod.uid() },
            });
            ignore_missing(cx.of::<core::Pod>().delete_with(&pod.key(), &options).await)?;
        }
        Ok(Next::Done)
    }
}

impl NodeLifecycle {
    /// How long a node may remain silent.
    fn remaining_grace(&self, node: &Node) -> Duration {
        let lease =
            self.leases.snapshot().get(&Key::namespaced(LEASE_NAMESPACE, node.name())).cloned();
        let spec = lease.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ready = conditions(node).iter().find(|condition| condition.type_ == "Ready");
        let heartbeat = Heartbeat {
            renewed: spec.renew_time,
            heartbeat: ready.and_then(|ready| ready.last_heartbeat_time.clone()),
        };
        // A node that renews less often has a longer lease duration.
        let promised = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let grace = self.grace.max(Duration::from_secs(promised));
        let mut heartbeats = self.heartbeats.lock().expect("no code panics while it is held");
        let known = heartbeats.entry(node.name().to_owned());
        let (last, at) = known.or_insert_with(|| (heartbeat.clone(), Instant::now()));
        if *last != heartbeat {
            (*last, *at) = (heartbeat, Instant::now());
        }
        grace.saturating_sub(at.elapsed())
    }

    /// Whether pods are evicted now; a change reconciles every node.
    async fn evicts(&self) -> Result<bool, Error> {
        let nodes = self.nodes.snapshot();
        let evicts = nodes.iter().any(|(_, node)| readiness(node) == "True");
        if self.evicts.swap(evicts, Ordering::Relaxed) != evicts {
            self.requests.reconcile_all().await?;
        }
        Ok(evicts)
    }

    async fn mark_unreachable(
        &self,
        node: &Node,
        conditions: &[core::NodeCondition],
        cx: &Context,
    ) -> Result<(), Error> {
        let patch = json!({
            "metadata": { "resourceVersion": node.resource_version().text() },
            "status": { "conditions": conditions },
        });
        cx.of::<Node>().merge_status(&node.key(), &patch).await?;
        let text = format!("Node {} status is now: NodeNotReady", node.name());
        cx.normal(node, "NodeNotReady", text);
        // No kubelet updates the pods: they must not receive traffic any more.
        for pod in self.pods.by_node.get(node.name()).iter().filter(|pod| pod.is_ready()) {
            self.mark_unready(pod, cx).await?;
        }
        Ok(())
    }

    async fn mark_unready(&self, pod: &Pod, cx: &Context) -> Result<(), Error> {
        let now = self.clock.now();
        let pods = cx.of::<core::Pod>();
        let Some(full) = pods.get(&pod.key()).await? else { return Ok(()) };
        let mut conditions =
            full.status.clone().and_then(|status| status.conditions).unwrap_or_default();
        for condition in conditions.iter_mut().filter(|it| it.type_ == "Ready") {
            condition.status = "False".to_owned();
            condition.last_transition_time = Some(Time(now));
        }
        write_conditions(&full, &conditions, cx).await
    }

    /// Evicts the pods whose toleration has expired; returns when the next one expires.
    async fn evict_pods(
        &self,
        node: &Node,
        now: Timestamp,
        cx: &Context,
    ) -> Result<Option<Duration>, Error> {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        if !taints.iter().any(|taint| taint.effect == "NoExecute") {
            return Ok(None);
        }
        let mut next: Option<Duration> = None;
        for pod in self.pods.by_node.get(node.name()).iter().filter(|pod| pod.is_active()) {
            let EvictionTime::At(end) = eviction_time(&taints, &pod.spec.tolerations, now) else {
                continue;
            };
            match time::until(now, end) {
                Duration::ZERO => self.evict_pod(pod, cx).await?,
                wait => next = Some(next.map_or(wait, |next| next.min(wait))),
            }
        }
        Ok(next)
    }

    async fn evict_pod(&self, pod: &Pod, cx: &Context) -> Result<(), Error> {
        let pods = cx.of::<core::Pod>();
        if let Some(full) = pods.get(&pod.key()).await? {
            let status = full.status.clone().unwrap_or_default();
            let mut conditions = status.conditions.unwrap_or_default();
            conditions.retain(|condition| condition.type_ != "DisruptionTarget");
            conditions.push(core::PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some("DeletionByTaintManager".to_owned()),
                message: Some("Taint manager: deleting due to NoExecute taint".to_owned()),
                last_transition_time: Some(Time(self.clock.now())),
                ..core::PodCondition::default()
            });
            write_conditions(&full, &conditions, cx).await?;
        }
        let text = format!("Marking for deletion Pod {}", pod.key());
        cx.normal(pod, "TaintManagerEviction", text);
        let options = json!({ "preconditions": { "uid": pod.uid() } });
        ignore_missing(pods.delete_with(&pod.key(), &options).await)
    }
}

async fn write_conditions(
    pod: &core::Pod,
    conditions: &[core::PodCondition],
    cx: &Context,
) -> Result<(), Error> {
    let patch = json!({
        "metadata": { "resourceVersion": pod.resource_version().text() },
        "status": { "conditions": conditions },
    });
    ignore_missing(cx.of::<core::Pod>().merge_status(&pod.key(), &patch).await)
}

/// Ignores that the pod was deleted or replaced.
fn ignore_missing<T>(written: Result<T, Error>) -> Result<(), Error> {
    match written {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        written => written.map(drop),
    }
}
