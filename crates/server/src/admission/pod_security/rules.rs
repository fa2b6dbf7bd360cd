//! What each check of the Pod Security Standards forbids.
//!
//! Promise: the reasons and the details are Kubernetes' own, so that people and scripts recognise them.

use std::collections::BTreeSet;

use headwater_json::Value;

use super::checks::{PodShape, Violation, named, plural, quoted, setters, sorted, text};

fn violation(reason: &'static str, detail: String) -> Option<Violation> {
    Some(Violation { reason, detail })
}

/// A violation by the containers for which a condition holds.
fn by_containers<'a>(
    pod: PodShape<'a>,
    reason: &'static str,
    does: &str,
    bad: impl FnMut(&'a Value) -> bool,
) -> Option<Violation> {
    let names = pod.containers_that(bad);
    if names.is_empty() {
        return None;
    }
    violation(reason, format!("{} {does}", named("container", &names)))
}

/// Who of the pod and its containers has a security context with a wrong value of a field, and the
/// values.
fn wrong_values<'a>(
    pod: PodShape<'a>,
    field: &str,
    key: &str,
    allowed: &[&str],
) -> (bool, Vec<&'a str>, BTreeSet<&'a str>) {
    let mut values = BTreeSet::new();
    let mut is_wrong = |holder: &'a Value| {
        let profile = &holder["securityContext"][field];
        let value = text(&profile[key]);
        let wrong = profile.is_object() && !allowed.contains(&value);
        if wrong {
            values.insert(value);
        }
        wrong
    };
    let by_pod = is_wrong(pod.spec);
    let containers = pod.containers_that(&mut is_wrong);
    (by_pod, containers, values)
}

const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn app_armor(pod: PodShape<'_>) -> Option<Violation> {
    let allowed = ["RuntimeDefault", "Localhost"];
    let (by_pod, containers, values) = wrong_values(pod, "appArmorProfile", "type", &allowed);
    let is_allowed =
        |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = pod.annotations.as_object().into_iter().flatten();
    let annotations: BTreeSet<String> = annotations
        .map(|(key, value)| (key.as_str(), text(value)))
        .filter(|(key, value)| key.starts_with(APP_ARMOR) && !is_allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    let mut who: Vec<String> = setters(by_pod, &containers).into_iter().collect();
    if !annotations.is_empty() {
        who.push(plural("annotation", annotations.len()));
    }
    if who.is_empty() {
        return None;
    }
    let values: Vec<&str> =
        values.into_iter().chain(annotations.iter().map(String::as_str)).collect();
    let reason = match values.len() {
        1 => "forbidden AppArmor profile",
        _ => "forbidden AppArmor profiles",
    };
    let who = who.join(" and ");
    violation(reason, format!("{who} must not set AppArmor profile type to {}", quoted(values)))
}

const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The containers that add other capabilities than these: "containers must not include capabilities".
fn added(pod: PodShape<'_>, allowed: &[&str]) -> Option<String> {
    let mut wrong = BTreeSet::new();
    let names = pod.containers_that(|container| {
        let added = sorted(&container["securityContext"]["capabilities"]["add"]);
        let before = added.iter().filter(|name| !allowed.contains(name)).copied();
        let before: Vec<&str> = before.collect();
        wrong.extend(before.iter().copied());
        !before.is_empty()
    });
    let who = (!names.is_empty()).then(|| named("container", &names))?;
    let what = quoted(wrong);
    Some(format!("{who} must not include {what} in securityContext.capabilities.add"))
}

pub(super) fn baseline_capabilities(pod: PodShape<'_>) -> Option<Violation> {
    violation("non-default capabilities", added(pod, DEFAULT_CAPABILITIES)?)
}

pub(super) fn restricted_capabilities(pod: PodShape<'_>) -> Option<Violation> {
    let keeps = pod.containers_that(|container| {
        !sorted(&container["securityContext"]["capabilities"]["drop"]).contains("ALL")
    });
    let mut details = Vec::new();
    if !keeps.is_empty() {
        let who = named("container", &keeps);
        details.push(format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    details.extend(added(pod, &["NET_BIND_SERVICE"]));
    if details.is_empty() {
        return None;
    }
    violation("unrestricted capabilities", details.join("; "))
}

pub(super) fn host_namespaces(pod: PodShape<'_>) -> Option<Violation> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"];
    let set = fields.into_iter().filter(|field| pod.spec[*field] == true);
    let set: Vec<String> = set.map(|field| format!("{field}=true")).collect();
    if set.is_empty() { None } else { violation("host namespaces", set.join(", ")) }
}

pub(super) fn host_path_volumes(pod: PodShape<'_>) -> Option<Violation> {
    let paths = pod.volumes().filter(|volume| volume.get("hostPath").is_some_and(Value::is_object));
    let names: Vec<&str> = paths.map(|volume| volume.get("name").map_or("", text)).collect();
    if names.is_empty() { None } else { violation("hostPath volumes", named("volume", &names)) }
}

pub(super) fn host_ports(pod: PodShape<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let names = pod.containers_that(|container| {
        let own = container["ports"].as_array().into_iter().flatten();
        let own = own.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0);
        let before: Vec<String> = own.map(|port| port.to_string()).collect();
        let uses = !before.is_empty();
        ports.extend(before);
        uses
    });
    if names.is_empty() {
        return None;
    }
    let uses = if names.len() == 1 { "uses" } else { "use" };
    let who = named("container", &names);
    let what = plural("hostPort", ports.len());
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    violation("hostPort", format!("{who} {uses} {what} {ports}"))
}

pub(super) fn probe_hosts(pod: PodShape<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let names = pod.containers_that(|container| {
        let hooks = &container["lifecycle"];
        let handlers = ["livenessProbe", "readinessProbe", "startupProbe"]
            .map(|probe| &container[probe])
            .into_iter()
            .chain([&hooks["postStart"], &hooks["preStop"]]);
        let own = handlers.flat_map(|handler| {
            ["httpGet", "tcpSocket"].map(|action| text(&handler[action]["host"]))
        });
        let before: Vec<&str> = own.filter(|host| !host.is_empty()).collect();
        hosts.extend(before.iter().copied());
        !before.is_empty()
    });
    let names: BTreeSet<&str> = names.into_iter().collect();
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return None;
    }
    let uses = if names.len() == 1 { "uses" } else { "use" };
    let who = named("container", &names);
    let what = plural("probe or lifecycle host", hosts.len());
    violation("probe or lifecycle host", format!("{who} {uses} {what} {}", quoted(hosts)))
}

pub(super) fn privileged(pod: PodShape<'_>) -> Option<Violation> {
    by_containers(pod, "privileged", "must not set securityContext.privileged=true", |container| {
        container["securityContext"]["privileged"] == true
    })
}

pub(super) fn proc_mount(pod: PodShape<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let names = pod.containers_that(|container| {
        let mount = container["securityContext"]["procMount"].as_str();
        let wrong = mount.filter(|mount| *mount != "Default");
        values.extend(wrong);
        wrong.is_some()
    });
    if names.is_empty() {
        return None;
    }
    let (who, what) = (named("container", &names), quoted(values));
    violation("procMount", format!("{who} must not set securityContext.procMount to {what}"))
}

/// The SELinux types that are allowed; the last one only by later versions.
pub(super) const SE_LINUX_TYPES: &[&str] =
    &["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

pub(super) fn se_linux(pod: PodShape<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_wrong = |holder: &Value| {
        let options = &holder["securityContext"]["seLinuxOptions"];
        let kind = text(&options["type"]);
        let (has_user, has_role) =
            (!text(&options["user"]).is_empty(), !text(&options["role"]).is_empty());
        let is_other = !allowed.contains(&kind);
        if is_other {
            types.insert(kind.to_owned());
        }
        user |= has_user;
        role |= has_role;
        is_other || has_user || has_role
    };
    let by_pod = is_wrong(pod.spec);
    let who = setters(by_pod, &pod.containers_that(&mut is_wrong))?;
    let mut what = Vec::new();
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", types.len()), quoted(types)));
    }
    if user {
        what.push("user may not be set".into());
    }
    if role {
        what.push("role may not be set".into());
    }
    let what = what.join("; ");
    violation(
        "seLinuxOptions",
        format!("{who} set forbidden securityContext.seLinuxOptions: {what}"),
    )
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// The alpha annotations, before the field existed.
pub(super) fn seccomp_annotations(pod: PodShape<'_>) -> Option<Violation> {
    let names = pod.containers().map(|one| format!("{SECCOMP_CONTAINER}{}", text(&one["name"])));
    let mut wrong = BTreeSet::new();
    for key in std::iter::once(SECCOMP_POD.to_owned()).chain(names) {
        let Some(value) = pod.annotations[key.as_str()].as_str() else { continue };
        let is_allowed = matches!(value, "runtime/default" | "docker/default");
        if !is_allowed && !value.starts_with("localhost/") {
            wrong.insert(format!("{key}={value:?}"));
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let what = plural("annotation", wrong.len());
    let list = wrong.into_iter().collect::<Vec<_>>().join(", ");
    violation("seccompProfile", format!("forbidden {what} {list}"))
}

const SECCOMP: [&str; 2] = ["Localhost", "RuntimeDefault"];

pub(super) fn baseline_seccomp(pod: PodShape<'_>) -> Option<Violation> {
    let (by_pod, containers, values) = wrong_values(pod, "seccompProfile", "type", &SECCOMP);
    let who = setters(by_pod, &containers)?;
    let what = quoted(values);
    let does = "must not set securityContext.seccompProfile.type to";
    violation("seccompProfile", format!("{who} {does} {what}"))
}

pub(super) fn restricted_seccomp(pod: PodShape<'_>) -> Option<Violation> {
    let wrong = baseline_seccomp(pod);
    if wrong.is_some() {
        return wrong;
    }
    let lacks = |holder: &Value| !holder["securityContext"]["seccompProfile"].is_object();
    if !lacks(pod.spec) {
        return None;
    }
    let names = pod.containers_that(lacks);
    if names.is_empty() {
        return None;
    }
    let who = named("container", &names);
    let does =
        "must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"";
    violation("seccompProfile", format!("pod or {who} {does}"))
}

/// The sysctls that are allowed, in the order in which versions allowed them.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// All sysctls but the first `allowed` ones are forbidden.
pub(super) fn sysctls(pod: PodShape<'_>, allowed: usize) -> Option<Violation> {
    let set = pod.spec["securityContext"]["sysctls"].as_array().into_iter().flatten();
    let names = set.map(|sysctl| text(&sysctl["name"]));
    let wrong: Vec<&str> = names.filter(|name| !SYSCTLS[..allowed].contains(name)).collect();
    if wrong.is_empty() { None } else { violation("forbidden sysctls", wrong.join(", ")) }
}

pub(super) fn windows_host_process(pod: PodShape<'_>) -> Option<Violation> {
    let is_set =
        |holder: &Value| holder["securityContext"]["windowsOptions"]["hostProcess"] == true;
    let who = setters(is_set(pod.spec), &pod.containers_that(is_set))?;
    let does = "must not set securityContext.windowsOptions.hostProcess=true";
    violation("hostProcess", format!("{who} {does}"))
}

pub(super) fn privilege_escalation(pod: PodShape<'_>) -> Option<Violation> {
    let does = "must set securityContext.allowPrivilegeEscalation=false";
    by_containers(pod, "allowPrivilegeEscalation != false", does, |container| {
        container["securityContext"]["allowPrivilegeEscalation"] != false
    })
}

/// The volume types that the restricted level allows.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn restricted_volumes(pod: PodShape<'_>) -> Option<Violation> {
    let (mut names, mut types) = (Vec::new(), BTreeSet::new());
    for volume in pod.volumes() {
        let has = |kind: &str| volume.get(kind).is_some_and(Value::is_object);
        if VOLUMES.into_iter().any(has) {
            continue;
        }
        names.push(volume.get("name").map_or("", text));
        let kind = volume.keys().find(|key| has(key.as_str()));
        types.insert(kind.map_or("unknown", |kind| kind.as_str()));
    }
    if names.is_empty() {
        return None;
    }
    let uses = if names.len() == 1 { "uses" } else { "use" };
    let (who, what) = (named("volume", &names), plural("restricted volume type", types.len()));
    violation("restricted volume types", format!("{who} {uses} {what} {}", quoted(types)))
}

pub(super) fn run_as_non_root(pod: PodShape<'_>) -> Option<Violation> {
    let reason = "runAsNonRoot != true";
    let own = |holder: &Value| holder["securityContext"]["runAsNonRoot"].as_bool();
    let may_be_root = |holder: &Value| own(holder) == Some(false);
    if let Some(who) = setters(may_be_root(pod.spec), &pod.containers_that(may_be_root)) {
        let does = "must not set securityContext.runAsNonRoot=false";
        return violation(reason, format!("{who} {does}"));
    }
    if own(pod.spec) == Some(true) {
        return None;
    }
    let names = pod.containers_that(|container| own(container).is_none());
    if names.is_empty() {
        return None;
    }
    let who = named("container", &names);
    violation(reason, format!("pod or {who} must set securityContext.runAsNonRoot=true"))
}

pub(super) fn run_as_user(pod: PodShape<'_>) -> Option<Violation> {
    let is_root = |holder: &Value| holder["securityContext"]["runAsUser"].as_i64() == Some(0);
    let who = setters(is_root(pod.spec), &pod.containers_that(is_root))?;
    violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
}
