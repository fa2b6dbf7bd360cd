//! The acceptance of the names that definitions request.
//!
//! River: definitions of a group → **names** → conditions (S9.1, S9.3). Pure: definitions in, the
//! wanted status out.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Definition, DefinitionCondition, DefinitionNames};

/// The accepted names of each group.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    groups: BTreeMap<String, Group>,
}

#[derive(Debug, Default)]
struct Group {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    /// The accepted names of these definitions.
    pub(crate) fn by<'a>(definitions: impl Iterator<Item = &'a Definition>) -> Taken {
        let mut taken = Taken::default();
        for definition in definitions {
            taken.take(&definition.spec.group, &definition.status.accepted_names);
        }
        taken
    }

    /// Adds accepted names.
    pub(crate) fn take(&mut self, group: &str, names: &DefinitionNames) {
        let group = self.groups.entry(group.to_owned()).or_default();
        group.resources.extend([names.plural.clone(), names.singular.clone()]);
        group.resources.extend(names.short_names.iter().cloned());
        group.kinds.extend([names.kind.clone(), names.list_kind.clone()]);
    }
}

/// The wanted status of a definition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) accepted: DefinitionNames,
    pub(crate) conditions: Vec<DefinitionCondition>,
}

/// The wanted status of a definition, if it differs from the current one.
pub(crate) fn wanted(definition: &Definition, taken: &Taken) -> Option<Wanted> {
    if definition.is_deleting {
        return None; // its names are decided and will soon be free
    }
    let (accepted, names_accepted) = accept(definition, taken);
    let mut conditions = vec![established(definition, &names_accepted)];
    conditions.insert(0, names_accepted);
    conditions.extend(approval(definition));
    conditions.retain(|condition| definition.condition(&condition.kind) != Some(condition));
    let is_settled = accepted == definition.status.accepted_names && conditions.is_empty();
    (!is_settled).then_some(Wanted { accepted, conditions })
}

/// Accepts each name that is free or already its own; other names keep their accepted value.
fn accept(definition: &Definition, taken: &Taken) -> (DefinitionNames, DefinitionCondition) {
    let nothing = Group::default();
    let taken = taken.groups.get(&definition.spec.group).unwrap_or(&nothing);
    let asked = &definition.spec.names;
    let held = &definition.status.accepted_names;
    let mut names = held.clone();
    let mut conflict = None;
    let mut decide = |reason: &str, refused: Vec<&String>, grant: &mut dyn FnMut()| {
        if refused.is_empty() {
            return grant();
        }
        let uses: Vec<String> =
            refused.iter().map(|name| format!("{name:?} is already in use")).collect();
        let message = match uses.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        conflict = Some((reason.to_owned(), message));
    };
    let clash = |asked: &'_ String, held: &String, taken: &BTreeSet<String>| {
        asked != held && taken.contains(asked)
    };
    let single = |asked, held, taken| if clash(asked, held, taken) { vec![asked] } else { vec![] };
    decide("PluralConflict", single(&asked.plural, &held.plural, &taken.resources), &mut || {
        names.plural.clone_from(&asked.plural);
    });
    decide(
        "SingularConflict",
        single(&asked.singular, &held.singular, &taken.resources),
        &mut || names.singular.clone_from(&asked.singular),
    );
    let short = asked.short_names.iter().filter(|name| {
        asked.short_names != held.short_names
            && !held.short_names.contains(name)
            && taken.resources.contains(*name)
    });
    decide("ShortNamesConflict", short.collect(), &mut || {
        names.short_names.clone_from(&asked.short_names);
    });
    decide("KindConflict", single(&asked.kind, &held.kind, &taken.kinds), &mut || {
        names.kind.clone_from(&asked.kind);
    });
    decide(
        "ListKindConflict",
        single(&asked.list_kind, &held.list_kind, &taken.kinds),
        &mut || names.list_kind.clone_from(&asked.list_kind),
    );
    names.categories.clone_from(&asked.categories);
    let condition = match conflict {
        None => condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => condition("NamesAccepted", "False", &reason, &message),
    };
    (names, condition)
}

/// A definition stays established, because objects may exist.
fn established(definition: &Definition, names: &DefinitionCondition) -> DefinitionCondition {
    let accepted = "the initial names have been accepted";
    match definition.condition("Established") {
        Some(before) if before.status == "True" => before.clone(),
        _ if names.status == "True" => {
            condition("Established", "True", "InitialNamesAccepted", accepted)
        }
        Some(before) => before.clone(),
        None => condition("Established", "False", "NotAccepted", "not all names are accepted"),
    }
}

/// Groups of the Kubernetes project need an approval (S9.2).
pub(crate) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
    })
}

/// The meaning of an approval annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

impl Approval {
    pub(crate) fn read(annotation: &str) -> Approval {
        let is_url = annotation.split_once("://").is_some_and(|(scheme, rest)| {
            !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
        });
        match annotation {
            "" => Approval::Missing,
            text if text.starts_with("unapproved") => Approval::Bypassed,
            _ if is_url => Approval::Approved,
            _ => Approval::Invalid,
        }
    }

    pub(crate) fn message(self, annotation: &str) -> String {
        const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
        let need = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
        match self {
            Approval::Missing => format!("{need}, {SEE}"),
            Approval::Bypassed => format!("not approved: {annotation:?}"),
            Approval::Approved => format!("approved in {annotation}"),
            Approval::Invalid => {
                format!("{need} with either a URL or a reason starting with \"unapproved\", {SEE}")
            }
        }
    }
}

fn approval(definition: &Definition) -> Option<DefinitionCondition> {
    if !is_protected(&definition.spec.group) {
        return None;
    }
    let approval = Approval::read(&definition.approval);
    let (status, reason) = match approval {
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Invalid => ("False", "InvalidAnnotation"),
    };
    let message = approval.message(&definition.approval);
    Some(condition("KubernetesAPIApprovalPolicyConformant", status, reason, &message))
}

/// A condition.
pub(crate) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
) -> DefinitionCondition {
    DefinitionCondition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use headwater_api::Revision;
    use headwater_json::{Value, json};

    use super::*;

    fn definition(plural: &str, kind: &str, short: &[&str], status: Value) -> Definition {
        let object = json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "names": {
                "plural": plural, "singular": kind.to_lowercase(), "kind": kind,
                "listKind": format!("{kind}List"), "shortNames": short,
            }},
            "status": status,
        });
        Definition::read(&object, Revision(1)).unwrap()
    }

    fn accepted(plural: &str, kind: &str, short: &[&str]) -> Definition {
        let mut definition = definition(plural, kind, short, json!({}));
        definition.status.accepted_names = definition.spec.names.clone();
        definition
    }

    #[track_caller]
    fn check(asks: &Definition, other: &Definition, reason: &str, message: &str) {
        let taken = Taken::by([asks, other].into_iter());
        let wanted = wanted(asks, &taken).unwrap();
        let names = &wanted.conditions[0];
        assert_eq!((names.reason.as_str(), names.message.as_str()), (reason, message));
        let established = &wanted.conditions[1];
        let expected = match reason {
            "NoConflicts" => ("True", "InitialNamesAccepted"),
            _ => ("False", "NotAccepted"),
        };
        assert_eq!((established.status.as_str(), established.reason.as_str()), expected);
    }

    #[test]
    fn names_that_another_definition_holds_are_refused() {
        let held = accepted("widgets", "Widget", &["wd", "wg"]);
        let ask = |plural, kind, short: &[&str]| definition(plural, kind, short, json!({}));
        check(&ask("gadgets", "Gadget", &["gd"]), &held, "NoConflicts", "no conflicts found");
        check(&ask("wd", "Gadget", &[]), &held, "PluralConflict", "\"wd\" is already in use");
        check(
            &ask("gadgets", "Gadget", &["wd", "g", "wg"]),
            &held,
            "ShortNamesConflict",
            "[\"wd\" is already in use, \"wg\" is already in use]",
        );
        // The last conflict is the one that is reported.
        check(
            &ask("gadgets", "Widget", &[]),
            &held,
            "ListKindConflict",
            "\"WidgetList\" is already in use",
        );
    }

    #[test]
    fn a_settled_definition_wants_nothing() {
        let names = json!({
            "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList",
        });
        let status = json!({
            "acceptedNames": names,
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts",
                 "message": "no conflicts found"},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
                 "message": "the initial names have been accepted"},
            ],
        });
        let settled = definition("widgets", "Widget", &[], status);
        assert_eq!(wanted(&settled, &Taken::by([&settled].into_iter())), None);
    }

    #[test]
    fn an_established_definition_stays_established_when_a_new_name_is_taken() {
        let other = accepted("gadgets", "Gadget", &["gd"]);
        let mut mine = accepted("widgets", "Widget", &[]);
        mine.status.conditions =
            vec![condition("Established", "True", "InitialNamesAccepted", "x")];
        mine.spec.names.short_names = vec!["gd".into()];
        let wanted = wanted(&mine, &Taken::by([&mine, &other].into_iter())).unwrap();
        assert_eq!(wanted.conditions.len(), 1);
        assert_eq!(wanted.conditions[0].reason, "ShortNamesConflict");
        assert!(wanted.accepted.short_names.is_empty());
    }

    #[test]
    fn groups_of_the_project_are_protected() {
        for (group, expected) in [
            ("k8s.io", true),
            ("apps.k8s.io", true),
            ("kubernetes.io", true),
            ("x.kubernetes.io", true),
            ("mk8s.io", false),
            ("example.com", false),
        ] {
            assert_eq!(is_protected(group), expected, "{group}");
        }
        for (text, expected) in [
            ("", Approval::Missing),
            ("unapproved, an experiment", Approval::Bypassed),
            ("https://github.com/kubernetes/kubernetes/pull/1", Approval::Approved),
            ("yes", Approval::Invalid),
            ("http://", Approval::Invalid),
        ] {
            assert_eq!(Approval::read(text), expected, "{text}");
        }
    }
}
