//! The rows of every kind that a default Kubernetes 1.36 server serves.
//!
//! River: start-up → **builtin** → routes, discovery, caches. The data is in `builtin.txt`, one
//! line per kind; this file only reads it.
//!
//! - A line without indentation is a group and version; their order is the order of discovery.
//! - `plural Kind ns|cluster word…` is a kind; the words are read in [`word`].
//! - Below it, `/name [Kind] [verbs]` is a subresource, `.label[=path] [?absent]` a selectable
//!   field, and `!text` the deprecation warning.

use std::borrow::Cow;

use super::{Field, Kind, Name, NameRule, Subresource, Traits};

const TABLE: &str = include_str!("builtin.txt");

/// Verbs of most kinds.
const VERBS: &str = "create,delete,deletecollection,get,list,patch,update,watch";

/// Verbs of most subresources.
const SUBRESOURCE_VERBS: &str = "get,patch,update";

/// Every built-in kind, in the order of discovery: groups, then versions with the preferred one
/// first, then resources by name.
pub fn builtin() -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    let (mut group, mut version) = ("", "");
    for line in TABLE.lines() {
        let text = line.trim_start();
        match (line.len() - text.len(), kinds.last_mut()) {
            (0, _) => (group, version) = split_api_version(text),
            (2, _) => kinds.push(kind(group, version, text)),
            (_, Some(kind)) => detail(kind, text),
            (_, None) => unreachable!("the table begins with a kind"),
        }
    }
    kinds
}

/// Groups with their versions, preferred first, in the order of discovery. The core group has an
/// empty name and comes first.
pub fn groups(kinds: &[Kind]) -> Vec<(Name, Vec<Name>)> {
    let mut groups: Vec<(Name, Vec<Name>)> = Vec::new();
    for kind in kinds {
        let at = groups.iter().position(|(group, _)| *group == kind.group);
        let at = at.unwrap_or_else(|| {
            groups.push((kind.group.clone(), Vec::new()));
            groups.len() - 1
        });
        if !groups[at].1.contains(&kind.version) {
            groups[at].1.push(kind.version.clone());
        }
    }
    groups
}

fn kind(group: &'static str, version: &'static str, line: &'static str) -> Kind {
    let mut words = line.split(' ');
    let mut next = || words.next().expect("a kind has a plural, a name and a scope");
    let (plural, name, scope) = (next(), next(), next());
    let mut kind = Kind {
        group: group.into(),
        version: version.into(),
        kind: name.into(),
        list_kind: format!("{name}List").into(),
        plural: plural.into(),
        singular: name.to_lowercase().into(),
        namespaced: scope == "ns",
        verbs: names(VERBS),
        ..Kind::default()
    };
    words.for_each(|text| word(&mut kind, text));
    kind
}

/// One word of a kind's line.
fn word(kind: &mut Kind, text: &'static str) {
    let traits: &mut Traits = &mut kind.traits;
    match text.split_once('=').unwrap_or((text, "")) {
        ("short", list) => kind.short_names = names(list),
        ("in", list) => kind.categories = names(list),
        ("verbs", list) => kind.verbs = names(list),
        ("hash", hash) => kind.storage_hash = hash.into(),
        ("stored", version) => {
            let (group, version) = split_api_version(version);
            kind.stored_as = Some((group.into(), version.into()));
        }
        ("names", rule) => {
            kind.names = match rule {
                "label" => NameRule::Label,
                "path" => NameRule::PathSegment,
                "ip" => NameRule::IpAddress,
                other => unreachable!("no name rule {other}"),
            }
        }
        ("generation", _) => traits.generation = true,
        ("put-creates", _) => traits.create_on_update = true,
        ("put-needs-version", _) => traits.update_needs_version = true,
        ("delete-returns", _) => traits.delete_returns_object = true,
        ("graceful", _) => traits.graceful = true,
        ("no-garbage-collection", _) => traits.no_garbage_collection = true,
        ("orphans", _) => traits.orphans = true,
        ("expires", _) => traits.expires = true,
        (other, _) => unreachable!("no word {other} for kinds"),
    }
}

/// One indented line below a kind.
fn detail(kind: &mut Kind, line: &'static str) {
    let (mark, text) = line.split_at(1);
    match mark {
        "/" => kind.subresources.push(subresource(text)),
        "." => kind.fields.push(field(text)),
        "!" => kind.deprecation = Some(text.into()),
        other => unreachable!("no mark {other} in the table"),
    }
}

fn subresource(line: &'static str) -> Subresource {
    let mut sub = Subresource {
        name: Cow::Borrowed(""),
        group_version_kind: None,
        verbs: names(SUBRESOURCE_VERBS),
    };
    for (index, word) in line.split(' ').enumerate() {
        match word {
            name if index == 0 => sub.name = name.into(),
            kind if kind.contains(char::is_uppercase) => sub.group_version_kind = Some(gvk(kind)),
            list => sub.verbs = names(list),
        }
    }
    sub
}

/// `policy/v1/Eviction`, or `Binding` for a kind in the parent's group and version, which stay
/// empty as in discovery.
fn gvk(text: &'static str) -> (Name, Name, Name) {
    match text.rsplit_once('/') {
        None => ("".into(), "".into(), text.into()),
        Some((api_version, kind)) => {
            let (group, version) = split_api_version(api_version);
            (group.into(), version.into(), kind.into())
        }
    }
}

fn field(line: &'static str) -> Field {
    let (text, absent) = line.split_once(" ?").unwrap_or((line, ""));
    let (text, instead) = text.split_once(" or ").map_or((text, None), |(a, b)| (a, Some(b)));
    let (label, path) = text.split_once('=').unwrap_or((text, text));
    let field = Field::new(label, &path.split('.').collect::<Vec<_>>(), absent);
    Field { instead: instead.map(Cow::Borrowed), ..field }
}

fn split_api_version(text: &'static str) -> (&'static str, &'static str) {
    text.split_once('/').unwrap_or(("", text))
}

fn names(list: &'static str) -> Vec<Name> {
    list.split(',').map(Cow::Borrowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(group: &str, plural: &str) -> Kind {
        let mut kinds = builtin().into_iter();
        kinds.find(|kind| kind.group == group && kind.plural == plural).unwrap()
    }

    #[test]
    fn discovery_has_the_order_of_kubernetes() {
        let groups = groups(&builtin());
        let names: Vec<&str> = groups.iter().map(|(group, _)| group.as_ref()).collect();
        assert_eq!(
            names,
            [
                "",
                "apiregistration.k8s.io",
                "apps",
                "events.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io",
                "autoscaling",
                "batch",
                "certificates.k8s.io",
                "networking.k8s.io",
                "policy",
                "rbac.authorization.k8s.io",
                "storage.k8s.io",
                "admissionregistration.k8s.io",
                "apiextensions.k8s.io",
                "scheduling.k8s.io",
                "coordination.k8s.io",
                "node.k8s.io",
                "discovery.k8s.io",
                "resource.k8s.io",
                "flowcontrol.apiserver.k8s.io",
            ]
        );
        let autoscaling = &groups.iter().find(|(group, _)| group == "autoscaling").unwrap().1;
        assert_eq!(autoscaling, &["v2", "v1"]);
    }

    #[test]
    fn resources_and_subresources_are_sorted_by_name() {
        for pair in builtin().windows(2) {
            if pair[0].api_version() == pair[1].api_version() {
                assert!(pair[0].plural < pair[1].plural, "{} {}", pair[0].plural, pair[1].plural);
            }
        }
        for kind in builtin() {
            assert!(kind.subresources.is_sorted_by_key(|sub| sub.name.clone()), "{}", kind.plural);
            assert!(kind.verbs.is_sorted(), "{}", kind.plural);
        }
    }

    #[test]
    fn pods_are_described_as_in_kubernetes() {
        let pods = find("", "pods");
        assert_eq!((pods.kind.as_ref(), pods.singular.as_ref()), ("Pod", "pod"));
        assert_eq!(pods.list_kind, "PodList");
        assert_eq!((pods.short_names[0].as_ref(), pods.categories[0].as_ref()), ("po", "all"));
        assert_eq!(pods.storage_hash, "xPOwRZ+Yhw8=");
        assert_eq!(pods.verbs.join(","), VERBS);
        let eviction = pods.subresource("eviction").unwrap();
        let (group, version, kind) = eviction.group_version_kind.clone().unwrap();
        assert_eq!([group, version, kind], ["policy", "v1", "Eviction"]);
        assert_eq!(eviction.verbs, ["create"]);
        let binding = pods.subresource("binding").unwrap();
        let (group, version, kind) = binding.group_version_kind.clone().unwrap();
        assert_eq!([group, version, kind], ["", "", "Binding"]);
        assert_eq!(pods.subresource("status").unwrap().group_version_kind, None);
        assert_eq!(pods.subresource("status").unwrap().verbs, ["get", "patch", "update"]);
        assert!(pods.traits.graceful && pods.traits.generation);
        assert!(pods.traits.delete_returns_object && !pods.traits.create_on_update);
    }

    #[test]
    fn selectable_fields_have_a_path_and_a_value_for_absent_fields() {
        let fields = find("", "pods").fields;
        let field = |label: &str| fields.iter().find(|field| field.label == label).unwrap();
        assert_eq!(field("spec.host").path(), ["spec", "nodeName"]);
        assert_eq!(field("spec.hostNetwork").absent, "false");
        let jobs = find("batch", "jobs").fields;
        assert_eq!(jobs[0].label, "status.successful");
        assert_eq!(
            (jobs[0].path().join("."), jobs[0].absent.as_ref()),
            ("status.succeeded".into(), "0")
        );
    }

    #[test]
    fn both_views_of_events_select_the_same_stored_fields_in_the_same_order() {
        let (core, new) = (find("", "events"), find("events.k8s.io", "events"));
        assert_eq!(new.stored_as, Some(("".into(), "v1".into())));
        for (index, field) in new.fields.iter().enumerate() {
            assert_eq!(field.path(), core.fields[index].path(), "{}", field.label);
        }
    }

    #[test]
    fn namespaces_cannot_be_deleted_all_at_once() {
        let namespaces = find("", "namespaces");
        assert!(!namespaces.allows("deletecollection"));
        assert_eq!(namespaces.subresource("finalize").unwrap().verbs, ["update"]);
        assert_eq!(namespaces.names, NameRule::Label);
    }

    #[test]
    fn endpoints_carry_the_deprecation_warning_of_kubernetes() {
        assert_eq!(
            find("", "endpoints").deprecation.unwrap(),
            "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
        );
    }

    /// S2.15
    #[test]
    fn exactly_these_kinds_are_created_by_put() {
        let mut created: Vec<String> = builtin()
            .iter()
            .filter(|kind| kind.traits.create_on_update)
            .map(Kind::resource)
            .collect();
        created.sort();
        assert_eq!(
            created,
            [
                "clusterrolebindings.rbac.authorization.k8s.io",
                "clusterroles.rbac.authorization.k8s.io",
                "endpoints",
                "events",
                "events.events.k8s.io",
                "leases.coordination.k8s.io",
                "limitranges",
                "rolebindings.rbac.authorization.k8s.io",
                "roles.rbac.authorization.k8s.io",
                "runtimeclasses.node.k8s.io",
                "services",
            ]
        );
    }
}
