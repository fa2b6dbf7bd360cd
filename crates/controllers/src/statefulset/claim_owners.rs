//! The owner references of claims, as `persistentVolumeClaimRetentionPolicy` requires.
//!
//! `whenDeleted: Delete` makes the set the owner of its claims, so that they are deleted with it.
//! `whenScaled: Delete` makes a surplus pod the owner of its claims. The garbage collector deletes.

use headwater_client::Cached;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::ownership::controller_reference;
use crate::pod::Pod;

use super::pods::spec;

/// The owner references that a claim should have; `None` if it has them.
pub(super) fn wanted(
    set: &StatefulSet,
    claim: &PersistentVolumeClaim,
    pod: Option<&Pod>,
    is_desired: bool,
) -> Option<Vec<OwnerReference>> {
    let policy = spec(set).persistent_volume_claim_retention_policy.as_ref();
    let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
    let when_deleted = deletes(policy.and_then(|policy| policy.when_deleted.as_ref()));
    let when_scaled = deletes(policy.and_then(|policy| policy.when_scaled.as_ref()));
    let is_surplus = when_scaled && !is_desired;
    let known = claim.metadata.owner_references.as_deref().unwrap_or_default();
    let is_ours = |owner: &OwnerReference| {
        owner.uid == set.uid() || pod.is_some_and(|pod| owner.uid == pod.uid())
    };
    let mut wanted: Vec<OwnerReference> =
        known.iter().filter(|owner| !is_ours(owner)).cloned().collect();
    match pod {
        Some(pod) if is_surplus => wanted.push(pod_reference(pod)),
        _ if when_deleted => wanted.push(controller_reference(set)),
        _ => {}
    }
    let uids = |owners: &[OwnerReference]| {
        owners.iter().map(|owner| owner.uid.clone()).collect::<std::collections::BTreeSet<_>>()
    };
    (uids(known) != uids(&wanted)).then_some(wanted)
}

fn pod_reference(pod: &Pod) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::tests::{pod, set};
    use super::*;

    #[track_caller]
    fn check(policy: (&str, &str), is_desired: bool, known: &[&str], expected: Option<&[&str]>) {
        let (deleted, scaled) = policy;
        let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
        let set = set(json!({"persistentVolumeClaimRetentionPolicy": policy}));
        let owner = |uid: &&str| OwnerReference { uid: (*uid).to_owned(), ..Default::default() };
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.owner_references = Some(known.iter().map(owner).collect());
        let found = wanted(&set, &claim, Some(&pod("db-1", json!({}))), is_desired);
        let uids = found.map(|all| all.into_iter().map(|it| it.uid).collect::<Vec<_>>());
        let expected = expected.map(|all| all.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(uids, expected);
    }

    #[test]
    fn the_retention_policy_decides_who_owns_a_claim() {
        const KEEP: (&str, &str) = ("Retain", "Retain");
        check(KEEP, true, &[], None);
        check(KEEP, true, &["set"], Some(&[]));
        check(KEEP, false, &["db-1", "other"], Some(&["other"]));
        check(("Delete", "Retain"), true, &[], Some(&["set"]));
        check(("Delete", "Retain"), false, &["set"], None);
        check(("Retain", "Delete"), true, &[], None);
        check(("Retain", "Delete"), false, &[], Some(&["db-1"]));
        check(("Retain", "Delete"), true, &["db-1"], Some(&[]));
        check(("Delete", "Delete"), true, &["other"], Some(&["other", "set"]));
        check(("Delete", "Delete"), false, &["set"], Some(&["db-1"]));
        check(("Delete", "Delete"), true, &["db-1"], Some(&["set"]));
    }
}
