//! Preparation of an object for a write: fields that the server sets or restores.
//!
//! River: defaulted object → **prepare** → validation. Name and uid are already set.

use std::collections::BTreeMap;

use headwater_json::{Value, json};

use super::{Object, is_zero, items, objects, set, text};
use crate::types::{Types, get, is_absent};
use headwater_api::kind::Kind;
use headwater_api::quantity::Quantity;

/// The annotation of a generation counter of old DaemonSets.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Prepares an object for creation: clears the status and initializes the kind's bookkeeping.
pub fn prepare_for_create(kind: &Kind, object: &mut Value) {
    let Value::Object(object) = object else { return };
    // Nodes are created with their status.
    if kind.has_status() && !kind.custom && kind.kind != "Node" {
        reset_status(kind, object);
    }
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("", "Pod") => pod(object),
        ("", "Namespace") => namespace(object),
        ("", "PersistentVolume") => {
            set(object, &["status", "phase"], "Pending".into());
            if let Some(now) = get(object, &["metadata", "creationTimestamp"]).cloned() {
                set(object, &["status", "lastPhaseTransitionTime"], now);
            }
        }
        ("", "PersistentVolumeClaim") => {
            set(object, &["status", "phase"], "Pending".into());
            data_sources(object, None);
        }
        ("apps", "StatefulSet") => unavailable(object, None),
        ("batch", "Job") => job(object),
        ("apps", "DaemonSet") => {
            let annotation = ["metadata", "annotations", TEMPLATE_GENERATION];
            if is_zero(get(object, &annotation)) {
                set(object, &annotation, "1".into());
            }
        }
        _ => {}
    }
}

/// Prepares an object that replaces `old` through the main resource: restores the status and other
/// fields that such writes cannot change.
pub fn prepare_for_update(kind: &Kind, object: &mut Value, old: &Value) {
    let (Value::Object(object), Value::Object(old)) = (object, old) else { return };
    if kind.has_status() {
        put_back(object, old, &["status"]);
    }
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("", "Namespace") => put_back(object, old, &["spec", "finalizers"]),
        ("", "Pod") => pod_again(object, old),
        ("", "Service") => service(object, old),
        ("certificates.k8s.io", "CertificateSigningRequest") => put_back(object, old, &["spec"]),
        ("", "PersistentVolumeClaim") => data_sources(object, Some(old)),
        ("apps", "DaemonSet") => template_generation(object, old),
        ("apps", "StatefulSet") => unavailable(object, Some(old)),
        _ => {}
    }
}

fn reset_status(kind: &Kind, object: &mut Object) {
    let types = Types::builtin();
    match types.of(kind).and_then(|of| of.field("status")) {
        Some(field) => _ = object.insert("status".into(), types.absent(field)),
        None => _ = object.remove("status"),
    }
}

/// Restores a field.
fn put_back(object: &mut Object, old: &Object, path: &[&str]) {
    match get(old, path) {
        Some(value) => set(object, path, value.clone()),
        None => {
            let (last, above) = path.split_last().unwrap_or((&"", &[]));
            let mut at = Some(object);
            for name in above {
                at = at.and_then(|object| object.get_mut(name)?.as_object_mut());
            }
            if let Some(object) = at {
                object.remove(last);
            }
        }
    }
}

fn pod(pod: &mut Object) {
    let class = pod.get("spec").map_or("BestEffort", quality_of_service);
    let mut status = Value::from_iter([("phase", "Pending"), ("qosClass", class)]);
    if !is_zero(get(pod, &["spec", "schedulingGates"])) {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": null,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    pod.insert("status".into(), status);
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        eviction_tolerations(spec);
    }
}

/// Keeps the fields that were set at the creation of a pod and are missing in an update.
fn pod_again(pod: &mut Object, old: &Object) {
    if let (Some(Value::Object(spec)), Some(Value::Object(before))) =
        (pod.get_mut("spec"), old.get("spec"))
    {
        keep_absent(spec, before, &["priority", "preemptionPolicy"]);
        eviction_tolerations(spec);
    }
}

/// Adds the default tolerations of five minutes for unreachable nodes.
fn eviction_tolerations(spec: &mut Object) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |toleration: &Object| {
            let names = text(toleration, "key").is_empty() || text(toleration, "key") == key;
            names && matches!(text(toleration, "effect"), "" | "NoExecute")
        };
        if objects(spec, &["tolerations"]).any(covers) {
            continue;
        }
        let mut toleration =
            Value::from_iter([("effect", "NoExecute"), ("key", key), ("operator", "Exists")]);
        toleration["tolerationSeconds"] = 300.into();
        let list = spec.entry("tolerations").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(tolerations) = list {
            tolerations.push(toleration);
        }
    }
}

fn namespace(namespace: &mut Object) {
    set(namespace, &["status", "phase"], "Active".into());
    let finalizers = get(namespace, &["spec", "finalizers"]).and_then(Value::as_array);
    let mut finalizers = finalizers.cloned().unwrap_or_default();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push("kubernetes".into());
        set(namespace, &["spec", "finalizers"], finalizers.into());
    }
}

/// Sets the selector and labels of a job from its uid, unless `manualSelector` is set.
fn job(job: &mut Object) {
    if get(job, &["spec", "manualSelector"]) == Some(&Value::Bool(true)) {
        return;
    }
    let own = |name| get(job, &["metadata", name]).and_then(Value::as_str).unwrap_or_default();
    let (name, uid) = (own("name").to_owned(), own("uid").to_owned());
    for (label, value) in [
        ("job-name", &name),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/controller-uid", &uid),
    ] {
        set_absent(job, &["spec", "template", "metadata", "labels", label], value);
    }
    let selector = ["spec", "selector", "matchLabels", "batch.kubernetes.io/controller-uid"];
    set_absent(job, &selector, &uid);
    let labels = ["metadata", "labels"];
    if is_zero(get(job, &labels))
        && let Some(own) = get(job, &["spec", "template", "metadata", "labels"]).cloned()
    {
        set(job, &labels, own);
    }
}

/// The sources that `dataSource` could name before `dataSourceRef` existed; others were ignored.
const OLDER_SOURCES: [(&str, &str); 2] =
    [("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")];

/// `dataSource` and `dataSourceRef` are the same where both can say it.
fn data_sources(claim: &mut Object, old: Option<&Object>) {
    let had = old.is_some_and(|old| {
        ["dataSource", "dataSourceRef"].iter().any(|name| !is_absent(get(old, &["spec", name])))
    });
    let Some(Value::Object(spec)) = claim.get_mut("spec") else { return };
    let source = spec.get("dataSource").and_then(Value::as_object);
    let is_older = source.is_some_and(|source| {
        OLDER_SOURCES.contains(&(text(source, "apiGroup"), text(source, "kind")))
    });
    if !had && !is_older && is_absent(spec.get("dataSourceRef")) {
        spec.remove("dataSource");
    }
    let copy = |from: &Value| -> Value {
        let names = ["apiGroup", "kind", "name"];
        names.into_iter().filter_map(|name| Some((name, from.get(name)?.clone()))).collect()
    };
    match (spec.get("dataSource"), spec.get("dataSourceRef")) {
        (Some(source), None) => {
            let source = copy(source);
            spec.insert("dataSourceRef".into(), source);
        }
        (None, Some(source)) if is_zero(source.get("namespace")) => {
            let source = copy(source);
            spec.insert("dataSource".into(), source);
        }
        _ => {}
    }
}

/// Kubernetes has `maxUnavailable` of StatefulSets switched off: only a set that has it keeps it.
fn unavailable(set: &mut Object, old: Option<&Object>) {
    let path = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
    if is_absent(get(set, &path)) || old.is_some_and(|old| !is_absent(get(old, &path))) {
        return;
    }
    let strategy = set.get_mut("spec").and_then(|spec| spec.get_mut("updateStrategy"));
    let rolling = strategy.and_then(|strategy| strategy.get_mut("rollingUpdate"));
    rolling.and_then(Value::as_object_mut).map(|rolling| rolling.remove("maxUnavailable"));
}

fn set_absent(object: &mut Object, path: &[&str], value: &str) {
    if is_absent(get(object, path)) {
        set(object, path, value.into());
    }
}

fn template_generation(object: &mut Object, old: &Object) {
    let path = ["metadata", "annotations", TEMPLATE_GENERATION];
    let before = get(old, &path).and_then(|value| value.as_str()?.parse::<i64>().ok()).unwrap_or(1);
    let template = ["spec", "template"];
    let changed = get(object, &template) != get(old, &template);
    let now = before.saturating_add(i64::from(changed));
    set(object, &path, now.to_string().into());
}

/// Keeps the allocated addresses of a Service unless the update changes them.
fn service(service: &mut Object, old: &Object) {
    let (Some(Value::Object(spec)), Some(Value::Object(before))) =
        (service.get_mut("spec"), old.get("spec"))
    else {
        return;
    };
    let had_address = text(before, "type") != "ExternalName";
    if text(spec, "type") == "ExternalName" {
        if had_address {
            forget_same(spec, before, &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
        }
    } else if had_address {
        keep_absent(spec, before, &["clusterIP", "clusterIPs"]);
    }
    if uses_node_ports(spec) && uses_node_ports(before) {
        keep_node_ports(spec, before);
    }
    if text(spec, "type") != "LoadBalancer" && text(before, "type") == "LoadBalancer" {
        forget_same(spec, before, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
        if !uses_node_ports(spec) {
            forget_same(spec, before, &["externalTrafficPolicy", "healthCheckNodePort"]);
        }
    }
    let is_local = |spec: &Object| text(spec, "externalTrafficPolicy") == "Local";
    match (is_local(spec), is_local(before)) {
        (true, true) => keep_absent(spec, before, &["healthCheckNodePort"]),
        (false, true) => forget_same(spec, before, &["healthCheckNodePort"]),
        _ => {}
    }
    if !uses_node_ports(spec) && uses_node_ports(before) {
        let same = node_ports(spec) == node_ports(before);
        items(spec, &["ports"]).filter(|_| same).for_each(|port| _ = port.remove("nodePort"));
    }
    if text(spec, "type") != "LoadBalancer" {
        set(service, &["status", "loadBalancer"], json!({}));
    }
}

fn keep_absent(spec: &mut Object, before: &Object, names: &[&str]) {
    for name in names {
        if is_zero(spec.get(name))
            && let Some(value) = before.get(name)
        {
            spec.insert((*name).into(), value.clone());
        }
    }
}

fn forget_same(spec: &mut Object, before: &Object, names: &[&str]) {
    for name in names {
        if spec.get(name) == before.get(name) {
            spec.remove(name);
        }
    }
}

fn uses_node_ports(spec: &Object) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

fn node_ports(spec: &Object) -> Vec<Value> {
    let ports = spec.get("ports").and_then(Value::as_array).into_iter().flatten();
    ports.map(|port| port.get("nodePort").cloned().unwrap_or_default()).collect()
}

/// Matches ports by number and protocol.
fn keep_node_ports(spec: &mut Object, before: &Object) {
    let key = |port: &Object| {
        (port.get("port").and_then(Value::as_i64), text(port, "protocol").to_owned())
    };
    let old: BTreeMap<_, Value> = before
        .get("ports")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .filter_map(|port| Some((key(port), port.get("nodePort")?.clone())))
        .collect();
    let taken = node_ports(spec);
    for port in items(spec, &["ports"]) {
        if let (None, Some(number)) = (port.get("nodePort"), old.get(&key(port)))
            && !taken.contains(number)
        {
            port.insert("nodePort".into(), number.clone());
        }
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from the resources in a pod's spec.
pub fn quality_of_service(spec: &Value) -> &'static str {
    const COUNTED: [&str; 2] = ["cpu", "memory"];
    let amounts = |resources: Option<&Value>, side: &str| -> BTreeMap<&'static str, i128> {
        let amount = |name: &'static str| {
            let text = resources?.get(side)?.get(name)?.as_str()?;
            let nano = Quantity::parse(text).ok()?.nano();
            (nano > 0).then_some((name, nano))
        };
        COUNTED.into_iter().filter_map(amount).collect()
    };
    let pod_level = spec.get("resources").filter(|resources| resources.is_object());
    let list = |name| spec.get(name).and_then(Value::as_array).into_iter().flatten();
    let every: Vec<Option<&Value>> = match pod_level {
        Some(resources) => vec![Some(resources)],
        None => list("containers")
            .chain(list("initContainers"))
            .map(|container| container.get("resources"))
            .collect(),
    };
    let mut guaranteed = !every.is_empty();
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for resources in every {
        let limit = amounts(resources, "limits");
        guaranteed &= limit.len() == COUNTED.len();
        add(&mut limits, &limit);
        add(&mut requests, &amounts(resources, "requests"));
    }
    match (requests.is_empty() && limits.is_empty(), guaranteed && requests == limits) {
        (true, _) => "BestEffort",
        (false, true) => "Guaranteed",
        (false, false) => "Burstable",
    }
}

fn add(sums: &mut BTreeMap<&'static str, i128>, amounts: &BTreeMap<&'static str, i128>) {
    for (name, amount) in amounts {
        let sum = sums.entry(*name).or_default();
        *sum = sum.saturating_add(*amount);
    }
}
