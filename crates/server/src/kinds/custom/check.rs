//! Validation of a definition (S9.2, S9.4): names, versions, schemas, columns, selectable fields.
//!
//! Errors name the same fields as Kubernetes. A property that all versions share is reported once: a
//! schema that is the same in all of them is `spec.validation`.

use std::collections::BTreeSet;

use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_json::{Value, json};
use headwater_schema::structural;

mod conversion;
mod version;

use super::names::{Approval, is_protected};
use crate::object::meta;

/// The validation errors of a definition.
pub(crate) fn definition(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut check = Check { spec: &new["spec"], errors: Vec::new() };
    if old.is_none() {
        check.name(meta(new, "name"));
    }
    check.group();
    check.scope();
    check.versions(old);
    check.conversion();
    check.names("spec.names", &new["spec"]["names"]);
    check.required_names();
    check.stored_versions(&new["status"]["storedVersions"]);
    check.approval(new, old);
    if new["spec"]["preserveUnknownFields"] == true {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        check.invalid("spec.preserveUnknownFields", &true.into(), why);
    }
    if let Some(old) = old {
        check.unchanged(old);
    }
    check.errors
}

/// The validation errors of the status of a definition.
pub(crate) fn status(new: &Value) -> Vec<FieldError> {
    let mut check = Check { spec: &new["spec"], errors: Vec::new() };
    check.names("status.acceptedNames", &new["status"]["acceptedNames"]);
    check.errors
}

/// The warnings about a new definition.
pub(crate) fn warnings(definition: &Value) -> Vec<String> {
    let schemas = list(&definition["spec"]["versions"]).map(|v| &v["schema"]["openAPIV3Schema"]);
    let formats: BTreeSet<String> = schemas.flat_map(structural::unrecognized_formats).collect();
    formats.iter().map(|format| format!("unrecognized format {format:?}")).collect()
}

struct Check<'a> {
    spec: &'a Value,
    errors: Vec<FieldError>,
}

impl<'a> Check<'a> {
    fn invalid(&mut self, field: impl Into<String>, value: &Value, why: impl AsRef<str>) {
        self.errors.push(FieldError::invalid(field, value, why));
    }

    fn require(&mut self, field: impl Into<String>, why: &str) {
        self.errors.push(FieldError::required(field, why));
    }

    /// Adds all problems of one value.
    fn text(&mut self, field: impl Into<String>, text: &str, problems: &name::Problems) {
        if !problems.is_empty() {
            self.invalid(field, &text.into(), problems.join(","));
        }
    }

    fn at(&self, key: &str) -> &'a str {
        self.spec[key].as_str().unwrap_or_default()
    }

    fn name(&mut self, name: &str) {
        let plural = self.spec["names"]["plural"].as_str().unwrap_or_default();
        if name != format!("{plural}.{}", self.at("group")) {
            let why = "must be spec.names.plural+\".\"+spec.group";
            self.invalid("metadata.name", &name.into(), why);
        }
    }

    fn group(&mut self) {
        let group = self.at("group");
        if group.is_empty() {
            return self.require("spec.group", "");
        }
        let problems = name::subdomain(group);
        if problems.is_empty() && !group.contains('.') {
            self.invalid("spec.group", &group.into(), "should be a domain with at least one dot");
        }
        self.text("spec.group", group, &problems);
    }

    fn scope(&mut self) {
        match self.at("scope") {
            "" => self.require("spec.scope", ""),
            "Cluster" | "Namespaced" => {}
            other => {
                let supported = ["Cluster", "Namespaced"];
                let error = FieldError::not_supported("spec.scope", &other.into(), &supported);
                self.errors.push(error);
            }
        }
    }

    fn versions(&mut self, old: Option<&Value>) {
        let list = &self.spec["versions"];
        let versions = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut names: Vec<&str> =
            versions.iter().map(|version| version["name"].as_str().unwrap_or_default()).collect();
        for (index, version) in versions.iter().enumerate() {
            self.version(index, version);
        }
        self.schemas(versions, old);
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            self.invalid("spec.versions", list, "must contain unique version names");
        }
        if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
            let why = "must have exactly one version marked as storage version";
            self.invalid("spec.versions", list, why);
        }
    }

    fn version(&mut self, index: usize, version: &Value) {
        let at = format!("spec.versions[{index}]");
        let text = version["name"].as_str().unwrap_or_default();
        self.text(format!("{at}.name"), text, &name::label_1035(text));
        if let Some(warning) = version["deprecationWarning"].as_str() {
            let field = format!("{at}.deprecationWarning");
            self.deprecation(&field, warning, version["deprecated"] == true);
        }
    }

    fn deprecation(&mut self, field: &str, warning: &str, deprecated: bool) {
        let why = match warning {
            _ if !deprecated => "can only be set for deprecated versions",
            "" => "must not be an empty string",
            text if text.len() > 256 => "must be <= 256 characters long",
            text if text.contains(char::is_control) => {
                "must only contain printable UTF-8 characters"
            }
            _ => return,
        };
        self.invalid(field, &warning.into(), why);
    }

    fn required_names(&mut self) {
        for key in ["plural", "singular", "kind", "listKind"] {
            if self.spec["names"][key].as_str().unwrap_or_default().is_empty() {
                self.require(format!("spec.names.{key}"), "");
            }
        }
    }

    fn names(&mut self, at: &str, names: &Value) {
        let text = |key: &str| names[key].as_str().unwrap_or_default();
        for key in ["plural", "singular"] {
            let text = text(key);
            if !text.is_empty() {
                self.text(format!("{at}.{key}"), text, &name::label_1035(text));
            }
        }
        for key in ["kind", "listKind"] {
            let problems = name::label_1035(&text(key).to_lowercase());
            if !text(key).is_empty() && !problems.is_empty() {
                let why = format!(
                    "may have mixed case, but should otherwise match: {}",
                    problems.join(",")
                );
                self.invalid(format!("{at}.{key}"), &text(key).into(), why);
            }
        }
        for key in ["shortNames", "categories"] {
            for (index, word) in list(&names[key]).filter_map(Value::as_str).enumerate() {
                self.text(format!("{at}.{key}[{index}]"), word, &name::label_1035(word));
            }
        }
        if !text("kind").is_empty() && text("kind") == text("listKind") {
            let why = "kind and listKind may not be the same";
            self.invalid(format!("{at}.listKind"), &text("listKind").into(), why);
        }
    }

    /// Rejects the removal of a version in which objects may be stored (S9.4).
    fn stored_versions(&mut self, stored: &Value) {
        let at = "status.storedVersions";
        let stored: Vec<&str> = list(stored).filter_map(Value::as_str).collect();
        if stored.is_empty() {
            return self.invalid(at, &json!([]), "must have at least one stored version");
        }
        for (index, version) in stored.iter().enumerate() {
            if !list(&self.spec["versions"]).any(|known| known["name"] == *version) {
                let why = format!(
                    "missing from spec.versions; {version} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {version} and removes {version} from status.storedVersions"
                );
                self.invalid(format!("{at}[{index}]"), &(*version).into(), why);
            }
        }
    }

    fn approval(&mut self, new: &Value, old: Option<&Value>) {
        if !is_protected(self.at("group")) {
            return;
        }
        let annotation = |definition: &Value| {
            let text = &definition["metadata"]["annotations"]["api-approved.kubernetes.io"];
            text.as_str().unwrap_or_default().to_owned()
        };
        let text = annotation(new);
        let approval = Approval::read(&text);
        if old.is_some_and(|old| Approval::read(&annotation(old)) == approval) {
            return;
        }
        let field = "metadata.annotations[api-approved.kubernetes.io]";
        match approval {
            Approval::Missing => self.require(field, &approval.message(&text)),
            Approval::Invalid => {
                let why = approval.message(&text);
                self.invalid(field, &text.into(), why);
            }
            Approval::Approved | Approval::Bypassed => {}
        }
    }

    /// Rejects changes of fields that keys and stored objects depend on.
    fn unchanged(&mut self, old: &Value) {
        let conditions = list(&old["status"]["conditions"]);
        let established = conditions
            .filter(|condition| condition["type"] == "Established")
            .any(|condition| condition["status"] == "True");
        let fixed = [("group", None), ("names", Some("plural"))];
        let until_established = [("scope", None), ("names", Some("kind"))];
        for (key, below) in until_established.into_iter().filter(|_| established).chain(fixed) {
            let value = |spec: &Value| below.map_or(&spec[key], |below| &spec[key][below]).clone();
            let (now, before) = (value(self.spec), value(&old["spec"]));
            if now != before {
                let field = match below {
                    Some(below) => format!("spec.{key}.{below}"),
                    None => format!("spec.{key}"),
                };
                self.invalid(field, &now, "field is immutable");
            }
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests;
