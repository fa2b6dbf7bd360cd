//! Rules of the smaller parts of pods: DNS, kernel parameters, devices, references to fields.

use std::collections::{HashMap, HashSet};

use headwater_json::Value;

use super::rule::Seen;
use super::{Check, Object, Path, has, is_true, list, map, number, objects, shown, text};
use headwater_api::name;

/// The names of the headers of a probe. The errors are at the list, as in Kubernetes.
pub(super) fn http_headers(check: &mut Check<'_>, action: &Object, path: &Path<'_>) {
    let at = path.field("httpHeaders");
    for (_, header) in objects(action, "httpHeaders") {
        let name = text(header, "name");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_plain) {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            check.invalid(at, &name.into(), why);
        }
    }
}

/// The limits of a resolver.
const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_LETTERS_MAX: usize = 2048;

pub(super) fn dns_config(check: &mut Check<'_>, config: &Object, path: &Path<'_>) {
    let servers = list(config, "nameservers");
    if servers.len() > NAMESERVERS_MAX {
        let why = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        check.invalid(path.field("nameservers"), &servers.into(), &why);
    }
    let searches = list(config, "searches");
    let at = path.field("searches");
    if searches.len() > SEARCHES_MAX {
        let why = format!("must not have more than {SEARCHES_MAX} search paths");
        check.invalid(at, &searches.into(), &why);
    }
    let letters: usize = searches.iter().filter_map(Value::as_str).map(|one| one.len() + 1).sum();
    if letters > SEARCH_LETTERS_MAX + 1 {
        let why = format!(
            "must not have more than {SEARCH_LETTERS_MAX} characters (including spaces) in the search list"
        );
        check.invalid(at, &searches.into(), &why);
    }
    for (index, search) in searches.iter().filter_map(Value::as_str).enumerate() {
        let domain = search.strip_suffix('.').unwrap_or(search);
        // An underscore is as good as a letter here.
        let problems = name::subdomain(&domain.replace('_', "x"));
        if search != "." {
            check.problems(at.index(index), domain, problems);
        }
    }
    let at = path.field("options");
    for (index, option) in objects(config, "options") {
        if text(option, "name").is_empty() {
            check.required(at.index(index), "must not be empty");
        }
    }
}

const SYSCTL_BYTES_MAX: usize = 253;

/// Kernel parameters and groups of a pod.
pub(super) fn pod_security_context(check: &mut Check<'_>, context: &Object, path: &Path<'_>) {
    let at = path.field("sysctls");
    let mut seen = Seen::default();
    for (index, sysctl) in objects(context, "sysctls") {
        let name = text(sysctl, "name");
        let place = at.index(index);
        if name.is_empty() {
            check.required(place.field("name"), "");
        } else if !is_sysctl(name) {
            let why = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            check.invalid(place.field("name"), &name.into(), why);
        } else if !seen.insert(name) {
            check.duplicate(place.field("name"), &name.into());
        }
    }
    let at = path.field("supplementalGroups");
    for (index, group) in list(context, "supplementalGroups").iter().enumerate() {
        if group.as_i64().is_some_and(|group| !(0..=i64::from(i32::MAX)).contains(&group)) {
            let why = "must be between 0 and 2147483647, inclusive";
            check.invalid(at.index(index), group, why);
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_letter)
            && part.ends_with(is_letter)
            && part.chars().all(|letter| is_letter(letter) || matches!(letter, '-' | '_'))
    };
    name.len() <= SYSCTL_BYTES_MAX && name.split(['.', '/']).all(is_part)
}

/// The system of the nodes of a pod. A wrong name is blamed on the parent, as in Kubernetes.
pub(super) fn pod_os(check: &mut Check<'_>, os: &Object, path: &Path<'_>) {
    match text(os, "name") {
        "" => check.required(path.field("name"), ""),
        "linux" | "windows" => {}
        other => check.not_supported(path, &other.into(), &["linux", "windows"]),
    }
}

const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The fields that volumes can show.
const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// The fields that nothing can show.
const OTHER_FIELDS: [&str; 4] =
    ["spec.host", "spec.restartPolicy", "spec.schedulerName", "status.phase"];

/// A field of the pod itself, in an environment variable or a volume.
pub(super) fn field_reference(check: &mut Check<'_>, reference: &Object, path: &Path<'_>) {
    // `env[].valueFrom.fieldRef`, or an item of a volume.
    let is_variable = matches!(path, Path::Field(Path::Field(_, "valueFrom"), _));
    let at = path.field("fieldPath");
    let field = text(reference, "fieldPath");
    if field.is_empty() {
        return check.required(at, "");
    }
    let subscript = field.strip_suffix("']").and_then(|rest| rest.split_once("['"));
    match subscript {
        Some(("metadata.annotations", key)) => {
            check.problems(path, key, name::qualified(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => check.problems(path, key, name::qualified(key)),
        None if field == "spec.host" && is_variable => {}
        None if FIELDS.iter().chain(&VOLUME_FIELDS).chain(&OTHER_FIELDS).any(|it| *it == field) => {
            let supported: &[&str] = if is_variable { &FIELDS } else { &VOLUME_FIELDS };
            if !supported.contains(&field) {
                check.not_supported(at, &field.into(), supported);
            }
        }
        _ => {
            let why = format!("error converting fieldPath: field label not supported: {field}");
            check.invalid(at, &field.into(), &why);
        }
    }
}

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// A resource of a container, in an environment variable or a volume.
pub(super) fn resource_reference(check: &mut Check<'_>, reference: &Object, path: &Path<'_>) {
    let is_variable = matches!(path, Path::Field(Path::Field(_, "valueFrom"), _));
    let resource = text(reference, "resource");
    let at = path.field("resource");
    let is_huge = ["limits.hugepages-", "requests.hugepages-"];
    if !is_variable && text(reference, "containerName").is_empty() {
        check.required(path.field("containerName"), "");
    } else if resource.is_empty() {
        check.required(at, "");
    } else if !RESOURCE_FIELDS.contains(&resource)
        && !is_huge.iter().any(|prefix| resource.starts_with(prefix))
    {
        check.not_supported(at, &resource.into(), &RESOURCE_FIELDS);
    }
}

/// The devices of a container: block volumes, each once.
pub(super) fn devices(
    check: &mut Check<'_>,
    container: &Object,
    volumes: &HashMap<&str, bool>,
    path: &Path<'_>,
) {
    if !has(container, "volumeDevices") {
        return;
    }
    let mounts = || objects(container, "volumeMounts").map(|(_, mount)| mount);
    let mounted: HashSet<&str> = mounts().map(|mount| text(mount, "name")).collect();
    let paths: HashSet<&str> = mounts().map(|mount| text(mount, "mountPath")).collect();
    let (mut names, mut places) = (Seen::default(), Seen::default());
    for (index, device) in objects(container, "volumeDevices") {
        let at = path.index(index);
        let (name, place) = (text(device, "name"), text(device, "devicePath"));
        if name.is_empty() {
            check.required(at.field("name"), "");
        } else if !names.insert(name) {
            check.invalid(at.field("name"), &name.into(), "must be unique");
        }
        match volumes.get(name) {
            None => check.not_found(at.field("name"), &name.into()),
            Some(true) => {}
            Some(false) => {
                let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                check.invalid(at.field("name"), &name.into(), why);
            }
        }
        if place.is_empty() {
            check.required(at.field("devicePath"), "");
        } else if place.split('/').any(|part| part == "..") {
            let why = "can not contain backsteps ('..')";
            check.invalid(at.field("devicePath"), &place.into(), why);
        } else if !places.insert(place) {
            check.invalid(at.field("devicePath"), &place.into(), "must be unique");
        }
        if mounted.contains(name) {
            let why = "must not already exist in volumeMounts";
            check.invalid(at.field("name"), &name.into(), why);
        }
        if paths.contains(place) {
            let why = "must not already exist as a path in volumeMounts";
            check.invalid(at.field("devicePath"), &place.into(), why);
        }
    }
}

/// How mounts propagate: both ways only from privileged containers.
pub(super) fn propagation(check: &mut Check<'_>, container: &Object, path: &Path<'_>) {
    const MODES: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
    let is_privileged =
        map(container, "securityContext").is_some_and(|context| is_true(context, "privileged"));
    let at = path.field("volumeMounts");
    for (index, mount) in objects(container, "volumeMounts") {
        let Some(mode) = mount.get("mountPropagation").and_then(Value::as_str) else { continue };
        let mount_path = at.index(index);
        let field = mount_path.field("mountPropagation");
        if !MODES.contains(&mode) {
            check.not_supported(field, &mode.into(), &MODES);
        }
        if mode == "Bidirectional" && !is_privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            check.forbidden(field, why);
        }
    }
}

/// What a change of its resources means for a container. The errors are at the list, as in
/// Kubernetes.
pub(super) fn resize_policy(
    check: &mut Check<'_>,
    container: &Object,
    restarts: &str,
    path: &Path<'_>,
) {
    let at = path.field("resizePolicy");
    let mut seen = Seen::default();
    for (index, policy) in objects(container, "resizePolicy") {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            check.duplicate(at.index(index), &resource.into());
        }
        match resource {
            "cpu" | "memory" => {}
            "" => check.required(at, ""),
            other => check.not_supported(at, &other.into(), &["cpu", "memory"]),
        }
        match restart {
            "NotRequired" | "RestartContainer" => {}
            "" => check.required(at, ""),
            other => {
                check.not_supported(at, &other.into(), &["NotRequired", "RestartContainer"]);
            }
        }
        if restarts == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            check.invalid(at, &restart.into(), why);
        }
    }
}

/// How long hooks sleep: within the grace period of the pod.
pub(super) fn sleeps(check: &mut Check<'_>, container: &Object, grace: i64, path: &Path<'_>) {
    let at = path.field("lifecycle");
    let Some(lifecycle) = map(container, "lifecycle") else { return };
    for name in ["postStart", "preStop"] {
        let Some(sleep) = map(lifecycle, name).and_then(|hook| map(hook, "sleep")) else {
            continue;
        };
        let seconds = number(sleep, "seconds").unwrap_or(0);
        if !(0..=grace).contains(&seconds) {
            let why = format!(
                "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            );
            let hook = at.field(name);
            check.invalid(hook.field("sleep"), &seconds.into(), &why);
        }
    }
}

/// Spread constraints: each pair of topology and reaction once.
pub(super) fn spread(check: &mut Check<'_>, spec: &Object, path: &Path<'_>) {
    let at = path.field("topologySpreadConstraints");
    let pair = |constraint: &Object| {
        (
            text(constraint, "topologyKey").to_owned(),
            text(constraint, "whenUnsatisfiable").to_owned(),
        )
    };
    let mut seen = std::collections::BTreeSet::new();
    let all: Vec<(usize, &Object)> = objects(spec, "topologySpreadConstraints").collect();
    // As in Kubernetes, the first of two equal ones is blamed.
    for (index, constraint) in all.iter().rev() {
        let place = at.index(*index);
        let (key, reaction) = pair(constraint);
        if !seen.insert((key.clone(), reaction.clone())) {
            let value = format!("{{{key}, {reaction}}}");
            check.duplicate(place.field("{topologyKey, whenUnsatisfiable}"), &value.into());
        }
        if number(constraint, "minDomains").is_some() && reaction != "DoNotSchedule" {
            let why =
                "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway";
            let value = shown(constraint, "minDomains");
            check.invalid(place.field("minDomains"), &value, why);
        }
        let labels = place.field("matchLabelKeys");
        let keys = list(constraint, "matchLabelKeys");
        let selector = map(constraint, "labelSelector");
        if !keys.is_empty() && selector.is_none() {
            check.forbidden(labels, "must not be specified when labelSelector is not set");
        }
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_str().unwrap_or_default();
            check.problems(labels.index(index), key, name::qualified(key));
        }
    }
}
