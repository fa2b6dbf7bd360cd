//! The cycle state: constraints between pods, evaluated once per scheduling attempt.
//!
//! Computing it once turns the check of each node into a few map lookups.

use super::cache::{NodeInfo, SchedulerCache};
use super::inter_pod_affinity::InterPodAffinity;
use super::pod_info::PodInfo;
use super::reason::FitReason;
use super::topology_spread::SpreadDomains;

/// What the pods that are already assigned mean for one pod.
#[derive(Debug)]
pub(crate) struct CycleState {
    spread: Vec<SpreadDomains>,
    affinity: InterPodAffinity,
}

impl CycleState {
    pub(crate) fn new(pod_info: &PodInfo, cache: &SchedulerCache) -> CycleState {
        let constraints = pod_info.spread.iter();
        CycleState {
            spread: constraints.map(|one| SpreadDomains::new(one, pod_info, cache)).collect(),
            affinity: InterPodAffinity::new(pod_info, cache),
        }
    }

    /// Why other pods rule out a node.
    pub(crate) fn conflict(&self, node_info: &NodeInfo) -> Option<FitReason> {
        let spread = self.spread.iter().find_map(|domains| domains.conflict(node_info));
        spread.or_else(|| self.affinity.conflict(node_info))
    }

    /// The number of matching pods in the node's domains, over all soft spread constraints.
    pub(crate) fn spread_count(&self, node_info: &NodeInfo) -> i64 {
        self.spread.iter().map(|domains| domains.soft_count(node_info)).sum()
    }

    /// The weight of the preferred affinity terms that the node satisfies.
    pub(crate) fn preferred_weight(&self, node_info: &NodeInfo) -> i64 {
        self.affinity.preferred_weight(node_info)
    }
}
