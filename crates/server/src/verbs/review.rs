//! Reviews: token reviews and access reviews (S8.5, S8.13, S8.14).
//!
//! River: route → **review** → identity, authorization. The response is the request with a status;
//! nothing is stored.

use bytes::Bytes;
use headwater_api::Status;
use headwater_api::options::WriteOptions;
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
        "selfsubjectaccessreviews" => access(server, &call.identity, &spec).await?,
        "selfsubjectrulesreviews" => rules(server, &call.identity, &spec)?,
        "subjectaccessreviews" => access(server, &subject(&spec)?, &spec).await?,
        "localsubjectaccessreviews" => {
            let namespace = &spec["resourceAttributes"]["namespace"];
            if namespace.as_str() != Some(&resource.namespace) {
                let why = "must match metadata.namespace";
                return Err(status::bad_request(format!(
                    "spec.resourceAttributes.namespace: {why}"
                )));
            }
            access(server, &subject(&spec)?, &spec).await?
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

/// The user of a review.
fn subject(spec: &Value) -> Result<Identity, Status> {
    let text = |key: &str| spec[key].as_str().unwrap_or_default().to_owned();
    let groups = texts(&spec["groups"]);
    if text("user").is_empty() && groups.is_empty() {
        return Err(status::bad_request(
            "spec.user: at least one of user or group must be specified",
        ));
    }
    let extra = spec["extra"].as_object().into_iter().flatten();
    let extra = extra.map(|(key, values)| (key.as_str().to_owned(), texts(values))).collect();
    let (user, uid) = (text("user"), text("uid"));
    Ok(Identity { user, uid, groups, extra, ..Identity::default() })
}

/// A list of strings.
fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

async fn access(server: &Server, identity: &Identity, spec: &Value) -> Result<Value, Status> {
    let empty = Map::new();
    let resource = spec["resourceAttributes"].as_object();
    let path = spec["nonResourceAttributes"].as_object();
    if resource.is_some() == path.is_some() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(status::bad_request(format!("spec: {why}")));
    }
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
    let selector = |key: &str| members.get(key).map(selector).unwrap_or_default();
    let (field_selector, label_selector) = (selector("fieldSelector"), selector("labelSelector"));
    let request = AccessRequest {
        attributes,
        version: text("version"),
        field_selector: &field_selector,
        label_selector: &label_selector,
    };
    let decision = server.access().explain(identity, &request).await;
    let mut status = json!({ "allowed": decision.is_allowed() });
    if decision.opinion == AccessOpinion::Denied {
        status["denied"] = true.into();
    }
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    if !decision.error.is_empty() {
        status["evaluationError"] = decision.error.into();
    }
    Ok(status)
}

/// The selector of a review as a list would have it. A requirement that a list cannot express is left
/// out: that only widens what is asked for.
fn selector(selector: &Value) -> String {
    let is_plain = |text: &&str| !text.contains([',', '=', '!', '\\', '(', ')', ' ']);
    if let Some(raw) = selector["rawSelector"].as_str().filter(|raw| !raw.is_empty()) {
        return raw.to_owned();
    }
    let requirements = selector["requirements"].as_array().into_iter().flatten();
    let written = requirements.filter_map(|requirement| {
        let key = requirement["key"].as_str().filter(is_plain)?;
        // A value with a comma would be read as two terms.
        texts(&requirement["values"]).iter().all(|value| is_plain(&value.as_str())).then_some(())?;
        match (requirement["operator"].as_str()?, texts(&requirement["values"]).as_slice()) {
            ("In", [value]) => Some(format!("{key}={value}")),
            ("NotIn", [value]) => Some(format!("{key}!={value}")),
            ("In", values) => Some(format!("{key} in ({})", values.join(","))),
            ("NotIn", values) => Some(format!("{key} notin ({})", values.join(","))),
            ("Exists", _) => Some(key.to_owned()),
            ("DoesNotExist", _) => Some(format!("!{key}")),
            _ => None,
        }
    });
    written.collect::<Vec<_>>().join(",")
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
