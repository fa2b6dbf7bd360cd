//! Validation of one version of a definition: schema, scale, columns and selectable fields.

use std::collections::HashSet;

use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_json::Value;
use headwater_schema::structural::{self, SchemaLocation};

use super::{Check, list};

/// The maximum number of selectable fields of a version.
const SELECTABLE_MAX: usize = 8;

impl Check<'_> {
    /// Validates schemas, subresources, columns and selectable fields: per version, or once where all
    /// versions have the same.
    pub(super) fn schemas(&mut self, versions: &[Value], old: Option<&Value>) {
        let shared =
            |key: &str| versions.windows(2).all(|pair| pair[0].get(key) == pair[1].get(key));
        let place = |key: &str, index: usize, own: &str, common: &str| match (shared(key), index) {
            (true, 0) => Some(common.to_owned()),
            (true, _) => None,
            (false, index) => Some(format!("spec.versions[{index}].{own}")),
        };
        for (index, version) in versions.iter().enumerate() {
            if let Some(at) = place("schema", index, "schema", "spec.validation") {
                self.schema(&at, index, version, old);
            }
            if let Some(at) = place("subresources", index, "subresources", "spec.subresources") {
                self.scale(&at, &version["subresources"]["scale"]);
            }
            let columns = "additionalPrinterColumns";
            if let Some(at) = place(columns, index, columns, "spec.additionalPrinterColumns") {
                for (index, column) in list(&version[columns]).enumerate() {
                    self.column(&format!("{at}[{index}]"), column);
                }
            }
            if let Some(at) =
                place("selectableFields", index, "selectableFields", "spec.selectableFields")
            {
                self.selectable(&at, version);
            }
        }
    }

    fn schema(&mut self, at: &str, index: usize, version: &Value, old: Option<&Value>) {
        let schema = &version["schema"]["openAPIV3Schema"];
        if schema.is_null() {
            return self.require(format!("spec.versions[{index}].schema.openAPIV3Schema"), "");
        }
        // Values that were accepted before stay valid.
        let before = old.and_then(|old| {
            list(&old["spec"]["versions"]).find(|old| old["name"] == version["name"])
        });
        let subresources = |version: &Value| !version["subresources"]["status"].is_null();
        if before.is_some_and(|before| {
            before["schema"] == version["schema"] && subresources(before) == subresources(version)
        }) {
            return;
        }
        let path = format!("{at}.openAPIV3Schema");
        let place = SchemaLocation { path: &path, has_status: subresources(version) };
        self.errors.extend(structural::check(schema, place));
    }

    fn scale(&mut self, at: &str, scale: &Value) {
        if scale.is_null() {
            return;
        }
        for (key, roots) in [
            ("specReplicasPath", &[".spec."][..]),
            ("statusReplicasPath", &[".status."]),
            ("labelSelectorPath", &[".spec.", ".status."]),
        ] {
            let field = format!("{at}.scale.{key}");
            let path = scale[key].as_str().unwrap_or_default();
            let is_optional = key == "labelSelectorPath";
            if path.is_empty() {
                if !is_optional {
                    self.require(field, "");
                }
            } else if !path.starts_with('.') {
                self.invalid(field, &path.into(), "must be a simple json path starting with .");
            } else if !roots.iter().any(|root| path.starts_with(root)) {
                let root = match key {
                    "specReplicasPath" => ".spec",
                    "statusReplicasPath" => ".status",
                    _ => "either .spec or .status",
                };
                self.invalid(field, &path.into(), format!("should be a json path under {root}"));
            }
        }
    }

    fn column(&mut self, at: &str, column: &Value) {
        const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
        const FORMATS: [&str; 8] =
            ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
        let text = |key: &str| column[key].as_str().unwrap_or_default();
        if text("name").is_empty() {
            self.require(format!("{at}.name"), "");
        }
        let why = format!("must be one of {}", TYPES.join(","));
        match text("type") {
            "" => self.require(format!("{at}.type"), &why),
            kind if TYPES.contains(&kind) => {}
            other => self.invalid(format!("{at}.type"), &other.into(), &why),
        }
        if !text("format").is_empty() && !FORMATS.contains(&text("format")) {
            let why = format!("must be one of {}", FORMATS.join(","));
            self.invalid(format!("{at}.format"), &text("format").into(), why);
        }
        match text("jsonPath") {
            "" => self.require(format!("{at}.JSONPath"), ""),
            path if path.starts_with('.') => {}
            path => {
                let why = "must be a simple json path starting with .";
                self.invalid(format!("{at}.JSONPath"), &path.into(), why);
            }
        }
    }

    fn selectable(&mut self, at: &str, version: &Value) {
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, field) in list(&version["selectableFields"]).enumerate() {
            let at = format!("{at}[{index}].jsonPath");
            let path = field["jsonPath"].as_str().unwrap_or_default();
            if path.is_empty() {
                self.require(at, "");
                continue;
            }
            match leaf(&version["schema"]["openAPIV3Schema"], path) {
                Err(why) => {
                    let why = format!("is an invalid path: {why}");
                    self.invalid(at, &path.into(), why);
                    continue;
                }
                Ok(_) if path.starts_with(".metadata") => {
                    self.invalid(&at, &path.into(), "must not point to fields in metadata");
                }
                Ok("string" | "boolean" | "integer") => {}
                Ok(_) => {
                    let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
                    self.invalid(&at, &path.into(), why);
                }
            }
            if !seen.insert(path) {
                self.errors.push(FieldError::duplicate(at, &path.into()));
            }
        }
        if seen.len() > SELECTABLE_MAX {
            self.errors.push(FieldError {
                kind: FieldErrorKind::TooMany,
                field: at.to_owned(),
                detail: format!("{}: must have at most {SELECTABLE_MAX} items", seen.len()),
            });
        }
    }
}

/// The schema type at a simple path.
fn leaf<'a>(schema: &'a Value, path: &str) -> Result<&'a str, String> {
    let Some(steps) = path.strip_prefix('.') else {
        return Err("expected a path starting with a dot".to_owned());
    };
    let mut place = schema;
    for step in steps.split('.') {
        if step.is_empty() || step.contains(['[', ']', '\'', '"', ' ', '*', '?', '(', ')', '@']) {
            return Err(format!("unexpected step {step:?}"));
        }
        let below = &place["properties"][step];
        let below = if below.is_null() { &place["additionalProperties"] } else { below };
        if !below.is_object() {
            return Err(format!("does not refer to a valid field: {step}"));
        }
        place = below;
    }
    Ok(place["type"].as_str().unwrap_or_default())
}
