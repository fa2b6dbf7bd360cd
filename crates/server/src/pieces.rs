//! Parts of the server that micro-benchmarks call one at a time.

use std::sync::Arc;

use futures::FutureExt;
use headwater_api::query::Query;
use headwater_json::json;
use http::{Method, Uri};

use crate::front::identity::Identity;
use crate::request::authorize::Attributes;
use crate::request::authorize::rbac::index::RbacIndex;
use crate::request::flow::Arriving;
use crate::request::route;
use crate::server::Server;

/// Who holds the bindings of a [`BoundRoles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each binding is of another user.
    Users,
    /// All bindings are of one group, each to another role.
    OneGroup,
}

/// A number of roles and bindings, compiled.
pub struct BoundRoles {
    index: RbacIndex,
    identity: Identity,
}

impl BoundRoles {
    /// Compiles `count` roles, at least eight, as many bindings in a namespace, and some for every
    /// user.
    pub fn new(count: usize, spread: Spread) -> BoundRoles {
        let mut made = BoundRoles {
            index: RbacIndex::default(),
            identity: Identity::authenticated("user-7", vec!["devs".to_owned()]),
        };
        for number in 0..count {
            made.bind(number, spread);
        }
        let everybody = json!([{ "kind": "Group", "name": "system:authenticated" }]);
        for number in 0..3 {
            made.index.set_binding("", &format!("all-{number}"), binding(number, &everybody));
        }
        made
    }

    /// Writes a role and its binding.
    pub fn bind(&mut self, number: usize, spread: Spread) {
        let rules = json!([
            { "verbs": ["get", "list", "watch"], "apiGroups": ["", "apps"],
              "resources": [format!("kind-{number}"), "pods", "deployments/scale"] },
            { "verbs": ["get"], "nonResourceURLs": [format!("/path-{number}/*")] },
        ]);
        let role = json!({ "rules": rules }).to_string();
        self.index.set_role("", &format!("role-{number}"), serde_json::from_str(&role).ok());
        let subject = match spread {
            Spread::Users => json!({ "kind": "User", "name": format!("user-{number}") }),
            Spread::OneGroup => json!({ "kind": "Group", "name": "devs" }),
        };
        self.index.set_binding("ns", &format!("b-{number}"), binding(number, &json!([subject])));
    }

    /// Decides a request that is allowed in the namespace, or one that nothing allows.
    pub fn decide(&self, turn: usize) -> bool {
        let allowed = turn.is_multiple_of(2);
        self.index.allows(
            &self.identity,
            &Attributes::Resource {
                verb: if allowed { "list" } else { "delete" },
                group: "apps",
                resource: "kind-7",
                subresource: "",
                namespace: "ns",
                name: "web",
            },
        )
    }
}

fn binding<T: serde::de::DeserializeOwned>(
    number: usize,
    subjects: &headwater_json::Value,
) -> Option<T> {
    let role = json!({ "kind": "ClusterRole", "name": format!("role-{number}") });
    serde_json::from_str(&json!({ "subjects": subjects, "roleRef": role }).to_string()).ok()
}

/// Requests of one user that flow control admits without waiting.
pub struct AdmittedRequests {
    server: Server,
    identity: Arc<Identity>,
    uri: Uri,
    route: route::Route,
    query: Query,
}

impl AdmittedRequests {
    /// Requests of a user with these groups for a path.
    pub fn new(server: &Server, identity: Identity, path: &'static str) -> AdmittedRequests {
        let query = Query::default();
        let route = route::route(&server.registry(), &Method::GET, path, &query);
        let (server, identity) = (server.clone(), Arc::new(identity));
        AdmittedRequests { server, identity, uri: Uri::from_static(path), route, query }
    }

    /// Classifies a request, gives it a seat, and takes the seat back. Whether it was admitted.
    pub fn pass(&self) -> bool {
        let arriving = Arriving {
            identity: &self.identity,
            attributes: &Attributes::of(&self.route),
            route: &self.route,
            query: &self.query,
            uri: &self.uri,
        };
        let admitted = self.server.flow().admit(&arriving).now_or_never();
        admitted.is_some_and(|admitted| admitted.is_ok())
    }
}
