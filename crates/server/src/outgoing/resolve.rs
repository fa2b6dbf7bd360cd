//! Resolution: how the host name or Service of an endpoint is reached.
//!
//! Promise: the address of a simulated pod is never returned.

use std::net::{IpAddr, SocketAddr};

use headwater_cache::Cache;
use headwater_json::Value;

use super::Target;
use super::forwarding::{Forwarding, SERVICES};
use crate::object::tree;

const SLICES: &str = "/registry/discovery.k8s.io/endpointslices/";
const ENDPOINTS: &str = "/registry/core/endpoints/";
const PODS: &str = "/registry/core/pods/";
const NODES: &str = "/registry/core/nodes/";
/// The label of a node whose containers are simulated.
const SIMULATED: &str = "headwater.dev/simulated";

/// How an endpoint is reached.
pub(super) enum ServiceRoute {
    /// The addresses to try, in order.
    Addresses(Vec<SocketAddr>),
    /// A process on this machine that replies in place of a Service.
    Forwarded(SocketAddr),
}

/// Why there is no route.
pub(super) enum NoRoute {
    Failed(String),
    /// All pods of the Service are simulated: nothing listens at their addresses.
    Simulated {
        namespace: String,
        name: String,
    },
}

impl From<String> for NoRoute {
    fn from(why: String) -> NoRoute {
        NoRoute::Failed(why)
    }
}

/// How a target is reached.
pub(super) async fn resolve(
    cache: &Cache,
    target: &Target,
    forwarding: Forwarding,
) -> Result<ServiceRoute, NoRoute> {
    match target {
        Target::Host { host, port } => Ok(ServiceRoute::Addresses(look_up(host, *port).await?)),
        Target::Service { namespace, name, port } => {
            let service = read(cache, SERVICES, &format!("{namespace}/{name}"))
                .ok_or_else(|| format!("service {name:?} not found in namespace {namespace:?}"))?;
            if let Some(address) = forwarding.address(&service) {
                return Ok(ServiceRoute::Forwarded(address?));
            }
            let ports = service["spec"]["ports"].as_array();
            let entry = ports.into_iter().flatten().find(|entry| entry["port"] == *port);
            if service["spec"]["type"] == "ExternalName" {
                let host = service["spec"]["externalName"].as_str().unwrap_or_default();
                let own = entry.and_then(|entry| entry["targetPort"].as_u64());
                let own = own.and_then(|port| u16::try_from(port).ok());
                return Ok(ServiceRoute::Addresses(look_up(host, own.unwrap_or(*port)).await?));
            }
            let entry = entry
                .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
            let port_name = entry["name"].as_str().unwrap_or_default();
            let endpoints = ServiceEndpoints::read(cache, namespace, name, port_name);
            for pod in &endpoints.simulated {
                let pod = read(cache, PODS, &format!("{namespace}/{pod}"));
                if let Some(address) = pod.and_then(|pod| forwarding.address(&pod)) {
                    return Ok(ServiceRoute::Forwarded(address?));
                }
            }
            match (endpoints.addresses.is_empty(), endpoints.simulated.is_empty()) {
                (false, _) => Ok(ServiceRoute::Addresses(endpoints.addresses)),
                (true, true) => Err(format!("no endpoints available for service {name:?}").into()),
                (true, false) => {
                    let (namespace, name) = (namespace.clone(), name.clone());
                    Err(NoRoute::Simulated { namespace, name })
                }
            }
        }
    }
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::net::lookup_host((host, port)).await;
    Ok(found.map_err(|_| format!("dial tcp: lookup {host}: no such host"))?.collect())
}

fn read(cache: &Cache, prefix: &str, key: &str) -> Option<Value> {
    let snapshot = cache.snapshot(&cache.resource(prefix));
    tree(snapshot.get(key)?.as_slice()).ok()
}

/// The endpoints of a Service. Cluster IPs are unreachable without a pod network, so the endpoints are
/// called directly.
#[derive(Default)]
struct ServiceEndpoints {
    addresses: Vec<SocketAddr>,
    /// The names of the pods on simulated nodes, whose addresses are never called.
    simulated: Vec<String>,
}

impl ServiceEndpoints {
    fn read(cache: &Cache, namespace: &str, name: &str, port_name: &str) -> ServiceEndpoints {
        let mut found = ServiceEndpoints::default();
        let slices = cache.snapshot(&cache.resource(SLICES));
        let own = slices
            .iter(namespace, None)
            .filter(|slice| slice.label("kubernetes.io/service-name") == Some(name));
        for slice in own.filter_map(|slice| tree(slice.as_slice()).ok()) {
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let addresses = endpoint["addresses"].as_array().into_iter().flatten();
                let ready = endpoint["conditions"]["ready"] != false;
                for address in addresses.filter(|_| ready).filter_map(Value::as_str) {
                    found.add(cache, (address, endpoint), &slice["ports"], port_name);
                }
            }
        }
        let endpoints = read(cache, ENDPOINTS, &format!("{namespace}/{name}"));
        let subsets = endpoints.iter().flat_map(|endpoints| endpoints["subsets"].as_array());
        for subset in subsets.flatten() {
            for endpoint in subset["addresses"].as_array().into_iter().flatten() {
                let address = endpoint["ip"].as_str().unwrap_or_default();
                found.add(cache, (address, endpoint), &subset["ports"], port_name);
            }
        }
        found
    }

    fn add(
        &mut self,
        cache: &Cache,
        (address, endpoint): (&str, &Value),
        ports: &Value,
        port_name: &str,
    ) {
        let node = endpoint["nodeName"].as_str().unwrap_or_default();
        if is_simulated(cache, node) {
            self.simulated.extend(endpoint["targetRef"]["name"].as_str().map(str::to_owned));
            return;
        }
        let ports = ports.as_array().into_iter().flatten();
        for port in ports.filter(|port| port["name"].as_str().unwrap_or_default() == port_name) {
            let number = port["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            let ip = address.parse::<IpAddr>().ok();
            self.addresses.extend(ip.zip(number).map(|(ip, port)| SocketAddr::new(ip, port)));
        }
    }
}

/// Whether the containers of a node are simulated.
fn is_simulated(cache: &Cache, node: &str) -> bool {
    let nodes = cache.snapshot(&cache.resource(NODES));
    !node.is_empty() && nodes.get(node).is_some_and(|node| node.label(SIMULATED).is_some())
}
