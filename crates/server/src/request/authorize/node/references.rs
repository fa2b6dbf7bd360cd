//! References: the objects that a pod or a volume names and that its kubelet reads.
//!
//! River: stored pod or volume → **references** → graph, admission of pods that nodes create.

use std::collections::BTreeSet;

use headwater_json::Value;

use crate::object::{meta, object_key};

/// The annotation of mirror pods, with which a node reports the pods that it runs on its own.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// An object that a pod or a volume may name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamedObject {
    pub(super) kind: ReferencedKind,
    /// `namespace/name`, or the name of what has no namespace.
    pub(super) key: Box<str>,
}

/// The kinds that pods and volumes name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ReferencedKind {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
}

impl NamedObject {
    pub(super) fn new(kind: ReferencedKind, namespace: &str, name: &str) -> NamedObject {
        NamedObject { kind, key: object_key(namespace, name).into() }
    }
}

/// The objects that a pod names. A mirror pod, which a node may create, names none.
pub(super) fn pod_references(pod: &Value) -> BTreeSet<NamedObject> {
    match pod["metadata"]["annotations"].get(MIRROR) {
        Some(_) => BTreeSet::new(),
        None => all_pod_references(pod),
    }
}

/// Whether a pod names an object of a kind.
pub(crate) fn names_any(pod: &Value, kind: ReferencedKind) -> bool {
    all_pod_references(pod).iter().any(|object| object.kind == kind)
}

fn all_pod_references(pod: &Value) -> BTreeSet<NamedObject> {
    let spec = &pod["spec"];
    let mut found = Found { namespace: meta(pod, "namespace"), objects: BTreeSet::new() };
    found.add(ReferencedKind::ServiceAccount, &spec["serviceAccountName"]);
    for secret in items(&spec["imagePullSecrets"]) {
        found.add(ReferencedKind::Secret, &secret["name"]);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items(&spec[list]).iter().for_each(|container| found.add_environment(container));
    }
    for volume in items(&spec["volumes"]) {
        found.add_volume(volume, meta(pod, "name"));
    }
    found.add_resource_claims(pod);
    found.objects
}

struct Found<'a> {
    namespace: &'a str,
    objects: BTreeSet<NamedObject>,
}

impl Found<'_> {
    fn add(&mut self, kind: ReferencedKind, name: &Value) {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            self.objects.insert(NamedObject::new(kind, self.namespace, name));
        }
    }

    fn add_environment(&mut self, container: &Value) {
        for source in items(&container["envFrom"]) {
            self.add(ReferencedKind::Secret, &source["secretRef"]["name"]);
            self.add(ReferencedKind::ConfigMap, &source["configMapRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            let source = &variable["valueFrom"];
            self.add(ReferencedKind::Secret, &source["secretKeyRef"]["name"]);
            self.add(ReferencedKind::ConfigMap, &source["configMapKeyRef"]["name"]);
        }
    }

    fn add_volume(&mut self, volume: &Value, pod: &str) {
        self.add(ReferencedKind::ConfigMap, &volume["configMap"]["name"]);
        self.add(ReferencedKind::Claim, &volume["persistentVolumeClaim"]["claimName"]);
        if volume.get("ephemeral").is_some() {
            let claim = format!("{pod}-{}", volume["name"].as_str().unwrap_or_default());
            self.add(ReferencedKind::Claim, &claim.into());
        }
        for source in items(&volume["projected"]["sources"]) {
            self.add(ReferencedKind::Secret, &source["secret"]["name"]);
            self.add(ReferencedKind::ConfigMap, &source["configMap"]["name"]);
        }
        // Whatever the type of the volume, a secret has one of these fields.
        for (_, source) in volume.as_object().into_iter().flatten() {
            self.add(ReferencedKind::Secret, &source["secretName"]);
            self.add(ReferencedKind::Secret, &source["secretRef"]["name"]);
            self.add(ReferencedKind::Secret, &source["nodePublishSecretRef"]["name"]);
        }
    }

    /// Claims that the pod names, and those that were made for it and are in its status.
    fn add_resource_claims(&mut self, pod: &Value) {
        for claim in items(&pod["spec"]["resourceClaims"]) {
            self.add(ReferencedKind::ResourceClaim, &claim["resourceClaimName"]);
        }
        let status = &pod["status"];
        for claim in items(&status["resourceClaimStatuses"]) {
            self.add(ReferencedKind::ResourceClaim, &claim["resourceClaimName"]);
        }
        let extended = &status["extendedResourceClaimStatus"]["resourceClaimName"];
        self.add(ReferencedKind::ResourceClaim, extended);
    }
}

/// The claim of a volume and the secrets that the kubelets of its pods read; `None` without a claim.
pub(super) fn volume_references(volume: &Value) -> Option<(NamedObject, BTreeSet<NamedObject>)> {
    let spec = &volume["spec"];
    let claim = &spec["claimRef"];
    let (namespace, name) = (claim["namespace"].as_str()?, claim["name"].as_str()?);
    let mut secrets = BTreeSet::new();
    let mut add = |namespace: &str, name: &str| {
        if !name.is_empty() {
            secrets.insert(NamedObject::new(ReferencedKind::Secret, namespace, name));
        }
    };
    for (_, source) in spec.as_object().into_iter().flatten() {
        let own = |value: &Value| value.as_str().unwrap_or(namespace).to_owned();
        add(&own(&source["secretNamespace"]), source["secretName"].as_str().unwrap_or_default());
        for reference in
            ["secretRef", "nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"]
        {
            let reference = &source[reference];
            add(&own(&reference["namespace"]), reference["name"].as_str().unwrap_or_default());
        }
    }
    Some((NamedObject::new(ReferencedKind::Claim, namespace, name), secrets))
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    #[test]
    fn every_reference_of_a_pod_is_found_and_none_of_a_mirror_pod() {
        let reference = |name: &str| json!({ "name": name });
        let mut pod = json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "spec": {
                "serviceAccountName": "robot",
                "imagePullSecrets": [reference("pull")],
                "initContainers": [{ "envFrom": [{ "secretRef": reference("s1") }] }],
                "containers": [{
                    "envFrom": [{ "configMapRef": reference("c1") }],
                    "env": [{ "valueFrom": { "secretKeyRef": reference("s2") } },
                            { "valueFrom": { "configMapKeyRef": reference("c2") } }],
                }],
                "ephemeralContainers": [{ "envFrom": [{ "secretRef": reference("s3") }] }],
                "volumes": [
                    { "name": "a", "secret": { "secretName": "s4" } },
                    { "name": "b", "configMap": reference("c3") },
                    { "name": "c", "projected": { "sources": [
                        { "secret": reference("s5") }, { "configMap": reference("c4") },
                    ] } },
                    { "name": "d", "csi": { "nodePublishSecretRef": reference("s6") } },
                    { "name": "e", "rbd": { "secretRef": reference("s7") } },
                    { "name": "f", "persistentVolumeClaim": { "claimName": "v1" } },
                    { "name": "g", "ephemeral": {} },
                ],
                "resourceClaims": [{ "name": "x", "resourceClaimName": "r1" }],
            },
            "status": { "resourceClaimStatuses": [{ "name": "y", "resourceClaimName": "r2" }] },
        });
        let named = |pod: &Value| -> Vec<String> {
            let found = pod_references(pod);
            found.iter().map(|object| format!("{:?} {}", object.kind, object.key)).collect()
        };
        let mut expected: Vec<String> = ["pull", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]
            .map(|s| format!("Secret ns/{s}"))
            .into();
        expected.extend(["c1", "c2", "c3", "c4"].map(|c| format!("ConfigMap ns/{c}")));
        expected
            .extend(["Claim ns/p-g", "Claim ns/v1", "ServiceAccount ns/robot"].map(str::to_owned));
        expected.extend(["r1", "r2"].map(|r| format!("ResourceClaim ns/{r}")));
        assert_eq!(named(&pod), expected);
        pod["metadata"]["annotations"][MIRROR] = "x".into();
        assert!(named(&pod).is_empty());
    }
}
