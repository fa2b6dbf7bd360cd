//! Inter-pod affinity and anti-affinity: which topology domains a pod must, must not or prefers to
//! share with pods that are already assigned.

use std::collections::{BTreeMap, BTreeSet};

use super::cache::{NodeInfo, SchedulerCache};
use super::pod_info::{AffinityTerm, PodInfo};
use super::reason::FitReason;

/// A topology key and one of its values: a zone, a host.
type TopologyPair = (String, String);

/// The domains that affinity terms of one pod, and anti-affinity terms of the others, select.
#[derive(Debug)]
pub(crate) struct InterPodAffinity {
    required: Option<RequiredAffinity>,
    /// Domains with pods that match the pod's own anti-affinity terms.
    anti_affinity: BTreeSet<TopologyPair>,
    /// Domains with pods whose anti-affinity terms match this pod.
    existing_anti_affinity: BTreeSet<TopologyPair>,
    /// The weight of preferred terms, by domain.
    preferred: BTreeMap<TopologyPair, i64>,
}

/// The domains that satisfy the pod's required affinity.
#[derive(Debug)]
struct RequiredAffinity {
    topology_keys: Vec<String>,
    pairs: BTreeSet<TopologyPair>,
    /// No pod matches yet and the pod matches its own terms: any domain satisfies them.
    is_first: bool,
}

impl InterPodAffinity {
    pub(crate) fn new(pod_info: &PodInfo, cache: &SchedulerCache) -> InterPodAffinity {
        InterPodAffinity {
            required: (!pod_info.affinity.is_empty())
                .then(|| RequiredAffinity::new(pod_info, cache)),
            anti_affinity: matching_pairs(&pod_info.anti_affinity, cache),
            existing_anti_affinity: existing_anti_affinity(pod_info, cache),
            preferred: preferred(pod_info, cache),
        }
    }

    pub(crate) fn conflict(&self, node_info: &NodeInfo) -> Option<FitReason> {
        if contains(&self.existing_anti_affinity, node_info) {
            return Some(FitReason::ExistingAntiAffinity);
        }
        if contains(&self.anti_affinity, node_info) {
            return Some(FitReason::AntiAffinity);
        }
        let required = self.required.as_ref()?;
        (!required.allows(node_info)).then_some(FitReason::Affinity)
    }

    pub(crate) fn preferred_weight(&self, node_info: &NodeInfo) -> i64 {
        let is_here = |(key, value): &TopologyPair| node_info.label(key) == Some(value);
        self.preferred.iter().filter(|(pair, _)| is_here(pair)).map(|(_, weight)| weight).sum()
    }
}

fn contains(pairs: &BTreeSet<TopologyPair>, node_info: &NodeInfo) -> bool {
    pairs.iter().any(|(key, value)| node_info.label(key) == Some(value))
}

/// Every assigned pod that is not being deleted, with its node.
fn assigned(cache: &SchedulerCache) -> impl Iterator<Item = (&PodInfo, &NodeInfo)> {
    let all = cache.nodes().flat_map(|node| node.pods.values().map(move |pod| (&**pod, node)));
    all.filter(|(other, _)| !other.pod.is_deleting())
}

fn pair(topology_key: &str, node_info: &NodeInfo) -> Option<TopologyPair> {
    Some((topology_key.to_owned(), node_info.label(topology_key)?.to_owned()))
}

/// The domains with a pod that matches one of the terms.
fn matching_pairs(terms: &[AffinityTerm], cache: &SchedulerCache) -> BTreeSet<TopologyPair> {
    if terms.is_empty() {
        return BTreeSet::new();
    }
    let mut pairs = BTreeSet::new();
    for (other, node_info) in assigned(cache) {
        let matching = terms.iter().filter(|term| term.matches(&other.pod));
        pairs.extend(matching.filter_map(|term| pair(&term.topology_key, node_info)));
    }
    pairs
}

fn existing_anti_affinity(pod_info: &PodInfo, cache: &SchedulerCache) -> BTreeSet<TopologyPair> {
    let mut pairs = BTreeSet::new();
    for (other, node_info) in cache.pods_with_anti_affinity() {
        let matching = other.anti_affinity.iter().filter(|term| term.matches(&pod_info.pod));
        pairs.extend(matching.filter_map(|term| pair(&term.topology_key, node_info)));
    }
    pairs
}

fn preferred(pod_info: &PodInfo, cache: &SchedulerCache) -> BTreeMap<TopologyPair, i64> {
    let mut weights = BTreeMap::new();
    if pod_info.preferred.is_empty() {
        return weights;
    }
    for (other, node_info) in assigned(cache) {
        let matching = pod_info.preferred.iter().filter(|(_, term)| term.matches(&other.pod));
        for (weight, term) in matching {
            if let Some(pair) = pair(&term.topology_key, node_info) {
                *weights.entry(pair).or_default() += weight;
            }
        }
    }
    weights
}

impl RequiredAffinity {
    fn new(pod_info: &PodInfo, cache: &SchedulerCache) -> RequiredAffinity {
        let terms = &pod_info.affinity;
        let matches_all = |other: &PodInfo| terms.iter().all(|term| term.matches(&other.pod));
        let mut pairs = BTreeSet::new();
        for (_, node_info) in assigned(cache).filter(|(other, _)| matches_all(other)) {
            pairs.extend(terms.iter().filter_map(|term| pair(&term.topology_key, node_info)));
        }
        let topology_keys = terms.iter().map(|term| term.topology_key.clone()).collect();
        let is_first = pairs.is_empty() && matches_all(pod_info);
        RequiredAffinity { topology_keys, pairs, is_first }
    }

    fn allows(&self, node_info: &NodeInfo) -> bool {
        self.topology_keys.iter().all(|key| match pair(key, node_info) {
            Some(pair) => self.is_first || self.pairs.contains(&pair),
            None => false,
        })
    }
}
