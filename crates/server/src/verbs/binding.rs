//! Binding and eviction of pods (S2.53, S2.54).
//!
//! River: route → **binding** → write. Both respond with a Status; neither is stored.

use bytes::Bytes;
use headwater_api::clock::rfc3339;
use headwater_api::options::{DeleteOptions, Freshness, WriteOptions};
use headwater_api::selector::StructuredSelector;
use headwater_api::status::{Cause, Details};
use headwater_api::{Object, Status};
use headwater_cache::Cache;
use headwater_json::{Value, json};
use headwater_schema::decode::Target;
use http::StatusCode;

use crate::admission::{node_restriction, topology};
use crate::answer::body::Response;
use crate::answer::status;
use crate::object::{is_deleting, meta, metadata, tree};
use crate::request::call::Call;
use crate::request::decode;
use crate::request::route::ResourcePath;
use crate::server::Server;
use crate::verbs::delete;
use crate::verbs::encode;
use crate::verbs::read;
use crate::verbs::write::{Mutation, Update};

/// POST on `pods/binding`, or on `bindings`.
pub(crate) async fn bind(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let target = Target { group: "", version: "v1", kind: "Binding" };
    let binding = decode::other(call, target, body)?;
    let name = match resource.name.as_str() {
        "" => meta(&binding, "name"),
        name => name,
    };
    let pods = pods(server, resource, name, "binding")?;
    check(&binding, name)?;
    let options = WriteOptions::create(&call.query)?;
    let now = rfc3339(server.now());
    let change = Bind { cache: server.cache(), binding: &binding, name, now };
    Update { server, call, resource: &pods, options }.run(change).await?;
    Ok(created(call))
}

/// The pod of a request.
fn pods(
    server: &Server,
    resource: &ResourcePath,
    name: &str,
    subresource: &str,
) -> Result<ResourcePath, Status> {
    let registry = server.registry();
    let kind = registry.find("", "v1", "pods").ok_or_else(status::no_such_resource)?;
    Ok(ResourcePath {
        kind: kind.clone(),
        namespace: resource.namespace.clone(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
        legacy_watch: false,
    })
}

fn check(binding: &Value, name: &str) -> Result<(), Status> {
    let given = meta(binding, "name");
    if !given.is_empty() && given != name {
        return Err(status::bad_request("name in URL does not match name in Binding object"));
    }
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "Node") {
        return Err(status::bad_request("the target of a binding must be a Node"));
    }
    if binding["target"]["name"].as_str().unwrap_or_default().is_empty() {
        return Err(status::bad_request("target.name: Required value"));
    }
    Ok(())
}

struct Bind<'a> {
    cache: &'a Cache,
    binding: &'a Value,
    name: &'a str,
    now: String,
}

impl Mutation for Bind<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let name = self.name;
        let refuse = |why: String| {
            let message =
                format!("Operation cannot be fulfilled on pods/binding \"{name}\": {why}");
            let details =
                Details { name: name.into(), kind: "pods/binding".into(), ..Details::default() };
            Status::failure(409, "Conflict", message).with_details(details)
        };
        if is_deleting(current) {
            return Err(refuse(format!(
                "pod {name} is being deleted, cannot be assigned to a host"
            )));
        }
        let node = current["spec"]["nodeName"].as_str().unwrap_or_default();
        if !node.is_empty() {
            return Err(refuse(format!("pod {name} is already assigned to node \"{node}\"")));
        }
        let mut value = current.clone();
        value["spec"]["nodeName"] = self.binding["target"]["name"].clone();
        for key in ["annotations", "labels"] {
            if let Some(added) = self.binding["metadata"][key].as_object() {
                let kept = metadata(&mut value).entry(key).or_insert_with(|| json!({}));
                kept.as_object_mut().into_iter().for_each(|kept| kept.extend(added.clone()));
            }
        }
        topology::label(self.cache, &mut value)?;
        self.mark_scheduled(&mut value);
        Ok(value)
    }
}

impl Bind<'_> {
    fn mark_scheduled(&self, pod: &mut Value) {
        let condition = json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null,
            "lastTransitionTime": self.now,
        });
        let mut conditions: Vec<Value> =
            pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|other| other["type"] != "PodScheduled");
        conditions.push(condition);
        pod["status"]["conditions"] = conditions.into();
    }
}

fn created(call: &Call) -> Response {
    encode::success(call, StatusCode::CREATED, &Status::success(201, None))
}

/// POST on `pods/eviction`: a delete, if the disruption budgets allow it.
pub(crate) async fn evict(
    server: &Server,
    call: &Call,
    resource: &ResourcePath,
    body: &Bytes,
) -> Result<Response, Status> {
    let target = Target { group: "policy", version: "v1", kind: "Eviction" };
    let eviction = decode::other(call, target, body)?;
    let pods = pods(server, resource, &resource.name, "")?;
    let options = match &eviction["deleteOptions"] {
        Value::Null => DeleteOptions::default(),
        options => DeleteOptions::from_body(options, "v1")?,
    };
    let pod = read::find(server, &pods, Freshness::Latest).await?;
    node_restriction::check_eviction(&call.identity, &pod)?;
    if needs_budget(&pod)? {
        spend_budget(server, call, &pod, options.dry_run).await?;
    }
    delete::run(server, &pods, options).await?;
    Ok(created(call))
}

/// Whether an eviction needs a disruption budget: only a running pod that is not deleted does.
fn needs_budget(pod: &Object) -> Result<bool, Status> {
    let value = tree(pod.as_slice())?;
    let phase = value["status"]["phase"].as_str().unwrap_or_default();
    Ok(!matches!(phase, "Succeeded" | "Failed" | "Pending" | "") && !is_deleting(&value))
}

/// Subtracts one disruption from the budget of the pod, if it has one.
async fn spend_budget(
    server: &Server,
    call: &Call,
    pod: &Object,
    dry_run: bool,
) -> Result<(), Status> {
    let registry = server.registry();
    let Some(kind) = registry.find("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
    let snapshot = server.cache().snapshot(&server.cache().resource(&kind.prefix));
    let mut budgets = Vec::new();
    for budget in snapshot.iter(pod.namespace(), None) {
        if selects(&tree(budget.as_slice())?["spec"]["selector"], pod) {
            budgets.push(budget.name().to_owned());
        }
    }
    let name = match budgets.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        _ => {
            let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(status::internal(why));
        }
    };
    let resource = ResourcePath {
        kind: kind.clone(),
        namespace: pod.namespace().to_owned(),
        name: name.clone(),
        subresource: "status".into(),
        legacy_watch: false,
    };
    let options = WriteOptions { dry_run, ..WriteOptions::default() };
    let change = Spend { budget: &name, pod: pod.name(), now: rfc3339(server.now()) };
    Update { server, call, resource: &resource, options }.run(change).await?;
    Ok(())
}

struct Spend<'a> {
    budget: &'a str,
    pod: &'a str,
    now: String,
}

impl Mutation for Spend<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, Status> {
        let allowed = current["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        if allowed <= 0 {
            return Err(self.refusal(current));
        }
        let mut value = current.clone();
        value["status"]["disruptionsAllowed"] = (allowed - 1).into();
        value["status"]["disruptedPods"][self.pod] = self.now.clone().into();
        Ok(value)
    }
}

impl Spend<'_> {
    fn refusal(&self, budget: &Value) -> Status {
        let number = |key: &str| budget["status"][key].as_i64().unwrap_or(0);
        let cause = Cause {
            reason: "DisruptionBudget".into(),
            message: format!(
                "The disruption budget {} needs {} healthy pods and has {} currently",
                self.budget,
                number("desiredHealthy"),
                number("currentHealthy")
            ),
            field: String::new(),
        };
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        Status::failure(429, "TooManyRequests", message)
            .with_details(Details { causes: vec![cause], ..Details::default() })
    }
}

/// Whether the selector of a spec selects an object. An empty one selects all.
fn selects(selector: &Value, object: &Object) -> bool {
    let Some(members) = selector.as_object() else { return false };
    StructuredSelector::of(members).is_ok_and(|selector| selector.selector().matches_object(object))
}
