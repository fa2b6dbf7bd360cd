//! Authorization: whether a user may send a request.
//!
//! River: route → **authorize** → handler; before the body is read (R48). Requests, reviews,
//! impersonation, admission and CEL expressions all ask [`AccessControl::decide`]. Members of
//! `system:masters` may do everything; then the authorizers are asked in order, and the first that
//! has an opinion decides (S8.9, S8.10).

pub(crate) mod rbac;

use headwater_api::Status;
use headwater_api::query::Query;
use headwater_cache::Cache;

use crate::answer::status;
use crate::front::identity::{Identity, MASTERS};
use crate::request::route::{Route, Target, Verb};
use rbac::Rbac;
use rbac::rule::PolicyRule;

/// The attributes of a request that authorization reads (S8.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attributes<'a> {
    /// A request for a non-resource path.
    Path { verb: &'a str, path: &'a str },
    /// A request for a resource.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
}

impl<'a> Attributes<'a> {
    /// The attributes of a routed request.
    pub(crate) fn of(route: &'a Route) -> Attributes<'a> {
        let verb = route.verb.as_str();
        match &route.target {
            Target::Path(_) | Target::Invalid(_) => Attributes::Path { verb, path: &route.path },
            Target::Resource(resource) => Attributes::Resource {
                verb,
                group: &resource.kind.group,
                resource: &resource.kind.plural,
                subresource: &resource.subresource,
                namespace: &resource.namespace,
                name: match resource.name.as_str() {
                    "" => &route.selected_name,
                    name => name,
                },
            },
            Target::Missing { group, resource, subresource, namespace, name, .. } => {
                Attributes::Resource { verb, group, resource, subresource, namespace, name }
            }
        }
    }

    /// The namespace; empty for all namespaces and for what has none.
    pub(crate) fn namespace(&self) -> &'a str {
        match self {
            Attributes::Path { .. } => "",
            Attributes::Resource { namespace, .. } => namespace,
        }
    }
}

/// A question to the authorizers: attributes, and what only some authorizers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) attributes: Attributes<'a>,
    /// The version of the API; `*` if it does not matter.
    pub(crate) version: &'a str,
    /// The selectors of a list, watch or deletecollection, as the client wrote them.
    pub(crate) field_selector: &'a str,
    pub(crate) label_selector: &'a str,
}

impl<'a> AccessRequest<'a> {
    /// A question without selectors.
    pub(crate) fn about(attributes: Attributes<'a>) -> AccessRequest<'a> {
        AccessRequest { attributes, version: "*", field_selector: "", label_selector: "" }
    }

    /// The question about a routed request.
    pub(crate) fn of(route: &'a Route, query: &'a Query) -> AccessRequest<'a> {
        let attributes = Attributes::of(route);
        let Target::Resource(resource) = &route.target else {
            return AccessRequest::about(attributes);
        };
        let selects = matches!(route.verb, Verb::List | Verb::Watch | Verb::DeleteCollection)
            && !resource.legacy_watch;
        let selector = |name| if selects { query.text(name) } else { "" };
        AccessRequest {
            attributes,
            version: &resource.kind.version,
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    }
}

/// What authorization concludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessOpinion {
    Allowed,
    /// Denied, whatever later authorizers say.
    Denied,
    /// No authorizer allows it.
    None,
}

/// The result of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessDecision {
    pub(crate) opinion: AccessOpinion,
    /// Why; may be empty.
    pub(crate) reason: String,
    /// What went wrong meanwhile; may be empty.
    pub(crate) error: String,
}

impl AccessDecision {
    fn new(opinion: AccessOpinion, reason: impl Into<String>) -> AccessDecision {
        AccessDecision { opinion, reason: reason.into(), error: String::new() }
    }

    pub(crate) fn is_allowed(&self) -> bool {
        self.opinion == AccessOpinion::Allowed
    }
}

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

/// The authorizers of a server, in order.
pub(crate) struct AccessControl {
    rbac: Rbac,
}

impl AccessControl {
    /// Decides by the roles and bindings in the cache.
    pub(crate) fn new(cache: &Cache) -> AccessControl {
        AccessControl { rbac: Rbac::new(cache) }
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
        self.decision(identity, request, Reason::Unused)
    }

    /// The same with the reason of a grant, for reviews.
    pub(crate) async fn explain(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> AccessDecision {
        self.decision(identity, request, Reason::Shown)
    }

    /// The same for callers that cannot wait.
    pub(crate) fn explain_now(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> AccessDecision {
        self.decision(identity, request, Reason::Shown)
    }

    /// The rules of a user in a namespace.
    pub(crate) fn rules_of(&self, identity: &Identity, namespace: &str) -> ListedRules {
        let index = self.rbac.current();
        let mut rules = index.rules_of(identity, namespace);
        if identity.is_in(MASTERS) && rules.is_empty() {
            rules.extend(PolicyRule::everything());
        }
        let missing = index.missing_roles(identity, namespace);
        ListedRules { rules, is_incomplete: !missing.is_empty(), error: joined(&missing) }
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

    fn decision(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
        reason: Reason,
    ) -> AccessDecision {
        if identity.is_in(MASTERS) {
            return AccessDecision::new(AccessOpinion::Allowed, "");
        }
        self.decide_by_roles(identity, &request.attributes, reason)
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
