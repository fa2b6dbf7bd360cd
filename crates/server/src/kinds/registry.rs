//! The registry: which kinds the server serves at this moment.
//!
//! River: routes, discovery and caches ask it. Built-in rows are there from the start, custom ones
//! come and go; a change makes a new registry and leaves the old one to the requests that hold it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use headwater_api::kind;
use headwater_api::selector::FieldSelector;
use headwater_api::table::{self, Column};
use headwater_api::{Kind, Status};
use headwater_store::key;

use crate::answer::status;
use crate::kinds::custom::Custom;
use crate::kinds::versions::webhook::Conversion;

/// Which kinds there are.
#[derive(Clone, Default)]
pub struct Registry {
    kinds: Vec<Arc<Served>>,
    by_path: BTreeMap<(String, String, String), Arc<Served>>,
    groups: Vec<(kind::Name, Vec<kind::Name>)>,
}

/// A kind and where its objects are.
#[derive(Debug)]
pub struct Served {
    /// The row.
    pub kind: Kind,
    /// The row whose form is stored, where that is another one.
    pub stored: Option<Arc<Served>>,
    /// What the keys of its objects begin with.
    pub prefix: String,
    /// Columns of its tables, where they are not those of a built-in kind.
    pub custom_columns: Vec<Column>,
    /// What a definition says beyond the row.
    pub(crate) definition: Option<Custom>,
}

impl Served {
    /// The row in whose form objects are stored.
    pub fn storage(&self) -> &Kind {
        self.stored.as_ref().map_or(&self.kind, |stored| &stored.kind)
    }

    /// Refuses fields that this version does not let selectors name: all versions of a custom kind
    /// share one index, which is of the stored form. What only a webhook makes is not in it.
    pub(crate) fn check_fields(&self, selector: &FieldSelector) -> Result<(), Status> {
        let Some(custom) = &self.definition else { return Ok(()) };
        let is_indexed = custom.conversion.is_none() || self.stored.is_none();
        let own = |label: &&str| {
            let mut fields = custom.fields.iter().filter(|_| is_indexed);
            label.starts_with("metadata.") || fields.any(|field| field == label)
        };
        match selector.labels().find(|label| !own(label)) {
            Some(label) => Err(status::bad_request(format!("field label not supported: {label}"))),
            None => Ok(()),
        }
    }

    /// The row in whose form objects are stored, with all that belongs to it.
    pub(crate) fn storage_row(&self) -> &Served {
        self.stored.as_deref().unwrap_or(self)
    }

    /// Columns of its tables.
    pub fn columns(&self) -> &[Column] {
        if self.kind.custom { &self.custom_columns } else { table::columns(&self.kind) }
    }

    /// Whether objects are converted between storage and wire here, by what the kinds are.
    pub fn is_converted(&self) -> bool {
        self.stored.is_some() && self.conversion().is_none()
    }

    /// What converts objects between its versions, where that is a webhook: then they are written
    /// in the form of the request until they are stored.
    pub(crate) fn conversion(&self) -> Option<&Arc<Conversion>> {
        self.definition.as_ref()?.conversion.as_ref()
    }
}

impl std::ops::Deref for Served {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        &self.kind
    }
}

impl Registry {
    /// A registry of these kinds, in the order of discovery.
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Registry {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        let mut registry = Registry::default();
        // Rows that others are stored as come first, so that the others can point at them.
        let (plain, converted): (Vec<Kind>, Vec<Kind>) =
            kinds.iter().cloned().partition(|kind| kind.stored_as.is_none());
        for kind in plain.into_iter().chain(converted) {
            let stored = kind.stored_as.as_ref().and_then(|(group, version)| {
                registry.find_kind(group, version, &kind.kind).cloned()
            });
            let prefix = match &stored {
                Some(stored) => stored.prefix.clone(),
                None => key::collection(&kind.group, &kind.plural),
            };
            let path = (kind.group.to_string(), kind.version.to_string(), kind.plural.to_string());
            registry.by_path.insert(
                path,
                Arc::new(Served {
                    kind,
                    stored,
                    prefix,
                    custom_columns: Vec::new(),
                    definition: None,
                }),
            );
        }
        registry.kinds = kinds
            .iter()
            .filter_map(|kind| registry.find(&kind.group, &kind.version, &kind.plural).cloned())
            .collect();
        registry.groups = groups(&registry.kinds);
        registry
    }

    /// These kinds and custom ones after them. A group and version of its own cannot be added to.
    pub(crate) fn with(&self, custom: Vec<Arc<Served>>) -> Registry {
        let mut registry = self.clone();
        for row in custom {
            if self.has_version(&row.group, &row.version) {
                continue;
            }
            let path = (row.group.to_string(), row.version.to_string(), row.plural.to_string());
            registry.by_path.insert(path, Arc::clone(&row));
            registry.kinds.push(row);
        }
        registry.groups = groups(&registry.kinds);
        registry
    }

    /// The kinds in the order of discovery.
    pub fn kinds(&self) -> &[Arc<Served>] {
        &self.kinds
    }

    /// A kind by its path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Served>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Whether this very row is served.
    pub(crate) fn serves(&self, row: &Arc<Served>) -> bool {
        let found = self.find(&row.group, &row.version, &row.plural);
        found.is_some_and(|found| Arc::ptr_eq(found, row))
    }

    /// A kind by the name that objects call it.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Served>> {
        self.by_path
            .values()
            .find(|row| row.group == group && row.version == version && row.kind.kind == kind)
    }

    /// Groups with their versions, preferred first.
    pub fn groups(&self) -> &[(kind::Name, Vec<kind::Name>)] {
        &self.groups
    }

    /// Whether any kind belongs to the group.
    pub fn has_group(&self, group: &str) -> bool {
        self.kinds.iter().any(|row| row.group == group)
    }

    /// Whether a built-in kind belongs to the group.
    pub fn has_builtin_group(&self, group: &str) -> bool {
        self.kinds.iter().any(|row| row.group == group && !row.kind.custom)
    }

    /// Whether any kind belongs to the group in this version.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.kinds.iter().any(|row| row.group == group && row.version == version)
    }
}

/// Groups and their versions in the order in which rows name them first.
fn groups(rows: &[Arc<Served>]) -> Vec<(kind::Name, Vec<kind::Name>)> {
    let mut groups: Vec<(kind::Name, Vec<kind::Name>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for row in rows {
        let at = *places.entry(&row.group).or_insert_with(|| {
            groups.push((row.group.clone(), Vec::new()));
            groups.len() - 1
        });
        if !groups[at].1.contains(&row.version) {
            groups[at].1.push(row.version.clone());
        }
    }
    groups
}
