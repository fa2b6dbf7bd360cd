//! The CEL variable `authorizer`: authorization checks for the user of a request.
//!
//! River: CEL expression → **authorize** → decision, by the same rules as for requests.

use std::fmt;
use std::sync::Arc;

use headwater_cel::{Access, AccessedResource, Authority, Decision, Value as Cel};

use super::request::AdmissionRequest;
use crate::front::identity::Identity;
use crate::front::service_account;
use crate::request::authorize::{AccessControl, AccessRequest, Attributes};

/// The user of a request.
struct User {
    access: Arc<AccessControl>,
    identity: Arc<Identity>,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("User").field(&self.identity).finish()
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
    let (access, identity) = (Arc::clone(asked.access), Arc::clone(&asked.call.identity));
    Cel::authorizer(Arc::new(User { access, identity }), request)
}

impl Authority for User {
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision {
        let account = account.map(|(namespace, name)| service_account::account(namespace, name));
        let identity = account.as_ref().unwrap_or(&self.identity);
        let request = match access {
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
        };
        let decision = self.access.explain_now(identity, &request);
        Decision { allowed: decision.is_allowed(), reason: decision.reason, error: None }
    }
}
