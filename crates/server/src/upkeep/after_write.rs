//! The work between a successful write and its response.

use futures::FutureExt;

use crate::kinds::custom;
use crate::request::authorize::rbac;
use crate::request::route::ResourcePath;
use crate::server::Server;

/// Does what has to be visible before a write is acknowledged. Failures are logged: the write has
/// happened.
pub(crate) async fn after_write(server: &Server, resource: &ResourcePath) {
    // A definition is served before its write is acknowledged.
    if custom::is_definition(&resource.kind) {
        server.after_definition().boxed().await;
    }
    // A role is in force before its write is acknowledged.
    if resource.kind.group == rbac::GROUP {
        server.after_role(&resource.kind.plural).boxed().await;
    }
    // The status of a quota shows the objects of the namespace.
    let quotas = &server.admission().quotas;
    if quotas.concern(server, &resource.kind, &resource.namespace) {
        quotas.settle(server, &resource.namespace).boxed().await;
    }
}
