//! Validation: 422 with a reason for each field.

use headwater_api::status::{self as api_status, FieldError};
use headwater_api::{Status, name};
use headwater_schema::validate;

use super::{Admit, Attempt, namespaces, policy, webhook};
use crate::admission::definitions;
use crate::object::meta;

/// Validates an object as Kubernetes does.
pub(super) struct FieldValidation;

impl Admit for FieldValidation {
    fn admit(&self, attempt: &mut Attempt<'_>) -> Result<(), Status> {
        let kind = attempt.kind.storage();
        definitions::check_kind(attempt)?;
        let mut errors: Vec<FieldError> = match attempt.old {
            None => name::metadata_on_create(kind, attempt.new),
            Some(old) => name::metadata_on_update(kind, attempt.new, old),
        };
        if attempt.old.is_some() && !kind.custom {
            // Kubernetes validates the metadata of built-in kinds several times and lists every
            // finding: immutable fields twice, malformed ones four times.
            errors.extend_from_within(..);
            let common = name::metadata_alike(kind, attempt.new);
            errors.extend(common.iter().cloned().chain(common.iter().cloned()));
        }
        match attempt.old {
            None => errors.extend(validate::create(kind, attempt.new)),
            // The handlers of other subresources validate their own part.
            Some(old) if matches!(attempt.subresource, "" | "scale") => {
                errors.extend(validate::update(kind, attempt.new, old));
            }
            Some(_) if namespaces::is_namespace(attempt.kind) => {
                errors.extend(namespaces::errors(attempt.subresource, attempt.new));
            }
            Some(_) => {}
        }
        errors.extend(definitions::errors(attempt));
        if webhook::check::is_configuration(attempt.kind) {
            errors.extend(webhook::check::errors(attempt.new));
        }
        errors.extend(policy::check::errors(attempt.kind, attempt.new));
        if errors.is_empty() {
            return Ok(());
        }
        let name = meta(attempt.new, "name");
        Err(api_status::invalid(&attempt.kind.group, &attempt.kind.kind.kind, name, &errors))
    }
}
