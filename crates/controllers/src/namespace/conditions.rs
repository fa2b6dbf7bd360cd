//! The conditions of a terminating namespace, which report what delays its deletion.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The remaining objects of one resource in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RemainingObjects {
    /// The number of remaining objects.
    pub(super) objects: usize,
    /// Those that are not being deleted yet.
    pub(super) alive: usize,
    /// The number of objects with each finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
}

/// The remaining objects, by `plural.group`.
pub(super) type NamespaceContent = BTreeMap<String, RemainingObjects>;

/// The errors of a pass, if any.
pub(super) struct DeletionErrors<'a> {
    pub(super) discovery: Option<&'a str>,
    pub(super) deletion: Option<&'a str>,
}

/// The conditions after a pass; an unchanged condition keeps its transition time.
pub(super) fn conditions(
    before: &[NamespaceCondition],
    content: &NamespaceContent,
    errors: &DeletionErrors<'_>,
    now: Timestamp,
) -> Vec<NamespaceCondition> {
    let rows = [
        match errors.discovery {
            Some(why) => ("NamespaceDeletionDiscoveryFailure", true, "DiscoveryFailed", why.into()),
            None => (
                "NamespaceDeletionDiscoveryFailure",
                false,
                "ResourcesDiscovered",
                "All resources successfully discovered".to_owned(),
            ),
        },
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            false,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".to_owned(),
        ),
        match errors.deletion {
            Some(why) => {
                ("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", why.into())
            }
            None => (
                "NamespaceDeletionContentFailure",
                false,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization".to_owned(),
            ),
        },
        remaining(content),
        finalizers(content),
    ];
    let mut after: Vec<NamespaceCondition> = before.to_vec();
    for (type_, status, reason, message) in rows {
        set(&mut after, type_, status, reason, message, now);
    }
    after
}

type Row = (&'static str, bool, &'static str, String);

fn remaining(content: &NamespaceContent) -> Row {
    let left = content.iter().filter(|(_, left)| left.objects > 0);
    let left: Vec<String> = left
        .map(|(name, left)| format!("{} has {} resource instances", dotted(name), left.objects))
        .collect();
    match left.is_empty() {
        true => (
            "NamespaceContentRemaining",
            false,
            "ContentRemoved",
            "All content successfully removed".to_owned(),
        ),
        false => (
            "NamespaceContentRemaining",
            true,
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", left.join(", ")),
        ),
    }
}

fn finalizers(content: &NamespaceContent) -> Row {
    let mut sums: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, count) in content.values().flat_map(|left| &left.finalizers) {
        *sums.entry(name).or_default() += count;
    }
    let left: Vec<String> = sums
        .into_iter()
        .map(|(name, count)| format!("{name} in {count} resource instances"))
        .collect();
    match left.is_empty() {
        true => (
            "NamespaceFinalizersRemaining",
            false,
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished".to_owned(),
        ),
        false => (
            "NamespaceFinalizersRemaining",
            true,
            "SomeFinalizersRemain",
            format!("Some content in the namespace has finalizers remaining: {}", left.join(", ")),
        ),
    }
}

/// Kinds of the core group have a trailing dot, as in Kubernetes' message.
fn dotted(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{name}.") }
}

fn set(
    conditions: &mut Vec<NamespaceCondition>,
    type_: &str,
    status: bool,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let status = if status { "True" } else { "False" };
    let known = conditions.iter_mut().find(|known| known.type_ == type_);
    let since = known.as_ref().filter(|known| known.status == status);
    let since = since.and_then(|known| known.last_transition_time.clone());
    let condition = NamespaceCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    };
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(content: &NamespaceContent, type_: &str) -> (String, String, String) {
        let none = DeletionErrors { discovery: None, deletion: None };
        let all = conditions(&[], content, &none, Timestamp::UNIX_EPOCH);
        let found = all.into_iter().find(|condition| condition.type_ == type_).unwrap();
        (found.status, found.reason.unwrap(), found.message.unwrap())
    }

    #[test]
    fn all_conditions_of_an_empty_namespace_are_false() {
        let none = DeletionErrors { discovery: None, deletion: None };
        let all = conditions(&[], &NamespaceContent::new(), &none, Timestamp::UNIX_EPOCH);
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|condition| condition.status == "False"), "{all:?}");
        let later = Timestamp::MAX;
        assert_eq!(
            conditions(&all, &NamespaceContent::new(), &none, later),
            all,
            "no news, no write"
        );
    }

    /// S10.5
    #[test]
    fn remaining_objects_and_their_finalizers_are_counted() {
        let left = |objects, finalizers: &[(&str, usize)]| RemainingObjects {
            objects,
            alive: 0,
            finalizers: finalizers.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
        };
        let content: NamespaceContent = [
            ("pods".to_owned(), left(2, &[])),
            ("widgets.example.com".to_owned(), left(1, &[("example.com/keep", 1)])),
            ("secrets".to_owned(), left(0, &[])),
        ]
        .into();
        let (status, reason, message) = condition(&content, "NamespaceContentRemaining");
        assert_eq!((status.as_str(), reason.as_str()), ("True", "SomeResourcesRemain"));
        assert_eq!(
            message,
            "Some resources are remaining: pods. has 2 resource instances, widgets.example.com has 1 resource instances"
        );
        let (_, reason, message) = condition(&content, "NamespaceFinalizersRemaining");
        assert_eq!(reason, "SomeFinalizersRemain");
        assert!(message.ends_with("example.com/keep in 1 resource instances"), "{message}");
    }
}
