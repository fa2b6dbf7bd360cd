//! The simulated kubelets: decide the next transition of a pod and apply it when it is due.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, with_gone};
use headwater_client::predicate::{ChangeEvent, Predicate};
use headwater_client::{Cached, Error, Key};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::cluster::{Cluster, Pods};
use crate::pod::{Container, Pod};

use super::addresses::{self, Addresses};
use super::pod_lifecycle::{self, PodTransition};
use super::pod_status::{self, NodeContext};
use super::probes::ProbeKind;
use super::timers::Timers;
use super::{Options, references, rules};

/// Concurrent writes, over all nodes.
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
        async move { kubelet.reconcile(pod, cx).await }
    };
    let gone = move |key: Key, last: Option<Arc<Pod>>, _: Context| {
        forgotten.release(&key, last.as_deref());
        async { Ok::<_, Failure>(Next::Done) }
    };
    Ok(Controller::new("simulated-kubelets", &pods.informer)
        .when(Predicate::new(move |event| is_ours(event, options.count)))
        .watches_when(&nodes, node_online_changed(), move |node: &Node| by_node.keys(node.name()))
        .workers(WORKERS)
        .with(with_gone(reconcile, gone)))
}

fn is_ours(event: &ChangeEvent<'_, Pod>, count: usize) -> bool {
    let bound = |pod: &Pod| pod.node().is_some_and(|node| super::number(node, count).is_some());
    match event {
        ChangeEvent::Added(pod) | ChangeEvent::Updated { new: pod, .. } => bound(pod),
        ChangeEvent::Deleted(gone) => gone.last().is_none_or(|last| bound(last)),
        ChangeEvent::Manual(_) => true,
    }
}

/// Passes nodes that were added or whose offline annotation changed: their pods are reconciled.
fn node_online_changed() -> Predicate<Node> {
    Predicate::new(|event| match event {
        // A pod may be bound to a node before the node is in the cache.
        ChangeEvent::Added(node) => !super::node::is_offline(node),
        ChangeEvent::Updated { old, new } => {
            super::node::is_offline(old) != super::node::is_offline(new)
        }
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
    async fn reconcile(&self, pod: Arc<Pod>, cx: Context) -> Result<Next, Failure> {
        let number = pod.node().and_then(|node| super::number(node, self.options.count));
        let Some(number) = number else { return Ok(Next::Done) };
        if !self.is_node_online(&pod, &cx)? {
            return Ok(Next::Done);
        }
        if pod.status.pod_ip.is_some() {
            self.addresses.release(cx.key(), number);
        }
        let now = self.cluster.clock().now();
        let deadline = pod_lifecycle::until_deadline(&pod, now);
        if deadline.is_some_and(|wait| wait.is_zero()) {
            self.apply(&pod, &PodTransition::ExceedDeadline, number, &cx).await?;
            return Ok(Next::Done);
        }
        let stages = self.options.rules.stages_for(&pod);
        let state = pod_lifecycle::current(&pod);
        let state_began = || pod_lifecycle::state_began(&pod, state);
        let elapsed = self.timers.elapsed(cx.key(), pod.uid(), state, state_began, now);
        let next = pod_lifecycle::next(&pod, &stages, elapsed);
        let due = next.as_ref().map(|next| next.after);
        let Some(next) = next.filter(|next| next.after <= elapsed) else {
            let probe = pod_lifecycle::next_probe(&pod, &stages, elapsed);
            let waits = due.into_iter().chain(probe).map(|due| due - elapsed);
            if let Some(wait) = waits.chain(deadline).min() {
                return Ok(Next::After(wait));
            }
            self.timers.release(cx.key());
            return Ok(Next::Done);
        };
        if let PodTransition::Start { .. } = next.transition
            && let Some(missing) = references::first_missing(&pod, &cx).await?
        {
            let waited = elapsed.saturating_sub(next.after);
            let is_over = stages.missing.is_some_and(|delay| delay.with(0.0) <= waited);
            if !is_over || missing.is_claim() {
                missing.report(&pod, &cx).await?;
                return Ok(Next::After(references::RETRY));
            }
            missing.report_ignored(&pod, &cx);
        }
        self.apply(&pod, &next.transition, number, &cx).await?;
        Ok(Next::Done)
    }

    /// Whether the pod's node exists and is online.
    fn is_node_online(&self, pod: &Pod, cx: &Context) -> Result<bool, Error> {
        let node = cx.lister::<Node>()?.get("", pod.node().unwrap_or_default())?;
        Ok(node.is_some_and(|node| !super::node::is_offline(&node)))
    }

    async fn apply(
        &self,
        pod: &Pod,
        transition: &PodTransition,
        number: usize,
        cx: &Context,
    ) -> Result<(), Failure> {
        let pods = cx.of::<Pod>();
        let context = NodeContext {
            now: self.cluster.clock().now(),
            host_ip: addresses::host_ip(number).to_string(),
            pod_ip: self.address(pod, transition, number, cx.key()),
        };
        let written = match pod_status::patch(pod, transition, &context) {
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
            // The pod was deleted or replaced; the current one is reconciled.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                record_event(pod, transition, cx);
                Ok(())
            }
        }
    }

    fn address(
        &self,
        pod: &Pod,
        transition: &PodTransition,
        number: usize,
        key: &Key,
    ) -> Option<String> {
        if !matches!(transition, PodTransition::Start { .. }) {
            return None;
        }
        if let Some(known) = &pod.status.pod_ip {
            return Some(known.clone());
        }
        if pod.spec.host_network {
            return Some(addresses::host_ip(number).to_string());
        }
        let taken = || -> BTreeSet<Ipv4Addr> {
            let neighbours = self.pods.by_node.get(&super::name(number));
            let running = neighbours.iter().filter(|other| !other.is_finished());
            running.filter_map(|other| other.status.pod_ip.as_deref()?.parse().ok()).collect()
        };
        self.addresses.allocate(key, number, taken).map(|address| address.to_string())
    }

    fn release(&self, key: &Key, last: Option<&Pod>) {
        self.timers.release(key);
        let number = last.and_then(|pod| super::number(pod.node()?, self.options.count));
        if let Some(number) = number {
            self.addresses.release(key, number);
        }
    }
}

/// Records the events that a kubelet records.
fn record_event(pod: &Pod, transition: &PodTransition, cx: &Context) {
    let containers = || {
        let names = pod.spec.containers.iter().map(|one| one.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    match transition {
        PodTransition::Create => report_annotations(pod, cx),
        PodTransition::Start { restarts, .. } => {
            if *restarts == 0 && pod.status.container_statuses.is_empty() {
                report_annotations(pod, cx); // the pod was not created in a step of its own
            }
            let first = pod.spec.init_containers.iter().filter(|_| *restarts == 0);
            first.chain(&pod.spec.containers).for_each(|one| record_start(pod, one, cx));
        }
        PodTransition::StartEphemeral => {
            let known = pod.status.ephemeral_container_statuses.len();
            let added = pod.spec.ephemeral_containers.iter().skip(known);
            added.for_each(|one| record_start(pod, one, cx));
        }
        PodTransition::FailPull(why) => {
            for image in pod.spec.containers.iter().filter_map(|one| one.image.as_deref()) {
                cx.normal(pod, "Pulling", format_args!("Pulling image {image:?}"));
                let message = format_args!("Failed to pull image {image:?}: {why}");
                cx.warning(pod, "Failed", message);
                cx.warning(pod, "Failed", "Error: ErrImagePull");
                cx.normal(pod, "BackOff", format_args!("Back-off pulling image {image:?}"));
            }
        }
        PodTransition::BecomeUnready => record_unhealthy(pod, ProbeKind::Readiness, cx),
        PodTransition::BackOff { exit, .. } => {
            record_killing(pod, exit.probe, "will be restarted", cx);
            for one in &pod.spec.containers {
                let (name, pod_name) = (&one.name, pod_status::full_name(pod));
                let message =
                    format!("Back-off restarting failed container {name} in pod {pod_name}");
                cx.warning(pod, "BackOff", message);
            }
        }
        PodTransition::End { exit, .. } => {
            record_killing(pod, exit.probe, "will not be restarted", cx);
        }
        PodTransition::ExceedDeadline => cx.normal(
            pod,
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
        ),
        PodTransition::Remove if !pod.is_finished() => {
            cx.normal(pod, "Killing", format_args!("Stopping container {}", containers()));
        }
        _ => {}
    }
}

fn record_unhealthy(pod: &Pod, probe: ProbeKind, cx: &Context) {
    let why = "HTTP probe failed with statuscode: 503";
    cx.warning(pod, "Unhealthy", format_args!("{} probe failed: {why}", probe.name()));
}

/// Reports containers that are terminated because of a probe.
fn record_killing(pod: &Pod, probe: Option<ProbeKind>, then: &str, cx: &Context) {
    let Some(probe) = probe else { return };
    record_unhealthy(pod, probe, cx);
    let probe = probe.name().to_ascii_lowercase();
    for one in &pod.spec.containers {
        let message = format_args!("Container {} failed {probe} probe, {then}", one.name);
        cx.normal(pod, "Killing", message);
    }
}

fn record_start(pod: &Pod, one: &Container, cx: &Context) {
    let image = one.image.as_deref().unwrap_or_default();
    let pulled = format_args!("Container image {image:?} already present on machine");
    cx.normal(pod, "Pulled", pulled);
    cx.normal(pod, "Created", format_args!("Created container: {}", one.name));
    cx.normal(pod, "Started", format_args!("Started container {}", one.name));
}

/// Reports annotations of ours that cannot be read.
fn report_annotations(pod: &Pod, cx: &Context) {
    for why in rules::invalid_annotations(pod) {
        cx.warning(pod, "InvalidAnnotation", why);
    }
}
