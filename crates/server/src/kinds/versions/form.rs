//! The decoding of stored custom objects under the current definition.
//!
//! River: stored bytes → **form** → cache. An object may have been stored under an older definition. It
//! is decoded under the current one: pruned, defaulted, and in the current storage version (S9.10,
//! S9.25). An object that needs no change keeps its bytes.

use std::sync::Arc;

use headwater_api::Object;
use headwater_cache::StoredTransform;
use headwater_json::Value;
use headwater_json::scan::{Malformed, Scanner};
use headwater_schema::structural::Schema;

use crate::kinds::registry::Served;
use crate::object::{canonical, tree};

/// The schemas of all versions, and the storage version.
#[derive(Debug)]
pub(crate) struct Stored {
    /// By `apiVersion`.
    versions: Vec<(String, Arc<Schema>)>,
    api_version: String,
    schema: Arc<Schema>,
    renaming: Renaming,
}

/// The conversion strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renaming {
    /// Only `apiVersion` changes: objects are decoded in the storage version.
    Suffices,
    /// A webhook: objects stay in their stored version, because decoding must not wait for a call.
    Forbidden,
}

impl Renaming {
    /// The strategy of a definition.
    pub(crate) fn of(definition: &Value) -> Renaming {
        match definition["spec"]["conversion"]["strategy"] == "Webhook" {
            true => Renaming::Forbidden,
            false => Renaming::Suffices,
        }
    }
}

impl Stored {
    /// The storage version.
    pub(crate) fn new(
        versions: Vec<(String, Arc<Schema>)>,
        api_version: String,
        schema: Arc<Schema>,
        renaming: Renaming,
    ) -> Stored {
        Stored { versions, api_version, schema, renaming }
    }

    /// The schema of a version, by its `apiVersion`.
    pub(crate) fn schema(&self, api_version: &str) -> Option<&Arc<Schema>> {
        let found = self.versions.iter().find(|(version, _)| version == api_version);
        found.map(|(_, schema)| schema)
    }

    /// Converts, prunes and defaults a tree.
    pub(crate) fn settle(&self, object: &mut Value) {
        let found = object["apiVersion"].as_str().unwrap_or_default();
        let own = self.schema(found).unwrap_or(&self.schema);
        own.prune(object);
        // Defaults that a later definition added may be more than an object can hold. It stays readable.
        if let Err(error) = own.default(object) {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            tracing::warn!(name, "a stored object has only some of its defaults: {error}");
        }
        if self.renaming == Renaming::Suffices && object["apiVersion"] != self.api_version.as_str()
        {
            object["apiVersion"] = self.api_version.as_str().into();
            if !Arc::ptr_eq(own, &self.schema) {
                self.schema.prune(object);
            }
        }
    }
}

impl StoredTransform for Stored {
    fn transform(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let found = version(stored).ok().flatten();
        let stays =
            found == Some(self.api_version.as_bytes()) || self.renaming == Renaming::Forbidden;
        let own = found.and_then(|found| self.schema(std::str::from_utf8(found).ok()?));
        if stays && own.is_some_and(|own| own.is_settled(stored)) {
            return None;
        }
        let mut object = tree(stored).ok()?;
        self.settle(&mut object);
        let settled = canonical(&object);
        (settled != stored).then_some(settled)
    }
}

/// The bytes of a custom object in another version with the same schema: only `apiVersion`, at the
/// beginning, differs.
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

/// The `apiVersion` of an object.
fn version(stored: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    Scanner::new(stored).object::<Malformed>(|key, at| {
        let value = at.value()?;
        if at.is(key, "apiVersion") {
            found = Some(value.of(stored));
        }
        Ok(())
    })?;
    let quoted = found.and_then(|text| text.strip_prefix(b"\""));
    Ok(quoted.and_then(|text| text.strip_suffix(b"\"")))
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use headwater_json::json;

    use super::*;

    fn schema(fields: Value) -> Arc<Schema> {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": fields},
        }});
        Arc::new(Schema::compile(&schema).unwrap())
    }

    fn settle(form: &Stored, object: Value) -> Option<Value> {
        StoredTransform::transform(form, &canonical(&object)).map(|bytes| tree(&bytes).unwrap())
    }

    #[test]
    fn old_objects_are_read_in_the_form_of_today() {
        let (one, two) = (
            schema(json!({"a": {"type": "string"}, "only": {"type": "string", "default": "one"}})),
            schema(json!({"a": {"type": "string"}, "b": {"type": "string", "default": "x"}})),
        );
        let versions = vec![("g/v1".to_owned(), one), ("g/v2".to_owned(), Arc::clone(&two))];
        let form = Stored::new(versions, "g/v2".to_owned(), two, Renaming::Suffices);
        let object = |version: &str, spec: Value| json!({"kind": "K", "apiVersion": version, "metadata": {"name": "n"}, "spec": spec});
        assert_eq!(settle(&form, object("g/v2", json!({"a": "1", "b": "2"}))), None);
        // Unknown fields are pruned and defaults added.
        assert_eq!(
            settle(&form, object("g/v2", json!({"a": "1", "gone": 1}))),
            Some(object("g/v2", json!({"a": "1", "b": "x"})))
        );
        // An object of another version is pruned and defaulted in its own version, then in the new one.
        assert_eq!(
            settle(&form, object("g/v1", json!({"a": "1"}))),
            Some(object("g/v2", json!({"a": "1"})))
        );
    }
}
