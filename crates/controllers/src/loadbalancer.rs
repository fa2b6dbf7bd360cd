//! Simulated load balancers: the external addresses of Services of type `LoadBalancer`.
//!
//! River: Services → **loadbalancer** → their `status.loadBalancer`.
//! Promise: the external addresses follow from the cluster addresses, so no state is kept, and a
//! restart changes nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use headwater_client::controller::{Context, Controller, Failure, Next, Prepared};
use headwater_client::{Cached, Error};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;

use crate::cluster::Cluster;
use crate::ownership::requeue_or_fail;

/// The range of RFC 2544 for tests of networks, /15; nobody routes it.
const IPV4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const IPV4_HOST: u32 = (1 << 17) - 1;
/// The range of RFC 5180 for the same purpose, /48.
const IPV6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0);
const IPV6_HOST: u128 = (1 << 80) - 1;

pub(crate) fn prepare(cluster: &Cluster) -> Result<Prepared, Error> {
    let services = cluster.informer::<Service>()?;
    Ok(Controller::new("service-lb-controller", &services).with(reconcile))
}

async fn reconcile(service: Arc<Service>, cx: Context) -> Result<Next, Failure> {
    let Some(wanted) = addresses(&service).filter(|wanted| *wanted != current(&service)) else {
        return Ok(Next::Done);
    };
    if !wanted.is_empty() {
        cx.normal(&*service, "EnsuringLoadBalancer", "Ensuring load balancer");
    }
    let ingress: Vec<_> = wanted.iter().map(|ip| json!({ "ip": ip })).collect();
    let patch = json!({
        "metadata": {"resourceVersion": service.resource_version().text()},
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    if let Err(error) = cx.of::<Service>().merge_status(&service.key(), &patch).await {
        return requeue_or_fail(error);
    }
    match wanted.is_empty() {
        true => cx.normal(&*service, "DeletedLoadBalancer", "Deleted load balancer"),
        false => cx.normal(&*service, "EnsuredLoadBalancer", "Ensured load balancer"),
    }
    Ok(Next::Done)
}

/// The external addresses that a Service should have; `None` if that is not ours to decide.
fn addresses(service: &Service) -> Option<Vec<IpAddr>> {
    let spec = service.spec.as_ref()?;
    if service.metadata.deletion_timestamp.is_some() || spec.load_balancer_class.is_some() {
        return None;
    }
    if spec.type_.as_deref() != Some("LoadBalancer") {
        return current(service).into_iter().all(is_ours).then(Vec::new);
    }
    let requested = spec.load_balancer_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let cluster = spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse::<IpAddr>().ok());
    let external = |ip: IpAddr| match requested {
        Some(requested) if requested.is_ipv4() == ip.is_ipv4() => requested,
        _ => external(ip),
    };
    Some(cluster.map(external).collect())
}

/// The external addresses that a Service has.
fn current(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|one| one.ip.as_ref()?.parse().ok()).collect()
}

/// The external address that belongs to a cluster address.
fn external(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from(IPV4.to_bits() | (ip.to_bits() & IPV4_HOST)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(IPV6.to_bits() | (ip.to_bits() & IPV6_HOST)).into(),
    }
}

/// Whether an address is in the simulated ranges.
fn is_ours(ip: IpAddr) -> bool {
    external(ip) == ip
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn check(spec: Value, ingress: Value, expected: Option<&[&str]>) {
        let service = json!({"spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
        let found = addresses(&serde_json::from_value(service).unwrap());
        let texts = found.map(|all| all.iter().map(IpAddr::to_string).collect::<Vec<_>>());
        let expected = expected.map(|all| all.iter().map(|ip| (*ip).to_owned()).collect());
        assert_eq!(texts, expected, "{spec}");
    }

    #[test]
    fn a_balanced_service_has_an_external_address_for_each_cluster_address() {
        let balanced = |more: Value| {
            let mut spec = json!({"type": "LoadBalancer", "clusterIPs": ["10.97.1.2", "fd00::5"]});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        check(balanced(json!({})), json!([]), Some(&["198.19.1.2", "2001:2::5"]));
        let requested = json!({"loadBalancerIP": "192.0.2.7"});
        check(balanced(requested), json!([]), Some(&["192.0.2.7", "2001:2::5"]));
        check(balanced(json!({"loadBalancerClass": "example.com/x"})), json!([]), None);
    }

    #[test]
    fn only_a_simulated_address_is_removed_with_the_type() {
        let ports = || json!({"type": "NodePort", "clusterIPs": ["10.96.0.9"]});
        check(ports(), json!([{"ip": "198.18.0.9"}]), Some(&[]));
        check(ports(), json!([{"ip": "192.0.2.1"}]), None);
    }
}
