//! What kubelets do for pods: look at one, decide what comes next, do it when it is due.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, with_gone};
use headwater_client::predicate::{Event, Predicate};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::cluster::{Cluster, Pods};
use crate::pod::Pod;

use super::Options;
use super::addresses::{self, Addresses};
use super::life::{self, Step};
use super::status::{self, Place};
use super::timers::Timers;

/// How many pods are written at once, for all nodes together.
const WORKERS: usize = 16;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let pods = cluster.pods()?;
    let nodes = cluster.informer::<Node>()?;
    let options = cluster.nodes().clone();
    let kubelet = Arc::new(Kubelet {
        cluster: cluster.clone(),
        options: options.clone(),
        pods: pods.clone(),
        timers: Timers::default(),
        addresses: Addresses::default(),
    });
    let by_node = pods.by_node.clone();
    let (kept, forgotten) = (kubelet.clone(), kubelet);
    let reconcile = move |pod, cx| {
        let kubelet = kept.clone();
        async move { kubelet.keep(pod, cx).await }
    };
    let gone = move |key: Key, last: Option<Arc<Pod>>, _: Context| {
        forgotten.forget(&key, last.as_deref());
        async { Ok::<_, Failure>(Next::Done) }
    };
    Ok(Controller::new("simulated-kubelets", &pods.informer)
        .when(Predicate::new(move |event| is_ours(event, options.count)))
        .watches_when(&nodes, power_changed(), move |node: &Node| by_node.keys(node.name()))
        .workers(WORKERS)
        .with(with_gone(reconcile, gone)))
}

fn is_ours(event: &Event<'_, Pod>, count: usize) -> bool {
    let bound = |pod: &Pod| pod.node().is_some_and(|node| super::number(node, count).is_some());
    match event {
        Event::Added(pod) | Event::Updated { new: pod, .. } => bound(pod),
        Event::Deleted(gone) => gone.last().is_none_or(|last| bound(last)),
        Event::Manual(_) => true,
    }
}

/// A node came, went offline or came back: its pods are looked at again.
fn power_changed() -> Predicate<Node> {
    Predicate::new(|event| match event {
        // A pod may know its node before we do.
        Event::Added(node) => !super::node::is_offline(node),
        Event::Updated { old, new } => super::node::is_offline(old) != super::node::is_offline(new),
        _ => false,
    })
}

struct Kubelet {
    cluster: Cluster,
    options: Arc<Options>,
    pods: Pods,
    timers: Timers,
    addresses: Addresses,
}

impl Kubelet {
    async fn keep(&self, pod: Arc<Pod>, cx: Context) -> Result<Next, Failure> {
        let number = pod.node().and_then(|node| super::number(node, self.options.count));
        let Some(number) = number else { return Ok(Next::Done) };
        if !self.has_power(&pod, &cx)? {
            return Ok(Next::Done);
        }
        if pod.status.pod_ip.is_some() {
            self.addresses.forget(cx.key(), number);
        }
        let Some(next) = life::next(&pod, &self.options.rules.plan(&pod)) else {
            self.timers.forget(cx.key());
            return Ok(Next::Done);
        };
        let now = self.cluster.clock().now();
        let began = || life::began(&pod, next.stay);
        let elapsed = self.timers.elapsed(cx.key(), pod.uid(), next.stay, began, now);
        if elapsed < next.after {
            return Ok(Next::After(next.after - elapsed));
        }
        self.take(&pod, &next.step, number, &cx).await?;
        Ok(Next::Done)
    }

    /// Whether the pod's node is there and not offline.
    fn has_power(&self, pod: &Pod, cx: &Context) -> Result<bool, Error> {
        let node = cx.lister::<Node>()?.get_cluster(pod.node().unwrap_or_default())?;
        Ok(node.is_some_and(|node| !super::node::is_offline(&node)))
    }

    async fn take(
        &self,
        pod: &Pod,
        step: &Step,
        number: usize,
        cx: &Context,
    ) -> Result<(), Failure> {
        let pods = cx.of::<Pod>();
        let place = Place {
            now: self.cluster.clock().now(),
            host_ip: addresses::host(number).to_string(),
            pod_ip: self.address(pod, step, number, cx.key()),
        };
        let written = match status::patch(pod, step, &place) {
            Some(patch) => pods.merge_status(cx.key(), &patch).await.map(drop),
            None => {
                let now = json!({
                    "kind": "DeleteOptions", "apiVersion": "v1",
                    "gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid()},
                });
                pods.delete_with(cx.key(), &now).await.map(drop)
            }
        };
        match written {
            // It is gone, or another one has its name: whatever is there now will be looked at.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                tell(pod, step, cx);
                Ok(())
            }
        }
    }

    fn address(&self, pod: &Pod, step: &Step, number: usize, key: &Key) -> Option<String> {
        if !matches!(step, Step::Start { .. }) {
            return None;
        }
        if let Some(known) = &pod.status.pod_ip {
            return Some(known.clone());
        }
        if pod.spec.host_network {
            return Some(addresses::host(number).to_string());
        }
        let taken = || -> BTreeSet<Ipv4Addr> {
            let neighbours = self.pods.by_node.get(&super::name(number));
            let running = neighbours.iter().filter(|other| !other.is_finished());
            running.filter_map(|other| other.status.pod_ip.as_deref()?.parse().ok()).collect()
        };
        self.addresses.give(key, number, taken).map(|address| address.to_string())
    }

    fn forget(&self, key: &Key, last: Option<&Pod>) {
        self.timers.forget(key);
        let number = last.and_then(|pod| super::number(pod.node()?, self.options.count));
        if let Some(number) = number {
            self.addresses.forget(key, number);
        }
    }
}

/// The events people look for when a pod does not do what they want.
fn tell(pod: &Pod, step: &Step, cx: &Context) {
    let containers = || {
        let names = pod.spec.containers.iter().map(|one| one.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    match step {
        Step::Start { .. } => {
            cx.normal(pod, "Started", format_args!("Started container {}", containers()));
        }
        Step::BackOff { .. } => cx.warning(
            pod,
            "BackOff",
            format_args!("Back-off restarting failed container {}", containers()),
        ),
        Step::Remove if !pod.is_finished() => {
            cx.normal(pod, "Killing", format_args!("Stopping container {}", containers()));
        }
        _ => {}
    }
}
