//! Rules of configuration, permission, storage, quota and fairness.

use std::collections::{HashMap, HashSet};

use headwater_json::Value;

use super::pod::{is_standard, resource_amount, resource_name};
use super::rule::{Seen, cidr};
use super::{Check, Object, Path, has, is_true, list, map, number, objects, shown, text};
use headwater_api::name;
use headwater_api::quantity::Quantity;
use headwater_api::selector::StructuredSelector;
use headwater_api::status::{FieldError, FieldErrorKind};

/// The maximum number of bytes in a ConfigMap or Secret.
const DATA_BYTES_MAX: usize = 1024 * 1024;

pub(super) fn config_map(check: &mut Check<'_>, config: &Object, path: &Path<'_>) {
    let mut bytes = 0;
    for (name, encoded) in [("data", false), ("binaryData", true)] {
        let at = path.field(name);
        for (key, value) in map(config, name).into_iter().flatten() {
            check.problems(at.bracket(key), key, name::config_key(key));
            bytes += value_bytes(value, encoded);
            let twice = !encoded && map(config, "binaryData").is_some_and(|b| b.contains_key(key));
            if twice {
                let why = "duplicate of key present in binaryData";
                check.invalid(at.bracket(key), &key.as_str().into(), why);
            }
        }
    }
    if bytes > DATA_BYTES_MAX {
        // Kubernetes reports an empty field name.
        too_long(check, "[]");
    }
}

/// Bytes of a value, which is base64 if it is `encoded`.
fn value_bytes(value: &Value, encoded: bool) -> usize {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    if encoded { (text.len() / 4 * 3).saturating_sub(padding) } else { text.len() }
}

fn too_long(check: &mut Check<'_>, field: &str) {
    check.errors.push(FieldError {
        kind: FieldErrorKind::TooLong,
        field: field.to_owned(),
        detail: format!("may not be more than {DATA_BYTES_MAX} bytes"),
    });
}

/// Keys that a Secret of a type must have.
const SECRET_KEYS: &[(&str, &str)] = &[
    ("kubernetes.io/dockercfg", ".dockercfg"),
    ("kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
    ("kubernetes.io/ssh-auth", "ssh-privatekey"),
    ("kubernetes.io/tls", "tls.crt"),
    ("kubernetes.io/tls", "tls.key"),
];

pub(super) fn secret(check: &mut Check<'_>, secret: &Object, path: &Path<'_>) {
    let none = Object::new();
    let data = map(secret, "data").unwrap_or(&none);
    let at = path.field("data");
    for key in data.keys() {
        check.problems(at.bracket(key), key, name::config_key(key));
    }
    if data.values().map(|value| value_bytes(value, true)).sum::<usize>() > DATA_BYTES_MAX {
        too_long(check, "data");
    }
    let kind = text(secret, "type");
    for (_, key) in SECRET_KEYS.iter().filter(|(of, _)| *of == kind) {
        // An SSH key must not be empty either.
        let is_empty = *key == "ssh-privatekey" && text(data, key).is_empty();
        if is_empty || !data.contains_key(key) {
            check.required(at.bracket(key), "");
        }
    }
    match kind {
        "kubernetes.io/basic-auth"
            if !data.contains_key("username") && !data.contains_key("password") =>
        {
            check.required(at.bracket("username"), "");
            check.required(at.bracket("password"), "");
        }
        "kubernetes.io/service-account-token" => {
            let key = "kubernetes.io/service-account.name";
            let annotations = map(secret, "metadata").and_then(|m| map(m, "annotations"));
            if annotations.is_none_or(|annotations| text(annotations, key).is_empty()) {
                let metadata = path.field("metadata");
                check.required(metadata.field("annotations").bracket(key), "");
            }
        }
        _ => {}
    }
}

pub(super) fn label_requirement(check: &mut Check<'_>, requirement: &Object, path: &Path<'_>) {
    let values = !list(requirement, "values").is_empty();
    let at = path.field("values");
    match (text(requirement, "operator"), values) {
        ("In" | "NotIn", false) => {
            check.required(at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        ("Exists" | "DoesNotExist", true) => check
            .forbidden(at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
        (other, _) => {
            check.invalid(path.field("operator"), &other.into(), "not a valid selector operator");
        }
    }
}

/// Taints are unique by key and effect. Their paths are as odd as in Kubernetes.
pub(super) fn node(check: &mut Check<'_>, node: &Object, path: &Path<'_>) {
    let Some(spec) = map(node, "spec") else { return };
    let metadata = path.field("metadata");
    let at = metadata.field("taints");
    let mut seen = HashSet::new();
    for (index, taint) in objects(spec, "taints") {
        let taint_path = at.index(index);
        let (key, value, effect) =
            (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        check.problems(taint_path.field("key"), key, name::qualified(key));
        let problems = name::label_value(value);
        if !problems.is_empty() {
            check.invalid(taint_path.field("value"), &value.into(), &problems.join(";"));
        }
        match effect {
            "" => check.required(taint_path.field("effect"), ""),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            other => {
                let supported = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
                check.not_supported(taint_path.field("effect"), &other.into(), &supported);
            }
        }
        if !seen.insert((key, effect)) {
            let value = Value::Object(taint.clone());
            check.errors.push(FieldError {
                kind: FieldErrorKind::Duplicate,
                field: taint_path.to_string(),
                detail: format!("{value}: taints must be unique by key and effect pair"),
            });
        }
    }
    pod_ranges(check, spec, path);
    for side in ["capacity", "allocatable"] {
        let status = path.field("status");
        let side_path = status.field(side);
        let amounts = map(node, "status").and_then(|status| map(status, side));
        for (name, value) in amounts.into_iter().flatten() {
            resource_amount(check, name, value, &side_path.field(name));
        }
    }
}

/// The address ranges of a node: one of each family at most.
fn pod_ranges(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let ranges = list(spec, "podCIDRs");
    let spec_path = path.field("spec");
    let at = spec_path.field("podCIDRs");
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default();
        check.problems(at.index(index), text, cidr(text));
    }
    let is_v6 = |range: &Value| range.as_str().is_some_and(|range| range.contains(':'));
    let is_dual = ranges.len() == 2 && is_v6(&ranges[0]) != is_v6(&ranges[1]);
    if ranges.len() > 1 && !is_dual {
        let why = "may specify no more than one CIDR for each IP family";
        check.invalid(at, &ranges.into(), why);
    }
}

pub(super) fn access_modes(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let modes = list(spec, "accessModes");
    let at = path.field("accessModes");
    for mode in modes {
        if mode.as_str().is_some_and(|mode| !MODES.contains(&mode)) {
            check.not_supported(at, mode, &MODES);
        }
    }
    let alone = modes.iter().any(|mode| mode == "ReadWriteOncePod");
    let others = modes.iter().any(|mode| {
        mode.as_str().is_some_and(|mode| mode != "ReadWriteOncePod" && MODES.contains(&mode))
    });
    if alone && others {
        check.forbidden(at, "may not use ReadWriteOncePod with other access modes");
    }
}

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

pub(super) fn quota(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let hard = path.field("hard");
    for name in map(spec, "hard").into_iter().flat_map(Object::keys) {
        let problems = name::qualified(name);
        let plain = problems.is_empty() && !name.contains('/') && !name.starts_with("count/");
        check.problems(hard.bracket(name), name, problems);
        if plain && !is_standard(name) && !name.starts_with("requests.") {
            let why = "must be a standard resource type or fully qualified";
            check.invalid(hard.bracket(name), &name.as_str().into(), why);
        }
    }
    let scopes = list(spec, "scopes");
    let at = path.field("scopes");
    let is_unknown = |scope: &&Value| scope.as_str().is_some_and(|it| !SCOPES.contains(&it));
    for _ in scopes.iter().filter(is_unknown).take(SAME_ERROR_MAX) {
        check.invalid(at, &scopes.into(), "unsupported scope");
    }
    let both = |a: &str, b: &str| scopes.iter().any(|s| s == a) && scopes.iter().any(|s| s == b);
    if both("BestEffort", "NotBestEffort") || both("Terminating", "NotTerminating") {
        check.invalid(at, &scopes.into(), "conflicting scopes");
    }
    scope_selector(check, spec, path);
}

/// How often an error is repeated that is the same for several parts of a quota. Each shows a list.
const SAME_ERROR_MAX: usize = 8;

/// The scopes whose selectors only ask whether they apply.
const EXISTING_SCOPES: [&str; 5] =
    ["BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "CrossNamespacePodAffinity"];

/// The scope selector of a quota. Its paths lack the index, as in Kubernetes.
fn scope_selector(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let Some(selector) = map(spec, "scopeSelector") else { return };
    let selector_path = path.field("scopeSelector");
    let at = selector_path.field("matchExpressions");
    let mut seen = HashSet::new();
    let mut misfits: HashMap<&str, usize> = HashMap::new();
    let mut left = SAME_ERROR_MAX;
    for (_, requirement) in objects(selector, "matchExpressions") {
        let (scope, operator) = (text(requirement, "scopeName"), text(requirement, "operator"));
        if !SCOPES.contains(&scope) {
            check.invalid(at.field("scopeName"), &scope.into(), "unsupported scope");
        }
        let count = misfits.entry(scope).or_insert_with(|| {
            let hard = map(spec, "hard").into_iter().flat_map(Object::keys);
            hard.filter(|name| is_quota_name(name) && !fits_scope(scope, name)).count()
        });
        for _ in 0..left.min(*count) {
            left -= 1;
            let value = shown(spec, "scopeSelector");
            check.invalid(at, &value, "unsupported scope applied to resource");
        }
        if EXISTING_SCOPES.contains(&scope) && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            check.invalid(at.field("operator"), &operator.into(), why);
        }
        let has_values = !list(requirement, "values").is_empty();
        match (operator, has_values) {
            ("In" | "NotIn", false) => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                check.required(at.field("values"), why);
            }
            ("Exists" | "DoesNotExist", true) => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                check.invalid(at.field("values"), &shown(requirement, "values"), why);
            }
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            _ => {
                let why = "not a valid selector operator";
                check.invalid(at.field("operator"), &operator.into(), why);
            }
        }
        seen.insert(scope);
    }
    let both = |a: &str, b: &str| seen.contains(a) && seen.contains(b);
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if both(one, other) {
            check.invalid(at, &shown(spec, "scopes"), "conflicting scopes");
        }
    }
}

/// The resources of pods that a quota limits.
const POD_QUOTAS: [&str; 10] = [
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// The other resources that a quota limits.
const OTHER_QUOTAS: [&str; 9] = [
    "requests.storage",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_quota_name(name: &str) -> bool {
    POD_QUOTAS.contains(&name)
        || OTHER_QUOTAS.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Whether a scope can limit a resource.
fn fits_scope(scope: &str, resource: &str) -> bool {
    let is_of_pods = POD_QUOTAS.contains(&resource)
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-");
    match scope {
        "BestEffort" => resource == "pods",
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => is_of_pods,
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => true,
    }
}

/// Checks that each type of limit occurs once; unlike for other lists, no type is a type too.
pub(super) fn limit_ranges(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("limits");
    let mut seen = Seen::default();
    for (index, limit) in objects(spec, "limits") {
        let kind = text(limit, "type");
        if !seen.insert(kind) {
            check.duplicate(at.index(index).field("type"), &kind.into());
        }
    }
}

pub(super) fn limit_range(check: &mut Check<'_>, limit: &Object, path: &Path<'_>) {
    let kind = text(limit, "type");
    let problems = name::qualified(kind);
    if !problems.is_empty() {
        check.problems(path.field("type"), kind, problems);
    } else if !kind.contains('/') && !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim")
    {
        let why = "must be a standard limit type or fully qualified";
        check.invalid(path.field("type"), &kind.into(), why);
    }
    for side in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let at = path.field(side);
        if kind == "Pod" && side.starts_with("default") {
            if map(limit, side).is_some_and(|side| !side.is_empty()) {
                check.forbidden(at, "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        for name in map(limit, side).into_iter().flat_map(Object::keys) {
            match kind {
                "Pod" | "Container" => resource_name(check, name, &at.bracket(name)),
                _ => plain_resource_name(check, name, &at.bracket(name)),
            }
        }
    }
    let has_size = |side: &str| map(limit, side).is_some_and(|side| side.contains_key("storage"));
    if kind == "PersistentVolumeClaim" && !has_size("min") && !has_size("max") {
        let why = "either minimum or maximum storage value is required, but neither was provided";
        check.required(path.field("limits"), why);
    }
    limit_order(check, limit, kind, path);
    limit_ratio(check, limit, path);
}

/// Checks the name of a resource of any object.
fn plain_resource_name(check: &mut Check<'_>, name: &str, at: &Path<'_>) {
    let problems = name::qualified(name);
    if problems.is_empty() && !name.contains('/') && !is_standard(name) {
        let why = "must be a standard resource type or fully qualified";
        check.invalid(at, &name.into(), why);
    }
    check.problems(at, name, problems);
}

fn limit_amount(limit: &Object, side: &str, name: &str) -> Option<Quantity> {
    map(limit, side)?.get(name)?.as_str().and_then(|text| Quantity::parse(text).ok())
}

/// Checks the order of minimum, default request, default and maximum.
fn limit_order(check: &mut Check<'_>, limit: &Object, kind: &str, path: &Path<'_>) {
    const ORDER: [(&str, &str, &str, &str, &str); 6] = [
        ("min", "max", "min", "min value", "max value"),
        ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
        ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "default request value",
            "default limit value",
        ),
        ("min", "default", "default", "min value", "default value"),
        ("default", "max", "default", "default value", "max value"),
    ];
    for (low, high, blamed, low_word, high_word) in ORDER {
        if kind == "Pod" && (low.starts_with("default") || high.starts_with("default")) {
            continue;
        }
        let at = path.field(blamed);
        for name in map(limit, low).into_iter().flat_map(Object::keys) {
            if let (Some(less), Some(more)) =
                (limit_amount(limit, low, name), limit_amount(limit, high, name))
                && less > more
            {
                let value = map(limit, blamed).map(|amounts| shown(amounts, name));
                let why = format!("{low_word} {less} is greater than {high_word} {more}");
                check.invalid(at.bracket(name), &value.unwrap_or_default(), &why);
            }
        }
    }
}

/// Checks that a ratio is at least one, and at most what minimum and maximum allow.
fn limit_ratio(check: &mut Check<'_>, limit: &Object, path: &Path<'_>) {
    let at = path.field("maxLimitRequestRatio");
    for (name, value) in map(limit, "maxLimitRequestRatio").into_iter().flatten() {
        let Some(ratio) = limit_amount(limit, "maxLimitRequestRatio", name) else { continue };
        if ratio < Quantity::count(1) {
            check.invalid(at.bracket(name), value, &format!("ratio {ratio} is less than 1"));
        }
        let (least, most) = (limit_amount(limit, "min", name), limit_amount(limit, "max", name));
        let (Some(least), Some(most)) = (least, most) else { continue };
        let span = most.nano() as f64 / least.nano() as f64;
        if ratio.nano() as f64 / 1e9 > span {
            let why = format!("ratio {ratio} is greater than max/min = {span:.6}");
            check.invalid(at.bracket(name), value, &why);
        }
    }
}

pub(super) fn policy_rule(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    let urls = path.field("nonResourceURLs");
    if !list(rule, "nonResourceURLs").is_empty() {
        let value = shown(rule, "nonResourceURLs");
        if check.kind.kind == "Role" {
            check.invalid(urls, &value, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"]
            .iter()
            .any(|name| !list(rule, name).is_empty())
        {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            check.invalid(urls, &value, why);
        }
        return;
    }
    if list(rule, "apiGroups").is_empty() {
        let why = "resource rules must supply at least one api group";
        check.required(path.field("apiGroups"), why);
    }
    if list(rule, "resources").is_empty() {
        let why = "resource rules must supply at least one resource";
        check.required(path.field("resources"), why);
    }
}

pub(super) fn subject(check: &mut Check<'_>, subject: &Object, path: &Path<'_>) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let group = text(subject, "apiGroup");
    let expected = match text(subject, "kind") {
        "ServiceAccount" => "",
        "User" | "Group" => GROUP,
        _ => return,
    };
    if group != expected {
        check.not_supported(path.field("apiGroup"), &group.into(), &[expected]);
    }
}

/// Checks the kinds of a role reference and of a subject: none is no kind either.
pub(super) fn subject_role(check: &mut Check<'_>, binding: &Object, path: &Path<'_>) {
    let Some(role) = map(binding, "roleRef") else { return };
    let supported: &[&str] = match check.kind.kind == "RoleBinding" {
        true => &["ClusterRole", "Role"],
        false => &["ClusterRole"],
    };
    let kind = text(role, "kind");
    if !supported.contains(&kind) {
        check.not_supported(path.field("roleRef").field("kind"), &kind.into(), supported);
    }
}

/// The selectors of an aggregated role.
pub(super) fn cluster_role(check: &mut Check<'_>, rule: &Object, path: &Path<'_>) {
    let at = path.field("clusterRoleSelectors");
    for (index, selector) in objects(rule, "clusterRoleSelectors") {
        if let Err(why) = StructuredSelector::of(selector) {
            let value = Value::Object(selector.clone());
            check.invalid(at.index(index), &value, &format!("invalid label selector: {why}"));
        }
    }
}

pub(super) fn cluster_subjects(check: &mut Check<'_>, binding: &Object, path: &Path<'_>) {
    let at = path.field("subjects");
    for (index, subject) in objects(binding, "subjects") {
        if text(subject, "kind") == "ServiceAccount" && text(subject, "namespace").is_empty() {
            check.required(at.index(index).field("namespace"), "");
        }
    }
}

/// The highest priority of user classes.
const PRIORITY_MAX: i64 = 1_000_000_000;

pub(super) fn priority_class(check: &mut Check<'_>, class: &Object, path: &Path<'_>) {
    let name = map(class, "metadata").map_or("", |metadata| text(metadata, "name"));
    let value = number(class, "value").unwrap_or(0);
    if !name.starts_with("system-") {
        if value > PRIORITY_MAX {
            let why = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
            check.forbidden(path.field("value"), &why);
        }
        return;
    }
    let known = match name {
        "system-cluster-critical" => Some(2_000_000_000),
        "system-node-critical" => Some(2_000_001_000),
        _ => None,
    };
    let error = match known {
        None => format!("{name} is not a known system priority class"),
        Some(expected) if expected != value => {
            format!("value of {name} PriorityClass must be {expected}")
        }
        Some(_) if is_true(class, "globalDefault") => {
            format!("globalDefault of {name} PriorityClass must be false")
        }
        Some(_) => return,
    };
    let why = format!(
        "priority class names with 'system-' prefix are reserved for system use only. error: {error}"
    );
    check.forbidden(path.field("metadata").field("name"), &why);
}

/// Checks that an event is in the namespace of its object.
pub(super) fn event(check: &mut Check<'_>, event: &Object, path: &Path<'_>) {
    let namespace = map(event, "metadata").map_or("", |metadata| text(metadata, "namespace"));
    let about = map(event, "involvedObject").map_or("", |object| text(object, "namespace"));
    let modern = has(event, "eventTime");
    let fits = match (about, modern) {
        ("", true) => matches!(namespace, "default" | "kube-system"),
        ("", false) => matches!(namespace, "" | "default"),
        (about, false) => about == namespace,
        (_, true) => true,
    };
    if !fits {
        let at = path.field("involvedObject");
        check.invalid(at.field("namespace"), &about.into(), "does not match event.namespace");
    }
    if !modern {
        return;
    }
    for name in ["reportingComponent", "reportingInstance", "action", "reason"] {
        if text(event, name).is_empty() {
            check.required(path.field(name), "");
        }
    }
}
