//! The checks of the Pod Security Standards, as a table.
//!
//! Promise: the order of the table is the order of the reasons in an answer: baseline before restricted,
//! each by name. A row applies from one minor version of Kubernetes up to another.

use std::collections::BTreeSet;

use headwater_json::{Map, Value};

use super::policy::{LevelVersion, SecurityLevel};
use super::rules;

/// The newest version with checks of its own. Later versions have the same checks.
const NEWEST: u32 = 35;

/// The pod that is checked.
#[derive(Clone, Copy)]
pub(super) struct PodShape<'a> {
    pub(super) annotations: &'a Value,
    pub(super) spec: &'a Value,
}

impl<'a> PodShape<'a> {
    /// A pod, or the template of one.
    pub(super) fn of(pod: &'a Value) -> PodShape<'a> {
        PodShape { annotations: &pod["metadata"]["annotations"], spec: &pod["spec"] }
    }

    /// All containers: init containers, containers, ephemeral containers.
    pub(super) fn containers(self) -> impl Iterator<Item = &'a Value> {
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(move |list| self.spec[list].as_array().into_iter().flatten())
    }

    /// The names of the containers for which a condition holds.
    pub(super) fn containers_that(self, mut bad: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|one| bad(one)).map(|one| text(&one["name"])).collect()
    }

    pub(super) fn volumes(self) -> impl Iterator<Item = &'a Map> {
        self.spec["volumes"].as_array().into_iter().flatten().filter_map(Value::as_object)
    }

    /// Whether the pod has a user namespace of its own, where root is nobody.
    pub(super) fn has_own_users(self) -> bool {
        self.spec["hostUsers"] == false
    }

    pub(super) fn is_windows(self) -> bool {
        self.spec["os"]["name"] == "windows"
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Why a check forbids a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// A few words, such as `hostPort`.
    pub(super) reason: &'static str,
    /// Who does what, such as `container "a" uses hostPort 80`.
    pub(super) detail: String,
}

/// A check in a range of versions.
struct PodCheck {
    level: SecurityLevel,
    /// The first and the last version.
    versions: (u32, u32),
    /// The first version in which the restricted level has a stricter check in place of this one.
    replaced: u32,
    run: fn(PodShape<'_>) -> Option<Violation>,
}

const NEVER: u32 = u32::MAX;

const fn baseline(first: u32, last: u32, run: fn(PodShape<'_>) -> Option<Violation>) -> PodCheck {
    PodCheck { level: SecurityLevel::Baseline, versions: (first, last), replaced: NEVER, run }
}

const fn restricted(first: u32, last: u32, run: fn(PodShape<'_>) -> Option<Violation>) -> PodCheck {
    PodCheck { level: SecurityLevel::Restricted, versions: (first, last), replaced: NEVER, run }
}

impl PodCheck {
    const fn replaced(mut self, from: u32) -> PodCheck {
        self.replaced = from;
        self
    }

    fn applies(&self, level: SecurityLevel, minor: u32) -> bool {
        let (first, last) = self.versions;
        (first..=last).contains(&minor)
            && self.level <= level
            && (level < SecurityLevel::Restricted || minor < self.replaced)
    }
}

const CHECKS: &[PodCheck] = &[
    baseline(0, NEVER, rules::app_armor),
    baseline(0, NEVER, rules::baseline_capabilities).replaced(22),
    baseline(0, NEVER, rules::host_namespaces),
    baseline(0, NEVER, rules::host_path_volumes).replaced(0),
    baseline(0, NEVER, rules::host_ports),
    baseline(34, NEVER, rules::probe_hosts),
    baseline(0, NEVER, rules::privileged),
    baseline(0, 34, rules::proc_mount),
    baseline(35, NEVER, |pod| unless(pod.has_own_users(), pod, rules::proc_mount)).replaced(35),
    baseline(0, 30, |pod| rules::se_linux(pod, &rules::SE_LINUX_TYPES[..4])),
    baseline(31, NEVER, |pod| rules::se_linux(pod, rules::SE_LINUX_TYPES)),
    baseline(0, 18, rules::seccomp_annotations),
    baseline(19, NEVER, rules::baseline_seccomp).replaced(19),
    baseline(0, 26, |pod| rules::sysctls(pod, 5)),
    baseline(27, 28, |pod| rules::sysctls(pod, 6)),
    baseline(29, 31, |pod| rules::sysctls(pod, 10)),
    baseline(32, NEVER, |pod| rules::sysctls(pod, 12)),
    baseline(0, NEVER, rules::windows_host_process),
    restricted(8, 24, rules::privilege_escalation),
    restricted(25, NEVER, |pod| unless(pod.is_windows(), pod, rules::privilege_escalation)),
    restricted(22, 24, rules::restricted_capabilities),
    restricted(25, NEVER, |pod| unless(pod.is_windows(), pod, rules::restricted_capabilities)),
    restricted(35, NEVER, rules::proc_mount),
    restricted(0, NEVER, rules::restricted_volumes),
    restricted(0, 34, rules::run_as_non_root),
    restricted(35, NEVER, |pod| unless(pod.has_own_users(), pod, rules::run_as_non_root)),
    restricted(23, 34, rules::run_as_user),
    restricted(35, NEVER, |pod| unless(pod.has_own_users(), pod, rules::run_as_user)),
    restricted(19, 24, rules::restricted_seccomp),
    restricted(25, NEVER, |pod| unless(pod.is_windows(), pod, rules::restricted_seccomp)),
];

/// A check that some pods are exempt from.
fn unless(
    is_exempt: bool,
    pod: PodShape<'_>,
    check: fn(PodShape<'_>) -> Option<Violation>,
) -> Option<Violation> {
    if is_exempt { None } else { check(pod) }
}

/// The violations of a policy by a pod.
pub(super) fn violations(policy: LevelVersion, pod: PodShape<'_>) -> Vec<Violation> {
    if policy.level == SecurityLevel::Privileged {
        return Vec::new();
    }
    let minor = policy.minor.unwrap_or(NEWEST).min(NEWEST);
    let applying = CHECKS.iter().filter(|check| check.applies(policy.level, minor));
    applying.filter_map(|check| (check.run)(pod)).collect()
}

/// The reasons alone, for lists of pods.
pub(super) fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|one| one.reason).collect::<Vec<_>>().join(", ")
}

/// The reasons with their details.
pub(super) fn details(violations: &[Violation]) -> String {
    let shown = violations.iter().map(|one| match one.detail.as_str() {
        "" => one.reason.to_owned(),
        detail => format!("{} ({detail})", one.reason),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// `"a", "b"`.
pub(super) fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items = items.into_iter().map(|item| format!("\"{}\"", item.as_ref()));
    items.collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn named(word: &str, names: &[&str]) -> String {
    format!("{} {}", plural(word, names.len()), quoted(names))
}

pub(super) fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// The pod and the containers that set something: `pod and container "a"`.
pub(super) fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    match (pod, containers) {
        (false, []) => None,
        (true, []) => Some("pod".into()),
        (false, some) => Some(named("container", some)),
        (true, some) => Some(format!("pod and {}", named("container", some))),
    }
}

/// Sorted strings of a list without duplicates.
pub(super) fn sorted(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
