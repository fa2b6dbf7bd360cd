//! Topology spread constraints: matching pods per domain, and whether one more exceeds the skew.

use std::collections::BTreeMap;

use super::cache::{NodeInfo, SchedulerCache};
use super::filter;
use super::pod_info::{PodInfo, SpreadConstraint};
use super::reason::FitReason;

/// The number of matching pods in each domain of a spread constraint.
#[derive(Debug)]
pub(crate) struct SpreadDomains {
    topology_key: String,
    is_hard: bool,
    max_skew: i64,
    /// 1 if the incoming pod matches the constraint's own selector.
    self_match: i64,
    counts: BTreeMap<String, i64>,
    min_count: i64,
}

impl SpreadDomains {
    pub(crate) fn new(
        spread: &SpreadConstraint,
        pod_info: &PodInfo,
        cache: &SchedulerCache,
    ) -> SpreadDomains {
        let keys: Vec<&str> = pod_info
            .spread
            .iter()
            .filter(|one| one.is_hard == spread.is_hard)
            .map(|one| &*one.topology_key)
            .collect();
        let is_eligible = |node_info: &&NodeInfo| {
            keys.iter().all(|key| node_info.label(key).is_some())
                && (!spread.honors_affinity || filter::matches_node(&pod_info.pod, node_info))
                && (!spread.honors_taints || filter::tolerates_taints(&pod_info.pod, node_info))
        };
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for node_info in cache.nodes().filter(is_eligible) {
            let Some(domain) = node_info.label(&spread.topology_key) else { continue };
            let matching = node_info.pods.values().filter(|other| {
                other.namespace() == pod_info.namespace()
                    && !other.pod.is_deleting()
                    && spread.selector.matches(&*other.pod)
            });
            *counts.entry(domain.to_owned()).or_default() += matching.count() as i64;
        }
        let min_count = match counts.len() < spread.min_domains {
            true => 0,
            false => counts.values().min().copied().unwrap_or(0),
        };
        SpreadDomains {
            topology_key: spread.topology_key.clone(),
            is_hard: spread.is_hard,
            max_skew: spread.max_skew,
            self_match: i64::from(spread.selector.matches(&*pod_info.pod)),
            counts,
            min_count,
        }
    }

    fn count(&self, node_info: &NodeInfo) -> i64 {
        let domain = node_info.label(&self.topology_key);
        domain.and_then(|domain| self.counts.get(domain)).copied().unwrap_or(0)
    }

    /// The matching pods in the node's domain; 0 for a hard constraint, which is not scored.
    pub(crate) fn soft_count(&self, node_info: &NodeInfo) -> i64 {
        if self.is_hard { 0 } else { self.count(node_info) }
    }

    pub(crate) fn conflict(&self, node_info: &NodeInfo) -> Option<FitReason> {
        if !self.is_hard {
            return None;
        }
        if node_info.label(&self.topology_key).is_none() {
            return Some(FitReason::SpreadLabel);
        }
        let skew = self.count(node_info) + self.self_match - self.min_count;
        (skew > self.max_skew).then_some(FitReason::Spread)
    }
}
