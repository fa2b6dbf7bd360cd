//! Preemption: the node and the victims that cost least to make room for a pod of higher priority.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::cache::{NodeInfo, SchedulerCache};
use super::cycle_state::CycleState;
use super::filter;
use super::pod_info::PodInfo;
use super::reason::{FitReason, sentence};

/// A node, and the pods to delete from it.
#[derive(Debug)]
pub(crate) struct Preemption {
    pub(crate) node: String,
    pub(crate) victims: Vec<Arc<PodInfo>>,
    /// The number of victims whose deletion violates a disruption budget.
    budget_violations: usize,
}

/// The preemption that costs least, or the message that says why there is none.
pub(crate) fn find(
    pod_info: &PodInfo,
    cache: &SchedulerCache,
    state: &CycleState<'_>,
    why: &BTreeMap<String, Vec<FitReason>>,
) -> Result<Preemption, String> {
    if pod_info.pod.spec.preemption_policy.as_deref() == Some("Never") {
        return Err("not eligible due to preemptionPolicy=Never.".to_owned());
    }
    if waits_for_victims(pod_info, cache) {
        return Err("not eligible due to a terminating pod on the nominated node.".to_owned());
    }
    let is_candidate = |node_info: &&NodeInfo| {
        let reasons = why.get(node_info.name()).map_or(&[] as &[FitReason], Vec::as_slice);
        !reasons.is_empty() && reasons.iter().all(FitReason::is_resolvable)
    };
    let candidates: Vec<&NodeInfo> = cache.nodes().filter(is_candidate).collect();
    let found =
        candidates.iter().filter_map(|node_info| victims(pod_info, node_info, cache, state));
    found.min_by_key(Preemption::cost).ok_or_else(|| {
        let total = cache.nodes().count();
        let (unhelpful, without) = (total - candidates.len(), candidates.len());
        let reasons: [(&dyn std::fmt::Display, usize); 2] = [
            (&"Preemption is not helpful for scheduling", unhelpful),
            (&"No preemption victims found for incoming pod", without),
        ];
        sentence(total, reasons.into_iter().filter(|(_, count)| *count > 0))
    })
}

/// Whether a pod of lower priority is already terminating on the pod's nominated node.
fn waits_for_victims(pod_info: &PodInfo, cache: &SchedulerCache) -> bool {
    let nominated = pod_info.pod.status.nominated_node_name.as_deref();
    let Some(node_info) = nominated.and_then(|name| cache.node_info(name)) else { return false };
    node_info
        .pods
        .values()
        .any(|other| other.pod.is_deleting() && other.priority < pod_info.priority)
}

/// The pods to delete from a node: as few as possible, of the lowest priority possible, and
/// preferably none that a disruption budget protects.
fn victims(
    pod_info: &PodInfo,
    node_info: &NodeInfo,
    cache: &SchedulerCache,
    state: &CycleState<'_>,
) -> Option<Preemption> {
    let has_lower_priority = |other: &PodInfo| other.priority < pod_info.priority;
    if !node_info.pods.values().any(|other| has_lower_priority(other)) {
        return None;
    }
    let mut remaining = node_info.without(has_lower_priority);
    let still_unfit = !filter::insufficient(pod_info, &remaining, cache).is_empty();
    if still_unfit || state.conflict(node_info).is_some() {
        return None;
    }
    let mut candidates: Vec<&Arc<PodInfo>> =
        node_info.pods.values().filter(|other| has_lower_priority(other)).collect();
    // Reprieve the highest priority first; among equals, the pod that started first.
    candidates.sort_by_key(|other| (Reverse(other.priority), started(other)));
    let protected = cache.budgets.violations(&candidates);
    let mut candidates: Vec<_> = candidates.into_iter().zip(protected).collect();
    // Reprieve pods that a budget protects before all others.
    candidates.sort_by_key(|(_, protected)| !protected);
    let (mut victims, mut budget_violations) = (Vec::new(), 0);
    for (other, protected) in candidates {
        remaining.add_pod(other);
        if !filter::insufficient(pod_info, &remaining, cache).is_empty() {
            remaining.remove_pod(&other.key);
            budget_violations += usize::from(protected);
            victims.push(Arc::clone(other));
        }
    }
    let node = node_info.name().to_owned();
    (!victims.is_empty()).then_some(Preemption { node, victims, budget_violations })
}

fn started(pod_info: &PodInfo) -> Option<jiff::Timestamp> {
    pod_info.pod.status.start_time.as_ref().map(|time| time.0)
}

impl Preemption {
    /// Compared in order, lower is better: budget violations, the highest priority among the
    /// victims, the sum of their priorities, their number, the latest start.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>) {
        let highest = self.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
        let sum = self.victims.iter().map(|victim| i64::from(victim.priority)).sum();
        let first = self.victims.iter().filter_map(|victim| started(victim)).min();
        (self.budget_violations, highest, sum, self.victims.len(), Reverse(first))
    }
}
