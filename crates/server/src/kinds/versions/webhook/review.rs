//! ConversionReview: the request to a conversion webhook and the validation of its response.
//!
//! Promise: the result has as many objects as the request, in the same order and in the requested
//! version; a webhook can change only labels and annotations of their metadata.

use headwater_api::name;
use headwater_api::status::FieldError;
use headwater_json::{Map, Value};

/// Why a conversion failed, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Call,
    Malformed,
    Partial,
    Invalid,
}

impl Trouble {
    pub(super) fn label(self) -> &'static str {
        match self {
            Trouble::Call => "conversion_webhook_call_failure",
            Trouble::Malformed => "conversion_webhook_malformed_response_failure",
            Trouble::Partial => "conversion_webhook_partial_response_failure",
            Trouble::Invalid => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// Why a conversion failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) trouble: Trouble,
    /// The text after "conversion webhook for …".
    pub(super) why: String,
}

impl Failure {
    pub(super) fn call(why: &str) -> Failure {
        Failure { trouble: Trouble::Call, why: format!("failed: {why}") }
    }

    fn malformed(why: &str) -> Failure {
        Failure { trouble: Trouble::Malformed, why: format!("failed: {why}") }
    }
}

/// A conversion request.
pub(super) struct Question<'a> {
    pub(super) uid: &'a str,
    /// `v1` or `v1beta1`.
    pub(super) review: &'static str,
    /// The requested version.
    pub(super) to: &'a str,
    pub(super) kind: &'a str,
}

impl Question<'_> {
    /// The review of these objects, which are JSON.
    pub(super) fn text(&self, objects: &[Vec<u8>]) -> Vec<u8> {
        let Question { uid, review, to, .. } = self;
        let mut text = format!(
            "{{\"kind\":\"ConversionReview\",\"apiVersion\":\"apiextensions.k8s.io/{review}\",\
             \"request\":{{\"uid\":\"{uid}\",\"desiredAPIVersion\":\"{to}\",\"objects\":["
        )
        .into_bytes();
        text.reserve(objects.iter().map(|object| object.len() + 1).sum::<usize>() + 3);
        text.extend_from_slice(&objects.join(&b','));
        text.extend_from_slice(b"]}}");
        text
    }

    /// The objects of a response, each with the metadata of its original.
    pub(super) fn read(
        &self,
        mut review: Value,
        originals: &[Value],
    ) -> Result<Vec<Value>, Failure> {
        self.check(&review)?;
        let converted = match review["response"]["convertedObjects"].take() {
            Value::Array(converted) => converted,
            _ => Vec::new(),
        };
        if converted.len() != originals.len() {
            let why = format!("returned {} objects, expected {}", converted.len(), originals.len());
            return Err(Failure { trouble: Trouble::Partial, why });
        }
        let places = originals.iter().zip(converted).enumerate();
        let is_one = originals.len() == 1;
        places
            .map(|(index, (original, converted))| {
                let accepted = self.accept(original, converted);
                accepted.map_err(|wrong| wrong.at(index, is_one))
            })
            .collect()
    }

    /// Checks the type and uid of the response. Kubernetes does not check these in v1beta1.
    fn check(&self, review: &Value) -> Result<(), Failure> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let response = &review["response"];
        if self.review == "v1" {
            let (version, kind) = (text(&review["apiVersion"]), text(&review["kind"]));
            if version != "apiextensions.k8s.io/v1" || kind != "ConversionReview" {
                return Err(Failure::malformed(&format!(
                    "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {version}, Kind={kind}"
                )));
            }
        }
        if !response.is_object() {
            return Err(Failure::malformed("no response provided"));
        }
        let uid = text(&response["uid"]);
        if self.review == "v1" && uid != self.uid {
            let why = format!("expected response.uid={:?}, got {uid:?}", self.uid);
            return Err(Failure::malformed(&why));
        }
        let result = &response["result"];
        match (text(&result["status"]).as_str(), text(&result["message"]).as_str()) {
            ("Success", _) => Ok(()),
            (status, "") => {
                let why = format!("response.result.status was '{status}', not 'Success'");
                Err(Failure::malformed(&why))
            }
            (_, message) => Err(Failure::malformed(message)),
        }
    }

    fn accept(&self, original: &Value, mut converted: Value) -> Result<Value, Wrong> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&converted["apiVersion"]), text(&converted["kind"]));
        if version != self.to {
            let expected = self.to;
            return Err(Wrong::Type(format!(
                "invalid groupVersion (expected {expected}, received {version})"
            )));
        }
        if kind != self.kind {
            let expected = self.kind;
            return Err(Wrong::Type(format!(
                "invalid kind (expected {expected}, received {kind})"
            )));
        }
        for (key, what) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
            let [before, after] =
                [original, &converted].map(|object| text(&object["metadata"][key]));
            if before != after {
                let why = format!("must have the same {what}: {before} != {after}");
                return Err(Wrong::Object(why));
            }
        }
        let metadata = restored(&original["metadata"], &mut converted["metadata"]);
        converted["metadata"] = metadata.map_err(Wrong::Metadata)?;
        Ok(converted)
    }
}

/// An error in one object.
enum Wrong {
    Type(String),
    Object(String),
    Metadata(String),
}

impl Wrong {
    /// Kubernetes' text, which differs for a single object and an item of a list.
    fn at(self, index: usize, is_one: bool) -> Failure {
        let why = match (self, is_one) {
            (Wrong::Type(why), true) => format!("returned invalid object at index 0: {why}"),
            (Wrong::Object(why), true) => format!("returned invalid object: {why}"),
            (Wrong::Metadata(why), true) => format!("returned invalid metadata: {why}"),
            (Wrong::Metadata(why), false) => {
                format!("returned invalid metadata in object at index {index}: {why}")
            }
            (Wrong::Type(why) | Wrong::Object(why), false) => {
                format!("returned invalid converted object at index {index}: {why}")
            }
        };
        Failure { trouble: Trouble::Invalid, why }
    }
}

/// The metadata of the original with the labels and annotations of the converted object.
fn restored(original: &Value, converted: &mut Value) -> Result<Value, String> {
    if !converted.is_object() {
        return Err(match converted {
            Value::Null => "missing metadata in converted object".to_owned(),
            other => format!("invalid metadata of type {} in converted object", type_of(other)),
        });
    }
    let mut metadata = original.as_object().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let before = metadata.remove(field);
        match converted[field].take() {
            Value::Null => {}
            Value::Object(texts) => {
                check_texts(field, &texts)?;
                if before.as_ref().and_then(Value::as_object) != Some(&texts) {
                    check_keys(field, &texts)?;
                }
                metadata.insert(field.into(), Value::Object(texts));
            }
            other => {
                let found = type_of(&other);
                return Err(format!(
                    "invalid metadata.{field} of type {found} in converted object"
                ));
            }
        }
    }
    Ok(Value::Object(metadata))
}

fn check_texts(field: &str, texts: &Map) -> Result<(), String> {
    match texts.iter().find(|(_, value)| !value.is_string()) {
        None => Ok(()),
        Some((key, value)) => Err(format!(
            "metadata.{field}[{key}] must be a string, but is {} in converted object",
            type_of(value)
        )),
    }
}

/// Validates labels and annotations that a webhook changed.
fn check_keys(field: &str, texts: &Map) -> Result<(), String> {
    let mut errors = Vec::new();
    for (key, value) in texts {
        let value = value.as_str().unwrap_or_default();
        let of_key = name::qualified(&key.to_lowercase());
        let of_value = if field == "labels" { name::label_value(value) } else { Vec::new() };
        let of_key = if field == "labels" { name::qualified(key) } else { of_key };
        for (text, problems) in [(key.as_str(), of_key), (value, of_value)] {
            errors.extend(problems.into_iter().map(|why| {
                FieldError::invalid(format!("metadata.{field}"), &text.into(), why).to_string()
            }));
        }
    }
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// Go's name for the type of a JSON value.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "`json!` rows read best by value")]
mod tests {
    use headwater_json::json;

    use super::*;

    const QUESTION: Question<'_> = Question { uid: "u", review: "v1", to: "g/v2", kind: "Widget" };

    fn original() -> Value {
        json!({
            "apiVersion": "g/v1", "kind": "Widget", "spec": {"a": 1},
            "metadata": {"name": "n", "uid": "1", "labels": {"a": "b"}, "finalizers": ["x/y"]},
        })
    }

    fn answer(objects: Value) -> Value {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": objects},
        })
    }

    fn converted(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = original();
        object["apiVersion"] = "g/v2".into();
        change(&mut object);
        answer(json!([object]))
    }

    #[track_caller]
    fn fails(review: Value, expected: &str) {
        let failure = QUESTION.read(review, &[original()]).unwrap_err();
        assert_eq!(failure.why, expected);
    }

    #[test]
    fn a_review_carries_its_objects_as_they_are() {
        let text = QUESTION.text(&[b"{\"a\":1}".to_vec(), b"{}".to_vec()]);
        let review: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            review,
            json!({
                "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
                "request": {"uid": "u", "desiredAPIVersion": "g/v2", "objects": [{"a": 1}, {}]},
            })
        );
    }

    #[test]
    fn labels_and_annotations_are_the_webhooks_and_nothing_else_of_the_metadata() {
        let review = converted(|object| {
            object["spec"] = json!({"b": 1});
            object["metadata"]["labels"] = json!({"c": "d"});
            object["metadata"]["annotations"] = json!({"Big/Key": "any text"});
            object["metadata"]["finalizers"] = json!([]);
        });
        let made = QUESTION.read(review, &[original()]).unwrap();
        assert_eq!(
            made[0],
            json!({
                "apiVersion": "g/v2", "kind": "Widget", "spec": {"b": 1},
                "metadata": {
                    "name": "n", "uid": "1", "finalizers": ["x/y"],
                    "labels": {"c": "d"}, "annotations": {"Big/Key": "any text"},
                },
            })
        );
    }

    #[test]
    fn answers_to_something_else_are_none() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut review = converted(|_| {});
            change(&mut review);
            review
        };
        fails(
            with(&|review| review["kind"] = "AdmissionReview".into()),
            "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1, Kind=AdmissionReview",
        );
        fails(
            with(&|review| review["response"]["uid"] = "w".into()),
            "failed: expected response.uid=\"u\", got \"w\"",
        );
        fails(with(&|review| review["response"] = Value::Null), "failed: no response provided");
        fails(
            with(&|review| review["response"]["result"] = json!({"status": "Failure"})),
            "failed: response.result.status was 'Failure', not 'Success'",
        );
        fails(
            with(&|review| review["response"]["result"]["status"] = "".into()),
            "failed: response.result.status was '', not 'Success'",
        );
        let failed = json!({"status": "Failure", "message": "no idea"});
        fails(with(&|review| review["response"]["result"] = failed.clone()), "failed: no idea");
        fails(answer(json!([])), "returned 0 objects, expected 1");
        fails(answer(json!([{}, {}])), "returned 2 objects, expected 1");
    }

    #[test]
    fn objects_that_became_others_are_refused() {
        fails(
            converted(|object| object["apiVersion"] = "g/v1".into()),
            "returned invalid object at index 0: invalid groupVersion (expected g/v2, received g/v1)",
        );
        fails(
            converted(|object| object["kind"] = "Gadget".into()),
            "returned invalid object at index 0: invalid kind (expected Widget, received Gadget)",
        );
        fails(
            converted(|object| object["metadata"]["name"] = "m".into()),
            "returned invalid object: must have the same name: n != m",
        );
        fails(
            converted(|object| object["metadata"]["uid"] = "2".into()),
            "returned invalid object: must have the same UID: 1 != 2",
        );
        fails(
            converted(|object| object["metadata"]["namespace"] = "x".into()),
            "returned invalid object: must have the same namespace:  != x",
        );
        fails(
            converted(|object| object["metadata"]["labels"] = json!({"a": 1})),
            "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
        );
        fails(
            converted(|object| object["metadata"]["labels"] = json!([])),
            "returned invalid metadata: invalid metadata.labels of type []interface {} in converted object",
        );
        let failure = QUESTION.read(
            converted(|object| object["metadata"]["labels"] = json!({"a b": "c"})),
            &[original()],
        );
        assert!(failure.unwrap_err().why.contains("metadata.labels: Invalid value: \"a b\""));
    }

    #[test]
    fn the_first_review_version_needs_no_uid() {
        let question = Question { review: "v1beta1", ..QUESTION };
        let mut review = converted(|_| {});
        review["response"].as_object_mut().unwrap().remove("uid");
        review["apiVersion"] = Value::Null;
        question.read(review, &[original()]).unwrap();
    }
}
