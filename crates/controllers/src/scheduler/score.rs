//! Scores: the best of the nodes that a pod fits on.
//!
//! Every score is 0 to 100; the weights are those of kube-scheduler's default profile.

use super::cache::NodeInfo;
use super::cycle_state::CycleState;
use super::filter;
use super::pod_info::PodInfo;

const MAX: f64 = 100.0;

/// The node with the highest score; the first of equals.
pub(crate) fn best<'a>(
    pod_info: &PodInfo,
    nodes: &[&'a NodeInfo],
    state: &CycleState<'_>,
) -> Option<&'a NodeInfo> {
    let scores = scores(pod_info, nodes, state);
    let mut best: Option<(f64, &NodeInfo)> = None;
    for (score, node_info) in scores.into_iter().zip(nodes) {
        if best.is_none_or(|(known, _)| score > known) {
            best = Some((score, node_info));
        }
    }
    best.map(|(_, node_info)| node_info)
}

/// A raw value per node, normalized over all nodes to 0..=100.
type RawScore<'a> = &'a dyn Fn(&NodeInfo) -> i64;

fn scores(pod_info: &PodInfo, nodes: &[&NodeInfo], state: &CycleState<'_>) -> Vec<f64> {
    let owner = pod_info.pod.controller_uid();
    let spread = |node_info: &NodeInfo| {
        let siblings = owner.map_or(0, |owner| node_info.pods_owned_by(owner)) as i64;
        -(siblings + state.spread_count(node_info))
    };
    let weighted: [(f64, RawScore<'_>); 4] = [
        (2.0, &spread),
        (2.0, &|node_info| filter::preferred_weight(&pod_info.pod, node_info)),
        (2.0, &|node_info| state.preferred_weight(node_info)),
        (3.0, &|node_info| -(filter::intolerable_taints(&pod_info.pod, node_info) as i64)),
    ];
    let resources = |node: &&NodeInfo| least_allocated(pod_info, node) + balanced(pod_info, node);
    let mut scores: Vec<f64> = nodes.iter().map(resources).collect();
    for (weight, raw_score) in weighted {
        let values: Vec<i64> = nodes.iter().map(|node_info| raw_score(node_info)).collect();
        add_normalized(&mut scores, &values, weight);
    }
    scores
}

/// Adds 100 for the largest value, 0 for the smallest; nothing if all values are equal.
fn add_normalized(scores: &mut [f64], values: &[i64], weight: f64) {
    let (Some(low), Some(high)) = (values.iter().min(), values.iter().max()) else { return };
    if low == high {
        return;
    }
    for (score, value) in scores.iter_mut().zip(values) {
        *score += weight * MAX * (value - low) as f64 / (high - low) as f64;
    }
}

/// The fractions of CPU and memory in use with the pod on the node.
fn fractions(pod_info: &PodInfo, node_info: &NodeInfo) -> (f64, f64) {
    let fraction = |used: i64, more: i64, allocatable: i64| match allocatable {
        0 => 1.0,
        allocatable => ((used + more) as f64 / allocatable as f64).min(1.0),
    };
    let (used, more) = (node_info.non_zero_requests, pod_info.non_zero_requests);
    let allocatable = &node_info.allocatable;
    (fraction(used.0, more.0, allocatable.cpu), fraction(used.1, more.1, allocatable.memory))
}

fn least_allocated(pod_info: &PodInfo, node_info: &NodeInfo) -> f64 {
    let (cpu, memory) = fractions(pod_info, node_info);
    MAX * (2.0 - cpu - memory) / 2.0
}

/// Prefers nodes on which CPU and memory are used to the same degree.
fn balanced(pod_info: &PodInfo, node_info: &NodeInfo) -> f64 {
    let (cpu, memory) = fractions(pod_info, node_info);
    MAX * (1.0 - (cpu - memory).abs() / 2.0)
}
