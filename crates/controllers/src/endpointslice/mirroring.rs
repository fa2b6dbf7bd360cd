//! The mirroring controller: publishes Endpoints that a person or an operator wrote as
//! EndpointSlices.
//!
//! River: Services without selectors and their Endpoints → **mirroring** → EndpointSlices.
//! Promise: only slices with this controller's `managed-by` label are changed.

use std::net::IpAddr;
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared, Reconcile};
use headwater_client::{Cached, Error, Index, Key};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};

use crate::cluster::Cluster;
use crate::ownership::{controller_reference, requeue_or_fail};

use super::endpoints::EndpointGroup;
use super::slices::{MANAGED_BY, SERVICE_NAME, SliceOwner, writes_for};
use super::{apply, is_ours};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// The label of Endpoints that are not mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// The annotation of Endpoints that are a lock of a leader election.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const WORKERS: usize = 2;
/// Addresses of a subset beyond this are not mirrored.
const ADDRESSES_MAX: usize = 1000;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let endpoints = cluster.informer::<Endpoints>()?;
    let services = cluster.informer::<Service>()?;
    let slices = cluster.informer::<EndpointSlice>()?;
    let by_service = slices.index("mirroring/service", service_of)?;
    Ok(Controller::new("endpointslicemirroring", &endpoints)
        .watches(&services, |service: &Service| [service.key()])
        .watches(&slices, service_of)
        .workers(WORKERS)
        .with(MirroringController { by_service }))
}

/// The Service of a slice, if this controller manages the slice.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let is_mirrored = slice.label(MANAGED_BY).as_deref() == Some(MANAGER);
    let name = slice.label(SERVICE_NAME).filter(|_| is_mirrored)?;
    Some(Key::namespaced(slice.namespace().unwrap_or_default(), &name))
}

struct MirroringController {
    by_service: Index<EndpointSlice, Key>,
}

impl Reconcile<Endpoints> for MirroringController {
    async fn reconcile(&self, endpoints: Arc<Endpoints>, cx: Context) -> Result<Next, Failure> {
        let key = endpoints.key();
        let service = cx.lister::<Service>()?.get_key(&key)?;
        let groups = match is_mirrored(&endpoints, service.as_deref()) {
            true => groups(&endpoints),
            false => Vec::new(),
        };
        for write in writes_for(&owner(&endpoints), &self.by_service.get(&key), &groups) {
            if let Err(error) = apply(write, &cx).await {
                return requeue_or_fail(error);
            }
        }
        Ok(Next::Done)
    }
}

fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let annotations = endpoints.metadata.annotations.as_ref();
    let is_lock = annotations.is_some_and(|all| all.contains_key(LEADER));
    let is_skipped = endpoints.label(SKIP).as_deref() == Some("true");
    let has_selector = |service: &Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| !selector.is_empty())
    };
    let is_deleted = endpoints.metadata.deletion_timestamp.is_some();
    let is_manual = service.is_some_and(|service| !has_selector(service));
    is_manual && !is_lock && !is_skipped && !is_deleted && !is_ours(endpoints)
}

fn owner(endpoints: &Endpoints) -> SliceOwner<'_> {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    SliceOwner {
        name: endpoints.name(),
        namespace: endpoints.namespace(),
        labels,
        reference: controller_reference(endpoints),
    }
}

/// The endpoints in groups of one address type and equal ports.
fn groups(endpoints: &Endpoints) -> Vec<EndpointGroup> {
    let mut groups: Vec<EndpointGroup> = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let others = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, is_ready) in ready.chain(others).take(ADDRESSES_MAX) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else { continue };
            let address_type = if ip.is_ipv6() { "IPv6" } else { "IPv4" };
            let fits = |group: &&mut EndpointGroup| {
                group.address_type == address_type && group.ports == ports
            };
            let endpoint = endpoint(address, is_ready);
            match groups.iter_mut().find(fits) {
                Some(group) => group.endpoints.push(endpoint),
                None => groups.push(EndpointGroup {
                    address_type: address_type.to_owned(),
                    ports: ports.clone(),
                    endpoints: vec![endpoint],
                }),
            }
        }
    }
    groups
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let each = subset.ports.iter().flatten().map(|port| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    });
    let mut ports: Vec<EndpointPort> = each.collect();
    ports.sort_by(|one, other| one.name.cmp(&other.name));
    ports
}

fn endpoint(address: &EndpointAddress, is_ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(is_ready), ..Default::default() }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn endpoints(change: Value) -> Endpoints {
        let mut value = json!({"metadata": {"name": "db", "namespace": "shop", "uid": "e"}});
        crate::fixture::merge(&mut value, &change);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn endpoints_of_services_without_selector_are_mirrored() {
        let service =
            |spec: Value| serde_json::from_value::<Service>(json!({"spec": spec})).unwrap();
        let manual = service(json!({}));
        let check = |change: Value, service: Option<&Service>, expected: bool| {
            assert_eq!(is_mirrored(&endpoints(change.clone()), service), expected, "{change}");
        };
        check(json!({}), Some(&manual), true);
        check(json!({}), None, false);
        check(json!({}), Some(&service(json!({"selector": {"app": "db"}}))), false);
        check(json!({"metadata": {"labels": {SKIP: "true"}}}), Some(&manual), false);
        check(json!({"metadata": {"annotations": {LEADER: "{}"}}}), Some(&manual), false);
    }

    #[test]
    fn subsets_become_groups_by_family_and_ports() {
        let subsets = json!([
            {"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
                "notReadyAddresses": [{"ip": "192.0.2.2", "hostname": "b"}], "ports": [{"port": 80}]},
            {"addresses": [{"ip": "192.0.2.3"}], "ports": [{"name": "x", "port": 81, "protocol": "UDP"}]},
            {"addresses": [{"ip": "192.0.2.4"}], "ports": [{"port": 80}]},
        ]);
        let groups = groups(&endpoints(json!({"subsets": subsets})));
        let shown: Vec<(&str, i32, usize)> = groups
            .iter()
            .map(|it| (it.address_type.as_str(), it.ports[0].port.unwrap(), it.endpoints.len()))
            .collect();
        assert_eq!(shown, [("IPv4", 80, 3), ("IPv6", 80, 1), ("IPv4", 81, 1)]);
        let second = &groups[0].endpoints[1];
        assert_eq!(second.conditions.as_ref().unwrap().ready, Some(false));
        assert_eq!(second.hostname.as_deref(), Some("b"));
    }
}
