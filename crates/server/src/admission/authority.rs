//! The CEL variable `authorizer`: authorization checks for the user of a request.
//!
//! River: CEL expression → **authorize** → decision, by the same rules as for requests.

use std::sync::Arc;

use headwater_cel::{Access, AccessedResource, Authority, Decision, Value as Cel};

use super::request::AdmissionRequest;
use crate::front::identity::Identity;
use crate::front::service_account;
use crate::request::authorize::{Attributes, allows};

/// The user of a request.
#[derive(Debug)]
struct User(Arc<Identity>);

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
    Cel::authorizer(Arc::new(User(Arc::clone(&asked.call.identity))), request)
}

impl Authority for User {
    fn decide(&self, account: Option<(&str, &str)>, access: &Access) -> Decision {
        let account = account.map(|(namespace, name)| service_account::account(namespace, name));
        let identity = account.as_ref().unwrap_or(&self.0);
        let attributes = match access {
            Access::Path { path, verb } => Attributes::Path { verb, path },
            Access::Resource { resource, verb } => Attributes::Resource {
                verb,
                group: &resource.group,
                resource: &resource.resource,
                subresource: &resource.subresource,
                namespace: &resource.namespace,
                name: &resource.name,
            },
        };
        Decision { allowed: allows(identity, &attributes), ..Decision::default() }
    }
}
