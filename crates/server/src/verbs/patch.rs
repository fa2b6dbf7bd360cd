//! PATCH: applies a patch to the current object.
//!
//! River: body → **patch** → write. A patch without a resourceVersion is computed again
//! on the latest state after a conflict (S2.22).

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::options::{FieldValidation, WriteOptions};
use headwater_json::path::PathList;
use headwater_json::{Parsed, Value};
use headwater_schema::decode::{Format, unmarshal_errors};
use headwater_schema::managed;
use headwater_schema::patch::{self, PatchType};
use headwater_schema::types::Types;
use headwater_schema::yaml;
use http::header;

use crate::admission::manage::Manager;
use crate::admission::manage::track::{LearnedVersion, Unfinished};
use crate::answer::status;
use crate::object::meta;
use crate::request::call::Call;
use crate::request::decode::{self, PatchResult};
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::write::{Mutation, Update, Written, check_name, check_namespace};

/// PATCH on an object.
pub(crate) async fn patch(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: Bytes,
) -> Result<Written, Status> {
    let patch_type = PatchType::parse(call.header(header::CONTENT_TYPE), &resource.kind)?;
    let options = match patch_type {
        PatchType::Apply => WriteOptions::apply(&call.query)?,
        _ => WriteOptions::patch(&call.query)?,
    };
    let Parsed { value: patch, duplicates } = match patch_type {
        PatchType::Apply => configuration(&body)?,
        _ => decode::patch(Format::Json, &body)?,
    };
    let manager = Manager::new(server, call, &resource.kind, &resource.subresource, &options);
    let mut change = Patched {
        call,
        resource,
        patch_type,
        patch,
        duplicates,
        manager,
        validation: options.field_validation,
    };
    Update { server, call, resource, options }.run(&mut change).await
}

/// An apply configuration is YAML, and its repeated keys are reported with lines. Most clients send JSON,
/// which parses faster as JSON.
pub(crate) fn configuration(body: &Bytes) -> Result<Parsed, Status> {
    if body.first() == Some(&b'{')
        && let Ok(parsed) = decode::patch(Format::Json, body)
        && parsed.duplicates.is_empty()
    {
        return Ok(parsed);
    }
    let parsed = decode::patch(Format::Yaml, body)?;
    let duplicates = match parsed.duplicates.is_empty() {
        true => parsed.duplicates,
        false => yaml::repeated_keys(body),
    };
    Ok(Parsed { duplicates, ..parsed })
}

struct Patched<'a> {
    call: &'a Call,
    resource: &'a ResourcePath,
    patch_type: PatchType,
    patch: Value,
    /// Paths of keys that the patch repeats; of an apply the messages of the YAML parser.
    duplicates: PathList,
    manager: Manager<'a>,
    validation: FieldValidation,
}

impl Mutation for &mut Patched<'_> {
    fn attempt(&mut self, current: &Value) -> Result<Value, Unfinished> {
        if self.patch_type != PatchType::Apply {
            return Ok(self.apply(current)?);
        }
        let value = self.manager.apply(Some(current), &self.patch)?;
        Ok(self.applied(value, Some(current))?)
    }

    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let patch = self.patch.clone();
        let mut value = current.clone();
        // `managedFields` stay text until the patch reads or changes them.
        let aside = match speaks_of_managers(self.patch_type, &patch) {
            true => {
                managed::unpack(&mut value);
                None
            }
            false => managed::take(&mut value),
        };
        let mut value = self.patched(self.patch_type, value, patch)?;
        value = self.checked(value, Some(current))?;
        if let Some(entries) = aside {
            managed::put(&mut value, entries);
        }
        Ok(value)
    }

    fn learn(&mut self, known: LearnedVersion) {
        self.manager.learn(known);
    }

    /// An apply creates a missing object.
    fn absent(&mut self) -> Result<Option<Value>, Status> {
        if self.patch_type != PatchType::Apply || !self.resource.subresource.is_empty() {
            return Ok(None);
        }
        let uid = meta(&self.patch, "uid");
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(status::conflict(&self.resource.kind, &self.resource.name, &why));
        }
        let value = self.manager.apply(None, &self.patch)?;
        self.applied(value, None).map(Some)
    }

    fn is_managed(&self) -> bool {
        self.patch_type == PatchType::Apply
    }
}

impl Patched<'_> {
    fn patched(
        &self,
        patch_type: PatchType,
        mut value: Value,
        patch: Value,
    ) -> Result<Value, Status> {
        match patch_type {
            PatchType::Json => patch::json(&mut value, patch)?,
            PatchType::Strategic => {
                let of = Types::builtin().of(&self.resource.kind);
                patch::strategic(&mut value, patch, of.ok_or_else(status::no_such_resource)?)?;
            }
            PatchType::Merge | PatchType::Apply => patch::merge(&mut value, patch)?,
        }
        Ok(value)
    }

    /// Validates the result of an apply, whose `managedFields` are in their stored form.
    fn applied(&self, mut value: Value, current: Option<&Value>) -> Result<Value, Status> {
        match self.validation {
            _ if self.duplicates.is_empty() => {}
            FieldValidation::Strict => {
                let why = unmarshal_errors(&self.duplicates);
                return Err(status::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: {why}"
                )));
            }
            FieldValidation::Warn => self.call.warn(self.duplicates.iter().cloned()),
            FieldValidation::Ignore => {}
        }
        let entries = managed::take(&mut value);
        let mut value = self.checked(value, current)?;
        if let Some(entries) = entries {
            managed::put(&mut value, entries);
        }
        Ok(value)
    }

    fn checked(&self, mut value: Value, current: Option<&Value>) -> Result<Value, Status> {
        check_name(&self.resource.name, &mut value)?;
        check_namespace(&self.resource.kind, &self.resource.namespace, &mut value)?;
        let kind = &self.resource.kind;
        let old = current.filter(|_| !kind.is_converted());
        let (patch_type, duplicates) = (self.patch_type, &self.duplicates);
        let result = PatchResult { patch_type, value, old, duplicates };
        decode::patched(kind, self.call, self.validation, result)
    }
}

/// Whether a patch may read or change `metadata.managedFields`.
fn speaks_of_managers(patch_type: PatchType, patch: &Value) -> bool {
    let is_directive = |key: &str| key.starts_with('$');
    match (patch_type, patch) {
        (PatchType::Json, Value::Array(operations)) => operations.iter().any(|operation| {
            ["path", "from"].iter().filter_map(|key| operation[*key].as_str()).any(|path| {
                let mut steps = path.split('/').skip(1);
                match (steps.next(), steps.next()) {
                    (None, _) | (Some("metadata"), None | Some("managedFields")) => true,
                    // A path with escapes is decoded completely.
                    (first, second) => [first, second].iter().flatten().any(|s| s.contains('~')),
                }
            })
        }),
        (PatchType::Merge | PatchType::Strategic, Value::Object(members)) => {
            members.keys().any(|key| is_directive(key))
                || match members.get("metadata") {
                    None => false,
                    Some(Value::Object(metadata)) => {
                        metadata.keys().any(|key| key == "managedFields" || is_directive(key))
                    }
                    Some(_) => true,
                }
        }
        _ => true,
    }
}
