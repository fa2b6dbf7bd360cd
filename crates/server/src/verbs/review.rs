//! Reviews: token reviews and access reviews (S8.5, S8.13, S8.14).
//!
//! River: route → **review** → identity, authorization. The response is the request with a status;
//! nothing is stored.

mod selector;

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::options::WriteOptions;
use headwater_api::status::{self as api_status, FieldError};
use headwater_json::{Map, Value, json};
use http::StatusCode;

use crate::answer::body::Response;
use crate::answer::status;
use crate::front::identity::Identity;
use crate::request::authorize::rbac::rule::PolicyRule;
use crate::request::authorize::{AccessOpinion, AccessRequest, Attributes};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::encode;
use selector::ReviewedSelectors;

/// POST of a review.
pub(crate) async fn review(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let options = WriteOptions::create(&call.query)?;
    let mut value = decode::body(&resource.kind, call, options.field_validation, body)?;
    let spec = value["spec"].clone();
    value["status"] = match &*resource.kind.plural {
        "selfsubjectreviews" => json!({ "userInfo": user_info(&call.identity) }),
        "tokenreviews" => token(server, &spec).await?,
        "selfsubjectrulesreviews" => rules(server, &call.identity, &spec)?,
        "selfsubjectaccessreviews" => {
            check(resource, &value)?;
            access(server, &call.identity, &spec).await
        }
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            check(resource, &value)?;
            access(server, &subject(&spec), &spec).await
        }
        _ => return Err(status::no_such_resource()),
    };
    Ok(encode::value(call, StatusCode::CREATED, &value))
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({ "username": identity.user, "groups": identity.groups });
    if !identity.uid.is_empty() {
        info["uid"] = identity.uid.clone().into();
    }
    if !identity.extra.is_empty() {
        info["extra"] = json!(identity.extra);
    }
    info
}

async fn token(server: &Server, spec: &Value) -> Result<Value, Status> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(status::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences = texts(&spec["audiences"]);
    Ok(match server.identify_token(token, &audiences).await {
        Ok(known) => json!({
            "authenticated": true,
            "user": user_info(&known.identity),
            "audiences": known.audiences,
        }),
        Err(refused) => json!({ "user": {}, "error": refused.to_string() }),
    })
}

/// Refuses an access review that makes no sense.
fn check(resource: &ResourcePath, review: &Value) -> Result<(), Status> {
    let spec = &review["spec"];
    let (attributes, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut errors = Vec::new();
    let mut invalid = |field: &str, value: &Value, why: &str| {
        errors.push(FieldError::invalid(field, value, why));
    };
    match (attributes.is_object(), path.is_object()) {
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            invalid("spec.nonResourceAttributes", path, why);
        }
        (false, false) => {
            let why =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            invalid("spec.resourceAttributes", &Value::Null, why);
        }
        _ => {}
    }
    let plural = &*resource.kind.plural;
    let is_empty = |key: &str| match &spec[key] {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    if plural != "selfsubjectaccessreviews" && is_empty("user") && is_empty("groups") {
        invalid("spec.user", &"".into(), "at least one of user or group must be specified");
    }
    let is_local = plural == "localsubjectaccessreviews";
    let metadata = review["metadata"].as_object().into_iter().flatten();
    let mut given = metadata.filter(|(key, value)| match key.as_str() {
        "managedFields" | "creationTimestamp" => false,
        "namespace" => !is_local,
        _ => !value.is_null(),
    });
    if given.next().is_some() {
        let why = if is_local { "must be empty except for namespace" } else { "must be empty" };
        invalid("metadata", &review["metadata"], why);
    }
    if is_local {
        let namespace = attributes["namespace"].as_str().unwrap_or_default();
        if attributes.is_object() && namespace != resource.namespace {
            let why = "must match metadata.namespace";
            invalid("spec.resourceAttributes.namespace", &namespace.into(), why);
        }
        if path.is_object() {
            invalid("spec.nonResourceAttributes", path, "disallowed on this kind of request");
        }
    }
    if let Some(attributes) = attributes.as_object() {
        errors.extend(selector::errors(attributes));
    }
    match errors.is_empty() {
        true => Ok(()),
        false => {
            let kind = &resource.kind;
            Err(api_status::invalid(&kind.group, &kind.kind.kind, "", &errors))
        }
    }
}

/// The user of a review.
fn subject(spec: &Value) -> Identity {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let groups = texts(&spec["groups"]);
    let extra = spec["extra"].as_object().into_iter().flatten();
    let extra = extra.map(|(key, values)| (key.as_str().to_owned(), texts(values))).collect();
    let (user, uid) = (text("user"), text("uid"));
    Identity { user, uid, groups, extra, ..Identity::default() }
}

/// A list of strings.
fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

async fn access(server: &Server, identity: &Identity, spec: &Value) -> Value {
    let empty = Map::new();
    let resource = spec["resourceAttributes"].as_object();
    let path = spec["nonResourceAttributes"].as_object();
    let members = resource.or(path).unwrap_or(&empty);
    let text = |key: &str| members.get(key).and_then(Value::as_str).unwrap_or_default();
    let attributes = match path {
        Some(_) => Attributes::Path { verb: text("verb"), path: text("path") },
        None => Attributes::Resource {
            verb: text("verb"),
            group: text("group"),
            resource: text("resource"),
            subresource: text("subresource"),
            namespace: text("namespace"),
            name: text("name"),
        },
    };
    let selectors = resource.map(ReviewedSelectors::of).unwrap_or_default();
    let request = AccessRequest {
        attributes,
        version: Some(text("version")).filter(|version| !version.is_empty()).unwrap_or("*"),
        field_selector: &selectors.field,
        label_selector: &selectors.label,
    };
    let decision = server.access().explain(identity, &request).await;
    let mut status = json!({ "allowed": decision.is_allowed() });
    if decision.opinion == AccessOpinion::Denied {
        status["denied"] = true.into();
    }
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    let error = Some(decision.error.as_str()).filter(|error| !error.is_empty());
    let errors: Vec<&str> = error.into_iter().chain(selectors.ignored).collect();
    if !errors.is_empty() {
        status["evaluationError"] = errors.join("; ").into();
    }
    status
}

/// The rules of the caller in a namespace.
fn rules(server: &Server, identity: &Identity, spec: &Value) -> Result<Value, Status> {
    let namespace = spec["namespace"].as_str().unwrap_or_default();
    if namespace.is_empty() {
        return Err(status::bad_request("no namespace on request"));
    }
    let rules = server.access().rules_of(identity, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in rules.rules {
        if !rule.resources.is_empty() {
            let PolicyRule { verbs, api_groups, resources: of, resource_names, .. } = &rule;
            let mut shown = json!({ "verbs": verbs, "apiGroups": api_groups, "resources": of });
            if !resource_names.is_empty() {
                shown["resourceNames"] = json!(resource_names);
            }
            resources.push(shown);
        }
        if !rule.non_resource_urls.is_empty() {
            let urls = &rule.non_resource_urls;
            paths.push(json!({ "verbs": rule.verbs, "nonResourceURLs": urls }));
        }
    }
    let mut status = json!({
        "resourceRules": resources, "nonResourceRules": paths, "incomplete": rules.is_incomplete,
    });
    if !rules.error.is_empty() {
        status["evaluationError"] = rules.error.into();
    }
    Ok(status)
}
