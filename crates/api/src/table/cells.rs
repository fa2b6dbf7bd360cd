//! Cells that need more than a lookup.

mod event;
mod pod;
mod scale;

use std::collections::BTreeSet;

use headwater_json::{Map, Value};
use jiff::Timestamp;

use super::age::{human_duration, seconds_between};
use super::{Source, find, list, text};
use crate::selector::StructuredSelector;

pub(super) use event::*;
pub(super) use pod::*;
pub(super) use scale::*;

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

fn labels(members: Option<&Value>) -> String {
    let empty = Map::new();
    let members = members.and_then(Value::as_object).unwrap_or(&empty);
    let pairs: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    or(pairs.join(","), NONE)
}

/// A structured selector as text.
fn selector(value: Option<&Value>) -> String {
    let Some(value) = value else { return NONE.to_owned() };
    let Some(members) = value.as_object() else { return NONE.to_owned() };
    StructuredSelector::of(members)
        .map_or_else(|_| "<error>".to_owned(), |selector| or(selector.to_string(), NONE))
}

pub(in crate::table) fn label_selector(source: &Source<'_>) -> Value {
    selector(source.at("spec.selector")).into()
}

pub(in crate::table) fn job_template_selector(source: &Source<'_>) -> Value {
    selector(source.at("spec.jobTemplate.spec.selector")).into()
}

pub(in crate::table) fn policy_pod_selector(source: &Source<'_>) -> Value {
    selector(source.at("spec.podSelector")).into()
}

pub(in crate::table) fn plain_selector(source: &Source<'_>) -> Value {
    labels(source.at("spec.selector")).into()
}

pub(in crate::table) fn node_selector(source: &Source<'_>) -> Value {
    labels(source.at("spec.template.spec.nodeSelector")).into()
}

pub(in crate::table) fn template_labels(source: &Source<'_>) -> Value {
    labels(source.at("template.metadata.labels")).into()
}

/// The containers of a template, at the path of the kind.
fn containers<'a>(source: &Source<'a>) -> &'a [Value] {
    const PLACES: [&str; 3] = ["spec.template", "spec.jobTemplate.spec.template", "template"];
    PLACES
        .iter()
        .find_map(|place| source.at(place))
        .map(|template| list(template, "spec.containers"))
        .unwrap_or_default()
}

pub(in crate::table) fn container_names(source: &Source<'_>) -> Value {
    join(containers(source).iter().map(|container| text(container, "name")), ",").into()
}

pub(in crate::table) fn container_images(source: &Source<'_>) -> Value {
    join(containers(source).iter().map(|container| text(container, "image")), ",").into()
}

pub(in crate::table) fn ready_of_wanted(source: &Source<'_>) -> Value {
    let (ready, wanted) = (source.number("status.readyReplicas"), source.number("spec.replicas"));
    format!("{ready}/{wanted}").into()
}

pub(in crate::table) fn config_map_data(source: &Source<'_>) -> Value {
    (source.count("data") + source.count("binaryData")).into()
}

/// The phase, or that the object is being deleted.
pub(in crate::table) fn phase(source: &Source<'_>) -> Value {
    if source.has("metadata.deletionTimestamp") {
        return "Terminating".into();
    }
    source.text("status.phase").into()
}

fn access_modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.iter().any(|found| found == mode);
    join(SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short), ",")
}

pub(in crate::table) fn spec_access_modes(source: &Source<'_>) -> Value {
    access_modes(source.list("spec.accessModes")).into()
}

pub(in crate::table) fn claim_access_modes(source: &Source<'_>) -> Value {
    match source.text("spec.volumeName") {
        "" => "".into(),
        _ => access_modes(source.list("status.accessModes")).into(),
    }
}

pub(in crate::table) fn claim_capacity(source: &Source<'_>) -> Value {
    match source.text("spec.volumeName") {
        "" => "".into(),
        _ => amount(source.at("status.capacity.storage")).unwrap_or("0".into()).into(),
    }
}

pub(in crate::table) fn volume_claim(source: &Source<'_>) -> Value {
    match source.at("spec.claimRef") {
        Some(claim) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")).into(),
        None => "".into(),
    }
}

fn annotation<'a>(source: &Source<'a>, key: &str) -> &'a str {
    let annotations = source.at("metadata.annotations");
    annotations.and_then(|all| all.get(key)).and_then(Value::as_str).unwrap_or_default()
}

pub(in crate::table) fn volume_class(source: &Source<'_>) -> Value {
    match annotation(source, "volume.beta.kubernetes.io/storage-class") {
        "" => source.text("spec.storageClassName").into(),
        class => class.into(),
    }
}

fn default_marked(source: &Source<'_>, annotations: &[&str]) -> Value {
    let default = annotations.iter().any(|key| annotation(source, key) == "true");
    let name = source.text("metadata.name");
    if default { format!("{name} (default)").into() } else { name.into() }
}

pub(in crate::table) fn storage_class_name(source: &Source<'_>) -> Value {
    const KEYS: [&str; 2] = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ];
    default_marked(source, &KEYS)
}

pub(in crate::table) fn ingress_class_name(source: &Source<'_>) -> Value {
    default_marked(source, &["ingressclass.kubernetes.io/is-default-class"])
}

pub(in crate::table) fn ingress_parameters(source: &Source<'_>) -> Value {
    let Some(parameters) = source.at("spec.parameters") else { return NONE.into() };
    let group = match text(parameters, "apiGroup") {
        "" => String::new(),
        group => format!(".{group}"),
    };
    format!("{}{group}/{}", text(parameters, "kind"), text(parameters, "name")).into()
}

pub(in crate::table) fn ingress_hosts(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn ingress_ports(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn load_balancer(source: &Source<'_>) -> Value {
    load_balancer_addresses(source).into()
}

pub(in crate::table) fn cluster_ip(source: &Source<'_>) -> Value {
    match source.list("spec.clusterIPs").first().and_then(Value::as_str) {
        Some(ip) => ip.into(),
        None => source.text_or("spec.clusterIP", NONE).into(),
    }
}

pub(in crate::table) fn external_ip(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn service_ports(source: &Source<'_>) -> Value {
    let number = |port: &Value, name| port.get(name).and_then(Value::as_i64).unwrap_or(0);
    let ports: Vec<String> = source
        .list("spec.ports")
        .iter()
        .map(|port| match number(port, "nodePort") {
            0 => format!("{}/{}", number(port, "port"), text(port, "protocol")),
            node => format!("{}:{node}/{}", number(port, "port"), text(port, "protocol")),
        })
        .collect();
    or(ports.join(","), NONE).into()
}

pub(in crate::table) fn endpoints(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn slice_ports(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn slice_endpoints(source: &Source<'_>) -> Value {
    let addresses: Vec<String> = source
        .list("endpoints")
        .iter()
        .flat_map(|endpoint| list(endpoint, "addresses"))
        .filter_map(|address| address.as_str().map(str::to_owned))
        .collect();
    first_few(&addresses, 3).into()
}

pub(in crate::table) fn cidrs(source: &Source<'_>) -> Value {
    join(source.list("spec.cidrs").iter().filter_map(Value::as_str), ",").into()
}

pub(in crate::table) fn address_parent(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn node_status(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn node_roles(source: &Source<'_>) -> Value {
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
    or(join(roles.into_iter(), ","), NONE).into()
}

fn node_address(source: &Source<'_>, kind: &str) -> Value {
    let addresses = source.list("status.addresses");
    let found = addresses.iter().find(|address| text(address, "type") == kind);
    found.map_or(NONE, |address| text(address, "address")).into()
}

pub(in crate::table) fn node_internal_ip(source: &Source<'_>) -> Value {
    node_address(source, "InternalIP")
}

pub(in crate::table) fn node_external_ip(source: &Source<'_>) -> Value {
    node_address(source, "ExternalIP")
}

pub(in crate::table) fn node_kernel(source: &Source<'_>) -> Value {
    let kernel = source.text_or("status.nodeInfo.kernelVersion", UNKNOWN);
    match source.text("status.nodeInfo.architecture") {
        "" => kernel.into(),
        architecture => format!("{kernel} ({architecture})").into(),
    }
}

pub(in crate::table) fn component_status(source: &Source<'_>) -> Value {
    match condition(source, "conditions", "Healthy") {
        Some(healthy) if text(healthy, "status") == "True" => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    }
    .into()
}

pub(in crate::table) fn component_message(source: &Source<'_>) -> Value {
    condition(source, "conditions", "Healthy").map_or("", |c| text(c, "message")).into()
}

pub(in crate::table) fn component_error(source: &Source<'_>) -> Value {
    condition(source, "conditions", "Healthy").map_or("", |c| text(c, "error")).into()
}

fn quota(source: &Source<'_>, limits: bool) -> Value {
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

pub(in crate::table) fn quota_requests(source: &Source<'_>) -> Value {
    quota(source, false)
}

pub(in crate::table) fn quota_limits(source: &Source<'_>) -> Value {
    quota(source, true)
}

pub(in crate::table) fn controller(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn job_status(source: &Source<'_>) -> Value {
    let first = |kinds: &[&'static str]| kinds.iter().copied().find(|kind| is_true(source, kind));
    first(&["Complete", "Failed"])
        .or_else(|| source.has("metadata.deletionTimestamp").then_some("Terminating"))
        .or_else(|| first(&["Suspended", "FailureTarget", "SuccessCriteriaMet"]))
        .unwrap_or("Running")
        .into()
}

pub(in crate::table) fn job_completions(source: &Source<'_>) -> Value {
    let succeeded = source.number("status.succeeded");
    if source.has("spec.completions") {
        return format!("{succeeded}/{}", source.number("spec.completions")).into();
    }
    match source.number("spec.parallelism") {
        ..=1 => format!("{succeeded}/1").into(),
        parallel => format!("{succeeded}/1 of {parallel}").into(),
    }
}

pub(in crate::table) fn job_duration(source: &Source<'_>) -> Value {
    let Ok(start) = source.text("status.startTime").parse::<Timestamp>() else {
        return "".into();
    };
    let end = source.text("status.completionTime").parse().unwrap_or(source.now);
    human_duration(seconds_between(start, end)).into()
}

pub(in crate::table) fn suspended(source: &Source<'_>) -> Value {
    match source.at("spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    }
    .into()
}

pub(in crate::table) fn last_schedule(source: &Source<'_>) -> Value {
    match source.text("status.lastScheduleTime") {
        "" => NONE.into(),
        _ => source.age("status.lastScheduleTime").into(),
    }
}

pub(in crate::table) fn token_requests(source: &Source<'_>) -> Value {
    if !source.has("spec.tokenRequests") {
        return UNSET.into();
    }
    let requests = source.list("spec.tokenRequests");
    join(requests.iter().map(|request| text(request, "audience")), ",").into()
}

pub(in crate::table) fn lifecycle_modes(source: &Source<'_>) -> Value {
    let modes = source.list("spec.volumeLifecycleModes").iter().filter_map(Value::as_str);
    or(join(modes, ","), NONE).into()
}

pub(in crate::table) fn role(source: &Source<'_>) -> Value {
    format!("{}/{}", source.text("roleRef.kind"), source.text("roleRef.name")).into()
}

fn subjects<'a>(source: &Source<'a>, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    source.list("subjects").iter().filter(move |subject| text(subject, "kind") == kind)
}

pub(in crate::table) fn users(source: &Source<'_>) -> Value {
    join(subjects(source, "User").map(|subject| text(subject, "name")), ", ").into()
}

pub(in crate::table) fn groups(source: &Source<'_>) -> Value {
    join(subjects(source, "Group").map(|subject| text(subject, "name")), ", ").into()
}

pub(in crate::table) fn service_accounts(source: &Source<'_>) -> Value {
    let accounts: Vec<String> = subjects(source, "ServiceAccount")
        .map(|subject| format!("{}/{}", text(subject, "namespace"), text(subject, "name")))
        .collect();
    accounts.join(", ").into()
}

pub(in crate::table) fn parameter_kind(source: &Source<'_>) -> Value {
    match source.at("spec.paramKind") {
        Some(kind) => format!("{}/{}", text(kind, "apiVersion"), text(kind, "kind")).into(),
        None => UNSET.into(),
    }
}

pub(in crate::table) fn parameter_reference(source: &Source<'_>) -> Value {
    let Some(reference) = source.at("spec.paramRef") else { return UNSET.into() };
    match (text(reference, "namespace"), text(reference, "name")) {
        (_, "") => selector(reference.get("selector")).into(),
        ("", name) => format!("*/{name}").into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}

pub(in crate::table) fn requested_duration(source: &Source<'_>) -> Value {
    match source.at("spec.expirationSeconds").and_then(Value::as_i64) {
        Some(seconds) => human_duration(seconds).into(),
        None => NONE.into(),
    }
}

pub(in crate::table) fn request_condition(source: &Source<'_>) -> Value {
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

pub(in crate::table) fn dangling(source: &Source<'_>) -> Value {
    condition(source, "status.conditions", "Dangling").map_or("?", |c| text(c, "status")).into()
}

fn limit(source: &Source<'_>, path: &str) -> Value {
    match source.at("spec.limited") {
        Some(limited) => find(limited, path).cloned().unwrap_or(NONE.into()),
        None => NONE.into(),
    }
}

pub(in crate::table) fn concurrency_shares(source: &Source<'_>) -> Value {
    limit(source, "nominalConcurrencyShares")
}

pub(in crate::table) fn queues(source: &Source<'_>) -> Value {
    limit(source, "limitResponse.queuing.queues")
}

pub(in crate::table) fn hand_size(source: &Source<'_>) -> Value {
    limit(source, "limitResponse.queuing.handSize")
}

pub(in crate::table) fn queue_length(source: &Source<'_>) -> Value {
    limit(source, "limitResponse.queuing.queueLengthLimit")
}

pub(in crate::table) fn api_service(source: &Source<'_>) -> Value {
    match source.at("spec.service") {
        Some(service) => format!("{}/{}", text(service, "namespace"), text(service, "name")).into(),
        None => "Local".into(),
    }
}

pub(in crate::table) fn api_available(source: &Source<'_>) -> Value {
    match condition(source, "status.conditions", "Available") {
        None => "Unknown".into(),
        Some(c) if text(c, "status") == "True" => "True".into(),
        Some(c) => format!("{} ({})", text(c, "status"), text(c, "reason")).into(),
    }
}

pub(in crate::table) fn claim_state(source: &Source<'_>) -> Value {
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
