//! Volumes: which nodes the volumes of a pod allow, and what must be bound before the pod is.
//!
//! River: informers of claims, volumes, classes and CSINodes → **volumes** → filter, `run`.
//! As in kube-scheduler's plugins VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone. A
//! claim whose class waits for its first consumer is bound for the chosen node: an existing volume gets
//! the claim's reference, or the claim names the node and the controller of volumes provisions it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use headwater_client::{Cached, Key};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};

use super::cache::{NodeInfo, SchedulerCache};
use super::node_term::term_matches;
use super::pod_info::PodInfo;
use super::reason::FitReason;
use crate::volumes::{
    SELECTED_NODE, capacity_nano, class_name, fits, is_bound, is_reserved, waits_for_node,
};

/// The mode of a claim that only one pod may use.
const SOLE: &str = "ReadWriteOncePod";

/// A class with this provisioner has only volumes that somebody makes.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Labels of volumes that their nodes must have; a volume may list several values.
const ZONES: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// What decisions read of the storage of a cluster.
#[derive(Debug, Default)]
pub(crate) struct StorageObjects {
    pub(crate) claims: BTreeMap<Key, Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: BTreeMap<Key, Arc<PersistentVolume>>,
    pub(crate) classes: BTreeMap<Key, Arc<StorageClass>>,
    pub(crate) nodes: BTreeMap<Key, Arc<CSINode>>,
}

impl StorageObjects {
    fn volume(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<PersistentVolume>> {
        let name = claim.spec.as_ref()?.volume_name.as_deref()?;
        self.volumes.get(&Key::cluster(name))
    }

    fn class(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<StorageClass>> {
        self.classes.get(&Key::cluster(&class_name(claim)))
    }

    /// The claims of a pod that exist.
    fn claims_of<'a>(
        &'a self,
        pod_info: &'a PodInfo,
    ) -> impl Iterator<Item = &'a Arc<PersistentVolumeClaim>> {
        let namespace = pod_info.namespace();
        let names = pod_info.pod.claims();
        names.filter_map(move |name| self.claims.get(&Key::namespaced(namespace, name)))
    }

    /// The driver of a claim's volume, and what identifies the volume for the driver.
    fn attachment(&self, claim: &PersistentVolumeClaim) -> Option<(String, String)> {
        match self.volume(claim) {
            Some(volume) => {
                let csi = volume.spec.as_ref()?.csi.as_ref()?;
                Some((csi.driver.clone(), csi.volume_handle.clone()))
            }
            None => Some((self.class(claim)?.provisioner.clone(), claim.key().to_string())),
        }
    }
}

/// What is bound when a pod gets a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimChoice {
    pub(crate) claim: Arc<PersistentVolumeClaim>,
    /// The existing volume; without one, the volume is provisioned for the node.
    pub(crate) volume: Option<Arc<PersistentVolume>>,
}

/// The volumes of one pod, looked up once per scheduling attempt.
#[derive(Debug)]
pub(crate) struct PodVolumes<'a> {
    storage: &'a StorageObjects,
    /// Why no node is possible.
    rejection: Option<FitReason>,
    /// Whether another pod uses a claim that only one may use.
    is_shared: bool,
    /// The volumes of bound claims; `None` if a volume does not exist.
    bound: Vec<Option<&'a Arc<PersistentVolume>>>,
    /// Claims that are bound for the chosen node.
    delayed: Vec<&'a Arc<PersistentVolumeClaim>>,
    /// What is attached to a node with the pod.
    attached: BTreeSet<(String, String)>,
}

impl<'a> PodVolumes<'a> {
    pub(crate) fn new(pod_info: &'a PodInfo, cache: &'a SchedulerCache) -> PodVolumes<'a> {
        let storage = &cache.storage;
        let mut found = PodVolumes {
            storage,
            rejection: None,
            is_shared: false,
            bound: Vec::new(),
            delayed: Vec::new(),
            attached: BTreeSet::new(),
        };
        for name in pod_info.pod.claims() {
            let claim = storage.claims.get(&Key::namespaced(pod_info.namespace(), name));
            if let Err(why) = found.add(name, claim) {
                found.rejection = Some(FitReason::Claims(why));
                return found;
            }
        }
        found.is_shared = found.is_shared(pod_info, cache);
        found
    }

    fn add(
        &mut self,
        name: &str,
        claim: Option<&'a Arc<PersistentVolumeClaim>>,
    ) -> Result<(), String> {
        let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Lost") {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
            let volume = volume.unwrap_or_default();
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if is_bound(claim) {
            self.bound.push(self.storage.volume(claim));
        } else if waits_for_node(claim, self.storage.class(claim).map(|class| &**class)) {
            self.delayed.push(claim);
        } else {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        self.attached.extend(self.storage.attachment(claim));
        Ok(())
    }

    fn is_shared(&self, pod_info: &PodInfo, cache: &SchedulerCache) -> bool {
        let is_sole = |claim: &PersistentVolumeClaim| {
            let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
            modes.is_some_and(|modes| modes.iter().any(|mode| mode == SOLE))
        };
        let sole: BTreeSet<Key> = self
            .storage
            .claims_of(pod_info)
            .filter(|claim| is_sole(claim))
            .map(|claim| claim.key())
            .collect();
        let uses = |other: &PodInfo| {
            self.storage.claims_of(other).any(|claim| sole.contains(&claim.key()))
        };
        !sole.is_empty()
            && cache.nodes().flat_map(|node_info| node_info.pods.values()).any(|other| uses(other))
    }

    /// Why no node is possible.
    pub(crate) fn rejection(&self) -> Option<&FitReason> {
        self.rejection.as_ref()
    }

    /// Whether the pod has any.
    fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.delayed.is_empty()
    }

    /// Why they rule out a node.
    pub(crate) fn conflict(&self, node_info: &NodeInfo) -> Option<FitReason> {
        match () {
            () if self.is_empty() => None,
            () if self.is_shared => Some(FitReason::SoleClaim),
            () if self.exceeds_limit(node_info) => Some(FitReason::VolumeLimit),
            () if self.bound.contains(&None) => Some(FitReason::VolumeGone),
            () if !self.volumes().all(|volume| is_reachable(volume, node_info)) => {
                Some(FitReason::VolumeNode)
            }
            () if self.choices(node_info).is_none() => Some(FitReason::VolumeAbsent),
            () if !self.volumes().all(|volume| is_in_zone(volume, node_info)) => {
                Some(FitReason::VolumeZone)
            }
            () => None,
        }
    }

    fn volumes(&self) -> impl Iterator<Item = &'a Arc<PersistentVolume>> {
        self.bound.iter().copied().flatten()
    }

    /// Whether a driver of the node would have more volumes than it can attach.
    fn exceeds_limit(&self, node_info: &NodeInfo) -> bool {
        let Some(node) = self.storage.nodes.get(&Key::cluster(node_info.name())) else {
            return false;
        };
        let limits = node.spec.drivers.iter().filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.as_str(), usize::try_from(count).unwrap_or(0)))
        });
        let limits: HashMap<&str, usize> = limits.collect();
        if limits.is_empty() {
            return false;
        }
        let others = node_info.pods.values().flat_map(|pod_info| self.storage.claims_of(pod_info));
        let mut attached: BTreeSet<(String, String)> =
            others.filter_map(|claim| self.storage.attachment(claim)).collect();
        let before = attached.clone();
        attached.extend(self.attached.iter().cloned());
        limits.iter().any(|(driver, limit)| {
            let count = |all: &BTreeSet<(String, String)>| {
                all.iter().filter(|(name, _)| name == driver).count()
            };
            count(&attached) > *limit && count(&attached) > count(&before)
        })
    }

    /// How the claims that wait for a node are bound if it is this one; `None` if they cannot be.
    pub(crate) fn choices(&self, node_info: &NodeInfo) -> Option<Vec<ClaimChoice>> {
        let mut taken: BTreeSet<&str> = BTreeSet::new();
        let choices = self.delayed.iter().map(|claim| {
            if selected_node(claim).is_some_and(|node| node != node_info.name()) {
                return None;
            }
            let free = self.storage.volumes.values().filter(|volume| {
                !taken.contains(volume.name())
                    && (fits(claim, volume) || is_reserved(claim, volume))
                    && is_reachable(volume, node_info)
            });
            let smallest = free.min_by_key(|volume| capacity_nano(volume));
            taken.extend(smallest.map(|volume| volume.name()));
            let class = self.storage.class(claim)?;
            let is_provisioned = class.provisioner != NO_PROVISIONER && reaches(class, node_info);
            (smallest.is_some() || is_provisioned)
                .then(|| ClaimChoice { claim: Arc::clone(claim), volume: smallest.cloned() })
        });
        choices.collect()
    }

    /// The node for which a claim was provisioned.
    pub(crate) fn selected_node(&self) -> Option<&'a str> {
        self.delayed.iter().find_map(|claim| selected_node(claim))
    }
}

/// The node for which a claim is provisioned.
pub(crate) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

/// Whether the node affinity of a volume matches a node.
fn is_reachable(volume: &PersistentVolume, node_info: &NodeInfo) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| {
        required.node_selector_terms.iter().any(|term| term_matches(term, node_info))
    })
}

/// Whether a class provisions volumes for a node.
fn reaches(class: &StorageClass, node_info: &NodeInfo) -> bool {
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    let holds = |key: &str, values: &[String]| {
        node_info.label(key).is_some_and(|label| values.iter().any(|value| value == label))
    };
    let matches = |term: &TopologySelectorTerm| {
        let rules = term.match_label_expressions.as_deref().unwrap_or_default();
        rules.iter().all(|rule| holds(&rule.key, &rule.values))
    };
    allowed.is_empty() || allowed.iter().any(matches)
}

/// Whether a node is in the zone and the region of a volume. A node without such labels is everywhere.
fn is_in_zone(volume: &PersistentVolume, node_info: &NodeInfo) -> bool {
    if ZONES.iter().all(|label| node_info.label(label).is_none()) {
        return true;
    }
    let labels = volume.metadata.labels.iter().flatten();
    let mut zones = labels.filter(|(label, _)| ZONES.contains(&label.as_str()));
    zones.all(|(label, values)| {
        node_info.label(label).is_some_and(|zone| values.split("__").any(|value| value == zone))
    })
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "tables write values where they are used")]
mod tests;
