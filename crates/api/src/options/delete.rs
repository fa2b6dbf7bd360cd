//! Options of DELETE, from the body or the query (S2.42).

use headwater_json::{Map, Value};

use super::refuse;
use super::write::dry_run_error;
use crate::query::{Query, bad_request, quote};
use crate::status::{FieldError, Status};

/// Options of DELETE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// How long the deletion may take; none for the kind's default.
    pub grace_period_seconds: Option<i64>,
    /// What happens to dependents; none for the default of its finalizers and kind.
    pub propagation: Option<Propagation>,
    /// The deprecated form of `propagation`; never set together with it.
    pub orphan_dependents: Option<bool>,
    /// Conditions on the object.
    pub preconditions: Preconditions,
    /// Everything but the deletion itself is done.
    pub dry_run: bool,
    /// An object that cannot be read is removed, whatever its finalizers are.
    pub ignores_read_error: bool,
}

/// The option to remove an object that cannot be read.
const IGNORE: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// Conditions on an object for its deletion (S2.41).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Its uid.
    pub uid: Option<String>,
    /// Its resourceVersion, compared as text.
    pub resource_version: Option<String>,
}

/// What happens to the dependents of a deleted object (S2.44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted first.
    Foreground,
    /// They are deleted later.
    Background,
    /// They are kept.
    Orphan,
}

/// The options before they are checked against each other.
#[derive(Default)]
struct Raw {
    grace_period_seconds: Option<i64>,
    policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Preconditions,
    dry_run: Vec<String>,
    ignores_read_error: bool,
}

impl DeleteOptions {
    /// Options of a DELETE without a body.
    pub fn from_query(query: &Query) -> Result<DeleteOptions, Status> {
        let raw = Raw {
            grace_period_seconds: query.integer("gracePeriodSeconds")?,
            policy: query.get("propagationPolicy").map(str::to_owned),
            orphan_dependents: query.flag("orphanDependents"),
            preconditions: Preconditions::default(),
            dry_run: query.all("dryRun").map(str::to_owned).collect(),
            ignores_read_error: query.flag(IGNORE) == Some(true),
        };
        raw.check()
    }

    /// Options of a DELETE with a body, decoded from JSON or YAML. `group_version` is that of the
    /// resource: the kind is registered in every group.
    pub fn from_body(body: &Value, group_version: &str) -> Result<DeleteOptions, Status> {
        let Value::Object(body) = body else {
            return Err(cannot_handle("DeleteOptions", "not an object"));
        };
        check_type(body, group_version)?;
        let preconditions = match body.get("preconditions") {
            None | Some(Value::Null) => Preconditions::default(),
            Some(Value::Object(from)) => Preconditions {
                uid: text(from, "uid")?,
                resource_version: text(from, "resourceVersion")?,
            },
            Some(_) => return Err(wrong_type("preconditions")),
        };
        let raw = Raw {
            grace_period_seconds: integer(body, "gracePeriodSeconds")?,
            policy: text(body, "propagationPolicy")?,
            orphan_dependents: boolean(body, "orphanDependents")?,
            preconditions,
            dry_run: texts(body, "dryRun")?,
            ignores_read_error: boolean(body, IGNORE)? == Some(true),
        };
        raw.check()
    }
}

impl Raw {
    fn check(self) -> Result<DeleteOptions, Status> {
        const POLICY: &str = "propagationPolicy";
        let mut errors = Vec::new();
        if let (Some(policy), Some(_)) = (&self.policy, self.orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(POLICY, &policy.as_str().into(), why));
        }
        let propagation = match self.policy.as_deref() {
            None => None,
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Background") => Some(Propagation::Background),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                let supported = &["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(POLICY, &other.into(), supported));
                None
            }
        };
        let dry_run: Vec<&str> = self.dry_run.iter().map(String::as_str).collect();
        errors.extend(dry_run_error(&dry_run));
        let others = [
            ("dryRun", !dry_run.is_empty()),
            ("propagationPolicy", self.policy.is_some()),
            ("orphanDependents", self.orphan_dependents.is_some()),
            ("gracePeriodSeconds", self.grace_period_seconds.is_some()),
            ("preconditions", self.preconditions != Preconditions::default()),
        ];
        for (other, _) in others.iter().filter(|(_, is_set)| self.ignores_read_error && *is_set) {
            let why = format!("cannot be set together with .{other}");
            errors.push(FieldError::invalid(IGNORE, &true.into(), why));
        }
        refuse("DeleteOptions", &errors)?;
        Ok(DeleteOptions {
            grace_period_seconds: self.grace_period_seconds,
            propagation,
            orphan_dependents: self.orphan_dependents,
            preconditions: self.preconditions,
            dry_run: !self.dry_run.is_empty(),
            ignores_read_error: self.ignores_read_error,
        })
    }
}

/// `{}` is valid; a kind or version must match if it is given.
fn check_type(body: &Map, group_version: &str) -> Result<(), Status> {
    let kind = text(body, "kind")?.unwrap_or_default();
    let version = text(body, "apiVersion")?.unwrap_or_default();
    let known_version = ["", "v1", "meta.k8s.io/v1", group_version].contains(&version.as_str());
    if known_version && matches!(kind.as_str(), "" | "DeleteOptions") {
        return Ok(());
    }
    let (kind, version) = (quote(&kind), quote(&version));
    Err(bad_request(format!("no kind {kind} is registered for version {version}")))
}

fn cannot_handle(kind: &str, why: &str) -> Status {
    bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {why}"))
}

fn wrong_type(field: &str) -> Status {
    cannot_handle("DeleteOptions", &format!("field {} has the wrong type", quote(field)))
}

fn text(from: &Map, field: &str) -> Result<Option<String>, Status> {
    match from.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.to_string())),
        Some(_) => Err(wrong_type(field)),
    }
}

fn texts(from: &Map, field: &str) -> Result<Vec<String>, Status> {
    match from.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(values)) => values
            .iter()
            .map(|value| value.as_str().map(str::to_owned).ok_or_else(|| wrong_type(field)))
            .collect(),
        Some(_) => Err(wrong_type(field)),
    }
}

fn integer(from: &Map, field: &str) -> Result<Option<i64>, Status> {
    match from.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_i64().map(Some).ok_or_else(|| wrong_type(field)),
    }
}

fn boolean(from: &Map, field: &str) -> Result<Option<bool>, Status> {
    match from.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(|| wrong_type(field)),
    }
}
