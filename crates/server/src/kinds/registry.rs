//! The registry: the kinds that the server serves.
//!
//! River: routes, discovery and the cache read it. Built-in rows are fixed, custom ones change at run
//! time; a change creates a new registry, and requests in flight keep the old one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use headwater_api::kind;
use headwater_api::selector::FieldSelector;
use headwater_api::table::{self, Column, PrinterColumn};
use headwater_api::{Kind, Status};
use headwater_store::key;

use crate::answer::status;
use crate::kinds::custom::Custom;
use crate::kinds::versions::webhook::Conversion;

/// The served kinds.
#[derive(Clone, Default)]
pub struct Registry {
    kinds: Vec<Arc<Served>>,
    by_path: BTreeMap<(String, String, String), Arc<Served>>,
    groups: Vec<(kind::Name, Vec<kind::Name>)>,
}

/// A served kind and the location of its objects.
#[derive(Debug)]
pub struct Served {
    /// The row.
    pub kind: Kind,
    /// The row of the storage version, if it is another one.
    pub stored: Option<Arc<Served>>,
    /// The key prefix of its objects.
    pub prefix: String,
    /// The table columns of a custom kind.
    pub custom_columns: Vec<Column>,
    /// The additional properties of a custom kind.
    pub(crate) definition: Option<Custom>,
}

impl Served {
    /// A kind that is stored in the version in which it is served. Its tables have these columns; without
    /// any, those of its built-in kind or the name and the age.
    pub fn plain(kind: Kind, columns: &[PrinterColumn]) -> Served {
        Served {
            prefix: key::collection(&kind.group, &kind.plural),
            custom_columns: table::custom_columns(columns),
            kind,
            stored: None,
            definition: None,
        }
    }

    /// The row of the storage version.
    pub fn storage(&self) -> &Kind {
        self.stored.as_ref().map_or(&self.kind, |stored| &stored.kind)
    }

    /// Rejects selectors on fields that are not selectable in this version: all versions of a custom
    /// kind share one index, of the storage version, without values that only a webhook computes.
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

    /// The served kind of the storage version.
    pub(crate) fn storage_row(&self) -> &Served {
        self.stored.as_deref().unwrap_or(self)
    }

    /// Columns of its tables.
    pub fn columns(&self) -> &[Column] {
        if self.kind.custom { &self.custom_columns } else { table::columns(&self.kind) }
    }

    /// Whether a built-in conversion applies between the storage version and this one.
    pub fn is_converted(&self) -> bool {
        self.stored.is_some() && self.conversion().is_none()
    }

    /// The conversion webhook, if any: then admission sees objects in the version of the request.
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
        // Rows of storage versions come first, so that other rows can refer to them.
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

    /// Adds custom kinds after the built-in ones. Built-in group versions cannot be extended.
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

    /// Whether exactly this row is served.
    pub(crate) fn serves(&self, row: &Arc<Served>) -> bool {
        let found = self.find(&row.group, &row.version, &row.plural);
        found.is_some_and(|found| Arc::ptr_eq(found, row))
    }

    /// A kind by `apiVersion` and `kind`.
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

/// Groups and their versions in the order of their first rows.
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
