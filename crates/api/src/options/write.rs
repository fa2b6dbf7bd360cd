//! Options of create, update and patch.

use super::refuse;
use crate::query::{Query, is_printable};
use crate::status::{FieldError, FieldErrorKind, Status};

/// The maximum length of a field manager's name, in bytes.
const MANAGER_MAX: usize = 128;

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Everything but the write itself is done.
    pub dry_run: bool,
    /// The writer; empty if the request does not name one (see [`manager_name`]).
    pub field_manager: String,
    /// What happens to unknown and repeated fields.
    pub field_validation: FieldValidation,
    /// Whether an apply takes fields from other managers.
    pub force: bool,
}

/// What happens to unknown and repeated fields of a body (S2.33).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped.
    Ignore,
    /// They are dropped with a warning.
    #[default]
    Warn,
    /// The request is rejected.
    Strict,
}

impl WriteOptions {
    /// Options of POST.
    pub fn create(query: &Query) -> Result<WriteOptions, Status> {
        let errors = common_errors(query);
        refuse("CreateOptions", &errors)?;
        Ok(WriteOptions::read(query))
    }

    /// Options of PUT.
    pub fn update(query: &Query) -> Result<WriteOptions, Status> {
        let errors = common_errors(query);
        refuse("UpdateOptions", &errors)?;
        Ok(WriteOptions::read(query))
    }

    /// Options of a JSON, merge or strategic merge patch.
    pub fn patch(query: &Query) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if query.flag("force").is_some() {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        errors.extend(common_errors(query));
        refuse("PatchOptions", &errors)?;
        Ok(WriteOptions::read(query))
    }

    /// Options of an apply patch.
    pub fn apply(query: &Query) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if query.text("fieldManager").is_empty() {
            errors.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
        errors.extend(common_errors(query));
        refuse("PatchOptions", &errors)?;
        Ok(WriteOptions::read(query))
    }

    fn read(query: &Query) -> WriteOptions {
        WriteOptions {
            dry_run: query.get("dryRun").is_some(),
            field_manager: query.text("fieldManager").to_owned(),
            field_validation: match query.text("fieldValidation") {
                "Ignore" => FieldValidation::Ignore,
                "Strict" => FieldValidation::Strict,
                _ => FieldValidation::Warn,
            },
            force: query.is_set("force"),
        }
    }
}

/// The owner of the fields of a write: the manager that it names, or else the start of its
/// User-Agent.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let product = user_agent.split('/').next().unwrap_or_default();
    let mut name = String::new();
    for c in product.chars().filter(|c| is_printable(*c)) {
        if name.len() + c.len_utf8() > MANAGER_MAX {
            break;
        }
        name.push(c);
    }
    name
}

fn common_errors(query: &Query) -> Vec<FieldError> {
    let mut errors = manager_errors(query.text("fieldManager"));
    errors.extend(dry_run_error(&query.all("dryRun").collect::<Vec<_>>()));
    let validation = query.text("fieldValidation");
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        let supported = &["", "Ignore", "Strict", "Warn"];
        errors.push(FieldError::not_supported("fieldValidation", &validation.into(), supported));
    }
    errors
}

fn manager_errors(manager: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if manager.len() > MANAGER_MAX {
        errors.push(FieldError {
            kind: FieldErrorKind::TooLong,
            field: "fieldManager".into(),
            detail: format!("may not be more than {MANAGER_MAX} bytes"),
        });
    }
    // Only the first is reported: a name of control characters must not produce a long message.
    if let Some((at, c)) = manager.char_indices().find(|(_, c)| !is_printable(*c)) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid("fieldManager", &manager.into(), why));
    }
    errors
}

/// The error for values other than `All`, which may be repeated.
pub(super) fn dry_run_error(values: &[&str]) -> Option<FieldError> {
    let known = values.iter().all(|value| *value == "All");
    (!known).then(|| FieldError::not_supported("dryRun", &values.into(), &["All"]))
}
