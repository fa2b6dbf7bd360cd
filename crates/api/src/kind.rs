//! A kind is a row: what makes Pods different from ConfigMaps, as data.
//!
//! River: every stage asks the row instead of knowing a kind by name. Custom resources add rows at
//! run time, so rows are owned values.

use std::borrow::Cow;

mod builtin;

pub use builtin::{builtin, groups};

/// Text of a row: borrowed for built-in kinds, owned for custom ones.
pub type Name = Cow<'static, str>;

/// One resource in one version.
///
/// A custom kind names what it has and leaves the rest to `..Kind::default()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: Name,
    /// Version, such as `v1`.
    pub version: Name,
    /// Kind, such as `Pod`.
    pub kind: Name,
    /// Kind of a list, such as `PodList`.
    pub list_kind: Name,
    /// Plural resource name, such as `pods`.
    pub plural: Name,
    /// Singular resource name, such as `pod`.
    pub singular: Name,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Short names, such as `po`.
    pub short_names: Vec<Name>,
    /// Categories, such as `all`.
    pub categories: Vec<Name>,
    /// Verbs in the order discovery shows them.
    pub verbs: Vec<Name>,
    /// Subresources in the order discovery shows them.
    pub subresources: Vec<Subresource>,
    /// Selectable fields beyond `metadata.name` and `metadata.namespace`.
    pub fields: Vec<Field>,
    /// How names are checked.
    pub names: NameRule,
    /// Where this kind differs from the ordinary.
    pub traits: Traits,
    /// Defined by a CustomResourceDefinition.
    pub custom: bool,
    /// Group and version whose row keeps the objects, where that is another one: the same objects
    /// seen in two ways (S10.12). [`convert`] goes between them.
    pub stored_as: Option<(Name, Name)>,
    /// What discovery shows as `storageVersionHash`; empty for kinds that are not stored.
    pub storage_hash: Name,
    /// The Warning that every answer carries (S2.34).
    pub deprecation: Option<Name>,
}

/// One subresource of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Last path segment, such as `status`.
    pub name: Name,
    /// Group, version and kind it speaks, where that is not the parent's.
    pub group_version_kind: Option<(Name, Name, Name)>,
    /// Verbs in the order discovery shows them.
    pub verbs: Vec<Name>,
}

/// A field that field selectors may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// As selectors write it.
    pub label: Name,
    /// Where it is in the object as it is stored.
    path: Vec<Name>,
    /// What an object without it compares as.
    pub absent: Name,
}

impl Field {
    /// A field of a built-in kind.
    pub fn new(label: &'static str, path: &[&'static str], absent: &'static str) -> Field {
        Field {
            label: Cow::Borrowed(label),
            path: path.iter().map(|name| Cow::Borrowed(*name)).collect(),
            absent: Cow::Borrowed(absent),
        }
    }

    /// A field of a custom kind, from a path such as `.spec.size`.
    pub fn custom(json_path: &str) -> Field {
        let path = json_path.trim_start_matches('.');
        Field {
            label: Cow::Owned(path.to_owned()),
            path: path.split('.').map(|name| Cow::Owned(name.to_owned())).collect(),
            absent: Cow::Borrowed(""),
        }
    }

    /// Where it is in the object.
    pub fn path(&self) -> &[Name] {
        &self.path
    }
}

/// How the names of a kind's objects are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, at most 253 characters.
    #[default]
    Subdomain,
    /// RFC 1123 label, at most 63 characters.
    Label,
    /// RFC 1035 label: as [`NameRule::Label`], but it begins with a letter.
    Label1035,
    /// Any path segment (RBAC).
    PathSegment,
    /// An IP address in its canonical spelling.
    IpAddress,
}

/// Where a kind differs from the ordinary. The ordinary is `Traits::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// `metadata.generation` follows the spec.
    pub generation: bool,
    /// PUT of a missing name creates it (S2.15).
    pub create_on_update: bool,
    /// PUT needs a resourceVersion (S2.16).
    pub update_needs_version: bool,
    /// DELETE answers the last state instead of a Status (S2.40).
    pub delete_returns_object: bool,
    /// Deletion may take a grace period (pods).
    pub graceful: bool,
    /// The garbage collector does not look at it: no propagation finalizers.
    pub no_garbage_collection: bool,
    /// Dependents are left alone unless a deletion says otherwise, as in the first version of the
    /// API (S2.44).
    pub orphans: bool,
    /// Objects expire (events).
    pub expires: bool,
}

impl Kind {
    /// `v1`, or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods`, or `deployments.apps`: how error messages name the resource.
    pub fn resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `Pod`, or `Deployment.apps`: how validation messages name the kind.
    pub fn group_kind(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_string()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    /// A subresource by name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }

    /// Whether clients may use `verb` on it.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|allowed| allowed == verb)
    }

    /// Whether status is written through its own subresource.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}
