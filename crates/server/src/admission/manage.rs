//! Field management: `managedFields` of every write, and server-side apply (S2.24–S2.28).
//!
//! River: decoded write → **manage** → store. The rules are in `headwater_schema::managed`; here they
//! are applied to a request: its manager, subresource and `force`.

use headwater_api::options::{WriteOptions, manager_name};
use headwater_json::Value;
use headwater_schema::managed::{self, Builtin, Error, Loose, Versions, Write};
use headwater_schema::structural::Structured;
use http::header;

pub(crate) mod track;

use crate::backend::Backend;
use crate::kinds::custom::Custom;
use crate::kinds::registry::Served;
use crate::request::call::Call;
use track::{LearnedVersion, track_alike};

/// The object as the client sent it. `managedFields` are computed from this, not from the mutated
/// object.
pub(crate) enum OriginalObject {
    Object(Value),
    /// Only its `managedFields`, which were computed at once.
    Entries(Option<Value>),
}

/// One write as field management sees it.
pub(crate) struct Manager<'a> {
    name: String,
    subresource: &'a str,
    kind: &'a Served,
    api_version: String,
    now: jiff::Timestamp,
    force: bool,
    /// Objects that a webhook converted to other versions.
    known: Vec<LearnedVersion>,
}

impl<'a> Manager<'a> {
    /// The manager of a write to objects of `kind`.
    pub(crate) fn new(
        backend: &Backend,
        call: &Call,
        kind: &'a Served,
        subresource: &'a str,
        options: &WriteOptions,
    ) -> Manager<'a> {
        let agent = call.header(header::USER_AGENT);
        Manager {
            name: manager_name(&options.field_manager, agent),
            subresource,
            kind,
            api_version: kind.api_version(),
            now: backend.now(),
            force: options.force,
            known: Vec::new(),
        }
    }

    fn write(&self) -> Write<'_> {
        let writes_status = self.subresource == "status" || !self.kind.has_status();
        Write {
            manager: &self.name,
            subresource: self.subresource,
            api_version: &self.api_version,
            now: self.now,
            ignored: if writes_status { &[] } else { &["status"] },
        }
    }

    /// Updates `managedFields` after a create, update or patch.
    pub(crate) fn track(&self, old: Option<&Value>, new: &mut Value) -> Result<(), Error> {
        let write = self.write();
        match (Builtin::of(self.kind), &self.kind.definition) {
            (Some(structure), _) => managed::track_update(old, new, &write, structure),
            (None, Some(custom)) if custom.conversion.is_some() => {
                managed::track_update(old, new, &write, self.learned(custom))
            }
            (None, Some(custom)) => {
                managed::track_update(old, new, &write, custom.schema.structure())
            }
            (None, None) => managed::track_update(old, new, &write, Loose::Root),
        }
    }

    /// The `managedFields` that [`Manager::track`] would set on a new object.
    pub(crate) fn entries(&self, new: &mut Value) -> Result<Option<Value>, Error> {
        track_alike(self, self.kind, None, new)?;
        Ok(managed::take(new))
    }

    /// Applies `config` to `live`.
    pub(crate) fn apply(&self, live: Option<&Value>, config: &Value) -> Result<Value, Error> {
        let (kind, write) = (self.kind, self.write());
        let force = self.force;
        match (Builtin::of(kind), &kind.definition) {
            (Some(structure), _) => managed::apply(live, config, &write, force, kind, structure),
            (None, Some(custom)) if custom.conversion.is_some() => {
                managed::apply(live, config, &write, force, kind, self.learned(custom))
            }
            (None, Some(custom)) => {
                managed::apply(live, config, &write, force, kind, custom.schema.structure())
            }
            (None, None) => managed::apply(live, config, &write, force, kind, Loose::Root),
        }
    }

    /// Adds an object in another version that it requested.
    pub(crate) fn learn(&mut self, known: LearnedVersion) {
        self.known.push(known);
    }

    fn learned<'b>(&'b self, custom: &'b Custom) -> Learned<'b> {
        Learned { custom, known: &self.known }
    }
}

/// The versions of a kind with a conversion webhook that were already converted.
#[derive(Clone, Copy)]
struct Learned<'a> {
    custom: &'a Custom,
    known: &'a [LearnedVersion],
}

impl<'a> Versions for Learned<'a> {
    type Structure = Structured<'a>;

    fn own(self) -> Structured<'a> {
        self.custom.schema.structure()
    }

    fn are_alike(self) -> bool {
        false
    }

    fn structure(self, api_version: &str) -> Option<Structured<'a>> {
        self.custom.form.schema(api_version).map(|schema| schema.structure())
    }

    fn convert(self, object: &Value, to: &str) -> Result<Value, Error> {
        let known = self.known.iter().find(|known| known.to == to && known.object == *object);
        known.map(|known| known.made.clone()).ok_or_else(|| Error::Unconverted {
            object: Box::new(object.clone()),
            to: to.to_owned(),
        })
    }
}
