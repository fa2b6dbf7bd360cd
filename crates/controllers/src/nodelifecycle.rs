//! Nodes that fall silent: they become unknown, are tainted, and their pods are driven away.
//!
//! River: nodes, their leases and pods → **nodelifecycle** → conditions, taints, deletes.
//! Promise: silence is measured by our own clock from the renewals that we saw, so clocks that
//! differ do no harm; a pod stays as long as it tolerates; while no node is ready nothing is driven
//! away.

mod health;
mod tolerance;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headwater_api::Clock;
use headwater_client::controller::{
    Context, Controller, Failure, Next, Prepared, Reconcile, Requests,
};
use headwater_client::informer::Informer;
use headwater_client::predicate::{Event, Predicate};
use headwater_client::{Cached, Error, Key};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster::{Cluster, Pods};
use crate::moment;
use crate::ownership::after;
use crate::pod::Pod;

use self::health::{conditions, readiness, silent, taints};
use self::tolerance::{Stay, stay};

const WORKERS: usize = 4;
const LEASES: &str = "kube-node-lease";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let nodes = cluster.informer::<Node>()?;
    let leases = cluster.factory().informer::<Lease>().named("leases/nodes");
    let leases = leases.namespace(LEASES).open()?;
    let pods = cluster.pods()?;
    let controller = Controller::new("nodelifecycle", &nodes).workers(WORKERS);
    let watch = Watch {
        nodes,
        leases: leases.clone(),
        pods: pods.clone(),
        seen: Mutex::default(),
        evicts: AtomicBool::new(true),
        requests: controller.requests(),
        grace: cluster.node_grace(),
        clock: Arc::clone(cluster.clock()),
    };
    Ok(controller
        .watches(&leases, |lease: &Lease| [Key::cluster(lease.name())])
        .watches_when(&pods.informer, placed(), |pod: &Pod| pod.node().map(Key::cluster))
        .with(watch))
}

/// Passes pods that came to a node, or that tolerate something else than before.
fn placed() -> Predicate<Pod> {
    Predicate::new(|event: &Event<'_, Pod>| match event {
        Event::Updated { old, new } => {
            old.node() != new.node() || old.spec.tolerations != new.spec.tolerations
        }
        Event::Deleted(_) => false,
        _ => true,
    })
}

struct Watch {
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Pods,
    /// The last sign of life of each node, and when it was seen.
    seen: Mutex<HashMap<String, (Sign, Instant)>>,
    /// Whether pods are driven away: not while no node is ready.
    evicts: AtomicBool,
    requests: Requests,
    grace: Duration,
    clock: Arc<dyn Clock>,
}

/// What changes while a node lives.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sign {
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
}

impl Reconcile<Node> for Watch {
    async fn reconcile(&self, node: Arc<Node>, cx: Context) -> Result<Next, Failure> {
        let now = self.clock.now();
        let silence = self.silence(&node);
        if silence.is_zero()
            && let Some(conditions) = silent(&node, now)
        {
            return match self.declare_silent(&node, &conditions, &cx).await {
                Ok(()) => Ok(Next::After(Duration::ZERO)), // with what the cache shows then
                Err(error) => after(error),
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
                Err(error) => after(error),
            };
        }
        let next = self.evict(&node, now, &cx).await?;
        let watched = (!silence.is_zero()).then_some(silence);
        Ok(next.into_iter().chain(watched).min().map_or(Next::Done, Next::After))
    }

    /// Pods of a node that is gone will not end by themselves. The cache may just not have seen the
    /// node yet, so the server is asked.
    async fn gone(&self, key: Key, _: Option<Arc<Node>>, cx: Context) -> Result<Next, Failure> {
        self.seen.lock().expect("no code panics while it is held").remove(key.name());
        let pods = self.pods.by_node.get(key.name());
        if pods.is_empty() || cx.of::<Node>().get(&key).await?.is_some() {
            return Ok(Next::Done);
        }
        for pod in pods {
            let options = json!({
                "gracePeriodSeconds": 0, "preconditions": { "uid": pod.uid() },
            });
            harmless(cx.of::<core::Pod>().delete_with(&pod.key(), &options).await)?;
        }
        Ok(Next::Done)
    }
}

impl Watch {
    /// How long a node may still be silent.
    fn silence(&self, node: &Node) -> Duration {
        let lease = self.leases.store().get(&Key::namespaced(LEASES, node.name()));
        let spec = lease.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let ready = conditions(node).iter().find(|condition| condition.type_ == "Ready");
        let sign = Sign {
            renewed: spec.renew_time,
            heartbeat: ready.and_then(|ready| ready.last_heartbeat_time.clone()),
        };
        // A node that renews more rarely says so in its lease.
        let promised = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let grace = self.grace.max(Duration::from_secs(promised));
        let mut seen = self.seen.lock().expect("no code panics while it is held");
        let known = seen.entry(node.name().to_owned());
        let (last, at) = known.or_insert_with(|| (sign.clone(), Instant::now()));
        if *last != sign {
            (*last, *at) = (sign, Instant::now());
        }
        grace.saturating_sub(at.elapsed())
    }

    /// Whether pods are driven away now; when that changes, every node is looked at again.
    async fn evicts(&self) -> Result<bool, Error> {
        let nodes = self.nodes.snapshot();
        let evicts = nodes.iter().any(|(_, node)| readiness(node) == "True");
        if self.evicts.swap(evicts, Ordering::Relaxed) != evicts {
            self.requests.reconcile_all().await?;
        }
        Ok(evicts)
    }

    async fn declare_silent(
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
        // Nobody else says it of the pods: they must not get traffic any more.
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

    /// Deletes the pods whose tolerance has ended; answers when the next one's will.
    async fn evict(
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
            let Stay::Until(end) = stay(&taints, &pod.spec.tolerations, now) else { continue };
            match moment::until(now, end) {
                Duration::ZERO => self.drive_away(pod, cx).await?,
                wait => next = Some(next.map_or(wait, |next| next.min(wait))),
            }
        }
        Ok(next)
    }

    async fn drive_away(&self, pod: &Pod, cx: &Context) -> Result<(), Error> {
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
        harmless(pods.delete_with(&pod.key(), &options).await)
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
    harmless(cx.of::<core::Pod>().merge_status(&pod.key(), &patch).await)
}

/// The pod is gone, or another one: as good.
fn harmless<T>(written: Result<T, Error>) -> Result<(), Error> {
    match written {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        written => written.map(drop),
    }
}
