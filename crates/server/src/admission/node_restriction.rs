//! NodeRestriction: what the kubelet of a node may write (S8.23).
//!
//! River: namespace → **node restriction** → defaults, webhooks. Authorization sees paths and names
//! only; this step looks at the object. Promise: a node changes its own Node, lease, CSINode and
//! slices, the pods that are bound to it, and nothing that would draw workloads or rights to it.

use headwater_api::{Object, Status};
use headwater_cache::Cache;
use headwater_json::Value;

use super::Attempt;
use super::node_labels::forbidden_changes;
use crate::answer::status;
use crate::backend::Backend;
use crate::front::certificates::{KUBELET_CLIENT, KUBELET_SERVING, common_name};
use crate::front::identity::{Identity, NODE_PREFIX};
use crate::object::{meta, object_key, tree};
use crate::request::authorize::Attributes;
use crate::request::authorize::node::LEASES;
use crate::request::authorize::node::references::{MIRROR, ReferencedKind, names_any};

/// Why a node may not do something.
type Refusal = Result<(), String>;

fn refuse(why: impl Into<String>) -> Refusal {
    Err(why.into())
}

/// Checks a create or an update.
pub(super) fn check(attempt: &Attempt<'_>, identity: &Identity) -> Result<(), Status> {
    let Some(node) = identity.node() else { return Ok(()) };
    let kind = attempt.kind;
    let write = NodeWrite { node, attempt };
    let verdict = match (&*kind.group, &*kind.plural, attempt.subresource) {
        _ if node.is_empty() => {
            refuse(format!("could not determine node from user {:?}", identity.user))
        }
        ("", "pods", "") => write.pod(),
        ("", "pods", "status") => write.pod_status(),
        ("", "pods", other) => refuse(format!(
            "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
        )),
        ("", "nodes", _) => write.node(),
        ("", "persistentvolumeclaims", "status") => write.claim_status(),
        ("", "persistentvolumeclaims", _) => refuse("may only update PVC status"),
        ("coordination.k8s.io", "leases", _) => write.lease(),
        ("storage.k8s.io", "csinodes", _) if write.name() != node => {
            refuse("can only access CSINode with the same name as the requesting node")
        }
        ("resource.k8s.io", "resourceslices", _) if attempt.new["spec"]["nodeName"] != *node => {
            refuse("can only create ResourceSlice with the same NodeName as the requesting node")
        }
        ("certificates.k8s.io", "certificatesigningrequests", "") => write.signing_request(),
        _ => Ok(()),
    };
    let name = write.name();
    verdict.map_err(|why| status::forbidden(&kind.group, &kind.plural, name, &why))
}

/// Checks a deletion. Pods, nodes, leases, CSINodes and slices are the only objects of interest.
pub(crate) fn check_deletion(
    identity: &Identity,
    (group, plural): (&str, &str),
    object: &Value,
) -> Result<(), Status> {
    let Some(node) = identity.node() else { return Ok(()) };
    let name = meta(object, "name");
    let is_on_node = object["spec"]["nodeName"] == *node;
    let why = match (group, plural) {
        ("", "pods") if !is_on_node => {
            format!("node {node:?} can only delete pods with spec.nodeName set to itself")
        }
        ("", "nodes") if name != node => {
            format!("node {node:?} is not allowed to modify node {name:?}")
        }
        ("coordination.k8s.io", "leases") if name != node => {
            "can only access node lease with the same name as the requesting node".to_owned()
        }
        ("storage.k8s.io", "csinodes") if name != node => {
            "can only access CSINode with the same name as the requesting node".to_owned()
        }
        ("resource.k8s.io", "resourceslices") if !is_on_node => {
            "can only delete ResourceSlice with the same NodeName as the requesting node".to_owned()
        }
        _ => return Ok(()),
    };
    Err(status::forbidden(group, plural, name, &why))
}

/// Checks an eviction of a pod.
pub(crate) fn check_eviction(identity: &Identity, pod: &Object) -> Result<(), Status> {
    let Some(node) = identity.node() else { return Ok(()) };
    if tree(pod.as_slice())?["spec"]["nodeName"] == *node {
        return Ok(());
    }
    let why = format!("node {node} can only evict pods with spec.nodeName set to itself");
    Err(status::forbidden("", "pods", pod.name(), &why))
}

/// Checks a request for a token of a service account.
pub(crate) async fn check_token_request(
    backend: &Backend,
    identity: &Identity,
    (namespace, account): (&str, &str),
    spec: &Value,
) -> Result<(), Status> {
    let Some(node) = identity.node() else { return Ok(()) };
    let forbidden = |why: &str| Err(status::forbidden("", "serviceaccounts", account, why));
    let reference = &spec["boundObjectRef"];
    let text = |key: &str| reference[key].as_str().unwrap_or_default();
    let (name, uid) = (text("name"), text("uid"));
    if text("apiVersion") != "v1" || text("kind") != "Pod" || name.is_empty() {
        return forbidden("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return forbidden("node requested token with a pod binding without a uid");
    }
    let snapshot = backend.cache().snapshot(&backend.cache().resource("/registry/core/pods/"));
    let Some(pod) = snapshot.get(&object_key(namespace, name)) else {
        let message = format!("pod {name:?} not found");
        return Err(Status::failure(404, "NotFound", message));
    };
    if pod.uid() != uid {
        return forbidden(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The \
             object might have been deleted and then recreated"
        ));
    }
    let pod = tree(pod.as_slice())?;
    if pod["spec"]["nodeName"] != *node {
        return forbidden("node requested token bound to a pod scheduled on a different node");
    }
    let audiences = spec["audiences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let audience = match audiences {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return forbidden("node may only request 0 or 1 audiences"),
    };
    if names_audience(backend.cache(), &pod, audience) {
        return Ok(());
    }
    let attributes = Attributes::Resource {
        verb: "request-serviceaccounts-token-audience",
        group: "",
        resource: audience,
        subresource: "",
        namespace,
        name: account,
    };
    match backend.access().allows(identity, attributes).await {
        true => Ok(()),
        false => forbidden(&format!("audience {audience:?} not found in pod spec volume")),
    }
}

/// Whether a volume of a pod needs a token for an audience; empty means this server.
fn names_audience(cache: &Cache, pod: &Value, audience: &str) -> bool {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let of_token = |token: &Value| token["audience"].as_str().unwrap_or_default() == audience;
    volumes.into_iter().any(|volume| {
        let sources = volume["projected"]["sources"].as_array().into_iter().flatten();
        let mut tokens = sources.filter_map(|source| source.get("serviceAccountToken"));
        if tokens.any(of_token) {
            return true;
        }
        let driver = match volume["csi"]["driver"].as_str() {
            Some(driver) => Some(driver.to_owned()),
            None => claimed_driver(cache, pod, volume),
        };
        let driver =
            driver.and_then(|driver| named(cache, "storage.k8s.io", "csidrivers", &driver));
        let requests = driver.map(|driver| driver["spec"]["tokenRequests"].clone());
        requests.iter().filter_map(Value::as_array).flatten().any(of_token)
    })
}

/// The CSI driver of the volume that a claim of a pod is bound to.
fn claimed_driver(cache: &Cache, pod: &Value, volume: &Value) -> Option<String> {
    let claim = match volume["persistentVolumeClaim"]["claimName"].as_str() {
        Some(claim) => claim.to_owned(),
        None => {
            volume.get("ephemeral")?;
            format!("{}-{}", meta(pod, "name"), volume["name"].as_str()?)
        }
    };
    let claim = object_key(meta(pod, "namespace"), &claim);
    let claim = named(cache, "core", "persistentvolumeclaims", &claim)?;
    let volume = named(cache, "core", "persistentvolumes", claim["spec"]["volumeName"].as_str()?)?;
    volume["spec"]["csi"]["driver"].as_str().map(str::to_owned)
}

fn named(cache: &Cache, group: &str, plural: &str, key: &str) -> Option<Value> {
    let snapshot = cache.snapshot(&cache.resource(&format!("/registry/{group}/{plural}/")));
    snapshot.get(key).and_then(|object| tree(object.as_slice()).ok())
}

/// A write of a node.
struct NodeWrite<'a> {
    node: &'a str,
    attempt: &'a Attempt<'a>,
}

impl<'a> NodeWrite<'a> {
    fn name(&self) -> &'a str {
        meta(self.attempt.old.unwrap_or(self.attempt.new), "name")
    }

    /// A node creates mirror pods of its own.
    fn pod(&self) -> Refusal {
        let (node, pod) = (self.node, &*self.attempt.new);
        if self.attempt.old.is_some() {
            return refuse(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            ));
        }
        if pod["metadata"]["annotations"].get(MIRROR).is_none() {
            return refuse(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if pod["spec"]["nodeName"] != *node {
            return refuse(format!(
                "node {node:?} can only create pods with spec.nodeName set to itself"
            ));
        }
        self.owner(pod)?;
        self.references(pod)
    }

    /// The node is the only owner of its mirror pods.
    fn owner(&self, pod: &Value) -> Refusal {
        let node = self.node;
        let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice);
        let owner = match owners.unwrap_or_default() {
            [] => {
                return refuse(format!(
                    "node {node:?} can only create pods with an owner reference set to itself"
                ));
            }
            [owner] => owner,
            _ => {
                return refuse(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != *node {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        if owner["controller"] != true {
            return refuse(format!(
                "node {node:?} can only create pods with a controller owner reference set to itself"
            ));
        }
        if owner["blockOwnerDeletion"] == true {
            return refuse(format!(
                "node {node:?} must not set blockOwnerDeletion on an owner reference"
            ));
        }
        let Some(stored) = named(self.attempt.cache, "core", "nodes", node) else {
            return refuse(format!("nodes {node:?} not found"));
        };
        let (given, uid) = (owner["uid"].as_str().unwrap_or_default(), meta(&stored, "uid"));
        match given == uid {
            true => Ok(()),
            false => refuse(format!("node {node} UID mismatch: expected {given} got {uid}")),
        }
    }

    /// A pod that names other objects would give the node the right to read them.
    fn references(&self, pod: &Value) -> Refusal {
        let node = self.node;
        for (kind, what) in [
            (ReferencedKind::ServiceAccount, "a service account"),
            (ReferencedKind::Secret, "secrets"),
            (ReferencedKind::ConfigMap, "configmaps"),
            (ReferencedKind::Claim, "persistentvolumeclaims"),
            (ReferencedKind::ResourceClaim, "resourceclaims"),
        ] {
            if names_any(pod, kind) {
                return refuse(format!("node {node:?} can not create pods that reference {what}"));
            }
        }
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let mut sources = volumes
            .flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
        if sources.any(|source| source.get("clusterTrustBundle").is_some()) {
            return refuse(format!(
                "node {node:?} can not create pods that reference clustertrustbundles"
            ));
        }
        Ok(())
    }

    fn pod_status(&self) -> Refusal {
        let (node, new) = (self.node, &*self.attempt.new);
        let Some(old) = self.attempt.old else { return refuse("unexpected operation \"CREATE\"") };
        if old["spec"]["nodeName"] != *node {
            return refuse(format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            ));
        }
        if old["metadata"]["labels"] != new["metadata"]["labels"] {
            return refuse(format!("node {node:?} cannot update labels through pod status"));
        }
        for key in ["resourceClaimStatuses", "extendedResourceClaimStatus"] {
            if old["status"][key] != new["status"][key] {
                return refuse(format!("node {node:?} cannot update resource claim statues"));
            }
        }
        Ok(())
    }

    fn node(&self) -> Refusal {
        let (node, new) = (self.node, &*self.attempt.new);
        if self.name() != node {
            return refuse(format!(
                "node {node:?} is not allowed to modify node {:?}",
                self.name()
            ));
        }
        let source = &new["spec"]["configSource"];
        let labels = |value: &Value| value["metadata"]["labels"].clone();
        let Some(old) = self.attempt.old else {
            if !source.is_null() {
                return refuse(format!(
                    "node {node:?} is not allowed to create pods with a non-nil configSource"
                ));
            }
            let forbidden = forbidden_changes(&labels(new), &Value::Null);
            return match forbidden.as_str() {
                "" => Ok(()),
                keys => refuse(format!(
                    "node {node:?} is not allowed to set the following labels: {keys}"
                )),
            };
        };
        if !source.is_null() && *source != old["spec"]["configSource"] {
            return refuse(format!(
                "node {node:?} is not allowed to update configSource to a new non-nil configSource"
            ));
        }
        let taints =
            |value: &Value| value["spec"]["taints"].as_array().cloned().unwrap_or_default();
        if taints(new) != taints(old) {
            return refuse(format!("node {node:?} is not allowed to modify taints"));
        }
        match forbidden_changes(&labels(new), &labels(old)).as_str() {
            "" => Ok(()),
            keys => refuse(format!("is not allowed to modify labels: {keys}")),
        }
    }

    /// The status of a claim: its capacity, conditions and the progress of a resize.
    fn claim_status(&self) -> Refusal {
        let node = self.node;
        let Some(old) = self.attempt.old else { return refuse("unexpected operation \"CREATE\"") };
        let rest = |claim: &Value| {
            let mut rest = claim.clone();
            let free = [
                ("metadata", &["resourceVersion", "managedFields"][..]),
                (
                    "status",
                    &["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"],
                ),
            ];
            for (part, keys) in free {
                let part = rest.get_mut(part).and_then(Value::as_object_mut);
                if let Some(part) = part {
                    keys.iter().for_each(|key| drop(part.remove(key)));
                }
            }
            rest
        };
        match rest(self.attempt.new) == rest(old) {
            true => Ok(()),
            false => refuse(format!(
                "node {node:?} is not allowed to update fields other than status.capacity and \
                 status.conditions"
            )),
        }
    }

    fn lease(&self) -> Refusal {
        if self.attempt.namespace != LEASES {
            return refuse(format!("can only access leases in the {LEASES:?} system namespace"));
        }
        match self.name() == self.node {
            true => Ok(()),
            false => refuse("can only access node lease with the same name as the requesting node"),
        }
    }

    /// A node asks for certificates of its own only.
    fn signing_request(&self) -> Refusal {
        let spec = &self.attempt.new["spec"];
        let signer = spec["signerName"].as_str().unwrap_or_default();
        if self.attempt.old.is_some() || ![KUBELET_CLIENT, KUBELET_SERVING].contains(&signer) {
            return Ok(());
        }
        let own = format!("{NODE_PREFIX}{}", self.node);
        match common_name(spec["request"].as_str().unwrap_or_default()) {
            Some(name) if name != own && name.starts_with(NODE_PREFIX) => {
                refuse(format!("can only create a node CSR with CN={own}"))
            }
            Some(_) => Ok(()),
            None => refuse("unable to parse csr"),
        }
    }
}
