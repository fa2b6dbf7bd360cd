//! The validation of `metadata`, the same for every kind (S2.5, S2.9, S2.14).

use std::collections::BTreeSet;

use headwater_json::{Map, Value};

use super::{Part, Problems, check, label, label_value, qualified};
use crate::distinct::Distinct;
use crate::kind::Kind;
use crate::status::{FieldError, FieldErrorKind};

/// Most bytes of all annotation keys and values together.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Longest name of a field manager.
const MANAGER_BYTES_MAX: usize = 128;

/// Finalizers without a domain that Kubernetes itself uses.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Groups whose finalizers need no domain: an oversight in Kubernetes that existing objects rely
/// on.
const UNQUALIFIED_FINALIZERS: [&str; 6] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "policy",
];

/// Validates the metadata of an object before its creation; its name is already generated.
pub fn metadata_on_create(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let metadata = Metadata::of(object);
    let mut errors = Vec::new();
    metadata.names(kind, &mut errors);
    metadata.namespace(kind, &mut errors);
    if let Some(generation @ i64::MIN..0) = metadata.0.and_then(|m| m.get("generation")?.as_i64()) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("metadata.generation", &generation.into(), why));
    }
    metadata.common(kind, &mut errors);
    metadata.finalizers_are_valid(&mut errors);
    errors
}

/// Validates the metadata of an object that will replace `old`. The server has already restored the
/// fields that clients cannot write.
pub fn metadata_on_update(kind: &Kind, new: &Value, old: &Value) -> Vec<FieldError> {
    let (metadata, before) = (Metadata::of(new), Metadata::of(old));
    let mut errors = Vec::new();
    if before.0.is_some_and(|m| m.contains_key("deletionTimestamp")) {
        metadata.no_new_finalizers(&before, &mut errors);
    }
    for name in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"] {
        immutable(name, &metadata, &before, &mut errors);
    }
    immutable("deletionGracePeriodSeconds", &metadata, &before, &mut errors);
    metadata.common(kind, &mut errors);
    metadata.finalizers_are_valid(&mut errors);
    errors
}

/// The checks that create and update share: those that do not depend on the old object.
pub fn metadata_alike(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    Metadata::of(object).common(kind, &mut errors);
    errors
}

/// The errors in the name of a finalizer.
pub fn finalizer(name: &str, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    invalid_each(&mut errors, field, name, qualified(name));
    errors.extend(no_domain(name, field));
    errors
}

/// Whether the name of a finalizer has no domain, and is none of those that Kubernetes uses.
pub fn without_domain(name: &str) -> bool {
    !name.contains('/') && !STANDARD_FINALIZERS.contains(&name)
}

fn no_domain(name: &str, field: &str) -> Option<FieldError> {
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    without_domain(name).then(|| FieldError::invalid(field, &name.into(), why))
}

/// The maximum number of errors about owners that are not the only controller.
const EXTRA_CONTROLLERS_MAX: usize = 8;

/// Merges repeated owner references (S2.9) and returns the warning to send.
pub fn fold_owner_references(object: &mut Value) -> Option<String> {
    let owners = object.get_mut("metadata")?.get_mut("ownerReferences")?.as_array_mut()?;
    let mut kept = Distinct::default();
    let mut repeated: Vec<String> = Vec::new();
    for owner in owners.drain(..) {
        let uid = owner.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !kept.insert(owner) {
            repeated.push(uid);
        }
    }
    *owners = kept.into_vec();
    if repeated.is_empty() {
        return None;
    }
    Some(format!(
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    ))
}

fn immutable(name: &str, new: &Metadata<'_>, old: &Metadata<'_>, errors: &mut Vec<FieldError>) {
    let value = |metadata: &Metadata<'_>| metadata.0.and_then(|m| m.get(name)).cloned();
    let (now, before) = (value(new), value(old));
    if now != before {
        let shown = now.unwrap_or(Value::Null);
        errors.push(FieldError::invalid(at(name), &shown, "field is immutable"));
    }
}

fn at(name: &str) -> String {
    format!("metadata.{name}")
}

struct Metadata<'a>(Option<&'a Map>);

impl<'a> Metadata<'a> {
    fn of(object: &'a Value) -> Metadata<'a> {
        Metadata(object.get("metadata").and_then(Value::as_object))
    }

    fn text(&self, name: &str) -> &'a str {
        self.0.and_then(|m| m.get(name)?.as_str()).unwrap_or_default()
    }

    fn list(&self, name: &str) -> &'a [Value] {
        self.0.and_then(|m| m.get(name)?.as_array()).map(Vec::as_slice).unwrap_or_default()
    }

    fn texts(&self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let map = self.0.and_then(|m| m.get(name)?.as_object());
        map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or("")))
    }

    fn names(&self, kind: &Kind, errors: &mut Vec<FieldError>) {
        let prefix = self.text("generateName");
        if !prefix.is_empty() {
            let problems = check(kind.names, prefix, Part::Prefix);
            invalid_each(errors, "metadata.generateName", prefix, problems);
        }
        match self.text("name") {
            "" => errors
                .push(FieldError::required("metadata.name", "name or generateName is required")),
            name => {
                invalid_each(errors, "metadata.name", name, check(kind.names, name, Part::Whole));
            }
        }
    }

    fn namespace(&self, kind: &Kind, errors: &mut Vec<FieldError>) {
        match (kind.namespaced, self.text("namespace")) {
            (true, "") => errors.push(FieldError::required("metadata.namespace", "")),
            (true, name) => invalid_each(errors, "metadata.namespace", name, label(name)),
            (false, "") => {}
            (false, _) => {
                errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"))
            }
        }
    }

    /// The checks that create and update share.
    fn common(&self, kind: &Kind, errors: &mut Vec<FieldError>) {
        self.labels(errors);
        self.annotations(errors);
        self.owners(errors);
        self.managers(errors);
        if !kind.custom && !UNQUALIFIED_FINALIZERS.contains(&kind.group.as_ref()) {
            self.finalizers_have_domains(errors);
        }
    }

    fn labels(&self, errors: &mut Vec<FieldError>) {
        for (key, value) in self.texts("labels") {
            invalid_each(errors, "metadata.labels", key, qualified(key));
            invalid_each(errors, "metadata.labels", value, label_value(value));
        }
    }

    fn annotations(&self, errors: &mut Vec<FieldError>) {
        let mut bytes = 0;
        for (key, value) in self.texts("annotations") {
            // Annotation keys are not case-sensitive.
            let problems = qualified(&key.to_ascii_lowercase());
            invalid_each(errors, "metadata.annotations", key, problems);
            bytes += key.len() + value.len();
        }
        if bytes > ANNOTATIONS_BYTES_MAX {
            errors.push(too_long("metadata.annotations", ANNOTATIONS_BYTES_MAX));
        }
    }

    fn owners(&self, errors: &mut Vec<FieldError>) {
        let field = "metadata.ownerReferences";
        let owners = self.list("ownerReferences");
        let mut controller: Option<String> = None;
        let mut extra_controllers = 0;
        for owner in owners {
            let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
            let version = text("apiVersion");
            let why = "must not be empty";
            // More than one slash names no version either.
            let is_none = version.is_empty() || version.ends_with('/');
            if is_none || version.matches('/').count() > 1 {
                let why = "version must not be empty";
                errors.push(FieldError::invalid(
                    format!("{field}.apiVersion"),
                    &version.into(),
                    why,
                ));
            }
            for name in ["kind", "name", "uid"] {
                if text(name).is_empty() {
                    errors.push(FieldError::invalid(format!("{field}.{name}"), &"".into(), why));
                }
            }
            if (version, text("kind")) == ("v1", "Event") {
                let why = "/v1, Kind=Event is disallowed from being an owner";
                errors.push(FieldError::invalid(field, owner, why));
            }
            if owner.get("controller") == Some(&Value::Bool(true)) {
                let name = format!("{}/{}", text("kind"), text("name"));
                match &controller {
                    None => controller = Some(name),
                    // Each error contains the list.
                    Some(_) if extra_controllers == EXTRA_CONTROLLERS_MAX => {}
                    Some(first) => {
                        extra_controllers += 1;
                        let why = format!(
                            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                        );
                        let all = Value::Array(owners.to_vec());
                        errors.push(FieldError::invalid(field, &all, why));
                    }
                }
            }
        }
    }

    fn finalizers(&self) -> impl Iterator<Item = &'a str> {
        self.list("finalizers").iter().map(|value| value.as_str().unwrap_or_default())
    }

    fn finalizers_are_valid(&self, errors: &mut Vec<FieldError>) {
        let field = "metadata.finalizers";
        for finalizer in self.finalizers() {
            invalid_each(errors, field, finalizer, qualified(finalizer));
        }
        let has = |name: &str| self.finalizers().any(|finalizer| finalizer == name);
        if has("orphan") && has("foregroundDeletion") {
            let all = Value::Array(self.list("finalizers").to_vec());
            let why = "finalizer orphan and foregroundDeletion cannot be both set";
            errors.push(FieldError::invalid(field, &all, why));
        }
    }

    fn finalizers_have_domains(&self, errors: &mut Vec<FieldError>) {
        for (index, finalizer) in self.finalizers().enumerate() {
            errors.extend(no_domain(finalizer, &format!("metadata.finalizers[{index}]")));
        }
    }

    fn no_new_finalizers(&self, old: &Metadata<'_>, errors: &mut Vec<FieldError>) {
        let before: BTreeSet<&str> = old.finalizers().collect();
        let new: BTreeSet<&str> = self.finalizers().filter(|name| !before.contains(name)).collect();
        if !new.is_empty() {
            let names: Vec<String> = new.iter().map(|name| format!("{name:?}")).collect();
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                &format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    names.join(", ")
                ),
            ));
        }
    }

    fn managers(&self, errors: &mut Vec<FieldError>) {
        for (index, entry) in self.list("managedFields").iter().enumerate() {
            let field = |name: &str| format!("metadata.managedFields[{index}].{name}");
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let operation = text("operation");
            if !matches!(operation, "Apply" | "Update") {
                let why = "must be `Apply` or `Update`";
                errors.push(FieldError::invalid(field("operation"), &operation.into(), why));
            }
            let fields_type = text("fieldsType");
            if !matches!(fields_type, "" | "FieldsV1") {
                let why = "must be `FieldsV1`";
                errors.push(FieldError::invalid(field("fieldsType"), &fields_type.into(), why));
            }
            if text("manager").len() > MANAGER_BYTES_MAX {
                errors.push(too_long(&field("manager"), MANAGER_BYTES_MAX));
            }
        }
    }
}

fn invalid_each(errors: &mut Vec<FieldError>, field: &str, value: &str, problems: Problems) {
    for problem in problems {
        errors.push(FieldError::invalid(field, &value.into(), problem));
    }
}

fn too_long(field: &str, bytes_max: usize) -> FieldError {
    FieldError {
        kind: FieldErrorKind::TooLong,
        field: field.to_owned(),
        detail: format!("may not be more than {bytes_max} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn config_map() -> Kind {
        let mut kinds = crate::kind::builtin().into_iter();
        kinds.find(|kind| kind.kind == "ConfigMap").unwrap()
    }

    #[track_caller]
    fn check_create(metadata: &Value, expected: &[&str]) {
        let mut object = json!({"metadata": {"name": "a", "namespace": "n"}});
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        let errors = metadata_on_create(&config_map(), &object);
        let texts: Vec<String> = errors.iter().map(FieldError::to_string).collect();
        assert_eq!(texts.len(), expected.len(), "{texts:?}");
        for (text, start) in texts.iter().zip(expected) {
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn invalid_metadata_has_the_messages_of_kubernetes() {
        check_create(&json!({}), &[]);
        check_create(
            &json!({"name": "Bad_Name"}),
            &[
                "metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        );
        check_create(
            &json!({"name": ""}),
            &["metadata.name: Required value: name or generateName is required"],
        );
        check_create(
            &json!({"generateName": "A_b-"}),
            &["metadata.generateName: Invalid value: \"A_b-\":"],
        );
        check_create(&json!({"namespace": ""}), &["metadata.namespace: Required value"]);
        check_create(
            &json!({"generation": -1}),
            &["metadata.generation: Invalid value: -1: must be greater than or equal to 0"],
        );
        check_create(
            &json!({"labels": {"a b": "-"}}),
            &[
                "metadata.labels: Invalid value: \"a b\": name part",
                "metadata.labels: Invalid value: \"-\": a valid label",
            ],
        );
        check_create(&json!({"annotations": {"UPPER": "x"}}), &[]);
        check_create(
            &json!({"annotations": {"a": "x".repeat(256 * 1024)}}),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        );
        check_create(
            &json!({"finalizers": ["x"]}),
            &["metadata.finalizers[0]: Invalid value: \"x\": name is neither"],
        );
        check_create(&json!({"finalizers": ["orphan", "a.b/c"]}), &[]);
        check_create(
            &json!({"finalizers": ["orphan", "foregroundDeletion"]}),
            &[
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion",
            ],
        );
        check_create(
            &json!({"ownerReferences": [{}]}),
            &[
                "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name",
                "metadata.ownerReferences.uid",
            ],
        );
    }

    #[test]
    fn only_one_owner_controls() {
        let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u", "controller": true});
        let errors = metadata_on_create(
            &config_map(),
            &json!({"metadata": {"name": "a", "namespace": "n", "ownerReferences": [owner("x"), owner("y")]}}),
        );
        assert_eq!(errors.len(), 1);
        assert!(errors[0].detail.ends_with("Found \"true\" in references for Pod/x and Pod/y"));
    }

    #[test]
    fn equal_owners_are_merged_with_a_warning() {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"});
        let mut object = json!({"metadata": {"ownerReferences": [owner, owner]}});
        let warning = fold_owner_references(&mut object).unwrap();
        assert!(warning.ends_with("duplicate UID(s) observed: u"), "{warning}");
        assert_eq!(object, json!({"metadata": {"ownerReferences": [owner]}}));
        assert_eq!(fold_owner_references(&mut object), None);
    }

    #[test]
    fn no_finalizer_can_be_added_to_a_deleting_object() {
        let old =
            json!({"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a/b"]}});
        let new = json!({"metadata": {"name": "a", "deletionTimestamp": "t", "finalizers": ["a/b", "c/d"]}});
        let errors = metadata_on_update(&config_map(), &new, &old);
        assert_eq!(
            errors[0].to_string(),
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"c/d\"}"
        );
    }

    #[test]
    fn uid_and_deletion_marks_cannot_be_changed() {
        let old = json!({"metadata": {"name": "a", "uid": "u"}});
        let new = json!({"metadata": {"name": "a", "uid": "v", "deletionTimestamp": "t"}});
        let errors = metadata_on_update(&config_map(), &new, &old);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["metadata.uid", "metadata.deletionTimestamp"]);
    }

    /// B137: with a comparison of each pair of owners, this test does not end.
    #[test]
    fn fifty_thousand_owners_take_linear_time() {
        let owner = |n: usize| {
            let name = format!("o{n}");
            json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true})
        };
        let owners: Vec<Value> = (0..50_000).map(owner).collect();
        let mut object = json!({"metadata": {"ownerReferences": owners}});
        assert_eq!(fold_owner_references(&mut object), None);
        let mut errors = Vec::new();
        Metadata::of(&object).owners(&mut errors);
        assert_eq!(errors.len(), EXTRA_CONTROLLERS_MAX);
    }
}
