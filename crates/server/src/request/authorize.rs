//! Authorization: whether a user may send a request.
//!
//! River: route → **authorize** → handler; before the body is read (R48). Requests, reviews,
//! impersonation, admission and CEL expressions all ask `AccessControl`. Members of `system:masters`
//! may do everything; then the configured authorizers are asked in order, and the first that has an
//! opinion decides (S8.9, S8.10, S8.24).

pub mod configuration;
pub mod file;
mod followed;
pub(crate) mod node;
mod question;
pub(crate) mod rbac;
mod webhook;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use headwater_api::Status;
use headwater_cache::Cache;

use crate::answer::status;
use crate::front::identity::{Identity, MASTERS};
use crate::outgoing::Caller;
use crate::outgoing::upstream::Upstream;
use crate::system::metrics::Metrics;
use configuration::{AuthorizationConfiguration, InvalidAuthorization};
use node::NodeAuthorizer;
pub(crate) use question::{AccessDecision, AccessOpinion, AccessRequest, Attributes};
use rbac::Rbac;
use rbac::rule::PolicyRule;
use webhook::AuthorizationWebhook;

/// The rules of a user, as far as the authorizers can list them.
pub(crate) struct ListedRules {
    pub(crate) rules: Vec<PolicyRule>,
    /// Whether an authorizer may allow more.
    pub(crate) is_incomplete: bool,
    pub(crate) error: String,
}

/// Whether the caller shows the reason of a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    Shown,
    Unused,
}

/// One authorizer.
#[derive(Debug)]
enum Authorizer {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook(Box<AuthorizationWebhook>),
}

/// The authorizers in force, in order. Cheap to clone; all clones see a reload.
#[derive(Clone, Debug)]
pub struct Authorization {
    authorizers: Arc<ArcSwap<Vec<Authorizer>>>,
    /// Whether members of `system:masters` are allowed everything without asking.
    spares_masters: bool,
}

impl Default for Authorization {
    /// Nodes, then roles.
    fn default() -> Authorization {
        let authorizers = vec![Authorizer::Node, Authorizer::Rbac];
        let authorizers = Arc::new(ArcSwap::from_pointee(authorizers));
        Authorization { authorizers, spares_masters: true }
    }
}

impl Authorization {
    /// The authorizers of a configuration.
    pub fn new(
        configuration: AuthorizationConfiguration,
    ) -> Result<Authorization, InvalidAuthorization> {
        let authorization = Authorization::default();
        authorization.replace(configuration)?;
        Ok(authorization)
    }

    /// The upstream of a relay decides about everyone, administrators included. Its answers are kept for
    /// a time.
    pub fn upstream(upstream: Arc<dyn Upstream>, keep: Duration) -> Authorization {
        let webhook = AuthorizationWebhook::upstream(upstream, keep);
        let authorizers = vec![Authorizer::Webhook(Box::new(webhook))];
        Authorization {
            authorizers: Arc::new(ArcSwap::from_pointee(authorizers)),
            spares_masters: false,
        }
    }

    fn replace(&self, new: AuthorizationConfiguration) -> Result<(), InvalidAuthorization> {
        self.authorizers.store(Arc::new(new.authorizers()?));
        Ok(())
    }
}

/// What authorizers decide with.
pub(crate) struct AccessControl {
    authorization: Authorization,
    rbac: Rbac,
    nodes: NodeAuthorizer,
    cache: Cache,
    caller: Arc<Caller>,
    metrics: Metrics,
}

/// What the authorizers without an opinion said.
#[derive(Default)]
struct Abstentions {
    reasons: Vec<String>,
    errors: Vec<String>,
}

impl Abstentions {
    fn add(&mut self, decision: AccessDecision) {
        let AccessDecision { reason, error, .. } = decision;
        self.reasons.extend((!reason.is_empty()).then_some(reason));
        self.errors.extend((!error.is_empty()).then_some(error));
    }

    fn decision(self) -> AccessDecision {
        let mut decision = AccessDecision::new(AccessOpinion::None, self.reasons.join("\n"));
        decision.error = joined(&self.errors);
        decision
    }
}

impl AccessControl {
    /// Decides by the roles, bindings and pods in the cache, and by webhooks.
    pub(crate) fn new(
        cache: &Cache,
        authorization: Authorization,
        caller: Arc<Caller>,
        metrics: &Metrics,
    ) -> AccessControl {
        AccessControl {
            authorization,
            rbac: Rbac::new(cache),
            nodes: NodeAuthorizer::new(cache),
            cache: cache.clone(),
            caller,
            metrics: metrics.clone(),
        }
    }

    /// The roles and bindings.
    pub(crate) fn rbac(&self) -> &Rbac {
        &self.rbac
    }

    /// Whether a user may do something. The reason of a grant is left out.
    pub(crate) async fn decide(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> AccessDecision {
        self.decision(identity, request, Reason::Unused).await
    }

    /// The same with the reason of a grant, for reviews.
    pub(crate) async fn explain(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> AccessDecision {
        self.decision(identity, request, Reason::Shown).await
    }

    /// The same for callers that cannot wait; `None` if a webhook has to be asked.
    pub(crate) fn explain_now(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> Option<AccessDecision> {
        if self.authorization.spares_masters && identity.is_in(MASTERS) {
            return Some(AccessDecision::new(AccessOpinion::Allowed, ""));
        }
        let mut abstentions = Abstentions::default();
        for authorizer in self.authorization.authorizers.load().iter() {
            let decision = self.decide_here(authorizer, identity, request, Reason::Shown)?;
            if decision.opinion != AccessOpinion::None {
                return Some(decision);
            }
            abstentions.add(decision);
        }
        Some(abstentions.decision())
    }

    /// Whether a decision may depend on a webhook.
    pub(crate) fn has_webhooks(&self) -> bool {
        let authorizers = self.authorization.authorizers.load();
        authorizers.iter().any(|authorizer| matches!(authorizer, Authorizer::Webhook(_)))
    }

    /// The rules of a user in a namespace.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> ListedRules {
        let index = self.rbac.current();
        let mut listed =
            ListedRules { rules: Vec::new(), is_incomplete: false, error: String::new() };
        let mut errors = Vec::new();
        for authorizer in self.authorization.authorizers.load().iter() {
            match authorizer {
                Authorizer::AlwaysAllow => listed.rules.extend(PolicyRule::everything()),
                Authorizer::AlwaysDeny => {}
                Authorizer::Rbac => {
                    listed.rules.extend(index.rules_of(identity, namespace));
                    errors.extend(index.missing_roles(identity, namespace));
                }
                Authorizer::Node if identity.node().is_none() => {}
                Authorizer::Node => {
                    errors.push("node authorizer does not support user rule resolution".to_owned());
                }
                Authorizer::Webhook(_) => errors
                    .push("webhook authorizer does not support user rule resolution".to_owned()),
            }
        }
        if identity.is_in(MASTERS) && listed.rules.is_empty() {
            listed.rules.extend(PolicyRule::everything());
        }
        listed.is_incomplete = !errors.is_empty();
        listed.error = joined(&errors);
        listed
    }

    /// Whether a user may do something without selectors.
    pub(crate) async fn allows(&self, identity: &Identity, attributes: Attributes<'_>) -> bool {
        self.decide(identity, &AccessRequest::about(attributes)).await.is_allowed()
    }

    /// Returns 403 if the user may not send the request.
    pub(crate) async fn authorize(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> Result<(), Status> {
        let decision = self.decide(identity, request).await;
        match decision.is_allowed() {
            true => Ok(()),
            false => Err(refusal(identity, &request.attributes, &decision.reason)),
        }
    }

    async fn decision(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
        reason: Reason,
    ) -> AccessDecision {
        if self.authorization.spares_masters && identity.is_in(MASTERS) {
            return AccessDecision::new(AccessOpinion::Allowed, "");
        }
        let mut abstentions = Abstentions::default();
        // A reload during the request does not change its authorizers.
        let authorizers = self.authorization.authorizers.load_full();
        for authorizer in authorizers.iter() {
            let decision =
                match (authorizer, self.decide_here(authorizer, identity, request, reason)) {
                    (Authorizer::Webhook(webhook), _) => {
                        let with = (&*self.caller, &self.cache, &self.metrics);
                        Box::pin(webhook.decide(identity, request, with)).await
                    }
                    (Authorizer::Node, Some(refused)) if !refused.reason.is_empty() => {
                        // The pod may have been bound so recently that the cache has not seen it. If the
                        // store does not reply, the cached state decides.
                        let _ = Box::pin(self.cache.consistent()).await;
                        self.decide_here(authorizer, identity, request, reason).unwrap_or(refused)
                    }
                    (_, Some(decision)) => decision,
                    (_, None) => continue,
                };
            if decision.opinion != AccessOpinion::None {
                return decision;
            }
            abstentions.add(decision);
        }
        abstentions.decision()
    }

    /// The decision of one authorizer; `None` if it is a webhook.
    fn decide_here(
        &self,
        authorizer: &Authorizer,
        identity: &Identity,
        request: &AccessRequest<'_>,
        reason: Reason,
    ) -> Option<AccessDecision> {
        let abstains = |reason: String| AccessDecision::new(AccessOpinion::None, reason);
        Some(match authorizer {
            Authorizer::AlwaysAllow => AccessDecision::new(AccessOpinion::Allowed, ""),
            Authorizer::AlwaysDeny => abstains("Everything is forbidden.".to_owned()),
            Authorizer::Node => match self.nodes.decide(identity, request) {
                Some(Ok(())) => AccessDecision::new(AccessOpinion::Allowed, ""),
                Some(Err(why)) => abstains(why),
                None => abstains(String::new()),
            },
            Authorizer::Rbac => self.decide_by_roles(identity, &request.attributes, reason),
            Authorizer::Webhook(_) => return None,
        })
    }

    fn decide_by_roles(
        &self,
        identity: &Identity,
        attributes: &Attributes<'_>,
        reason: Reason,
    ) -> AccessDecision {
        let index = self.rbac.current();
        if index.allows(identity, attributes) {
            let granted = match reason {
                Reason::Shown => index.granted_by(identity, attributes),
                Reason::Unused => None,
            };
            let reason = granted.map(|by| format!("RBAC: allowed by {by}")).unwrap_or_default();
            return AccessDecision::new(AccessOpinion::Allowed, reason);
        }
        let missing = index.missing_roles(identity, attributes.namespace());
        let reason = match joined(&missing).as_str() {
            "" => String::new(),
            missing => format!("RBAC: {missing}"),
        };
        AccessDecision::new(AccessOpinion::None, reason)
    }
}

/// Messages as one.
fn joined(messages: &[String]) -> String {
    match messages {
        [] => String::new(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// 403 with the sentence that clients know, and the reason if there is one.
pub(crate) fn refusal(identity: &Identity, attributes: &Attributes<'_>, reason: &str) -> Status {
    let user = &identity.user;
    let reason = match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    match attributes {
        Attributes::Path { verb, path } => {
            let why = format!("User \"{user}\" cannot {verb} path \"{path}\"{reason}");
            status::forbidden("", "", "", &why)
        }
        Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
            let full = match *subresource {
                "" => (*resource).to_owned(),
                subresource => format!("{resource}/{subresource}"),
            };
            let place = match *namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace \"{namespace}\""),
            };
            let why = format!(
                "User \"{user}\" cannot {verb} resource \"{full}\" in API group \"{group}\" \
                 {place}{reason}"
            );
            status::forbidden(group, resource, name, &why)
        }
    }
}
