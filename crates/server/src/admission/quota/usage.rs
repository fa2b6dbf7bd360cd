//! The quota usage of one object.

use std::collections::BTreeMap;
use std::sync::Arc;

use headwater_api::quantity::Quantity;
use headwater_json::{Value, json};

use super::row;
use crate::admission::resources::{
    Amounts, ResourceList, add, amounts, containers, of_container, of_pod,
};
use crate::kinds::registry::{Registry, Served};

/// Kinds with a quota name of their own, older than `count/`.
const ALIASES: [&str; 4] = ["configmaps", "resourcequotas", "replicationcontrollers", "secrets"];

/// Resources of pods that a quota may name without `requests.` or `limits.`.
const PLAIN_REQUESTS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Resources that every container must set if a quota limits them.
#[rustfmt::skip]
const MANDATORY: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// After the name of a device class, the number of its devices that claims ask for.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// The largest number of devices of a claim, counted for a request of all.
const DEVICES_MAX: u64 = 32;

/// Whether quotas apply to this kind: all namespaced kinds except events, which expire.
pub(super) fn counts(kind: &Served) -> bool {
    kind.namespaced && !kind.traits.expires
}

fn is_core(kind: &Served, plural: &str) -> bool {
    kind.group.is_empty() && kind.plural == plural
}

fn is_device_claim(kind: &Served) -> bool {
    kind.group == "resource.k8s.io" && kind.plural == "resourceclaims"
}

/// Whether quotas only count objects of this kind.
pub(super) fn is_plain(kind: &Served) -> bool {
    let amounts = ["pods", "services", "persistentvolumeclaims"];
    !is_device_claim(kind) && !amounts.iter().any(|plural| is_core(kind, plural))
}

/// `count/deployments.apps`.
fn count_name(kind: &Served) -> String {
    format!("count/{}", kind.resource())
}

/// The kinds that a quota limits.
pub(super) fn counted_kinds(registry: &Registry, hard: &Amounts) -> Vec<Arc<Served>> {
    let mut kinds: Vec<Arc<Served>> = Vec::new();
    for name in hard.keys() {
        let (group, plural) = match name.strip_prefix("count/") {
            Some(resource) => {
                let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
                (group, plural)
            }
            None if ALIASES.contains(&name.as_str()) => ("", name.as_str()),
            None if name.ends_with(DEVICES) => ("resource.k8s.io", "resourceclaims"),
            None if name.starts_with("services") => ("", "services"),
            None if name == "persistentvolumeclaims"
                || name == "requests.storage"
                || name.contains("storageclass.storage.k8s.io/") =>
            {
                ("", "persistentvolumeclaims")
            }
            None => ("", "pods"),
        };
        let known = kinds.iter().any(|kind| kind.group == group && kind.plural == plural);
        if let Some(kind) = row(registry, group, plural).filter(|_| !known) {
            kinds.push(Arc::clone(kind));
        }
    }
    kinds
}

/// The usage of a number of objects of a counted kind.
pub(super) fn of_count(kind: &Served, count: u64) -> Amounts {
    let mut used = Amounts::new();
    used.insert(count_name(kind), Quantity::count(count));
    if kind.group.is_empty() && ALIASES.contains(&&*kind.plural) {
        used.insert(kind.plural.to_string(), Quantity::count(count));
    }
    used
}

/// The usage of one object.
pub(super) fn usage(kind: &Served, object: &Value) -> Amounts {
    let mut used = of_count(kind, 1);
    match &*kind.plural {
        "pods" if kind.group.is_empty() => pod(&mut used, object),
        "services" if kind.group.is_empty() => service(&mut used, object),
        "persistentvolumeclaims" if kind.group.is_empty() => claim(&mut used, object),
        _ if is_device_claim(kind) => devices(&mut used, object),
        _ => {}
    }
    used
}

/// The parts of an object that quotas depend on; only these are cached.
pub(super) fn essence(kind: &Served, object: &Value) -> Value {
    let spec = &object["spec"];
    match &*kind.plural {
        "pods" => {
            let few = |key: &str| -> Value {
                let container = |container: &Value| {
                    json!({
                        "resources": container["resources"],
                        "restartPolicy": container["restartPolicy"],
                    })
                };
                containers(spec, key).iter().map(container).collect()
            };
            json!({
                "spec": {
                    "containers": few("containers"), "initContainers": few("initContainers"),
                    "overhead": spec["overhead"], "resources": spec["resources"],
                    "activeDeadlineSeconds": spec["activeDeadlineSeconds"],
                    "priorityClassName": spec["priorityClassName"],
                    "affinity": spec["affinity"],
                },
                "status": { "phase": object["status"]["phase"] },
            })
        }
        "services" => json!({"spec": {
            "type": spec["type"], "ports": spec["ports"],
            "allocateLoadBalancerNodePorts": spec["allocateLoadBalancerNodePorts"],
        }}),
        "persistentvolumeclaims" => {
            let status = &object["status"];
            json!({
                "spec": {
                    "resources": spec["resources"],
                    "storageClassName": spec["storageClassName"],
                    "volumeAttributesClassName": spec["volumeAttributesClassName"],
                },
                "status": {
                    "currentVolumeAttributesClassName": status["currentVolumeAttributesClassName"],
                    "modifyVolumeStatus": status["modifyVolumeStatus"],
                },
            })
        }
        _ => Value::Null,
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// A finished pod counts only as an object.
fn pod(used: &mut Amounts, pod: &Value) {
    if is_over(pod) {
        return;
    }
    used.insert("pods".into(), Quantity::count(1));
    for (name, amount) in of_pod(&pod["spec"], ResourceList::Requests) {
        if PLAIN_REQUESTS.contains(&name.as_str()) || name.starts_with("hugepages-") {
            used.insert(name.clone(), amount);
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in of_pod(&pod["spec"], ResourceList::Limits) {
        if PLAIN_REQUESTS.contains(&name.as_str()) {
            used.insert(format!("limits.{name}"), amount);
        }
    }
}

fn service(used: &mut Amounts, service: &Value) {
    used.insert("services".into(), Quantity::count(1));
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map_or(0, Vec::len) as u64;
    match spec["type"].as_str() {
        Some("NodePort") => {
            used.insert("services.nodeports".into(), Quantity::count(ports));
        }
        Some("LoadBalancer") => {
            used.insert("services.loadbalancers".into(), Quantity::count(1));
            if spec["allocateLoadBalancerNodePorts"] != false {
                used.insert("services.nodeports".into(), Quantity::count(ports));
            }
        }
        _ => {}
    }
}

fn claim(used: &mut Amounts, claim: &Value) {
    used.insert("persistentvolumeclaims".into(), Quantity::count(1));
    let class = claim["spec"]["storageClassName"].as_str().unwrap_or_default();
    let of_class = |name: &str| format!("{class}.storageclass.storage.k8s.io/{name}");
    if !class.is_empty() {
        used.insert(of_class("persistentvolumeclaims"), Quantity::count(1));
    }
    if let Some(storage) = amounts(&claim["spec"]["resources"]["requests"]).get("storage") {
        used.insert("requests.storage".into(), *storage);
        if !class.is_empty() {
            used.insert(of_class("requests.storage"), *storage);
        }
    }
}

/// The devices of each class that a claim may get at most.
fn devices(used: &mut Amounts, claim: &Value) {
    let count = |request: &Value| match request["allocationMode"].as_str() {
        Some("ExactCount") => request["count"].as_u64().unwrap_or_default(),
        Some("All") => DEVICES_MAX,
        _ => 0,
    };
    for request in claim["spec"]["devices"]["requests"].as_array().into_iter().flatten() {
        let alternatives = request["firstAvailable"].as_array().into_iter().flatten();
        let exact = request.get("exactly");
        let mut of_class: BTreeMap<&str, u64> = BTreeMap::new();
        for one in alternatives.chain(exact) {
            let most = of_class.entry(one["deviceClassName"].as_str().unwrap_or_default());
            let most = most.or_default();
            *most = count(one).max(*most);
        }
        let named = |(class, most)| (format!("{class}{DEVICES}"), Quantity::count(most));
        add(used, &of_class.into_iter().map(named).collect());
    }
}

/// The resources that a new pod must set because a quota limits them.
pub(super) fn constraints(kind: &Served, object: &Value, hard: &Amounts) -> Result<(), String> {
    if !is_core(kind, "pods") {
        return Ok(());
    }
    let spec = &object["spec"];
    let mut missing = Vec::new();
    for name in MANDATORY.iter().filter(|name| hard.contains_key(**name)) {
        let (list, plain) = match (name.strip_prefix("limits."), name.strip_prefix("requests.")) {
            (Some(plain), _) => (ResourceList::Limits, plain),
            (None, Some(plain)) => (ResourceList::Requests, plain),
            (None, None) => (ResourceList::Requests, *name),
        };
        if amounts(&spec["resources"][list.key()]).contains_key(plain) {
            continue;
        }
        let silent = |container: &&Value| !of_container(container, list).contains_key(plain);
        let all = containers(spec, "containers").iter().chain(containers(spec, "initContainers"));
        let names: Vec<&str> =
            all.filter(silent).filter_map(|container| container["name"].as_str()).collect();
        if !names.is_empty() {
            missing.push(format!("{name} for: {}", names.join(",")));
        }
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("must specify {}", missing.join("; "))),
    }
}

/// The scopes of a quota; all must apply.
pub(super) struct Scopes(Vec<Scope>);

struct Scope {
    name: String,
    operator: String,
    values: Vec<String>,
}

impl Scopes {
    pub(super) fn of(quota: &Value) -> Scopes {
        let words = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let spec = &quota["spec"];
        let mut scopes: Vec<Scope> = words(&spec["scopes"])
            .into_iter()
            .map(|name| Scope { name, operator: "Exists".to_owned(), values: Vec::new() })
            .collect();
        for term in spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten() {
            let text = |key: &str| term[key].as_str().unwrap_or_default().to_owned();
            scopes.push(Scope {
                name: text("scopeName"),
                operator: text("operator"),
                values: words(&term["values"]),
            });
        }
        Scopes(scopes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the quota applies to an object. Scopes select pods and claims of volumes only.
    pub(super) fn cover(&self, kind: &Served, object: &Value) -> bool {
        let is_in: fn(&Scope, &Value) -> bool = match &*kind.plural {
            _ if self.is_empty() => return true,
            "pods" if kind.group.is_empty() => has_pod,
            "persistentvolumeclaims" if kind.group.is_empty() => has_claim,
            _ => return false,
        };
        self.0.iter().all(|scope| is_in(scope, object))
    }
}

fn has_pod(scope: &Scope, pod: &Value) -> bool {
    let spec = &pod["spec"];
    let terminating = spec["activeDeadlineSeconds"].as_i64().is_some();
    match scope.name.as_str() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => is_best_effort(spec),
        "NotBestEffort" => !is_best_effort(spec),
        "PriorityClass" => scope.selects([&spec["priorityClassName"]]),
        "CrossNamespacePodAffinity" => has_affinity_across_namespaces(spec),
        _ => false,
    }
}

fn has_claim(scope: &Scope, claim: &Value) -> bool {
    let status = &claim["status"];
    let classes = [
        &claim["spec"]["volumeAttributesClassName"],
        &status["currentVolumeAttributesClassName"],
        &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    scope.name == "VolumeAttributesClass" && scope.selects(classes)
}

impl Scope {
    /// Whether the operator selects one of the names; absent and empty ones do not count.
    fn selects<const N: usize>(&self, names: [&Value; N]) -> bool {
        let names: Vec<&str> =
            names.iter().filter_map(|name| name.as_str()).filter(|name| !name.is_empty()).collect();
        let is_listed = |name: &str| self.values.iter().any(|value| value == name);
        match self.operator.as_str() {
            "In" => names.iter().any(|name| is_listed(name)),
            "NotIn" => names.is_empty() || names.iter().any(|name| !is_listed(name)),
            "DoesNotExist" => names.is_empty(),
            _ => !names.is_empty(),
        }
    }
}

/// Whether a pod has an affinity or anti-affinity to pods of namespaces that it names or selects.
fn has_affinity_across_namespaces(spec: &Value) -> bool {
    let kinds = ["podAffinity", "podAntiAffinity"].map(|kind| &spec["affinity"][kind]);
    let terms = |kind: &&Value, key: &str| kind[key].as_array().cloned().unwrap_or_default();
    let required =
        kinds.iter().flat_map(|kind| terms(kind, "requiredDuringSchedulingIgnoredDuringExecution"));
    let preferred = kinds
        .iter()
        .flat_map(|kind| terms(kind, "preferredDuringSchedulingIgnoredDuringExecution"))
        .map(|weighted| weighted["podAffinityTerm"].clone());
    let is_across = |term: Value| {
        term["namespaces"].as_array().is_some_and(|names| !names.is_empty())
            || term["namespaceSelector"].is_object()
    };
    required.chain(preferred).any(is_across)
}

/// Whether a pod has no CPU or memory requests or limits.
fn is_best_effort(spec: &Value) -> bool {
    let asks = |list: ResourceList| {
        of_pod(spec, list)
            .iter()
            .any(|(name, amount)| matches!(name.as_str(), "cpu" | "memory") && !amount.is_zero())
    };
    !asks(ResourceList::Requests) && !asks(ResourceList::Limits)
}
