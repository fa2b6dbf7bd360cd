//! What becomes of an object whose owners or dependents changed.

use kube::core::ObjectMeta;

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// What is known of an owner that a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It is there.
    Solid,
    /// It is gone, or another object has its name.
    Absent,
    /// It is there, but waits for its dependents to go first.
    Waiting,
    /// The server has no such kind, or the reference crosses namespaces: nobody can tell.
    Unknown,
}

/// What is known of an object that names this one as its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dependent {
    /// The owner must not go before it.
    pub(super) blocks: bool,
    /// It waits for its own dependents.
    pub(super) waits: bool,
}

/// How dependents of what is deleted are treated.
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

/// What is to be done with an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Nothing,
    /// It loses the references to these owners and stays for the others.
    Disown(Vec<String>),
    /// Nobody owns it any more.
    Delete(Propagation),
    /// As [`Verdict::Delete`], in the foreground, in a circle of owners: it must not block any.
    DeleteUnblocked,
    /// Its dependents lose their references to it; then it goes.
    Orphan,
    /// Its dependents go first.
    WaitForDependents,
    /// Nothing that blocks is left: it goes.
    Finish,
}

/// Decides about one object, from what is known of each owner it names and of each object that
/// names it.
pub(super) fn verdict(
    object: &ObjectMeta,
    owners: &[(String, Owner)],
    dependents: &[Dependent],
) -> Verdict {
    let has = |name: &str| object.finalizers.iter().flatten().any(|known| known == name);
    if object.deletion_timestamp.is_some() {
        return match () {
            () if has(ORPHAN) => Verdict::Orphan,
            () if !has(FOREGROUND) => Verdict::Nothing,
            () if dependents.iter().any(|dependent| dependent.blocks) => Verdict::WaitForDependents,
            () => Verdict::Finish,
        };
    }
    let any = |wanted: Owner| owners.iter().any(|(_, owner)| *owner == wanted);
    if owners.is_empty() || any(Owner::Unknown) {
        return Verdict::Nothing;
    }
    if any(Owner::Solid) {
        let lost = owners.iter().filter(|(_, owner)| *owner != Owner::Solid);
        let lost: Vec<String> = lost.map(|(uid, _)| uid.clone()).collect();
        return if lost.is_empty() { Verdict::Nothing } else { Verdict::Disown(lost) };
    }
    if any(Owner::Waiting) && !dependents.is_empty() {
        return match dependents.iter().any(|dependent| dependent.waits) {
            true => Verdict::DeleteUnblocked,
            false => Verdict::Delete(Propagation::Foreground),
        };
    }
    Verdict::Delete(match () {
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
    fn check(object: &ObjectMeta, owners: &[Owner], dependents: &[Dependent], expected: Verdict) {
        let owners: Vec<(String, Owner)> =
            owners.iter().enumerate().map(|(at, owner)| (at.to_string(), *owner)).collect();
        assert_eq!(verdict(object, &owners, dependents), expected);
    }

    const FREE: Dependent = Dependent { blocks: false, waits: false };
    const BLOCKING: Dependent = Dependent { blocks: true, waits: false };
    const WAITING: Dependent = Dependent { blocks: true, waits: true };

    #[test]
    fn an_object_lives_as_long_as_one_of_its_owners() {
        use Owner::{Absent, Solid, Unknown, Waiting};
        let plain = object(&[], false);
        check(&plain, &[], &[], Verdict::Nothing);
        check(&plain, &[Solid], &[], Verdict::Nothing);
        check(&plain, &[Absent], &[], Verdict::Delete(Propagation::Background));
        check(&plain, &[Absent, Absent], &[], Verdict::Delete(Propagation::Background));
        check(&plain, &[Solid, Absent], &[], Verdict::Disown(vec!["1".into()]));
        check(
            &plain,
            &[Waiting, Solid, Absent],
            &[],
            Verdict::Disown(vec!["0".into(), "2".into()]),
        );
        check(&plain, &[Unknown, Absent], &[], Verdict::Nothing);
    }

    #[test]
    fn dependents_of_what_goes_in_the_foreground_go_so_too() {
        let plain = object(&[], false);
        check(&plain, &[Owner::Waiting], &[], Verdict::Delete(Propagation::Background));
        check(&plain, &[Owner::Waiting], &[FREE], Verdict::Delete(Propagation::Foreground));
        check(&plain, &[Owner::Waiting], &[WAITING], Verdict::DeleteUnblocked);
        check(&plain, &[Owner::Absent], &[BLOCKING], Verdict::Delete(Propagation::Background));
        let marked = object(&[FOREGROUND], false);
        check(&marked, &[Owner::Absent], &[], Verdict::Delete(Propagation::Foreground));
        let marked = object(&[ORPHAN], false);
        check(&marked, &[Owner::Absent], &[], Verdict::Delete(Propagation::Orphan));
    }

    #[test]
    fn what_is_being_deleted_waits_for_what_blocks_it() {
        check(&object(&[], true), &[Owner::Absent], &[BLOCKING], Verdict::Nothing);
        check(&object(&["other"], true), &[], &[], Verdict::Nothing);
        check(&object(&[FOREGROUND], true), &[], &[BLOCKING], Verdict::WaitForDependents);
        check(&object(&[FOREGROUND], true), &[], &[FREE], Verdict::Finish);
        check(&object(&[FOREGROUND], true), &[Owner::Absent], &[], Verdict::Finish);
        check(&object(&[ORPHAN], true), &[], &[BLOCKING], Verdict::Orphan);
    }
}
