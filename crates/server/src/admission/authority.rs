//! The CEL variable `authorizer`: authorization checks for the user of a request.
//!
//! River: CEL expression → **authorize** → decision, by the same rules as for requests.
//! An expression cannot wait for a webhook: a question that only a webhook can answer stays open, its
//! answer is fetched, and the expression is evaluated once more.

use std::fmt;
use std::sync::{Arc, Mutex};

use headwater_cel::{Access, AccessedResource, Authority, Decision, Value as Cel};

use super::request::AdmissionRequest;
use crate::front::identity::Identity;
use crate::front::service_account;
use crate::lock::lock;
use crate::request::authorize::{AccessControl, AccessDecision, AccessRequest, Attributes};

/// A question of an expression: about the user of the request or a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question {
    account: Option<(String, String)>,
    access: Access,
}

/// The questions of the expressions that are evaluated for one request.
pub(crate) struct UserChecks {
    access: Arc<AccessControl>,
    identity: Arc<Identity>,
    answers: Mutex<Vec<(Question, Decision)>>,
    open: Mutex<Option<Question>>,
}

impl fmt::Debug for UserChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UserChecks").field(&self.identity).finish()
    }
}

impl UserChecks {
    /// No questions yet.
    pub(super) fn new(access: &Arc<AccessControl>, identity: &Arc<Identity>) -> Arc<UserChecks> {
        Arc::new(UserChecks {
            access: Arc::clone(access),
            identity: Arc::clone(identity),
            answers: Mutex::default(),
            open: Mutex::default(),
        })
    }

    /// Whether a question may have to wait for a webhook.
    pub(super) fn may_wait(&self) -> bool {
        self.access.has_webhooks()
    }

    /// Answers the question at which the last evaluation stopped. False if there is none: then the
    /// evaluation is complete. The cost limit of expressions bounds the number of questions.
    pub(super) async fn answer_open(&self) -> bool {
        let Some(question) = lock(&self.open).take() else { return false };
        let account = question.account();
        let identity = account.as_ref().unwrap_or(&self.identity);
        let decided = self.access.explain(identity, &asked(&question.access)).await;
        lock(&self.answers).push((question, shown(decided)));
        true
    }
}

impl Question {
    fn account(&self) -> Option<Identity> {
        let account = self.account.as_ref();
        account.map(|(namespace, name)| service_account::account(namespace, name))
    }
}

/// The `authorizer` of the admitted request.
pub(super) fn authorizer<'a>(asked: &AdmissionRequest<'_>) -> Cel<'a> {
    let request = AccessedResource {
        group: asked.kind.group.to_string(),
        resource: asked.kind.plural.to_string(),
        subresource: asked.subresource.to_owned(),
        namespace: asked.namespace.to_owned(),
        name: asked.name.to_owned(),
        ..AccessedResource::default()
    };
    let checks = Arc::clone(asked.checks);
    Cel::authorizer(checks, request)
}

impl Authority for UserChecks {
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision {
        let account = account.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let question = Question { account, access: access.clone() };
        let known = lock(&self.answers);
        if let Some((_, decision)) = known.iter().find(|(asked, _)| *asked == question) {
            return decision.clone();
        }
        let account = question.account();
        let identity = account.as_ref().unwrap_or(&self.identity);
        if let Some(decided) = self.access.explain_now(identity, &asked(access)) {
            return shown(decided);
        }
        *lock(&self.open) = Some(question);
        let error = Some("the authorization webhook was not asked yet".to_owned());
        Decision { allowed: false, reason: String::new(), error }
    }
}

/// The question of an expression as authorizers read it.
fn asked(access: &Access) -> AccessRequest<'_> {
    match access {
        Access::Path { path, verb } => AccessRequest::about(Attributes::Path { verb, path }),
        Access::Resource { resource, verb } => AccessRequest {
            field_selector: &resource.field_selector,
            label_selector: &resource.label_selector,
            ..AccessRequest::about(Attributes::Resource {
                verb,
                group: &resource.group,
                resource: &resource.resource,
                subresource: &resource.subresource,
                namespace: &resource.namespace,
                name: &resource.name,
            })
        },
    }
}

fn shown(decided: AccessDecision) -> Decision {
    let error = Some(decided.error.clone()).filter(|error| !error.is_empty());
    Decision { allowed: decided.is_allowed(), reason: decided.reason, error }
}
