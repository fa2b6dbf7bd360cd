//! Rules of updates: immutable fields.

use std::collections::{HashMap, HashSet};

use headwater_json::{Map, MemberKey, Value, json};

use super::{
    Check, Object, has, is_true, list, map, network, number, objects, shown, text, volume,
};
use crate::types::get;
use headwater_api::quantity::Quantity;

/// Checks an immutable field.
pub(super) fn immutable(check: &mut Check<'_>, old: &Object, path: &[&str], why: Option<&str>) {
    let (now, before) = (get(check.root, path), get(old, path));
    let absent = Value::Null;
    if now.unwrap_or(&absent) == before.unwrap_or(&absent) {
        return;
    }
    match why {
        Some(why) => check.forbidden(path.join("."), why),
        None => {
            let value = now.cloned().unwrap_or_default();
            check.invalid(path.join("."), &value, "field is immutable");
        }
    }
}

/// Update rules that do not fit the table.
pub(super) fn by_kind(check: &mut Check<'_>, old: &Object) {
    let new = check.root;
    let none = Map::new();
    let spec = map(new, "spec").unwrap_or(&none);
    let before = map(old, "spec").unwrap_or(&none);
    match (check.kind.group.as_ref(), check.kind.kind.as_ref()) {
        ("", "Pod") => pod(check, spec, before),
        ("", "ConfigMap") => frozen(check, old, &["data", "binaryData"]),
        ("", "Secret") => frozen(check, old, &["data"]),
        ("", "Service") => network::service_update(check, spec, before),
        ("", "PersistentVolumeClaim") => claim(check, old, spec, before),
        ("", "PersistentVolume") => volume(check, spec, before),
        ("", "Node") => node(check, spec, before),
        ("", "ResourceQuota") => scopes(check, spec, before),
        ("apps", "StatefulSet") => stateful_set(check, spec, before),
        ("networking.k8s.io", "ServiceCIDR") => network::service_cidr_update(check, spec, before),
        ("storage.k8s.io", "CSIDriver") => attachment(check, spec, before),
        ("storage.k8s.io", "CSINode") => drivers(check, spec, before),
        ("batch", "Job") => job(check, old, spec, before),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if new.get("roleRef") != old.get("roleRef") =>
        {
            check.invalid("roleRef", &shown(new, "roleRef"), "cannot change roleRef");
        }
        ("scheduling.k8s.io", "PriorityClass") if number(new, "value") != number(old, "value") => {
            check.forbidden("value", "may not be changed in an update.");
        }
        _ => {}
    }
}

/// Checks that an immutable ConfigMap or Secret does not change.
fn frozen(check: &mut Check<'_>, old: &Object, fields: &[&str]) {
    if !is_true(old, "immutable") {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if !is_true(check.root, "immutable") {
        check.forbidden("immutable", why);
    }
    for field in fields {
        if check.root.get(field) != old.get(field) {
            check.forbidden(field, why);
        }
    }
}

/// Checks that only the mutable fields of a pod's spec change.
const POD_MUTABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn pod(check: &mut Check<'_>, spec: &Object, old: &Object) {
    // Most updates change labels and annotations, and equality is cheaper than a diff.
    if spec == old {
        return;
    }
    for kind in ["containers", "initContainers"] {
        if list(spec, kind).len() != list(old, kind).len() {
            let why = "pod updates may not add or remove containers";
            return check.forbidden(format!("spec.{kind}"), why);
        }
    }
    deadline(check, spec, old);
    tolerations(check, spec, old);
    let gates = |spec: &Object| -> Vec<Value> { list(spec, "schedulingGates").to_vec() };
    let before: HashSet<Value> = gates(old).into_iter().collect();
    if let Some(new) = gates(spec).iter().find(|gate| !before.contains(gate)) {
        let why = "only deletion is allowed, but found new scheduling gate";
        check.forbidden(
            "spec.schedulingGates",
            &format!("{why} '{}'", new["name"].as_str().unwrap_or_default()),
        );
    }
    let changed = differing(&munged(spec, old, !before.is_empty()), old);
    if !changed.is_empty() {
        let why = format!(
            "pod updates may not change fields other than {POD_MUTABLE}\n{}",
            changed.join("\n")
        );
        check.forbidden("spec", &why);
    }
}

fn deadline(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let name = "activeDeadlineSeconds";
    let field = "spec.activeDeadlineSeconds";
    match (number(spec, name), number(old, name)) {
        (Some(new), Some(old)) if new > old => {
            check.invalid(field, &new.into(), "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            check.invalid(field, &Value::Null, why);
        }
        _ => {}
    }
}

/// Checks that tolerations are only added, or change only in `tolerationSeconds`.
fn tolerations(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let timeless = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(object) = toleration.as_object_mut() {
            object.remove("tolerationSeconds");
        }
        toleration
    };
    let now: HashSet<Value> = list(spec, "tolerations").iter().map(timeless).collect();
    if list(old, "tolerations").iter().map(timeless).any(|before| !now.contains(&before)) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        check.forbidden("spec.tolerations", why);
    }
}

/// The new spec with the mutable fields of the old one.
fn munged(spec: &Object, old: &Object, gated: bool) -> Object {
    let mut spec = spec.clone();
    let mut fields = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    if gated {
        fields.extend(["nodeSelector", "affinity"]);
    }
    if number(old, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        fields.push("terminationGracePeriodSeconds");
    }
    for field in fields {
        match old.get(field) {
            Some(value) => _ = spec.insert(field.into(), value.clone()),
            None => _ = spec.remove(field),
        }
    }
    for kind in ["containers", "initContainers"] {
        let before: Vec<Value> = objects(old, kind).map(|(_, c)| shown(c, "image")).collect();
        let containers = spec.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, image) in containers.zip(before) {
            container["image"] = image;
        }
    }
    spec
}

/// The names of fields that differ, as lines of a small diff.
fn differing(new: &Object, old: &Object) -> Vec<String> {
    let mut names: Vec<&MemberKey> = new.keys().chain(old.keys()).collect();
    names.sort();
    names.dedup();
    let changed = names.into_iter().filter(|name| new.get(name) != old.get(name));
    let line = |name: &MemberKey| {
        let side = |object: &Object| object.get(name).cloned().unwrap_or_default();
        format!("  {name}: {} -> {}", side(old), side(new))
    };
    changed.map(line).collect()
}

/// Checks that only the mutable fields of a StatefulSet's spec change.
const STATEFUL_SET_MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn stateful_set(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let fixed = |spec: &Object| {
        let mut spec = spec.clone();
        spec.retain(|name, _| !STATEFUL_SET_MUTABLE.contains(&name.as_str()));
        spec
    };
    if fixed(spec) != fixed(old) {
        check.forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

fn job(check: &mut Check<'_>, old: &Object, spec: &Object, before: &Object) {
    let same = |name: &str| spec.get(name) == before.get(name);
    if !same("completions") {
        let value = shown(spec, "completions");
        if text(spec, "completionMode") != "Indexed" {
            check.invalid("spec.completions", &value, "field is immutable");
        } else if has(spec, "completions") && spec.get("completions") != spec.get("parallelism") {
            let why = "can only be modified in tandem with spec.parallelism";
            check.invalid("spec.completions", &value, why);
        }
    }
    let is_open = is_true(before, "suspend") && map(old, "status").is_none_or(is_idle);
    let template = |spec: &Object| match (is_open, shown(spec, "template")) {
        (true, template) if template.is_object() => fixed_template(template),
        (_, template) => template,
    };
    if template(spec) != template(before) {
        check.invalid("spec.template", &shown(spec, "template"), "field is immutable");
    }
}

/// Whether a suspended job has no pods any more, or never had any.
fn is_idle(status: &Object) -> bool {
    let conditions = list(status, "conditions").iter().filter_map(Value::as_object);
    let is_suspended = |condition: &Object| {
        text(condition, "type") == "Suspended" && text(condition, "status") == "True"
    };
    !has(status, "startTime")
        || number(status, "active").unwrap_or(0) == 0 && conditions.into_iter().any(is_suspended)
}

/// The parts of a template that a suspended job cannot change: not its metadata, where its pods are
/// scheduled, or the resources of its containers.
fn fixed_template(mut template: Value) -> Value {
    template["metadata"] = json!({});
    let spec = &mut template["spec"];
    for name in ["nodeSelector", "tolerations", "schedulingGates"] {
        spec[name] = Value::Null;
    }
    if let Some(affinity) = spec["affinity"].as_object_mut() {
        affinity.remove("nodeAffinity");
        if affinity.is_empty() {
            spec["affinity"] = Value::Null;
        }
    }
    for name in ["containers", "initContainers"] {
        for container in spec[name].as_array_mut().into_iter().flatten() {
            container["resources"] = Value::Null;
        }
    }
    template
}

fn claim(check: &mut Check<'_>, old: &Object, spec: &Object, before: &Object) {
    let bound = map(old, "status").is_some_and(|status| text(status, "phase") == "Bound");
    let size = |spec: &Object| {
        let requests = get(spec, &["resources", "requests", "storage"]).and_then(Value::as_str);
        Quantity::parse(requests.unwrap_or("0")).ok()
    };
    let fixed = |spec: &Object| {
        let mut spec = spec.clone();
        if text(before, "volumeName").is_empty() {
            spec.remove("volumeName");
        }
        if !has(before, "storageClassName") {
            spec.remove("storageClassName");
        }
        if bound {
            spec.remove("volumeAttributesClassName");
            if let Some(requests) = spec.get_mut("resources").and_then(|r| r.get_mut("requests")) {
                requests["storage"] = Value::Null;
            }
        }
        spec
    };
    let changed = differing(&fixed(spec), &fixed(before));
    if !changed.is_empty() {
        let why = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{}",
            changed.join("\n")
        );
        check.forbidden("spec", &why);
    }
    if let (Some(new), Some(old_size)) = (size(spec), size(before))
        && new < old_size
    {
        let capacity = get(old, &["status", "capacity", "storage"]).and_then(Value::as_str);
        let capacity = capacity.and_then(|text| Quantity::parse(text).ok());
        if new <= capacity.unwrap_or(Quantity::count(0)) {
            let field = "spec.resources.requests.storage";
            check.forbidden(field, "field can not be less than status.capacity");
        }
    }
    if spec.get("volumeMode") != before.get("volumeMode") {
        check.invalid("volumeMode", &shown(spec, "volumeMode"), "field is immutable");
    }
}

fn volume(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let mut names: Vec<&str> = volume::sources(spec).chain(volume::sources(old)).collect();
    names.sort_unstable();
    names.dedup();
    if names.into_iter().any(|name| spec.get(name) != old.get(name)) {
        let why = "spec.persistentvolumesource is immutable after creation";
        check.forbidden("spec.persistentvolumesource", why);
    }
    if spec.get("volumeMode") != old.get("volumeMode") {
        check.invalid("volumeMode", &shown(spec, "volumeMode"), "field is immutable");
    }
}

fn node(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let kept = |name: &str| !has(old, name) || spec.get(name) == old.get(name);
    if !kept("podCIDRs") {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        check.forbidden("spec.podCIDRs", why);
    }
    if !kept("providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        check.forbidden("spec.providerID", why);
    }
}

/// Whether a driver attaches volumes stays as it is. The path is spelled as in Kubernetes.
fn attachment(check: &mut Check<'_>, spec: &Object, old: &Object) {
    if spec.get("attachRequired") != old.get("attachRequired") {
        let value = shown(spec, "attachRequired");
        check.invalid("spec.attachedRequired", &value, "field is immutable");
    }
}

/// The drivers of a node stay as they are, but for the volumes that they can attach.
fn drivers(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let fixed = |driver: &Object| {
        let mut driver = driver.clone();
        driver.remove("allocatable");
        driver
    };
    // The names of the old ones are unique.
    let before: HashMap<&str, &Object> =
        objects(old, "drivers").map(|(_, before)| (text(before, "name"), before)).collect();
    for (_, now) in objects(spec, "drivers") {
        if before.get(text(now, "name")).is_some_and(|before| fixed(now) != fixed(before)) {
            let value = Value::Object(now.clone());
            check.invalid("spec.drivers", &value, "field is immutable");
        }
    }
}

fn scopes(check: &mut Check<'_>, spec: &Object, old: &Object) {
    let sorted = |spec: &Object| {
        let mut scopes: Vec<String> = list(spec, "scopes").iter().map(Value::to_string).collect();
        scopes.sort();
        scopes
    };
    if sorted(spec) != sorted(old) {
        check.invalid("spec.scopes", &shown(spec, "scopes"), "field is immutable");
    }
}
