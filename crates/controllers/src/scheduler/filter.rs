//! Filters: whether a pod fits on a node, and why not.

use k8s_openapi::api::core::v1 as core;

use super::cache::{NodeInfo, SchedulerCache};
use super::cycle_state::CycleState;
use super::node_term::term_matches;
use super::pod_info::PodInfo;
use super::reason::FitReason;
use crate::pod::Pod;
use crate::toleration::tolerates;

/// Why the pod does not fit on the node; empty if it does.
pub(crate) fn reasons(
    pod_info: &PodInfo,
    node_info: &NodeInfo,
    state: &CycleState<'_>,
    cache: &SchedulerCache,
) -> Vec<FitReason> {
    if let Some(reason) = node_conflict(&pod_info.pod, node_info) {
        return vec![reason];
    }
    let insufficient = insufficient(pod_info, node_info, cache);
    if !insufficient.is_empty() {
        return insufficient;
    }
    state.conflict(node_info).into_iter().collect()
}

/// Why the node itself rules the pod out; preemption cannot resolve it.
fn node_conflict(pod: &Pod, node_info: &NodeInfo) -> Option<FitReason> {
    match () {
        () if is_unschedulable(node_info) && !tolerates_unschedulable(pod) => {
            Some(FitReason::Unschedulable)
        }
        () if !tolerates_taints(pod, node_info) => Some(FitReason::Taint),
        () if !matches_node(pod, node_info) => Some(FitReason::NodeAffinity),
        () => None,
    }
}

/// The ports, pods and resources that the node lacks. Nominated pods of the same or a higher
/// priority count as if they were on the node.
pub(crate) fn insufficient(
    pod_info: &PodInfo,
    node_info: &NodeInfo,
    cache: &SchedulerCache,
) -> Vec<FitReason> {
    let mut reasons = Vec::new();
    if pod_info.ports.iter().any(|port| node_info.occupies(port)) {
        return vec![FitReason::Ports];
    }
    let nominated: Vec<_> = match cache.has_nominated() {
        true => cache
            .nominated(node_info.name())
            .filter(|other| other.priority >= pod_info.priority && other.key != pod_info.key)
            .collect(),
        false => Vec::new(),
    };
    if node_info.pods.len() + nominated.len() + 1 > node_info.allowed_pods {
        reasons.push(FitReason::TooManyPods);
    }
    let lacking = |used| -> Vec<FitReason> {
        let lacking = pod_info.requests.lacking(&node_info.allocatable, used);
        lacking.map(|resource| FitReason::Insufficient(resource.to_owned())).collect()
    };
    reasons.extend(match nominated.is_empty() {
        true => lacking(&node_info.requested),
        false => {
            let mut used = node_info.requested.clone();
            nominated.iter().for_each(|other| used.add(&other.requests));
            lacking(&used)
        }
    });
    reasons
}

/// The taint of a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn spec(node_info: &NodeInfo) -> Option<&core::NodeSpec> {
    node_info.node.as_ref()?.spec.as_ref()
}

fn is_unschedulable(node_info: &NodeInfo) -> bool {
    spec(node_info).is_some_and(|spec| spec.unschedulable == Some(true))
}

fn tolerates_unschedulable(pod: &Pod) -> bool {
    let taint = core::Taint {
        key: UNSCHEDULABLE.into(),
        effect: "NoSchedule".into(),
        ..core::Taint::default()
    };
    pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, &taint))
}

pub(crate) fn tolerates_taints(pod: &Pod, node_info: &NodeInfo) -> bool {
    let taints = spec(node_info).and_then(|spec| spec.taints.as_ref());
    let hard = taints.into_iter().flatten().filter(|taint| taint.effect != "PreferNoSchedule");
    let mut hard = hard.filter(|taint| taint.key != UNSCHEDULABLE || !is_unschedulable(node_info));
    hard.all(|taint| pod.spec.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// The number of `PreferNoSchedule` taints that the pod does not tolerate.
pub(crate) fn intolerable_taints(pod: &Pod, node_info: &NodeInfo) -> usize {
    let taints = spec(node_info).and_then(|spec| spec.taints.as_ref());
    let soft = taints.into_iter().flatten().filter(|taint| taint.effect == "PreferNoSchedule");
    let tolerated =
        |taint: &&core::Taint| pod.spec.tolerations.iter().any(|one| tolerates(one, taint));
    soft.filter(|taint| !tolerated(taint)).count()
}

/// Whether the pod's node selector and required node affinity match the node.
pub(crate) fn matches_node(pod: &Pod, node_info: &NodeInfo) -> bool {
    let labels = pod.spec.node_selector.iter();
    let mut labels = labels.map(|(key, value)| node_info.label(key) == Some(value));
    let affinity = pod.spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|selector| &selector.node_selector_terms);
    labels.all(|same| same)
        && required.is_none_or(|terms| terms.iter().any(|term| term_matches(term, node_info)))
}

/// The weight of the pod's preferred node affinity terms that match the node.
pub(crate) fn preferred_weight(pod: &Pod, node_info: &NodeInfo) -> i64 {
    let affinity = pod.spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let preferred = affinity.and_then(|affinity| {
        affinity.preferred_during_scheduling_ignored_during_execution.as_ref()
    });
    let met =
        preferred.into_iter().flatten().filter(|one| term_matches(&one.preference, node_info));
    met.map(|one| i64::from(one.weight)).sum()
}
