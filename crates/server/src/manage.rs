//! Who manages which field: kept on every write, and decided by apply (S2.24–S2.28).
//!
//! River: decoded write → **manage** → store. The rules are in `headwater_api::managed`; here they
//! meet the request: who is asking, through which subresource, and with what force.

use headwater_api::Status;
use headwater_api::managed::{self, Builtin, Loose, Write};
use headwater_api::options::{WriteOptions, manager_name};
use http::header;
use serde_json::Value;

use crate::registry::Served;
use crate::server::{Call, Server};

/// One write as field management sees it.
pub(crate) struct Manager<'a> {
    name: String,
    subresource: &'a str,
    kind: &'a Served,
    api_version: String,
    now: jiff::Timestamp,
    force: bool,
}

impl<'a> Manager<'a> {
    /// Who writes objects of `kind`, in the form of `kind`.
    pub(crate) fn new(
        server: &Server,
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
            now: server.now(),
            force: options.force,
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

    /// Brings `managedFields` up to date after a create, update or patch.
    pub(crate) fn track(&self, old: Option<&Value>, new: &mut Value) {
        match (Builtin::of(self.kind), &self.kind.definition) {
            (Some(structure), _) => managed::track_update(old, new, &self.write(), structure),
            (None, Some(custom)) => {
                managed::track_update(old, new, &self.write(), custom.schema.structure());
            }
            (None, None) => managed::track_update(old, new, &self.write(), Loose::Root),
        }
    }

    /// What an apply of `config` makes of `live`.
    pub(crate) fn apply(&self, live: Option<&Value>, config: Value) -> Result<Value, Status> {
        let (kind, write) = (self.kind, self.write());
        let force = self.force;
        Ok(match (Builtin::of(kind), &kind.definition) {
            (Some(structure), _) => managed::apply(live, config, &write, force, kind, structure)?,
            (None, Some(custom)) => {
                managed::apply(live, config, &write, force, kind, custom.schema.structure())?
            }
            (None, None) => managed::apply(live, config, &write, force, kind, Loose::Root)?,
        })
    }
}
