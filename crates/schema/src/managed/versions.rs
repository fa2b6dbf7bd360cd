//! Managers that wrote in other versions: what they own is said in the fields of theirs.
//!
//! Most kinds call a field the same in all their versions, and a set is as good in one as in the
//! other. Where a webhook converts, objects are compared in the version of each manager.

use std::collections::{BTreeMap, BTreeSet};

use headwater_json::Value;

use super::compare::{Changes, compare_objects};
use super::entry::Entries;
use super::{Error, Structure, Write};

/// How the objects of a kind look in its versions.
pub trait Versions: Copy {
    /// What fields look like.
    type Structure: Structure;

    /// What fields look like in the version of the write.
    fn own(self) -> Self::Structure;

    /// Whether fields are called the same in all versions.
    fn are_alike(self) -> bool;

    /// What fields look like in a version; none if there is no such version any more.
    fn structure(self, api_version: &str) -> Option<Self::Structure>;

    /// An object in another version. [`Error::Unconverted`] asks the caller to find it out, and
    /// to come again.
    fn convert(self, object: &Value, to: &str) -> Result<Value, Error>;
}

/// One structure is that of all versions.
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
    /// Versions that are no more: whoever managed in one manages nothing.
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

    /// How the states differ, in each version.
    pub(super) fn changes<V: Versions>(&self, versions: V, write: &Write<'_>) -> Different<'_> {
        let compared = self.states.iter().filter_map(|(version, (old, new))| {
            let structure = versions.structure(version)?;
            Some((version.as_str(), compare_objects(old, new, write.ignored, structure)))
        });
        Different { changes: compared.collect(), gone: &self.gone }
    }
}

/// What changed, as each version tells it.
pub(super) struct Different<'a> {
    changes: BTreeMap<&'a str, Changes<'a>>,
    gone: &'a BTreeSet<String>,
}

impl<'a> Different<'a> {
    /// The changes in a version; none if they are called there as in the version of the write.
    pub(super) fn at(&self, version: &str) -> Option<&Changes<'a>> {
        self.changes.get(version)
    }

    pub(super) fn is_gone(&self, version: &str) -> bool {
        self.gone.contains(version)
    }
}
