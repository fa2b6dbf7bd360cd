//! Embedded resources: objects inside an object, with a type and metadata of their own (S9.10).

use headwater_json::{Map, Value, json};

use headwater_api::kind::{Kind, NameRule};
use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_json::path::Path;

/// Adds the errors in the type and metadata of an embedded resource.
pub(super) fn resource(members: &Map, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let field = |name: &str| Path::Field(path, name).to_string();
    for name in ["apiVersion", "kind"] {
        match members.get(name) {
            None => errors.push(FieldError::required(field(name), "")),
            Some(Value::String(text)) if text.is_empty() => {
                let error = FieldError::invalid(field(name), &"".into(), "must not be empty");
                errors.push(error);
            }
            Some(Value::String(text)) if name == "kind" => {
                let problems = name::label_1035(&text.to_lowercase());
                if !problems.is_empty() {
                    let why = format!(
                        "may have mixed case, but should otherwise match: {}",
                        problems.join(",")
                    );
                    errors.push(FieldError::invalid(field(name), &text.as_str().into(), why));
                }
            }
            Some(Value::String(text)) => {
                if text.matches('/').count() > 1 {
                    let why = format!("unexpected GroupVersion string: {text}");
                    errors.push(FieldError::invalid(field(name), &text.as_str().into(), why));
                }
            }
            Some(other) => {
                errors.push(FieldError::invalid(field(name), other, "must be a string"));
            }
        }
    }
    if let Some(metadata) = members.get("metadata") {
        errors.extend(check_metadata(metadata, &field("metadata")));
    }
}

/// Validates embedded metadata, which may lack a name.
fn check_metadata(metadata: &Value, place: &str) -> Vec<FieldError> {
    if let Err(why) = crate::decode::metadata(&mut metadata.clone()) {
        return vec![FieldError::invalid(place, metadata, why)];
    }
    let mut object = json!({ "metadata": metadata });
    let text = |key: &str| metadata[key].as_str().unwrap_or_default();
    if text("name").is_empty() {
        object["metadata"]["name"] = "name".into();
    }
    let kind = Kind {
        names: NameRule::PathSegment,
        namespaced: !text("namespace").is_empty(),
        custom: true,
        ..Kind::default()
    };
    let mut errors = name::metadata_on_create(&kind, &object);
    for error in &mut errors {
        if let Some(rest) = error.field.strip_prefix("metadata") {
            error.field = format!("{place}{rest}");
        }
    }
    errors
}
