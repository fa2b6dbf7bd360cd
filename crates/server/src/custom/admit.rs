//! Admission of definitions: what the server keeps of their status.
//!
//! River: body → **admit** → store. On the way in, the storage version joins the versions that may
//! have been stored (S9.1, S9.4).

use headwater_api::Status;
use serde_json::{Value, json};

use super::is_definition;
use crate::admission::{Admit, Attempt};

/// The step for definitions.
pub(crate) struct Definitions;

impl Admit for Definitions {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        if !is_definition(attempt.kind) || !attempt.subresource.is_empty() {
            return Ok(());
        }
        if attempt.old.is_none() {
            attempt.new["status"] = json!({
                "conditions": null,
                "acceptedNames": { "plural": "", "kind": "" },
                "storedVersions": [],
            });
        }
        note_storage(attempt.new);
        Ok(())
    }
}

/// Objects may from now on be stored in the storage version.
fn note_storage(definition: &mut Value) {
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions.into_iter().flatten().find(|version| version["storage"] == true);
    let Some(name) = storage.map(|version| version["name"].clone()) else { return };
    let stored = &mut definition["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Value::Array(stored) = stored
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}
