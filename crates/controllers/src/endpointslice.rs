//! The endpoint slice controller: publishes the addresses of a Service's pods as EndpointSlices and
//! Endpoints.
//!
//! River: Services, pods and nodes → **endpointslice** → EndpointSlices and Endpoints.
//! Promise: only slices with our `managed-by` label are changed; an endpoint stays in its slice; a
//! slice has at most 100 endpoints.

mod legacy;
mod slices;
mod endpoints;
mod mirroring;

use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::informer::Informer;
use headwater_client::predicate::{ChangeEvent, Predicate};
use headwater_client::{Cached, Error, Index, Key};
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use crate::cluster::{Cluster, Pods};
use crate::difference::difference;
use crate::ownership::requeue_or_fail;
use crate::pod::Pod;
use crate::slow_start::is_namespace_terminating;

use self::endpoints::{endpoint_groups, has_selector, selects};
pub(crate) use self::mirroring::prepare as prepare_mirroring;
use self::slices::{MANAGED_BY, MANAGER, SERVICE_NAME, SliceWrite, writes};

const WORKERS: usize = 4;
const ZONE: &str = "topology.kubernetes.io/zone";

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let services = cluster.informer::<Service>()?;
    let slices = cluster.informer::<EndpointSlice>()?;
    let endpoints = cluster.informer::<Endpoints>()?;
    let nodes = cluster.informer::<Node>()?;
    let pods = cluster.pods()?;
    let by_service =
        slices.index("endpointslice/service", |slice: &EndpointSlice| service_of(slice))?;
    let candidates = services.clone();
    let controller =
        EndpointSliceController { pods: pods.clone(), by_service, nodes: nodes.clone() };
    Ok(Controller::new("endpointslice", &services)
        .watches(&slices, |slice: &EndpointSlice| service_of(slice))
        .watches(&endpoints, |endpoints: &Endpoints| is_ours(endpoints).then(|| endpoints.key()))
        .watches_when(&pods.informer, endpoint_changed(), move |pod: &Pod| {
            let snapshot = candidates.snapshot();
            let all = snapshot.in_namespace(pod.namespace().unwrap_or_default());
            let keys = all.filter(|(_, service)| selects(service, pod));
            keys.map(|(key, _)| key.clone()).collect::<Vec<Key>>()
        })
        .reads(&nodes)
        .workers(WORKERS)
        .with(controller))
}

/// The Service of a slice, if this controller manages the slice.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let is_ours = slice.label(MANAGED_BY).as_deref() == Some(MANAGER);
    let name = slice.label(SERVICE_NAME).filter(|_| is_ours)?;
    Some(Key::namespaced(slice.namespace().unwrap_or_default(), &name))
}

fn is_ours(endpoints: &Endpoints) -> bool {
    endpoints.label(legacy::MANAGED_BY).as_deref() == Some(legacy::MANAGER)
}

/// Passes changes of the fields that endpoints are made of.
fn endpoint_changed() -> Predicate<Pod> {
    fn facts(pod: &Pod) -> impl PartialEq {
        let addresses = (pod.status.pod_ip.clone(), pod.status.pod_ips.clone());
        let state = (pod.is_ready(), pod.is_deleting(), pod.is_finished());
        (pod.metadata.labels.clone(), pod.node().map(str::to_owned), addresses, state)
    }
    Predicate::new(|event: &ChangeEvent<'_, Pod>| match event {
        ChangeEvent::Updated { old, new } => facts(old) != facts(new),
        _ => true,
    })
}

struct EndpointSliceController {
    pods: Pods,
    by_service: Index<EndpointSlice, Key>,
    nodes: Informer<Node>,
}

impl Reconcile<Service> for EndpointSliceController {
    async fn reconcile(&self, service: Arc<Service>, cx: Context) -> Result<Next, Failure> {
        if !has_selector(&service) || service.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Done);
        }
        let snapshot = self.pods.informer.snapshot();
        let all = snapshot.in_namespace(service.namespace().unwrap_or_default());
        let pods: Vec<Arc<Pod>> =
            all.filter(|(_, pod)| selects(&service, pod)).map(|(_, pod)| Arc::clone(pod)).collect();
        let groups = endpoint_groups(&service, &pods, |node| self.zone(node));
        let existing = self.by_service.get(&service.key());
        for write in writes(&service, &existing, groups) {
            if let Err(error) = apply(write, &cx).await {
                return requeue_or_fail(error);
            }
        }
        match write_legacy(&service, &pods, &cx).await {
            Ok(()) => Ok(Next::Done),
            Err(error) => requeue_or_fail(error),
        }
    }

    /// Slices are garbage collected with their Service; Endpoints have no owner reference.
    async fn gone(&self, key: Key, _: Option<Arc<Service>>, cx: Context) -> Result<Next, Failure> {
        if let Some(endpoints) = cx.lister::<Endpoints>()?.get_key(&key)?
            && is_ours(&endpoints)
        {
            cx.of::<Endpoints>().delete_this(&endpoints).await?;
        }
        Ok(Next::Done)
    }
}

impl EndpointSliceController {
    fn zone(&self, node: &str) -> Option<String> {
        let node = self.nodes.snapshot().get(&Key::cluster(node)).cloned()?;
        node.label(ZONE).map(|zone| zone.into_owned())
    }
}

async fn apply(write: SliceWrite, cx: &Context) -> Result<(), Error> {
    let slices = cx.of::<EndpointSlice>();
    match write {
        SliceWrite::Create(slice) => match slices.create(&slice).await {
            Err(error) if error.is_not_found() || is_namespace_terminating(&error) => Ok(()),
            created => created.map(drop),
        },
        SliceWrite::Update(old, new) => {
            let Some(mut patch) = difference(&*old, &*new) else { return Ok(()) };
            patch["metadata"]["resourceVersion"] = old.resource_version().text().into();
            slices.merge(&old.key(), &patch).await.map(drop)
        }
        SliceWrite::Delete(slice) => slices.delete_this(&slice).await.map(drop),
    }
}

async fn write_legacy(service: &Service, pods: &[Arc<Pod>], cx: &Context) -> Result<(), Error> {
    let wanted = legacy::endpoints(service, pods);
    let all = cx.of::<Endpoints>();
    let Some(there) = cx.lister::<Endpoints>()?.get_key(&service.key())? else {
        return match all.create(&wanted).await {
            Err(error) if error.is_exists() || error.is_not_found() => Ok(()),
            Err(error) if is_namespace_terminating(&error) => Ok(()),
            created => created.map(drop),
        };
    };
    let mut updated = (*there).clone();
    updated.subsets = wanted.subsets;
    updated
        .metadata
        .labels
        .get_or_insert_default()
        .extend(wanted.metadata.labels.unwrap_or_default());
    let annotations = updated.metadata.annotations.get_or_insert_default();
    annotations.remove("endpoints.kubernetes.io/over-capacity");
    annotations.extend(wanted.metadata.annotations.unwrap_or_default());
    if annotations.is_empty() {
        updated.metadata.annotations = None;
    }
    let Some(mut patch) = difference(&*there, &updated) else { return Ok(()) };
    patch["metadata"]["resourceVersion"] = json!(there.resource_version().text());
    all.merge(&there.key(), &patch).await.map(drop)
}
