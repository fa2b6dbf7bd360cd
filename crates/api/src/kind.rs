//! A kind as a row of data: everything in which Pods differ from ConfigMaps.
//!
//! River: every stage reads the row instead of testing for a kind by name. Custom resources add
//! rows at run time, so rows are owned values.

use std::borrow::Cow;

mod builtin;

pub use builtin::{builtin, groups};

/// Text of a row: borrowed for built-in kinds, owned for custom ones.
pub type Name = Cow<'static, str>;

/// One resource in one version.
///
/// A custom kind sets its own fields and leaves the rest to `..Kind::default()`.
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
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// Short names, such as `po`.
    pub short_names: Vec<Name>,
    /// Categories, such as `all`.
    pub categories: Vec<Name>,
    /// Verbs, in the order of discovery.
    pub verbs: Vec<Name>,
    /// Subresources, in the order of discovery.
    pub subresources: Vec<Subresource>,
    /// Selectable fields in addition to `metadata.name` and `metadata.namespace`.
    pub fields: Vec<Field>,
    /// The rule for names.
    pub names: NameRule,
    /// Where this kind differs from most kinds.
    pub traits: Traits,
    /// Defined by a CustomResourceDefinition.
    pub custom: bool,
    /// Group and version in which the objects are stored, if that is another row: two views of the
    /// same objects (S10.12).
    pub stored_as: Option<(Name, Name)>,
    /// The `storageVersionHash` in discovery; empty for kinds that are not stored.
    pub storage_hash: Name,
    /// The Warning that every response carries (S2.34).
    pub deprecation: Option<Name>,
}

/// One subresource of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Last path segment, such as `status`.
    pub name: Name,
    /// Its group, version and kind, if they differ from the parent's.
    pub group_version_kind: Option<(Name, Name, Name)>,
    /// Verbs, in the order of discovery.
    pub verbs: Vec<Name>,
}

/// A field that field selectors can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in selectors.
    pub label: Name,
    /// The path in the stored object.
    path: Vec<Name>,
    /// The value of an object that does not have it.
    pub absent: Name,
    /// The field that an object without a value of this one is selected by.
    pub instead: Option<Name>,
}

impl Field {
    /// A field of a built-in kind.
    pub fn new(label: &'static str, path: &[&'static str], absent: &'static str) -> Field {
        Field {
            label: Cow::Borrowed(label),
            path: path.iter().map(|name| Cow::Borrowed(*name)).collect(),
            absent: Cow::Borrowed(absent),
            instead: None,
        }
    }

    /// A field of a custom kind, from a path such as `.spec.size`.
    pub fn custom(json_path: &str) -> Field {
        let path = json_path.trim_start_matches('.');
        Field {
            label: Cow::Owned(path.to_owned()),
            path: path.split('.').map(|name| Cow::Owned(name.to_owned())).collect(),
            absent: Cow::Borrowed(""),
            instead: None,
        }
    }

    /// The path in the object.
    pub fn path(&self) -> &[Name] {
        &self.path
    }
}

/// The rule for the names of a kind's objects.
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
    /// An IP address in canonical form.
    IpAddress,
}

/// Where a kind differs from most kinds, which have `Traits::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// `metadata.generation` follows the spec.
    pub generation: bool,
    /// PUT of a missing name creates it (S2.15).
    pub create_on_update: bool,
    /// PUT needs a resourceVersion (S2.16).
    pub update_needs_version: bool,
    /// DELETE returns the last state instead of a Status (S2.40).
    pub delete_returns_object: bool,
    /// Deletion may take a grace period (pods).
    pub graceful: bool,
    /// The garbage collector ignores it: no propagation finalizers.
    pub no_garbage_collection: bool,
    /// Dependents are orphaned unless a deletion requests otherwise, as in the first version of the
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
