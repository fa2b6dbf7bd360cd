//! A pod with everything the scheduler wants to know of it, computed once.

use std::sync::Arc;

use headwater_client::{Cached, Key, Selector};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::ownership::selector;
use crate::pod::Pod;

use super::amount::{Amounts, requests};

/// A pod that asks for a place, or has one.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) pod: Arc<Pod>,
    pub(crate) key: Key,
    pub(crate) priority: i32,
    pub(crate) requests: Amounts,
    /// CPU and memory for scoring: a pod that asks for nothing still uses something.
    pub(crate) counted: (i64, i64),
    pub(crate) ports: Vec<Port>,
    pub(crate) near: Vec<Term>,
    pub(crate) apart: Vec<Term>,
    /// Wishes with their weight; negative for "rather not".
    pub(crate) wishes: Vec<(i64, Term)>,
    pub(crate) spread: Vec<Spread>,
}

/// A port of the host that a pod takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    protocol: String,
    address: String,
    port: i32,
}

/// "In the same place as such pods", or not.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) topology: String,
    selector: Selector,
    namespaces: Namespaces,
}

#[derive(Debug)]
enum Namespaces {
    All,
    These(Vec<String>),
}

/// "Not many more here than elsewhere."
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) topology: String,
    pub(crate) skew_max: i64,
    pub(crate) domains_min: usize,
    pub(crate) selector: Selector,
    /// Whether a pod may not be placed against it.
    pub(crate) is_hard: bool,
    pub(crate) honors_affinity: bool,
    pub(crate) honors_taints: bool,
}

/// What a container without a request is counted as: 100m and 200 MB.
const COUNTED_CPU: i64 = 100;
const COUNTED_MEMORY: i64 = 200 * 1024 * 1024;

impl Ask {
    pub(crate) fn new(pod: Arc<Pod>) -> Ask {
        let requests = requests(&pod.spec);
        let or = |amount: i64, usual: i64| if amount > 0 { amount } else { usual };
        let counted = (or(requests.cpu, COUNTED_CPU), or(requests.memory, COUNTED_MEMORY));
        let affinity = pod.spec.affinity.as_deref();
        let near = affinity.and_then(|all| all.pod_affinity.as_ref());
        let apart = affinity.and_then(|all| all.pod_anti_affinity.as_ref());
        let required = |terms: Option<&Vec<core::PodAffinityTerm>>| -> Vec<Term> {
            terms.into_iter().flatten().map(|term| Term::new(term, &pod)).collect()
        };
        let wish = |sign: i64, terms: Option<&Vec<core::WeightedPodAffinityTerm>>| {
            let weighted = |one: &core::WeightedPodAffinityTerm| {
                (sign * i64::from(one.weight), Term::new(&one.pod_affinity_term, &pod))
            };
            terms.into_iter().flatten().map(weighted).collect::<Vec<_>>()
        };
        let mut wishes = wish(
            1,
            near.and_then(|near| {
                near.preferred_during_scheduling_ignored_during_execution.as_ref()
            }),
        );
        wishes.extend(wish(
            -1,
            apart.and_then(|apart| {
                apart.preferred_during_scheduling_ignored_during_execution.as_ref()
            }),
        ));
        Ask {
            key: pod.key(),
            priority: pod.spec.priority.unwrap_or(0),
            counted,
            ports: ports(&pod),
            near: required(near.and_then(|near| {
                near.required_during_scheduling_ignored_during_execution.as_ref()
            })),
            apart: required(apart.and_then(|apart| {
                apart.required_during_scheduling_ignored_during_execution.as_ref()
            })),
            wishes,
            spread: pod
                .spec
                .topology_spread_constraints
                .iter()
                .map(|one| Spread::new(one, &pod))
                .collect(),
            requests,
            pod,
        }
    }

    /// The same pod in another state; what it asks for did not change.
    pub(crate) fn asks_the_same(&self, pod: &Pod) -> bool {
        self.pod.spec == pod.spec
            && self.pod.metadata.labels == pod.metadata.labels
            && self.pod.metadata.uid == pod.metadata.uid
    }

    /// Whether it makes no difference to others which of the two is in a room.
    pub(crate) fn weighs_the_same(&self, other: &Ask) -> bool {
        self.requests == other.requests
            && self.pod.metadata.labels == other.pod.metadata.labels
            && self.pod.metadata.uid == other.pod.metadata.uid
    }

    pub(crate) fn namespace(&self) -> &str {
        self.key.namespace().unwrap_or_default()
    }
}

fn ports(pod: &Pod) -> Vec<Port> {
    let containers = pod.spec.containers.iter();
    let ports = containers.flat_map(|container| &container.ports);
    let host = |port: &core::ContainerPort| {
        let usual = pod.spec.host_network.then_some(port.container_port);
        let number = port.host_port.or(usual).filter(|number| *number > 0)?;
        Some(Port {
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            address: port.host_ip.clone().unwrap_or_default(),
            port: number,
        })
    };
    ports.filter_map(host).collect()
}

impl Port {
    /// Whether both cannot be taken on one host.
    pub(crate) fn clashes(&self, other: &Port) -> bool {
        let any = |port: &Port| matches!(port.address.as_str(), "" | "0.0.0.0" | "::");
        self.port == other.port
            && self.protocol == other.protocol
            && (any(self) || any(other) || self.address == other.address)
    }
}

/// A selector that nobody can parse selects nothing; the server refused it long before.
fn selecting(wanted: Option<&LabelSelector>) -> Selector {
    selector(wanted).unwrap_or_else(|_| Selector::nothing())
}

/// The selector with the pod's own values of some labels, such as its revision.
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

impl Term {
    fn new(term: &core::PodAffinityTerm, pod: &Pod) -> Term {
        let own = || pod.metadata.namespace.clone().unwrap_or_default();
        let named = term.namespaces.clone().unwrap_or_default();
        let namespaces = match &term.namespace_selector {
            Some(all) if selecting(Some(all)).is_everything() => Namespaces::All,
            // Every namespace has its name as a label; other labels are not looked at here.
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
        Term {
            topology: term.topology_key.clone(),
            selector: with_own_labels(
                term.label_selector.as_ref(),
                term.match_label_keys.as_ref(),
                pod,
            ),
            namespaces,
        }
    }

    /// Whether a pod is one of those that are meant.
    pub(crate) fn means(&self, pod: &Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let inside = match &self.namespaces {
            Namespaces::All => true,
            Namespaces::These(names) => names.iter().any(|name| name == namespace),
        };
        inside && self.selector.matches(pod)
    }
}

impl Spread {
    fn new(one: &core::TopologySpreadConstraint, pod: &Pod) -> Spread {
        let keys = one.match_label_keys.as_ref();
        Spread {
            topology: one.topology_key.clone(),
            skew_max: i64::from(one.max_skew),
            domains_min: one.min_domains.and_then(|min| min.try_into().ok()).unwrap_or(1),
            selector: with_own_labels(one.label_selector.as_ref(), keys, pod),
            is_hard: one.when_unsatisfiable == "DoNotSchedule",
            honors_affinity: one.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: one.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}
