//! The decision about an object whose owners or dependents changed.

use kube::core::ObjectMeta;

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// The state of an owner that a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// It exists.
    Solid,
    /// It does not exist, or another object has its name.
    Absent,
    /// It is being deleted and waits for its dependents.
    Waiting,
    /// The server does not serve the kind, or the reference crosses namespaces.
    Unknown,
}

/// The state of an object that has this one as its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DependentState {
    /// It blocks the deletion of its owner.
    pub(super) blocks: bool,
    /// It waits for its own dependents.
    pub(super) waits: bool,
}

/// How the dependents of a deleted object are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        }
    }
}

/// What the garbage collector does with an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GcAction {
    Nothing,
    /// Removes the references to these absent owners; other owners exist.
    RemoveOwners(Vec<String>),
    /// Deletes the object: it has no owner any more.
    Delete(Propagation),
    /// As [`GcAction::Delete`] in the foreground, within a cycle of owners: stops blocking them
    /// first.
    DeleteUnblocked,
    /// Removes the references of its dependents, then the finalizer `orphan`.
    OrphanDependents,
    /// Waits until its dependents are deleted.
    WaitForDependents,
    /// Removes the finalizer `foregroundDeletion`: no dependent blocks any more.
    RemoveFinalizer,
}

/// Decides about one object, given the states of its owners and of its dependents.
pub(super) fn decide(
    object: &ObjectMeta,
    owners: &[(String, OwnerState)],
    dependents: &[DependentState],
) -> GcAction {
    let has = |name: &str| object.finalizers.iter().flatten().any(|known| known == name);
    if object.deletion_timestamp.is_some() {
        return match () {
            () if has(ORPHAN) => GcAction::OrphanDependents,
            () if !has(FOREGROUND) => GcAction::Nothing,
            () if dependents.iter().any(|dependent| dependent.blocks) => {
                GcAction::WaitForDependents
            }
            () => GcAction::RemoveFinalizer,
        };
    }
    let any = |wanted: OwnerState| owners.iter().any(|(_, owner)| *owner == wanted);
    if owners.is_empty() || any(OwnerState::Unknown) {
        return GcAction::Nothing;
    }
    if any(OwnerState::Solid) {
        let lost = owners.iter().filter(|(_, owner)| *owner != OwnerState::Solid);
        let lost: Vec<String> = lost.map(|(uid, _)| uid.clone()).collect();
        return if lost.is_empty() { GcAction::Nothing } else { GcAction::RemoveOwners(lost) };
    }
    if any(OwnerState::Waiting) && !dependents.is_empty() {
        return match dependents.iter().any(|dependent| dependent.waits) {
            true => GcAction::DeleteUnblocked,
            false => GcAction::Delete(Propagation::Foreground),
        };
    }
    GcAction::Delete(match () {
        () if has(ORPHAN) => Propagation::Orphan,
        () if has(FOREGROUND) => Propagation::Foreground,
        () => Propagation::Background,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn object(finalizers: &[&str], deleting: bool) -> ObjectMeta {
        ObjectMeta {
            finalizers: Some(finalizers.iter().map(|name| (*name).to_owned()).collect()),
            deletion_timestamp: deleting.then_some(Time(jiff::Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        }
    }

    #[track_caller]
    fn check(
        object: &ObjectMeta,
        owners: &[OwnerState],
        dependents: &[DependentState],
        expected: GcAction,
    ) {
        let owners: Vec<(String, OwnerState)> =
            owners.iter().enumerate().map(|(at, owner)| (at.to_string(), *owner)).collect();
        assert_eq!(decide(object, &owners, dependents), expected);
    }

    const FREE: DependentState = DependentState { blocks: false, waits: false };
    const BLOCKING: DependentState = DependentState { blocks: true, waits: false };
    const WAITING: DependentState = DependentState { blocks: true, waits: true };

    #[test]
    fn an_object_is_kept_while_one_of_its_owners_exists() {
        use OwnerState::{Absent, Solid, Unknown, Waiting};
        let plain = object(&[], false);
        check(&plain, &[], &[], GcAction::Nothing);
        check(&plain, &[Solid], &[], GcAction::Nothing);
        check(&plain, &[Absent], &[], GcAction::Delete(Propagation::Background));
        check(&plain, &[Absent, Absent], &[], GcAction::Delete(Propagation::Background));
        check(&plain, &[Solid, Absent], &[], GcAction::RemoveOwners(vec!["1".into()]));
        check(
            &plain,
            &[Waiting, Solid, Absent],
            &[],
            GcAction::RemoveOwners(vec!["0".into(), "2".into()]),
        );
        check(&plain, &[Unknown, Absent], &[], GcAction::Nothing);
    }

    #[test]
    fn foreground_deletion_propagates_to_dependents() {
        let plain = object(&[], false);
        check(&plain, &[OwnerState::Waiting], &[], GcAction::Delete(Propagation::Background));
        check(&plain, &[OwnerState::Waiting], &[FREE], GcAction::Delete(Propagation::Foreground));
        check(&plain, &[OwnerState::Waiting], &[WAITING], GcAction::DeleteUnblocked);
        check(
            &plain,
            &[OwnerState::Absent],
            &[BLOCKING],
            GcAction::Delete(Propagation::Background),
        );
        let marked = object(&[FOREGROUND], false);
        check(&marked, &[OwnerState::Absent], &[], GcAction::Delete(Propagation::Foreground));
        let marked = object(&[ORPHAN], false);
        check(&marked, &[OwnerState::Absent], &[], GcAction::Delete(Propagation::Orphan));
    }

    #[test]
    fn an_object_that_is_being_deleted_waits_for_blocking_dependents() {
        check(&object(&[], true), &[OwnerState::Absent], &[BLOCKING], GcAction::Nothing);
        check(&object(&["other"], true), &[], &[], GcAction::Nothing);
        check(&object(&[FOREGROUND], true), &[], &[BLOCKING], GcAction::WaitForDependents);
        check(&object(&[FOREGROUND], true), &[], &[FREE], GcAction::RemoveFinalizer);
        check(&object(&[FOREGROUND], true), &[OwnerState::Absent], &[], GcAction::RemoveFinalizer);
        check(&object(&[ORPHAN], true), &[], &[BLOCKING], GcAction::OrphanDependents);
    }
}
