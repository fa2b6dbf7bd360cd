//! Managers that wrote in other versions, whose fields have the names of those versions.
//!
//! Most kinds have the same field names in all versions, so sets are interchangeable. With a conversion
//! webhook, objects are compared in the version of each manager.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::Value;

use super::compare::{Changes, compare_objects};
use super::entry::Entries;
use super::{Error, Structure, Write};

/// The versions of a kind.
pub trait Versions: Copy {
    /// The structure of a version.
    type Structure: Structure;

    /// The structure of the version of the write.
    fn own(self) -> Self::Structure;

    /// Whether field names are the same in all versions.
    fn are_alike(self) -> bool;

    /// The structure of a version; `None` if the version no longer exists.
    fn structure(self, api_version: &str) -> Option<Self::Structure>;

    /// Converts an object to another version. On [`Error::Unconverted`] the caller converts it and
    /// retries.
    fn convert(self, object: &Value, to: &str) -> Result<Value, Error>;
}

/// The same structure for all versions.
impl<S: Structure> Versions for S {
    type Structure = S;

    fn own(self) -> S {
        self
    }

    fn are_alike(self) -> bool {
        true
    }

    fn structure(self, _: &str) -> Option<S> {
        Some(self)
    }

    fn convert(self, object: &Value, _: &str) -> Result<Value, Error> {
        Ok(object.clone())
    }
}

/// Two states of an object in the versions that managers wrote in, other than that of the write.
#[derive(Default)]
pub(super) struct Elsewhere {
    states: BTreeMap<String, (Value, Value)>,
    /// Versions that no longer exist: their managers own nothing.
    gone: BTreeSet<String>,
}

impl Elsewhere {
    pub(super) fn of<V: Versions>(
        versions: V,
        entries: &Entries<'_>,
        write: &Write<'_>,
        old: &Value,
        new: &Value,
    ) -> Result<Elsewhere, Error> {
        let mut elsewhere = Elsewhere::default();
        if versions.are_alike() {
            return Ok(elsewhere);
        }
        for version in entries.versions().filter(|version| *version != write.api_version) {
            if versions.structure(version).is_none() {
                elsewhere.gone.insert(version.to_owned());
            } else if !elsewhere.states.contains_key(version) {
                let states = (versions.convert(old, version)?, versions.convert(new, version)?);
                elsewhere.states.insert(version.to_owned(), states);
            }
        }
        Ok(elsewhere)
    }

    /// The difference of the states in each version.
    pub(super) fn changes<V: Versions>(&self, versions: V, write: &Write<'_>) -> Different<'_> {
        let compared = self.states.iter().filter_map(|(version, (old, new))| {
            let structure = versions.structure(version)?;
            Some((version.as_str(), compare_objects(old, new, write.ignored, structure)))
        });
        Different { changes: compared.collect(), gone: &self.gone }
    }
}

/// The changes in each version.
pub(super) struct Different<'a> {
    changes: BTreeMap<&'a str, Changes<'a>>,
    gone: &'a BTreeSet<String>,
}

impl<'a> Different<'a> {
    /// The changes in a version; `None` if they are the same as in the version of the write.
    pub(super) fn at(&self, version: &str) -> Option<&Changes<'a>> {
        self.changes.get(version)
    }

    pub(super) fn is_gone(&self, version: &str) -> bool {
        self.gone.contains(version)
    }
}
