//! The check of a definition (S9.2, S9.4): names, versions, schemas, columns, selectable fields.
//!
//! The fields that are named are those the reference names. What all versions have in common it
//! keeps, and names, once: a schema that is the same in all of them is `spec.validation`.

use std::collections::BTreeSet;

use headwater_api::json::{Value, json};
use headwater_api::name;
use headwater_api::status::{FieldError, FieldErrorKind};
use headwater_api::structural::{self, Place};

use super::names::{Approval, is_protected};
use crate::object::meta;
use crate::outgoing;

/// Most selectable fields of a version.
const SELECTABLE_MAX: usize = 8;

/// What is wrong with a definition.
pub(super) fn definition(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
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

/// What is wrong with the status of a definition.
pub(super) fn status(new: &Value) -> Vec<FieldError> {
    let mut check = Check { spec: &new["spec"], errors: Vec::new() };
    check.names("status.acceptedNames", &new["status"]["acceptedNames"]);
    check.errors
}

/// Things to know about a new definition that do not forbid it.
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

    /// Problems of one text, told together.
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

    /// Schemas, subresources, columns and selectable fields: of each version, or of all at once
    /// where they are the same.
    fn schemas(&mut self, versions: &[Value], old: Option<&Value>) {
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
        // What was accepted before stays accepted.
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
        let place = Place { path: &path, has_status: subresources(version) };
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
        let mut seen: Vec<&str> = Vec::new();
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
            if seen.contains(&path) {
                self.errors.push(FieldError::duplicate(at, &path.into()));
            }
            seen.push(path);
        }
        seen.sort_unstable();
        seen.dedup();
        if seen.len() > SELECTABLE_MAX {
            self.errors.push(FieldError {
                kind: FieldErrorKind::TooMany,
                field: at.to_owned(),
                detail: format!("{}: must have at most {SELECTABLE_MAX} items", seen.len()),
            });
        }
    }

    fn conversion(&mut self) {
        let conversion = &self.spec["conversion"];
        let at = "spec.conversion";
        match conversion["strategy"].as_str().unwrap_or_default() {
            _ if conversion.is_null() => {}
            "" => self.require(format!("{at}.strategy"), ""),
            "None" => {
                if !conversion["webhook"].is_null() {
                    let why = "should not be set when strategy is not set to Webhook";
                    let field = format!("{at}.webhookClientConfig");
                    self.errors.push(FieldError::forbidden(field, why));
                }
            }
            "Webhook" => self.webhook(at, &conversion["webhook"]),
            other => {
                let supported = ["None", "Webhook"];
                let field = format!("{at}.strategy");
                self.errors.push(FieldError::not_supported(field, &other.into(), &supported));
            }
        }
    }

    /// The fields are named as the reference names them, which is not as they are written.
    fn webhook(&mut self, at: &str, webhook: &Value) {
        let (config, field) = (&webhook["clientConfig"], format!("{at}.webhookClientConfig"));
        match config.is_null() {
            true => self.require(field, "required when strategy is set to Webhook"),
            false => {
                self.errors.extend(outgoing::check::errors(config, &field));
                if let Err(why) = outgoing::authority(config) {
                    let why = format!("unable to load root certificates: {why}");
                    self.invalid(format!("{field}.caBundle"), &config["caBundle"], why);
                }
            }
        }
        self.review_versions(
            &format!("{at}.conversionReviewVersions"),
            &webhook["conversionReviewVersions"],
        );
    }

    fn review_versions(&mut self, at: &str, versions: &Value) {
        let found: Vec<&str> = list(versions).filter_map(Value::as_str).collect();
        if found.is_empty() {
            return self.require(at, "");
        }
        for (index, version) in found.iter().enumerate() {
            let field = format!("{at}[{index}]");
            if found[..index].contains(version) {
                self.invalid(field, &(*version).into(), "duplicate version");
                continue;
            }
            self.text(field, version, &name::label_1035(version));
        }
        if !found.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
            self.invalid(at, versions, "must include at least one of v1, v1beta1");
        }
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

    /// A version that objects may be stored in cannot go (S9.4).
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

    /// What keys, and objects that exist, are made of.
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

/// The type of the place that a simple path leads to.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {
                            "size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}},
                        }},
                    }}},
                }],
            },
            "status": {"storedVersions": ["v1"]},
        })
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Value), expected: &[&str]) {
        let mut object = good();
        change(&mut object);
        let found: Vec<String> =
            definition(&object, None).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[track_caller]
    fn check_starts(change: impl FnOnce(&mut Value), expected: &str) {
        let mut object = good();
        change(&mut object);
        let found: Vec<String> =
            definition(&object, None).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|text| text.starts_with(expected)), "{found:#?}");
    }

    #[test]
    fn a_good_definition_is_accepted() {
        check(|_| {}, &[]);
    }

    #[test]
    fn names_groups_scopes_and_versions_are_checked() {
        check(
            |d| d["metadata"]["name"] = "x.example.com".into(),
            &[
                "metadata.name: Invalid value: \"x.example.com\": must be spec.names.plural+\".\"+spec.group",
            ],
        );
        check(
            |d| d["spec"]["scope"] = "Galaxy".into(),
            &[
                "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
            ],
        );
        check_starts(
            |d| d["spec"]["versions"][0]["storage"] = false.into(),
            "spec.versions: Invalid value: ",
        );
        check_starts(
            |d| d["spec"]["versions"] = json!([]),
            "spec.versions: Invalid value: []: must have exactly one",
        );
        check_starts(
            |d| {
                let version = d["spec"]["versions"][0].clone();
                d["spec"]["versions"] = json!([version, version]);
            },
            "spec.versions: Invalid value: ",
        );
        check_starts(
            |d| d["spec"]["names"]["kind"] = "My Kind".into(),
            "spec.names.kind: Invalid value: \"My Kind\": may have mixed case, but should otherwise match: a DNS-1035 label",
        );
        check_starts(
            |d| d["spec"]["group"] = "k8s.io".into(),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation",
        );
        check(
            |d| d["spec"]["versions"][0]["schema"] = Value::Null,
            &["spec.versions[0].schema.openAPIV3Schema: Required value"],
        );
    }

    #[test]
    fn a_schema_of_all_versions_is_named_once() {
        let wrong = json!({"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}});
        check(
            |d| d["spec"]["versions"][0]["schema"] = wrong.clone(),
            &[
                "spec.validation.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields",
            ],
        );
        check(
            |d| {
                let mut second = d["spec"]["versions"][0].clone();
                second["name"] = "v2".into();
                second["storage"] = false.into();
                second["schema"] = wrong;
                let first = d["spec"]["versions"][0].clone();
                d["spec"]["versions"] = json!([first, second]);
            },
            &[
                "spec.versions[1].schema.openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields",
            ],
        );
    }

    #[test]
    fn columns_scales_and_selectable_fields_are_checked() {
        let version =
            |d: &mut Value, key: &str, value: Value| d["spec"]["versions"][0][key] = value;
        check(
            |d| {
                version(
                    d,
                    "additionalPrinterColumns",
                    json!([{"name": "A", "type": "text", "jsonPath": "spec"}]),
                )
            },
            &[
                "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
                "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
            ],
        );
        check(
            |d| {
                version(
                    d,
                    "subresources",
                    json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".status.x"}}),
                )
            },
            &[
                "spec.subresources.scale.specReplicasPath: Invalid value: \".status.x\": should be a json path under .spec",
            ],
        );
        check(
            |d| {
                version(
                    d,
                    "selectableFields",
                    json!([{"jsonPath": ".spec.size"}, {"jsonPath": ".spec.list"}, {"jsonPath": ".spec.none"}, {"jsonPath": ".spec.size"}]),
                )
            },
            &[
                "spec.selectableFields[1].jsonPath: Invalid value: \".spec.list\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                "spec.selectableFields[2].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field: none",
                "spec.selectableFields[3].jsonPath: Duplicate value: \".spec.size\"",
            ],
        );
    }

    #[test]
    fn a_conversion_webhook_can_be_called() {
        let with = |webhook: Value| {
            move |d: &mut Value| {
                d["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
            }
        };
        let url = json!({"url": "https://127.0.0.1:9443/convert"});
        check(with(json!({"clientConfig": url, "conversionReviewVersions": ["v2", "v1"]})), &[]);
        check(
            with(Value::Null),
            &[
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
                "spec.conversion.conversionReviewVersions: Required value",
            ],
        );
        check(
            with(
                json!({"clientConfig": {"caBundle": "bm8="}, "conversionReviewVersions": ["v2", "v2"]}),
            ),
            &[
                "spec.conversion.webhookClientConfig: Required value: exactly one of url or service is required",
                "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"bm8=\": unable to load root certificates: unable to parse bytes as PEM block",
                "spec.conversion.conversionReviewVersions[1]: Invalid value: \"v2\": duplicate version",
                "spec.conversion.conversionReviewVersions: Invalid value: [\"v2\",\"v2\"]: must include at least one of v1, v1beta1",
            ],
        );
        check(
            with(json!({"clientConfig": {"url": "http://x"}, "conversionReviewVersions": ["v1"]})),
            &[
                "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ],
        );
        check(
            |d| d["spec"]["conversion"] = json!({"strategy": "None", "webhook": {}}),
            &[
                "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
            ],
        );
    }

    #[test]
    fn what_keys_are_made_of_cannot_change() {
        let mut old = good();
        old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        let mut new = old.clone();
        new["spec"]["scope"] = "Cluster".into();
        new["spec"]["names"]["kind"] = "Gadget".into();
        new["spec"]["group"] = "other.com".into();
        let found = definition(&new, Some(&old));
        let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["spec.scope", "spec.names.kind", "spec.group"]);
    }

    #[test]
    fn a_stored_version_cannot_go() {
        check_starts(
            |d| d["status"]["storedVersions"] = json!(["v0", "v1"]),
            "status.storedVersions[0]: Invalid value: \"v0\": missing from spec.versions; v0 was previously",
        );
    }
}
