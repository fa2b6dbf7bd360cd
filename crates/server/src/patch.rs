//! PATCH: the present state, changed as the patch says.
//!
//! River: body → **patch** → write. A patch that does not name a resourceVersion is computed again
//! on the newest state until it wins (S2.22).

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::decode::Format;
use headwater_api::options::{FieldValidation, WriteOptions};
use headwater_api::patch::{self, PatchType};
use headwater_api::schema::Types;
use http::header;
use serde_json::Value;

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
    let patch = decode::patch(format, &body)?;
    let validation = options.field_validation;
    let mut change = Patched { resource, patch_type, patch, validation, warnings: Vec::new() };
    let mut written = Update { server, call, resource, options }.run(&mut change).await?;
    written.warnings.append(&mut change.warnings);
    Ok(written)
}

struct Patched<'a> {
    resource: &'a Resource,
    patch_type: PatchType,
    patch: Value,
    validation: FieldValidation,
    warnings: Vec<String>,
}

impl Change for &mut Patched<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let mut value = current.clone();
        let patch = self.patch.clone();
        match self.patch_type {
            PatchType::Json => patch::json(&mut value, patch)?,
            PatchType::Merge => patch::merge(&mut value, patch)?,
            PatchType::Strategic => {
                let kind = &self.resource.kind;
                let of = Types::builtin().of(kind).ok_or_else(status::no_such_resource)?;
                patch::strategic(&mut value, patch, of)?;
            }
            PatchType::Apply => {
                return Err(Status::failure(
                    415,
                    "UnsupportedMediaType",
                    "this patch type is not served yet",
                ));
            }
        }
        check_name(&self.resource.name, &mut value)?;
        check_namespace(&self.resource.kind, &self.resource.namespace, &mut value)?;
        let decoded = decode::patched(&self.resource.kind, self.validation, value)?;
        self.warnings = decoded.warnings;
        Ok(decoded.value)
    }
}
