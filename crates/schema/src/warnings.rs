//! Warnings about accepted but inadvisable fields, with Kubernetes' messages (S2.34).
//!
//! River: a write that passed validation → **warnings** → `Warning` headers. They concern pods, pod
//! templates, the names of future pods, Services, and the finalizers of custom objects.
//! Promise: a warning never rejects a write.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::{self, Display};

use headwater_json::{Map, MemberKey, Value};

use headwater_api::kind::Kind;
use headwater_api::name;
use headwater_api::quantity::Quantity;
use headwater_api::query::quote;

type Object = Map;

/// The warnings about a new object.
pub fn on_create(kind: &Kind, object: &Value) -> Vec<String> {
    let mut warnings = of_any(kind, object, None);
    let Some(template) = template(kind) else { return warnings };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let problems = name::label(name);
    if !problems.is_empty() && !matches!(&*kind.kind, "StatefulSet" | "DaemonSet" | "PodTemplate") {
        let of = if kind.kind == "Pod" { "the Pod's hostname" } else { "Pod names and hostnames" };
        let problems = problems.join(" ");
        warnings.push(format!(
            "metadata.name: this is used in {of}, which can result in surprising behavior; a DNS \
             label is recommended: [{problems}]"
        ));
    }
    pod(&mut warnings, at(object, template), template);
    warnings
}

/// The warnings about a changed object. Updates of pods are not checked, templates only if they change.
pub fn on_update(kind: &Kind, new: &Value, old: &Value) -> Vec<String> {
    let mut warnings = of_any(kind, new, Some(old));
    match template(kind) {
        Some(path) if !path.is_empty() && at(new, path) != at(old, path) => {
            pod(&mut warnings, at(new, path), path);
        }
        _ => {}
    }
    warnings
}

/// The warnings that creates and updates share.
fn of_any(kind: &Kind, object: &Value, old: Option<&Value>) -> Vec<String> {
    match (&*kind.group, &*kind.kind) {
        ("", "Service") => service(&object["spec"]),
        _ if kind.custom => finalizers(object, old),
        _ => Vec::new(),
    }
}

/// Warns about the names of finalizers that are new on a custom object. On built-in kinds they are
/// errors.
fn finalizers(object: &Value, old: Option<&Value>) -> Vec<String> {
    let names = |object: &Value| -> BTreeSet<String> {
        let listed = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        listed.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let before = old.map(names).unwrap_or_default();
    let mut warnings = Vec::new();
    for name in names(object).difference(&before) {
        let quoted = quote(name);
        let problems =
            name::qualified(name).into_iter().chain(name::without_domain(name).then(|| {
                "prefer a domain-qualified finalizer name including a path (/) to avoid accidental \
             conflicts with other finalizer writers"
                    .to_owned()
            }));
        warnings.extend(problems.map(|why| format!("metadata.finalizers: {quoted}: {why}")));
    }
    warnings
}

/// Warns about fields of a Service that have no effect, or no future.
fn service(spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let has = |name: &str| match &spec[name] {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    let sticks = has("sessionAffinity") && spec["sessionAffinity"] != "None";
    if spec["clusterIP"] == "None" {
        for field in ["loadBalancerIP", "externalIPs"].into_iter().filter(|field| has(field)) {
            warnings.push(format!("spec.{field} is ignored when spec.clusterIP is \"None\""));
        }
        if sticks {
            warnings.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    }
    if has("externalIPs") {
        warnings.push("spec.externalIPs is deprecated".to_owned());
    }
    if spec["type"] == "ExternalName" && sticks {
        let why = "spec.SessionAffinity is ignored when spec.type is \"ExternalName\"";
        warnings.push(why.to_owned());
    }
    warnings
}

/// The path of the pod or pod template in a kind.
fn template(kind: &Kind) -> Option<&'static [&'static str]> {
    Some(match (&*kind.group, &*kind.kind) {
        ("", "Pod") => &[],
        ("", "PodTemplate") => &["template"],
        ("", "ReplicationController")
        | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job") => &["spec", "template"],
        ("batch", "CronJob") => &["spec", "jobTemplate", "spec", "template"],
        _ => return None,
    })
}

fn at<'a>(object: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(object, |value, key| &value[*key])
}

const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

const VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn pod(warnings: &mut Vec<String>, pod: &Value, path: &[&str]) {
    let prefix: String = path.iter().map(|step| format!("{step}.")).collect();
    let spec = &pod["spec"];
    let annotations = pod["metadata"]["annotations"].as_object();
    for (key, why) in ANNOTATIONS {
        if annotations.is_some_and(|all| all.contains_key(key)) {
            warnings.push(format!("{prefix}metadata.annotations[{key}]: {why}"));
        }
    }
    let prefix = format!("{prefix}spec");
    for (index, volume) in objects(spec, "volumes") {
        // A volume has few members, and most sources are not deprecated.
        let known = |key: &MemberKey| VOLUMES.iter().find(|(source, _)| key == source);
        for (source, why) in volume.keys().filter_map(known) {
            let source = if *source == "storageos" { "storageOS" } else { source };
            warnings.push(format!("{prefix}.volumes[{index}].{source}: {why}"));
        }
    }
    repeats(warnings, spec, &prefix, "hostAliases", "ip");
    repeats(warnings, spec, &prefix, "imagePullSecrets", "name");
    for (index, secret) in objects(spec, "imagePullSecrets") {
        if text(secret, "name").is_empty() {
            warnings
                .push(format!("{prefix}.imagePullSecrets[{index}].name: invalid empty name \"\""));
        }
    }
    let containers = containers(spec, &prefix);
    for (container, place) in &containers {
        fractions(warnings, container, place);
        hidden_variables(warnings, container, place);
    }
    // A single port cannot conflict.
    if containers.iter().map(|(container, _)| members(container, "ports").count()).sum::<usize>()
        > 1
    {
        ports(warnings, &containers);
        port_names(warnings, &containers);
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        warnings.push(format!("{prefix}.terminationGracePeriodSeconds: {why}"));
    }
}

/// A path that is formatted only if there is a warning.
#[derive(Clone, Copy)]
struct Place<'a> {
    above: &'a dyn Display,
    list: &'static str,
    index: usize,
}

impl Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { above, list, index } = self;
        write!(f, "{above}.{list}[{index}]")
    }
}

/// A container and its path.
type Container<'a> = (&'a Object, Place<'a>);

fn containers<'a>(spec: &'a Value, prefix: &'a String) -> Vec<Container<'a>> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let all = lists.into_iter().flat_map(|list| {
        objects(spec, list)
            .map(move |(index, container)| (container, Place { above: prefix, list, index }))
    });
    all.collect()
}

fn repeats(warnings: &mut Vec<String>, spec: &Value, prefix: &str, list: &str, key: &str) {
    let mut seen = HashSet::new();
    for (index, (_, item)) in objects(spec, list).enumerate() {
        let value = text(item, key);
        if !seen.insert(value) {
            warnings.push(format!("{prefix}.{list}[{index}].{key}: duplicate {key} {value:?}"));
        }
    }
}

/// Warns about fractional bytes.
fn fractions(warnings: &mut Vec<String>, container: &Object, place: &Place<'_>) {
    let Some(all) = container.get("resources") else { return };
    for (kind, resource) in [
        ("limits", "memory"),
        ("requests", "memory"),
        ("limits", "ephemeral-storage"),
        ("requests", "ephemeral-storage"),
    ] {
        let Some(text) = all[kind][resource].as_str() else { continue };
        if Quantity::parse(text).is_ok_and(|amount| !amount.is_integer()) {
            let why = format!("fractional byte value {text:?} is invalid, must be an integer");
            warnings.push(format!("{place}.resources.{kind}[{resource}]: {why}"));
        }
    }
}

/// Warns about a variable that is set twice, unless the second refers to the first.
fn hidden_variables(warnings: &mut Vec<String>, container: &Object, place: &Place<'_>) {
    let mut names: HashSet<&str> = HashSet::new();
    for (index, variable) in members(container, "env") {
        let name = text(variable, "name");
        if names.insert(name) {
            continue;
        }
        let (value, reference) = (text(variable, "value"), format!("$({name})"));
        let builds_on = value.contains(&reference) && value != reference;
        if variable.contains_key("valueFrom") || !builds_on {
            let why = "which may be dropped when using apply";
            warnings.push(format!(
                "{place}.env[{index}]: hides previous definition of {name:?}, {why}"
            ));
        }
    }
}

/// The pairs of ports that are compared. Each pair may be a warning.
const PORT_PAIRS_MAX: usize = 10_000;

fn ports(warnings: &mut Vec<String>, containers: &[Container<'_>]) {
    let mut left = PORT_PAIRS_MAX;
    let mut known: HashMap<(i64, &str), Vec<(&Object, Place<'_>)>> = HashMap::new();
    let number = |port: &Object, key: &str| port.get(key).and_then(Value::as_i64).unwrap_or(0);
    for (container, place) in containers {
        for (index, port) in members(container, "ports") {
            let here = Place { above: place, list: "ports", index };
            let key = (number(port, "containerPort"), text(port, "protocol"));
            let others = known.entry(key).or_default();
            for (other, there) in others.iter() {
                left -= 1;
                if left == 0 {
                    return;
                }
                let hosts = (number(port, "hostPort"), number(other, "hostPort"));
                let addresses = (text(port, "hostIP"), text(other, "hostIP"));
                let what = if hosts.0 == hosts.1 && addresses.0 == addresses.1 {
                    "duplicate"
                } else if hosts.0 == 0 || hosts.1 == 0 {
                    "overlapping"
                } else if hosts.0 == hosts.1 && addresses.0.is_empty() != addresses.1.is_empty() {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                warnings.push(format!("{here}: {what} port definition with {there}"));
            }
            others.push((port, here));
        }
    }
}

fn port_names(warnings: &mut Vec<String>, containers: &[Container<'_>]) {
    let mut known: HashMap<&str, Place<'_>> = HashMap::new();
    for (container, place) in containers {
        for (index, port) in members(container, "ports") {
            let (name, here) = (text(port, "name"), Place { above: place, list: "ports", index });
            match known.get(name) {
                _ if name.is_empty() => {}
                Some(there) => warnings.push(format!(
                    "{here}: duplicate port name {name:?} with {there}, services and probes that \
                     select ports by name will use {there}"
                )),
                None => drop(known.insert(name, here)),
            }
        }
    }
}

fn objects<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    elements(value.get(list))
}

fn members<'a>(object: &'a Object, list: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    elements(object.get(list))
}

fn elements(list: Option<&Value>) -> impl Iterator<Item = (usize, &Object)> {
    let items = list.and_then(Value::as_array).into_iter().flatten().enumerate();
    items.filter_map(|(index, item)| Some((index, item.as_object()?)))
}

fn text<'a>(object: &'a Object, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;
    use headwater_api::kind::builtin;

    fn kind(name: &str) -> Kind {
        builtin().into_iter().find(|kind| kind.kind == name).unwrap()
    }

    #[track_caller]
    fn check(name: &str, object: &Value, expected: &[&str]) {
        assert_eq!(on_create(&kind(name), object), expected);
    }

    fn in_deployment(spec: &Value) -> Value {
        json!({"metadata": {"name": "d"}, "spec": {"template": {"spec": spec}}})
    }

    /// B137: with a search of the list for each element, this test does not end.
    #[test]
    fn long_lists_are_compared_in_linear_time() {
        let secrets = (0..400_000).map(|at| json!({"name": format!("s{}", at % 399_999)}));
        let spec = json!({"imagePullSecrets": secrets.collect::<Vec<Value>>()});
        check(
            "Pod",
            &json!({"metadata": {"name": "p"}, "spec": spec}),
            &["spec.imagePullSecrets[399999].name: duplicate name \"s0\""],
        );
    }

    /// B137: with each pair of ports, this test does not end.
    #[test]
    fn of_many_ports_a_bounded_number_of_pairs_is_compared() {
        let port = |host: usize| json!({"containerPort": 80, "hostPort": host});
        for (ports, are_equal) in [
            (vec![port(0); 100_000], true),
            ((1..100_000).map(port).collect::<Vec<Value>>(), false),
        ] {
            let spec = json!({"containers": [{"name": "c", "ports": ports}]});
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let warnings = on_create(&kind("Pod"), &pod);
            assert_eq!(!warnings.is_empty(), are_equal);
            assert!(warnings.len() < PORT_PAIRS_MAX);
        }
    }

    #[test]
    fn names_that_are_invalid_host_names_get_a_warning() {
        let named = |name: &str| json!({"metadata": {"name": name}});
        check("Pod", &named("a"), &[]);
        check(
            "Pod",
            &named("a.b"),
            &[
                "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            ],
        );
        check(
            "Deployment",
            &named("a.b"),
            &[
                "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
            ],
        );
        check("ConfigMap", &named("a.b"), &[]);
    }

    #[test]
    fn warnings_name_the_path_of_the_field() {
        let spec = json!({
            "terminationGracePeriodSeconds": -1,
            "volumes": [{"name": "v", "gitRepo": {}}],
            "imagePullSecrets": [{"name": "s"}, {"name": "s"}, {}],
            "initContainers": [{"name": "i", "ports": [{"containerPort": 80, "name": "web"}]}],
            "containers": [{
                "name": "c",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "A", "value": "2"},
                    {"name": "A", "value": "$(A)3"},
                ],
                "resources": {"limits": {"memory": "100m", "cpu": "100m"}},
                "ports": [{"containerPort": 80, "hostPort": 1, "name": "web"}],
            }],
        });
        let place = "spec.template.spec";
        let expected = [
            ".volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+",
            ".imagePullSecrets[1].name: duplicate name \"s\"",
            ".imagePullSecrets[2].name: invalid empty name \"\"",
            ".containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer",
            ".containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            ".containers[0].ports[0]: overlapping port definition with spec.template.spec.initContainers[0].ports[0]",
            ".containers[0].ports[0]: duplicate port name \"web\" with spec.template.spec.initContainers[0].ports[0], services and probes that select ports by name will use spec.template.spec.initContainers[0].ports[0]",
            ".terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
        ];
        let expected: Vec<String> = expected.iter().map(|text| format!("{place}{text}")).collect();
        let object = in_deployment(&spec);
        assert_eq!(on_create(&kind("Deployment"), &object), expected);
        let old = in_deployment(&json!({}));
        assert_eq!(on_update(&kind("Deployment"), &object, &old), expected);
        assert_eq!(on_update(&kind("Deployment"), &object, &object), [""; 0]);
        let pod = json!({"spec": spec});
        assert_eq!(on_update(&kind("Pod"), &pod, &json!({})), [""; 0]);
    }
}
