//! One scheduling decision: a node for the pod, or why no node fits and what may change that.

use std::collections::BTreeMap;

use super::cache::{NodeInfo, SchedulerCache};
use super::cycle_state::CycleState;
use super::filter;
use super::pod_info::PodInfo;
use super::preemption::{self, Preemption};
use super::reason::{ClusterEvent, FitReason, sentence};
use super::score;
use super::volumes::ClaimChoice;

/// The result of a scheduling attempt.
#[derive(Debug)]
pub(crate) enum ScheduleResult {
    Bind(String),
    /// Claims of the pod are bound for the node first.
    BindClaims {
        node: String,
        choices: Vec<ClaimChoice>,
    },
    Unschedulable(FitError),
}

/// Why a pod fits on no node.
#[derive(Debug)]
pub(crate) struct FitError {
    /// `0/3 nodes are available: …`
    pub(crate) message: String,
    /// The events after which another attempt makes sense.
    pub(crate) resolved_by: ClusterEvent,
    pub(crate) preemption: Option<Preemption>,
}

/// The search stops after this many feasible nodes.
const FEASIBLE_NODES_MAX: usize = 100;

/// Chooses a node for a pod. The search starts after the node `last`, which it updates, so that
/// consecutive attempts start at different nodes.
pub(crate) fn schedule_pod(
    pod_info: &PodInfo,
    cache: &SchedulerCache,
    last: &mut String,
) -> ScheduleResult {
    let state = CycleState::new(pod_info, cache);
    let mut why: BTreeMap<String, Vec<FitReason>> = BTreeMap::new();
    let mut fit: Vec<&NodeInfo> = Vec::new();
    if let Some(reason) = state.volumes.rejection() {
        let all = cache.nodes().map(|node_info| node_info.name().to_owned());
        why.extend(all.map(|name| (name, vec![reason.clone()])));
        return ScheduleResult::Unschedulable(fit_error(pod_info, cache, &state, &why));
    }
    for node_info in cache.nodes_after(last) {
        let reasons = filter::reasons(pod_info, node_info, &state, cache);
        if !reasons.is_empty() {
            why.insert(node_info.name().to_owned(), reasons);
            continue;
        }
        fit.push(node_info);
        if fit.len() == FEASIBLE_NODES_MAX {
            break;
        }
    }
    if let Some(nominated) = nominated(pod_info, cache, &state, &fit) {
        return chosen(&state, nominated);
    }
    match score::best(pod_info, &fit, &state) {
        Some(best) => {
            *last = best.name().to_owned();
            chosen(&state, best)
        }
        None => ScheduleResult::Unschedulable(fit_error(pod_info, cache, &state, &why)),
    }
}

fn chosen(state: &CycleState<'_>, node_info: &NodeInfo) -> ScheduleResult {
    let node = node_info.name().to_owned();
    let choices = state.volumes.choices(node_info).unwrap_or_default();
    match choices.is_empty() {
        true => ScheduleResult::Bind(node),
        false => ScheduleResult::BindClaims { node, choices },
    }
}

/// The node that an earlier preemption nominated, or for which claims were bound, if the pod fits there
/// now.
fn nominated<'a>(
    pod_info: &PodInfo,
    cache: &SchedulerCache,
    state: &CycleState<'_>,
    fit: &[&'a NodeInfo],
) -> Option<&'a NodeInfo> {
    let nominated = pod_info.pod.status.nominated_node_name.as_deref();
    let nominated = nominated.or_else(|| cache.nomination(&pod_info.key));
    let name = nominated.or_else(|| state.volumes.selected_node())?;
    fit.iter().copied().find(|node_info| node_info.name() == name)
}

fn fit_error(
    pod_info: &PodInfo,
    cache: &SchedulerCache,
    state: &CycleState<'_>,
    why: &BTreeMap<String, Vec<FitReason>>,
) -> FitError {
    if why.is_empty() {
        let message = "no nodes available to schedule pods".to_owned();
        return FitError { message, resolved_by: ClusterEvent::NODE, preemption: None };
    }
    let mut counts: BTreeMap<&FitReason, usize> = BTreeMap::new();
    why.values().flatten().for_each(|reason| *counts.entry(reason).or_default() += 1);
    let resolved_by =
        counts.keys().fold(ClusterEvent::NODE, |all, reason| all | reason.resolved_by());
    let reasons = counts.iter().map(|(reason, count)| (*reason as &dyn std::fmt::Display, *count));
    let message = match state.volumes.rejection() {
        Some(reason) => format!("0/{} nodes are available: {reason}.", why.len()),
        None => sentence(why.len(), reasons),
    };
    match preemption::find(pod_info, cache, state, why) {
        Ok(preemption) => FitError { message, resolved_by, preemption: Some(preemption) },
        Err(none) => FitError {
            message: format!("{message} preemption: {none}"),
            resolved_by,
            preemption: None,
        },
    }
}
