//! Which volume a claim is bound to, and what a volume or claim needs next.
//!
//! Promise: pure; a volume is bound to at most one claim, because its `claimRef` names it.

use std::collections::BTreeSet;
use std::sync::Arc;

use headwater_api::quantity::Quantity as Amount;
use headwater_client::Cached;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::core::ObjectMeta;

use crate::ownership::selector;

/// The provisioner of simulated volumes.
pub(super) const PROVISIONER: &str = "simulated.headwater.dev";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const STORAGE: &str = "storage";

/// What a claim needs next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ClaimAction {
    /// It is bound to this volume; both sides are written as far as they differ.
    Bind(Arc<PersistentVolume>),
    /// The volume is created; the claim is bound to it in the next pass.
    Provision(Box<PersistentVolume>),
    /// Its volume is gone.
    Lose,
    /// It waits; the reason and message of an event, if there is one.
    Wait(Option<(&'static str, String)>),
}

/// The objects that decide about a claim.
pub(super) struct ClaimState<'a> {
    pub(super) claim: &'a PersistentVolumeClaim,
    pub(super) volumes: &'a [Arc<PersistentVolume>],
    pub(super) class: Option<&'a StorageClass>,
    /// Whether a pod uses the claim.
    pub(super) is_used: bool,
}

pub(super) fn claim_spec(claim: &PersistentVolumeClaim) -> PersistentVolumeClaimSpec {
    claim.spec.clone().unwrap_or_default()
}

fn spec_of(volume: &PersistentVolume) -> PersistentVolumeSpec {
    volume.spec.clone().unwrap_or_default()
}

/// The name of the class of a claim; empty for none.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> String {
    let annotations = claim.metadata.annotations.as_ref();
    let annotated = annotations.and_then(|all| all.get(CLASS_ANNOTATION)).cloned();
    annotated.or_else(|| claim.spec.as_ref()?.storage_class_name.clone()).unwrap_or_default()
}

fn has_annotation(meta: &ObjectMeta, name: &str) -> bool {
    meta.annotations.as_ref().is_some_and(|all| all.contains_key(name))
}

impl ClaimState<'_> {
    pub(super) fn action(&self) -> ClaimAction {
        let spec = claim_spec(self.claim);
        if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
            let found = self.volumes.iter().find(|volume| volume.name() == name);
            let was_bound = has_annotation(&self.claim.metadata, BIND_COMPLETED);
            return match found {
                Some(volume) if self.may_take(volume) => ClaimAction::Bind(Arc::clone(volume)),
                _ if was_bound => ClaimAction::Lose,
                Some(_) => {
                    let why = format!("volume {name:?} already bound to a different claim.");
                    ClaimAction::Wait(Some(("FailedBinding", why)))
                }
                None => ClaimAction::Wait(None),
            };
        }
        if self.claim.metadata.deletion_timestamp.is_some() {
            return ClaimAction::Wait(None);
        }
        if let Some(volume) = self.reserved().or_else(|| self.best_match()) {
            return ClaimAction::Bind(Arc::clone(volume));
        }
        self.provision()
    }

    /// Whether a volume belongs to this claim or to none.
    fn may_take(&self, volume: &PersistentVolume) -> bool {
        let claim_ref = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim_ref.is_none_or(|claim_ref| refers_to(claim_ref, self.claim))
    }

    /// A volume whose `claimRef` names the claim.
    fn reserved(&self) -> Option<&Arc<PersistentVolume>> {
        self.volumes.iter().find(|volume| is_reserved(self.claim, volume))
    }

    /// The smallest free volume that fits the claim.
    fn best_match(&self) -> Option<&Arc<PersistentVolume>> {
        if self.waits_for_consumer() {
            return None;
        }
        let fits = |volume: &&Arc<PersistentVolume>| fits(self.claim, volume);
        let size = |volume: &PersistentVolume| capacity(volume).map(|size| amount(&size));
        let fitting = self.volumes.iter().filter(fits);
        fitting.min_by(|one, other| {
            (size(one), one.name())
                .partial_cmp(&(size(other), other.name()))
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }

    /// Whether the class wants to see a pod first, and there is none.
    fn waits_for_consumer(&self) -> bool {
        let mode = self.class.and_then(|class| class.volume_binding_mode.as_deref());
        let is_selected = has_annotation(&self.claim.metadata, SELECTED_NODE);
        mode == Some("WaitForFirstConsumer") && !self.is_used && !is_selected
    }

    fn provision(&self) -> ClaimAction {
        let name = class_name(self.claim);
        if name.is_empty() {
            let why = "no persistent volumes available for this claim and no storage class is set";
            return ClaimAction::Wait(Some(("FailedBinding", why.to_owned())));
        }
        let Some(class) = self.class else {
            let why = format!("storageclass.storage.k8s.io {name:?} not found");
            return ClaimAction::Wait(Some(("ProvisioningFailed", why)));
        };
        if self.waits_for_consumer() {
            let why = "waiting for first consumer to be created before binding";
            return ClaimAction::Wait(Some(("WaitForFirstConsumer", why.to_owned())));
        }
        match class.provisioner.as_str() {
            PROVISIONER => ClaimAction::Provision(Box::new(provisioned(self.claim, class))),
            "kubernetes.io/no-provisioner" => {
                let why = "no persistent volumes available for this claim and the storage class has no provisioner";
                ClaimAction::Wait(Some(("FailedBinding", why.to_owned())))
            }
            other => {
                let why = format!(
                    "Waiting for a volume to be created either by the external provisioner '{other}' or \
                     manually by the system administrator. If volume creation is delayed, please verify that \
                     the provisioner is running and correctly registered."
                );
                ClaimAction::Wait(Some(("ExternalProvisioning", why)))
            }
        }
    }
}

/// Whether a volume is free and has what a claim wants.
pub(crate) fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (wanted, spec) = (claim_spec(claim), spec_of(volume));
    let modes: BTreeSet<String> = spec.access_modes.into_iter().flatten().collect();
    let has_modes = wanted.access_modes.iter().flatten().all(|mode| modes.contains(mode));
    let is_block = |mode: Option<&String>| mode.is_some_and(|mode| mode == "Block");
    let same_mode = is_block(spec.volume_mode.as_ref()) == is_block(wanted.volume_mode.as_ref());
    let has_labels = match &wanted.selector {
        None => true,
        Some(wanted) => selector(Some(wanted)).is_ok_and(|it| it.matches(volume)),
    };
    let is_large = match (requested(claim), capacity(volume)) {
        (Some(wanted), Some(size)) => amount(&size) >= amount(&wanted),
        _ => false,
    };
    spec.claim_ref.is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && spec.storage_class_name.unwrap_or_default() == class_name(claim)
        && has_modes
        && same_mode
        && has_labels
        && is_large
}

/// Whether a volume names a claim.
pub(crate) fn is_reserved(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let claim_ref = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    claim_ref.is_some_and(|claim_ref| refers_to(claim_ref, claim))
}

/// Whether a claim and its volume are bound to each other.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    volume.is_some_and(|name| !name.is_empty()) && has_annotation(&claim.metadata, BIND_COMPLETED)
}

/// Whether an unbound claim is bound only for a node that the scheduler chooses.
pub(crate) fn waits_for_node(claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> bool {
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let mode = class.and_then(|class| class.volume_binding_mode.as_deref());
    volume.is_none_or(str::is_empty) && mode == Some("WaitForFirstConsumer")
}

/// The size of a volume, for comparison.
pub(crate) fn capacity_nano(volume: &PersistentVolume) -> i128 {
    capacity(volume).map_or(0, |size| amount(&size))
}

/// Whether a `claimRef` names a claim; one without a UID reserves the volume for its name.
pub(super) fn refers_to(claim_ref: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let uid = claim_ref.uid.as_deref().filter(|uid| !uid.is_empty());
    claim_ref.name.as_deref() == Some(claim.name())
        && claim_ref.namespace.as_deref() == claim.namespace()
        && uid.is_none_or(|uid| uid == claim.uid())
}

/// The `claimRef` of a volume that is bound to a claim.
pub(crate) fn claim_ref(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        name: claim.metadata.name.clone(),
        namespace: claim.metadata.namespace.clone(),
        uid: claim.metadata.uid.clone(),
        resource_version: claim.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// The requested size.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE).cloned()
}

pub(super) fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE).cloned()
}

/// A size as a number that can be compared; zero if it is not a quantity.
pub(super) fn amount(size: &Quantity) -> i128 {
    Amount::parse(&size.0).map_or(0, |size| size.nano())
}

fn provisioned(claim: &PersistentVolumeClaim, class: &StorageClass) -> PersistentVolume {
    let spec = claim_spec(claim);
    let name = format!("pvc-{}", claim.uid());
    let annotations = [(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())];
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: requested(claim).map(|size| [(STORAGE.to_owned(), size)].into()),
            claim_ref: Some(claim_ref(claim)),
            csi: Some(CSIPersistentVolumeSource {
                driver: PROVISIONER.to_owned(),
                volume_handle: name,
                ..CSIPersistentVolumeSource::default()
            }),
            mount_options: class.mount_options.clone(),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// The phase of a volume, given the claim that its `claimRef` names.
pub(super) fn phase(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> &'static str {
    let claim_ref = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some(claim_ref) = claim_ref else { return "Available" };
    let has_uid = claim_ref.uid.as_deref().is_some_and(|uid| !uid.is_empty());
    match claim {
        Some(claim) if has_uid && refers_to(claim_ref, claim) => "Bound",
        _ if has_uid => "Released",
        _ => "Available",
    }
}

/// Whether a released volume is deleted.
pub(super) fn is_reclaimed(volume: &PersistentVolume) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    let provisioner = annotations.and_then(|all| all.get(PROVISIONED_BY));
    let policy =
        volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_ref());
    policy.is_some_and(|policy| policy == "Delete")
        && provisioner.is_some_and(|provisioner| provisioner == PROVISIONER)
        && volume.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(change: Value) -> PersistentVolumeClaim {
        let mut value = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": "2Gi"}}},
        });
        crate::fixture::merge(&mut value, &change);
        serde_json::from_value(value).unwrap()
    }

    fn volume(name: &str, change: Value) -> Arc<PersistentVolume> {
        let mut value = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "storageClassName": "fast",
                "capacity": {"storage": "5Gi"}},
        });
        crate::fixture::merge(&mut value, &change);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn class(provisioner: &str, mode: &str) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {"name": "fast"}, "provisioner": provisioner, "volumeBindingMode": mode,
            "reclaimPolicy": "Delete",
        }))
        .unwrap()
    }

    /// The action as a word: a volume, `+pvc-c`, `lost`, or the reason of the event.
    fn word(
        claim: &PersistentVolumeClaim,
        volumes: &[Arc<PersistentVolume>],
        class: Option<&StorageClass>,
        is_used: bool,
    ) -> String {
        match (ClaimState { claim, volumes, class, is_used }).action() {
            ClaimAction::Bind(volume) => volume.name().to_owned(),
            ClaimAction::Provision(volume) => format!("+{}", volume.name()),
            ClaimAction::Lose => "lost".to_owned(),
            ClaimAction::Wait(event) => event.map_or("", |(reason, _)| reason).to_owned(),
        }
    }

    #[track_caller]
    fn check(change: Value, volumes: &[Arc<PersistentVolume>], expected: &str) {
        assert_eq!(word(&claim(change), volumes, None, false), expected);
    }

    #[test]
    fn a_claim_is_bound_to_the_smallest_volume_that_fits() {
        let small = volume("small", json!({"spec": {"capacity": {"storage": "1Gi"}}}));
        let large = volume("large", json!({"spec": {"capacity": {"storage": "10Gi"}}}));
        let medium = volume("medium", json!({}));
        check(json!({}), &[small.clone(), large.clone(), medium.clone()], "medium");
        check(json!({}), &[small, large], "large");
        let others = [
            volume("a", json!({"spec": {"storageClassName": "slow"}})),
            volume("b", json!({"spec": {"accessModes": ["ReadOnlyMany"]}})),
            volume("c", json!({"spec": {"volumeMode": "Block"}})),
            volume("d", json!({"spec": {"claimRef": {"name": "other", "namespace": "shop"}}})),
        ];
        check(json!({}), &others, "ProvisioningFailed");
        let labels = json!({"spec": {"selector": {"matchLabels": {"tier": "a"}}}});
        check(labels.clone(), std::slice::from_ref(&medium), "ProvisioningFailed");
        check(labels, &[volume("e", json!({"metadata": {"labels": {"tier": "a"}}}))], "e");
        // A volume that is reserved for the claim comes first.
        let reserved = json!({"spec": {"claimRef": {"name": "data", "namespace": "shop"}}});
        check(json!({}), &[medium, volume("mine", reserved)], "mine");
    }

    #[test]
    fn a_named_volume_is_taken_or_lost() {
        let named = json!({"spec": {"volumeName": "v"}});
        check(named.clone(), &[], "");
        check(named.clone(), &[volume("v", json!({}))], "v");
        let taken =
            json!({"spec": {"claimRef": {"name": "data", "namespace": "shop", "uid": "earlier"}}});
        check(named.clone(), &[volume("v", taken)], "FailedBinding");
        let mut bound = named;
        bound["metadata"] = json!({"annotations": {BIND_COMPLETED: "yes"}});
        check(bound, &[], "lost");
    }

    #[test]
    fn the_class_decides_whether_a_volume_is_provisioned() {
        let state =
            |class: &StorageClass, is_used| word(&claim(json!({})), &[], Some(class), is_used);
        assert_eq!(state(&class(PROVISIONER, "Immediate"), false), "+pvc-c");
        let waiting = class(PROVISIONER, "WaitForFirstConsumer");
        assert_eq!(state(&waiting, false), "WaitForFirstConsumer");
        assert_eq!(state(&waiting, true), "+pvc-c");
        assert_eq!(state(&class("disk.example.com", "Immediate"), false), "ExternalProvisioning");
        let manual = class("kubernetes.io/no-provisioner", "Immediate");
        assert_eq!(state(&manual, false), "FailedBinding");
        check(json!({"spec": {"storageClassName": ""}}), &[], "FailedBinding");
        let created = provisioned(&claim(json!({})), &class(PROVISIONER, "Immediate"));
        assert_eq!(capacity(&created).unwrap().0, "2Gi");
        assert!(is_reclaimed(&created));
        assert_eq!(phase(&created, Some(&claim(json!({})))), "Bound");
    }

    #[test]
    fn the_phase_of_a_volume_follows_its_claim() {
        let data = claim(json!({}));
        let with = |claim_ref: Value| volume("v", json!({"spec": {"claimRef": claim_ref}}));
        let named = |uid: &str| json!({"name": "data", "namespace": "shop", "uid": uid});
        assert_eq!(phase(&volume("v", json!({})), None), "Available");
        assert_eq!(phase(&with(named("c")), Some(&data)), "Bound");
        assert_eq!(phase(&with(named("c")), None), "Released");
        assert_eq!(phase(&with(named("earlier")), Some(&data)), "Released");
        assert_eq!(phase(&with(json!({"name": "data", "namespace": "shop"})), None), "Available");
        assert!(!is_reclaimed(&volume("v", json!({}))));
    }
}
