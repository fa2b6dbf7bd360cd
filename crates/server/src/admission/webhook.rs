//! Admission webhooks: calls to external servers that mutate or validate objects.
//!
//! River: defaults → **mutating webhooks** → validation → **validating webhooks** → store.
//! Promise: configurations are compiled from the watch cache once per change; without any, a write
//! costs a few atomic loads. A failed call or an invalid response is handled by the failure policy and
//! takes at most the webhook's timeout.

use std::time::Duration;

use futures::future::join_all;
use headwater_api::Status;
use headwater_api::options::FieldValidation;
use headwater_cache::Snapshot;
use headwater_json::path::PathList;
use headwater_json::{Value, json};
use headwater_schema::{defaults, managed, patch, patch::PatchType};
use tokio::time::Instant;

use super::matching::{self, Conditions, Match, Verdict};
use super::request::{AdmissionRequest, Versioned, describe};
use super::{Attempt, OriginalObject};
use crate::admission::subresource::restrict_to_subresource;
use crate::answer::status;
use crate::backend::Backend;
use crate::kinds::registry::Served;
use crate::kinds::versions;
use crate::kinds::versions::to_storage;
use crate::object::{metadata, tree};
use crate::outgoing::WebhookEndpoint;
use crate::request::call::Call;
use crate::request::decode::{self, PatchResult};
use crate::system::metrics::admission::{AdmissionLabels, WebhookOutcome};

pub(super) mod check;
mod review;

use review::Answer;

/// One webhook.
pub(crate) struct Hook {
    name: String,
    matching: Match,
    conditions: Conditions,
    place: Result<WebhookEndpoint, String>,
    /// Whether failures are ignored.
    ignore: bool,
    timeout: Duration,
    /// Whether it is reinvoked after a later change.
    again: bool,
    /// The version of the review that it accepts.
    version: &'static str,
}

impl Hook {
    fn read(hook: &Value) -> Hook {
        let versions = hook["admissionReviewVersions"].as_array().into_iter().flatten();
        let known = |version: &Value| match version.as_str() {
            Some("v1") => Some("v1"),
            Some("v1beta1") => Some("v1beta1"),
            _ => None,
        };
        Hook {
            name: hook["name"].as_str().unwrap_or_default().to_owned(),
            matching: Match::read(hook, "rules", ""),
            conditions: Conditions::read(&hook["matchConditions"], &Conditions::names()),
            place: WebhookEndpoint::read(&hook["clientConfig"]),
            ignore: hook["failurePolicy"] == "Ignore",
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10)),
            again: hook["reinvocationPolicy"] == "IfNeeded",
            version: versions.filter_map(known).next().unwrap_or("v1"),
        }
    }

    /// The webhooks of a snapshot of configurations, in calling order.
    pub(super) fn all(snapshot: &Snapshot) -> Vec<Hook> {
        let configurations =
            snapshot.iter("", None).filter_map(|object| tree(object.as_slice()).ok());
        let webhooks = |configuration: Value| match configuration["webhooks"].as_array() {
            Some(webhooks) => webhooks.iter().map(Hook::read).collect(),
            None => Vec::new(),
        };
        configurations.flat_map(webhooks).collect()
    }

    /// Applies the failure policy to a failed call.
    fn failed(&self, why: &str) -> Result<(), Status> {
        let why = format!("failed calling webhook {:?}: {why}", self.name);
        if self.ignore {
            tracing::warn!("ignored because of failurePolicy Ignore: {why}");
            return Ok(());
        }
        Err(status::internal(why))
    }

    /// The version in which the webhook is called; `None` if it does not match.
    async fn matches(
        &self,
        backend: &Backend,
        labels: AdmissionLabels,
        asked: &AdmissionRequest<'_>,
        [new, old]: [Option<&Value>; 2],
    ) -> Result<Option<std::sync::Arc<Served>>, Status> {
        let found = self.matching.find(asked, &backend.registry(), backend.cache(), [new, old]);
        let Some(kind) = found.map_err(status::internal)? else { return Ok(None) };
        if self.conditions.is_empty() {
            return Ok(Some(kind));
        }
        let seen = Versioned::new(backend, &kind, new, old).await?;
        let request = describe(asked, &seen);
        let (metrics, name) = (&backend.metrics().admission, self.name.as_str());
        let variables = matching::variables(asked, &seen, &request);
        let verdict = loop {
            let verdict = self.conditions.judge(&variables);
            if !asked.checks.answer_open().await {
                break verdict;
            }
        };
        match verdict {
            Verdict::Holds => Ok(Some(kind)),
            Verdict::Fails => {
                metrics.excluded(name, "webhook", labels);
                Ok(None)
            }
            Verdict::Unknown(why) => {
                metrics.unjudged(name, "webhook", labels);
                if self.ignore {
                    return Ok(None);
                }
                let kind = asked.kind;
                Err(status::forbidden(&kind.group, &kind.plural, asked.name, &why))
            }
        }
    }

    /// Calls the webhook. `None` if the call failed and failures are ignored.
    async fn ask(
        &self,
        backend: &Backend,
        labels: AdmissionLabels,
        asked: &AdmissionRequest<'_>,
        seen: &Versioned<'_>,
    ) -> Result<Option<Answer>, Status> {
        let begun = Instant::now();
        let answered = self.call(backend, asked, seen, labels.step == "admit").await;
        let called = match &answered {
            Ok(Answer { refusal: None, .. }) => WebhookOutcome::Allowed,
            Ok(Answer { refusal: Some(refusal), .. }) => {
                WebhookOutcome::Refused(refusal.status(&self.name).code)
            }
            Err(_) if self.ignore => WebhookOutcome::Ignored,
            Err(_) => WebhookOutcome::Failed,
        };
        backend.metrics().admission.webhook(&self.name, labels, called, begun.elapsed());
        match answered {
            Ok(answer) => Ok(Some(answer)),
            Err(why) => self.failed(&why).map(|()| None),
        }
    }

    async fn call(
        &self,
        backend: &Backend,
        asked: &AdmissionRequest<'_>,
        seen: &Versioned<'_>,
        is_mutating: bool,
    ) -> Result<Answer, String> {
        let mut request = describe(asked, seen);
        request["object"] = seen.object.clone();
        request["oldObject"] = seen.old.clone();
        let uid = request["uid"].as_str().unwrap_or_default().to_owned();
        let api_version = format!("admission.k8s.io/{}", self.version);
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": api_version, "request": request,
        });
        let place = self.place.as_ref();
        let place = place.map_err(|why| format!("could not get REST client: {why}"))?;
        let caller = backend.caller();
        let body = headwater_json::to_vec(&review);
        let answered = caller.post(backend.cache(), place, body, self.timeout).await;
        let answered = answered.map_err(|why| format!("failed to call webhook: {why}"))?;
        Answer::read(&answered, &uid, &api_version, is_mutating)
            .map_err(|why| format!("received invalid webhook response: {why}"))
    }
}

impl Hook {
    /// Whether it is reinvoked after later changes.
    pub(super) fn looks_again(&self) -> bool {
        self.again
    }

    /// Mutates the object. Returns `None` if it does not match, else whether the object changed.
    pub(super) async fn mutate(
        &self,
        backend: &Backend,
        asked: &AdmissionRequest<'_>,
        attempt: &mut Attempt<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<bool>, Status> {
        let labels = AdmissionLabels { step: "admit", operation: asked.operation.name() };
        let objects = [Some(&*attempt.new), attempt.old];
        let Some(kind) = self.matches(backend, labels, asked, objects).await? else {
            return Ok(None);
        };
        let mut seen = Versioned::new(backend, &kind, Some(attempt.new), attempt.old).await?;
        let Some(mut answer) = self.ask(backend, labels, asked, &seen).await? else {
            return Ok(Some(false));
        };
        warnings.append(&mut answer.warnings);
        if let Some(refusal) = answer.refusal {
            return Err(refusal.status(&self.name));
        }
        let Some(operations) = answer.patch else { return Ok(Some(false)) };
        let before = std::mem::take(&mut seen.object);
        let mut changed = before.clone();
        patch::json(&mut changed, operations).map_err(status::internal)?;
        if changed == before {
            return Ok(Some(false));
        }
        adopt(attempt, backend, asked.call, &kind, changed).await?;
        Ok(Some(true))
    }
}

/// Replaces the object in admission by a mutated one, converted from the webhook's version.
pub(super) async fn adopt(
    attempt: &mut Attempt<'_>,
    backend: &Backend,
    call: &Call,
    kind: &Served,
    mut changed: Value,
) -> Result<(), Status> {
    managed::unpack(&mut changed);
    let (ignore, no_duplicates) = (FieldValidation::Ignore, PathList::default());
    let result = PatchResult {
        patch_type: PatchType::Json,
        value: changed,
        old: None,
        duplicates: &no_duplicates,
    };
    let mut changed = decode::patched(kind, call, ignore, result)
        .map_err(|error| status::internal(error.message))?;
    to_storage(kind, &mut changed);
    changed = versions::tree(backend.converter(), attempt.kind, changed).await?;
    if !kind.custom {
        defaults::apply(kind.storage(), &mut changed, None);
    }
    if attempt.untouched.is_none() {
        attempt.untouched = Some(OriginalObject::Object(attempt.new.clone()));
    }
    // Webhooks cannot change `managedFields`.
    match attempt.new["metadata"]["managedFields"].take() {
        Value::Null => metadata(&mut changed).remove("managedFields"),
        fields => metadata(&mut changed).insert("managedFields".into(), fields),
    };
    *attempt.new = changed;
    if let Some(old) = attempt.old {
        restrict_to_subresource(attempt.kind, attempt.subresource, attempt.new, old);
    }
    Ok(())
}

/// Calls all validating webhooks concurrently. The first rejection, in their order, is returned.
pub(super) async fn validate(
    hooks: &[Hook],
    backend: &Backend,
    labels: AdmissionLabels,
    asked: &AdmissionRequest<'_>,
    objects: [Option<&Value>; 2],
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    let judge = async |hook: &Hook| -> Result<Vec<String>, Status> {
        let found = hook.matches(backend, labels, asked, objects).await?;
        let Some(kind) = found else { return Ok(Vec::new()) };
        let [new, old] = objects;
        let seen = Versioned::new(backend, &kind, new, old).await?;
        let Some(answer) = hook.ask(backend, labels, asked, &seen).await? else {
            return Ok(Vec::new());
        };
        match answer.refusal {
            Some(refusal) => Err(refusal.status(&hook.name)),
            None => Ok(answer.warnings),
        }
    };
    for verdict in join_all(hooks.iter().map(judge)).await {
        warnings.extend(verdict?);
    }
    Ok(())
}
