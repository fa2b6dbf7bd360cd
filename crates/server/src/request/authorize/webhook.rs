//! Webhook authorization: another program says who may do what (S8.24).
//!
//! River: request → **webhook** → decision. A SubjectAccessReview is sent if every match condition
//! holds. Promise: answers are kept for a while, by the digest of the review; a webhook that fails
//! decides as its failure policy says, and such a decision is not kept.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use headwater_api::selector::{FieldSelector, LabelSelector};
use headwater_cache::Cache;
use headwater_cel::{
    Budget, DeclType, EXPRESSION_COST_MAX, Environment, Program, Value as Cel, Variables,
};
use headwater_json::{Value, json};
use tokio::time::Instant;

use super::{AccessDecision, AccessOpinion, AccessRequest, Attributes};
use crate::front::compare::{SecretDigest, sha256};
use crate::front::identity::Identity;
use crate::lock::lock;
use crate::outgoing::Caller;
use crate::outgoing::upstream::{ReviewKind, ReviewTarget, Upstream};
use crate::system::metrics::Metrics;

/// The maximum number of answers that are kept.
const ANSWERS_MAX: usize = 8192;
/// Answers to longer reviews are not kept: their size is chosen by the client.
const KEPT_REVIEW_MAX: usize = 10_000;
/// How long the upstream of a relay may take for an answer.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(10);
/// The CEL budget of all conditions of one webhook.
const CONDITIONS_COST_MAX: u64 = 2_500_000;

/// The type of `request` in conditions: the spec of a SubjectAccessReview.
static REQUEST: LazyLock<DeclType> = LazyLock::new(|| {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    let selector = |key: &str| {
        let requirement = json!({ "type": "object", "properties": {
            key: text, "operator": text, "values": texts,
        }});
        json!({ "type": "object", "properties": {
            "rawSelector": text, "requirements": { "type": "array", "items": requirement },
        }})
    };
    DeclType::of_plain(&json!({ "type": "object", "properties": {
        "user": text, "uid": text, "groups": texts,
        "extra": { "type": "object", "additionalProperties": texts },
        "resourceAttributes": { "type": "object", "properties": {
            "namespace": text, "verb": text, "group": text, "version": text, "resource": text,
            "subresource": text, "name": text,
            "fieldSelector": selector("key"), "labelSelector": selector("key"),
        }},
        "nonResourceAttributes": { "type": "object", "properties": { "path": text, "verb": text }},
    }}))
});

/// What is concluded if the webhook cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    Deny,
    NoOpinion,
}

/// The version of the reviews that the webhook understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1beta1,
}

/// How a webhook is called.
#[derive(Debug)]
pub(super) struct AuthorizationWebhook {
    pub(super) name: String,
    pub(super) target: ReviewTarget,
    pub(super) version: ReviewVersion,
    pub(super) timeout: Duration,
    pub(super) keep_allowed: Duration,
    pub(super) keep_others: Duration,
    pub(super) on_failure: OnFailure,
    pub(super) conditions: Vec<Program>,
    pub(super) answers: Mutex<HashMap<SecretDigest, KeptReview>>,
}

/// An answer, and until when it is used.
#[derive(Clone, Debug)]
pub(super) struct KeptReview {
    decision: AccessDecision,
    until: Instant,
}

/// Compiles a match condition.
pub(super) fn compile(expression: &str) -> Result<Program, String> {
    let known = Environment::default().with("request", &REQUEST);
    let program = Program::compile(expression, &known).map_err(|error| error.to_string())?;
    match program.result() {
        "bool" => Ok(program),
        other => Err(format!("must evaluate to bool, not {other}")),
    }
}

impl AuthorizationWebhook {
    /// The upstream of a relay, which decides about every request.
    pub(super) fn upstream(upstream: Arc<dyn Upstream>, keep: Duration) -> AuthorizationWebhook {
        AuthorizationWebhook {
            name: "upstream".to_owned(),
            target: ReviewTarget::Upstream(upstream),
            version: ReviewVersion::V1,
            timeout: UPSTREAM_TIMEOUT,
            keep_allowed: keep,
            keep_others: keep,
            on_failure: OnFailure::Deny,
            conditions: Vec::new(),
            answers: Mutex::default(),
        }
    }

    /// The decision of the webhook.
    pub(super) async fn decide(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
        (caller, cache, metrics): (&Caller, &Cache, &Metrics),
    ) -> AccessDecision {
        let spec = review_spec(identity, request);
        match self.concerns(&spec) {
            Ok(true) => {}
            Ok(false) => {
                metrics.authorization_exclusions.with(&[self.name.as_str()]).inc();
                return AccessDecision::new(AccessOpinion::None, "");
            }
            Err(why) => return self.failed(&why, metrics),
        }
        let text = spec.to_string();
        let key = sha256(text.as_bytes());
        let now = Instant::now();
        if let Some(kept) = lock(&self.answers).get(&key).filter(|kept| now < kept.until) {
            return kept.decision.clone();
        }
        let body = self.review(spec).to_string().into_bytes();
        let sent = self.target.send(ReviewKind::SubjectAccess, body, self.timeout, (caller, cache));
        let answer = sent.await;
        let result = if answer.is_ok() { "success" } else { "error" };
        let labels = [self.name.as_str(), result];
        metrics.authorization_webhook_calls.with(&labels).inc();
        metrics.authorization_webhook_time.with(&labels).observe(now.elapsed().as_secs_f64());
        let decision = match answer {
            Ok(answer) => read(&answer["status"]),
            Err(why) => return self.failed(&why, metrics),
        };
        if text.len() < KEPT_REVIEW_MAX {
            self.keep(key, &decision);
        }
        decision
    }

    /// Whether every condition holds. A condition that is false decides before one that fails.
    fn concerns(&self, spec: &Value) -> Result<bool, String> {
        let variables = Variables::default().with_json("request", spec, &REQUEST);
        let mut budget = Budget::new(CONDITIONS_COST_MAX);
        let mut failure = None;
        for condition in &self.conditions {
            match budget.part(EXPRESSION_COST_MAX, |part| condition.run(&variables, part)) {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(_) => failure = Some("a match condition returned no bool".to_owned()),
                Err(error) => failure = Some(format!("a match condition failed: {error}")),
            }
        }
        failure.map_or(Ok(true), Err)
    }

    fn review(&self, mut spec: Value) -> Value {
        let version = match self.version {
            ReviewVersion::V1 => "authorization.k8s.io/v1",
            ReviewVersion::V1beta1 => {
                // The old version has another name for the groups.
                let groups = spec.as_object_mut().and_then(|spec| spec.remove("groups"));
                if let Some(groups) = groups {
                    spec["group"] = groups;
                }
                "authorization.k8s.io/v1beta1"
            }
        };
        json!({
            "apiVersion": version, "kind": "SubjectAccessReview",
            "metadata": { "creationTimestamp": null }, "spec": spec, "status": { "allowed": false },
        })
    }

    fn failed(&self, why: &str, metrics: &Metrics) -> AccessDecision {
        tracing::error!(webhook = self.name, why, "the authorization webhook cannot be asked");
        let opinion = match self.on_failure {
            OnFailure::Deny => AccessOpinion::Denied,
            OnFailure::NoOpinion => {
                metrics.authorization_webhook_open.with(&[self.name.as_str()]).inc();
                AccessOpinion::None
            }
        };
        // Why goes to the log only: it may name hosts that the client does not know.
        let error = format!("the authorization webhook {:?} cannot be asked", self.name);
        AccessDecision { error, ..AccessDecision::new(opinion, "") }
    }

    fn keep(&self, key: SecretDigest, decision: &AccessDecision) {
        let time = match decision.opinion {
            AccessOpinion::Allowed => self.keep_allowed,
            AccessOpinion::Denied | AccessOpinion::None => self.keep_others,
        };
        if time.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut answers = lock(&self.answers);
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, kept| now < kept.until);
        }
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(key, KeptReview { decision: decision.clone(), until: now + time });
    }
}

/// The decision in the status of a review.
fn read(status: &Value) -> AccessDecision {
    let text = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    let (opinion, contradiction) = match (status["denied"] == true, status["allowed"] == true) {
        (true, true) => (
            AccessOpinion::Denied,
            "webhook subject access review returned both allow and deny response",
        ),
        (true, false) => (AccessOpinion::Denied, ""),
        (false, true) => (AccessOpinion::Allowed, ""),
        (false, false) => (AccessOpinion::None, ""),
    };
    let error =
        if contradiction.is_empty() { text("evaluationError") } else { contradiction.to_owned() };
    AccessDecision { error, ..AccessDecision::new(opinion, text("reason")) }
}

/// A question as the spec of a review. What is empty is left out.
fn review_spec(identity: &Identity, request: &AccessRequest<'_>) -> Value {
    let mut spec = json!({ "user": identity.user });
    if !identity.uid.is_empty() {
        spec["uid"] = identity.uid.as_str().into();
    }
    if !identity.groups.is_empty() {
        spec["groups"] = json!(identity.groups);
    }
    if !identity.extra.is_empty() {
        spec["extra"] = json!(identity.extra);
    }
    let filled = |members: &[(&str, &str)]| -> Value {
        let mut object = json!({});
        for (key, value) in members.iter().filter(|(_, value)| !value.is_empty()) {
            object[*key] = (*value).into();
        }
        object
    };
    match request.attributes {
        Attributes::Path { verb, path } => {
            spec["nonResourceAttributes"] = filled(&[("path", path), ("verb", verb)]);
        }
        Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
            let mut attributes = filled(&[
                ("namespace", namespace),
                ("verb", verb),
                ("group", group),
                ("version", request.version),
                ("resource", resource),
                ("subresource", subresource),
                ("name", name),
            ]);
            if let Some(requirements) = field_requirements(request.field_selector) {
                attributes["fieldSelector"] = json!({ "requirements": requirements });
            }
            if let Some(requirements) = label_requirements(request.label_selector) {
                attributes["labelSelector"] = json!({ "requirements": requirements });
            }
            spec["resourceAttributes"] = attributes;
        }
    }
    spec
}

/// The terms of a field selector; `None` if there are none, or it is invalid.
fn field_requirements(selector: &str) -> Option<Vec<Value>> {
    let terms = FieldSelector::written_terms(selector).ok()?;
    let written = terms.iter().map(|term| {
        let operator = if term.equal { "In" } else { "NotIn" };
        json!({ "key": term.label, "operator": operator, "values": [term.value] })
    });
    Some(written.collect::<Vec<Value>>()).filter(|written| !written.is_empty())
}

fn label_requirements(selector: &str) -> Option<Vec<Value>> {
    let selector = LabelSelector::parse(selector).ok()?;
    let written = selector.requirements().iter().filter_map(|requirement| {
        let (operator, values) = requirement.operator()?;
        let values: Vec<&str> = values.iter().map(|value| &**value).collect();
        let mut written = json!({ "key": requirement.key(), "operator": operator });
        if !values.is_empty() {
            written["values"] = json!(values);
        }
        Some(written)
    });
    Some(written.collect::<Vec<Value>>()).filter(|written| !written.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_denies_before_it_allows() {
        let opinion = |status: Value| read(&status).opinion;
        assert_eq!(opinion(json!({ "allowed": true })), AccessOpinion::Allowed);
        assert_eq!(opinion(json!({ "allowed": true, "denied": true })), AccessOpinion::Denied);
        assert_eq!(opinion(json!({ "allowed": false, "denied": true })), AccessOpinion::Denied);
        assert_eq!(opinion(json!({ "allowed": "true" })), AccessOpinion::None);
        assert_eq!(opinion(json!(null)), AccessOpinion::None);
    }

    #[test]
    fn a_question_is_written_with_its_selectors() {
        let identity = Identity::authenticated("jane", vec!["dev".into()]);
        let request = AccessRequest {
            version: "v1",
            field_selector: "spec.nodeName=a\\,b,status.phase!=Failed",
            label_selector: "app in (x,y),!old,n>3",
            ..AccessRequest::about(Attributes::Resource {
                verb: "list",
                group: "",
                resource: "pods",
                subresource: "",
                namespace: "ns",
                name: "",
            })
        };
        let expected = json!({
            "user": "jane", "groups": ["dev", "system:authenticated"],
            "resourceAttributes": {
                "namespace": "ns", "verb": "list", "version": "v1", "resource": "pods",
                "fieldSelector": { "requirements": [
                    { "key": "spec.nodeName", "operator": "In", "values": ["a,b"] },
                    { "key": "status.phase", "operator": "NotIn", "values": ["Failed"] },
                ] },
                "labelSelector": { "requirements": [
                    { "key": "app", "operator": "In", "values": ["x", "y"] },
                    { "key": "old", "operator": "DoesNotExist" },
                ] },
            },
        });
        let mut spec = review_spec(&identity, &request);
        let labels = &mut spec["resourceAttributes"]["labelSelector"]["requirements"];
        labels.as_array_mut().unwrap().sort_by_key(|term| term["key"].to_string());
        assert_eq!(spec, expected);
        let path = AccessRequest::about(Attributes::Path { verb: "get", path: "/metrics" });
        let spec = review_spec(&identity, &path);
        assert_eq!(spec["nonResourceAttributes"], json!({ "path": "/metrics", "verb": "get" }));
        assert!(spec.get("resourceAttributes").is_none());
    }

    #[test]
    fn conditions_are_checked_when_they_are_compiled() {
        assert!(compile("has(request.resourceAttributes)").is_ok());
        assert!(compile("request.resourceAttributes.namespace == 'a'").is_ok());
        assert!(compile("request.user").unwrap_err().contains("bool"));
        assert!(compile("request.resourceAttributes.nonsense == 'a'").is_err());
        assert!(compile("object.metadata").is_err());
    }
}
