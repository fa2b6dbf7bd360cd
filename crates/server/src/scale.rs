//! `scale`: the number of replicas of anything that has one (S2.52).
//!
//! River: route → **scale** → write. The Scale is computed from its object and written through it.

use bytes::Bytes;
use headwater_api::decode::{Format, Target};
use headwater_api::options::{Freshness, GetOptions, WriteOptions};
use headwater_api::patch::{self, PatchType};
use headwater_api::status::{FieldError, invalid};
use headwater_api::{Object, Status};
use http::StatusCode;
use http::header;
use serde_json::{Map, Value, json};

use crate::body::Response;
use crate::object::{meta, metadata, tree};
use crate::route::Resource;
use crate::server::{Call, Server};
use crate::write::{Change, Update, check_name, check_namespace};
use crate::{decode, encode, read, status};

/// GET on `scale`.
pub(crate) async fn get(
    server: &Server,
    call: &Call,
    resource: &Resource,
) -> Result<Response, Status> {
    let options = GetOptions::parse(&call.query)?;
    let object = read::find(server, resource, options.at).await?;
    Ok(encode::value(call, StatusCode::OK, &of_object(resource, &object)?))
}

/// PUT or PATCH on `scale`.
pub(crate) async fn write(
    server: &Server,
    call: &Call,
    resource: &Resource,
    body: Bytes,
) -> Result<Response, Status> {
    let (change, options) = match call.method.as_str() {
        "PUT" => {
            let target = Target { group: "autoscaling", version: "v1", kind: "Scale" };
            let scale = decode::other(call, target, &body)?;
            (Rescale { resource, how: How::Put(scale) }, WriteOptions::update(&call.query)?)
        }
        _ => {
            let kind = PatchType::parse(call.header(header::CONTENT_TYPE), &resource.kind)?;
            let patch = decode::patch(Format::Json, &body)?;
            (Rescale { resource, how: How::Patch(kind, patch) }, WriteOptions::patch(&call.query)?)
        }
    };
    // A missing object is 404 before anything is said about the body.
    read::find(server, resource, Freshness::Latest).await?;
    let written = Update { server, call, resource, options }.run(change).await?;
    Ok(encode::value(call, StatusCode::OK, &of_object(resource, &written.object)?))
}

struct Rescale<'a> {
    resource: &'a Resource,
    how: How,
}

enum How {
    Put(Value),
    Patch(PatchType, Value),
}

impl Change for Rescale<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let mut scale = match &self.how {
            How::Put(scale) => scale.clone(),
            How::Patch(kind, patch) => {
                let mut scale = of(self.resource, current)?;
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
        let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", &replicas.into(), why);
            return Err(invalid("autoscaling", "Scale", &self.resource.name, &[error]));
        }
        let mut value = current.clone();
        value["spec"]["replicas"] = replicas.into();
        let metadata = metadata(&mut value);
        for key in ["resourceVersion", "uid"] {
            match meta(&scale, key) {
                "" => metadata.remove(key),
                text => metadata.insert(key.to_owned(), text.into()),
            };
        }
        Ok(value)
    }
}

fn of_object(resource: &Resource, object: &Object) -> Result<Value, Status> {
    of(resource, &tree(object.as_slice())?)
}

fn of(resource: &Resource, object: &Value) -> Result<Value, Status> {
    let mut metadata = Map::new();
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(key) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let mut spec = json!({});
    match object["spec"]["replicas"].as_i64() {
        Some(0) => {}
        Some(replicas) => spec["replicas"] = replicas.into(),
        None if resource.kind.custom => {
            let why = "the spec replicas field \".spec.replicas\" does not exist";
            return Err(status::internal(why));
        }
        None => {}
    }
    let mut status = json!({ "replicas": object["status"]["replicas"].as_i64().unwrap_or(0) });
    let selector = selector(&object["spec"]["selector"]);
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

/// A label selector as one string: the form that autoscalers read.
pub(crate) fn selector(selector: &Value) -> String {
    let Some(members) = selector.as_object() else { return String::new() };
    let is_plain =
        !members.contains_key("matchLabels") && !members.contains_key("matchExpressions");
    let labels = if is_plain { Some(members) } else { selector["matchLabels"].as_object() };
    let mut terms: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        terms.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    terms.sort();
    terms.join(",")
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
        assert_eq!(text, "!d,a=1,b=2,c in (x,y)");
        assert_eq!(selector(&json!({"app": "web"})), "app=web");
        assert_eq!(selector(&Value::Null), "");
    }
}
