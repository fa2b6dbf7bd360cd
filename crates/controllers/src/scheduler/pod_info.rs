//! A pod with the values that scheduling reads, computed once.

use std::sync::Arc;

use headwater_client::{Cached, Key, Selector};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::ownership::selector;
use crate::pod::Pod;

use super::resources::{ResourceAmounts, requests};

/// A pod that is pending or assigned.
#[derive(Debug)]
pub(crate) struct PodInfo {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: Key,
    pub(crate) priority: i32,
    pub(crate) requests: ResourceAmounts,
    /// CPU and memory for scoring, with defaults for a pod that requests none.
    pub(crate) non_zero_requests: (i64, i64),
    pub(crate) ports: Vec<HostPort>,
    pub(crate) affinity: Vec<AffinityTerm>,
    pub(crate) anti_affinity: Vec<AffinityTerm>,
    /// Preferred terms with their weight; negative for anti-affinity.
    pub(crate) preferred: Vec<(i64, AffinityTerm)>,
    pub(crate) spread: Vec<SpreadConstraint>,
}

/// A host port that a pod occupies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    protocol: String,
    address: String,
    port: i32,
}

/// A term of an affinity or anti-affinity: selected pods, and the topology that counts as the
/// same place.
#[derive(Debug)]
pub(crate) struct AffinityTerm {
    pub(crate) topology_key: String,
    selector: Selector,
    namespaces: Namespaces,
}

#[derive(Debug)]
enum Namespaces {
    All,
    These(Vec<String>),
}

/// A topology spread constraint.
#[derive(Debug)]
pub(crate) struct SpreadConstraint {
    pub(crate) topology_key: String,
    pub(crate) max_skew: i64,
    pub(crate) min_domains: usize,
    pub(crate) selector: Selector,
    /// `DoNotSchedule` (filtered), not `ScheduleAnyway` (scored).
    pub(crate) is_hard: bool,
    pub(crate) honors_affinity: bool,
    pub(crate) honors_taints: bool,
}

/// The amounts that scoring assumes for a pod without requests, as kube-scheduler does.
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

impl PodInfo {
    pub(crate) fn new(pod: Arc<Pod>) -> PodInfo {
        let requests = requests(&pod.spec);
        let or = |amount: i64, usual: i64| if amount > 0 { amount } else { usual };
        let non_zero_requests =
            (or(requests.cpu, DEFAULT_CPU), or(requests.memory, DEFAULT_MEMORY));
        let affinity = pod.spec.affinity.as_deref();
        let pod_affinity = affinity.and_then(|all| all.pod_affinity.as_ref());
        let anti_affinity = affinity.and_then(|all| all.pod_anti_affinity.as_ref());
        let required = |terms: Option<&Vec<core::PodAffinityTerm>>| -> Vec<AffinityTerm> {
            terms.into_iter().flatten().map(|term| AffinityTerm::new(term, &pod)).collect()
        };
        let weighted = |sign: i64, terms: Option<&Vec<core::WeightedPodAffinityTerm>>| {
            let term = |one: &core::WeightedPodAffinityTerm| {
                (sign * i64::from(one.weight), AffinityTerm::new(&one.pod_affinity_term, &pod))
            };
            terms.into_iter().flatten().map(term).collect::<Vec<_>>()
        };
        let mut preferred = weighted(
            1,
            pod_affinity
                .and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref()),
        );
        preferred.extend(weighted(
            -1,
            anti_affinity
                .and_then(|it| it.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ));
        PodInfo {
            key: pod.key(),
            priority: pod.spec.priority.unwrap_or(0),
            non_zero_requests,
            ports: ports(&pod),
            affinity: required(
                pod_affinity
                    .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            anti_affinity: required(
                anti_affinity
                    .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref()),
            ),
            preferred,
            spread: pod
                .spec
                .topology_spread_constraints
                .iter()
                .map(|one| SpreadConstraint::new(one, &pod))
                .collect(),
            requests,
            pod,
        }
    }

    /// Whether `pod` is this pod with the same spec and labels.
    pub(crate) fn has_same_constraints(&self, pod: &Pod) -> bool {
        self.pod.spec == pod.spec
            && self.pod.metadata.labels == pod.metadata.labels
            && self.pod.metadata.uid == pod.metadata.uid
    }

    /// Whether replacing one with the other on a node makes no difference to other pods.
    pub(crate) fn has_same_footprint(&self, other: &PodInfo) -> bool {
        self.requests == other.requests
            && self.pod.metadata.labels == other.pod.metadata.labels
            && self.pod.metadata.uid == other.pod.metadata.uid
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.namespace().unwrap_or_default()
    }
}

fn ports(pod: &Pod) -> Vec<HostPort> {
    let containers = pod.spec.containers.iter();
    let ports = containers.flat_map(|container| &container.ports);
    let host = |port: &core::ContainerPort| {
        let usual = pod.spec.host_network.then_some(port.container_port);
        let number = port.host_port.or(usual).filter(|number| *number > 0)?;
        Some(HostPort {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            address: port.host_ip.clone().unwrap_or_default(),
            port: number,
        })
    };
    ports.filter_map(host).collect()
}

impl HostPort {
    /// Whether the two cannot be occupied on one host.
    pub(crate) fn clashes(&self, other: &HostPort) -> bool {
        let any = |port: &HostPort| matches!(port.address.as_str(), "" | "0.0.0.0" | "::");
        self.port == other.port
            && self.protocol == other.protocol
            && (any(self) || any(other) || self.address == other.address)
    }
}

/// An invalid selector selects nothing; the API server rejects it on write.
fn selecting(wanted: Option<&LabelSelector>) -> Selector {
    selector(wanted).unwrap_or_else(|_| Selector::nothing())
}

/// The selector combined with the pod's own values for `matchLabelKeys`.
fn with_own_labels(
    wanted: Option<&LabelSelector>,
    keys: Option<&Vec<String>>,
    pod: &Pod,
) -> Selector {
    let Some(keys) = keys.filter(|keys| !keys.is_empty()) else { return selecting(wanted) };
    let mut wanted = wanted.cloned().unwrap_or_default();
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let own = keys.iter().filter_map(|key| Some((key.clone(), labels.get(key)?.clone())));
    wanted.match_labels.get_or_insert_default().extend(own);
    selecting(Some(&wanted))
}

impl AffinityTerm {
    fn new(term: &core::PodAffinityTerm, pod: &Pod) -> AffinityTerm {
        let own = || pod.metadata.namespace.clone().unwrap_or_default();
        let named = term.namespaces.clone().unwrap_or_default();
        let namespaces = match &term.namespace_selector {
            Some(all) if selecting(Some(all)).is_everything() => Namespaces::All,
            // Every namespace has its name as a label; other namespace labels are not supported.
            Some(some) => {
                let names = some.match_labels.iter().flatten();
                let names = names.filter(|(key, _)| *key == "kubernetes.io/metadata.name");
                Namespaces::These(
                    named.into_iter().chain(names.map(|(_, name)| name.clone())).collect(),
                )
            }
            None if named.is_empty() => Namespaces::These(vec![own()]),
            None => Namespaces::These(named),
        };
        AffinityTerm {
            topology_key: term.topology_key.clone(),
            selector: with_own_labels(
                term.label_selector.as_ref(),
                term.match_label_keys.as_ref(),
                pod,
            ),
            namespaces,
        }
    }

    /// Whether the term selects a pod.
    pub(crate) fn matches(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let inside = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::These(names) => names.iter().any(|name| name == namespace),
        };
        inside && self.selector.matches(pod)
    }
}

impl SpreadConstraint {
    fn new(one: &core::TopologySpreadConstraint, pod: &Pod) -> SpreadConstraint {
        let keys = one.match_label_keys.as_ref();
        SpreadConstraint {
            topology_key: one.topology_key.clone(),
            max_skew: i64::from(one.max_skew),
            min_domains: one.min_domains.and_then(|min| min.try_into().ok()).unwrap_or(1),
            selector: with_own_labels(one.label_selector.as_ref(), keys, pod),
            is_hard: one.when_unsatisfiable == "DoNotSchedule",
            honors_affinity: one.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: one.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}
