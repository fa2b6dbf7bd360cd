//! POST on `serviceaccounts/token`: issues a token of the account (S2.55).
//!
//! River: route → **token request** → issuer → response. Nothing is stored.

use bytes::Bytes;
use headwater_api::clock::rfc3339;
use headwater_api::options::Freshness;
use headwater_api::status::{Details, FieldError, invalid};
use headwater_api::{Object, Status};
use headwater_json::{Value, json};
use headwater_schema::decode::Target;
use http::StatusCode;

use crate::admission::node_restriction;
use crate::answer::body::Response;
use crate::answer::status;
use crate::front::service_account::ISSUER;
use crate::front::service_account::accounts::user_name;
use crate::front::service_account::claims::{Bound, Claims, Reference};
use crate::object::{meta, metadata, tree};
use crate::random;
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::encode;
use crate::verbs::read;
use crate::verbs::write::seconds_from;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";

/// The default lifetime of a token, in seconds.
const EXPIRATION_DEFAULT: i64 = 3600;
const EXPIRATION_MIN: i64 = 600;
const EXPIRATION_MAX: i64 = 1 << 32;

/// Issues a token.
pub(crate) async fn request(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let target = Target { group: GROUP, version: "v1", kind: KIND };
    let mut asked = decode::other(call, target, body)?;
    check_place(resource, &asked)?;
    let place = (resource.namespace.as_str(), resource.name.as_str());
    node_restriction::check_token_request(server, &call.identity, place, &asked["spec"]).await?;
    let account = read::find(server, resource, Freshness::Latest).await?;
    fill_in(&mut asked, &account, server)?;
    check(&asked["spec"])?;
    let bound = bound(server, resource, &account, &asked["spec"]["boundObjectRef"]).await?;
    let seconds = asked["spec"]["expirationSeconds"].as_i64().unwrap_or(EXPIRATION_DEFAULT);
    let id = random::id().to_string();
    let token = sign(server, bound, &asked["spec"]["audiences"], (seconds, &id))?;
    if let Some(trail) = &call.trail {
        trail.annotate("authentication.kubernetes.io/issued-credential-id", &format!("JTI={id}"));
    }
    asked["status"] = json!({
        "token": token,
        "expirationTimestamp": rfc3339(seconds_from(server.now(), seconds)),
    });
    Ok(encode::value(call, StatusCode::CREATED, &asked))
}

/// Checks that the account of the body is the account of the path.
fn check_place(resource: &ResourcePath, asked: &Value) -> Result<(), Status> {
    for (key, place, what) in
        [("name", &resource.name, "name"), ("namespace", &resource.namespace, "namespace")]
    {
        let given = meta(asked, key);
        if !given.is_empty() && given != place {
            let why = format!("must match the service account {what} if specified");
            let error = FieldError::invalid(format!("metadata.{key}"), &given.into(), why);
            return Err(invalid(GROUP, KIND, &resource.name, &[error]));
        }
    }
    Ok(())
}

/// Sets the defaults of a request.
fn fill_in(asked: &mut Value, account: &Object, server: &Server) -> Result<(), Status> {
    let uid = meta(asked, "uid");
    if !uid.is_empty() && uid != account.uid() {
        let actual = account.uid();
        let why = format!(
            "the UID in the token request ({uid}) does not match the UID of the service account ({actual})"
        );
        return Err(conflict(GROUP, KIND, account.name(), &why));
    }
    let metadata = metadata(asked);
    metadata.insert("name".into(), account.name().into());
    metadata.insert("namespace".into(), account.namespace().into());
    metadata.insert("uid".into(), account.uid().into());
    metadata.insert("creationTimestamp".into(), rfc3339(server.now()).into());
    let spec = &mut asked["spec"];
    if spec["audiences"].as_array().is_none_or(Vec::is_empty) {
        spec["audiences"] = json!([ISSUER]);
    }
    if spec["expirationSeconds"].is_null() {
        spec["expirationSeconds"] = EXPIRATION_DEFAULT.into();
    }
    // The type requires the key even if it is empty.
    spec.as_object_mut().map(|spec| spec.entry("boundObjectRef").or_insert(Value::Null));
    Ok(())
}

fn check(spec: &Value) -> Result<(), Status> {
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(EXPIRATION_DEFAULT);
    let why = match seconds {
        ..EXPIRATION_MIN => "may not specify a duration less than 10 minutes",
        EXPIRATION_MIN..=EXPIRATION_MAX => return Ok(()),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let error = FieldError::invalid("spec.expirationSeconds", &seconds.into(), why);
    Err(invalid(GROUP, KIND, "", &[error]))
}

/// The objects that the token is bound to: the account, and the requested object.
async fn bound(
    server: &Server,
    resource: &ResourcePath,
    account: &Object,
    wanted: &Value,
) -> Result<Bound, Status> {
    let mut bound = Bound {
        namespace: account.namespace().to_owned(),
        serviceaccount: reference(account),
        ..Bound::default()
    };
    if wanted.is_null() {
        return Ok(bound);
    }
    let text = |key: &str| wanted[key].as_str().unwrap_or_default();
    let (kind, name) = (text("kind"), text("name"));
    let look = |plural: &'static str| find(server, resource, plural, name);
    let object = match (kind, text("apiVersion").contains('/')) {
        ("Pod", false) => {
            let pod = look("pods").await?;
            bound.node = pod_node(server, resource, &pod, account.name()).await?;
            bound.pod.insert(reference(&pod))
        }
        ("Secret", false) => bound.secret.insert(reference(&*look("secrets").await?)),
        ("Node", false) => bound.node.insert(reference(&*look("nodes").await?)),
        _ => {
            let what = format!("{}, Kind={kind}", text("apiVersion"));
            return Err(status::bad_request(format!("cannot bind token to object of type {what}")));
        }
    };
    let uid = text("uid");
    if !uid.is_empty() && uid != object.uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(conflict("", kind, name, &why));
    }
    Ok(bound)
}

/// An object of a core kind, in the namespace of the account if the kind has namespaces.
async fn find(
    server: &Server,
    resource: &ResourcePath,
    plural: &str,
    name: &str,
) -> Result<std::sync::Arc<Object>, Status> {
    let registry = server.registry();
    let kind = registry.find("", "v1", plural).ok_or_else(status::no_such_resource)?;
    let namespace = if kind.namespaced { resource.namespace.clone() } else { String::new() };
    let place = ResourcePath {
        kind: kind.clone(),
        namespace,
        name: name.to_owned(),
        subresource: String::new(),
        legacy_watch: false,
    };
    read::find(server, &place, Freshness::Latest).await
}

/// The node of a pod that runs as this account. A missing node is bound by name only.
async fn pod_node(
    server: &Server,
    resource: &ResourcePath,
    pod: &Object,
    account: &str,
) -> Result<Option<Reference>, Status> {
    let value = tree(pod.as_slice())?;
    let text = |key: &str| value["spec"][key].as_str().unwrap_or_default();
    if text("serviceAccountName") != account {
        return Err(status::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    let name = text("nodeName");
    if name.is_empty() {
        return Ok(None);
    }
    Ok(Some(match find(server, resource, "nodes", name).await {
        Ok(node) => reference(&node),
        Err(_) => Reference { name: name.to_owned(), uid: String::new() },
    }))
}

fn reference(object: &Object) -> Reference {
    Reference { name: object.name().to_owned(), uid: object.uid().to_owned() }
}

fn sign(
    server: &Server,
    bound: Bound,
    audiences: &Value,
    (seconds, id): (i64, &str),
) -> Result<String, Status> {
    let now = server.now().as_second();
    let audiences = audiences.as_array().into_iter().flatten();
    let claims = Claims {
        aud: audiences.filter_map(|audience| audience.as_str().map(str::to_owned)).collect(),
        exp: now.saturating_add(seconds),
        iat: now,
        iss: ISSUER.to_owned(),
        jti: id.to_owned(),
        sub: user_name(&bound.namespace, &bound.serviceaccount.name),
        kubernetes: bound,
        nbf: now,
    };
    let token = server.service_accounts().issuer.sign(&claims);
    token.ok_or_else(|| status::internal("failed to generate token"))
}

fn conflict(group: &str, kind: &str, name: &str, why: &str) -> Status {
    let full = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
    let message = format!("Operation cannot be fulfilled on {full} \"{name}\": {why}");
    Status::failure(409, "Conflict", message).with_details(Details {
        name: name.into(),
        group: group.into(),
        kind: kind.into(),
        ..Details::default()
    })
}
