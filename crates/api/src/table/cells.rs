//! How cells are computed from objects. The functions are named in `columns.txt`; the argument of
//! most is a path.

mod event;
mod pod;
mod scale;

use std::collections::BTreeSet;

use headwater_json::{Map, Value};
use jiff::Timestamp;

use super::age::{human_duration, seconds_between, since};
use super::{Source, find, list, text};
use crate::selector::StructuredSelector;

use event::*;
pub(super) use pod::row_conditions;
use pod::*;
use scale::scale_metrics;

/// Computes a cell.
pub(super) type Compute = fn(&Source<'_>) -> Value;

macro_rules! by_name {
    ($($cell:ident)*) => { &[$((stringify!($cell), $cell)),*] }
}

/// Every cell that a column can name.
pub(super) const ALL: &[(&str, Compute)] = by_name! {
    string number flag enabled count age strings labels selector reference kind_and_name
    containers ready_of_wanted controller phase
    pod_ready pod_status pod_restarts pod_ip readiness_gates
    cluster_ip external_ip service_ports endpoints slice_ports slice_endpoints
    ingress_hosts ingress_parameters ingress_ports load_balancer address_parent
    node_status node_roles node_address node_kernel component_status component
    event_first_seen event_last_seen event_count event_object event_subobject event_source
    event_message
    access_modes claim_access_modes claim_capacity volume_class default_class claim_state quota
    job_status job_completions job_duration suspended scale_metrics
    token_requests subjects service_accounts parameter_kind parameter_reference
    requested_duration request_condition dangling limited api_available
};

const NONE: &str = "<none>";
const UNSET: &str = "<unset>";
const UNKNOWN: &str = "<unknown>";

/// The text, or a default if it is empty.
fn or(text: String, absent: &str) -> String {
    if text.is_empty() { absent.to_owned() } else { text }
}

fn join<'a>(texts: impl Iterator<Item = &'a str>, by: &str) -> String {
    texts.collect::<Vec<_>>().join(by)
}

/// The first `shown` texts, and how many more there are.
fn first_few(all: &[String], shown: usize) -> String {
    match all.len().checked_sub(shown) {
        Some(more) if more > 0 => format!("{} + {more} more...", all[..shown].join(",")),
        _ => or(all.join(","), UNSET),
    }
}

/// The condition of a type, among the conditions at a path.
fn condition<'a>(source: &Source<'a>, path: &str, kind: &str) -> Option<&'a Value> {
    source.list(path).iter().find(|condition| text(condition, "type") == kind)
}

fn is_true(source: &Source<'_>, kind: &str) -> bool {
    condition(source, "status.conditions", kind).is_some_and(|c| text(c, "status") == "True")
}

/// A quantity or number as text.
fn amount(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn string(source: &Source<'_>) -> Value {
    source.text_or(source.argument, "").into()
}

fn number(source: &Source<'_>) -> Value {
    source.number(source.argument).into()
}

/// A boolean; false if it is absent.
fn flag(source: &Source<'_>) -> Value {
    (source.at(source.argument) == Some(&Value::Bool(true))).into()
}

/// A boolean; true if it is absent.
fn enabled(source: &Source<'_>) -> Value {
    (source.at(source.argument) != Some(&Value::Bool(false))).into()
}

/// The number of members or elements at one or more paths.
fn count(source: &Source<'_>) -> Value {
    source.argument.split(',').map(|path| source.count(path)).sum::<usize>().into()
}

/// The time since a timestamp.
fn age(source: &Source<'_>) -> Value {
    match source.text(source.argument) {
        "" => "".into(),
        time => since(time, source.now).into(),
    }
}

/// The strings of a list.
fn strings(source: &Source<'_>) -> Value {
    join(source.list(source.argument).iter().filter_map(Value::as_str), ",").into()
}

fn labels(source: &Source<'_>) -> Value {
    let empty = Map::new();
    let members = source.at(source.argument).and_then(Value::as_object).unwrap_or(&empty);
    let pairs: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.join(",").into()
}

/// A structured selector as text.
fn selector_text(value: Option<&Value>) -> String {
    let Some(members) = value.and_then(Value::as_object) else { return String::new() };
    StructuredSelector::of(members)
        .map_or_else(|_| "<error>".to_owned(), |selector| selector.to_string())
}

fn selector(source: &Source<'_>) -> Value {
    selector_text(source.at(source.argument)).into()
}

/// The namespace and name of a reference, if there is one.
fn reference(source: &Source<'_>) -> Value {
    match source.at(source.argument) {
        Some(to) => format!("{}/{}", text(to, "namespace"), text(to, "name")).into(),
        None => "".into(),
    }
}

fn kind_and_name(source: &Source<'_>) -> Value {
    let part = |name| source.at(source.argument).map_or("", |to| text(to, name));
    format!("{}/{}", part("kind"), part("name")).into()
}

/// A field of each container of a template, at the path of the kind.
fn containers(source: &Source<'_>) -> Value {
    const PLACES: [&str; 3] = ["spec.template", "spec.jobTemplate.spec.template", "template"];
    let template = PLACES.iter().find_map(|place| source.at(place)).unwrap_or(&Value::Null);
    let containers = list(template, "spec.containers").iter();
    join(containers.map(|container| text(container, source.argument)), ",").into()
}

fn ready_of_wanted(source: &Source<'_>) -> Value {
    let (ready, wanted) = (source.number("status.readyReplicas"), source.number("spec.replicas"));
    format!("{ready}/{wanted}").into()
}

/// The phase, or that the object is being deleted.
fn phase(source: &Source<'_>) -> Value {
    if source.has("metadata.deletionTimestamp") {
        return "Terminating".into();
    }
    source.text("status.phase").into()
}

fn short_modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.iter().any(|found| found == mode);
    join(SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short), ",")
}

fn access_modes(source: &Source<'_>) -> Value {
    short_modes(source.list(source.argument)).into()
}

fn claim_access_modes(source: &Source<'_>) -> Value {
    match source.text("spec.volumeName") {
        "" => "".into(),
        _ => short_modes(source.list("status.accessModes")).into(),
    }
}

fn claim_capacity(source: &Source<'_>) -> Value {
    match source.text("spec.volumeName") {
        "" => "".into(),
        _ => amount(source.at("status.capacity.storage")).unwrap_or("0".into()).into(),
    }
}

fn annotation<'a>(source: &Source<'a>, key: &str) -> &'a str {
    let annotations = source.at("metadata.annotations");
    annotations.and_then(|all| all.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn volume_class(source: &Source<'_>) -> Value {
    match annotation(source, "volume.beta.kubernetes.io/storage-class") {
        "" => source.text("spec.storageClassName").into(),
        class => class.into(),
    }
}

/// The name, marked if an annotation of one of some domains makes the class the default.
fn default_class(source: &Source<'_>) -> Value {
    let is_default =
        |domain: &str| annotation(source, &format!("{domain}/is-default-class")) == "true";
    let name = source.text("metadata.name");
    match source.argument.split(',').any(is_default) {
        true => format!("{name} (default)").into(),
        false => name.into(),
    }
}

fn ingress_parameters(source: &Source<'_>) -> Value {
    let Some(parameters) = source.at("spec.parameters") else { return NONE.into() };
    let group = match text(parameters, "apiGroup") {
        "" => String::new(),
        group => format!(".{group}"),
    };
    format!("{}{group}/{}", text(parameters, "kind"), text(parameters, "name")).into()
}

fn ingress_hosts(source: &Source<'_>) -> Value {
    let rules = source.list("spec.rules");
    let hosts: Vec<&str> =
        rules.iter().map(|rule| text(rule, "host")).filter(|host| !host.is_empty()).collect();
    let shown = &hosts[..hosts.len().min(3)];
    if shown.is_empty() {
        return "*".into();
    }
    if shown.len() == 3 && rules.len() > 3 {
        return format!("{} + {} more...", shown.join(","), rules.len() - 3).into();
    }
    shown.join(",").into()
}

fn ingress_ports(source: &Source<'_>) -> Value {
    if source.list("spec.tls").is_empty() { "80".into() } else { "80, 443".into() }
}

fn load_balancer_addresses(source: &Source<'_>) -> String {
    let addresses: BTreeSet<&str> = source
        .list("status.loadBalancer.ingress")
        .iter()
        .map(|ingress| match text(ingress, "ip") {
            "" => text(ingress, "hostname"),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .collect();
    join(addresses.into_iter(), ",")
}

fn load_balancer(source: &Source<'_>) -> Value {
    load_balancer_addresses(source).into()
}

fn cluster_ip(source: &Source<'_>) -> Value {
    match source.list("spec.clusterIPs").first().and_then(Value::as_str) {
        Some(ip) => ip.into(),
        None => source.text_or("spec.clusterIP", NONE).into(),
    }
}

fn external_ip(source: &Source<'_>) -> Value {
    let external = join(source.list("spec.externalIPs").iter().filter_map(Value::as_str), ",");
    match source.text("spec.type") {
        "ClusterIP" | "NodePort" => or(external, NONE).into(),
        "LoadBalancer" => {
            let balancer = load_balancer_addresses(source);
            let both = [balancer, external];
            let both = join(both.iter().map(String::as_str).filter(|text| !text.is_empty()), ",");
            or(both, "<pending>").into()
        }
        "ExternalName" => source.text("spec.externalName").into(),
        _ => UNKNOWN.into(),
    }
}

fn service_ports(source: &Source<'_>) -> Value {
    let number = |port: &Value, name| port.get(name).and_then(Value::as_i64).unwrap_or(0);
    let ports: Vec<String> = source
        .list("spec.ports")
        .iter()
        .map(|port| match number(port, "nodePort") {
            0 => format!("{}/{}", number(port, "port"), text(port, "protocol")),
            node => format!("{}:{node}/{}", number(port, "port"), text(port, "protocol")),
        })
        .collect();
    ports.join(",").into()
}

fn endpoints(source: &Source<'_>) -> Value {
    let mut all = Vec::new();
    for subset in source.list("subsets") {
        let addresses = list(subset, "addresses").iter().map(|address| text(address, "ip"));
        let ports = list(subset, "ports");
        if ports.is_empty() {
            all.extend(addresses.map(str::to_owned));
            continue;
        }
        for port in ports {
            let port = amount(port.get("port")).unwrap_or_default();
            all.extend(addresses.clone().map(|ip| host_port(ip, &port)));
        }
    }
    if source.list("subsets").is_empty() {
        return NONE.into();
    }
    match all.len() {
        0 => "".into(),
        _ => first_few(&all, 3).into(),
    }
}

fn host_port(ip: &str, port: &str) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn slice_ports(source: &Source<'_>) -> Value {
    let ports: Vec<String> = source
        .list("ports")
        .iter()
        .map(|port| match amount(port.get("port")) {
            Some(number) => number,
            None => or(text(port, "name").to_owned(), "*"),
        })
        .collect();
    first_few(&ports, 3).into()
}

fn slice_endpoints(source: &Source<'_>) -> Value {
    let addresses: Vec<String> = source
        .list("endpoints")
        .iter()
        .flat_map(|endpoint| list(endpoint, "addresses"))
        .filter_map(|address| address.as_str().map(str::to_owned))
        .collect();
    first_few(&addresses, 3).into()
}

fn address_parent(source: &Source<'_>) -> Value {
    let Some(parent) = source.at("spec.parentRef") else { return NONE.into() };
    let mut name = text(parent, "resource").to_lowercase();
    for (mark, part) in [('.', "group"), ('/', "namespace"), ('/', "name")] {
        match text(parent, part) {
            "" => {}
            part => name.push_str(&format!("{mark}{part}")),
        }
    }
    name.into()
}

fn node_status(source: &Source<'_>) -> Value {
    let ready = match condition(source, "status.conditions", "Ready") {
        Some(ready) if text(ready, "status") == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    match source.at("spec.unschedulable") {
        Some(Value::Bool(true)) => format!("{ready},SchedulingDisabled").into(),
        _ => ready.into(),
    }
}

fn node_roles(source: &Source<'_>) -> Value {
    let empty = Map::new();
    let labels = source.at("metadata.labels").and_then(Value::as_object).unwrap_or(&empty);
    let roles: BTreeSet<&str> = labels
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    join(roles.into_iter(), ",").into()
}

/// The address of a type.
fn node_address(source: &Source<'_>) -> Value {
    let addresses = source.list("status.addresses");
    let found = addresses.iter().find(|address| text(address, "type") == source.argument);
    found.map_or(NONE, |address| text(address, "address")).into()
}

fn node_kernel(source: &Source<'_>) -> Value {
    let kernel = source.text_or("status.nodeInfo.kernelVersion", UNKNOWN);
    match source.text("status.nodeInfo.architecture") {
        "" => kernel.into(),
        architecture => format!("{kernel} ({architecture})").into(),
    }
}

fn component_status(source: &Source<'_>) -> Value {
    match condition(source, "conditions", "Healthy") {
        Some(healthy) if text(healthy, "status") == "True" => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    }
    .into()
}

fn component(source: &Source<'_>) -> Value {
    let healthy = condition(source, "conditions", "Healthy");
    healthy.map_or("", |healthy| text(healthy, source.argument)).into()
}

/// The use of `limits`, or of what may be requested.
fn quota(source: &Source<'_>) -> Value {
    let limits = source.argument == "limits";
    let empty = Map::new();
    let hard = source.at("status.hard").and_then(Value::as_object).unwrap_or(&empty);
    let used = source.at("status.used");
    let parts: Vec<String> = hard
        .iter()
        .filter(|(resource, _)| resource.starts_with("limits.") == limits)
        .map(|(resource, hard)| {
            let used = amount(used.and_then(|used| used.get(resource)));
            let hard = amount(Some(hard));
            format!("{resource}: {}/{}", used.unwrap_or("0".into()), hard.unwrap_or("0".into()))
        })
        .collect();
    parts.join(", ").into()
}

fn controller(source: &Source<'_>) -> Value {
    let owners = source.list("metadata.ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner.get("controller") == Some(&true.into()))
    else {
        return NONE.into();
    };
    let kind = text(owner, "kind").to_lowercase();
    let name = text(owner, "name");
    match text(owner, "apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{}/{name}", group.to_lowercase()).into(),
        None => format!("{kind}/{name}").into(),
    }
}

fn job_status(source: &Source<'_>) -> Value {
    let first = |kinds: &[&'static str]| kinds.iter().copied().find(|kind| is_true(source, kind));
    first(&["Complete", "Failed"])
        .or_else(|| source.has("metadata.deletionTimestamp").then_some("Terminating"))
        .or_else(|| first(&["Suspended", "FailureTarget", "SuccessCriteriaMet"]))
        .unwrap_or("Running")
        .into()
}

fn job_completions(source: &Source<'_>) -> Value {
    let succeeded = source.number("status.succeeded");
    if source.has("spec.completions") {
        return format!("{succeeded}/{}", source.number("spec.completions")).into();
    }
    match source.number("spec.parallelism") {
        ..=1 => format!("{succeeded}/1").into(),
        parallel => format!("{succeeded}/1 of {parallel}").into(),
    }
}

fn job_duration(source: &Source<'_>) -> Value {
    let Ok(start) = source.text("status.startTime").parse::<Timestamp>() else {
        return "".into();
    };
    let end = source.text("status.completionTime").parse().unwrap_or(source.now);
    human_duration(seconds_between(start, end)).into()
}

fn suspended(source: &Source<'_>) -> Value {
    match source.at("spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    }
    .into()
}

fn token_requests(source: &Source<'_>) -> Value {
    if !source.has("spec.tokenRequests") {
        return UNSET.into();
    }
    let requests = source.list("spec.tokenRequests");
    join(requests.iter().map(|request| text(request, "audience")), ",").into()
}

fn subjects_of<'a>(source: &Source<'a>, kind: &str) -> impl Iterator<Item = &'a Value> {
    source.list("subjects").iter().filter(move |subject| text(subject, "kind") == kind)
}

/// The names of the subjects of a kind.
fn subjects(source: &Source<'_>) -> Value {
    join(subjects_of(source, source.argument).map(|subject| text(subject, "name")), ", ").into()
}

fn service_accounts(source: &Source<'_>) -> Value {
    let accounts: Vec<String> = subjects_of(source, "ServiceAccount")
        .map(|subject| format!("{}/{}", text(subject, "namespace"), text(subject, "name")))
        .collect();
    accounts.join(", ").into()
}

fn parameter_kind(source: &Source<'_>) -> Value {
    match source.at("spec.paramKind") {
        Some(kind) => format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")).into(),
        None => UNSET.into(),
    }
}

fn parameter_reference(source: &Source<'_>) -> Value {
    let Some(reference) = source.at("spec.paramRef") else { return UNSET.into() };
    match (text(reference, "namespace"), text(reference, "name")) {
        (_, "") => or(selector_text(reference.get("selector")), NONE).into(),
        ("", name) => format!("*/{name}").into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}

fn requested_duration(source: &Source<'_>) -> Value {
    match source.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => human_duration(seconds).into(),
        None => NONE.into(),
    }
}

fn request_condition(source: &Source<'_>) -> Value {
    let has = |kind| condition(source, "status.conditions", kind).is_some();
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !source.text("status.certificate").is_empty() {
        status.push_str(",Issued");
    }
    status.into()
}

fn dangling(source: &Source<'_>) -> Value {
    condition(source, "status.conditions", "Dangling").map_or("?", |c| text(c, "status")).into()
}

/// A field of the limits of a priority level.
fn limited(source: &Source<'_>) -> Value {
    let limited = source.at("spec.limited");
    limited.and_then(|limited| find(limited, source.argument)).cloned().unwrap_or(NONE.into())
}

fn api_available(source: &Source<'_>) -> Value {
    match condition(source, "status.conditions", "Available") {
        None => "Unknown".into(),
        Some(c) if text(c, "status") == "True" => "True".into(),
        Some(c) => format!("{} ({})", text(c, "status"), text(c, "reason")).into(),
    }
}

fn claim_state(source: &Source<'_>) -> Value {
    let deleting = source.has("metadata.deletionTimestamp");
    let mut states = Vec::new();
    if deleting {
        states.push("deleted");
    }
    if source.has("status.allocation") {
        states.push("allocated");
        if source.count("status.reservedFor") > 0 {
            states.push("reserved");
        }
    } else if !deleting {
        states.push("pending");
    }
    states.join(",").into()
}
