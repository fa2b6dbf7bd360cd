//! Node authorization: what the kubelet of a node may do (S8.23).
//!
//! River: request of a node → **node** → decision. A kubelet is a user `system:node:NAME` in the group
//! `system:nodes`; nobody else has rights by this module.
//! Promise: a node reads secrets, config maps, claims, volumes, tokens and pods only where a pod that
//! is bound to it needs them. What it writes is restricted further by the admission step
//! NodeRestriction.

mod graph;
pub(crate) mod references;

use std::sync::LazyLock;

use headwater_api::selector::FieldSelector;
use headwater_cache::Cache;
use headwater_json::{Value, json};
use headwater_store::key;

use super::followed::FollowedIndex;
use super::rbac::defaults;
use super::rbac::index::RbacIndex;
use super::{AccessRequest, Attributes};
use crate::front::identity::{Identity, NODES};
use crate::object::{meta, tree};
use graph::{KINDS, NodeGraph};
use references::{NamedObject, ReferencedKind};

/// The namespace of the leases of nodes.
pub(crate) const LEASES: &str = "kube-node-lease";

/// The role whose rules hold for every node, whatever is stored under its name.
const ROLE: &str = "system:node";

/// The rules that hold for every node, bound to the group of all nodes.
static FIXED_RULES: LazyLock<RbacIndex> = LazyLock::new(|| {
    let read = |value: &Value| serde_json::from_slice(value.to_string().as_bytes()).ok();
    let mut index = RbacIndex::default();
    for role in defaults::read(defaults::TABLE) {
        if role.plural == "clusterroles" && meta(&role.value, "name") == ROLE {
            index.set_role("", ROLE, read(&role.value));
        }
    }
    let binding = json!({
        "roleRef": { "kind": "ClusterRole", "name": ROLE },
        "subjects": [{ "kind": "Group", "name": NODES }],
    });
    index.set_binding("", ROLE, serde_json::from_slice(binding.to_string().as_bytes()).ok());
    index
});

/// Whether a node may do something: `Ok`, or why not; the reason may be empty.
type Verdict = Result<(), String>;

/// Decides requests of nodes.
pub(crate) struct NodeAuthorizer {
    cache: Cache,
    graph: FollowedIndex<NodeGraph, { KINDS.len() }>,
}

impl NodeAuthorizer {
    pub(crate) fn new(cache: &Cache) -> NodeAuthorizer {
        let prefixes = KINDS.map(|plural| key::collection("", plural));
        NodeAuthorizer { cache: cache.clone(), graph: FollowedIndex::new(cache, prefixes) }
    }

    /// The decision about a request of a node; `None` for other users.
    pub(crate) fn decide(
        &self,
        identity: &Identity,
        request: &AccessRequest<'_>,
    ) -> Option<Verdict> {
        let node = identity.node()?;
        if node.is_empty() {
            return Some(Err(format!("unknown node for user {:?}", identity.user)));
        }
        let asked = match request.attributes {
            Attributes::Resource { verb, group, resource, subresource, namespace, name } => {
                NodeRequest { node, verb, group, resource, subresource, namespace, name }
            }
            Attributes::Path { .. } => return Some(fixed(identity, request)),
        };
        Some(match self.decide_about(&asked, request.field_selector) {
            Some(verdict) => verdict,
            None => fixed(identity, request),
        })
    }

    /// The decision about a resource that depends on the node; `None` for all others.
    fn decide_about(&self, asked: &NodeRequest<'_>, fields: &str) -> Option<Verdict> {
        Some(match (asked.group, asked.resource) {
            ("", "secrets") => self.read(asked, ReferencedKind::Secret),
            ("", "configmaps") => self.read(asked, ReferencedKind::ConfigMap),
            ("", "persistentvolumeclaims") => self.claim(asked),
            ("", "persistentvolumes") => asked.gets_one().and_then(|()| self.volume(asked)),
            ("resource.k8s.io", "resourceclaims") => {
                asked.gets_one().and_then(|()| self.reach(asked, ReferencedKind::ResourceClaim))
            }
            ("storage.k8s.io", "volumeattachments") => {
                asked.gets_one().and_then(|()| self.of_node(asked, "storage.k8s.io"))
            }
            ("", "serviceaccounts") => self.account(asked),
            ("coordination.k8s.io", "leases") => asked.own_lease(),
            ("storage.k8s.io", "csinodes") => asked.own_csi_node(),
            ("resource.k8s.io", "resourceslices") => self.slice(asked, fields),
            ("", "nodes") => asked.own_node(),
            ("", "pods") => self.pod(asked, fields),
            _ => return None,
        })
    }

    /// get, list and watch of a secret or config map by name.
    fn read(&self, asked: &NodeRequest<'_>, kind: ReferencedKind) -> Verdict {
        if !matches!(asked.verb, "get" | "list" | "watch") {
            return refuse("can only read resources of this type");
        }
        if !asked.subresource.is_empty() {
            return refuse("cannot read subresource");
        }
        if asked.namespace.is_empty() {
            return refuse("can only read namespaced object of this type");
        }
        self.reach(asked, kind)
    }

    /// get of a claim, and writes of its status, which report that a file system has grown.
    fn claim(&self, asked: &NodeRequest<'_>) -> Verdict {
        if asked.subresource != "status" {
            asked.gets_one()?;
        } else if !matches!(asked.verb, "update" | "patch") {
            return refuse("can only get/update/patch this type");
        }
        self.reach(asked, ReferencedKind::Claim)
    }

    fn volume(&self, asked: &NodeRequest<'_>) -> Verdict {
        asked.named()?;
        asked.related(self.graph.current().uses_volume(asked.node, asked.name))
    }

    /// Reads of an account, and tokens for it.
    fn account(&self, asked: &NodeRequest<'_>) -> Verdict {
        match (asked.verb, asked.subresource) {
            ("get", "") => {}
            ("create", "token") if !asked.name.is_empty() => {}
            ("create", "") | (_, "token") => {
                return refuse("can only create tokens for individual service accounts");
            }
            _ => return refuse("can only create token subresource of serviceaccount"),
        }
        self.reach(asked, ReferencedKind::ServiceAccount)
    }

    fn slice(&self, asked: &NodeRequest<'_>, fields: &str) -> Verdict {
        if !asked.subresource.is_empty() {
            return refuse("cannot authorize ResourceSlice subresources");
        }
        match asked.verb {
            // Admission checks the node of a new slice.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.of_node(asked, "resource.k8s.io"),
            "watch" | "list" | "deletecollection" if asked.selects(fields, "spec.nodeName") => {
                Ok(())
            }
            "watch" | "list" | "deletecollection" => refuse(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, \
                 create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod(&self, asked: &NodeRequest<'_>, fields: &str) -> Verdict {
        match (asked.subresource, asked.verb) {
            ("", "get") => self.own_pod(asked),
            ("", "list" | "watch") if asked.selects(fields, "spec.nodeName") => Ok(()),
            ("", "list" | "watch") if !asked.name.is_empty() => self.own_pod(asked),
            ("", "list" | "watch") => {
                refuse("can only list/watch pods with spec.nodeName field selector")
            }
            // Admission restricts these to the node's own pods, and creates to mirror pods.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Ok(())
            }
            _ => refuse(""),
        }
    }

    fn own_pod(&self, asked: &NodeRequest<'_>) -> Verdict {
        asked.named()?;
        asked.related(self.graph.current().runs(asked.node, asked.namespace, asked.name))
    }

    /// An object that a pod on the node leads to.
    fn reach(&self, asked: &NodeRequest<'_>, kind: ReferencedKind) -> Verdict {
        asked.named()?;
        let object = NamedObject::new(kind, asked.namespace, asked.name);
        asked.related(self.graph.current().reaches(asked.node, &object))
    }

    /// An object without a namespace whose `spec.nodeName` is the node.
    fn of_node(&self, asked: &NodeRequest<'_>, group: &str) -> Verdict {
        asked.named()?;
        let resource = self.cache.resource(&key::collection(group, asked.resource));
        let snapshot = self.cache.snapshot(&resource);
        let value = snapshot.get(asked.name).and_then(|object| tree(object.as_slice()).ok());
        asked.related(value.is_some_and(|value| value["spec"]["nodeName"] == *asked.node))
    }
}

/// Rights that do not depend on the node.
fn fixed(identity: &Identity, request: &AccessRequest<'_>) -> Verdict {
    match FIXED_RULES.allows(identity, &request.attributes) {
        true => Ok(()),
        false => refuse(""),
    }
}

fn refuse(why: &str) -> Verdict {
    Err(why.to_owned())
}

/// A request of a node for a resource.
#[derive(Clone, Copy)]
struct NodeRequest<'a> {
    node: &'a str,
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl NodeRequest<'_> {
    fn named(&self) -> Verdict {
        if self.name.is_empty() { refuse("No Object name found") } else { Ok(()) }
    }

    fn related(&self, is_related: bool) -> Verdict {
        match is_related {
            true => Ok(()),
            false => {
                Err(format!("no relationship found between node '{}' and this object", self.node))
            }
        }
    }

    fn gets_one(&self) -> Verdict {
        match (self.verb, self.subresource) {
            ("get", "") => Ok(()),
            ("get", _) => refuse("cannot get subresource"),
            _ => refuse("can only get individual resources of this type"),
        }
    }

    /// Whether a field selector restricts the request to what belongs to the node.
    fn selects(&self, fields: &str, field: &str) -> bool {
        let terms = FieldSelector::written_terms(fields).unwrap_or_default();
        terms.iter().any(|term| term.equal && term.label == field && term.value == self.node)
    }

    fn own_lease(&self) -> Verdict {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return refuse("can only get, create, update, patch, or delete a node lease");
        }
        if self.namespace != LEASES {
            return Err(format!("can only access leases in the {LEASES:?} system namespace"));
        }
        // Admission checks the name of a new lease.
        if self.verb != "create" && self.name != self.node {
            return refuse("can only access node lease with the same name as the requesting node");
        }
        Ok(())
    }

    fn own_csi_node(&self) -> Verdict {
        if !matches!(self.verb, "get" | "create" | "update" | "patch" | "delete") {
            return refuse("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.subresource.is_empty() {
            return refuse("cannot authorize CSINode subresources");
        }
        if self.verb != "create" && self.name != self.node {
            return refuse("can only access CSINode with the same name as the requesting node");
        }
        Ok(())
    }

    fn own_node(&self) -> Verdict {
        match (self.subresource, self.verb) {
            // Admission restricts these to the node's own object.
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if self.name == self.node => Ok(()),
            ("", "get" | "list" | "watch") => Err(match self.name {
                "" => {
                    format!("node '{}' cannot read all nodes, only its own Node object", self.node)
                }
                name => {
                    format!("node '{}' cannot read '{name}', only its own Node object", self.node)
                }
            }),
            _ => refuse(""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_restricts_to_the_node_only_as_an_equality() {
        let asked = NodeRequest {
            node: "n1",
            verb: "list",
            group: "",
            resource: "pods",
            subresource: "",
            namespace: "",
            name: "",
        };
        for (fields, expected) in [
            ("spec.nodeName=n1", true),
            ("status.phase!=Failed,spec.nodeName==n1", true),
            ("spec.nodeName!=n1", false),
            ("spec.nodeName=n12", false),
            ("spec.nodeName=", false),
            ("metadata.name=x\\,spec.nodeName=n1", false),
            ("status.phase!=x\\,spec.nodeName=n1", false),
            ("", false),
        ] {
            assert_eq!(asked.selects(fields, "spec.nodeName"), expected, "{fields}");
        }
    }
}
