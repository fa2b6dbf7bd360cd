//! The cycle state: constraints between pods, evaluated once per scheduling attempt.
//!
//! Computing it once turns the check of each node into a few map lookups.

use super::cache::{NodeInfo, SchedulerCache};
use super::inter_pod_affinity::InterPodAffinity;
use super::pod_info::PodInfo;
use super::reason::FitReason;
use super::topology_spread::SpreadDomains;
use super::volumes::PodVolumes;

/// What volumes and the pods that are already assigned mean for one pod.
#[derive(Debug)]
pub(crate) struct CycleState<'a> {
    pub(crate) volumes: PodVolumes<'a>,
    spread: Vec<SpreadDomains>,
    affinity: InterPodAffinity,
}

impl<'a> CycleState<'a> {
    pub(crate) fn new(pod_info: &'a PodInfo, cache: &'a SchedulerCache) -> CycleState<'a> {
        let constraints = pod_info.spread.iter();
        CycleState {
            volumes: PodVolumes::new(pod_info, cache),
            spread: constraints.map(|one| SpreadDomains::new(one, pod_info, cache)).collect(),
            affinity: InterPodAffinity::new(pod_info, cache),
        }
    }

    /// Why volumes or other pods rule out a node.
    pub(crate) fn conflict(&self, node_info: &NodeInfo) -> Option<FitReason> {
        if let Some(reason) = self.volumes.conflict(node_info) {
            return Some(reason);
        }
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
