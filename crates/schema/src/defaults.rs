//! Defaults of built-in kinds.
//!
//! River: decoded object → **defaults** → validation → store. The defaults are in `defaults/table.txt`,
//! by type; those that do not fit a table are small rules here.
//! Promise: applying them twice changes nothing.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::{Map, Value, json};

use crate::types::{Reach, Steps, Type, Types, ValueType, When, get, is_absent, steps};
use headwater_api::kind::Kind;

mod image;
mod prepare;

pub use prepare::{prepare_for_create, prepare_for_update, quality_of_service};

type Object = Map;

/// Applies the defaults of a built-in kind to an object that was decoded as one. Members that equal
/// those of `old`, a stored object, have theirs already.
pub fn apply(kind: &Kind, object: &mut Value, old: Option<&Value>) {
    if let (Some(of), Value::Object(object)) = (Types::builtin().of(kind), object) {
        PLAN.object(of, object, old.and_then(Value::as_object));
    }
}

static PLAN: LazyLock<Plan> = LazyLock::new(|| Plan::read(include_str!("defaults/table.txt")));

/// The parsed table.
struct Plan {
    /// Rules by index of type.
    rules: Vec<Vec<Rule>>,
    reach: Reach,
}

struct Rule {
    when: When,
    action: Action,
}

enum Action {
    /// Set if absent.
    Set(Steps, Value),
    /// Set if absent or zero.
    SetZero(Steps, Value),
    Copy(Steps, Steps),
    Call(fn(&mut Object)),
}

impl Plan {
    fn read(text: &'static str) -> Plan {
        let types = Types::builtin();
        let mut rules: Vec<Vec<Rule>> = types.iter().map(|_| Vec::new()).collect();
        let mut of = usize::MAX;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix("  ") {
                Some(rule) => rules[of].push(Rule::read(rule)),
                None => of = types.named(line).expect("the table names types").id.index(),
            }
        }
        let reach = Reach::new(types, |id| !rules[id.index()].is_empty());
        Plan { rules, reach }
    }

    /// Applies the defaults of an object before those of its members, as Kubernetes does.
    fn object(&self, of: &Type, object: &mut Object, old: Option<&Object>) {
        for rule in &self.rules[of.id.index()] {
            rule.apply(object);
        }
        for (field, value) in self.reach.members(of, object.iter_mut()) {
            if old.is_none_or(|old| old.get(field.name) != Some(&*value)) {
                self.value(&field.shape, value);
            }
        }
    }

    fn value(&self, shape: &ValueType, value: &mut Value) {
        match (shape, value) {
            (ValueType::Struct(id), Value::Object(object)) => {
                self.object(Types::builtin().get(*id), object, None);
            }
            (ValueType::List(inner), Value::Array(items)) => {
                items.iter_mut().for_each(|item| self.value(inner, item));
            }
            (ValueType::Map(inner), Value::Object(object)) => {
                object.values_mut().for_each(|value| self.value(inner, value));
            }
            _ => {}
        }
    }
}

impl Rule {
    fn read(line: &'static str) -> Rule {
        if let Some(name) = line.strip_prefix('@') {
            return Rule { when: When::Always, action: Action::Call(named(name)) };
        }
        let (line, when) = When::split(line);
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().expect("a rule has a path, a sign and a value");
        let (to, sign, value) = (next(), next(), next());
        let json = || serde_json::from_str(value).expect("defaults are JSON");
        let action = match sign {
            "=" => Action::Set(steps(to), json()),
            ":=" => Action::SetZero(steps(to), json()),
            "<" => Action::Copy(steps(to), steps(value)),
            other => unreachable!("no sign {other}"),
        };
        Rule { when, action }
    }

    fn apply(&self, object: &mut Object) {
        if !self.when.holds(object) {
            return;
        }
        match &self.action {
            Action::Set(path, value) if is_absent(get(object, path)) => {
                set(object, path, value.clone());
            }
            Action::SetZero(path, value) if is_zero(get(object, path)) => {
                set(object, path, value.clone());
            }
            Action::Copy(to, from) if is_zero(get(object, to)) => {
                if let Some(value) = get(object, from).cloned() {
                    set(object, to, value);
                }
            }
            Action::Call(rule) => rule(object),
            _ => {}
        }
    }
}

/// Creates missing objects on the path; does nothing if another value is in the way.
fn set(object: &mut Object, path: &[&str], value: Value) {
    match path {
        [] => {}
        [name] => _ = object.insert((*name).into(), value),
        [name, rest @ ..] => {
            let inner = object.entry(*name).or_insert(Value::Null);
            if inner.is_null() {
                *inner = Value::Object(Object::new());
            }
            if let Value::Object(inner) = inner {
                set(inner, rest, value);
            }
        }
    }
}

fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::Object(object)) => object.is_empty(),
        Some(_) => false,
    }
}

/// The rules that do not fit the table.
fn named(name: &str) -> fn(&mut Object) {
    match name {
        "claim-templates" => claim_templates,
        "custom-names" => custom_names,
        "node-ranges" => node_ranges,
        "host-ports" => host_ports,
        "image-pull-policy" => image_pull_policy,
        "limit-range" => limit_range,
        "namespace-label" => namespace_label,
        "pod-ips" => pod_ips,
        "requests-from-limits" => requests_from_limits,
        "scaling-behavior" => scaling_behavior,
        "service-account" => service_account,
        "service-addresses" => service_addresses,
        "session-affinity" => session_affinity,
        "string-data" => string_data,
        "volume-source" => volume_source,
        other => unreachable!("no rule {other}"),
    }
}

fn text<'a>(object: &'a Object, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(object: &'a mut Object, path: &[&str]) -> impl Iterator<Item = &'a mut Object> {
    let mut at = Some(object);
    let (last, above) = path.split_last().unwrap_or((&"", &[]));
    for name in above {
        at = at.and_then(|object| object.get_mut(name)?.as_object_mut());
    }
    let list = at.and_then(|object| object.get_mut(last)?.as_array_mut());
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// The objects of a list.
fn objects<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a Object> {
    let list = get(object, path).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_object)
}

/// Sets `apiVersion` and `kind` of the claim templates of a StatefulSet.
fn claim_templates(spec: &mut Object) {
    for claim in items(spec, &["volumeClaimTemplates"]) {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
    }
}

/// `podCIDR` is the first of `podCIDRs`; where they differ, the older field wins.
fn node_ranges(spec: &mut Object) {
    let first = get(spec, &["podCIDRs"]).and_then(|ranges| ranges.get(0)?.as_str());
    match (text(spec, "podCIDR"), first) {
        ("", Some(first)) => {
            let first = first.to_owned();
            spec.insert("podCIDR".into(), first.into());
        }
        (one, first) if !one.is_empty() && Some(one) != first => {
            let one = one.to_owned();
            spec.insert("podCIDRs".into(), json!([one]));
        }
        _ => {}
    }
}

fn custom_names(spec: &mut Object) {
    let Some(Value::Object(names)) = spec.get_mut("names") else { return };
    let kind = text(names, "kind").to_owned();
    if text(names, "singular").is_empty() {
        names.insert("singular".into(), kind.to_lowercase().into());
    }
    if text(names, "listKind").is_empty() && !kind.is_empty() {
        names.insert("listKind".into(), format!("{kind}List").into());
    }
}

/// With host networking, sets the host port of each container port.
fn host_ports(pod: &mut Object) {
    if get(pod, &["spec", "hostNetwork"]) != Some(&Value::Bool(true)) {
        return;
    }
    for list in ["containers", "initContainers"] {
        for container in items(pod, &["spec", list]) {
            for port in items(container, &["ports"]) {
                if let (None, Some(number)) = (port.get("hostPort"), port.get("containerPort")) {
                    let number = number.clone();
                    port.insert("hostPort".into(), number);
                }
            }
        }
    }
}

fn image_pull_policy(container: &mut Object) {
    if is_absent(container.get("imagePullPolicy")) {
        let policy = image::pull_policy(text(container, "image"));
        container.insert("imagePullPolicy".into(), policy.into());
    }
}

fn limit_range(item: &mut Object) {
    if text(item, "type") != "Container" {
        return;
    }
    fill(item, "default", "max");
    fill(item, "defaultRequest", "default");
    fill(item, "defaultRequest", "min");
}

/// Adds the missing entries of another map.
fn fill(object: &mut Object, to: &str, from: &str) {
    let Some(Value::Object(from)) = object.get(from).cloned() else { return };
    let to = object.entry(to).or_insert_with(|| Value::Object(Object::new()));
    if let Value::Object(to) = to {
        for (key, value) in from {
            to.entry(key).or_insert(value);
        }
    }
}

/// Labels a namespace with its name (S10.1).
fn namespace_label(namespace: &mut Object) {
    let name = get(namespace, &["metadata", "name"]).and_then(Value::as_str).unwrap_or_default();
    if !name.is_empty() {
        let name = name.to_owned();
        set(namespace, &["metadata", "labels", "kubernetes.io/metadata.name"], name.into());
    }
}

/// `podIP` is the first of `podIPs`; where they differ, the older field wins.
fn pod_ips(status: &mut Object) {
    let first = get(status, &["podIPs"]).and_then(|ips| ips.get(0)?.get("ip")?.as_str());
    match (text(status, "podIP"), first) {
        ("", Some(first)) => {
            let first = first.to_owned();
            status.insert("podIP".into(), first.into());
        }
        (ip, first) if !ip.is_empty() && Some(ip) != first => {
            let ip = ip.to_owned();
            status.insert("podIPs".into(), json!([{"ip": ip}]));
        }
        _ => {}
    }
}

/// Sets missing requests of a pod, not of a template, to the limits.
fn requests_from_limits(pod: &mut Object) {
    for list in ["containers", "initContainers"] {
        // Most pods lack none, and what is only read stays shared with the stored pod.
        if !objects(pod, &["spec", list]).any(lacks_requests) {
            continue;
        }
        for container in items(pod, &["spec", list]) {
            if let Some(Value::Object(resources)) = container.get_mut("resources") {
                fill(resources, "requests", "limits");
            }
        }
    }
    if let Some(seconds) = get(pod, &["spec", "terminationGracePeriodSeconds"])
        && seconds.as_i64().is_some_and(|seconds| seconds < 0)
    {
        set(pod, &["spec", "terminationGracePeriodSeconds"], 1.into());
    }
}

/// Whether a container has a limit without a request.
fn lacks_requests(container: &Object) -> bool {
    let Some(Value::Object(limits)) = get(container, &["resources", "limits"]) else {
        return false;
    };
    match get(container, &["resources", "requests"]) {
        Some(Value::Object(requests)) => limits.keys().any(|name| !requests.contains_key(name)),
        _ => true,
    }
}

/// Sets the scaling rules, if there is a behavior.
fn scaling_behavior(spec: &mut Object) {
    let Some(Value::Object(behavior)) = spec.get_mut("behavior") else { return };
    let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]});
    let down = json!({"selectPolicy": "Max", "policies": [
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]});
    for (name, defaults) in [("scaleUp", up), ("scaleDown", down)] {
        behavior.insert("default".into(), defaults);
        fill(behavior, name, "default");
    }
    behavior.remove("default");
}

/// Copies `serviceAccountName` to its deprecated alias.
fn service_account(spec: &mut Object) {
    let name = match text(spec, "serviceAccountName") {
        "" => text(spec, "serviceAccount"),
        name => name,
    };
    if !name.is_empty() {
        let name = name.to_owned();
        spec.insert("serviceAccount".into(), name.clone().into());
        spec.insert("serviceAccountName".into(), name.into());
    }
}

/// The address fields that do not depend on allocation; IPv4 is the only family.
fn service_addresses(spec: &mut Object) {
    if text(spec, "type") == "ExternalName" {
        return;
    }
    let ip = text(spec, "clusterIP").to_owned();
    if !ip.is_empty() && is_absent(spec.get("clusterIPs")) {
        spec.insert("clusterIPs".into(), json!([ip]));
    }
    // Without a selector the families of the endpoints are unknown.
    let open = ip == "None" && is_absent(spec.get("selector"));
    let (families, policy) = match ip.contains(':') {
        _ if open => (json!(["IPv4", "IPv6"]), "RequireDualStack"),
        false => (json!(["IPv4"]), "SingleStack"),
        true => (json!(["IPv6"]), "SingleStack"),
    };
    if is_absent(spec.get("ipFamilies")) {
        spec.insert("ipFamilies".into(), families);
    }
    if is_absent(spec.get("ipFamilyPolicy")) {
        spec.insert("ipFamilyPolicy".into(), policy.into());
    }
}

fn session_affinity(spec: &mut Object) {
    match text(spec, "sessionAffinity") {
        "None" => _ = spec.remove("sessionAffinityConfig"),
        "ClientIP" => {
            let path = ["sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            if is_absent(get(spec, &path)) {
                set(spec, &path, 10800.into());
            }
        }
        _ => {}
    }
}

/// Moves the write-only plain text of a Secret to `data` (S2.16).
fn string_data(secret: &mut Object) {
    if let Some(Value::Object(texts)) = secret.remove("stringData") {
        for (key, value) in &texts {
            let bytes = value.as_str().unwrap_or_default().as_bytes();
            set(secret, &["data", key], STANDARD.encode(bytes).into());
        }
    }
}

fn volume_source(volume: &mut Object) {
    if volume.keys().all(|name| name == "name") {
        volume.insert("emptyDir".into(), Value::Object(Object::new()));
    }
    if let Some(Value::Object(image)) = volume.get_mut("image")
        && text(image, "pullPolicy").is_empty()
    {
        let policy = image::pull_policy(text(image, "reference"));
        image.insert("pullPolicy".into(), policy.into());
    }
}

#[cfg(test)]
mod tests;
