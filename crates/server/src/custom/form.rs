//! The form in which custom objects are read.
//!
//! River: stored bytes → **form** → cache. An object was stored under the definition of its day;
//! it is read under today's: without the fields that are unknown now, with the defaults of now, in
//! the version that is stored now (S9.10, S9.25). What needs none of that stays as it is.

use std::sync::Arc;

use headwater_api::Object;
use headwater_api::scan::{Malformed, Scanner};
use headwater_api::structural::Schema;
use headwater_cache::Form;
use serde_json::Value;

use crate::object::{canonical, tree};
use crate::registry::Served;

/// The schemas of all versions, and which of them is stored.
#[derive(Debug)]
pub(crate) struct Stored {
    /// By `apiVersion`.
    versions: Vec<(String, Arc<Schema>)>,
    api_version: String,
    schema: Arc<Schema>,
}

impl Stored {
    /// Objects are stored in this version.
    pub(crate) fn new(
        versions: Vec<(String, Arc<Schema>)>,
        api_version: String,
        schema: Arc<Schema>,
    ) -> Stored {
        Stored { versions, api_version, schema }
    }

    /// Brings a tree into the form that is read.
    pub(crate) fn settle(&self, object: &mut Value) {
        let found = object["apiVersion"].as_str().unwrap_or_default();
        let own = self.versions.iter().find(|(version, _)| version == found);
        let own = own.map_or(&self.schema, |(_, schema)| schema);
        own.prune(object);
        own.default(object);
        if object["apiVersion"] != self.api_version.as_str() {
            object["apiVersion"] = self.api_version.as_str().into();
            if !Arc::ptr_eq(own, &self.schema) {
                self.schema.prune(object);
            }
        }
    }
}

impl Form for Stored {
    fn settle(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let is_current = is_version(stored, &self.api_version).unwrap_or(false);
        if is_current && self.schema.is_settled(stored) {
            return None;
        }
        let mut object = tree(stored).ok()?;
        self.settle(&mut object);
        let settled = canonical(&object);
        (settled != stored).then_some(settled)
    }
}

/// The bytes of an object of a custom kind in another version with the same schema: only
/// `apiVersion` differs, and that stands at the beginning.
pub(crate) fn respelled(kind: &Served, object: &Object) -> Option<Vec<u8>> {
    let (own, stored) = (kind.definition.as_ref()?, kind.storage_row().definition.as_ref()?);
    if !Arc::ptr_eq(&own.schema, &stored.schema) {
        return None;
    }
    let bytes = object.stored().ok()?;
    let before = format!("{{\"kind\":\"{}\",\"apiVersion\":\"", kind.kind.kind);
    let rest = bytes.strip_prefix(before.as_bytes())?;
    let rest = rest.strip_prefix(kind.storage().api_version().as_bytes())?;
    let rest = rest.strip_prefix(b"\"")?;
    let version = kind.api_version();
    Some([before.as_bytes(), version.as_bytes(), b"\"", rest].concat())
}

/// Whether the bytes say that they are of this version.
fn is_version(stored: &[u8], api_version: &str) -> Result<bool, Malformed> {
    let mut found = false;
    Scanner::new(stored).object::<Malformed>(|key, at| {
        if at.is(key, "apiVersion") && at.peek() == Some(b'"') {
            let text = at.string()?;
            found = at.is(text, api_version);
            return Ok(());
        }
        at.value().map(drop)
    })?;
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(fields: Value) -> Arc<Schema> {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": fields},
        }});
        Arc::new(Schema::compile(&schema).unwrap())
    }

    fn settle(form: &Stored, object: Value) -> Option<Value> {
        Form::settle(form, &canonical(&object)).map(|bytes| tree(&bytes).unwrap())
    }

    #[test]
    fn old_objects_are_read_in_the_form_of_today() {
        let (one, two) = (
            schema(json!({"a": {"type": "string"}, "only": {"type": "string", "default": "one"}})),
            schema(json!({"a": {"type": "string"}, "b": {"type": "string", "default": "x"}})),
        );
        let versions = vec![("g/v1".to_owned(), one), ("g/v2".to_owned(), Arc::clone(&two))];
        let form = Stored::new(versions, "g/v2".to_owned(), two);
        let object = |version: &str, spec: Value| json!({"kind": "K", "apiVersion": version, "metadata": {"name": "n"}, "spec": spec});
        assert_eq!(settle(&form, object("g/v2", json!({"a": "1", "b": "2"}))), None);
        // Unknown fields go, defaults come.
        assert_eq!(
            settle(&form, object("g/v2", json!({"a": "1", "gone": 1}))),
            Some(object("g/v2", json!({"a": "1", "b": "x"})))
        );
        // Another version is pruned and defaulted as what it was, then as what it becomes.
        assert_eq!(
            settle(&form, object("g/v1", json!({"a": "1"}))),
            Some(object("g/v2", json!({"a": "1"})))
        );
    }
}
