//! The graph: which objects the pods of a node refer to.
//!
//! River: pods and volumes in the watch cache → **graph** → node authorization.
//! Promise: a node reaches an object only through a pod that is bound to it: the pod itself, what the
//! pod names, the volume of a claim that the pod names, and the secrets of that volume. A mirror pod,
//! which a node can create, leads to nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use headwater_api::Object;
use headwater_json::Value;

use super::super::followed::ObjectIndex;
use super::references::{NamedObject, pod_references, volume_references};
use crate::object::{object_key, tree};

/// The kinds, in the order of the index.
pub(super) const KINDS: [&str; 2] = ["pods", "persistentvolumes"];

/// A pod on a node, and what it names.
struct PodLinks {
    node: Arc<str>,
    named: BTreeSet<NamedObject>,
}

/// A volume, the claim that it is bound to, and its secrets.
struct VolumeLinks {
    claim: NamedObject,
    secrets: BTreeSet<NamedObject>,
}

/// The pods with a node, and the volumes with a claim.
#[derive(Default)]
pub(crate) struct NodeGraph {
    pods: HashMap<Box<str>, PodLinks>,
    volumes: HashMap<Box<str>, VolumeLinks>,
    /// For each object the nodes whose pods name it, and the number of these pods.
    nodes: HashMap<NamedObject, HashMap<Arc<str>, usize>>,
    /// For each secret the volumes that name it.
    volumes_of_secret: HashMap<NamedObject, BTreeSet<Box<str>>>,
}

impl NodeGraph {
    /// Whether a pod is bound to a node.
    pub(super) fn runs(&self, node: &str, namespace: &str, pod: &str) -> bool {
        let links = self.pods.get(object_key(namespace, pod).as_str());
        links.is_some_and(|links| &*links.node == node)
    }

    /// Whether a pod on a node leads to an object.
    pub(super) fn reaches(&self, node: &str, object: &NamedObject) -> bool {
        self.names(node, object)
            || self.volumes_of_secret.get(object).into_iter().flatten().any(|volume| {
                self.volumes.get(volume).is_some_and(|links| self.names(node, &links.claim))
            })
    }

    /// Whether a pod on a node uses a volume.
    pub(super) fn uses_volume(&self, node: &str, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|links| self.names(node, &links.claim))
    }

    fn names(&self, node: &str, object: &NamedObject) -> bool {
        self.nodes.get(object).is_some_and(|nodes| nodes.contains_key(node))
    }

    fn set_pod(&mut self, key: &str, pod: Option<&Value>) {
        if let Some(old) = self.pods.remove(key) {
            for object in &old.named {
                self.unlink(object, &old.node);
            }
        }
        let Some(pod) = pod else { return };
        let Some(node) = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) else {
            return;
        };
        let links = PodLinks { node: node.into(), named: pod_references(pod) };
        for object in &links.named {
            let nodes = self.nodes.entry(object.clone()).or_default();
            *nodes.entry(Arc::clone(&links.node)).or_default() += 1;
        }
        self.pods.insert(key.into(), links);
    }

    fn unlink(&mut self, object: &NamedObject, node: &str) {
        let Some(nodes) = self.nodes.get_mut(object) else { return };
        if let Some(count) = nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.nodes.remove(object);
        }
    }

    fn set_volume(&mut self, name: &str, volume: Option<&Value>) {
        if let Some(old) = self.volumes.remove(name) {
            for secret in &old.secrets {
                if let Some(volumes) = self.volumes_of_secret.get_mut(secret) {
                    volumes.remove(name);
                    if volumes.is_empty() {
                        self.volumes_of_secret.remove(secret);
                    }
                }
            }
        }
        let Some((claim, secrets)) = volume.and_then(volume_references) else { return };
        for secret in &secrets {
            self.volumes_of_secret.entry(secret.clone()).or_default().insert(name.into());
        }
        self.volumes.insert(name.into(), VolumeLinks { claim, secrets });
    }
}

impl ObjectIndex for NodeGraph {
    fn set(&mut self, kind: usize, object: &Object, exists: bool) {
        // An object that cannot be read leads to nothing.
        let value = exists.then(|| tree(object.as_slice()).ok()).flatten();
        match KINDS[kind] {
            "pods" => self.set_pod(object.key(), value.as_ref()),
            _ => self.set_volume(object.key(), value.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::super::references::ReferencedKind;
    use super::*;

    fn secret(name: &str) -> NamedObject {
        NamedObject::new(ReferencedKind::Secret, "ns", name)
    }

    fn pod(node: &str, secret: &str) -> Value {
        json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "spec": { "nodeName": node, "volumes": [{ "secret": { "secretName": secret } }] },
        })
    }

    #[test]
    fn a_node_reaches_what_its_pods_name_as_long_as_one_does() {
        let mut graph = NodeGraph::default();
        graph.set_pod("ns/a", Some(&pod("n1", "s")));
        graph.set_pod("ns/b", Some(&pod("n1", "s")));
        assert!(graph.reaches("n1", &secret("s")) && graph.runs("n1", "ns", "a"));
        assert!(!graph.reaches("n2", &secret("s")) && !graph.runs("n2", "ns", "a"));
        graph.set_pod("ns/a", None);
        assert!(graph.reaches("n1", &secret("s")) && !graph.runs("n1", "ns", "a"));
        graph.set_pod("ns/b", Some(&pod("n1", "t")));
        assert!(!graph.reaches("n1", &secret("s")) && graph.reaches("n1", &secret("t")));
        // Without a node it is nobody's.
        graph.set_pod("ns/b", Some(&pod("", "t")));
        assert!(!graph.reaches("n1", &secret("t")) && !graph.reaches("", &secret("t")));
        assert!(graph.pods.is_empty() && graph.nodes.is_empty());
    }

    #[test]
    fn a_node_reaches_the_secrets_of_the_volumes_that_its_pods_claim() {
        let volume = json!({ "spec": {
            "claimRef": { "namespace": "ns", "name": "c" },
            "csi": { "nodeStageSecretRef": { "namespace": "other", "name": "stage" },
                     "controllerExpandSecretRef": { "namespace": "other", "name": "hidden" } },
        }});
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "spec": { "nodeName": "n1",
                      "volumes": [{ "persistentVolumeClaim": { "claimName": "c" } }] },
        });
        let stage = NamedObject::new(ReferencedKind::Secret, "other", "stage");
        let hidden = NamedObject::new(ReferencedKind::Secret, "other", "hidden");
        let mut graph = NodeGraph::default();
        graph.set_volume("v", Some(&volume));
        assert!(!graph.reaches("n1", &stage));
        graph.set_pod("ns/p", Some(&pod));
        assert!(graph.reaches("n1", &stage) && graph.uses_volume("n1", "v"));
        assert!(!graph.reaches("n1", &hidden) && !graph.reaches("n2", &stage));
        graph.set_volume("v", None);
        assert!(!graph.reaches("n1", &stage) && !graph.uses_volume("n1", "v"));
        assert!(graph.volumes.is_empty() && graph.volumes_of_secret.is_empty());
    }
}
