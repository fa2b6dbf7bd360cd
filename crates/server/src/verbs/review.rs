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
use crate::request::authorize::{Attributes, allows};
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
        "selfsubjectaccessreviews" => access(&call.identity, &spec)?,
        "selfsubjectrulesreviews" => rules(&call.identity),
        "subjectaccessreviews" => access(&subject(&spec)?, &spec)?,
        "localsubjectaccessreviews" => {
            let namespace = &spec["resourceAttributes"]["namespace"];
            if namespace.as_str() != Some(&resource.namespace) {
                let why = "must match metadata.namespace";
                return Err(status::bad_request(format!(
                    "spec.resourceAttributes.namespace: {why}"
                )));
            }
            access(&subject(&spec)?, &spec)?
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
    Ok(Identity { user: text("user"), uid: text("uid"), groups, ..Identity::default() })
}

/// A list of strings.
fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn access(identity: &Identity, spec: &Value) -> Result<Value, Status> {
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
    Ok(json!({ "allowed": allows(identity, &attributes) }))
}

/// The permissions of the caller as a list of rules.
fn rules(identity: &Identity) -> Value {
    let everything = Attributes::Resource {
        verb: "*",
        group: "*",
        resource: "*",
        subresource: "",
        namespace: "",
        name: "",
    };
    let (resources, paths) = if allows(identity, &everything) {
        (
            json!([{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }]),
            json!([{ "verbs": ["*"], "nonResourceURLs": ["*"] }]),
        )
    } else {
        (
            json!([{
                "verbs": ["create"], "apiGroups": ["authorization.k8s.io", "authentication.k8s.io"],
                "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"],
            }]),
            json!([{ "verbs": ["get"], "nonResourceURLs": [
                "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*",
                "/readyz", "/version", "/version/",
            ]}]),
        )
    };
    json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": false })
}
