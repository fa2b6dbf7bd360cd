//! Allocation of the cluster IPs and node ports of Services (S2.16).
//!
//! River: admission → **addresses** → claims → store. The addresses in use are read from the Services
//! and from their claims. If two writes choose the same address at the same time, their claims
//! conflict and one of them is computed again.

use std::collections::HashSet;
use std::net::IpAddr;

use headwater_api::Status;
use headwater_api::status::{FieldError, invalid};
use headwater_cache::Cache;
use headwater_json::{Value, json};

use super::Attempt;
use super::service_ranges::ServiceRanges;
use crate::admission::claims;
use crate::object::{meta, tree};
use crate::random;
use crate::recent::Recent;

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

fn is_service(attempt: &Attempt<'_>) -> bool {
    attempt.kind.plural == "services" && attempt.kind.group.is_empty()
}

/// Where IPv6 is the primary family, a Service that names neither family nor address gets it.
pub(super) fn prefer_primary(attempt: &mut Attempt<'_>, ranges: &ServiceRanges) {
    let primary = ranges.primary().family();
    if primary == "IPv4" || !is_service(attempt) || attempt.old.is_some() {
        return;
    }
    let spec = &attempt.new["spec"];
    let is_open = spec["ipFamilies"].is_null() && !has_text(spec, "clusterIP");
    if spec.is_object() && is_open && spec["type"] != "ExternalName" {
        attempt.new["spec"]["ipFamilies"] = json!([primary]);
        if attempt.new["spec"]["ipFamilyPolicy"].is_null() {
            attempt.new["spec"]["ipFamilyPolicy"] = "SingleStack".into();
        }
    }
}

/// Allocates the missing addresses of a Service; rejects requested ones that are in use or outside
/// the ranges.
pub(super) async fn allocate(
    attempt: &mut Attempt<'_>,
    ranges: &ServiceRanges,
    dry_run: bool,
) -> Result<(), Status> {
    if !is_service(attempt) || attempt.subresource == "status" {
        return Ok(());
    }
    let (cache, new, old) = (attempt.cache, &mut *attempt.new, attempt.old);
    if new["spec"]["type"] == "ExternalName" {
        return Ok(());
    }
    if new["spec"]["clusterIP"] == "None" {
        new["spec"]["clusterIPs"] = json!(["None"]);
    }
    if old.is_some_and(|old| is_complete(new) && addresses(new) == addresses(old)) {
        return Ok(());
    }
    let mut errors = families(new, old, ranges);
    let mut taken = taken(cache, new, old).await?;
    if errors.is_empty() {
        refuse_taken(new, &taken, &mut errors);
        refuse_outside(new, old, ranges, dry_run, &mut errors);
    }
    if !errors.is_empty() {
        return Err(invalid("", "Service", meta(new, "name"), &errors));
    }
    give_ips(new, &mut taken, ranges)?;
    give_ports(new, &mut taken, ranges)?;
    match dry_run {
        true => guess_health_port(new),
        false => give_health_port(new, &mut taken, ranges),
    }
}

/// The parts of a Service that addresses depend on.
fn addresses(service: &Value) -> [&Value; 7] {
    let spec = &service["spec"];
    let names = ["clusterIP", "clusterIPs", "ports", "type", "ipFamilies", "ipFamilyPolicy"];
    let [ip, ips, ports, kind, families, policy] = names.map(|name| &spec[name]);
    [ip, ips, ports, kind, families, policy, &spec[HEALTH_PORT]]
}

fn has_text(spec: &Value, name: &str) -> bool {
    spec[name].as_str().is_some_and(|text| !text.is_empty())
}

fn is_headless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None"
}

fn is_complete(service: &Value) -> bool {
    let spec = &service["spec"];
    let length = |name: &str| spec[name].as_array().map_or(0, Vec::len);
    let has_ips = is_headless(service) || length("clusterIPs") >= length("ipFamilies");
    let ports = spec["ports"].as_array().into_iter().flatten();
    has_text(spec, "clusterIP")
        && has_ips
        && (!needs_health_port(service) || spec[HEALTH_PORT].is_i64())
        && (!wants_ports(service) || ports.into_iter().all(|port| port["nodePort"].is_i64()))
}

/// Settles the address families of a Service by its policy and by the ranges of the cluster.
fn families(service: &mut Value, old: Option<&Value>, ranges: &ServiceRanges) -> Vec<FieldError> {
    let has_selector = !service["spec"]["selector"].is_null();
    // The families of endpoints that others maintain are unknown.
    if is_headless(service) && !has_selector {
        return Vec::new();
    }
    let spec = &mut service["spec"];
    let list = |spec: &Value, name: &str| spec[name].as_array().cloned().unwrap_or_default();
    let (mut families, mut ips) = (list(spec, "ipFamilies"), list(spec, "clusterIPs"));
    let policy = spec["ipFamilyPolicy"].as_str().unwrap_or("SingleStack").to_owned();
    let mut errors = Vec::new();
    let mut refuse = |field: String, value: &Value, why: &str| {
        errors.push(FieldError::invalid(field, value, why));
    };
    // A second family is released when the policy of a Service changes to one.
    let had = old.map(|old| list(&old["spec"], "ipFamilies")).unwrap_or_default();
    if policy == "SingleStack" && families.len() > 1 {
        if had.len() > 1 && old.is_some_and(|old| old["spec"]["ipFamilyPolicy"] != "SingleStack") {
            families.truncate(1);
            ips.truncate(1);
            spec["ipFamilies"] = families.clone().into();
            spec["clusterIPs"] = ips.clone().into();
        } else {
            let why = "must be RequireDualStack or PreferDualStack when multiple 'ipFamilies' are specified";
            refuse("spec.ipFamilyPolicy".into(), &spec["ipFamilyPolicy"], why);
        }
    }
    if policy == "SingleStack" && ips.len() > 1 {
        let why =
            "must be RequireDualStack or PreferDualStack when multiple 'clusterIPs' are specified";
        refuse("spec.ipFamilyPolicy".into(), &spec["ipFamilyPolicy"], why);
    }
    if policy == "RequireDualStack" && !ranges.is_dual() {
        let why = "this cluster is not configured for dual-stack services";
        refuse("spec.ipFamilyPolicy".into(), &spec["ipFamilyPolicy"], why);
    }
    for (index, family) in families.iter().enumerate() {
        let name = family.as_str().unwrap_or_default();
        if ranges.of_family(name).is_none() && !had.contains(family) {
            let why = "not configured on this cluster";
            refuse(format!("spec.ipFamilies[{index}]"), family, why);
        }
        let ip: Option<IpAddr> = ips.get(index).and_then(|ip| ip.as_str()?.parse().ok());
        if ip.is_some_and(|ip| ip.is_ipv6() != (name == "IPv6")) {
            let why = format!("expected an {name} value as indicated by `ipFamilies[{index}]`");
            refuse(format!("spec.clusterIPs[{index}]"), &ips[index], &why);
        }
    }
    let is_wide = matches!(&*policy, "PreferDualStack" | "RequireDualStack");
    if errors.is_empty() && is_wide && ranges.is_dual() && families.len() == 1 {
        let other = if families[0] == "IPv6" { "IPv4" } else { "IPv6" };
        families.push(other.into());
        spec["ipFamilies"] = families.into();
    }
    errors
}

/// Whether it may have node ports.
fn uses_ports(service: &Value) -> bool {
    matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"))
}

/// Whether each of its ports gets a node port.
fn wants_ports(service: &Value) -> bool {
    uses_ports(service) && service["spec"]["allocateLoadBalancerNodePorts"] != false
}

const HEALTH_PORT: &str = "healthCheckNodePort";

/// Whether load balancers ask each node whether it has endpoints.
fn needs_health_port(service: &Value) -> bool {
    let spec = &service["spec"];
    spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local"
}

/// The addresses that other Services have or claim; a Service may keep its own.
async fn taken(cache: &Cache, service: &Value, old: Option<&Value>) -> Result<Taken, Status> {
    let (mut taken, mut own) = (Taken::default(), Taken::default());
    let recent = Recent::of(cache).await?;
    let mut claimed = recent.objects(&claims::ips(), "");
    while let Some(objects) = claimed.next().await? {
        taken.ips.extend(objects.iter().map(|claim| claim.name().to_owned()));
    }
    let mut claimed = recent.objects(&claims::ports(), "");
    while let Some(objects) = claimed.next().await? {
        taken.ports.extend(objects.iter().filter_map(|claim| claim.name().parse::<i64>().ok()));
    }
    let mut services = recent.objects("/registry/core/services/", "");
    while let Some(objects) = services.next().await? {
        for object in objects {
            let is_same = object.namespace() == meta(service, "namespace")
                && object.name() == meta(service, "name");
            if !is_same {
                taken.add(&tree(object.as_slice())?);
            }
        }
    }
    if let Some(old) = old {
        own.add(old);
    }
    taken.ips.retain(|ip| !own.ips.contains(ip));
    taken.ports.retain(|port| !own.ports.contains(port));
    Ok(taken)
}

/// Rejects requested addresses that are in use.
fn refuse_taken(service: &Value, taken: &Taken, errors: &mut Vec<FieldError>) {
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
    let number = &service["spec"][HEALTH_PORT];
    if number.as_i64().is_some_and(|number| taken.ports.contains(&number)) {
        let field = format!("spec.{HEALTH_PORT}");
        errors.push(FieldError::invalid(field, number, "provided port is already allocated"));
    }
}

/// Rejects requested addresses outside the ranges. Those that a Service has already stay, even if the
/// ranges have changed.
fn refuse_outside(
    service: &Value,
    old: Option<&Value>,
    ranges: &ServiceRanges,
    dry_run: bool,
    errors: &mut Vec<FieldError>,
) {
    let mut own = Taken::default();
    if let Some(old) = old {
        own.add(old);
    }
    let first = service["spec"]["clusterIP"].as_str();
    let ips = first.into_iter().chain(claims::ips_of(service).skip(1));
    for ip in ips.filter(|ip| !own.ips.contains(*ip)) {
        let Ok(address) = ip.parse::<IpAddr>() else { continue };
        let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
        let Some(range) = ranges.of_family(family) else { continue };
        if !range.contains(address) {
            let why = format!(
                "failed to allocate IP {ip}: the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}"
            );
            errors.push(FieldError::invalid("spec.clusterIPs", &json!([ip]), &why));
        }
    }
    // As in Kubernetes, a dry run does not look at the range of ports.
    if !uses_ports(service) || dry_run {
        return;
    }
    let (low, high) = ranges.ports();
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().enumerate();
    let listed = ports.map(|(at, port)| (format!("spec.ports[{at}].nodePort"), &port["nodePort"]));
    let health = (format!("spec.{HEALTH_PORT}"), &service["spec"][HEALTH_PORT]);
    for (field, number) in listed.chain([health]) {
        let number = number.as_i64().unwrap_or(0);
        if number != 0 && !(low..=high).contains(&number) && !own.ports.contains(&number) {
            let why = format!(
                "provided port is not in the valid range. The range of valid ports is {low}-{high}"
            );
            errors.push(FieldError::invalid(field, &number.into(), &why));
        }
    }
}

/// Gives an address of each family.
fn give_ips(service: &mut Value, taken: &mut Taken, ranges: &ServiceRanges) -> Result<(), Status> {
    if is_headless(service) {
        return Ok(());
    }
    let spec = &mut service["spec"];
    let families = spec["ipFamilies"].as_array().cloned().unwrap_or_default();
    let mut ips = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
    if ips.is_empty() && has_text(spec, "clusterIP") {
        ips.push(spec["clusterIP"].clone());
    }
    let primary = Value::from(ranges.primary().family());
    let families = if families.is_empty() { vec![primary] } else { families };
    for family in families.iter().skip(ips.len()) {
        let range = ranges.of_family(family.as_str().unwrap_or_default());
        let range = range.unwrap_or_else(|| ranges.primary());
        let free = |index: u32| {
            let ip = range.address(index);
            (!taken.ips.contains(&ip)).then_some(ip)
        };
        let ip = pick(range.count(), free).ok_or_else(|| exhausted("clusterIP"))?;
        taken.ips.insert(ip.clone());
        ips.push(ip.into());
    }
    if let Some(first) = ips.first() {
        spec["clusterIP"] = first.clone();
    }
    spec["clusterIPs"] = ips.into();
    Ok(())
}

fn give_ports(
    service: &mut Value,
    taken: &mut Taken,
    ranges: &ServiceRanges,
) -> Result<(), Status> {
    // Its own ports, which nobody else may have.
    taken.ports.extend(claims::ports_of(service));
    if !wants_ports(service) {
        return Ok(());
    }
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_i64().unwrap_or(0) <= 0 {
            port["nodePort"] = free_port(taken, ranges)?.into();
        }
    }
    Ok(())
}

fn give_health_port(
    service: &mut Value,
    taken: &mut Taken,
    ranges: &ServiceRanges,
) -> Result<(), Status> {
    if needs_health_port(service) && service["spec"][HEALTH_PORT].as_i64().unwrap_or(0) == 0 {
        service["spec"][HEALTH_PORT] = free_port(taken, ranges)?.into();
    }
    Ok(())
}

/// The port that Kubernetes shows in a dry run: the one after the highest, which must be a port.
fn guess_health_port(service: &mut Value) -> Result<(), Status> {
    if !needs_health_port(service) || service["spec"][HEALTH_PORT].as_i64().unwrap_or(0) != 0 {
        return Ok(());
    }
    let port = claims::ports_of(service).max().unwrap_or(DRY_RUN_PORT) + 1;
    if !(1..=65535).contains(&port) {
        let why = "must be between 1 and 65535, inclusive";
        let error = FieldError::invalid(format!("spec.{HEALTH_PORT}"), &port.into(), why);
        return Err(invalid("", "Service", meta(service, "name"), &[error]));
    }
    service["spec"][HEALTH_PORT] = port.into();
    Ok(())
}

/// Before the port that a dry run shows if the Service has no other.
const DRY_RUN_PORT: i64 = 32768;

/// A port that no Service has; now it is taken.
fn free_port(taken: &mut Taken, ranges: &ServiceRanges) -> Result<i64, Status> {
    let (low, high) = ranges.ports();
    let free = |offset: u32| {
        let number = low + i64::from(offset);
        (!taken.ports.contains(&number)).then_some(number)
    };
    let count = (high - low + 1) as u32;
    let number = pick(count, free).ok_or_else(|| exhausted("nodePort"))?;
    taken.ports.insert(number);
    Ok(number)
}

/// The first free one, from a random start.
fn pick<T>(count: u32, free: impl Fn(u32) -> Option<T>) -> Option<T> {
    let start = random::id().as_fields().0 % count;
    (0..count).find_map(|step| free((start + step) % count))
}

fn exhausted(what: &str) -> Status {
    crate::answer::status::internal(format!("failed to allocate a {what}: range is full"))
}
