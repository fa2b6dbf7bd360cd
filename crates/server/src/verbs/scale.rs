//! The `scale` subresource: the number of replicas of an object (S2.52).
//!
//! River: route → **scale** → write. The Scale is computed from its object and written through it.

use bytes::Bytes;
use headwater_api::options::{Freshness, GetOptions, WriteOptions};
use headwater_api::selector::StructuredSelector;
use headwater_api::status::{FieldError, invalid};
use headwater_api::{Object, Status};
use headwater_json::{Map, Value, json};
use headwater_schema::decode::{Format, Target};
use headwater_schema::patch::{self, PatchType};
use http::StatusCode;
use http::header;

use crate::admission::manage::Manager;
use crate::answer::body::Response;
use crate::answer::status;
use crate::kinds::versions;
use crate::object::{meta, metadata, tree};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::encode;
use crate::verbs::patch::configuration;
use crate::verbs::read;
use crate::verbs::write::{Mutation, Update, check_name, check_namespace};

/// GET on `scale`.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
) -> Result<Response, Status> {
    let options = GetOptions::parse(&call.query)?;
    let object = read::find(server, resource, options.at).await?;
    let seen = versions::object(server.converter(), &resource.kind, &object).await?;
    Ok(encode::value(call, StatusCode::OK, &of_object(resource, &seen)?))
}

/// PUT or PATCH on `scale`.
pub(crate) async fn write(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: Bytes,
) -> Result<Response, Status> {
    let (how, options) = match call.method.as_str() {
        "PUT" => {
            let target = Target { group: "autoscaling", version: "v1", kind: "Scale" };
            let scale = decode::other(call, target, &body)?;
            (How::Put(scale), WriteOptions::update(&call.query)?)
        }
        _ => match PatchType::parse(call.header(header::CONTENT_TYPE), &resource.kind)? {
            PatchType::Apply => {
                let options = WriteOptions::apply(&call.query)?;
                let manager = Manager::new(server, call, &resource.kind, "scale", &options);
                (How::Apply(configuration(&body)?.value, manager), options)
            }
            kind => {
                let patch = decode::patch(Format::Json, &body)?.value;
                (How::Patch(kind, patch), WriteOptions::patch(&call.query)?)
            }
        },
    };
    let change = Rescale { resource, how };
    // A missing object is 404 before the body is validated.
    read::find(server, resource, Freshness::Latest).await?;
    let written = Update { server, call, resource, options }.run(change).await?;
    let object = written.answer.object()?;
    let seen = versions::converted(&resource.kind, &object)?;
    Ok(encode::value(call, StatusCode::OK, &of_object(resource, &seen)?))
}

struct Rescale<'a> {
    resource: &'a ResourcePath,
    how: How<'a>,
}

enum How<'a> {
    Put(Value),
    Patch(PatchType, Value),
    Apply(Value, Manager<'a>),
}

impl Mutation for Rescale<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let mut scale = match &self.how {
            How::Apply(scale, manager) => return self.applied(current, scale, manager),
            How::Put(scale) => scale.clone(),
            How::Patch(kind, patch) => {
                let mut scale = of(self.resource, current, Missing::IsLeftOut)?;
                match kind {
                    PatchType::Json => patch::json(&mut scale, patch.clone())?,
                    // A Scale has no lists, so a strategic merge is a merge.
                    _ => patch::merge(&mut scale, patch.clone())?,
                }
                scale
            }
        };
        check_name(&self.resource.name, &mut scale)?;
        check_namespace(&self.resource.kind, &self.resource.namespace, &mut scale)?;
        let places = Places::of(self.resource);
        let replicas = match (&scale["spec"]["replicas"], &self.how) {
            (Value::Null, How::Patch(..)) if places.get(current, &places.spec).is_none() => {
                let path = dotted(&places.spec);
                let why = format!("the spec replicas field {path:?} cannot be empty");
                return Err(status::bad_request(why));
            }
            (replicas, _) => replicas.as_i64().unwrap_or(0),
        };
        self.check(replicas)?;
        let mut value = current.clone();
        places.set(&mut value, replicas)?;
        keep_preconditions(&scale, &mut value);
        Ok(value)
    }

    fn is_managed(&self) -> bool {
        matches!(self.how, How::Apply(..))
    }
}

impl Rescale<'_> {
    /// Applies a Scale: writes its number of replicas to the object, and nothing else.
    fn applied(
        &self,
        current: &Value,
        scale: &Value,
        manager: &Manager<'_>,
    ) -> Result<Value, Status> {
        let ResourcePath { kind, name, namespace, .. } = self.resource;
        if scale["apiVersion"] != "autoscaling/v1" || scale["kind"] != "Scale" {
            let why = "the object to apply to a scale must be an autoscaling/v1 Scale";
            return Err(status::bad_request(why));
        }
        let given = meta(scale, "name");
        if !given.is_empty() && given != name {
            return Err(status::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            )));
        }
        let mut config = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind.kind.to_string(),
            "metadata": { "name": name, "namespace": namespace },
        });
        match &scale["spec"]["replicas"] {
            Value::Null => {}
            replicas => {
                let replicas = replicas.as_i64().ok_or_else(|| {
                    status::bad_request(".spec.replicas: expected numeric (int or float)")
                })?;
                self.check(replicas)?;
                Places::of(self.resource).set(&mut config, replicas)?;
            }
        }
        let mut value = manager.apply(Some(current), &config)?;
        keep_preconditions(scale, &mut value);
        Ok(value)
    }

    fn check(&self, replicas: i64) -> Result<(), Status> {
        if replicas >= 0 {
            return Ok(());
        }
        let why = "must be greater than or equal to 0";
        let error = FieldError::invalid("spec.replicas", &replicas.into(), why);
        Err(invalid("autoscaling", "Scale", &self.resource.name, &[error]))
    }
}

/// The version and the uid that a Scale requires; missing ones are taken from the object.
fn keep_preconditions(scale: &Value, value: &mut Value) {
    let metadata = metadata(value);
    for key in ["resourceVersion", "uid"] {
        if !meta(scale, key).is_empty() {
            metadata.insert(key.into(), meta(scale, key).into());
        }
    }
}

fn of_object(resource: &ResourcePath, object: &Object) -> Result<Value, Status> {
    of(resource, &tree(object.as_slice())?, Missing::IsAnError)
}

/// How to handle an object without a number of replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    IsAnError,
    IsLeftOut,
}

/// The paths of the fields of a Scale in an object.
struct Places {
    spec: Vec<String>,
    status: Vec<String>,
    /// The path of the selector as a string; built-in kinds have it as an object.
    selector: Option<Vec<String>>,
}

impl Places {
    fn of(resource: &ResourcePath) -> Places {
        let path =
            |text: &str| text.trim_start_matches('.').split('.').map(str::to_owned).collect();
        match resource.kind.definition.as_ref().and_then(|custom| custom.scale.as_ref()) {
            None => Places {
                spec: path("spec.replicas"),
                status: path("status.replicas"),
                selector: None,
            },
            Some(scale) => Places {
                spec: path(&scale.spec_replicas_path),
                status: path(&scale.status_replicas_path),
                selector: Some(scale.label_selector_path.as_str())
                    .filter(|text| !text.is_empty())
                    .map(path),
            },
        }
    }

    fn get<'a>(&self, object: &'a Value, path: &[String]) -> Option<&'a Value> {
        path.iter().try_fold(object, |value, step| value.get(step)).filter(|value| !value.is_null())
    }

    fn number(&self, object: &Value, path: &[String]) -> Result<Option<i64>, Status> {
        let Some(value) = self.get(object, path) else { return Ok(None) };
        let number = value.as_i64().map(Some);
        number.ok_or_else(|| status::internal(format!("{} is not an integer", dotted(path))))
    }

    fn set(&self, object: &mut Value, replicas: i64) -> Result<(), Status> {
        let mut place = object;
        for step in &self.spec {
            if place.is_null() {
                *place = json!({});
            }
            let members = place.as_object_mut().ok_or_else(|| {
                status::internal(format!("{} is not in an object", dotted(&self.spec)))
            })?;
            place = members.entry(step.clone()).or_insert(Value::Null);
        }
        *place = replicas.into();
        Ok(())
    }
}

fn dotted(path: &[String]) -> String {
    path.iter().map(|step| format!(".{step}")).collect()
}

fn of(resource: &ResourcePath, object: &Value, missing: Missing) -> Result<Value, Status> {
    let places = Places::of(resource);
    let mut metadata = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(key) {
            metadata.insert(key.into(), value.clone());
        }
    }
    let mut spec = json!({});
    match places.number(object, &places.spec)? {
        Some(0) => {}
        Some(replicas) => spec["replicas"] = replicas.into(),
        None if resource.kind.custom && missing == Missing::IsAnError => {
            let path = dotted(&places.spec);
            return Err(status::internal(format!(
                "the spec replicas field {path:?} does not exist"
            )));
        }
        None => {}
    }
    let mut status = json!({ "replicas": places.number(object, &places.status)?.unwrap_or(0) });
    let selector = match &places.selector {
        Some(path) => {
            let text = places.get(object, path).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        }
        None if resource.kind.custom => String::new(),
        None => selector(&object["spec"]["selector"]),
    };
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    Ok(json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }))
}

/// A label selector as a string, as autoscalers read it.
fn selector(selector: &Value) -> String {
    let Some(members) = selector.as_object() else { return String::new() };
    let is_plain =
        !members.contains_key("matchLabels") && !members.contains_key("matchExpressions");
    let read = match is_plain {
        true => StructuredSelector::of_labels(members),
        false => StructuredSelector::of(members),
    };
    read.map_or_else(|_| String::new(), |selector| selector.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_written_as_one_sorted_string() {
        let text = selector(&json!({
            "matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["y", "x"]},
                {"key": "d", "operator": "DoesNotExist"},
            ],
        }));
        assert_eq!(text, "a=1,b=2,c in (x,y),!d");
        assert_eq!(selector(&json!({"app": "web"})), "app=web");
        assert_eq!(selector(&Value::Null), "");
    }
}
