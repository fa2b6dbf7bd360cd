//! The table of steps between a successful write and its response.

use futures::future::BoxFuture;

use crate::kinds::custom;
use crate::request::route::ResourcePath;
use crate::server::Server;

/// One step after a successful write.
pub(crate) struct AfterWrite {
    /// Whether the step concerns this write.
    pub(crate) applies: fn(&Server, &ResourcePath) -> bool,
    /// The step. It logs its failures: the write has happened.
    pub(crate) run: for<'a> fn(&'a Server, &'a ResourcePath) -> BoxFuture<'a, ()>,
}

/// The steps, in order.
pub(crate) const AFTER_WRITE: &[AfterWrite] = &[
    // A definition is served before its write is acknowledged.
    AfterWrite {
        applies: |_, resource| custom::is_definition(&resource.kind),
        run: |server, _| Box::pin(server.after_definition()),
    },
    // The status of a quota shows the objects of the namespace.
    AfterWrite {
        applies: |server, resource| {
            let (kind, namespace) = (&resource.kind, &resource.namespace);
            server.admission().quotas.concern(server, kind, namespace)
        },
        run: |server, resource| {
            Box::pin(server.admission().quotas.settle(server, &resource.namespace))
        },
    },
];
