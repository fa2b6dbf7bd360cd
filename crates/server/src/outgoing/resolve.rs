//! Resolution: the addresses of an endpoint's host name or service.

use std::net::{IpAddr, SocketAddr};

use headwater_cache::Cache;
use headwater_json::Value;

use super::Target;
use crate::object::tree;

/// The addresses to try, in order.
pub(super) async fn resolve(cache: &Cache, target: &Target) -> Result<Vec<SocketAddr>, String> {
    match target {
        Target::Host { host, port } => look_up(host, *port).await,
        Target::Service { namespace, name, port } => {
            let service = read(cache, "/registry/core/services/", namespace, name)
                .ok_or_else(|| format!("service {name:?} not found in namespace {namespace:?}"))?;
            let ports = service["spec"]["ports"].as_array();
            let entry = ports.into_iter().flatten().find(|entry| entry["port"] == *port);
            if service["spec"]["type"] == "ExternalName" {
                let host = service["spec"]["externalName"].as_str().unwrap_or_default();
                let own = entry.and_then(|entry| entry["targetPort"].as_u64());
                let own = own.and_then(|port| u16::try_from(port).ok());
                return look_up(host, own.unwrap_or(*port)).await;
            }
            let entry = entry
                .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
            let port_name = entry["name"].as_str().unwrap_or_default();
            let found = endpoints(cache, namespace, name, port_name);
            match found.is_empty() {
                true => Err(format!("no endpoints available for service {name:?}")),
                false => Ok(found),
            }
        }
    }
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::net::lookup_host((host, port)).await;
    Ok(found.map_err(|_| format!("dial tcp: lookup {host}: no such host"))?.collect())
}

fn read(cache: &Cache, prefix: &str, namespace: &str, name: &str) -> Option<Value> {
    let snapshot = cache.snapshot(&cache.resource(prefix));
    tree(snapshot.get(&format!("{namespace}/{name}"))?.as_slice()).ok()
}

/// The addresses of a service. Cluster IPs are unreachable without a pod network, so the endpoints
/// are called directly.
fn endpoints(cache: &Cache, namespace: &str, name: &str, port_name: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    let mut add = |address: &str, ports: &Value| {
        let ports = ports.as_array().into_iter().flatten();
        for port in ports.filter(|port| port["name"].as_str().unwrap_or_default() == port_name) {
            let number = port["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            let ip = address.parse::<IpAddr>().ok();
            found.extend(ip.zip(number).map(|(ip, port)| SocketAddr::new(ip, port)));
        }
    };
    let slices = cache.snapshot(&cache.resource("/registry/discovery.k8s.io/endpointslices/"));
    let own = slices
        .iter(namespace, None)
        .filter(|slice| slice.label("kubernetes.io/service-name") == Some(name));
    for slice in own.filter_map(|slice| tree(slice.as_slice()).ok()) {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let addresses = endpoint["addresses"].as_array().into_iter().flatten();
            let ready = endpoint["conditions"]["ready"] != false;
            for address in addresses.filter(|_| ready).filter_map(Value::as_str) {
                add(address, &slice["ports"]);
            }
        }
    }
    let endpoints = read(cache, "/registry/core/endpoints/", namespace, name);
    let subsets = endpoints.iter().flat_map(|endpoints| endpoints["subsets"].as_array());
    for subset in subsets.flatten() {
        for address in subset["addresses"].as_array().into_iter().flatten() {
            add(address["ip"].as_str().unwrap_or_default(), &subset["ports"]);
        }
    }
    found
}
