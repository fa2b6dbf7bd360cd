//! Allocation of the cluster IPs and node ports of Services (S2.16).
//!
//! River: admission → **addresses** → claims → store. The addresses in use are read from the Services
//! and from their claims. If two writes choose the same address at the same time, their claims
//! conflict and one of them is computed again.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use headwater_api::Status;
use headwater_api::status::{FieldError, invalid};
use headwater_cache::Cache;
use headwater_json::{Value, json};

use crate::admission::claims;
use crate::object::{meta, tree};
use crate::random;

/// Cluster IPs come from 10.96.0.0/12; the first is reserved for the API server.
const FIRST_IP: u32 = u32::from_be_bytes([10, 96, 0, 10]);
const IP_COUNT: u32 = (1 << 20) - 16;

/// Node ports.
const FIRST_PORT: u32 = 30_000;
const PORT_COUNT: u32 = 2_768;

/// The addresses in use.
#[derive(Default)]
struct Taken {
    ips: HashSet<String>,
    ports: HashSet<i64>,
}

impl Taken {
    fn add(&mut self, service: &Value) {
        self.ips.extend(claims::ips_of(service).map(str::to_owned));
        self.ports.extend(claims::ports_of(service));
    }
}

/// Allocates the missing addresses of a Service; rejects requested ones that are in use.
pub(crate) fn assign(cache: &Cache, new: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if new["spec"]["type"] == "ExternalName" {
        return Ok(());
    }
    if new["spec"]["clusterIP"] == "None" {
        new["spec"]["clusterIPs"] = json!(["None"]);
    }
    if old.is_some_and(|old| is_complete(new) && addresses(new) == addresses(old)) {
        return Ok(());
    }
    let mut taken = taken(cache, new, old)?;
    refuse_taken(new, &taken)?;
    give_ip(new, &mut taken)?;
    give_ports(new, &mut taken)
}

/// The parts of a Service that addresses depend on.
fn addresses(service: &Value) -> [&Value; 4] {
    let spec = &service["spec"];
    [&spec["clusterIP"], &spec["clusterIPs"], &spec["ports"], &spec["type"]]
}

fn is_complete(service: &Value) -> bool {
    let spec = &service["spec"];
    let has_ip = spec["clusterIP"].as_str().is_some_and(|ip| !ip.is_empty());
    let ports = spec["ports"].as_array().into_iter().flatten();
    has_ip && (!wants_ports(service) || ports.into_iter().all(|port| port["nodePort"].is_i64()))
}

fn wants_ports(service: &Value) -> bool {
    matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"))
        && service["spec"]["allocateLoadBalancerNodePorts"] != false
}

/// The addresses that other Services have or claim; a Service may keep its own.
fn taken(cache: &Cache, service: &Value, old: Option<&Value>) -> Result<Taken, Status> {
    let (mut taken, mut own) = (Taken::default(), Taken::default());
    let claimed = cache.snapshot(&cache.resource(&claims::ips()));
    taken.ips.extend(claimed.iter("", None).map(|claim| claim.name().to_owned()));
    let claimed = cache.snapshot(&cache.resource(&claims::ports()));
    taken.ports.extend(claimed.iter("", None).filter_map(|claim| claim.name().parse::<i64>().ok()));
    let services = cache.snapshot(&cache.resource("/registry/core/services/"));
    for object in services.iter("", None) {
        let is_same = object.namespace() == meta(service, "namespace")
            && object.name() == meta(service, "name");
        if !is_same {
            taken.add(&tree(object.as_slice())?);
        }
    }
    if let Some(old) = old {
        own.add(old);
    }
    taken.ips.retain(|ip| !own.ips.contains(ip));
    taken.ports.retain(|port| !own.ports.contains(port));
    Ok(taken)
}

/// Rejects a requested address that is in use.
fn refuse_taken(service: &Value, taken: &Taken) -> Result<(), Status> {
    let mut errors = Vec::new();
    let first = service["spec"]["clusterIP"].as_str();
    let ips = first.into_iter().chain(claims::ips_of(service).skip(1));
    for ip in ips.filter(|ip| taken.ips.contains(*ip)) {
        let why = "failed to allocate IP: provided IP is already allocated";
        errors.push(FieldError::invalid("spec.clusterIPs", &json!([ip]), why));
    }
    for (at, port) in service["spec"]["ports"].as_array().into_iter().flatten().enumerate() {
        let number = &port["nodePort"];
        if number.as_i64().is_some_and(|number| taken.ports.contains(&number)) {
            let field = format!("spec.ports[{at}].nodePort");
            errors.push(FieldError::invalid(field, number, "provided port is already allocated"));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(invalid("", "Service", meta(service, "name"), &errors))
}

fn give_ip(service: &mut Value, taken: &mut Taken) -> Result<(), Status> {
    let given = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let ip = if given.is_empty() {
        let free = |offset: u32| {
            let ip = Ipv4Addr::from(FIRST_IP + offset).to_string();
            (!taken.ips.contains(&ip)).then_some(ip)
        };
        pick(IP_COUNT, free).ok_or_else(|| exhausted("clusterIP"))?
    } else {
        given
    };
    service["spec"]["clusterIP"] = ip.clone().into();
    if service["spec"]["clusterIPs"].as_array().is_none_or(Vec::is_empty) {
        service["spec"]["clusterIPs"] = json!([ip]);
    }
    taken.ips.insert(ip);
    Ok(())
}

fn give_ports(service: &mut Value, taken: &mut Taken) -> Result<(), Status> {
    if !wants_ports(service) {
        return Ok(());
    }
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_i64().unwrap_or(0) > 0 {
            continue;
        }
        let free = |offset: u32| {
            let number = i64::from(FIRST_PORT + offset);
            (!taken.ports.contains(&number)).then_some(number)
        };
        let number = pick(PORT_COUNT, free).ok_or_else(|| exhausted("nodePort"))?;
        taken.ports.insert(number);
        port["nodePort"] = number.into();
    }
    Ok(())
}

/// The first free one, from a random start.
fn pick<T>(count: u32, free: impl Fn(u32) -> Option<T>) -> Option<T> {
    let start = random::id().as_fields().0 % count;
    (0..count).find_map(|step| free((start + step) % count))
}

fn exhausted(what: &str) -> Status {
    crate::answer::status::internal(format!("failed to allocate a {what}: range is full"))
}
