//! Rules of pods and pod templates.

use std::collections::{BTreeSet, HashMap};

use headwater_json::Value;

use super::pod_parts;
use super::rule::Seen;
use super::{
    Check, Object, Path, has, is_true, list, map, number, objects, shown, shown_text, text,
};
use headwater_api::name;
use headwater_api::quantity::Quantity;

/// The rules of pods only, not of templates.
pub(super) fn pod(check: &mut Check<'_>, pod: &Object, path: &Path<'_>) {
    if check.old.is_some_and(|old| old.get("spec") == pod.get("spec")) {
        return;
    }
    let Some(spec) = map(pod, "spec") else { return };
    let spec_path = path.field("spec");
    for list in ["containers", "initContainers"] {
        let list_path = spec_path.field(list);
        for (index, container) in objects(spec, list) {
            let image = text(container, "image");
            if image.trim() != image {
                let why = "must not have leading or trailing whitespace";
                check.invalid(list_path.index(index).field("image"), &image.into(), why);
            }
        }
    }
    if check.old.is_some() {
        return;
    }
    if !list(spec, "ephemeralContainers").is_empty() {
        check.forbidden(spec_path.field("ephemeralContainers"), "cannot be set on create");
    }
    if !text(spec, "nodeName").is_empty() && !list(spec, "schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        check.forbidden(spec_path.field("nodeName"), why);
    }
}

/// The maximum size of all annotations of an object.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;

/// The labels and annotations of a pod template. Their paths lack `metadata`, as in Kubernetes.
pub(super) fn pod_template(check: &mut Check<'_>, template: &Object, path: &Path<'_>) {
    let Some(metadata) = map(template, "metadata") else { return };
    let at = path.field("labels");
    for (key, value) in map(metadata, "labels").into_iter().flatten() {
        check.problems(at, key, name::qualified(key));
        let value = value.as_str().unwrap_or_default();
        check.problems(at, value, name::label_value(value));
    }
    let at = path.field("annotations");
    let annotations = map(metadata, "annotations").into_iter().flatten();
    let mut bytes = 0;
    for (key, value) in annotations {
        check.problems(at, key, name::qualified(&key.to_lowercase()));
        bytes += key.len() + value.as_str().map_or(0, str::len);
    }
    if bytes > ANNOTATION_BYTES_MAX {
        check.too_long(at, ANNOTATION_BYTES_MAX);
    }
}

/// The rules that involve several parts of a pod's spec.
pub(super) fn pod_spec(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    // Controllers of StatefulSets set both.
    for name in ["hostname", "subdomain"] {
        let host = text(spec, name);
        if !host.is_empty() && check.kind.kind != "StatefulSet" {
            check.problems(path.field(name), host, name::label(host));
        }
    }
    container_names(check, spec, path);
    volume_mounts(check, spec, path);
    host_ports(check, spec, path);
    container_parts(check, spec, path);
    init_containers(check, spec, path);
    scheduling_gates(check, spec, path);
    if text(spec, "dnsPolicy") == "None" {
        let config = path.field("dnsConfig");
        match map(spec, "dnsConfig") {
            None => check.required(config, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(dns) if list(dns, "nameservers").is_empty() => check.required(
                config.field("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
            Some(_) => {}
        }
    }
    for (name, success) in
        [("livenessProbe", true), ("startupProbe", true), ("readinessProbe", false)]
    {
        let list_path = path.field("containers");
        for (index, container) in objects(spec, "containers") {
            if let Some(probe) = map(container, name) {
                let at = list_path.index(index);
                probe_limits(check, probe, &at.field(name), success);
            }
        }
    }
}

/// Checks that liveness and startup probes have a success threshold of one, and readiness probes no
/// grace period.
fn probe_limits(check: &mut Check<'_>, probe: &Object, path: &Path<'_>, once: bool) {
    let threshold = number(probe, "successThreshold").unwrap_or(1);
    if once && threshold != 1 {
        check.invalid(path.field("successThreshold"), &threshold.into(), "must be 1");
    }
    if !once && has(probe, "terminationGracePeriodSeconds") {
        let value = shown(probe, "terminationGracePeriodSeconds");
        let why = "must not be set for readinessProbes";
        check.invalid(path.field("terminationGracePeriodSeconds"), &value, why);
    }
}

/// Checks that names are unique among init containers and containers.
fn container_names(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let mut names = Seen::default();
    for (_, container) in objects(spec, "containers") {
        names.insert(text(container, "name"));
    }
    for kind in ["initContainers", "ephemeralContainers"] {
        let list_path = path.field(kind);
        for (index, container) in objects(spec, kind) {
            let name = text(container, "name");
            if !name.is_empty() && !names.insert(name) {
                check.duplicate(list_path.index(index).field("name"), &name.into());
            }
        }
    }
}

/// Checks that mounted volumes exist and mount paths are unique.
fn volume_mounts(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let mut volumes = Seen::default();
    for (_, volume) in objects(spec, "volumes") {
        volumes.insert(text(volume, "name"));
    }
    // The claims of a StatefulSet become volumes of its pods.
    if let Some(set) = map(check.root, "spec") {
        for (_, claim) in objects(set, "volumeClaimTemplates") {
            volumes.insert(map(claim, "metadata").map_or("", |metadata| text(metadata, "name")));
        }
    }
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        let list_path = path.field(kind);
        for (index, container) in objects(spec, kind) {
            let container_path = list_path.index(index);
            mounts_of(check, container, &volumes, &container_path.field("volumeMounts"));
        }
    }
}

fn mounts_of(check: &mut Check<'_>, container: &Object, volumes: &Seen<'_>, path: &Path<'_>) {
    let mut places = Seen::default();
    for (index, mount) in objects(container, "volumeMounts") {
        let at = path.index(index);
        let (name, place) = (text(mount, "name"), text(mount, "mountPath"));
        if !volumes.contains(name) {
            check.not_found(at.field("name"), &name.into());
        }
        if !places.insert(place) {
            check.invalid(at.field("mountPath"), &place.into(), "must be unique");
        }
    }
}

fn host_ports(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let host_network = is_true(spec, "hostNetwork");
    let in_pod = matches!(path, Path::Field(Path::Root, _)) && check.kind.kind == "Pod";
    let mut taken = BTreeSet::new();
    let list_path = path.field("containers");
    for (index, container) in objects(spec, "containers") {
        let container_path = list_path.index(index);
        let ports_path = container_path.field("ports");
        for (index, port) in objects(container, "ports") {
            let at = ports_path.index(index);
            let host = number(port, "hostPort").unwrap_or(0);
            if host_network && (in_pod || host != 0) && Some(host) != number(port, "containerPort")
            {
                let why = "must match `containerPort` when `hostNetwork` is true";
                check.invalid(at.field("hostPort"), &host.into(), why);
            }
            if host == 0 {
                continue;
            }
            let key = format!("{}/{}/{host}", text(port, "protocol"), text(port, "hostIP"));
            if !taken.insert(key.clone()) {
                check.duplicate(at.field("hostPort"), &key.into());
            }
        }
    }
}

fn init_containers(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let list_path = path.field("initContainers");
    for (index, container) in objects(spec, "initContainers") {
        if text(container, "restartPolicy") == "Always" {
            continue;
        }
        let at = list_path.index(index);
        for name in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if has(container, name) {
                let why = "may not be set for init containers without restartPolicy=Always";
                check.forbidden(at.field(name), why);
            }
        }
    }
}

fn scheduling_gates(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let list_path = path.field("schedulingGates");
    let mut seen = Seen::default();
    for (index, gate) in objects(spec, "schedulingGates") {
        let name = text(gate, "name");
        let at = list_path.index(index);
        check.problems(at, name, name::qualified(name));
        if !seen.insert(name) {
            check.duplicate(at, &name.into());
        }
    }
}

/// The rules of one container that involve its pod.
fn container_parts(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let volumes = block_volumes(check, spec);
    let grace = number(spec, "terminationGracePeriodSeconds").unwrap_or(i64::MAX);
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        let list_path = path.field(kind);
        for (index, container) in objects(spec, kind) {
            let at = list_path.index(index);
            pod_parts::devices(check, container, &volumes, &at.field("volumeDevices"));
            pod_parts::propagation(check, container, &at);
            if kind != "ephemeralContainers" {
                let restarts = text(spec, "restartPolicy");
                pod_parts::resize_policy(check, container, restarts, &at);
                pod_parts::sleeps(check, container, grace, &at);
            }
        }
    }
    pod_parts::spread(check, spec, path);
}

/// The volumes of a pod, with whether they can be block devices.
fn block_volumes<'a>(check: &Check<'a>, spec: &'a Object) -> HashMap<&'a str, bool> {
    let can_be_block =
        |volume: &Object| has(volume, "persistentVolumeClaim") || has(volume, "ephemeral");
    let own = objects(spec, "volumes").map(|(_, one)| (text(one, "name"), can_be_block(one)));
    let claims = map(check.root, "spec").into_iter();
    let claims = claims.flat_map(|set| objects(set, "volumeClaimTemplates"));
    let claims = claims.map(|(_, claim)| map(claim, "metadata").map_or("", |it| text(it, "name")));
    let mut volumes = HashMap::new();
    for (name, is_block) in own.chain(claims.map(|name| (name, true))) {
        volumes.entry(name).or_insert(is_block);
    }
    volumes
}

pub(super) fn env(check: &mut Check<'_>, variable: &Object, path: &Path<'_>) {
    const SOURCES: [&str; 5] =
        ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let Some(from) = map(variable, "valueFrom") else { return };
    let at = path.field("valueFrom");
    let why = match SOURCES.iter().filter(|name| has(from, name)).count() {
        0 => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        _ if !text(variable, "value").is_empty() => {
            "may not be specified when `value` is not empty"
        }
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    check.invalid(at, &"".into(), why);
}

pub(super) fn env_from(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    // As in Kubernetes, the error is at the list, not at the element.
    let at = if let Path::Index(list, _) = path { list } else { path };
    match ["configMapRef", "secretRef"].iter().filter(|name| has(source, name)).count() {
        0 => check.invalid(at, &"".into(), "must specify one of: `configMapRef` or `secretRef`"),
        1 => {}
        _ => {
            let why = "may not have more than one field specified at a time";
            check.invalid(at, &"".into(), why);
        }
    }
}

/// Checks that there is exactly one probe or lifecycle action.
pub(super) fn handler(check: &mut Check<'_>, handler: &Object, path: &Path<'_>) {
    let kinds = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
    let mut given = kinds.into_iter().filter(|name| has(handler, name));
    if given.next().is_none() {
        check.required(path, "must specify a handler type");
    }
    for name in given {
        check.forbidden(path.field(name), "may not specify more than 1 handler type");
    }
}

pub(super) fn one_volume_source(check: &mut Check<'_>, volume: &Object, path: &Path<'_>) {
    let mut sources = volume.iter().filter(|(name, value)| *name != "name" && !value.is_null());
    if sources.next().is_none() {
        check.required(path, "must specify a volume type");
    }
    for (name, _) in sources {
        check.forbidden(path.field(name), "may not specify more than 1 volume type");
    }
}

pub(super) fn empty_dir(check: &mut Check<'_>, source: &Object, path: &Path<'_>) {
    if amount(source, "sizeLimit").is_some_and(|limit| limit.is_negative()) {
        let why = "SizeLimit field must be a valid resource quantity";
        check.forbidden(path.field("sizeLimit"), why);
    }
}

fn amount(object: &Object, name: &str) -> Option<Quantity> {
    Quantity::parse(text(object, name)).ok().filter(|_| has(object, name))
}

pub(super) fn toleration(check: &mut Check<'_>, toleration: &Object, path: &Path<'_>) {
    let (operator, value) = (text(toleration, "operator"), text(toleration, "value"));
    let at = path.field("operator");
    if text(toleration, "key").is_empty() && operator != "Exists" {
        let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        check.invalid(at, &operator.into(), why);
    }
    if has(toleration, "tolerationSeconds") && text(toleration, "effect") != "NoExecute" {
        let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        check.invalid(path.field("effect"), &shown_text(toleration, "effect"), why);
    }
    match operator {
        "" | "Equal" => {
            let problems = name::label_value(value);
            if !problems.is_empty() {
                check.invalid(at, &value.into(), &problems.join(";"));
            }
        }
        "Exists" if value.is_empty() => {}
        "Exists" => {
            check.invalid(at, &value.into(), "value must be empty when `operator` is 'Exists'");
        }
        "Lt" | "Gt" => {
            check.not_supported(at, &operator.into(), &["Equal", "Exists", "Lt", "Gt"]);
        }
        other => check.not_supported(at, &other.into(), &["Equal", "Exists"]),
    }
}

/// A requirement on a field of a node: its name is the only one.
fn node_field(check: &mut Check<'_>, requirement: &Object, path: &Path<'_>) {
    let values = list(requirement, "values");
    let at = path.field("values");
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => {
            let why =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            check.required(at, why);
        }
        "In" | "NotIn" => {}
        other => {
            check.invalid(path.field("operator"), &other.into(), "not a valid selector operator");
        }
    }
    let key = text(requirement, "key");
    if key != "metadata.name" {
        check.invalid(path.field("key"), &key.into(), "not a valid field selector key");
        return;
    }
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        check.problems(at.index(index), value, name::subdomain(value));
    }
}

pub(super) fn node_requirement(check: &mut Check<'_>, requirement: &Object, path: &Path<'_>) {
    let list_path = if let Path::Index(list, _) = path { list } else { path };
    if matches!(list_path, Path::Field(_, "matchFields")) {
        return node_field(check, requirement, path);
    }
    let key = text(requirement, "key");
    check.problems(path.field("key"), key, name::qualified(key));
    // Preferences were never checked for the values of labels.
    let is_preference =
        matches!(list_path, Path::Field(Path::Field(_, "preference"), "matchExpressions"));
    let at = path.field("values");
    let checked = list(requirement, "values").iter().enumerate().filter(|_| !is_preference);
    for (index, value) in checked {
        let value = value.as_str().unwrap_or_default();
        check.problems(at.index(index), value, name::label_value(value));
    }
    let values = list(requirement, "values").len();
    match text(requirement, "operator") {
        "In" | "NotIn" if values == 0 => {
            check.required(at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => check
            .forbidden(at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        "Gt" | "Lt" if values != 1 => {
            check.required(at, "must be specified single value when `operator` is 'Lt' or 'Gt'")
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            check.invalid(path.field("operator"), &other.into(), "not a valid selector operator");
        }
    }
}

/// Resources of containers without a domain.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Resources that are numbers of objects.
const OBJECT_COUNTS: [&str; 9] = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

pub(super) fn resources(check: &mut Check<'_>, resources: &Object, path: &Path<'_>) {
    for side in ["limits", "requests"] {
        let side_path = path.field(side);
        for (name, value) in map(resources, side).into_iter().flatten() {
            let at = side_path.bracket(name);
            resource_name(check, name, &at);
            resource_amount(check, name, value, &at);
        }
    }
    let (Some(requests), limits) = (map(resources, "requests"), map(resources, "limits")) else {
        return;
    };
    for name in requests.keys() {
        let Some(request) = amount(requests, name) else { continue };
        let limit = limits.and_then(|limits| amount(limits, name));
        let at = path.field("requests");
        match limit {
            Some(limit) if request != limit && !may_overcommit(name) => {
                let why = format!("must be equal to {name} limit of {limit}");
                check.invalid(at, &request.to_string().into(), &why);
            }
            Some(limit) if request > limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                check.invalid(at, &request.to_string().into(), &why);
            }
            None if !may_overcommit(name) => {
                let why = "Limit must be set for non overcommitable resources";
                check.required(path.field("limits"), why);
            }
            _ => {}
        }
    }
}

/// The overhead and the tolerations of a runtime class. The paths of the overhead are those of
/// limits, as in Kubernetes.
pub(super) fn runtime_class(check: &mut Check<'_>, class: &Object, path: &Path<'_>) {
    let overhead = path.field("overhead");
    let limits = overhead.field("limits");
    let fixed = map(class, "overhead").and_then(|overhead| map(overhead, "podFixed"));
    for (name, value) in fixed.into_iter().flatten() {
        let at = limits.bracket(name);
        resource_name(check, name, &at);
        resource_amount(check, name, value, &at);
    }
    let Some(scheduling) = map(class, "scheduling") else { return };
    let scheduling_path = path.field("scheduling");
    let at = scheduling_path.field("tolerations");
    let mut seen = BTreeSet::new();
    for (index, toleration) in objects(scheduling, "tolerations") {
        let key = ["key", "operator", "value", "effect"].map(|name| text(toleration, name));
        if !seen.insert(key) {
            check.duplicate(at.index(index), &Value::Object(toleration.clone()));
        }
    }
}

pub(super) fn resource_name(check: &mut Check<'_>, name: &str, at: &Path<'_>) {
    let problems = name::qualified(name);
    if !problems.is_empty() {
        return check.problems(at, name, problems);
    }
    if !name.contains('/') && !CONTAINER_RESOURCES.contains(&name) && !is_huge_pages(name) {
        if !is_standard(name) {
            let why = "must be a standard resource type or fully qualified";
            check.invalid(at, &name.into(), why);
        }
        check.invalid(at, &name.into(), "must be a standard resource for containers");
    }
}

/// Checks that amounts are not negative and, for some resources, integers.
pub(super) fn resource_amount(check: &mut Check<'_>, name: &str, value: &Value, at: &Path<'_>) {
    let Some(amount) = value.as_str().and_then(|text| Quantity::parse(text).ok()) else { return };
    if amount.is_negative() {
        check.invalid(at, value, "must be greater than or equal to 0");
    }
    if counted_in_ones(name) && !amount.is_integer() {
        check.invalid(at, value, "must be an integer");
    }
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Resources without a domain that only other objects have.
pub(super) fn is_standard(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "storage",
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "requests.hugepages",
    ];
    NAMES.contains(&name)
        || OBJECT_COUNTS.contains(&name)
        || is_huge_pages(name)
        || name.starts_with("requests.hugepages-")
        || name.starts_with("limits.hugepages-")
}

/// Whether a resource is an object count or an extended resource.
fn counted_in_ones(name: &str) -> bool {
    OBJECT_COUNTS.contains(&name) || !may_overcommit(name) && !is_huge_pages(name)
}

/// Whether overcommit is allowed: for native resources other than huge pages.
fn may_overcommit(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    native && !is_huge_pages(name)
}
