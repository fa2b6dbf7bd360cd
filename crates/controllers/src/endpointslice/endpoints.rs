//! The endpoints of a Service: which pods, addresses and ports.

use std::net::IpAddr;
use std::sync::Arc;

use headwater_client::Cached;
use k8s_openapi::api::core::v1::{ObjectReference, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::pod::Pod;

/// Endpoints that may share a slice: same address type and same ports.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EndpointGroup {
    pub(super) address_type: String,
    pub(super) ports: Vec<EndpointPort>,
    pub(super) endpoints: Vec<Endpoint>,
}

/// Whether this controller manages the endpoints of a Service.
pub(super) fn has_selector(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let selects = spec.and_then(|spec| spec.selector.as_ref()).is_some_and(|it| !it.is_empty());
    selects && spec.and_then(|spec| spec.type_.as_deref()) != Some("ExternalName")
}

/// Whether a Service's selector matches a pod.
pub(super) fn selects(service: &Service, pod: &Pod) -> bool {
    let wanted = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    has_selector(service) && wanted.is_some_and(|wanted| pod.has_labels(wanted))
}

/// Whether a Service has no cluster IP, so that clients connect to pods directly.
pub(super) fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

/// The IP families of a Service.
pub(super) fn families(service: &Service) -> Vec<String> {
    let known = service.spec.as_ref().and_then(|spec| spec.ip_families.clone());
    known.filter(|known| !known.is_empty()).unwrap_or_else(|| vec!["IPv4".to_owned()])
}

/// All endpoints of a Service, in groups; `zone` returns the zone of a node.
pub(super) fn endpoint_groups(
    service: &Service,
    pods: &[Arc<Pod>],
    zone: impl Fn(&str) -> Option<String>,
) -> Vec<EndpointGroup> {
    let spec = service.spec.clone().unwrap_or_default();
    let mut groups: Vec<EndpointGroup> = Vec::new();
    for address_type in families(service) {
        for pod in pods.iter().filter(|pod| !pod.is_finished()) {
            let Some(endpoint) = endpoint(&spec, pod, &address_type, &zone) else { continue };
            let ports = ports(&spec, pod);
            let fits = |group: &&mut EndpointGroup| {
                group.address_type == address_type && group.ports == ports
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.endpoints.push(endpoint),
                None => groups.push(EndpointGroup {
                    address_type: address_type.clone(),
                    ports,
                    endpoints: vec![endpoint],
                }),
            }
        }
    }
    groups
}

/// The address of a pod in one IP family.
pub(super) fn address(pod: &Pod, address_type: &str) -> Option<String> {
    let all = pod.status.pod_ips.iter().map(|address| address.ip.as_str());
    let all = all.chain(pod.status.pod_ip.as_deref());
    all.filter(|text| {
        text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6() == (address_type == "IPv6"))
    })
    .map(str::to_owned)
    .next()
}

fn endpoint(
    spec: &ServiceSpec,
    pod: &Pod,
    address_type: &str,
    zone: impl Fn(&str) -> Option<String>,
) -> Option<Endpoint> {
    let (serving, terminating) = (pod.is_ready(), pod.is_deleting());
    let published = spec.publish_not_ready_addresses == Some(true);
    Some(Endpoint {
        addresses: vec![address(pod, address_type)?],
        conditions: Some(EndpointConditions {
            ready: Some(published || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        node_name: pod.node().map(str::to_owned),
        zone: pod.node().and_then(zone),
        target_ref: Some(reference(pod)),
        ..Endpoint::default()
    })
}

pub(super) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: Some(pod.uid().to_owned()),
        ..ObjectReference::default()
    }
}

/// The ports of a Service on a pod; named ports that the pod lacks are omitted.
pub(super) fn ports(spec: &ServiceSpec, pod: &Pod) -> Vec<EndpointPort> {
    let all = spec.ports.iter().flatten();
    let mut found: Vec<EndpointPort> = all
        .filter_map(|port| {
            Some(EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(number(port, pod)?),
                protocol: Some(protocol(port).to_owned()),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

fn number(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let sidecars = pod.spec.init_containers.iter();
            let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
            let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|it| &it.ports);
            ports
                .filter(|known| known.name.as_ref() == Some(name))
                .find(|known| known.protocol.as_deref().unwrap_or("TCP") == protocol(port))
                .map(|known| known.container_port)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in super::super) fn service(change: &Value) -> Service {
        let mut value = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "service"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        });
        crate::fixture::merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    pub(in super::super) fn pod(number: usize, change: &Value) -> Arc<Pod> {
        let name = format!("p{number}");
        let mut value = json!({
            "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "ports": [
                {"name": "http", "containerPort": 8080},
                {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            ]}]},
            "status": {
                "phase": "Running",
                "podIP": format!("10.0.{}.{}", number / 250, number % 250 + 1),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        crate::fixture::merge(&mut value, change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn only(service: &Service, pod: Arc<Pod>) -> Option<Endpoint> {
        let mut groups = endpoint_groups(service, &[pod], |_| Some("z1".to_owned()));
        groups.pop().map(|mut group| group.endpoints.remove(0))
    }

    fn conditions(service: &Value, pod_change: &Value) -> (bool, bool, bool) {
        let endpoint = only(&self::service(service), pod(1, pod_change)).unwrap();
        let conditions = endpoint.conditions.unwrap();
        let is = |condition: Option<bool>| condition.unwrap();
        (is(conditions.ready), is(conditions.serving), is(conditions.terminating))
    }

    #[test]
    fn endpoint_conditions_follow_the_pod() {
        let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let unready = json!({"status": {"conditions": []}});
        let published = json!({"spec": {"publishNotReadyAddresses": true}});
        assert_eq!(conditions(&json!({}), &json!({})), (true, true, false));
        assert_eq!(conditions(&json!({}), &unready), (false, false, false));
        assert_eq!(conditions(&json!({}), &ending), (false, true, true));
        assert_eq!(conditions(&published, &unready), (true, false, false));
    }

    #[test]
    fn an_endpoint_has_the_address_node_and_zone_of_its_pod() {
        let endpoint = only(&service(&json!({})), pod(1, &json!({}))).unwrap();
        assert_eq!(endpoint.addresses, ["10.0.0.2"]);
        assert_eq!(
            (endpoint.node_name.as_deref(), endpoint.zone.as_deref()),
            (Some("n1"), Some("z1"))
        );
        assert_eq!(endpoint.target_ref.unwrap().uid.as_deref(), Some("p1"));
        let none = |change: &Value| only(&service(&json!({})), pod(1, change));
        assert_eq!(none(&json!({"status": {"podIP": null}})), None);
        assert_eq!(none(&json!({"status": {"phase": "Failed"}})), None);
        assert_eq!(none(&json!({"status": {"phase": "Succeeded"}})), None);
    }

    #[test]
    fn each_ip_family_has_its_own_group() {
        let both = service(&json!({"spec": {"ipFamilies": ["IPv4", "IPv6"]}}));
        let pod = pod(1, &json!({"status": {"podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}]}}));
        let groups = endpoint_groups(&both, &[pod], |_| None);
        let addresses: Vec<(&str, &str)> = groups
            .iter()
            .map(|group| (group.address_type.as_str(), group.endpoints[0].addresses[0].as_str()))
            .collect();
        assert_eq!(addresses, [("IPv4", "10.0.0.2"), ("IPv6", "fd00::2")]);
    }

    #[test]
    fn target_ports_are_resolved_by_number_and_by_name() {
        check_ports(json!([{"port": 80}]), &[("", 80)]);
        check_ports(json!([{"port": 80, "targetPort": 8080}]), &[("", 8080)]);
        check_ports(json!([{"port": 80, "targetPort": "http", "name": "web"}]), &[("web", 8080)]);
        check_ports(json!([{"port": 80, "targetPort": "dns", "name": "web"}]), &[]); // it is UDP
        let dns = json!([{"port": 53, "targetPort": "dns", "protocol": "UDP", "name": "dns"}]);
        check_ports(dns, &[("dns", 53)]);
        check_ports(json!([{"port": 80, "targetPort": "nobody"}]), &[]);
        let two = json!([{"port": 2, "name": "b"}, {"port": 1, "name": "a"}]);
        check_ports(two, &[("a", 1), ("b", 2)]);
    }

    #[track_caller]
    fn check_ports(wanted: Value, expected: &[(&str, i32)]) {
        let service = service(&json!({"spec": {"ports": wanted}}));
        let found = ports(&service.spec.unwrap(), &pod(1, &json!({})));
        let found: Vec<(&str, i32)> =
            found.iter().map(|port| (port.name.as_deref().unwrap(), port.port.unwrap())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_service_selects_pods_with_all_of_its_labels() {
        let pod = pod(1, &json!({"metadata": {"labels": {"tier": "a"}}}));
        let check = |change: Value, expected: bool| {
            assert_eq!(selects(&service(&change), &pod), expected, "{change}");
        };
        check(json!({}), true);
        check(json!({"spec": {"selector": {"tier": "a"}}}), true);
        check(json!({"spec": {"selector": {"tier": "b"}}}), false);
        check(json!({"spec": {"selector": null}}), false);
        check(json!({"spec": {"type": "ExternalName"}}), false);
    }
}
