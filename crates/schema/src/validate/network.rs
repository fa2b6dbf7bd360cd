//! Rules of Services, endpoints, Ingresses and network policies.

use std::collections::BTreeSet;
use std::net::IpAddr;

use headwater_json::Value;

use super::rule::cidr;
use super::{Check, Object, Path, has, list, map, number, objects, shown, shown_text, text};
use headwater_api::name;

pub(super) fn service(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    if list(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        check.required(path.field("ports"), "");
    }
    if headless && matches!(kind, "LoadBalancer" | "NodePort") {
        let why = format!("may not be set to 'None' for {kind} services");
        check.invalid(path.field("clusterIPs").index(0), &"None".into(), &why);
    }
    let outside = text(spec, "externalName");
    if kind == "ExternalName" && !outside.is_empty() {
        let host = outside.strip_suffix('.').unwrap_or(outside);
        check.problems(path.field("externalName"), host, name::subdomain(host));
    }
    if kind != "ExternalName" {
        cluster_ips(check, spec, path);
    }
    service_ports(check, spec, path);
    traffic_policy(check, spec, path);
    source_ranges(check, spec, path);
    let at = path.field("externalIPs");
    for (index, ip) in list(spec, "externalIPs").iter().enumerate() {
        usable_ip(check, ip.as_str().unwrap_or_default(), &at.index(index));
    }
}

/// The sources of a balancer. Their path is spelled as in Kubernetes.
fn source_ranges(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("LoadBalancerSourceRanges");
    let ranges = list(spec, "loadBalancerSourceRanges");
    if ranges.is_empty() {
        return;
    }
    if text(spec, "type") != "LoadBalancer" {
        return check.forbidden(at, "may only be used when `type` is 'LoadBalancer'");
    }
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default();
        check.problems(at.index(index), text, cidr(text));
    }
}

fn cluster_ips(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let (one, all) = (text(spec, "clusterIP"), list(spec, "clusterIPs"));
    let at = path.field("clusterIPs");
    match (one, all.first().and_then(Value::as_str)) {
        ("", Some(_)) => {
            let why = "must be empty when `clusterIP` is not specified";
            check.invalid(at, &all.into(), why);
        }
        ("", None) => {}
        (_, None) => check.required(at, ""),
        (one, Some(first)) if one != first => {
            check.invalid(at, &all.into(), "first value must match `clusterIP`");
        }
        _ => {}
    }
    for (index, ip) in all.iter().enumerate() {
        let ip = ip.as_str().unwrap_or_default();
        if ip == "None" && index == 0 {
            if all.len() > 1 {
                check.invalid(at, &all.into(), "'None' must be the first and only value");
            }
            continue;
        }
        check.problems(at.index(index), ip, name::ip(ip));
    }
    if all.len() > 2 {
        check.invalid(at, &all.into(), "may only hold up to 2 values");
    }
}

fn service_ports(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("ports");
    let several = list(spec, "ports").len() > 1;
    let (mut ports, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in objects(spec, "ports") {
        let port_path = at.index(index);
        if several && text(port, "name").is_empty() {
            check.required(port_path.field("name"), "");
        }
        let (protocol, node_port) = (text(port, "protocol"), number(port, "nodePort"));
        if let Some(node_port) = node_port.filter(|port| *port != 0) {
            let node_path = port_path.field("nodePort");
            if text(spec, "type") == "ClusterIP" {
                check.forbidden(node_path, "may not be used when `type` is 'ClusterIP'");
            }
            if !node_ports.insert((protocol, node_port)) {
                check.duplicate(node_path, &node_port.into());
            }
        }
        if !ports.insert((protocol, number(port, "port"))) {
            let key = headwater_json::json!({"protocol": protocol, "port": shown(port, "port")});
            check.duplicate(port_path, &key);
        }
    }
}

fn traffic_policy(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let kind = text(spec, "type");
    let outside = matches!(kind, "LoadBalancer" | "NodePort")
        || kind == "ClusterIP" && !list(spec, "externalIPs").is_empty();
    if !outside && !text(spec, "externalTrafficPolicy").is_empty() {
        let why = "may only be set for externally-accessible services";
        let value = shown_text(spec, "externalTrafficPolicy");
        check.invalid(path.field("externalTrafficPolicy"), &value, why);
    }
    if outside {
        let at = path.field("externalTrafficPolicy");
        match text(spec, "externalTrafficPolicy") {
            "" => {
                let why = "ExternalTrafficPolicy is required for externally-accessible services";
                check.required(at, why);
            }
            "Cluster" | "Local" => {}
            other => check.not_supported(at, &other.into(), &["Cluster", "Local"]),
        }
    }
    let local = kind == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local";
    if !local && number(spec, "healthCheckNodePort").unwrap_or(0) != 0 {
        let why =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        let value = shown(spec, "healthCheckNodePort");
        check.invalid(path.field("healthCheckNodePort"), &value, why);
    }
}

pub(super) fn endpoint_subset(check: &mut Check<'_>, subset: &Object, path: &Path<'_>) {
    if list(subset, "addresses").is_empty() && list(subset, "notReadyAddresses").is_empty() {
        check.required(path, "must specify `addresses` or `notReadyAddresses`");
    }
    let at = path.field("ports");
    let several = list(subset, "ports").len() > 1;
    for (index, port) in objects(subset, "ports") {
        if several && text(port, "name").is_empty() {
            check.required(at.index(index).field("name"), "");
        }
    }
}

pub(super) fn endpoint_ip(check: &mut Check<'_>, address: &Object, path: &Path<'_>) {
    usable_ip(check, text(address, "ip"), &path.field("ip"));
}

pub(super) fn endpoint_slice(check: &mut Check<'_>, slice: &Object, path: &Path<'_>) {
    let kind = text(slice, "addressType");
    let endpoints = path.field("endpoints");
    for (index, endpoint) in objects(slice, "endpoints") {
        let endpoint_path = endpoints.index(index);
        let addresses = endpoint_path.field("addresses");
        for (index, address) in list(endpoint, "addresses").iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            let at = addresses.index(index);
            match kind {
                "FQDN" => check.problems(at, address, name::subdomain(address)),
                "IPv4" | "IPv6" => address_of_family(check, kind, address, &addresses, &at),
                _ => {}
            }
        }
    }
}

fn address_of_family(
    check: &mut Check<'_>,
    family: &str,
    address: &str,
    list: &Path<'_>,
    at: &Path<'_>,
) {
    let problems = name::ip(address);
    if !problems.is_empty() {
        return check.problems(at, address, problems);
    }
    if address.contains(':') != (family == "IPv6") {
        check.invalid(list, &address.into(), &format!("must be an {family} address"));
    }
    usable_ip(check, address, at);
}

/// Checks that an address is reachable from other machines.
fn usable_ip(check: &mut Check<'_>, text: &str, at: &Path<'_>) {
    let Ok(ip) = text.parse::<IpAddr>() else {
        if text.is_empty() {
            check.invalid(at, &"".into(), "must be a valid IP address");
        }
        return;
    };
    if ip.is_unspecified() {
        check.invalid(at, &text.into(), &format!("may not be unspecified ({text})"));
    }
    if ip.is_loopback() {
        let why = "may not be in the loopback range (127.0.0.0/8, ::1/128)";
        check.invalid(at, &text.into(), why);
    }
    let (unicast, multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    if unicast {
        let why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)";
        check.invalid(at, &text.into(), why);
    }
    if multicast {
        let why = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
        check.invalid(at, &text.into(), why);
    }
}

/// The zones and nodes that an endpoint should serve, each once.
pub(super) fn zone_hints(check: &mut Check<'_>, hints: &Object, path: &Path<'_>) {
    const HINTS_MAX: usize = 8;
    for list_name in ["forZones", "forNodes"] {
        let at = path.field(list_name);
        let count = list(hints, list_name).len();
        if count > HINTS_MAX {
            return check.too_many(at, count, HINTS_MAX);
        }
        let mut seen = BTreeSet::new();
        for (index, hint) in objects(hints, list_name) {
            let name = text(hint, "name");
            let place = at.index(index);
            if !seen.insert(name) {
                check.duplicate(place.field("name"), &name.into());
            }
            let problems = match list_name {
                "forZones" => name::label_value(name),
                _ => name::subdomain(name),
            };
            check.problems(place.field("name"), name, problems);
        }
    }
}

/// The ranges of a ServiceCIDR: one of each family at most.
pub(super) fn service_cidr(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let ranges = list(spec, "cidrs");
    let at = path.field("cidrs");
    if ranges.is_empty() {
        return check.required(at, "at least one CIDR required");
    }
    if ranges.len() > 2 {
        return check.invalid(at, &ranges.into(), "may only hold up to 2 values");
    }
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default();
        check.problems(at.index(index), text, canonical_cidr(text));
    }
    let families: Vec<Option<bool>> = ranges
        .iter()
        .map(|range| network(range.as_str().unwrap_or_default()).map(|(.., is_v6)| is_v6))
        .collect();
    if let [Some(one), Some(other)] = families.as_slice()
        && one == other
    {
        let why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        check.invalid(at, &ranges.into(), why);
    }
}

/// A range in the one form that Kubernetes writes: no host bits, the shortest spelling.
fn canonical_cidr(text: &str) -> name::Problems {
    let problems = cidr(text);
    let Some((bits, length, is_v6)) = network(text).filter(|_| problems.is_empty()) else {
        return problems;
    };
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    let kept = bits & mask;
    let spelled = match is_v6 {
        true => format!("{}/{length}", std::net::Ipv6Addr::from(kept)),
        false => format!("{}/{length}", std::net::Ipv4Addr::from((kept >> 96) as u32)),
    };
    if kept != bits {
        return vec!["must not have bits set beyond the prefix length".into()];
    }
    if spelled != text {
        return vec![format!("must be in canonical form (\"{spelled}\")")];
    }
    Vec::new()
}

/// The ranges of a ServiceCIDR stay; a second one may be added.
pub(super) fn service_cidr_update(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let (now, before) = (list(spec, "cidrs"), list(old, "cidrs"));
    let why = "field is immutable";
    let mut kept = |count: usize| {
        for index in (0..count).filter(|index| now[*index] != before[*index]) {
            check.invalid(format!("spec.cidrs[{index}]"), &now[index], why);
        }
    };
    match (before.len(), now.len()) {
        (old, new) if old == new => kept(new),
        (1, 2) => {
            kept(1);
            let root = Path::Root;
            service_cidr(check, spec, &root.field("spec"));
        }
        _ => check.invalid("spec.cidrs", &now.into(), why),
    }
}

pub(super) fn ingress(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    if let Some(backend) = map(spec, "defaultBackend") {
        ingress_backend(check, backend, &path.field("defaultBackend"));
    }
    if list(spec, "rules").is_empty() && !has(spec, "defaultBackend") {
        let why = "either `defaultBackend` or `rules` must be specified";
        check.invalid(path, &shown(spec, "rules"), why);
    }
    let tls = path.field("tls");
    for (index, entry) in objects(spec, "tls") {
        let entry_path = tls.index(index);
        let hosts = entry_path.field("hosts");
        for (index, host) in list(entry, "hosts").iter().enumerate() {
            let host = host.as_str().unwrap_or_default();
            check.problems(hosts.index(index), host, wildcard_host(host));
        }
    }
}

fn wildcard_host(host: &str) -> Vec<String> {
    if !host.contains('*') {
        return name::subdomain(host);
    }
    match host.strip_prefix("*.") {
        Some(rest) if name::subdomain(rest).is_empty() => Vec::new(),
        _ => vec![
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".into(),
        ],
    }
}

pub(super) fn ingress_host(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    let host = text(rule, "host");
    if host.is_empty() {
        return;
    }
    let at = path.field("host");
    if host.parse::<IpAddr>().is_ok() {
        check.invalid(at, &host.into(), "must be a DNS name, not an IP address");
    }
    check.problems(at, host, wildcard_host(host));
}

pub(super) fn ingress_path(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    if !has(rule, "pathType") {
        return check.required(path.field("pathType"), "pathType must be specified");
    }
    let (kind, value) = (text(rule, "pathType"), text(rule, "path"));
    if !matches!(kind, "Exact" | "Prefix" | "ImplementationSpecific") {
        let supported = ["Exact", "ImplementationSpecific", "Prefix"];
        check.not_supported(path.field("pathType"), &kind.into(), &supported);
    }
    let none = Object::new();
    ingress_backend(check, map(rule, "backend").unwrap_or(&none), &path.field("backend"));
    let strict = matches!(kind, "Exact" | "Prefix");
    let at = path.field("path");
    if !value.starts_with('/') && (strict || kind == "ImplementationSpecific" && !value.is_empty())
    {
        check.invalid(at, &value.into(), "must be an absolute path");
    }
    if strict {
        for part in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|part| value.contains(**part))
        {
            check.invalid(at, &value.into(), &format!("must not contain '{part}'"));
        }
        for end in ["/..", "/."].iter().filter(|end| value.ends_with(**end)) {
            check.invalid(at, &value.into(), &format!("cannot end with '{end}'"));
        }
    }
}

fn ingress_backend(check: &mut Check<'_>, backend: &Object, path: &Path<'_>) {
    let empty = Value::from("");
    match (map(backend, "service"), has(backend, "resource")) {
        (Some(_), true) => {
            check.invalid(path, &empty, "cannot set both resource and service backends");
        }
        (None, true) => resource_backend(check, backend, &path.field("resource")),
        (None, false) => check.invalid(path, &empty, "resource or service backend is required"),
        (Some(service), false) => {
            let service_path = path.field("service");
            match text(service, "name") {
                "" => check.required(service_path.field("name"), ""),
                name => check.problems(service_path.field("name"), name, name::label(name)),
            }
            service_port(check, service, path);
        }
    }
}

fn resource_backend(check: &mut Check<'_>, backend: &Object, path: &Path<'_>) {
    let Some(resource) = map(backend, "resource") else { return };
    if let Some(group) = resource.get("apiGroup").and_then(Value::as_str) {
        check.problems(path.field("apiGroup"), group, name::subdomain(group));
    }
    for name in ["kind", "name"] {
        let value = text(resource, name);
        match value {
            "" => check.required(path.field(name), ""),
            _ => {
                let problems = name::path_segment(value, name::Part::Whole);
                check.problems(path.field(name), value, problems);
            }
        }
    }
}

fn service_port(check: &mut Check<'_>, service: &Object, path: &Path<'_>) {
    let none = Object::new();
    let port = map(service, "port").unwrap_or(&none);
    let service_path = path.field("service");
    let at = service_path.field("port");
    let number = number(port, "number").unwrap_or(0);
    match (text(port, "name"), number) {
        ("", 0) => check.required(path, "port name or number is required"),
        ("", 1..=65535) => {}
        ("", number) => {
            let why = "must be between 1 and 65535, inclusive";
            check.invalid(at.field("number"), &number.into(), why);
        }
        (name, 0) => check.problems(at.field("name"), name, name::port_name(name)),
        _ => check.invalid(path, &"".into(), "cannot set both port name & port number"),
    }
}

pub(super) fn network_policy(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    if list(spec, "policyTypes").len() > 2 {
        let why = "may not specify more than two policyTypes";
        check.invalid(path.field("policyTypes"), &shown(spec, "policyTypes"), why);
    }
}

pub(super) fn network_peer(check: &mut Check<'_>, peer: &Object, path: &Path<'_>) {
    let kinds = ["podSelector", "namespaceSelector", "ipBlock"];
    match kinds.iter().filter(|name| has(peer, name)).count() {
        0 => check.required(path, "must specify a peer"),
        1 => {}
        _ if has(peer, "ipBlock") => {
            check.forbidden(path, "may not specify both ipBlock and another peer");
        }
        _ => {}
    }
}

pub(super) fn network_port(check: &mut Check<'_>, port: &Object, path: &Path<'_>) {
    let Some(end) = number(port, "endPort") else { return };
    let at = path.field("endPort");
    match port.get("port") {
        None | Some(Value::Null) => {
            check.invalid(at, &end.into(), "may not be specified when `port` is not specified");
        }
        Some(Value::String(_)) => {
            check.invalid(at, &end.into(), "may not be specified when `port` is non-numeric");
        }
        Some(first) if first.as_i64().is_some_and(|first| end < first) => {
            check.invalid(at, first, "must be greater than or equal to `port`");
        }
        Some(_) => {}
    }
}

/// Checks that exceptions are within the block.
pub(super) fn ip_block(check: &mut Check<'_>, block: &Object, path: &Path<'_>) {
    let Some(whole) = network(text(block, "cidr")) else { return };
    let at = path.field("except");
    for (index, value) in list(block, "except").iter().enumerate() {
        let Some(part) = network(value.as_str().unwrap_or_default()) else { continue };
        if !is_strictly_within(part, whole) {
            check.invalid(at.index(index), value, "must be a strict subset of `cidr`");
        }
    }
}

/// Address as bits from the left, bits of the mask, whether it is IPv6.
fn network(cidr: &str) -> Option<(u128, u32, bool)> {
    let (address, bits) = cidr.split_once('/')?;
    let bits: u32 = bits.parse().ok()?;
    match address.parse().ok()? {
        IpAddr::V4(ip) => Some((u128::from(u32::from(ip)) << 96, bits.min(32), false)),
        IpAddr::V6(ip) => Some((u128::from(ip), bits.min(128), true)),
    }
}

fn is_strictly_within(part: (u128, u32, bool), whole: (u128, u32, bool)) -> bool {
    let shift = 128 - whole.1;
    let prefix = |address: u128| address.checked_shr(shift).unwrap_or(0);
    part.2 == whole.2 && part.1 > whole.1 && prefix(part.0) == prefix(whole.0)
}

/// The immutable fields of a Service.
pub(super) fn service_update(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let external = |spec: &Object| text(spec, "type") == "ExternalName";
    let headless = |spec: &Object| text(spec, "clusterIP") == "None";
    if external(spec) || external(old) || headless(spec) && headless(old) {
        return;
    }
    let (now, before) = (list(spec, "clusterIPs"), list(old, "clusterIPs"));
    let field = "spec.clusterIPs[0]";
    match (before.first(), now.first()) {
        (Some(_), None) => {
            check.invalid(field, &now.into(), "primary clusterIP can not be unset");
        }
        (Some(before), Some(first)) if before != first => {
            check.invalid(field, &now.into(), "may not change once set");
        }
        _ => {}
    }
    let balanced = |spec: &Object| text(spec, "type") == "LoadBalancer";
    if balanced(spec)
        && balanced(old)
        && spec.get("loadBalancerClass") != old.get("loadBalancerClass")
    {
        let value = shown(spec, "loadBalancerClass");
        check.invalid("spec.loadBalancerClass", &value, "may not change once set");
    }
}
