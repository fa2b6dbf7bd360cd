//! PATCH: the present state, changed as the patch says.
//!
//! River: body → **patch** → write. A patch that does not name a resourceVersion is computed again
//! on the newest state until it wins (S2.22).

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::decode::{Format, Parsed};
use headwater_api::options::{FieldValidation, WriteOptions};
use headwater_api::patch::{self, PatchType};
use headwater_api::schema::Types;
use http::header;
use serde_json::Value;

use crate::manage::Manager;
use crate::object::meta;
use crate::route::Resource;
use crate::server::{Call, Server};
use crate::write::{Change, Update, Written, check_name, check_namespace};
use crate::{decode, status};

/// PATCH on an object.
pub(crate) async fn patch(
    server: &Server,
    call: &Call,
    resource: &Resource,
    body: Bytes,
) -> Result<Written, Status> {
    let patch_type = PatchType::parse(call.header(header::CONTENT_TYPE), &resource.kind)?;
    let options = match patch_type {
        PatchType::Apply => WriteOptions::apply(&call.query)?,
        _ => WriteOptions::patch(&call.query)?,
    };
    let format = match patch_type {
        PatchType::Apply => Format::Yaml,
        _ => Format::Json,
    };
    let Parsed { value: patch, duplicates } = decode::patch(format, &body)?;
    let manager = Manager::new(server, call, &resource.kind, &resource.subresource, &options);
    let mut change = Patched {
        resource,
        patch_type,
        patch,
        duplicates,
        manager,
        validation: options.field_validation,
        warnings: Vec::new(),
    };
    let mut written = Update { server, call, resource, options }.run(&mut change).await?;
    written.warnings.append(&mut change.warnings);
    Ok(written)
}

struct Patched<'a> {
    resource: &'a Resource,
    patch_type: PatchType,
    patch: Value,
    /// Paths of keys that the patch repeats.
    duplicates: Vec<String>,
    manager: Manager<'a>,
    validation: FieldValidation,
    warnings: Vec<String>,
}

impl Change for &mut Patched<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let patch = self.patch.clone();
        let value = match self.patch_type {
            PatchType::Apply => self.manager.apply(Some(current), patch)?,
            patch_type => self.patched(patch_type, current.clone(), patch)?,
        };
        self.checked(value)
    }

    /// An apply creates what is not there.
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
        let value = self.manager.apply(None, self.patch.clone())?;
        self.checked(value).map(Some)
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

    fn checked(&mut self, mut value: Value) -> Result<Value, Status> {
        check_name(&self.resource.name, &mut value)?;
        check_namespace(&self.resource.kind, &self.resource.namespace, &mut value)?;
        let (kind, duplicates) = (&self.resource.kind, &self.duplicates);
        let decoded = decode::patched(kind, self.validation, value, duplicates)?;
        self.warnings = decoded.warnings;
        Ok(decoded.value)
    }
}
