//! The deprecated Endpoints API: one object per Service.

use std::sync::Arc;

use headwater_client::Cached;
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service,
};
use kube::core::ObjectMeta;

use crate::pod::Pod;

use super::endpoints::{address, families, is_headless, ports, reference};
use super::slices::HEADLESS;

pub(super) const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Addresses beyond this number are dropped, and an annotation says so.
const ADDRESSES_MAX: usize = 1000;

/// The Endpoints of a Service.
pub(super) fn endpoints(service: &Service, pods: &[Arc<Pod>]) -> Endpoints {
    let family = families(service).remove(0);
    let spec = service.spec.clone().unwrap_or_default();
    let published = spec.publish_not_ready_addresses == Some(true);
    let mut subsets: Vec<EndpointSubset> = Vec::new();
    let mut room = ADDRESSES_MAX;
    let (mut dropped, mut living) = (false, pods.iter().collect::<Vec<_>>());
    living.sort_by_key(|pod| (!pod.is_ready(), pod.name().to_owned())); // ready pods first
    for pod in living.into_iter().filter(|pod| pod.is_active()) {
        let Some(ip) = address(pod, &family) else { continue };
        if room == 0 {
            dropped = true;
            break;
        }
        room -= 1;
        let address = EndpointAddress {
            ip,
            node_name: pod.node().map(str::to_owned),
            target_ref: Some(reference(pod)),
            ..EndpointAddress::default()
        };
        let ports: Vec<EndpointPort> = ports(&spec, pod)
            .into_iter()
            .map(|port| EndpointPort {
                name: port.name.filter(|name| !name.is_empty()),
                port: port.port.unwrap_or_default(),
                protocol: port.protocol,
                app_protocol: port.app_protocol,
            })
            .collect();
        add(&mut subsets, &ports, address, published || pod.is_ready());
    }
    Endpoints {
        metadata: metadata(service, dropped),
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

fn add(
    subsets: &mut Vec<EndpointSubset>,
    ports: &[EndpointPort],
    address: EndpointAddress,
    ready: bool,
) {
    let wanted = (!ports.is_empty()).then(|| ports.to_vec());
    let at = match subsets.iter().position(|subset| subset.ports == wanted) {
        Some(at) => at,
        None => {
            subsets.push(EndpointSubset { ports: wanted, ..EndpointSubset::default() });
            subsets.len() - 1
        }
    };
    let list = match ready {
        true => &mut subsets[at].addresses,
        false => &mut subsets[at].not_ready_addresses,
    };
    list.get_or_insert_default().push(address);
}

fn metadata(service: &Service, over_capacity: bool) -> ObjectMeta {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    let annotation = (OVER_CAPACITY.to_owned(), "truncated".to_owned());
    ObjectMeta {
        name: Some(service.name().to_owned()),
        namespace: service.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: over_capacity.then(|| [annotation].into()),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::endpoints::tests::{pod, service};
    use super::*;

    fn counts(endpoints: &Endpoints) -> Vec<(usize, usize)> {
        let len = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        let subsets = endpoints.subsets.iter().flatten();
        subsets.map(|it| (len(&it.addresses), len(&it.not_ready_addresses))).collect()
    }

    #[test]
    fn addresses_are_ready_or_not_ready_and_terminating_pods_are_left_out() {
        let pods = [
            pod(1, &json!({})),
            pod(2, &json!({"status": {"conditions": []}})),
            pod(3, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            pod(4, &json!({"status": {"podIP": null}})),
        ];
        assert_eq!(counts(&endpoints(&service(&json!({})), &pods)), [(1, 1)]);
        assert_eq!(endpoints(&service(&json!({})), &[]).subsets, None);
    }

    #[test]
    fn addresses_beyond_a_thousand_are_dropped_and_annotated() {
        let pods: Vec<_> = (0..1001).map(|number| pod(number, &json!({}))).collect();
        let cut = endpoints(&service(&json!({})), &pods);
        assert_eq!(counts(&cut), [(1000, 0)]);
        assert_eq!(cut.metadata.annotations.unwrap()[OVER_CAPACITY], "truncated");
    }
}
