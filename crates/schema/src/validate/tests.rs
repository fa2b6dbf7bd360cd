//! Invalid objects and their error messages.

use headwater_json::json;
use proptest::prelude::*;

use super::*;
use crate::{decode, defaults};

mod kinds;

use headwater_api::kind::builtin;

fn kind(group: &str, name: &str) -> Kind {
    let mut kinds = builtin().into_iter();
    kinds.find(|kind| kind.group == group && kind.kind == name).unwrap()
}

/// The object as validation sees it: decoded, defaulted and prepared.
fn prepared(kind: &Kind, body: &Value) -> Value {
    let mut object = decode::refit(kind, body.clone(), None).unwrap().value;
    defaults::apply(kind, &mut object, None);
    defaults::prepare_for_create(kind, &mut object);
    object
}

fn texts(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(FieldError::to_string).collect()
}

/// Checks the errors of a create, each by its beginning.
#[track_caller]
fn refused(group: &str, name: &str, body: &Value, expected: &[&str]) {
    let kind = kind(group, name);
    compare(&texts(&create(&kind, &prepared(&kind, body))), expected);
}

#[track_caller]
fn compare(found: &[String], expected: &[&str]) {
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nshould begin\n{expected}");
    }
}

/// B137: with an error for each pair, this test does not end.
#[test]
fn no_error_is_for_a_pair_of_elements_of_two_lists() {
    const COUNT: usize = 10_000;
    let count = |group: &str, name: &str, body: &Value| {
        let kind = kind(group, name);
        create(&kind, &prepared(&kind, body)).len()
    };
    let devices = vec![json!({"name": "a", "devicePath": "/a"}); COUNT];
    let mounts = vec![json!({"name": "a", "mountPath": "/a"}); COUNT];
    let container = json!({
        "name": "c", "image": "i", "volumeDevices": devices, "volumeMounts": mounts,
    });
    let volumes: Vec<Value> = (0..COUNT).map(|n| json!({"name": format!("v{n}")})).collect();
    let spec = json!({"containers": [container], "volumes": volumes});
    let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
    assert!(count("", "Pod", &pod) < 20 * COUNT);

    let names = (0..COUNT).map(|n| (format!("hugepages-{n}Mi"), json!("1")));
    let hard: Value = names.collect();
    let requirements = vec![json!({"scopeName": "BestEffort", "operator": "Exists"}); COUNT];
    let spec = json!({
        "hard": hard, "scopes": vec!["None"; COUNT],
        "scopeSelector": {"matchExpressions": requirements},
    });
    let quota = json!({"metadata": {"name": "q", "namespace": "ns"}, "spec": spec});
    assert!(count("", "ResourceQuota", &quota) < 20 * COUNT);
}

#[track_caller]
fn refused_change(group: &str, name: &str, body: &Value, change: &Value, expected: &[&str]) {
    let kind = kind(group, name);
    let old = prepared(&kind, body);
    refused_change_of(&kind, &old, change, expected);
}

#[track_caller]
fn refused_change_of(kind: &Kind, old: &Value, change: &Value, expected: &[&str]) {
    let mut new = old.clone();
    merge(&mut new, change);
    let mut new = decode::refit(kind, new, None).unwrap().value;
    defaults::apply(kind, &mut new, None);
    defaults::prepare_for_update(kind, &mut new, old);
    compare(&texts(&update(kind, &new, old)), expected);
}

fn merge(object: &mut Value, change: &Value) {
    match (object, change) {
        (Value::Object(object), Value::Object(change)) => {
            for (key, value) in change {
                merge(object.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (object, change) => *object = change.clone(),
    }
}

fn pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}

fn pod_with(change: &Value) -> Value {
    let mut pod = pod();
    merge(&mut pod, change);
    pod
}

fn workload() -> Value {
    json!({"metadata": {"name": "d", "namespace": "n"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}}})
}

fn workload_with(change: &Value) -> Value {
    let mut workload = workload();
    merge(&mut workload, change);
    workload
}

#[test]
fn valid_objects_pass() {
    let accept = |group: &str, name: &str, body: &Value| refused(group, name, body, &[]);
    accept("", "Pod", &pod());
    for name in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"] {
        accept("apps", name, &workload());
    }
    accept("", "Service", &json!({"spec": {"ports": [{"port": 80}]}}));
    accept("", "Service", &json!({"spec": {"clusterIP": "None"}}));
    accept(
        "",
        "Service",
        &json!({"spec": {"type": "ExternalName", "externalName": "a.example.com"}}),
    );
    accept("", "ConfigMap", &json!({"data": {"a": "b"}, "binaryData": {"c": "AA=="}}));
    accept("", "Secret", &json!({"stringData": {"a": "b"}}));
    accept("", "Namespace", &json!({"metadata": {"name": "n"}}));
    accept("", "Node", &json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}}));
    accept(
        "",
        "PersistentVolumeClaim",
        &json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    accept(
        "",
        "PersistentVolume",
        &json!({"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}}),
    );
    accept("storage.k8s.io", "StorageClass", &json!({"provisioner": "example.com/x"}));
    accept(
        "batch",
        "Job",
        &json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}),
    );
    accept(
        "batch",
        "CronJob",
        &json!({"spec": {"schedule": "*/5 0-6 1,15 jan mon-fri/2", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}}),
    );
    accept(
        "networking.k8s.io",
        "Ingress",
        &json!({"spec": {"rules": [{"host": "*.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}}),
    );
    accept(
        "networking.k8s.io",
        "NetworkPolicy",
        &json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}]}}),
    );
    accept(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "behavior": {"scaleUp": {}}}}),
    );
    accept("policy", "PodDisruptionBudget", &json!({"spec": {"minAvailable": "50%"}}));
    accept(
        "rbac.authorization.k8s.io",
        "Role",
        &json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}),
    );
    accept(
        "rbac.authorization.k8s.io",
        "ClusterRole",
        &json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
    );
    accept(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        &json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]}),
    );
    accept("coordination.k8s.io", "Lease", &json!({"spec": {"leaseDurationSeconds": 15}}));
    accept(
        "",
        "Event",
        &json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "n"}}),
    );
    accept(
        "",
        "Endpoints",
        &json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}]}]}),
    );
    accept(
        "discovery.k8s.io",
        "EndpointSlice",
        &json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 1}]}),
    );
    accept(
        "scheduling.k8s.io",
        "PriorityClass",
        &json!({"metadata": {"name": "high"}, "value": 10}),
    );
    accept(
        "scheduling.k8s.io",
        "PriorityClass",
        &json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}),
    );
    accept(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &json!({"metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "p"}, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}], "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true}]}]}}),
    );
    accept(
        "flowcontrol.apiserver.k8s.io",
        "PriorityLevelConfiguration",
        &json!({"metadata": {"name": "p"}, "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}}),
    );
    accept(
        "",
        "ResourceQuota",
        &json!({"spec": {"hard": {"pods": "10", "requests.cpu": "4", "count/deployments.apps": "3"}}}),
    );
    accept(
        "",
        "LimitRange",
        &json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "100m"}}]}}),
    );
}

#[test]
fn invalid_pods_have_kubernetes_messages() {
    let check = |change: &Value, expected: &[&str]| refused("", "Pod", &pod_with(change), expected);
    check(&json!({"spec": {"containers": []}}), &["spec.containers: Required value"]);
    check(
        &json!({"spec": {"containers": [{"name": "C_", "ports": [{"containerPort": 0}, {"containerPort": 99999, "name": "80", "protocol": "X"}]}]}}),
        &[
            "spec.containers[0].name: Invalid value: \"C_\": a lowercase RFC 1123 label",
            "spec.containers[0].image: Required value",
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].ports[1].name: Invalid value: \"80\": must contain at least one letter (a-z)",
            "spec.containers[0].ports[1].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[1].protocol: Unsupported value: \"X\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    check(
        &json!({"spec": {"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": " i"}], "restartPolicy": "Sometimes"}}),
        &[
            "spec.containers[1].image: Invalid value: \" i\": must not have leading or trailing whitespace",
            "spec.containers[1].name: Duplicate value: \"c\"",
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ],
    );
    check(
        &json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}, "configMap": {}}, {"name": "v", "secret": {"secretName": "s", "defaultMode": 512}}],
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "w", "mountPath": "/x"}, {"name": "v", "mountPath": "/x", "subPath": "../y"}]}]}}),
        &[
            "spec.volumes[1].name: Duplicate value: \"v\"",
            "spec.containers[0].volumeMounts[0].name: Not found: \"w\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/x\": must be unique",
            "spec.containers[0].volumeMounts[1].subPath: Invalid value: \"../y\": must not contain '..'",
            "spec.volumes[0].emptyDir: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[0].configMap.name: Required value",
            "spec.volumes[1].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
        ],
    );
    check(
        &json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2", "example.com/gpu": "1", "storage": "1"}, "limits": {"cpu": "1", "memory": "-1"}}}]}}),
        &[
            "spec.containers[0].resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
            "spec.containers[0].resources.requests[storage]: Invalid value: \"storage\": must be a standard resource for containers",
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ],
    );
    check(
        &json!({"spec": {"containers": [{"name": "c", "image": "i", "livenessProbe": {"successThreshold": 2, "exec": {"command": ["a"]}, "httpGet": {"port": "http"}}, "env": [{"name": "", "value": "x"}, {"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}], "envFrom": [{}]}]}}),
        &[
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            "spec.containers[0].env[0].name: Required value",
            "spec.containers[0].env[1].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type",
        ],
    );
    check(
        &json!({"spec": {"tolerations": [{"operator": "Equal"}, {"key": "k", "operator": "Exists", "value": "v"}], "nodeSelector": {"a": "-"}, "initContainers": [{"name": "c", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]}}),
        &[
            "spec.nodeSelector: Invalid value: \"-\": a valid label must be",
            "spec.initContainers[0].name: Duplicate value: \"c\"",
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty",
            "spec.tolerations[1].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'",
        ],
    );
}

#[test]
fn invalid_workloads_have_kubernetes_messages() {
    let check = |name: &str, change: &Value, expected: &[&str]| {
        refused("apps", name, &workload_with(change), expected);
    };
    check(
        "Deployment",
        &json!({"spec": {"selector": null}}),
        &["spec.selector: Required value", "spec.template.metadata.labels: Invalid value"],
    );
    check(
        "Deployment",
        &json!({"spec": {"selector": {"matchLabels": {"a": "x"}}, "replicas": -1}}),
        &[
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
        ],
    );
    check(
        "Deployment",
        &json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}, "template": {"spec": {"restartPolicy": "Never"}}}}),
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
        ],
    );
    check(
        "Deployment",
        &json!({"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": "200%", "maxSurge": "x"}}}}),
        &[
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"200%\": must not be greater than 100%",
            "spec.strategy.rollingUpdate.maxSurge: Invalid value: \"x\": a valid percent string",
        ],
    );
    check(
        "StatefulSet",
        &json!({"spec": {"podManagementPolicy": "Maybe", "selector": {"matchLabels": null}}}),
        &[
            "spec.selector: Invalid value: {}: empty selector is invalid for statefulset",
            "spec.podManagementPolicy: Invalid value: \"Maybe\": must be 'OrderedReady' or 'Parallel'",
        ],
    );
    check(
        "DaemonSet",
        &json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}}),
        &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
        ],
    );
    refused(
        "batch",
        "Job",
        &json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        &[
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ],
    );
    refused(
        "batch",
        "CronJob",
        &json!({"metadata": {"name": "x".repeat(53)}, "spec": {"schedule": "* * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}}),
        &[
            "spec.schedule: Invalid value: \"* * * *\": expected exactly 5 fields, found 4: [* * * *]",
            "metadata.name: Invalid value: \"xxx",
        ],
    );
}

#[test]
fn invalid_services_and_network_objects_have_kubernetes_messages() {
    refused("", "Service", &json!({}), &["spec.ports: Required value"]);
    refused(
        "",
        "Service",
        &json!({"spec": {"type": "Odd", "ports": [{"port": 0, "targetPort": "-"}, {"port": 0, "name": "a", "nodePort": 30000}], "sessionAffinity": "x", "externalTrafficPolicy": "Local"}}),
        &[
            "spec.sessionAffinity: Unsupported value: \"x\": supported values: \"ClientIP\", \"None\"",
            "spec.type: Unsupported value: \"Odd\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            "spec.ports[0].name: Required value",
            "spec.ports[1]: Duplicate value: {\"port\":0,\"protocol\":\"TCP\"}",
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: \"-\": must contain at least one letter (a-z)",
            "spec.ports[0].targetPort: Invalid value: \"-\": must not begin or end with a hyphen",
            "spec.ports[1].port: Invalid value: 0",
            "spec.ports[1].targetPort: Invalid value: 0",
        ],
    );
    refused(
        "",
        "Service",
        &json!({"spec": {"ports": [{"port": 80, "nodePort": 30000}], "clusterIP": "10.0.0.256", "loadBalancerClass": "a"}}),
        &[
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
            "spec.clusterIPs[0]: Invalid value: \"10.0.0.256\": must be a valid IP address",
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ],
    );
    refused(
        "networking.k8s.io",
        "Ingress",
        &json!({"spec": {"rules": [{"host": "1.2.3.4", "http": {"paths": [{"path": "x", "pathType": "Exact", "backend": {"service": {"name": "s", "port": {}}}}, {"backend": {}}]}}]}}),
        &[
            "spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
            "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
            "spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path",
            "spec.rules[0].http.paths[1].pathType: Required value: pathType must be specified",
        ],
    );
    refused(
        "networking.k8s.io",
        "NetworkPolicy",
        &json!({"spec": {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}, "ingress": [{"from": [{}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}, "podSelector": {}}], "ports": [{"port": 5, "endPort": 3}]}]}}),
        &[
            "spec.ingress[0].from[0]: Required value: must specify a peer",
            "spec.ingress[0].from[1]: Forbidden: may not specify both ipBlock and another peer",
            "spec.ingress[0].from[1].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
            "spec.ingress[0].ports[0].endPort: Invalid value: 5: must be greater than or equal to `port`",
            "spec.podSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ],
    );
    refused(
        "discovery.k8s.io",
        "EndpointSlice",
        &json!({"addressType": "IPv4", "endpoints": [{"addresses": []}, {"addresses": ["::1", "127.0.0.1"]}]}),
        &[
            "endpoints[1].addresses: Invalid value: \"::1\": must be an IPv4 address",
            "endpoints[1].addresses[0]: Invalid value: \"::1\": may not be in the loopback range",
            "endpoints[1].addresses[1]: Invalid value: \"127.0.0.1\": may not be in the loopback range",
            "endpoints[0].addresses: Required value: must contain at least 1 address",
        ],
    );
}

#[test]
fn invalid_configuration_has_kubernetes_messages() {
    refused(
        "",
        "ConfigMap",
        &json!({"data": {"a/b": "", "..": "", "x": ""}, "binaryData": {"x": ""}}),
        &[
            "data[..]: Invalid value: \"..\": must not be '..'",
            "data[a/b]: Invalid value: \"a/b\": a valid config key must",
            "data[x]: Invalid value: \"x\": duplicate of key present in binaryData",
        ],
    );
    let large = json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}});
    refused("", "ConfigMap", &large, &["[]: Too long: may not be more than 1048576 bytes"]);
    refused(
        "",
        "Secret",
        &json!({"type": "kubernetes.io/tls"}),
        &["data[tls.crt]: Required value", "data[tls.key]: Required value"],
    );
    refused(
        "rbac.authorization.k8s.io",
        "Role",
        &json!({"rules": [{"verbs": [], "nonResourceURLs": ["/x"]}, {"verbs": ["get"]}]}),
        &[
            "rules[0].verbs: Required value: verbs must contain at least one value",
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            "rules[1].apiGroups: Required value: resource rules must supply at least one api group",
            "rules[1].resources: Required value: resource rules must supply at least one resource",
        ],
    );
    refused(
        "rbac.authorization.k8s.io",
        "ClusterRoleBinding",
        &json!({"roleRef": {"kind": "Role", "name": ""}, "subjects": [{"kind": "ServiceAccount", "name": "s"}, {"kind": "Robot", "name": "r"}]}),
        &[
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
            "roleRef.name: Required value",
            "subjects[0].namespace: Required value",
            "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ],
    );
    refused(
        "",
        "PersistentVolumeClaim",
        &json!({"spec": {"accessModes": ["Never"]}}),
        &[
            "spec.accessModes: Unsupported value: \"Never\"",
            "spec.resources[storage]: Required value",
        ],
    );
    refused(
        "",
        "PersistentVolume",
        &json!({}),
        &[
            "spec.accessModes: Required value",
            "spec.capacity: Required value",
            "spec.capacity: Unsupported value: null",
            "spec: Required value: must specify a volume type",
        ],
    );
    let volume = |extra: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
        merge(&mut spec, &extra);
        json!({ "spec": spec })
    };
    for (source, expected) in [
        (
            json!({"nfs": {"server": "s", "path": "/p"}, "csi": {"driver": "d", "volumeHandle": "h"}}),
            &["spec.csi: Forbidden: may not specify more than 1 volume type"][..],
        ),
        (
            json!({"nfs": {"server": "", "path": "p"}}),
            &[
                "spec.nfs.server: Required value",
                "spec.nfs.path: Invalid value: \"p\": must be an absolute path",
            ],
        ),
        (
            json!({"csi": {"driver": "-d", "volumeHandle": ""}}),
            &[
                "spec.csi.driver: Invalid value: \"-d\": a lowercase RFC 1123 subdomain",
                "spec.csi.volumeHandle: Required value",
            ],
        ),
        (
            json!({"local": {"path": "/a/../b"}}),
            &[
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
                "spec.local.path: Invalid value: \"/a/../b\": must not contain '..'",
            ],
        ),
        (
            json!({"hostPath": {"path": "/./"}, "persistentVolumeReclaimPolicy": "Recycle"}),
            &[
                "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
            ],
        ),
        (
            json!({"fc": {"targetWWNs": ["w"]}}),
            &["spec.fc.lun: Required value: lun is required if targetWWNs is specified"],
        ),
        (
            json!({"fc": {}}),
            &["spec.fc.targetWWNs: Required value: must specify either targetWWNs or wwids"],
        ),
        (
            json!({"hostPath": {"path": "/x"}, "nodeAffinity": {}}),
            &["spec.nodeAffinity.required: Required value: must specify required node constraints"],
        ),
        (
            json!({"hostPath": {"path": "/x"}, "volumeAttributesClassName": ""}),
            &[
                "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
                "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
            ],
        ),
        (
            json!({"iscsi": {"targetPortal": "", "iqn": "", "lun": 256}}),
            &[
                "spec.iscsi.targetPortal: Required value",
                "spec.iscsi.iqn: Required value",
                "spec.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
            ],
        ),
    ] {
        refused("", "PersistentVolume", &volume(source), expected);
    }
    refused(
        "scheduling.k8s.io",
        "PriorityClass",
        &json!({"metadata": {"name": "x"}, "value": 1_000_000_001}),
        &["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"],
    );
    refused(
        "coordination.k8s.io",
        "Lease",
        &json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1}}),
        &[
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    refused(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &json!({"spec": {"minReplicas": 2, "metrics": [{"type": "Pods"}]}}),
        &[
            "spec.maxReplicas: Required value: must be set and greater than 0",
            "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
            "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
            "spec.metrics[0].pods: Required value: must populate information for the given metric source",
            "spec.scaleTargetRef.kind: Required value",
            "spec.scaleTargetRef.name: Required value",
        ],
    );
    refused(
        "policy",
        "PodDisruptionBudget",
        &json!({"spec": {"minAvailable": 1, "maxUnavailable": "101%"}}),
        &[
            "spec.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            "spec: Invalid value: {",
        ],
    );
    refused(
        "",
        "Event",
        &json!({"metadata": {"namespace": "n"}, "involvedObject": {"namespace": "m"}}),
        &["involvedObject.namespace: Invalid value: \"m\": does not match event.namespace"],
    );
    refused(
        "",
        "LimitRange",
        &json!({"spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}, "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}]}}),
        &[
            "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            "spec.limits[0].defaultRequest[cpu]: Invalid value: \"1\": min value 2 is greater than default request value 1",
            "spec.limits[0].default[cpu]: Invalid value: \"1\": min value 2",
        ],
    );
    refused(
        "",
        "Node",
        &json!({"spec": {"taints": [{"key": "a", "effect": "Odd"}, {"key": "a"}]}}),
        &[
            "metadata.taints[0].effect: Unsupported value: \"Odd\"",
            "metadata.taints[1].effect: Required value",
        ],
    );
    refused(
        "flowcontrol.apiserver.k8s.io",
        "FlowSchema",
        &json!({"metadata": {"name": "f"}, "spec": {"matchingPrecedence": 1, "rules": [{"subjects": [{"kind": "User"}]}]}}),
        &[
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
            "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
            "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
            "spec.rules[0].subjects[0].user: Required value: user is required when subject kind is 'User'",
        ],
    );
}

#[test]
fn immutable_fields_cannot_change() {
    let secret = json!({"type": "a/b", "data": {"a": "YQ=="}});
    refused_change(
        "",
        "Secret",
        &secret,
        &json!({"type": "a/c"}),
        &["type: Invalid value: \"a/c\": field is immutable"],
    );
    let frozen = json!({"data": {"v": "1"}, "immutable": true});
    refused_change(
        "",
        "ConfigMap",
        &frozen,
        &json!({"data": {"v": "2"}}),
        &["data: Forbidden: field is immutable when `immutable` is set"],
    );
    refused_change(
        "",
        "ConfigMap",
        &frozen,
        &json!({"immutable": null}),
        &["immutable: Forbidden: field is immutable when `immutable` is set"],
    );
    refused_change(
        "apps",
        "Deployment",
        &workload(),
        &json!({"spec": {"selector": {"matchLabels": {"c": "d"}}, "template": {"metadata": {"labels": {"c": "d"}}}}}),
        &[
            "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: field is immutable",
        ],
    );
    refused_change(
        "apps",
        "StatefulSet",
        &workload(),
        &json!({"spec": {"serviceName": "x"}}),
        &[
            "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals',",
        ],
    );
    refused_change("apps", "StatefulSet", &workload(), &json!({"spec": {"replicas": 5}}), &[]);
    let role = json!({"roleRef": {"kind": "Role", "name": "r"}});
    refused_change(
        "rbac.authorization.k8s.io",
        "RoleBinding",
        &role,
        &json!({"roleRef": {"name": "s"}}),
        &["roleRef: Invalid value: {"],
    );
    let class = json!({"provisioner": "p"});
    refused_change(
        "storage.k8s.io",
        "StorageClass",
        &class,
        &json!({"provisioner": "q"}),
        &["provisioner: Invalid value: \"q\": field is immutable"],
    );
    let service = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}});
    refused_change(
        "",
        "Service",
        &service,
        &json!({"spec": {"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]}}),
        &["spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"],
    );
    refused_change(
        "",
        "Service",
        &service,
        &json!({"spec": {"clusterIP": null, "clusterIPs": null}}),
        &[],
    );
    let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    refused_change("", "PersistentVolumeClaim", &claim, &json!({"spec": {"volumeName": "v"}}), &[]);
    refused_change(
        "",
        "PersistentVolumeClaim",
        &claim,
        &json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
        &["spec: Forbidden: spec is immutable after creation except resources.requests"],
    );
}

#[test]
fn only_few_fields_of_a_pod_may_change() {
    let check =
        |change: &Value, expected: &[&str]| refused_change("", "Pod", &pod(), change, expected);
    check(&json!({"metadata": {"labels": {"a": "b"}}}), &[]);
    check(
        &json!({"spec": {"containers": [{"name": "c", "image": "i:2", "imagePullPolicy": "IfNotPresent"}]}}),
        &[],
    );
    check(&json!({"spec": {"activeDeadlineSeconds": 5}}), &[]);
    check(&json!({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}), &[]);
    check(
        &json!({"spec": {"hostname": "h"}}),
        &[
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,",
        ],
    );
    check(
        &json!({"spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "i:1"}]}}),
        &["spec.containers: Forbidden: pod updates may not add or remove containers"],
    );
}

#[test]
fn schedules_parse_as_cron_expressions() {
    for good in ["* * * * *", "0 0 1 1 0", "@hourly", "@every 1h", "*/15 0-5,7 ? JAN-mar Sun"] {
        refused_schedule(good, None);
    }
    refused_schedule("60 * * * *", Some("end of range (60) above maximum (59): 60"));
    refused_schedule("* * 0 * *", Some("beginning of range (0) below minimum (1): 0"));
    refused_schedule("5-1 * * * *", Some("beginning of range (5) beyond end of range (1): 5-1"));
    refused_schedule("*/0 * * * *", Some("step of range should be a positive number: */0"));
    refused_schedule("x * * * *", Some("failed to parse int from x"));
    refused_schedule("@reboot", Some("unrecognized descriptor: @reboot"));
}

#[test]
fn pods_of_an_invalid_selection_are_not_checked() {
    let spec = json!({
        "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": []}]},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "Bad"}]}},
    });
    let selector = ["spec.selector.matchExpressions[0].values: Required", "spec.selector: Invalid"];
    let name = "spec.template.spec.containers[0].name: Invalid";
    let found = |kind: &str| -> Vec<String> {
        let kind = self::kind("apps", kind);
        let mut found = texts(&create(&kind, &prepared(&kind, &json!({"spec": spec}))));
        found.retain(|text| !text.contains("image") && !text.contains("serviceName"));
        found.sort();
        found
    };
    for kind in ["Deployment", "ReplicaSet", "StatefulSet"] {
        compare(&found(kind), &selector);
    }
    assert!(found("DaemonSet").iter().any(|text| text.starts_with(name)));
}

#[test]
fn a_suspended_job_changes_where_its_pods_run_and_what_they_request() {
    let kind = kind("batch", "Job");
    let pod = |cpu: &str, image: &str, affinity: Value| {
        json!({"spec": {"template": {"spec": {
            "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}}],
            "restartPolicy": "Never", "affinity": affinity,
        }}}})
    };
    let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "a", "labelSelector": {"matchLabels": {"a": "b"}}}]}});
    let node = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}});
    let job = |affinity: &Value, status: Value| {
        let mut job = pod("1", "x", affinity.clone());
        job["spec"]["suspend"] = true.into();
        job["spec"]["selector"] = json!({"matchLabels": {"a": "b"}});
        job["spec"]["manualSelector"] = true.into();
        job["spec"]["template"]["metadata"] = json!({"labels": {"a": "b"}});
        let mut job = prepared(&kind, &job);
        job["status"] = status;
        job
    };
    let template = "spec.template: Invalid value";
    let check = |old: &Value, change: &Value, expected: &[&str]| {
        refused_change_of(&kind, old, change, expected);
    };
    let fresh = job(&Value::Null, json!({}));
    check(&fresh, &pod("2", "x", node), &[]);
    check(&fresh, &pod("1", "y", Value::Null), &[template]);
    check(&fresh, &pod("1", "x", near.clone()), &[template]);
    check(&job(&near, json!({})), &pod("1", "x", json!({"podAffinity": null})), &[template]);
    let suspended = json!([{"type": "Suspended", "status": "True"}]);
    let at = "2026-01-01T00:00:00Z";
    let stopped = job(&Value::Null, json!({"startTime": at, "conditions": suspended}));
    check(&stopped, &pod("2", "x", Value::Null), &[]);
    let running = job(&Value::Null, json!({"startTime": at, "active": 1, "conditions": suspended}));
    check(&running, &pod("2", "x", Value::Null), &[template]);
}

#[test]
fn only_the_part_of_a_level_that_is_of_its_type_is_checked() {
    let queuing = json!({"queues": 4, "handSize": 9, "queueLengthLimit": 5});
    let level = |of: &str, response: &str| {
        json!({"spec": {"type": of, "limited": {
            "limitResponse": {"type": response, "queuing": queuing},
        }}})
    };
    let check = |body: Value, expected: &[&str]| {
        refused("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", &body, expected);
    };
    let hand = "spec.limited.limitResponse.queuing.handSize: Invalid";
    check(level("Limited", "Queue"), &[hand]);
    check(level("Other", "Queue"), &["spec.type: Unsupported value"]);
    check(level("Limited", "Other"), &["spec.limited.limitResponse.type: Unsupported value"]);
}

#[test]
fn an_empty_list_of_scaling_policies_is_not_replaced_by_the_default() {
    let body = json!({"spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 2,
        "behavior": {"scaleUp": {"policies": []}},
    }});
    let expected = ["spec.behavior.scaleUp.policies: Required value"];
    refused("autoscaling", "HorizontalPodAutoscaler", &body, &expected);
}

#[track_caller]
fn refused_schedule(schedule: &str, why: Option<&str>) {
    let body = json!({"spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}});
    let expected = why.map(|why| format!("spec.schedule: Invalid value: \"{schedule}\": {why}"));
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    refused("batch", "CronJob", &body, &expected);
}

proptest! {
    /// Fields with values of the right type but arbitrary content, in any kind.
    #[test]
    fn no_decodable_object_makes_it_panic(
        pick in any::<prop::sample::Index>(),
        words in prop::collection::vec("[a-z*/0-9.% -]{0,6}", 8),
        numbers in prop::collection::vec(any::<i32>(), 8),
        old in any::<bool>(),
    ) {
        let kinds = builtin();
        let kind = pick.get(&kinds);
        let types = Types::builtin();
        let Some(of) = types.of(kind) else { return Ok(()) };
        let mut filler = Filler { types, words: &words, numbers: &numbers, turn: 0 };
        let first = filler.object(of, 0);
        let second = filler.object(of, 0);
        for mut object in [first, second.clone()] {
            if let Ok(decoded) = decode::refit(kind, object.clone(), None) {
                object = decoded.value;
            }
            defaults::apply(kind, &mut object, None);
            defaults::prepare_for_create(kind, &mut object);
            create(kind, &object);
            if old {
                defaults::prepare_for_update(kind, &mut object, &second);
                update(kind, &object, &second);
            }
        }
    }
}

/// Fills every field of a type.
struct Filler<'a> {
    types: &'a Types,
    words: &'a [String],
    numbers: &'a [i32],
    turn: usize,
}

impl Filler<'_> {
    fn object(&mut self, of: &Type, depth: usize) -> Value {
        let fields = of.fields.iter().filter(|field| !matches!(field.name, "apiVersion" | "kind"));
        let mut object = Map::new();
        for field in fields {
            self.turn += 1;
            if !self.turn.is_multiple_of(3) || depth == 0 {
                object.insert(field.name.into(), self.value(&field.shape, depth));
            }
        }
        Value::Object(object)
    }

    fn value(&mut self, shape: &ValueType, depth: usize) -> Value {
        self.turn += 1;
        let word = self.words[self.turn % self.words.len()].as_str();
        let number = self.numbers[self.turn % self.numbers.len()];
        match shape {
            ValueType::Text => word.into(),
            ValueType::Int32 | ValueType::Int64 => number.into(),
            ValueType::Float => f64::from(number).into(),
            ValueType::Bool => (number % 2 == 0).into(),
            ValueType::Bytes => "YQ==".into(),
            ValueType::Time => "2024-01-01T00:00:00Z".into(),
            ValueType::MicroTime => "2024-01-01T00:00:00.000000Z".into(),
            ValueType::Quantity => number.to_string().into(),
            ValueType::IntOrString if number % 2 == 0 => number.into(),
            ValueType::IntOrString => word.into(),
            ValueType::Struct(id) if depth < 6 => self.object(self.types.get(*id), depth + 1),
            ValueType::List(inner) | ValueType::Wrapped(inner) if depth < 6 => {
                (0..2).map(|_| self.value(inner, depth + 1)).collect()
            }
            ValueType::Map(inner) if depth < 6 => json!({ word: self.value(inner, depth + 1) }),
            _ => Value::Null,
        }
    }
}

#[test]
fn security_profiles_need_exactly_their_fields() {
    let seccomp = |profile: Value, expected: &[&str]| {
        let pod = json!({"spec": {
            "securityContext": {"seccompProfile": profile},
            "containers": [{"name": "c", "image": "i"}],
        }});
        let expected: Vec<String> = expected
            .iter()
            .map(|text| format!("spec.securityContext.seccompProfile.{text}"))
            .collect();
        refused("", "Pod", &pod, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    seccomp(json!({"type": "RuntimeDefault"}), &[]);
    seccomp(json!({"type": "Localhost", "localhostProfile": "p/q.json"}), &[]);
    seccomp(json!({}), &["type: Required value: type is required when seccompProfile is set"]);
    seccomp(
        json!({"type": "Cats"}),
        &[
            "type: Unsupported value: \"Cats\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
        ],
    );
    seccomp(
        json!({"type": "Localhost"}),
        &["localhostProfile: Required value: must be set when seccomp type is Localhost"],
    );
    seccomp(
        json!({"type": "Localhost", "localhostProfile": "/a/../b"}),
        &[
            "localhostProfile: Invalid value: \"/a/../b\": must be a relative path",
            "localhostProfile: Invalid value: \"/a/../b\": must not contain '..'",
        ],
    );
    seccomp(
        json!({"type": "Unconfined", "localhostProfile": "p"}),
        &[
            "localhostProfile: Invalid value: {\"localhostProfile\":\"p\",\"type\":\"Unconfined\"}: can only be set when seccomp type is Localhost",
        ],
    );
    let armor = |profile: Value, expected: &str| {
        let pod = json!({"spec": {"containers": [
            {"name": "c", "image": "i", "securityContext": {"appArmorProfile": profile}},
        ]}});
        let field = "spec.containers[0].securityContext.appArmorProfile";
        refused("", "Pod", &pod, &[&format!("{field}.{expected}")]);
    };
    armor(json!({}), "type: Required value: type is required when appArmorProfile is set");
    armor(json!({"type": "Cats"}), "type: Unsupported value: \"Cats\"");
    armor(
        json!({"type": "Localhost"}),
        "localhostProfile: Required value: must be set when AppArmor type is Localhost",
    );
    armor(
        json!({"type": "Localhost", "localhostProfile": " p"}),
        "localhostProfile: Invalid value: \" p\": must not be padded with whitespace",
    );
    armor(
        json!({"type": "RuntimeDefault", "localhostProfile": "p"}),
        "localhostProfile: Invalid value: \"p\": can only be set when AppArmor type is Localhost",
    );
}

#[test]
fn invalid_job_policies_are_rejected() {
    let job = |extra: Value| {
        let mut job = json!({
            "metadata": {"name": "j", "uid": "u"},
            "spec": {"template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}],
            }}},
        });
        merge(&mut job["spec"], &extra);
        job
    };
    let failure = |rule: Value, expected: &[&str]| {
        let expected: Vec<String> =
            expected.iter().map(|text| format!("spec.podFailurePolicy.rules[0]{text}")).collect();
        let job = job(json!({"podFailurePolicy": {"rules": [rule]}}));
        refused("batch", "Job", &job, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let codes = |operator: &str, values: &[i32]| json!({"operator": operator, "values": values});
    failure(json!({"action": "FailJob", "onExitCodes": codes("In", &[1, 42])}), &[]);
    failure(json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}), &[]);
    failure(
        json!({"onExitCodes": codes("In", &[1])}),
        &[
            ".action: Required value: valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
        ],
    );
    failure(
        json!({"action": "FailIndex", "onExitCodes": codes("In", &[1])}),
        &[".action: Invalid value: \"FailIndex\": requires the backoffLimitPerIndex to be set"],
    );
    failure(
        json!({"action": "Cats"}),
        &[
            ".action: Unsupported value: \"Cats\": supported values: \"Count\", \"FailIndex\"",
            ": Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ],
    );
    failure(
        json!({"action": "Count", "onExitCodes": codes("In", &[0, 2, 1, 2])}),
        &[
            ".onExitCodes.values[0]: Invalid value: 0: must not be 0 for the In operator",
            ".onExitCodes.values[3]: Duplicate value: 2",
            ".onExitCodes.values: Invalid value: [0,2,1,2]: must be ordered",
        ],
    );
    failure(
        json!({
            "action": "Count",
            "onExitCodes": {"operator": "Cats", "containerName": "other", "values": []},
            "onPodConditions": [{"type": "-", "status": "Maybe"}],
        }),
        &[
            ".onExitCodes.operator: Unsupported value: \"Cats\": supported values: \"In\", \"NotIn\"",
            ".onExitCodes.containerName: Invalid value: \"other\": must be one of the container",
            ".onExitCodes.values: Invalid value: null",
            ".onPodConditions[0].type: Invalid value: \"-\"",
            ".onPodConditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\"",
            ": Invalid value: specifying both OnExitCodes and OnPodConditions is not supported",
        ],
    );
    let success = |rule: Value, expected: &[&str]| {
        let expected: Vec<String> =
            expected.iter().map(|text| format!("spec.successPolicy.rules[0]{text}")).collect();
        let job = job(json!({
            "completionMode": "Indexed", "completions": 5, "parallelism": 1,
            "successPolicy": {"rules": [rule]},
        }));
        refused("batch", "Job", &job, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    };
    success(json!({"succeededIndexes": "0,2-4", "succeededCount": 4}), &[]);
    success(json!({}), &[": Required value: at least one of succeededCount or succeededIndexes"]);
    success(
        json!({"succeededIndexes": "1,1"}),
        &[
            ".succeededIndexes: Invalid value: \"1,1\": error parsing succeededIndexes: non-increasing order, previous: 1, current: 1",
        ],
    );
    success(
        json!({"succeededIndexes": "0-5"}),
        &[
            ".succeededIndexes: Invalid value: \"0-5\": error parsing succeededIndexes: too large index: \"5\"",
        ],
    );
    success(
        json!({"succeededIndexes": "0-1", "succeededCount": 3}),
        &[
            ".succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes",
        ],
    );
    refused(
        "batch",
        "Job",
        &job(json!({"successPolicy": {"rules": [{"succeededCount": 1}]}})),
        &[
            "spec.successPolicy: Invalid value: {\"rules\":[{\"succeededCount\":1}]}: requires indexed completion mode",
        ],
    );
}

#[test]
fn invalid_certificate_signing_requests_are_rejected() {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let block = |name: &str, body: &str| {
        encode(&format!("-----BEGIN {name}-----\n{body}\n-----END {name}-----\n"))
    };
    let good = block("CERTIFICATE REQUEST", "MAMCAQE=");
    let request = |extra: Value| {
        let mut spec =
            json!({"request": good, "signerName": "example.com/s", "usages": ["client auth"]});
        merge(&mut spec, &extra);
        json!({"metadata": {"name": "c"}, "spec": spec})
    };
    let check = |extra: Value, expected: &[&str]| {
        refused("certificates.k8s.io", "CertificateSigningRequest", &request(extra), expected);
    };
    check(json!({}), &[]);
    check(json!({"expirationSeconds": 600}), &[]);
    for wrong in [
        encode("x"),
        String::new(),
        block("CERTIFICATE", "MAMCAQE="),
        block("CERTIFICATE REQUEST", "!"),
    ] {
        let expected = format!(
            "spec.request: Invalid value: {}: PEM block type must be CERTIFICATE REQUEST",
            json!(wrong)
        );
        check(json!({ "request": wrong }), &[&expected]);
    }
    let cut = block("CERTIFICATE REQUEST", "MAUCAQE=");
    check(json!({ "request": cut }), &["spec.request: Invalid value: "]);
    check(json!({"usages": []}), &["spec.usages: Required value"]);
    check(
        json!({"usages": ["cats", "any", "any"]}),
        &[
            "spec.usages[0]: Unsupported value: \"cats\": supported values: \"any\", \"cert sign\"",
            "spec.usages[2]: Duplicate value: \"any\"",
        ],
    );
    for (signer, expected) in [
        ("", "spec.signerName: Required value"),
        ("x", "spec.signerName: Invalid value: \"x\": must be a fully qualified domain and path"),
        ("a.b/c/d", "spec.signerName: Invalid value: \"a.b/c/d\": must be a fully qualified"),
        ("a/b", "spec.signerName: Invalid value: \"a\": should be a domain with at least two"),
        ("A.b/c", "spec.signerName: Invalid value: \"A.b\": validating label \"A\": a lowercase"),
        ("a.b/-", "spec.signerName: Invalid value: \"-\": validating label \"-\": a lowercase"),
        (
            "kubernetes.io/legacy-unknown",
            "spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName",
        ),
    ] {
        check(json!({ "signerName": signer }), &[expected]);
    }
    check(
        json!({"expirationSeconds": 599}),
        &["spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600"],
    );
}

#[test]
fn an_invalid_selector_is_also_reported_as_a_unit() {
    let deployment = |kind: &str, selector: Value, expected: &[&str]| {
        let body = json!({"metadata": {"name": "d"}, "spec": {
            "selector": selector,
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        }});
        refused("apps", kind, &body, expected);
    };
    let labels = json!({"matchLabels": {"app": "a-"}});
    let whole =
        "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"a-\"}}: invalid label selector";
    let part = "spec.selector.matchLabels: Invalid value: \"a-\": a valid label must be";
    deployment("Deployment", labels.clone(), &[whole, part]);
    deployment("ReplicaSet", labels.clone(), &[whole, part]);
    deployment("DaemonSet", labels, &[part]);
    deployment(
        "Deployment",
        json!({"matchExpressions": [{"key": "app", "operator": "In"}]}),
        &[
            "spec.selector: Invalid value: ",
            "spec.selector.matchExpressions[0].values: Required value",
        ],
    );
}
